"""Progress on the standard error stream: a live display on a terminal, plain lines elsewhere."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from avare import problems
from avare.experiments.base import Task
from avare.experiments.registry import of_kind
from avare.experiments.runner import Watch, duration
from avare.experiments.store import Record

_DRAW = 1000.0  # coefficients that take as long as everything else that is done for an example: measured, roughly
_NARROW = 100  # columns of a terminal up to which bars are short


class Bar:
    """A bar with the time left, on a terminal; a line for each change elsewhere.

    The time left is estimated from the amount of work that is done since the start, and the amount that is left.
    """

    def __init__(self, console: Console, title: str, count: int, work: float) -> None:
        self._console, self._began = console, time.monotonic()
        self._done, self._left = 0.0, work
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            progress.BarColumn(bar_width=24 if console.width > _NARROW else 8),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._task = self._bars.add_task(title, total=count, note="")
        if console.is_terminal:
            self._bars.start()

    def describe(self, text: str) -> None:
        """Show what is being done, on a terminal."""
        self._bars.update(self._task, description=text, refresh=True)

    def advance(self, count: int, work: float, text: str = "") -> None:
        """Count what is done; elsewhere than on a terminal, print the text if there is one."""
        self._done, self._left = self._done + work, self._left - work
        left = self.time_left()
        self._bars.update(self._task, completed=count, note=left)
        if text and not self._console.is_terminal:
            self._console.print(Text(f"{text}; {left}" if left else text), soft_wrap=True)

    def note(self, text: str) -> None:
        """Show a note in place of the time left."""
        self._bars.update(self._task, note=text)

    def time_left(self) -> str:
        """Return the time left in words; "" if it is not known, or nothing is left."""
        if self._done <= 0.0 or self._left <= 1e-9 * self._done:
            return ""
        return f"roughly {duration((time.monotonic() - self._began) * self._left / self._done)} left"

    def end(self, title: str) -> None:
        """Stop the bar."""
        self._bars.update(self._task, description=title, note="")
        if self._console.is_terminal:
            self._bars.stop()


@contextmanager
def counted(console: Console, title: str) -> Iterator[Callable[[float, str], None]]:
    """Yield a function that shows the share of the work that is done, in per cent, and what is next."""
    bar, last = Bar(console, title, 100, 1.0), 0.0

    def count(share: float, text: str) -> None:
        nonlocal last
        bar.describe(f"{title}: {text}")
        bar.advance(round(100.0 * share), share - last, f"{title}: {text}")
        last = share

    try:
        yield count
        bar.advance(100, 1.0 - last)
    finally:
        bar.end(title)


class Display(Watch):
    """Shows runs on a console: a bar with the latest run on a terminal, elsewhere a line per finished run."""

    def __init__(self, console: Console) -> None:
        self._console, self._lock = console, threading.Lock()
        self._title, self._total, self._done = "", 0, 0
        self._bar: Bar | None = None

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Show how many runs are left."""
        self._title, self._total, self._done = title, len(tasks), len(stored)
        if not self._console.is_terminal:
            self.say(f"{title}: {len(tasks)} wanted, {len(stored)} stored already")
        known = {record["key"] for record in stored}
        work = math.fsum(work_of(task) for task in tasks if task.key not in known)
        self._bar = Bar(self._console, title, len(tasks), work)
        self._bar.advance(self._done, 0.0)

    def started(self, task: Task) -> None:
        """Show a run that has started."""
        with self._lock:
            if self._bar is not None:
                self._bar.describe(f"{self._title}: {_describe(task)}")

    def finished(self, task: Task, record: Record, *, here: bool = True) -> None:
        """Show a run that has been stored."""
        with self._lock:
            self._done += 1
            took = f"{sum(record['seconds'].values()):.1f} s" if here else "by another process"
            if self._bar is not None:
                text = f"[{self._done}/{self._total}] {_describe(task)}: {took}"
                self._bar.advance(self._done, work_of(task), text)

    def waiting(self, tasks: Sequence[Task]) -> None:
        """Show that all runs that are left are done by other processes."""
        words = f"waiting for {len(tasks)} that another process is running"
        if self._bar is not None and self._title:
            self._bar.note(words)
            if not self._console.is_terminal:
                self.say(f"{self._title}: {words}")
                self._title = ""  # once is enough

    def end(self) -> None:
        """Stop the bar."""
        if self._bar is not None:
            self._bar.end(self._title)
            self._bar = None


def _describe(task: Task) -> str:
    return of_kind(task.spec["experiment"]).describe(task.spec)


def work_of(task: Task) -> float:
    """Return the amount of work of a run: examples looked at, times the numbers that each of them meets."""
    X, y, loss = task.data.X, task.data.y, task.spec.get("loss")
    width = X.nnz / max(1, len(y)) if hasattr(X, "indptr") else math.prod(X.shape[1:])
    outputs = len(np.unique(y)) if loss is not None and problems.get(loss).target == "classes" else 1
    passes = of_kind(task.spec["experiment"]).passes(task.spec)
    return passes * max(1, len(task.data)) * (width * outputs + _DRAW)
