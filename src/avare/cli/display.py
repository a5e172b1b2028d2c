"""How a sweep gets on, on the standard error stream: a live display on a terminal, plain lines elsewhere."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich import progress
from rich.console import Console
from rich.text import Text

from avare.experiments.store import Record, Spec
from avare.experiments.sweep import Task, Watch

_DRAW = 1000.0  # coefficients that take as long as all else that is done for an example: measured, roughly
_SEARCH = 100  # passes over the data that the search for an optimum takes, roughly
_EVERY = 1.0  # seconds between two estimates of the time left


class Estimate:
    """How long runs take, from those that are finished.

    A run takes as long as those that are like it; where none is finished, as much longer than others as it
    is more work.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._sums: dict[tuple[Any, ...], tuple[float, float]] = {}  # seconds and work, by kind
        self._coefficients: dict[tuple[Any, ...], float] = {}

    def learn(self, task: Task, record: Record) -> None:
        """Take note of how long a run took."""
        took, work = math.fsum(record["seconds"].values()), self._work(task)
        for kind in (*_alike(task.spec), *_unlike(task.spec)):
            seconds, amount = self._sums.get(kind, (0.0, 0.0))
            self._sums[kind] = (seconds + took, amount + work)

    def of(self, task: Task) -> float | None:
        """Seconds for a run, from the runs most like it; None where none at all is finished."""
        work = self._work(task)
        for kind in (*_alike(task.spec), *_unlike(task.spec)):
            if kind in self._sums:
                seconds, amount = self._sums[kind]
                return seconds * work / amount
        return None

    def left(self, tasks: Mapping[str, Task], elapsed: Mapping[str, float]) -> float | None:
        """Seconds until all of these are done, some of which have been under way for a time; both by key."""
        parts = []
        for key, task in tasks.items():
            seconds = self.of(task)
            if seconds is None:
                return None
            parts.append(max(0.0, seconds - elapsed.get(key, 0.0)))
        return max(math.fsum(parts) / self._jobs, max(parts, default=0.0))  # no two jobs share the longest

    def _work(self, task: Task) -> float:
        """How much there is to do: examples that are looked at, by what each of them takes."""
        spec, data = task.spec, task.data
        what = (spec.get("data_digest"), spec.get("loss"))
        if what not in self._coefficients:
            self._coefficients[what] = _coefficients(task)
        passes = spec.get("epochs", spec.get("length", _SEARCH))
        return float(passes) * max(1, len(data)) * (self._coefficients[what] + _DRAW)


class Display(Watch):
    """What both displays know."""

    def __init__(self, console: Console, jobs: int) -> None:
        self.console = console
        self._estimate = Estimate(jobs)
        self._lock = threading.Lock()
        self._title = ""
        self._left: dict[str, Task] = {}
        self._under_way: dict[str, float] = {}  # since when
        self._total = self._done = 0

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """So many runs are wanted, and some of them are stored already."""
        self._title, self._total, self._done = title, len(tasks), len(stored)
        self._left = {task.key: task for task in tasks}
        for record in stored:
            self._estimate.learn(self._left.pop(record["key"]), record)

    def started(self, task: Task) -> None:
        """A run is under way."""
        with self._lock:
            self._under_way[task.key] = time.monotonic()
            self._say_started(task)

    def finished(self, task: Task, record: Record, *, here: bool = True) -> None:
        """A run is stored."""
        with self._lock:
            self._under_way.pop(task.key, None)
            self._left.pop(task.key, None)
            self._estimate.learn(task, record)
            self._done += 1
            self._say_finished(task, record, here)

    def time_left(self) -> str:
        """In words; empty where nothing is known, or left."""
        now = time.monotonic()
        # Copies, for a display may ask in the midst of a change, and must not wait for its end.
        left, under_way = dict(self._left), dict(self._under_way)
        elapsed = {key: now - since for key, since in under_way.items()}
        seconds = self._estimate.left(left, elapsed) if left else None
        return "" if seconds is None else f"about {duration(seconds)} left"

    def _say_started(self, task: Task) -> None: ...

    def _say_finished(self, task: Task, record: Record, here: bool) -> None: ...


class Lines(Display):
    """A line for each run that ends."""

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """So many runs are wanted, and some of them are stored already."""
        super().begin(title, tasks, stored)
        self._print(f"{title}: {self._total} wanted, {self._done} stored already")

    def waiting(self, tasks: Sequence[Task]) -> None:
        """Nothing is left but what other processes have claimed."""
        if self._title:
            self._print(f"{self._title}: waiting for {len(tasks)} that another process is running")
            self._title = ""  # once is enough

    def _say_finished(self, task: Task, record: Record, here: bool) -> None:
        took = f"{sum(record['seconds'].values()):.1f} s" if here else "by another process"
        left = self.time_left()
        self._print(f"[{self._done}/{self._total}] {describe(task.spec)}: {took}{'; ' if left else ''}{left}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live(Display):
    """A bar for all, and a line for each run under way."""

    def __init__(self, console: Console, jobs: int) -> None:
        super().__init__(console, jobs)
        self._bars: progress.Progress | None = None
        self._all = progress.TaskID(0)
        self._lines: dict[str, progress.TaskID] = {}
        self._note, self._due = "", 0.0

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """So many runs are wanted, and some of them are stored already."""
        super().begin(title, tasks, stored)
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            _Note(self._time_left_now),
            console=self.console,
        )
        self._due = 0.0
        self._all = self._bars.add_task(title, total=self._total, completed=self._done, note=None)
        self._bars.start()

    def waiting(self, tasks: Sequence[Task]) -> None:
        """Nothing is left but what other processes have claimed."""
        if self._bars is not None:
            self._bars.update(self._all, note=f"waiting for {len(tasks)} that another process is running")

    def end(self) -> None:
        """No more runs."""
        if self._bars is not None:
            for line in self._lines.values():
                self._bars.remove_task(line)
            self._lines.clear()
            self._bars.update(self._all, note="")
            self._bars.stop()
            self._bars = None

    def _say_started(self, task: Task) -> None:
        if self._bars is not None:
            self._lines[task.key] = self._bars.add_task(f"  {describe(task.spec)}", total=None, note="")

    def _say_finished(self, task: Task, record: Record, here: bool) -> None:
        if self._bars is not None:
            if task.key in self._lines:
                self._bars.remove_task(self._lines.pop(task.key))
            self._due = 0.0
            self._bars.update(self._all, completed=self._done, note=None)

    def _time_left_now(self) -> str:
        """Made anew each second, and when a run has ended."""
        now = time.monotonic()
        if now >= self._due:
            self._note, self._due = self.time_left(), now + _EVERY
        return self._note


class _Note(progress.ProgressColumn):
    """The note of a line; where it is None, the time left."""

    def __init__(self, left: Callable[[], str]) -> None:
        super().__init__()
        self._left = left

    def render(self, task: progress.Task) -> Text:
        """What is shown at this moment."""
        note: str | None = task.fields["note"]
        return Text(self._left() if note is None else note)


def display(console: Console, jobs: int) -> Display:
    """The display that suits a console."""
    return Live(console, jobs) if console.is_terminal else Lines(console, jobs)


def describe(spec: Spec) -> str:
    """A run in a few words.

    >>> describe({"experiment": "table", "dataset": "mnist"})
    'optimum of mnist'
    """
    if spec["experiment"] == "table":
        return f"optimum of {spec['dataset']}"
    if spec["experiment"] == "theory":
        return f"regret of {spec['method']}, seed {spec['seed']}"
    if spec["experiment"] == "nets":
        how = f"{spec['optimiser']} {spec['step']:g} {spec['rule']}, batches of {spec['batch_size']}"
        return f"{spec['model']}, {spec['sampler']}, {how}, seed {spec['seed']}"
    return f"{spec['dataset']}, {spec['steps']} steps, {spec['sampler']}, seed {spec['seed']}"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(42.4), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _alike(spec: Spec) -> list[tuple[Any, ...]]:
    """The runs that take as long as this one, the closest first."""
    of: tuple[Any, ...] = (spec["experiment"], spec.get("dataset"), spec.get("epochs", spec.get("length")))
    if spec["experiment"] == "nets":
        of = (*of, spec["model"], spec["batch_size"], spec["checkpoints"])
    return [(*of, _method(spec)), of]


def _unlike(spec: Spec) -> list[tuple[Any, ...]]:
    """The runs that are as fast as this one, and at last all."""
    of = ["as fast", spec["experiment"], *([spec["model"]] if spec["experiment"] == "nets" else []), _method(spec)]
    return [tuple(of[:length]) for length in range(len(of), 0, -1)]


def _method(spec: Spec) -> Any:
    return spec.get("sampler", spec.get("method"))


def _coefficients(task: Task) -> float:
    """How many numbers an example meets; of a net, whose layers take more, those of a linear model."""
    X, y = task.data.X, task.data.y
    width = X.nnz / max(1, len(y)) if hasattr(X, "indptr") else math.prod(X.shape[1:])
    return float(width * (len(np.unique(y)) if task.spec.get("loss") == "softmax" else 1))
