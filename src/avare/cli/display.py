"""Progress on the standard error stream: a live display on a terminal, plain lines elsewhere."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from avare import problems
from avare.experiments.base import Task
from avare.experiments.registry import of_kind
from avare.experiments.runner import Watch, duration
from avare.experiments.store import Record, Spec

_DRAW = 1000.0  # coefficients that take as long as everything else that is done for an example: measured, roughly
_NARROW = 100  # columns of a terminal up to which bars are short


class Estimate:
    """How long runs take, learned from finished ones.

    A run takes as long as the most similar finished runs, scaled by the amount of work: runs that differ only by their
    seed, then runs of the same sampler, then any.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._sums: dict[tuple[Any, ...], tuple[float, float]] = {}  # seconds and work, by kind of run
        self._coefficients: dict[tuple[Any, ...], float] = {}

    def learn(self, task: Task, record: Record) -> None:
        """Learn how long a run took."""
        took, work = math.fsum(record["seconds"].values()), self._work(task)
        for kind in _similar(task.spec):
            seconds, amount = self._sums.get(kind, (0.0, 0.0))
            self._sums[kind] = (seconds + took, amount + work)

    def of(self, task: Task) -> float:
        """Return the seconds of a run; NaN if no run at all is finished."""
        found = (self._sums[kind] for kind in _similar(task.spec) if kind in self._sums)
        seconds, work = next(found, (math.nan, 1.0))
        return seconds * self._work(task) / work

    def left(self, tasks: Mapping[str, Task], elapsed: Mapping[str, float]) -> float:
        """Return the seconds until all tasks are done; some have run for a time already. Both are by key."""
        parts = [max(self.of(task) - elapsed.get(key, 0.0), 0.0) for key, task in tasks.items()]
        return max(math.fsum(parts) / self._jobs, max(parts, default=0.0))  # two jobs cannot share the longest run

    def _work(self, task: Task) -> float:
        """Return the amount of work: examples looked at, times the work for each of them."""
        what = (task.spec.get("data_digest"), task.spec.get("loss"))
        if what not in self._coefficients:
            self._coefficients[what] = _coefficients(task)
        passes = of_kind(task.spec["experiment"]).passes(task.spec)
        return passes * max(1, len(task.data)) * (self._coefficients[what] + _DRAW)


class Display(Watch):
    """Shows runs on a console.

    On a terminal there is a bar with the latest run and the time left; elsewhere a line per finished run.
    """

    def __init__(self, console: Console, jobs: int) -> None:
        self._console, self._estimate = console, Estimate(jobs)
        self._lock = threading.Lock()
        self._title, self._total = "", 0
        self._left: dict[str, Task] = {}
        self._under_way: dict[str, float] = {}  # and since when
        self._bars: progress.Progress | None = None  # on a terminal
        self._all = progress.TaskID(0)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Learn from the stored records how long runs take, and show how many runs are left."""
        self._title, self._total = title, len(tasks)
        self._left = {task.key: task for task in tasks}
        for record in stored:
            self._estimate.learn(self._left.pop(record["key"]), record)
        if not self._console.is_terminal:
            self.say(f"{title}: {len(tasks)} wanted, {len(stored)} stored already")
            return
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            progress.BarColumn(bar_width=24 if self._console.width > _NARROW else 8),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            _Note(),
            console=self._console,
        )
        self._all = self._bars.add_task(title, total=len(tasks), completed=len(stored), note=self.time_left)
        self._bars.start()

    def started(self, task: Task) -> None:
        """Show a run that has started."""
        with self._lock:
            self._under_way[task.key] = time.monotonic()
            if self._bars is not None:
                self._bars.update(self._all, description=f"{self._title}: {_describe(task)}", refresh=True)

    def finished(self, task: Task, record: Record, *, here: bool = True) -> None:
        """Show a run that has been stored."""
        with self._lock:
            for runs in (self._under_way, self._left):
                runs.pop(task.key, None)
            self._estimate.learn(task, record)
            done = self._total - len(self._left)
            if self._bars is None:
                took = f"{sum(record['seconds'].values()):.1f} s" if here else "by another process"
                left = self.time_left()
                self.say(f"[{done}/{self._total}] {_describe(task)}: {took}{'; ' if left else ''}{left}")
                return
            self._bars.update(self._all, completed=done, note=self.time_left)

    def waiting(self, tasks: Sequence[Task]) -> None:
        """Show that all runs that are left are done by other processes."""
        words = f"waiting for {len(tasks)} that another process is running"
        if self._bars is not None:
            self._bars.update(self._all, note=words)
        elif self._title:
            self.say(f"{self._title}: {words}")
            self._title = ""  # once is enough

    def end(self) -> None:
        """Stop the bar."""
        if self._bars is not None:
            self._bars.update(self._all, description=self._title, note="")
            self._bars.stop()
            self._bars = None

    def time_left(self) -> str:
        """Return the time left in words; "" if it is not known, or nothing is left."""
        now = time.monotonic()
        # Copies: a bar may ask during a change, and must not wait for its end.
        left, under_way = dict(self._left), dict(self._under_way)
        seconds = self._estimate.left(left, {key: now - since for key, since in under_way.items()})
        return f"roughly {duration(seconds)} left" if left and math.isfinite(seconds) else ""


class _Note(progress.ProgressColumn):
    """The note of a line: a text, or what returns it."""

    def render(self, task: progress.Task) -> Text:
        """Return what to show now."""
        note = task.fields["note"]
        return Text(note() if callable(note) else note)


def _describe(task: Task) -> str:
    return of_kind(task.spec["experiment"]).describe(task.spec)


def _similar(spec: Spec) -> list[tuple[Any, ...]]:
    """Return keys of runs like this one, the most similar first."""
    kind, setting = spec["experiment"], {key: value for key, value in spec.items() if key != "seed"}
    same = tuple(value for value in setting.values() if isinstance(value, str | int | float))
    return [(kind, *same), (kind, spec.get("sampler")), (kind,), ()]


def _coefficients(task: Task) -> float:
    """Return how many numbers an example meets; for a net, those of a linear model."""
    X, y, loss = task.data.X, task.data.y, task.spec.get("loss")
    width = X.nnz / max(1, len(y)) if hasattr(X, "indptr") else math.prod(X.shape[1:])
    return float(width * (len(np.unique(y)) if loss is not None and problems.get(loss).target == "classes" else 1))
