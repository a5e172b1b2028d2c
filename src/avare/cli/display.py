"""How a sweep gets on, on the standard error stream: a live display on a terminal, plain lines elsewhere."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from avare.experiments.store import Record, Spec
from avare.experiments.sweep import Task, Watch


class Estimate:
    """How long runs take, from those that are finished."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._seconds: dict[tuple[Any, ...], list[float]] = defaultdict(list)

    def learn(self, record: Record) -> None:
        """Take note of how long a run took."""
        for kind in _kinds(record["spec"]):
            self._seconds[kind].append(sum(record["seconds"].values()))

    def of(self, spec: Spec) -> float | None:
        """Seconds for a run, from the runs most like it; None where there are none."""
        for kind in _kinds(spec):
            if self._seconds[kind]:
                return math.fsum(self._seconds[kind]) / len(self._seconds[kind])
        return None

    def left(self, tasks: Iterable[Task], elapsed: Sequence[tuple[Task, float]]) -> float | None:
        """Seconds until all of these are done, some of which have been under way for a time."""
        total = 0.0
        for task in tasks:
            seconds = self.of(task.spec)
            if seconds is None:
                return None
            total += seconds
        return max(0.0, total - sum(min(so_far, self.of(task.spec) or 0.0) for task, so_far in elapsed)) / self._jobs


class Display(Watch):
    """What both displays know."""

    def __init__(self, console: Console, jobs: int) -> None:
        self.console = console
        self._estimate = Estimate(jobs)
        self._lock = threading.Lock()
        self._title = ""
        self._left: dict[str, Task] = {}
        self._under_way: dict[str, tuple[Task, float]] = {}
        self._total = self._done = 0

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """So many runs are wanted, and some of them are stored already."""
        self._title, self._total, self._done = title, len(tasks), len(stored)
        for record in stored:
            self._estimate.learn(record)
        keys = {record["key"] for record in stored}
        self._left = {task.key: task for task in tasks if task.key not in keys}

    def started(self, task: Task) -> None:
        """A run is under way."""
        with self._lock:
            self._under_way[task.key] = (task, time.monotonic())
            self._say_started(task)

    def finished(self, task: Task, record: Record, *, here: bool = True) -> None:
        """A run is stored."""
        with self._lock:
            self._under_way.pop(task.key, None)
            self._left.pop(task.key, None)
            self._estimate.learn(record)
            self._done += 1
            self._say_finished(task, record, here)

    def time_left(self) -> str:
        """In words; empty where nothing is known."""
        now = time.monotonic()
        elapsed = [(task, now - since) for task, since in self._under_way.values()]
        seconds = self._estimate.left(self._left.values(), elapsed)
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
        left = self.time_left() if self._left else ""
        self._print(f"[{self._done}/{self._total}] {describe(task.spec)}: {took}{'; ' if left else ''}{left}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live(Display):
    """A bar for all, and a line for each run under way."""

    def __init__(self, console: Console, jobs: int) -> None:
        super().__init__(console, jobs)
        self._bars: Progress | None = None
        self._all = TaskID(0)
        self._lines: dict[str, TaskID] = {}

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """So many runs are wanted, and some of them are stored already."""
        super().begin(title, tasks, stored)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._all = self._bars.add_task(title, total=self._total, completed=self._done, note=self.time_left())
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
            self._bars.update(self._all, completed=self._done, note=self.time_left() if self._left else "")


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


def _kinds(spec: Spec) -> list[tuple[Any, ...]]:
    """What a run is like, the closest first."""
    of: tuple[Any, ...] = (spec["experiment"], spec["dataset"], spec.get("epochs", spec.get("length")))
    if spec["experiment"] == "nets":
        of = (*of, spec["model"], spec["batch_size"], spec["checkpoints"])
    return [(*of, spec.get("sampler", spec.get("method"))), of]
