"""What the command prints: JSON, or sentences and tables that fit the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.table
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from avare.experiments.content import Column, Table

_WIDE = 200  # columns, if the output is not a terminal
_FRAME = 3  # characters around a cell: a line and two blanks


def show(machine: bool, value: Any, parts: Sequence[str | Table], code: int = 0) -> int:
    """Print a value as JSON, or sentences and tables; return the exit code."""
    if machine:
        print(json.dumps(value, indent=1, default=lambda each: str(each) if isinstance(each, Path) else repr(each)))
        return code
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            print_table(console(stderr=False), part)
    return code


def console(*, stderr: bool) -> Console:
    """Return the console; wide, if it is not a terminal, so that tables are not folded."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=_WIDE)


def print_table(console: Console, table: Table) -> None:
    """Print a table. If it is too wide, print several below each other, each with the first columns; cut nothing."""
    columns = [(place, column) for place, column in enumerate(table.columns) if column.kind != "detail"]
    cells = [["" if row[place] == "" else column.text(row[place]) for place, column in columns] for row in table.rows]
    headings = [column.heading for _, column in columns]
    widths = [
        max([*(cell_len(row[k]) for row in cells), *(cell_len(word) for word in heading.split())], default=0)
        for k, heading in enumerate(headings)
    ]
    for chosen in _pieces([column for _, column in columns], widths, console.width - 1):
        drawn = rich.table.Table()
        for k in chosen:
            drawn.add_column(Text(headings[k]), min_width=widths[k], overflow="fold")
        for row in cells:
            drawn.add_row(*(Text(row[k]) for k in chosen))  # as Text: names may look like markup
        console.print(drawn)


def _pieces(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[list[int]]:
    """Return which columns to print together: all, or the leading texts with as many others as fit.

    >>> columns = [Column("sampler", "sampler"), *(Column(name, name, "number") for name in "abc")]
    >>> _pieces(columns, [7, 9, 9, 9], 80), _pieces(columns, [7, 9, 9, 9], 40)
    ([[0, 1, 2, 3]], [[0, 1, 2], [0, 3]])
    """
    everything = list(range(len(columns)))
    if sum(widths) + _FRAME * len(widths) <= width:
        return [everything]
    leading = next((k for k, column in enumerate(columns) if column.kind != "text"), 1)
    keys = everything[:leading]
    pieces, piece, used = [], list(keys), sum(widths[k] + _FRAME for k in keys)
    taken = used
    for k in everything[leading:]:
        if len(piece) > len(keys) and taken + widths[k] + _FRAME > width:
            pieces.append(piece)
            piece, taken = list(keys), used
        piece.append(k)
        taken += widths[k] + _FRAME
    return [*pieces, piece]
