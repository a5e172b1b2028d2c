"""What the command prints: JSON, or sentences and tables that fit the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import rich.table
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from avare.experiments.document import Column, Table
from avare.report.tables import shown

_WIDE = 300  # columns, if the output is not a terminal
_FRAME = 3  # characters around a cell: a line and two blanks
_FOLDED = 12  # the least width of a folded text, unless it is shorter


class Cells(NamedTuple):
    """A column as it is printed."""

    heading: str
    texts: Sequence[str]
    least: int  # width, so that no word is cut and numbers stay whole
    is_key: bool  # whether it says what a row is about


def show(machine: bool, value: Any, parts: Sequence[str | Table], code: int = 0) -> int:
    """Print a value as JSON, or sentences and tables; return the exit code."""
    if machine:
        print(json.dumps(value, indent=1, default=lambda each: str(each) if isinstance(each, Path) else repr(each)))
        return code
    screen = console(stderr=False)
    for part in parts:
        if isinstance(part, str):
            say(screen, part)
        else:
            print_table(screen, part)
    return code


def say(console: Console, text: str) -> None:
    """Print a text as it is; on a terminal, lines end between words, and a long path stays whole."""
    lines = text.split("\n")
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

    If it is too wide, columns with the same value in all rows are printed above it. If it still is, several tables are
    printed below each other, each with the first columns. If even these are too wide, each cell gets a line.
    """
    if table.caption:
        say(console, table.caption)
    columns = [_cells(column, [row[k] for row in shown(table).rows]) for k, column in enumerate(shown(table).columns)]
    if len(table.rows) > 1 and _drawn(console, columns) is None:
        same = [each for each in columns if len(set(each.texts)) == 1]
        columns = [each for each in columns if each not in same]
        say(console, "; ".join(f"{each.heading}: {each.texts[0]}" for each in same))
    tables = _pieces(console, columns)
    for drawn in tables:
        console.print(drawn)
    for row in range(0 if tables else len(table.rows)):
        for each in columns:
            console.print(Text(f"{each.heading}: {each.texts[row]}"), soft_wrap=True)
        console.print()


def _cells(column: Column, values: Sequence[Any]) -> Cells:
    texts = ["" if value == "" else column.text(value) for value in values]
    words = column.heading.split()
    for value, text in zip(values, texts, strict=True):
        words += [text[:_FOLDED], *text.split()] if isinstance(value, str) else [text]
    return Cells(column.heading, texts, max(map(cell_len, words), default=0), column.kind == "text")


def _pieces(console: Console, columns: Sequence[Cells]) -> list[rich.table.Table]:
    """Return tables that fit: each has the first columns, and as many others as possible; [] if that is impossible."""
    place = next((k for k, each in enumerate(columns) if not each.is_key), 1)
    keys, others, pieces = columns[:place], columns[place:], []
    while others:
        sizes = range(len(others), 0, -1)
        fitting = ((size, _drawn(console, [*keys, *others[:size]])) for size in sizes)
        size, drawn = next((pair for pair in fitting if pair[1] is not None), (0, None))
        if drawn is None:
            return []
        pieces.append(drawn)
        others = others[size:]
    return pieces


def _drawn(console: Console, columns: Sequence[Cells]) -> rich.table.Table | None:
    """Return a table in which texts fold at words and numbers stay whole; None if it does not fit."""
    left = console.width - 1 - sum(each.least + _FRAME for each in columns)
    if left < 0:
        return None
    drawn = rich.table.Table()
    for each in columns:
        wanted = max(map(cell_len, [each.heading, *each.texts])) - each.least  # more, to have one line
        more = min(left, max(wanted, 0))
        left -= more
        drawn.add_column(Text(each.heading), width=each.least + more)
    for row in zip(*(each.texts for each in columns), strict=True):
        drawn.add_row(*map(Text, row))  # as Text: names may look like markup
    return drawn
