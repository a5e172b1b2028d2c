"""Figures laid out as the paper's: one row a dataset, one column a measure; and the growth of the regret."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.paper.plan import BOUNDS
from avare.experiments.store import write_whole
from avare.report.results import EXPERIMENTS, MEASURES, Curve, Group, Growth, Results, Series
from avare.report.styles import MATPLOTLIB_DASHES, Style, of_method

AXES = {
    "suboptimality": ("Suboptimality  f(x) − f*", True),
    "regret": ("Dynamic regret", False),
    "relative_error": ("Relative error", True),
}
"""The title of each measure, and whether its axis is logarithmic."""
SMALLEST = 1e-9
"""What is smaller than this part of the largest is rounding: a log axis does not go there."""
_DOTS = 160  # an inch
_MARKERS = 8  # a line
_GUIDE_DECADES = 2.0
SETTINGS = {
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
    "svg.hashsalt": "avare",  # the same store gives the same file
}


def draw(results: Results, folder: Path) -> list[Path]:
    """Write every figure as PNG and SVG.

    Returns
    -------
    list
        The files, in the order in which they were made.
    """
    matplotlib = require("matplotlib", "drawing figures")
    require("matplotlib.figure", "drawing figures")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with matplotlib.rc_context(SETTINGS):
        for name, figure in [*_figures(results), *_of_nets(results)]:
            for path in (folder / f"{name}.png", folder / f"{name}.svg"):
                kind, drawn = path.suffix[1:], io.BytesIO()
                metadata = {"Date": None} if kind == "svg" else None
                figure.savefig(drawn, format=kind, dpi=_DOTS, metadata=metadata, facecolor="white")
                write_whole(path, drawn.getvalue())
                figure.set_layout_engine("none")  # it stays as it is: to lay out is half the work
                files.append(path)
    return files


def visible(values: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    """What a log axis can show: nan for what is not positive, or is rounding beside the largest.

    >>> visible(np.array([1.0, 1e-16, -1.0]), 1.0)
    array([ 1., nan, nan])
    """
    return np.where(values > SMALLEST * largest, values, np.nan)


def guide(
    steps: NDArray[np.float64], values: NDArray[np.float64], exponent: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A line that grows as a power, over the last decades and a little above the values where it starts.

    >>> guide(np.array([1.0, 100.0]), np.array([2.0, 3.0]), 0.5)
    (array([  1., 100.]), array([ 3., 30.]))
    """
    late = steps >= steps[-1] * 10.0**-_GUIDE_DECADES
    x, start = steps[late], values[late][0]
    return x, 1.5 * start * (x / x[0]) ** exponent


def _figures(results: Results) -> Iterator[tuple[str, Any]]:
    """Each figure with the name of its file."""
    for experiment in EXPERIMENTS:
        groups = results.of(experiment)
        apart = [group for group in groups if experiment == "reproduce" and group.dataset == "synthetic"]
        for rule in dict.fromkeys(rule for group in groups for rule in group.rules):
            together = [group for group in groups if group not in apart and rule in group.rules]
            if together:
                yield f"{experiment}-{_file_name(rule)}", _grid(together, rule, results.styles)
            alone = [group for group in apart if rule in group.rules]
            if alone:
                yield f"{experiment}-synthetic-{_file_name(rule)}", _grid(alone, rule, results.styles)
    if results.growths:
        yield "theory", _theory(results.growths)


def _of_nets(results: Results) -> Iterator[tuple[str, Any]]:
    from avare.experiments.nets.figures import net_figures  # which draws with what is here

    if results.nets is not None:
        yield from net_figures(results.nets)


def _grid(groups: Sequence[Group], rule: str, styles: Mapping[str, Style]) -> Any:
    """One row a dataset, one column a measure."""
    figure = blank((9.6, 0.75 + 2.35 * len(groups)))
    axes = figure.subplots(len(groups), len(MEASURES), squeeze=False)
    handles: dict[str, Any] = {}
    for number, (row, group) in enumerate(zip(axes, groups, strict=True)):
        for axis, measure in zip(row, MEASURES, strict=True):
            name, log = AXES[measure]
            handles |= _panel(axis, group.of(rule), measure, styles, log=log)
            if number == 0:
                axis.set_title(name)
            if number == len(groups) - 1:
                axis.set_xlabel("Epochs (data passes)")
        row[0].set_ylabel(group.title, fontweight="bold")
    figure.suptitle(f"Step sizes: {rule}; mean and one standard deviation", fontsize=9, color="#555555")
    labels = [label for label in styles if label in handles]
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 7),
        handlelength=3.2,
    )
    return figure


def _panel(
    axis: Any, series: Sequence[Series], measure: str, styles: Mapping[str, Style], *, log: bool
) -> dict[str, Any]:
    """The lines of one measure, with their bands; gives the line of each label."""
    largest = max((_largest(each.curves[measure]) for each in series), default=0.0)
    handles, shown = {}, []
    for place, each in enumerate(series):
        curve, style = each.curves[measure], styles[each.label]
        mean = visible(curve.mean, largest) if log else curve.mean
        bottom, top = curve.band(log=log)
        if log:
            bottom = np.where(np.isnan(mean), np.nan, bottom)
        shown += [mean, top]
        handles[each.label] = line(axis, each.epochs, mean, style, place, len(series))
        axis.fill_between(each.epochs, bottom, top, color=style.colour, alpha=0.15, linewidth=0)
    numbers = np.concatenate(shown)
    if not np.any(np.isfinite(numbers)):
        axis.text(0.5, 0.5, "no values", transform=axis.transAxes, ha="center", va="center", color="#777777")
        axis.set_yticks([])
    elif log:
        log_axis(axis, np.concatenate(shown[::2]), numbers)
    else:
        axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
        axis.set_ylim(bottom=min(0.0, float(np.nanmin(numbers))))
    axis.margins(x=0.02)
    return handles


def line(axis: Any, x: NDArray[np.float64], y: NDArray[np.float64], style: Style, place: int, of: int) -> Any:
    """A line with some markers, set so that those of different lines do not meet."""
    every = max(len(x) // _MARKERS, 1)
    (line,) = axis.plot(
        x,
        y,
        color=style.colour,
        linestyle=MATPLOTLIB_DASHES[style.dash],
        linewidth=1.3,
        marker=style.marker,
        markersize=4.6,
        markeredgewidth=0.3,
        markeredgecolor="white",
        markevery=(place * every // of, every),
        zorder=3.0 - 0.5 * place / of,  # the first on top
    )
    return line


def log_axis(axis: Any, means: NDArray[np.float64], tops: NDArray[np.float64]) -> None:
    """Limits by the means below and the bands above, and ticks that can be read."""
    ticker = require("matplotlib.ticker", "drawing figures")
    low, high = np.log10(np.nanmin(means)), np.log10(np.nanmax(tops))
    margin = 0.06 * (high - low) + 0.02
    low, high = float(low - margin), float(high + margin)
    axis.set_yscale("log")
    axis.set_ylim(10.0**low, 10.0**high)
    if high - low < 1.5:  # too few powers of ten: numbers between them
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if high - low > 0.5 else range(1, 10)))
        axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.yaxis.set_major_locator(ticker.LogLocator(numticks=7))
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def _theory(growths: Sequence[Growth]) -> Any:
    """Regret against steps in log-log, with the fitted slope and the growth that is proved."""
    figure = blank((5.6, 4.0))
    axis = figure.subplots()
    for growth in growths:
        style = of_method(growth.method)
        keep = (growth.steps > 0) & (growth.curve.mean > 0)
        if not np.any(keep):
            continue
        steps, mean = growth.steps[keep], growth.curve.mean[keep]
        bottom, top = growth.curve.band(log=True)
        axis.fill_between(steps, bottom[keep], top[keep], color=style.colour, alpha=0.15, linewidth=0)
        fitted = f", slope {growth.slope:.2f}" if np.isfinite(growth.slope) else ""
        line(axis, steps, mean, style, 0, 1).set_label(f"{growth.label}{fitted}")
        if growth.method in BOUNDS:
            power = BOUNDS[growth.method]
            x, bound = guide(steps, mean, float(power))
            axis.plot(x, bound, color=style.colour, linestyle=MATPLOTLIB_DASHES["dash"], linewidth=1.0)
            axis.annotate(
                f"$T^{{{power}}}$",
                (x[-1], bound[-1]),
                xytext=(4, 0),
                textcoords="offset points",
                color=style.colour,
                va="center",
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("Steps T")
    axis.set_ylabel("Cumulative dynamic regret")
    axis.margins(x=0.08)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper left")
    return figure


def blank(size: tuple[float, float]) -> Any:
    """An empty figure of a size in inches."""
    return require("matplotlib.figure", "drawing figures").Figure(figsize=size, layout="constrained")


def _largest(curve: Curve) -> float:
    finite = curve.mean[np.isfinite(curve.mean)]
    return float(finite.max()) if len(finite) else 0.0


def _file_name(text: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in text)
