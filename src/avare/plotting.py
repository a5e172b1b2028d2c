"""How curves look, and figures that need no stored results.

A `Chart` describes curves with their bands once; `draw` puts it on Matplotlib axes, and the page of
`avare.report` shows the same chart in a browser.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._optional import require

# The colours of Okabe and Ito, which colour-blind readers can distinguish; their yellow is too pale for lines.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY = "#777777"
DOTS = 160  # per inch
SMALLEST = 1e-9
"""Values below this part of the largest are rounding errors: a log axis does not show them."""
RC_PARAMS = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "svg.hashsalt": "avare",  # so that the same store gives the same file
}
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dashdot": (0, (6, 2, 1.2, 2)), "dot": (0, (1.2, 1.6))}
"""How Matplotlib draws each `Style.dash`."""
_MARKERS = 8  # per line
_DOT: dict[str, Any] = {"linestyle": "", "markersize": 5.5, "markeredgewidth": 0.9, "zorder": 3.0}
_LARGEST, _SMALLEST = 170.0, 6.0  # points squared: the area of the largest cell and of the smallest
_LEARNED = 10.0  # norms, from which on a cell's expectation hardly depends on its prior


# --- styles ---------------------------------------------------------------------------------


class Style(NamedTuple):
    """How a curve looks; different styles differ without colour too."""

    colour: str
    dash: str
    """A key of `DASHES`, which is Plotly's word too."""
    marker: str
    """Matplotlib's sign."""


_FIXED = {
    "Avare": Style(BLUE, "solid", "o"),
    "Calibrated": Style(VERMILION, "solid", "s"),
    "Uniform": Style(BLACK, "solid", "^"),
    "Mabs": Style(ORANGE, "dash", "D"),
    "Vrb": Style(GREEN, "dashdot", "v"),
    "Osmd": Style(PURPLE, "dash", "P"),
    "Static": Style(SKY, "solid", "X"),
    "Mixture": Style(SKY, "dashdot", "<"),
    "Safe": Style(GREEN, "dot", ">"),
    "Stratified": Style(BLUE, "dash", "h"),
    "Srg": Style(PURPLE, "dot", "*"),
    "Optimal": Style(BLACK, "dot", "p"),
    "UpperBound": Style(ORANGE, "dot", "d"),
}


def order(names: Iterable[str]) -> list[str]:
    """Sort labels as they are listed everywhere: known samplers first, then by the alphabet.

    >>> order(["New", "Uniform", "Avare"])
    ['Avare', 'Uniform', 'New']
    """
    return ranked(set(names), _FIXED)


def ranked(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Sort names: the known in their order, then the others by the alphabet.

    >>> ranked(["b", "a", "z"], ["z", "y"])
    ['z', 'a', 'b']
    """
    listed = list(known)
    return sorted(names, key=lambda name: rank(name, listed))


def rank(name: str, known: Iterable[str]) -> tuple[int, str]:
    """Return the sort key of `ranked`.

    >>> rank("b", ["a", "b"]), rank("c", ["a", "b"])
    ((1, 'b'), (2, 'c'))
    """
    listed = list(known)
    return (listed.index(name) if name in listed else len(listed), name)


def assign(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each label: the fixed one of a known sampler, otherwise the next free one.

    >>> assign(["Avare"])["Avare"].colour
    '#0072B2'
    """
    free = _free()
    return {name: _FIXED[name] if name in _FIXED else next(free) for name in order(names)}


def _free() -> Iterator[Style]:
    """Styles that no known sampler has; when all are used, the same again."""
    taken = {(style.colour, style.dash) for style in _FIXED.values()}
    colours = (VERMILION, SKY, GREEN, PURPLE, ORANGE, BLUE, BLACK)
    pairs = [(colour, dash) for dash in DASHES for colour in colours if (colour, dash) not in taken]
    markers = itertools.cycle(["8", "H", *dict.fromkeys(style.marker for style in _FIXED.values())])
    return (Style(colour, dash, next(markers)) for colour, dash in itertools.cycle(pairs))


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
    """

    label: str
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64] | None = None
    lowest: NDArray[np.float64] | None = None
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

    def band(self, *, log: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return bottom and top of the band.

        On a log axis the bottom is not below the lowest run, so that it does not fall to zero where the runs are far
        apart. NaN where there is no band.
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
    """

    title: str
    x_title: str
    curves: tuple[Curve, ...] = ()
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False
    draw: Callable[[Any], None] | None = None


def styles_of(charts: Iterable[Chart]) -> dict[str, Style]:
    """Return the first style of each label in some charts; what has no style gets one by `assign`."""
    curves = [curve for chart in charts for curve in chart.curves]
    own = {curve.label: curve.style for curve in reversed(curves) if curve.style is not None}
    return {**assign(curve.label for curve in curves if curve.style is None), **own}


def visible(values: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    """Return what a log axis can show: NaN for what is not positive, or a rounding error beside the largest.

    >>> visible(np.array([1.0, 1e-16, -1.0]), 1.0)
    array([ 1., nan, nan])
    """
    return np.where(values > SMALLEST * largest, values, np.nan)


def draw(axis: Any, chart: Chart, styles: Mapping[str, Style]) -> None:
    """Draw a chart on Matplotlib axes: curves, bands and scales, without titles and legend."""
    finite = [value for curve in chart.curves for value in curve.mean[np.isfinite(curve.mean)]]
    largest = max(finite, default=0.0)
    means, tops = [], []
    for place, curve in enumerate(chart.curves):
        style = curve.style or styles[curve.label]
        mean = visible(curve.mean, largest) if chart.log_y else curve.mean
        bottom, top = curve.band(log=chart.log_y)
        handle = line(axis, curve.x, mean, style, place, len(chart.curves), guide=curve.guide)
        handle.set_label(curve.label or "_")  # which Matplotlib leaves out of legends
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


def _fit(axis: Any, means: NDArray[np.float64], tops: NDArray[np.float64], *, log: bool) -> None:
    """Set the limits and ticks of the y axis by what it shows."""
    if not np.any(np.isfinite(means)):
        axis.text(0.5, 0.5, "no values", transform=axis.transAxes, ha="center", va="center", color=GREY)
        axis.set_yticks([])
    elif log:
        log_axis(axis, means, tops)
    else:
        axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
        axis.set_ylim(bottom=min(0.0, float(np.nanmin(tops))))


def line(
    axis: Any,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    style: Style,
    place: int = 0,
    of: int = 1,
    *,
    guide: bool = False,
) -> Any:
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


def log_axis(axis: Any, means: NDArray[np.float64], tops: NDArray[np.float64]) -> None:
    """Make the y axis logarithmic, with limits by the means below and the bands above, and readable ticks."""
    low, high = np.log10(np.nanmin(means)), np.log10(np.nanmax(tops))
    margin = 0.06 * (high - low) + 0.02
    axis.set_yscale("log")
    axis.set_ylim(10.0 ** float(low - margin), 10.0 ** float(high + margin))
    log_ticks(axis.yaxis)


def log_ticks(axis: Any) -> None:
    """Put numbers on an axis that is logarithmic, whether it spans much or little."""
    ticker = require("matplotlib.ticker", "drawing figures")
    low, high = axis.get_view_interval()
    decades = float(np.log10(high / low)) if 0.0 < low < high else 1.0
    if decades < 1.5:  # too few powers of ten: also numbers between them
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if decades > 0.5 else range(1, 10)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_major_locator(ticker.LogLocator(numticks=7))
    axis.set_minor_formatter(ticker.NullFormatter())


def blank(size: tuple[float, float]) -> Any:
    """Return an empty Matplotlib figure of a size in inches; use it within ``rc_context(RC_PARAMS)``."""
    return require("matplotlib.figure", "drawing figures").Figure(figsize=size, dpi=DOTS, layout="constrained")


# --- marks, for `Chart.draw` ----------------------------------------------------------------


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
    """A value in a named line of a chart, with its standard error; NaN: it diverged."""

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
    axis.set_yticks(range(len(labels)), labels if left else [""] * len(labels))
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    for text, face in zip(words, (GREY, "white"), strict=False):
        axis.plot([], [], marker="o", color=GREY, markerfacecolor=face, label=text, **_DOT)


# --- what a sampler has learned -------------------------------------------------------------


class Calibrating(Protocol):
    """A sampler that learns what to expect of the norms it remembers: `avare.Calibrated`."""

    @property
    def n(self) -> int:
        """Number of examples."""

    @property
    def steps(self) -> int:
        """Number of draws."""

    def calibration(self) -> tuple[Any, ...]:
        """Members, remembered norm, expected norm and observations of each cell."""


def calibration(sampler: Calibrating) -> Any:
    """Draw what a `Calibrated` sampler remembers against what it has learned to expect.

    One mark per cell; larger cells have larger marks. A filled mark rests on ten observed norms or more, a hollow one
    mostly on the prior. On the diagonal the remembered norms are right, and the sampler is `Avare`; on the horizontal
    line they say nothing, and it is uniform. Examples that were never seen, or seen with norm 0, have no place on a
    log axis and are shown at the left.

    Parameters
    ----------
    sampler
        It is not changed.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``savefig``.

    Examples
    --------
    >>> from avare import Calibrated
    >>> sampler = Calibrated(100, batch_size=10, seed=0)
    >>> norms = np.random.default_rng(1).lognormal(size=100)
    >>> for _ in range(50):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> calibration(sampler).axes[-1].get_xlabel()
    'Norm remembered'
    """
    if not hasattr(sampler, "calibration"):
        raise TypeError(f"sampler is of type {type(sampler).__name__}: must be an avare.Calibrated")
    with require("matplotlib", "drawing figures").rc_context(RC_PARAMS):
        figure = blank((5.4, 4.4))
        _draw_cells(figure, sampler)
        return figure


def _draw_cells(figure: Any, sampler: Calibrating) -> None:
    members, remembered, expected, observations = sampler.calibration()
    shown = expected > 0.0
    apart = [
        (name, chosen)
        for name, chosen in (("never\nseen", np.isnan(remembered)), ("norm\n0", remembered == 0.0))
        if np.any(chosen & shown)
    ]
    placed = shown & (remembered > 0.0)
    if apart:
        left, axis = figure.subplots(1, 2, sharey=True, width_ratios=[0.11 * len(apart), 1.0])
    else:
        left, axis = None, figure.subplots()
    _lines(axis, members[shown], remembered[placed], expected[shown])
    largest = int(members[shown].max(initial=1))
    marks: dict[str, Any] = {"members": members, "expected": expected, "observations": observations, "largest": largest}
    _marks(axis, remembered, placed, **marks)
    axis.set_xlabel("Norm remembered")
    (left or axis).set_ylabel("Norm expected (root mean square)")
    if left is not None:
        for place, (_, chosen) in enumerate(apart):
            _marks(left, np.full(len(members), float(place)), chosen & shown, **marks)
        left.set_xlim(-0.5, len(apart) - 0.5)
        left.set_xticks(range(len(apart)), [name for name, _ in apart])
        left.tick_params(axis="x", length=0)
        left.grid(axis="x", visible=False)
        axis.tick_params(axis="y", which="both", length=0)
        axis.spines["left"].set_visible(False)
    _legend(axis, largest)
    without = int(members[~shown].sum())
    note = f"; {_whole(without)} of which norm 0 is expected are not shown" if without else ""
    words = f"{_whole(sampler.n)} examples, {_whole(sampler.steps)} steps{note}"
    figure.suptitle(words, fontsize=9, color="#555555")


def _lines(
    axis: Any, members: NDArray[np.int64], remembered: NDArray[np.float64], expected: NDArray[np.float64]
) -> None:
    """Draw the diagonal and the horizontal line; make the axes logarithmic."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    if not len(expected):
        axis.text(0.5, 0.5, "nothing is expected yet", transform=axis.transAxes, ha="center", color=GREY)
        return
    mean = float(np.sqrt(np.average(expected**2, weights=members)))
    values = np.concatenate([remembered, expected])
    low, high = float(values.min()) / 1.6, float(values.max()) * 1.6
    axis.plot([low, high], [low, high], color=BLUE, linewidth=1.1, label="as remembered: Avare", zorder=1.5)
    axis.axhline(mean, color=BLACK, linewidth=1.0, linestyle=DASHES["dot"], label="all alike: uniform", zorder=1.4)
    axis.set_xlim(float(remembered.min()) / 1.6 if len(remembered) else low, high)
    axis.set_ylim(float(expected.min()) / 1.6, high)


def _marks(
    axis: Any,
    x: NDArray[np.float64],
    chosen: NDArray[np.bool_],
    *,
    members: NDArray[np.int64],
    expected: NDArray[np.float64],
    observations: NDArray[np.float64],
    largest: int,
) -> None:
    learned = observations >= _LEARNED
    for filled in (False, True):
        these = chosen & (learned == filled)
        axis.scatter(
            x[these],
            expected[these],
            s=area(members[these], largest),
            facecolor=VERMILION if filled else "white",
            edgecolor="white" if filled else VERMILION,
            linewidth=0.4 if filled else 0.9,
            alpha=0.75,
            zorder=3.0 if filled else 2.5,
        )


def area(members: Any, largest: int) -> Any:
    """Return the area of a mark, in points squared; it grows with the root of the cell's members.

    >>> float(area(1000, 1000)), float(area(10, 1000)) < 0.15 * 170.0
    (170.0, True)
    """
    return _SMALLEST + (_LARGEST - _SMALLEST) * np.sqrt(np.asarray(members) / largest)


def _legend(axis: Any, largest: int) -> None:
    """Explain the lines, and filled, hollow and large marks."""
    lines = require("matplotlib.lines", "drawing figures")
    handles, labels = axis.get_legend_handles_labels()

    def mark(text: str, size: float, *, filled: bool) -> None:
        handles.append(
            lines.Line2D(
                [],
                [],
                linestyle="",
                marker="o",
                markersize=size,
                markerfacecolor=VERMILION if filled else "white",
                markeredgecolor="white" if filled else VERMILION,
                alpha=0.75,
            )
        )
        labels.append(text)

    mark("learned from 10 norms or more", 6.0, filled=True)
    mark("from fewer: mostly the prior", 6.0, filled=False)
    for count in _counts(largest):
        mark(f"{_whole(count)} example{'s' if count > 1 else ''}", area(count, largest) ** 0.5, filled=True)
    axis.figure.legend(handles, labels, loc="outside lower center", ncols=2, handlelength=2.2, columnspacing=2.5)


def _counts(largest: int) -> list[int]:
    """Return one or two round numbers of examples, for the sizes in the legend.

    >>> _counts(734), _counts(3)
    ([50, 500], [3])
    """
    top = 10 ** int(np.log10(largest))
    top = max(digit * top for digit in (1, 2, 5) if digit * top <= largest)
    return [top // 10, top] if top >= 10 else [largest]


def _whole(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")
