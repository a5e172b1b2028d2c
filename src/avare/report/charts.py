"""Charts for Matplotlib figures and for the page, from the same description."""

import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.content import Figure
from avare.experiments.records import numbers
from avare.plotting import BLACK, DOTS, RC_PARAMS, Chart, Curve, Style, blank, draw, verbatim

_LEAST_WIDTH = 5.6  # inches
_HANDLE, _LETTER = 0.65, 0.068  # inches that a legend entry takes, about, and each letter of it
_MOST_POINTS = 400  # per curve: a screen shows no more
_SWITCHES = (("default", "Default"), ("log", "Log"), ("linear", "Linear"))


# --- figures --------------------------------------------------------------------------------


def render(figure: Figure, styles: Mapping[str, Style]) -> dict[str, bytes]:
    """Draw a figure; return its files by ending, "png" and "svg"."""
    files = {}
    with require("matplotlib", "drawing figures").rc_context(RC_PARAMS):
        drawn = lay_out(figure, styles)
        for ending in ("png", "svg"):
            content = io.BytesIO()
            metadata = {"Date": None} if ending == "svg" else None
            drawn.savefig(content, format=ending, dpi=DOTS, metadata=metadata, facecolor="white")
            files[ending] = content.getvalue()
            drawn.set_layout_engine("none")  # the layout takes half of the time: keep it for the second file
    return files


def lay_out(figure: Figure, styles: Mapping[str, Style]) -> Any:
    """Return a Matplotlib figure: a grid of charts and one legend; use it within ``rc_context(RC_PARAMS)``."""
    width, height = figure.size
    rows, columns = len(figure.rows), len(figure.rows[0])
    drawn = blank((max(width * columns, _LEAST_WIDTH), 0.75 + height * rows))
    axes = drawn.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for i, row in enumerate(figure.rows):
        for j, chart in enumerate(row):
            axis = axes[i][j]
            draw(axis, chart, styles)
            if i == 0 or figure.rows[i - 1][j].title != chart.title:
                axis.set_title(verbatim(chart.title))
            if j == 0 or row[j - 1].y_title != chart.y_title:
                axis.set_ylabel(verbatim(chart.y_title), fontweight="bold")
            if i == rows - 1 or figure.rows[i + 1][j].x_title != chart.x_title:
                axis.set_xlabel(verbatim(chart.x_title))
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    drawn.suptitle(verbatim(figure.title), fontsize=9, color="#555555")
    if handles:
        widest = _HANDLE + _LETTER * max(map(len, handles))
        lines = math.ceil(len(handles) / max(int(drawn.get_figwidth() / widest), 1))
        columns = math.ceil(len(handles) / lines)
        place = {"loc": "outside lower center", "ncols": columns, "handlelength": 3.0, "columnspacing": 1.6}
        drawn.legend(list(handles.values()), list(handles), **place)
    return drawn


# --- the page -------------------------------------------------------------------------------


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
        **{name: _rounded(values[keep]) for name, values in columns.items() if values is not None},
    }


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Five digits, more than a screen shows; null where there is no number."""
    return numbers([float(f"{value:.5g}") for value in values.tolist()])


def controls(name: str, labels: Sequence[str], styles: Mapping[str, Style]) -> str:
    """Return switches for the lines, which are the legend too, and for the axes."""
    boxes = "\n".join(
        f'<label><input type="checkbox" value="{html.escape(label)}" checked autocomplete="off">'
        f"{_swatch(styles[label])}{html.escape(label)}</label>"
        for label in labels
    )
    radios = "\n".join(
        f'<label><input type="radio" name="{name}-axes" value="{value}" autocomplete="off"'
        f"{' checked' if value == 'default' else ''}>{text}</label>"
        for value, text in _SWITCHES
    )
    return (
        f'<div class="controls">\n<fieldset><legend>Lines</legend>\n{boxes}\n'
        '<span class="together"><button type="button" data-all="yes">All</button> '
        '<button type="button" data-all="no">None</button></span></fieldset>\n'
        f"<fieldset><legend>Vertical axes</legend>\n{radios}</fieldset>\n</div>\n"
    )


def frame(place: str, heading: str, description: str, note: str) -> str:
    """Return the place of a chart on the page."""
    words = f'<p class="hint">{html.escape(note)}</p>' if note else ""
    return (
        f"<figure><figcaption><h3>{html.escape(heading)}</h3>{words}</figcaption>"
        f'<div class="chart" id="{place}" role="img" aria-label="{html.escape(description)}"></div></figure>\n'
    )


def _swatch(style: Style) -> str:
    """Return a short piece of the line, for the legend."""
    dashes = {"solid": "", "dash": "6 3", "dashdot": "7 3 2 3", "dot": "2 2.5"}[style.dash]
    stroke = "currentColor" if style.colour == BLACK else style.colour
    corners = " ".join(f"{16 + x:.1f},{6 + y:.1f}" for x, y in outline(style.marker))
    return (
        '<svg width="32" height="12" viewBox="0 0 32 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="32" y2="6" stroke="{stroke}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        f'<polygon points="{corners}" fill="{stroke}"/></svg>'
    )


def outline(marker: str) -> list[tuple[float, float]]:
    """Return the corners of a marker of radius about 4 around the origin, y downwards."""
    shape = require("matplotlib.markers", "making the page").MarkerStyle(marker)
    (corners, *_) = shape.get_path().transformed(shape.get_transform()).to_polygons()
    return [(8.0 * float(x), -8.0 * float(y)) for x, y in corners]
