"""What the command prints: JSON, or sentences and tables that fit the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import rich.table
from rich.console import Console
from rich.text import Text

from avare.experiments.document import Table
from avare.report.tables import shown

_WIDE = 300  # columns, if the output is not a terminal


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
    """Print a table with its caption, and cut nothing: if it is too wide, each cell gets a line."""
    if table.caption:
        say(console, table.caption)
    table = shown(table)
    drawn = rich.table.Table()
    for column in table.columns:
        drawn.add_column(Text(column.heading), no_wrap=column.kind != "text", overflow="fold")
    rows = [[column.text(value) for column, value in zip(table.columns, row, strict=True)] for row in table.rows]
    for row in rows:
        drawn.add_row(*map(Text, row))  # as Text: names may look like markup
    if console.measure(drawn).minimum <= console.width:
        console.print(drawn)
        return
    for row in rows:
        lines = [f"{column.heading}: {text}" for column, text in zip(table.columns, row, strict=True)]
        console.print(Text("\n".join([*lines, ""])), soft_wrap=True)
