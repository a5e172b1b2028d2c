"""The web page: one file with its data, its script and Plotly in it; it needs no network."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from avare._optional import require
from avare.experiments.document import NUMBERS, Column, Panel, Section
from avare.experiments.store import numbers
from avare.plotting.charts import SMALLEST, Chart, Curve, Style

_TITLE = "Adaptive importance sampling: results"
_MOST_POINTS = 400  # per curve: a screen shows no more
_MARKED: dict[Any, str] = {"agrees": "yes", "differs": "no", True: "yes", False: "no"}  # classes, by verdict


def render(panels: Sequence[Panel], styles: Mapping[str, Style], *, lead: str, notices: Sequence[str]) -> str:
    """Return the page: tabs below a lead and notices, of which lines after the first become a list."""
    jinja2 = require("jinja2", "making the page")
    charts: dict[str, Any] = {}

    def placed(chart: Chart) -> str:
        """Add a chart to the data of the page; return the name of its place."""
        charts[f"chart-{len(charts)}"] = as_json(chart, styles)
        return f"chart-{len(charts) - 1}"

    def lines_of(panel: Panel) -> dict[str, Style]:
        curves = [curve for chart in panel.charts for curve in chart.curves]
        return {curve.label: curve.style or styles[curve.label] for curve in curves if curve.label}

    loader = jinja2.PackageLoader("avare.experiments.report", "web")
    page = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    page.globals.update(file=lambda name: loader.get_source(page, name)[0], placed=placed, lines_of=lines_of)
    page.globals.update(class_of=_class, address_of=_address, blocks_of=_blocks, outline=outline)
    return str(
        page.get_template("page.html").render(
            title=_TITLE,
            lead=lead,
            notices=[text.split("\n") for text in notices],
            panels=panels,
            charts=charts,
            smallest=SMALLEST,
            plotly=require("plotly.offline", "making the page").get_plotlyjs(),
        )
    )


def as_json(chart: Chart, styles: Mapping[str, Style]) -> dict[str, Any]:
    """Return a chart as the page's script reads it."""
    return {
        "log": chart.log_y,
        "logX": chart.log_x,
        "xTitle": chart.x_title,
        "series": [_curve(curve, curve.style or styles[curve.label]) for curve in chart.curves],
    }


def _curve(curve: Curve, style: Style) -> dict[str, Any]:
    keep = np.unique(np.linspace(0, len(curve.x) - 1, min(len(curve.x), _MOST_POINTS)).astype(np.intp))
    columns = {"x": curve.x, "mean": curve.mean, "deviation": curve.deviation, "lowest": curve.lowest}
    return {
        "label": curve.label,
        "guide": curve.guide,
        "style": style._asdict(),
        **{name: numbers(values[keep]) for name, values in columns.items() if values is not None},
    }


def outline(marker: str) -> str:
    """Return the corners of a marker of radius about 4 around (16, 6), y downwards, for the legend."""
    shape = require("matplotlib.markers", "making the page").MarkerStyle(marker)
    (corners, *_) = shape.get_path().transformed(shape.get_transform()).to_polygons()
    return " ".join(f"{16.0 + 8.0 * x:.1f},{6.0 - 8.0 * y:.1f}" for x, y in corners)


def _blocks(section: Section) -> Iterator[tuple[str, list[Any]]]:
    """Yield the parts of a section, with neighbouring charts together; charts without curves are left out."""
    parts = [part for part in section.parts if not isinstance(part, Chart) or part.curves]
    for kind, members in groupby(parts, key=lambda part: "charts" if isinstance(part, Chart) else "others"):
        yield kind, list(members)


def _address(title: str) -> str:
    return "".join(sign.lower() if sign.isalnum() else "-" for sign in title)


def _class(column: Column, value: Any = None) -> str | None:
    """Return the class of a cell, or of the heading of a column."""
    if column.name in ("verdict", "holds") and value in _MARKED:
        return _MARKED[value]
    if column.kind in NUMBERS:
        return "words" if isinstance(value, str) else "number"
    return "note" if column.name == "note" else None
