"""What an experiment shows, as plain data: tables, figures and tabs. `avare.experiments.report` writes them."""

import csv
import io
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from avare.plotting.charts import SUPERSCRIPTS, Chart

NUMBERS = ("integer", "number", "ratio", "digits", "percent", "power", "seconds")
"""The kinds of columns that are aligned to the right."""
_NOTHING = "–"
_FORMS: dict[str, Callable[[Any], str]] = {
    "answer": lambda value: "yes" if value else "no",
    "integer": lambda value: f"{value:,.0f}".replace(",", "\u202f"),
    "percent": lambda value: f"{100.0 * value:.2f} %",
    "digits": lambda value: f"{value:.3g}" if value == 0.0 or 1e-3 <= abs(value) < 999.5 else power(value),
    "value": lambda value: f"{value:.6g}",
    "seconds": lambda value: f"{value:.3g}" if value < 100 else f"{value:.0f}",
}


class Column(NamedTuple):
    """A column of a table: its name in CSV files, its heading elsewhere, and the kind of its values.

    Kinds are "text", "integer", "number" (two decimals), "ratio" (three decimals), "digits" (three significant digits),
    "value" (six), "percent", "power" (of ten), "seconds", "answer" (yes or no), and "detail", only in CSV files.

    >>> Column("share", "Share", "percent").text(0.125)
    '12.50 %'
    """

    name: str
    heading: str
    kind: str = "text"

    def text(self, value: Any) -> str:
        """Write a value for readers.

        >>> Column("gain", "gain", "ratio").text(1.23456), Column("share", "share", "percent").text(0.5)
        ('1.235', '50.00 %')
        """
        if absent(value):
            return _NOTHING
        if isinstance(value, str):
            return value
        if self.kind in _FORMS:
            return _FORMS[self.kind](value)
        if self.kind == "power" or abs(value) >= 1000.0:
            return power(value)
        return f"{value:.{3 if self.kind == 'ratio' else 2}f}".replace("-", "−")


def printable(text: str) -> str:
    r"""Return a text that any terminal and file takes: other signs as escapes, such as those that control terminals.

    >>> print(printable("\x1b[31mred \udce9"))
    \x1b[31mred \udce9
    """
    controls = {sign for sign in set(text) - {"\n", "\t"} if unicodedata.category(sign)[0] == "C"}
    return text.translate({ord(sign): ascii(sign)[1:-1] for sign in controls})


def absent(value: Any) -> bool:
    """Return whether a cell is empty: None, "" or a number that is not finite."""
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def power(value: float) -> str:
    """Write a number as three digits and a power of ten."""
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace("-", "−")


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows under a caption; None, NaN and "" are empty cells.

    >>> table = Table("Gains", (Column("n", "N", "integer"), Column("gain", "Gain", "number")), ((100, 4.4),))
    >>> [column.text(value) for column, value in zip(table.columns, table.rows[0])]
    ['100', '4.40']
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, caption: str, columns: str, rows: Iterable[Mapping[str, Any]]) -> "Table":
        """Make a table of rows by name; columns are written "name|heading|kind" and separated by semicolons.

        >>> Table.of("Gains", "n|N|integer; gain", [{"gain": "high", "n": 3}]).rows
        ((3, 'high'),)
        """
        parts = [(*text.strip().split("|"), "", "")[:3] for text in columns.split(";")]
        found = tuple(Column(name, heading or name.replace("_", " "), kind or "text") for name, heading, kind in parts)
        return cls(caption, found, tuple(tuple(row.get(column.name) for column in found) for row in rows))

    def without(self, *names: str) -> "Table":
        """Return the same table without some columns.

        >>> Table("", (Column("a", "A"), Column("b", "B")), ((1, 2),)).without("a").rows
        ((2,),)
        """
        keep = [place for place, column in enumerate(self.columns) if column.name not in names]
        rows = tuple(tuple(row[place] for place in keep) for row in self.rows)
        return Table(self.caption, tuple(self.columns[place] for place in keep), rows)

    @property
    def shown(self) -> "Table":
        """The same table without the columns that only CSV files have."""
        return self.without(*(column.name for column in self.columns if column.kind == "detail"))

    def as_csv(self) -> str:
        """Write all columns with all digits; an empty field where there is no value."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        for row in self.rows:
            writer.writerow(["" if absent(value) else value for value in row])
        return text.getvalue()

    def as_markdown(self) -> str:
        """Write rounded numbers, aligned to the right."""
        columns, rows = self.shown.columns, self.shown.rows
        lines = [
            [column.heading for column in columns],
            ["---:" if column.kind in NUMBERS else "---" for column in columns],
            *([text.replace("|", "\\|") for text in map(Column.text, columns, row)] for row in rows),
        ]
        return f"{self.caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A grid of charts with one legend: a PNG and an SVG file.

    Titles that repeat are written once: a chart's title if the chart above has the same, its y title if the chart to
    the left has it, its x title if the chart below has it.

    >>> Figure("One chart", ((Chart("Loss", "Epochs"),),)).size
    (3.2, 2.35)
    """

    title: str
    rows: tuple[tuple[Chart, ...], ...]  # of the same length
    size: tuple[float, float] = (3.2, 2.35)  # of a chart, in inches


SectionPart = str | Chart | Table | Mapping[str, Any]
"""A part of a section: a paragraph, a chart (neighbours are side by side), a table, or names with values."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A heading of a page and what is below it.

    >>> Section("Settings", ("Ten runs of each.", {"batch size": 128})).heading
    'Settings'
    """

    heading: str
    parts: tuple[SectionPart, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """A tab of the page; its curves can be switched on and off by their labels.

    Above everything else are the verdict, in a sentence or two, and the lead: what explains it, and names with values.

    >>> panel = Panel("Mine", (Section("Loss", (Chart("Loss", "Epochs"),)),), lead=("It helps.",))
    >>> [chart.title for chart in panel.charts]
    ['Loss']
    """

    title: str
    sections: tuple[Section, ...]
    lead: tuple[str | Mapping[str, Any], ...] = ()
    verdict: tuple[str, ...] = ()

    @property
    def charts(self) -> list[Chart]:
        """All its charts, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]
