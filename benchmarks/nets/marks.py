"""Marks that charts of nets have next to their curves, for `avare.plotting.Chart.draw`."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from avare.plotting.charts import GREY, Style, verbatim
from log_axes import log_ticks

_DOT: dict[str, Any] = {"linestyle": "", "markersize": 5.5, "markeredgewidth": 0.9, "zorder": 3.0}


def crosses(axis: Any, points: Iterable[tuple[float, float, str]]) -> None:
    """Draw a cross at each x and y, in a colour: where a run diverged."""
    for x, y, colour in points:
        axis.plot([x], [y], marker="x", markersize=7, markeredgewidth=1.5, color=colour, zorder=4.0)


def scatter(axis: Any, points: Iterable[tuple[float, float, Style]]) -> None:
    """Draw a marker at each x and y, with a logarithmic x axis."""
    for x, y, style in points:
        look = {"marker": style.marker, "facecolor": style.colour, "edgecolor": "white", "linewidth": 0.3}
        axis.scatter([x], [y], s=20, alpha=0.85, zorder=2.5, **look)
    axis.set_xscale("log")
    log_ticks(axis.xaxis)


class Dot(NamedTuple):
    """A value in a named line of a chart, with its standard error; NaN: it diverged.

    >>> Dot(line=0, hollow=False, value=0.5, error=0.1, style=Style("#000000", "solid", "o")).value
    0.5
    """

    line: int
    hollow: bool
    value: float
    error: float
    style: Style


def dots(axis: Any, labels: Sequence[str], points: Sequence[Dot], words: Sequence[str], *, log: bool) -> None:
    """Draw dots in named lines, with two standard errors; filled and hollow ones mean what the words say."""
    for line, hollow, value, error, style in points:
        y = line + (0.14 if hollow else -0.14)
        if np.isnan(value):
            place = {"transform": axis.get_yaxis_transform(), "ha": "right", "va": "center"}
            axis.text(0.98, y, "diverged", fontsize=7, color=style.colour, **place)
        if np.isfinite(error):
            ends = [max(value - 2.0 * error, 0.02 * value), value + 2.0 * error]
            axis.plot(ends, [y] * 2, color=style.colour, linewidth=1.0, alpha=0.6, zorder=2.0)
        face = "white" if hollow else style.colour
        axis.plot([value], [y], marker=style.marker, color=style.colour, markerfacecolor=face, **_DOT)
    values = [point.value for point in points if np.isfinite(point.value)]
    if log and values:
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 1.4, max(values) * 1.4)
        log_ticks(axis.xaxis)
    else:
        axis.set_xlim(left=0.0)
    left = axis.get_subplotspec().is_first_col()  # elsewhere, the lines have the same names
    axis.set_yticks(range(len(labels)), [verbatim(label) if left else "" for label in labels])
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    for text, face in zip(words, (GREY, "white"), strict=False):
        axis.plot([], [], marker="o", color=GREY, markerfacecolor=face, label=text, **_DOT)
