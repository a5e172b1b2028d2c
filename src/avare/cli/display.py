"""Progress of a sweep on the standard error stream: a live display on a terminal, plain lines elsewhere."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from avare import problems
from avare.experiments.base import Task
from avare.experiments.registry import of_kind
from avare.experiments.store import Record, Spec
from avare.experiments.sweep import Watch, duration

_DRAW = 1000.0  # coefficients that take as long as everything else that is done for an example: measured, roughly
_NARROW = 100  # columns of a terminal up to which bars are short
_EVERY = 1.0  # seconds between two estimates of the time left
_REPEAT = 5.0  # seconds between two lines about one activity, if there is no terminal


class Estimate:
    """How long runs take, learned from finished ones.

    A run takes as long as runs of the same size and pace. If none is finished, the time of the most similar finished
    runs is scaled by the amount of work.
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

    def of(self, task: Task) -> float | None:
        """Return the seconds of a run, from the most similar finished runs; None if no run at all is finished."""
        work = self._work(task)
        for kind in _similar(task.spec):
            if kind in self._sums:
                seconds, amount = self._sums[kind]
                return seconds * work / amount
        return None

    def left(self, tasks: Mapping[str, Task], elapsed: Mapping[str, float]) -> float | None:
        """Return the seconds until all tasks are done; some have run for a time already. Both are by key."""
        parts = []
        for key, task in tasks.items():
            seconds = self.of(task)
            if seconds is None:
                return None
            parts.append(max(0.0, seconds - elapsed.get(key, 0.0)))
        return max(math.fsum(parts) / self._jobs, max(parts, default=0.0))  # two jobs cannot share the longest run

    def _work(self, task: Task) -> float:
        """Return the amount of work: examples looked at, times the work for each of them."""
        spec = task.spec
        what = (spec.get("data_digest"), spec.get("loss"))
        if what not in self._coefficients:
            self._coefficients[what] = _coefficients(task)
        passes = of_kind(spec["experiment"]).passes(spec)
        return passes * max(1, len(task.data)) * (self._coefficients[what] + _DRAW)


class Display(Watch):
    """What both displays have in common."""

    def __init__(self, console: Console, jobs: int) -> None:
        self.console = console
        self._estimate = Estimate(jobs)
        self._lock = threading.Lock()
        self._title = ""
        self._left: dict[str, Task] = {}
        self._under_way: dict[str, float] = {}  # and since when
        self._total = self._done = 0

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Learn from the stored records how long runs take."""
        self._title, self._total, self._done = title, len(tasks), len(stored)
        self._left = {task.key: task for task in tasks}
        for record in stored:
            self._estimate.learn(self._left.pop(record["key"]), record)

    def started(self, task: Task) -> None:
        """Show a run that has started."""
        with self._lock:
            self._under_way[task.key] = time.monotonic()
            self._show_started(task)

    def finished(self, task: Task, record: Record, *, here: bool = True) -> None:
        """Show a run that has been stored."""
        with self._lock:
            self._under_way.pop(task.key, None)
            self._left.pop(task.key, None)
            self._estimate.learn(task, record)
            self._done += 1
            self._show_finished(task, record, here)

    def time_left(self) -> str:
        """Return the time left in words; "" if it is not known, or nothing is left."""
        now = time.monotonic()
        # Copies: a display may ask during a change, and must not wait for its end.
        left, under_way = dict(self._left), dict(self._under_way)
        elapsed = {key: now - since for key, since in under_way.items()}
        seconds = self._estimate.left(left, elapsed) if left else None
        return "" if seconds is None else f"about {duration(seconds)} left"

    def _show_started(self, task: Task) -> None: ...

    def _show_finished(self, task: Task, record: Record, here: bool) -> None: ...


class Lines(Display):
    """One line per finished run."""

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Print how many runs are wanted and stored."""
        super().begin(title, tasks, stored)
        self.say(f"{title}: {self._total} wanted, {self._done} stored already")

    def waiting(self, tasks: Sequence[Task]) -> None:
        """Show that all runs that are left are done by other processes."""
        if self._title:
            self.say(f"{self._title}: waiting for {len(tasks)} that another process is running")
            self._title = ""  # once is enough

    def _show_finished(self, task: Task, record: Record, here: bool) -> None:
        took = f"{sum(record['seconds'].values()):.1f} s" if here else "by another process"
        left = self.time_left()
        self.say(f"[{self._done}/{self._total}] {_describe(task)}: {took}{'; ' if left else ''}{left}")


class Live(Display):
    """A bar for all runs, and a line for each run under way."""

    def __init__(self, console: Console, jobs: int) -> None:
        super().__init__(console, jobs)
        self._bars: progress.Progress | None = None
        self._all = progress.TaskID(0)
        self._lines: dict[str, progress.TaskID] = {}
        self._note, self._due = "", 0.0

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Start the bar."""
        super().begin(title, tasks, stored)
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            progress.BarColumn(bar_width=24 if self.console.width > _NARROW else 8),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            _Note(self._time_left_now),
            console=self.console,
        )
        self._due = 0.0
        self._all = self._bars.add_task(title, total=self._total, completed=self._done, note=None)
        self._bars.start()

    def waiting(self, tasks: Sequence[Task]) -> None:
        """Show that all runs that are left are done by other processes."""
        if self._bars is not None:
            self._bars.update(self._all, note=f"waiting for {len(tasks)} that another process is running")

    def end(self) -> None:
        """Stop the bar."""
        if self._bars is not None:
            for line in self._lines.values():
                self._bars.remove_task(line)
            self._lines.clear()
            self._bars.update(self._all, note="")
            self._bars.stop()
            self._bars = None

    def _show_started(self, task: Task) -> None:
        if self._bars is not None:
            self._lines[task.key] = self._bars.add_task(f"  {_describe(task)}", total=None, note="")

    def _show_finished(self, task: Task, record: Record, here: bool) -> None:
        if self._bars is not None:
            if task.key in self._lines:
                self._bars.remove_task(self._lines.pop(task.key))
            self._due = 0.0
            self._bars.update(self._all, completed=self._done, note=None)

    def _time_left_now(self) -> str:
        """Estimate again each second, and when a run has ended."""
        now = time.monotonic()
        if now >= self._due:
            self._note, self._due = self.time_left(), now + _EVERY
        return self._note


class _Note(progress.ProgressColumn):
    """The note of a line; the time left if it is None."""

    def __init__(self, left: Callable[[], str]) -> None:
        super().__init__()
        self._left = left

    def render(self, task: progress.Task) -> Text:
        """Return what to show now."""
        note: str | None = task.fields["note"]
        return Text(self._left() if note is None else note)


@contextmanager
def activity(console: Console) -> Iterator[Callable[[str], None]]:
    """Show what is being done, and for how long; yield what to call with a few words about it.

    On a terminal it is shown at once and removed in the end; elsewhere a line is printed every five seconds.
    """
    began, words = time.monotonic(), "starting"

    def say(text: str) -> None:
        nonlocal words
        words = text

    def now() -> str:
        return f"{words} [{time.monotonic() - began:.0f} s]"

    def repeat() -> None:
        while not ended.wait(_REPEAT):
            console.print(now(), markup=False, highlight=False, soft_wrap=True)

    if console.is_terminal:
        columns = (progress.SpinnerColumn(), _Note(now))
        with progress.Progress(*columns, console=console, transient=True) as shown:
            shown.add_task("", total=None, note=None)
            yield say
        return
    ended = threading.Event()
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        ended.set()
        thread.join()


def display(console: Console, jobs: int) -> Display:
    """Return the display for a console."""
    return Live(console, jobs) if console.is_terminal else Lines(console, jobs)


def _describe(task: Task) -> str:
    return of_kind(task.spec["experiment"]).describe(task.spec)


def _similar(spec: Spec) -> list[tuple[Any, ...]]:
    """Return keys of runs like this one, the most similar first: same size and pace, then same pace, then any."""
    kind = spec["experiment"]
    experiment = of_kind(kind)
    size, pace = (tuple(spec.get(key) for key in keys) for keys in (experiment.sized_by, experiment.paced_by))
    paces = [pace[:length] for length in range(len(pace), -1, -1)]
    return [*((kind, size, each) for each in paces), *((kind, each) for each in paces), ()]


def _coefficients(task: Task) -> float:
    """Return how many numbers an example meets; for a net, those of a linear model."""
    X, y, loss = task.data.X, task.data.y, task.spec.get("loss")
    width = X.nnz / max(1, len(y)) if hasattr(X, "indptr") else math.prod(X.shape[1:])
    return float(width * (len(np.unique(y)) if loss is not None and problems.get(loss).target == "classes" else 1))
