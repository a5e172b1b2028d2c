"""How curves look.

A `Chart` describes curves with their bands once; `draw` puts it on Matplotlib axes, and the page of
`avare.experiments.report` shows the same chart in a browser.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import cycle
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._optional import require

Floats: TypeAlias = NDArray[np.float64]
# The colours of Okabe and Ito, which colour-blind readers can distinguish; their yellow is too pale for lines.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#777777"
SMALLEST = 1e-9
"""Values below this part of the largest are rounding errors: a log axis does not show them."""
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dashdot": (0, (6, 2, 1.2, 2)), "dot": (0, (1.2, 1.6))}
"""How Matplotlib draws each `Style.dash`."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MARKERS = 8  # per line


# --- styles ---------------------------------------------------------------------------------


class Style(NamedTuple):
    """How a curve looks; different styles differ without colour too.

    >>> Style("#000000", "solid", "o").dash
    'solid'
    """

    colour: str
    dash: str
    """A key of `DASHES`, which is Plotly's word too."""
    marker: str
    """Matplotlib's sign."""


_SOLID = ("Avare", "Calibrated", "Uniform", "Mabs", "Vrb", "Osmd", "Static")
_KNOWN = (*_SOLID, "Mixture", "Safe", "Stratified", "Srg", "Passes", "Optimal", "UpperBound")
_COLOURS = (BLUE, VERMILION, BLACK, ORANGE, GREEN, PURPLE, SKY)
_SIGNS = "os^DvPX<>h*Hpd8"


def order(names: Iterable[str]) -> list[str]:
    """Sort labels as they are listed everywhere: known samplers first, then by the alphabet.

    >>> order(["New", "Uniform", "Avare"])
    ['Avare', 'Uniform', 'New']
    """
    return ranked(set(names), _KNOWN)


def ranked(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Sort names: the known in their order, then the others by the alphabet.

    >>> ranked(["b", "a", "z"], ["z", "y"])
    ['z', 'a', 'b']
    """
    return sorted(names, key=lambda name: rank(name, known))


def rank(name: str, known: Collection[str]) -> tuple[int, str]:
    """Return the sort key of `ranked`.

    >>> rank("b", ["a", "b"]), rank("c", ["a", "b"])
    ((1, 'b'), (2, 'c'))
    """
    listed = list(known)
    return (listed.index(name) if name in listed else len(listed), name)


def assign(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each label: a known sampler has the style of its place, the others follow.

    >>> assign(["Avare"])["Avare"].colour
    '#0072B2'
    """
    listed = order(names)
    places = [*_KNOWN, *(name for name in listed if name not in _KNOWN)]
    dashes = (dash for dash in cycle(DASHES) for _ in _COLOURS)
    looks = zip(places, cycle(_COLOURS), dashes, cycle(_SIGNS), strict=False)
    return {name: Style(*look) for name, *look in looks if name in listed}


# --- charts ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A line of a chart, with a band of one standard deviation.

    Parameters
    ----------
    label
        What the legend calls it; curves of the same label share an entry. "": not in the legend.
    x, mean
        Its points; NaN where there is no value.
    deviation, lowest
        The standard deviation over the runs, and the lowest run; None: no band.
    style
        None: the style that `assign` gives to the label.
    guide
        Whether it is a line to compare with: thin, without markers.

    Examples
    --------
    >>> curve = Curve("Avare", np.arange(2.0), np.array([4.0, 2.0]))
    >>> curve.band(log=False)[0]  # no deviation, no band
    array([nan, nan])
    """

    label: str
    x: Floats
    mean: Floats
    deviation: Floats | None = None
    lowest: Floats | None = None
    style: Style | None = None
    guide: bool = False

    @classmethod
    def of_runs(cls, label: str, x: ArrayLike, runs: ArrayLike, style: Style | None = None) -> "Curve":
        """Make a curve from runs, one row each.

        >>> Curve.of_runs("Avare", [0.0, 1.0], [[3.0, 2.0], [5.0, 2.0]]).mean
        array([4., 2.])
        """
        rows = np.asarray(runs, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # values of a run that diverged
            deviation = rows.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1])
            return cls(label, np.asarray(x, dtype=np.float64), rows.mean(axis=0), deviation, rows.min(axis=0), style)

    def band(self, *, log: bool) -> tuple[Floats, Floats]:
        """Return bottom and top of the band.

        On a log axis the bottom is not below the lowest run, because it would reach zero where the
        runs are far apart. NaN where there is no band.
        """
        if self.deviation is None or self.lowest is None:
            return np.full_like(self.mean, np.nan), np.full_like(self.mean, np.nan)
        bottom, top = self.mean - self.deviation, self.mean + self.deviation
        if not log:
            return bottom, top
        bottom = np.maximum(bottom, self.lowest)
        drawn = (bottom > 0.0) & (self.mean > 0.0)
        return np.where(drawn, bottom, np.nan), np.where(drawn, top, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """Curves on a pair of axes, for a figure and for the page.

    Parameters
    ----------
    title, x_title, y_title
        Words for the chart and its axes. The page shows the title above the chart, and no y title.
    curves
        The first is drawn on top.
    log_x, log_y
        Whether axes are logarithmic.
    draw
        Draws more on the Matplotlib axes, after the curves; only figures have it. Artists with a label get an entry
        in the legend.
    note
        What the chart shows and which way is better; only the page has it.

    Examples
    --------
    >>> chart = Chart("Loss", "Epochs", (Curve("Avare", np.arange(3.0), np.array([1.0, 0.5, 0.2])),), log_y=True)
    >>> [curve.label for curve in chart.curves]
    ['Avare']
    """

    title: str
    x_title: str
    curves: tuple[Curve, ...] = ()
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False
    draw: Callable[[Any], None] | None = None
    note: str = ""


def styles_of(charts: Iterable[Chart]) -> dict[str, Style]:
    """Return the first style of each label in some charts; what has no style gets one by `assign`.

    >>> styles_of([Chart("Loss", "Epochs", (Curve("Uniform", np.arange(2.0), np.ones(2)),))])["Uniform"].marker
    '^'
    """
    curves = [curve for chart in charts for curve in chart.curves]
    own = {curve.label: curve.style for curve in reversed(curves) if curve.style is not None}
    return {**assign(curve.label for curve in curves if curve.style is None), **own}


def visible(values: Floats, largest: float) -> Floats:
    """Return what a log axis can show: NaN for what is not positive, or a rounding error next to the largest.

    >>> visible(np.array([1.0, 1e-16, -1.0]), 1.0)
    array([ 1., nan, nan])
    """
    return np.where(values > SMALLEST * largest, values, np.nan)


def draw(axis: Any, chart: Chart, styles: Mapping[str, Style]) -> None:
    """Draw a chart on Matplotlib axes: curves, bands and scales, without titles and legend.

    >>> import matplotlib.figure
    >>> chart = Chart("Loss", "Epochs", (Curve("Avare", np.arange(3.0), np.array([1.0, 0.5, 0.2])),))
    >>> axis = matplotlib.figure.Figure().subplots()
    >>> draw(axis, chart, styles_of([chart]))
    >>> len(axis.lines)
    1
    """
    finite = [value for curve in chart.curves for value in curve.mean[np.isfinite(curve.mean)]]
    largest = max(finite, default=0.0)
    means, tops = [], []
    for place, curve in enumerate(chart.curves):
        style = curve.style or styles[curve.label]
        mean = visible(curve.mean, largest) if chart.log_y else curve.mean
        bottom, top = curve.band(log=chart.log_y)
        handle = line(axis, curve.x, mean, style, place, len(chart.curves), guide=curve.guide)
        handle.set_label(verbatim(curve.label) or "_")  # which Matplotlib leaves out of legends
        shown = np.isfinite(mean) & np.isfinite(bottom)
        axis.fill_between(curve.x, bottom, top, where=shown, color=style.colour, alpha=0.15, linewidth=0)
        means.append(mean)
        tops += [mean, np.where(shown, top, np.nan)]
    if chart.log_x:
        axis.set_xscale("log")
    if chart.curves or chart.draw is None:
        _fit(axis, np.concatenate([*means, []]), np.concatenate([*tops, []]), log=chart.log_y)
        axis.margins(x=0.02)
    if chart.draw is not None:
        chart.draw(axis)


def verbatim(text: str) -> str:
    r"""Return text as Matplotlib must get it, so that a dollar sign is a dollar sign.

    >>> print(verbatim("price$_$"))
    price\$_\$
    """
    return text.replace("$", "\\$")


def _fit(axis: Any, means: Floats, tops: Floats, *, log: bool) -> None:
    """Set the limits and ticks of the y axis by what it shows."""
    if not np.any(np.isfinite(means)):
        axis.text(0.5, 0.5, "no values", transform=axis.transAxes, ha="center", va="center", color=GREY)
        for which in (axis.xaxis, axis.yaxis):  # they would show numbers that nobody measured
            which.set_ticks([])
        axis.spines[:].set_visible(False)
    elif log:
        axis.set(yscale="log", ylim=(0.9 * float(np.nanmin(means)), 1.1 * float(np.nanmax(tops))))
    else:
        axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
        axis.set_ylim(bottom=min(0.0, float(np.nanmin(tops))))


def line(axis: Any, x: Floats, y: Floats, style: Style, place: int, of: int, *, guide: bool = False) -> Any:
    """Draw a line with some markers, placed so that those of different lines do not overlap; return it."""
    every = max(len(x) // _MARKERS, 1)
    (drawn,) = axis.plot(
        x,
        y,
        color=style.colour,
        linestyle=DASHES[style.dash],
        linewidth=1.0 if guide else 1.3,
        marker="" if guide else style.marker,
        markersize=4.6,
        markeredgewidth=0.3,
        markeredgecolor="white",
        markevery=(place * every // of, every),
        zorder=1.0 if guide else 3.0 - 0.5 * place / of,  # the first on top
    )
    return drawn


def drawing() -> Any:
    """Return a context in which Matplotlib uses our fonts and grids: draw and save figures in it.

    >>> with drawing():
    ...     matplotlib = require("matplotlib", "drawing figures")
    ...     print(matplotlib.rcParams["legend.frameon"])
    False
    """
    style = resources.files("avare.plotting").joinpath("figures.mplstyle")
    return require("matplotlib", "drawing figures").rc_context(fname=str(style))


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty Matplotlib figure of a size in inches; use it within `drawing`."""
    return require("matplotlib.figure", "drawing figures").Figure(figsize=size)
