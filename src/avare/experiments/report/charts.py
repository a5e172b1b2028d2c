"""Figures: grids of charts with one legend, drawn by Matplotlib."""

import io
from collections.abc import Mapping
from typing import Any

from avare.experiments.document import Figure
from avare.plotting.charts import Style, draw, drawing, new_figure, verbatim

_LEAST_WIDTH = 5.6  # inches
_HANDLE, _LETTER = 0.65, 0.068  # inches that a legend entry takes, about, and each letter of it


def render(figure: Figure, styles: Mapping[str, Style]) -> dict[str, bytes]:
    """Draw a figure; return its files by ending, "png" and "svg"."""
    files = {}
    with drawing():
        drawn = lay_out(figure, styles)
        for ending in ("png", "svg"):
            content = io.BytesIO()
            drawn.savefig(content, format=ending, metadata={"Date": None} if ending == "svg" else None)
            files[ending] = content.getvalue()
            drawn.set_layout_engine("none")  # the layout takes half of the time: keep it for the second file
    return files


def lay_out(figure: Figure, styles: Mapping[str, Style]) -> Any:
    """Return a Matplotlib figure: a grid of charts and one legend; use it within `avare.plotting.charts.drawing`."""
    width, height = figure.size
    rows, columns = len(figure.rows), len(figure.rows[0])
    drawn = new_figure((max(width * columns, _LEAST_WIDTH), 0.75 + height * rows))
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
        fitting = int(drawn.get_figwidth() / (_HANDLE + _LETTER * max(map(len, handles))))
        place = {"loc": "outside lower center", "ncols": max(fitting, 1), "handlelength": 3.0, "columnspacing": 1.6}
        drawn.legend(list(handles.values()), list(handles), **place)
    return drawn
