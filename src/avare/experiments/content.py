"""What an experiment shows, as plain data: tables, figures and the tabs of a page. `avare.report` writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from avare.plotting import Chart


class Column(NamedTuple):
    """A column of a table.

    Parameters
    ----------
    name
        Its name in CSV files.
    heading
        Its name elsewhere.
    kind
        How values are written: "text", "integer", "number" (two decimals), "ratio" (three decimals), "digits" (three
        significant digits), "percent", "power" (of ten), "seconds", "answer" (yes or no), or "detail", which only
        CSV files have.
    """

    name: str
    heading: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows under a caption; None, NaN and "" are empty cells.

    Parameters
    ----------
    caption
        One sentence.
    columns
        See `Column`.
    rows
        A value per column each.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def without(self, *names: str) -> "Table":
        """Return the same table without some columns.

        >>> Table("", (Column("a", "A"), Column("b", "B")), ((1, 2),)).without("a").rows
        ((2,),)
        """
        keep = [place for place, column in enumerate(self.columns) if column.name not in names]
        rows = tuple(tuple(row[place] for place in keep) for row in self.rows)
        return Table(self.caption, tuple(self.columns[place] for place in keep), rows)


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A grid of charts with one legend: a PNG and an SVG file.

    Titles that repeat are written once: a chart's title if the chart above has the same, its y title if the chart to
    the left has it, its x title if the chart below has it.

    Parameters
    ----------
    title
        Above all charts.
    rows
        The charts, row by row; all rows have the same length.
    size
        Width and height of a chart, in inches.
    """

    title: str
    rows: tuple[tuple[Chart, ...], ...]
    size: tuple[float, float] = (3.2, 2.35)


Part = str | Chart | Table | Mapping[str, Any]
"""A part of a section: a paragraph, a chart (neighbours are side by side), a table, or names with values."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A heading of a page and what is below it."""

    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """A tab of the page; its curves can be switched on and off by their labels."""

    title: str
    sections: tuple[Section, ...]

    @property
    def charts(self) -> list[Chart]:
        """All its charts, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]
