"""What the command prints: results as JSON or text, and progress.

Results go to the standard output. Progress goes to the standard error stream: a live display on a terminal, plain lines
elsewhere.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import rich.table
from rich import progress
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from avare.experiments.base import Task, of_kind
from avare.experiments.document import Column, Table, printable
from avare.experiments.runner import Watch
from avare.experiments.store import Record

_FRAME = 3  # characters around a cell: a line and two blanks
_PERIOD = 3600.0  # seconds over which the speed is estimated, for the time left
_WIDE = 300  # columns, if the output is not a terminal


def show(machine: bool, value: Any, parts: Sequence[str | Table]) -> None:
    """Print a value as JSON, or sentences and tables."""
    if machine:
        print(json.dumps(value, indent=1, default=lambda each: str(each) if isinstance(each, Path) else repr(each)))
        return
    screen = console(stderr=False)
    for part in parts:
        if isinstance(part, str):
            say(screen, part)
        else:
            print_table(screen, part)


def say(console: Console, text: str) -> None:
    """Print a text as it is; on a terminal, lines end between words, and a long path stays whole."""
    lines = printable(text).split("\n")
    if console.is_terminal:
        whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
        lines = [fill(line, console.width, subsequent_indent="    " * line.startswith(" "), **whole) for line in lines]
    console.print(Text("\n".join(lines)), soft_wrap=True)


def console(*, stderr: bool) -> Console:
    """Return the console; wide, if it is not a terminal, so that tables are not folded."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=_WIDE)


def print_table(console: Console, table: Table) -> None:
    """Print a table with its caption, and cut nothing.

    If it is too wide, columns with the same value in all rows are printed above it. If it still is, each cell gets a
    line.
    """
    if table.caption:
        say(console, table.caption)
    table = table.shown
    columns = [
        (column, [printable(column.text(row[k])) for row in table.rows]) for k, column in enumerate(table.columns)
    ]
    if len(table.rows) > 1 and not _fits(console, columns):
        same = [(column, texts) for column, texts in columns if len(set(texts)) == 1]
        say(console, "; ".join(f"{column.heading}: {texts[0]}" for column, texts in same))
        columns = [each for each in columns if each not in same]
    rows = zip(*(texts for _, texts in columns), strict=True)
    if not _fits(console, columns):
        for row in rows:
            say(console, "\n".join(f"{column.heading}: {text}" for (column, _), text in zip(columns, row, strict=True)))
        return
    drawn = rich.table.Table()
    whole = sum(_FRAME + max(map(cell_len, [column.heading, *texts])) for column, texts in columns)
    for column, texts in columns:
        width = None if column.kind == "text" or whole < console.width else _least(column, texts)
        drawn.add_column(Text(column.heading), width=width, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))  # as Text: names may look like markup
    console.print(drawn)


def _fits(console: Console, columns: Sequence[tuple[Column, Sequence[str]]]) -> bool:
    return sum(_FRAME + _least(*each) for each in columns) < console.width


def _least(column: Column, texts: Sequence[str]) -> int:
    """Return the least width of a column in which no word is cut, and no number is folded."""
    words = [word for text in texts for word in text.split()] if column.kind == "text" else texts
    return max(map(cell_len, [*column.heading.split(), *words]))


# --- progress --------------------------------------------------------------------------------


class Bar:
    """A bar with the time left, on a terminal; a line for each change elsewhere."""

    def __init__(self, console: Console, title: str, total: float, done: int = 0) -> None:
        self._console, self._title = console, title
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False, table_column=rich.table.Column(overflow="fold")),
            progress.BarColumn(bar_width=12),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=_PERIOD,
        )
        self._task = self._bars.add_task(title, total=total, completed=done)
        self._bars.start()

    def show(self, done: float, text: str) -> None:
        """Show how much is done, and a few words."""
        self._bars.update(self._task, description=printable(f"{self._title}: {text}"), completed=done, refresh=True)
        if not self._console.is_terminal:
            say(self._console, f"{self._title}: {text}")

    def close(self) -> None:
        """Stop the bar; older versions of Rich would add an empty line where there is none."""
        if self._console.is_terminal:
            self._bars.stop()


class Display(Watch):
    """Shows runs on a console: a bar with the latest run on a terminal, elsewhere a line per finished run."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, title: str, tasks: Sequence[Task], stored: Sequence[Record]) -> None:
        """Show how many runs are left."""
        self._total, self._done = len(tasks), len(stored)
        if not self._console.is_terminal:
            say(self._console, f"{title}: {len(tasks)} wanted, {len(stored)} stored already")
        self._bar = Bar(self._console, title, len(tasks), len(stored))

    def finished(self, task: Task, record: Record) -> None:
        """Show a run that has been stored."""
        self._done += 1
        words = of_kind(task.spec["experiment"]).describe(task.spec)
        took = f"{sum(record['seconds'].values()):.1f} s"
        self._bar.show(self._done, f"[{self._done}/{self._total}] {words}: {took}")

    def end(self) -> None:
        """Stop the bar."""
        self._bar.close()
