"""What the command prints: JSON, or sentences and tables that fit the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

import rich.table
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from avare.experiments.content import Table

_WIDE = 200  # columns, if the output is not a terminal
_FRAME = 3  # characters around a cell: a line and two blanks
_FOLDED = 24  # the least width of a column of folded text, unless its text is shorter


def show(machine: bool, value: Any, parts: Sequence[str | Table], code: int = 0) -> int:
    """Print a value as JSON, or sentences and tables; return the exit code."""
    if machine:
        print(json.dumps(value, indent=1, default=lambda each: str(each) if isinstance(each, Path) else repr(each)))
        return code
    screen = console(stderr=False)
    for part in parts:
        if isinstance(part, str):
            print(folded(screen, part))
        else:
            print_table(screen, part)
    return code


def folded(console: Console, text: str) -> str:
    """Return a text in lines that end between words, if it is for a terminal; a long path stays whole."""
    if not console.is_terminal:
        return text
    wrapper = TextWrapper(
        console.width, expand_tabs=False, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    lines = []
    for line in text.split("\n"):
        wrapper.subsequent_indent = "    " if line.startswith(" ") else ""
        lines += wrapper.wrap(line)
    return "\n".join(lines)


def console(*, stderr: bool) -> Console:
    """Return the console; wide, if it is not a terminal, so that tables are not folded."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=_WIDE)


def print_table(console: Console, table: Table) -> None:
    """Print a table, and cut nothing.

    If it is too wide, several are printed below each other, each with the first columns. If even these are too wide,
    each cell gets a line.
    """
    columns = [(place, column) for place, column in enumerate(table.columns) if column.kind != "detail"]
    cells = [["" if row[place] == "" else column.text(row[place]) for place, column in columns] for row in table.rows]
    headings = [column.heading for _, column in columns]
    keys = next((k for k, (_, column) in enumerate(columns) if column.kind != "text"), 1)
    widths = [
        _width(heading, [row[k] for row in cells], folds=k >= keys and columns[k][1].kind == "text")
        for k, heading in enumerate(headings)
    ]
    room = console.width - 1  # the last line of the frame
    for chosen in _pieces(keys, widths, room):
        left = room - sum(widths[k] + _FRAME for k in chosen)
        if left < 0:
            _print_lines(console, headings, cells)
            return
        drawn = rich.table.Table()
        for k in chosen:
            wanted = max([cell_len(headings[k]), *(cell_len(row[k]) for row in cells)])  # to have one line, if it can
            more = min(left, max(0, wanted - widths[k]))
            left -= more
            drawn.add_column(Text(headings[k]), width=widths[k] + more)
        for row in cells:
            drawn.add_row(*(Text(row[k]) for k in chosen))  # as Text: names may look like markup
        console.print(drawn)


def _print_lines(console: Console, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    for row in cells:
        for heading, cell in zip(headings, row, strict=True):
            console.print(Text(f"{heading}: {cell}"), soft_wrap=True)
        console.print()


def _width(heading: str, cells: Sequence[str], *, folds: bool) -> int:
    """Return how wide a column must be; a text that folds needs room for its longest word, and some more."""
    words = [*heading.split(), *(word for cell in cells for word in (cell.split() if folds else [cell]))]
    most = max(map(cell_len, cells), default=0)
    return max([*map(cell_len, words), min(most, _FOLDED) if folds else 0], default=0)


def _pieces(keys: int, widths: Sequence[int], width: int) -> list[list[int]]:
    """Return which columns to print together: all, or the first ones, the keys, with those of the others that fit.

    >>> _pieces(1, [7, 9, 9, 9], 80), _pieces(1, [7, 9, 9, 9], 40)
    ([[0, 1, 2, 3]], [[0, 1, 2], [0, 3]])
    """
    everything = list(range(len(widths)))
    first, others = everything[:keys], everything[keys:]
    used = sum(widths[k] + _FRAME for k in first)
    if sum(widths) + _FRAME * len(widths) <= width or any(used + widths[k] + _FRAME > width for k in others):
        return [everything]
    pieces, piece, taken = [], list(first), used
    for k in others:
        if len(piece) > keys and taken + widths[k] + _FRAME > width:
            pieces.append(piece)
            piece, taken = list(first), used
        piece.append(k)
        taken += widths[k] + _FRAME
    return [*pieces, piece]
