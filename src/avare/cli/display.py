"""Progress on the standard error stream: a live display on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence

from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from avare.experiments.base import Task
from avare.experiments.registry import of_kind
from avare.experiments.runner import Watch, duration
from avare.experiments.store import Record

_NARROW = 100  # columns of a terminal up to which bars are short


class Bar:
    """A bar with the time left, on a terminal; a line for each change elsewhere."""

    def __init__(self, console: Console, title: str, total: float, done: float = 0.0) -> None:
        self._console, self._title, self._total = console, title, total
        self._first, self._began = done, time.monotonic()
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            progress.BarColumn(bar_width=24 if console.width > _NARROW else 8),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[left]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task(title, total=total, completed=done, left="")
        self._bars.start()

    def describe(self, text: str) -> None:
        """Show what is being done, on a terminal."""
        self._bars.update(self._task, description=f"{self._title}: {text}", refresh=True)

    def show(self, done: float, text: str) -> None:
        """Show how much is done, a few words, and the time left if what is done takes as long as what is left."""
        new, left = done - self._first, ""
        if new > 0.0 and done < self._total:
            seconds = (time.monotonic() - self._began) * (self._total - done) / new
            left = f"roughly {duration(seconds)} left"
        self._bars.update(self._task, description=f"{self._title}: {text}", completed=done, left=left, refresh=True)
        if not self._console.is_terminal:
            self._console.print(
                Text(f"{self._title}: {text}; {left}" if left else f"{self._title}: {text}"), soft_wrap=True
            )

    def close(self) -> None:
        """Stop the bar."""
        self._bars.update(self._task, description=self._title, left="")
        self._bars.stop()


class Display(Watch):
    """Shows runs on a console: a bar with the latest run on a terminal, elsewhere a line per finished run."""

    _bar: Bar

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Show how many runs are left."""
        self._total, self._done = len(tasks), len(stored)
        if not self._console.is_terminal:
            self.say(f"{title}: {len(tasks)} wanted, {len(stored)} stored already")
        self._bar = Bar(self._console, title, len(tasks), len(stored))

    def started(self, task: Task) -> None:
        """Show a run that has started."""
        self._bar.describe(_describe(task))

    def finished(self, task: Task, record: Record) -> None:
        """Show a run that has been stored."""
        self._done += 1
        took = f"{sum(record['seconds'].values()):.1f} s"
        self._bar.show(self._done, f"[{self._done}/{self._total}] {_describe(task)}: {took}")

    def end(self) -> None:
        """Stop the bar."""
        self._bar.close()


def _describe(task: Task) -> str:
    return of_kind(task.spec["experiment"]).describe(task.spec)
