"""A figure for each question on nets."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.nets.summary import DEFAULT, OPTIMISERS, UNIFORM, Line, Nets, title
from avare.report.figures import blank, line, log_axis
from avare.report.styles import MATPLOTLIB_DASHES, Style

QUESTIONS = {
    "nets-faster": "Does it train faster, each at its best settings?",
    "nets-step-and-batch": "Does it allow a larger step, or a smaller batch?",
    "nets-test-error": "Does the test error follow?",
    "nets-seconds": "What does it cost in seconds?",
    "nets-measures": "How do the other measures go, and how well does the memory know the norms?",
    "nets-parts": "Which part does it?",
    "nets-age": "Does the age of a memory help?",
    "nets-larger-step": "Is it safe to spend the gain as a larger step?",
}
"""What each figure answers, by the name of its file."""
PARTS = (
    "calibrated",
    "calibrated, floor",
    "calibrated, replaced",
    "calibrated, floor, replaced",
    "remembered",
    "remembered, floor",
    "remembered, replaced",
    "remembered, floor, replaced",
)
AGES = ("calibrated", "by norm", "by norm and age")
SPENDING = ("calibrated", "step × gain, up to 2", "step × gain, up to 5", UNIFORM)
STEPS = (DEFAULT, "Avare", UNIFORM)
"""Which lines the last figures, and that of step sizes, show."""
LEVELS = {"best": "its best step", "aggressive": "an aggressive step"}
_GREY = "#777777"
_WIDTH = 2.4  # of a panel
_PANEL_HEIGHT = 2.0
_HANDLE, _LETTER = 0.65, 0.06  # about what an entry of a legend takes, and each letter of it


def net_figures(nets: Nets) -> Iterator[tuple[str, Any]]:
    """Each figure with the name of its file; those that there are no runs for are left out."""
    best, grid, parts = (_models(nets, part) for part in ("best", "grid", "parts"))
    if best:
        yield "nets-faster", _faster(nets, best)
    if grid:
        yield "nets-step-and-batch", _step_and_batch(nets, grid)
    if best:
        yield "nets-test-error", _test_error(nets, best)
        yield "nets-seconds", _seconds(nets, best)
        yield "nets-measures", _measures(nets, best)
    if parts:
        yield "nets-parts", _parts(nets, parts)
        for name, labels in (("nets-age", AGES), ("nets-larger-step", SPENDING)):
            if any(each.sampler in labels[1:3] for each in nets.of("parts")):
                yield name, _levels(nets, parts, name, labels)


def style_of(nets: Nets, label: str) -> Style:
    """How a line is drawn; of the parts, `Calibrated` as itself."""
    return nets.styles[DEFAULT if label == "calibrated" and DEFAULT in nets.styles else label]


# --- figures --------------------------------------------------------------------------------


def _faster(nets: Nets, models: Sequence[str]) -> Any:
    """Training loss and gain against epochs."""
    figure, axes = _panels("nets-faster", 2, models)
    handles: dict[str, Any] = {}
    for column, model in enumerate(models):
        lines = nets.at_best(model)
        handles |= _curves(axes[0][column], nets, lines, "loss")
        uniform = nets.best(model, UNIFORM)
        if uniform is not None:
            axes[0][column].axhline(
                uniform.last("loss"), color=_GREY, linewidth=0.7, linestyle=MATPLOTLIB_DASHES["dot"], zorder=1.0
            )
        handles |= _curves(axes[1][column], nets, lines, "gain")
        most = nets.best(model, DEFAULT)
        if most is not None:
            (handle,) = axes[1][column].plot(
                most.epochs,
                most.mean("possible"),
                color=_GREY,
                linewidth=1.0,
                linestyle=MATPLOTLIB_DASHES["dashdot"],
                zorder=1.0,
            )
            handles["possible, on Calibrated's way"] = handle
            _fit_log(axes[1][column], [*(each.mean("gain") for each in lines), most.mean("possible")])
        axes[1][column].set_xlabel("Epochs")
    _label_rows(axes, ["Training loss", "Gain realised"])
    _legend(figure, nets, handles)
    return figure


def _step_and_batch(nets: Nets, models: Sequence[str]) -> Any:
    """Where runs of the grid end, against their constant step size; small batches solid, large ones dashed."""
    optimisers = [name for name in OPTIMISERS if any(each.optimiser == name for each in nets.of("grid"))]
    figure, axes = _panels("nets-step-and-batch", len(optimisers), models)
    sizes = sorted({each.batch_size for each in nets.of("grid")})
    dashes = dict(zip(sizes, ("solid", "dash", "dot", "dashdot") * len(sizes), strict=False))
    handles: dict[str, Any] = {}
    for row, optimiser in enumerate(optimisers):
        for column, model in enumerate(models):
            axis, shown, lost = axes[row][column], [], []
            for label in STEPS:
                for size in sizes:
                    wanted = {"model": model, "sampler": label, "optimiser": optimiser, "batch_size": size}
                    lines = nets.of("grid", rule="constant", **wanted)
                    if not lines:
                        continue
                    x = np.array([each.step for each in lines])
                    y = np.array([each.last("loss") for each in lines])
                    style = nets.styles[label]._replace(dash=dashes[size])
                    handle = line(axis, x, y, style, 0, 1)
                    if size == sizes[0]:
                        handles[label] = handle
                    shown.append(y)
                    lost += [(step, style.colour) for step, value in zip(x, y, strict=True) if math.isnan(value)]
            axis.set_xscale("log")
            steps = sorted({each.step for each in nets.of("grid", model=model, optimiser=optimiser)})
            axis.set_xticks(steps, [f"{step:g}" for step in steps])
            axis.minorticks_off()
            _fit_log(axis, shown)
            for step in {step for step, _ in lost}:  # beside each other, at the top
                colours = [colour for lost_step, colour in lost if lost_step == step]
                for place, colour in enumerate(colours):
                    axis.plot(
                        [step * 1.16 ** (place - (len(colours) - 1))],  # to the left: the largest step is at the edge
                        [0.97],
                        marker="x",
                        markersize=5,
                        color=colour,
                        transform=axis.get_xaxis_transform(),
                    )
            if row == len(optimisers) - 1:
                axis.set_xlabel("Step size")
    _label_rows(axes, [f"{OPTIMISERS[name]}\ntraining loss" for name in optimisers])
    lines2d = require("matplotlib.lines", "drawing figures").Line2D
    for size in sizes:
        handles[f"batches of {size}"] = lines2d([], [], color=_GREY, linestyle=MATPLOTLIB_DASHES[dashes[size]])
    handles["diverged"] = lines2d([], [], color=_GREY, linestyle="", marker="x", markersize=5)
    _legend(figure, nets, handles)
    return figure


def _test_error(nets: Nets, models: Sequence[str]) -> Any:
    """Test error against epochs at the best settings; and against the training loss, for all of them."""
    figure, axes = _panels("nets-test-error", 2, models)
    handles: dict[str, Any] = {}
    for column, model in enumerate(models):
        handles |= _curves(axes[0][column], nets, nets.at_best(model), "test_error", factor=100.0, first=1)
        axes[0][column].set_xlabel("Epochs")
        axis = axes[1][column]
        for label in nets.samplers:
            lines = nets.of("best", model=model, sampler=label)
            style = nets.styles[label]
            axis.scatter(
                [each.last("loss") for each in lines],
                [100.0 * each.last("test_error") for each in lines],
                marker=style.marker,
                s=20,
                facecolor=style.colour,
                edgecolor="white",
                linewidth=0.3,
                alpha=0.85,
                zorder=2.5,
            )
        axis.set_xscale("log")
        _few_ticks(axis.xaxis)
        axis.set_xlabel("Training loss at the end")
    _label_rows(axes, ["Test error, %", "Test error at the end, %"])
    _legend(figure, nets, handles)
    return figure


def _seconds(nets: Nets, models: Sequence[str]) -> Any:
    """Training loss against seconds; and what a step takes."""
    figure, axes = _panels("nets-seconds", 2, models)
    handles: dict[str, Any] = {}
    labels = nets.samplers
    for column, model in enumerate(models):
        handles |= _curves(axes[0][column], nets, nets.at_best(model), "loss", along="seconds")
        axes[0][column].set_xlabel("Seconds of training")
        axis = axes[1][column]
        for place, label in enumerate(labels):
            for size, filled in zip(_sizes(nets, model), (True, False), strict=False):
                lines = nets.of("best", model=model, sampler=label, batch_size=size)
                times = [1e3 * each.step_seconds for each in lines if math.isfinite(each.step_seconds)]
                if times:
                    _dot(axis, float(np.mean(times)), place, nets.styles[label], filled=filled)
        _name_rows(axis, labels, named=column == 0)
        axis.set_xlim(left=0.0)
        axis.set_xlabel("Milliseconds a step")
    sizes = sorted({each.batch_size for each in nets.of("best")})[:2]
    _label_rows(axes[:1], ["Training loss"])
    _explain_dots(handles, [f"batches of {size}" for size in sizes])
    _legend(figure, nets, handles)
    return figure


def _measures(nets: Nets, models: Sequence[str]) -> Any:
    """Test error and gain against seconds; the calibration error against epochs and seconds."""
    figure, axes = _panels("nets-measures", 4, models, height=1.75)
    handles: dict[str, Any] = {}
    for column, model in enumerate(models):
        lines = nets.at_best(model)
        handles |= _curves(axes[0][column], nets, lines, "test_error", along="seconds", factor=100.0, first=1)
        handles |= _curves(axes[1][column], nets, lines, "gain", along="seconds")
        known = [each for each in lines if np.isfinite(each.last("calibration_error"))]
        _curves(axes[2][column], nets, known, "calibration_error", first=1)
        _curves(axes[3][column], nets, known, "calibration_error", along="seconds", first=1)
        for row in range(4):
            axes[row][column].set_xlabel("Epochs" if row == 2 else "Seconds of training")
    _label_rows(axes, ["Test error, %", "Gain realised", *["Calibration\nerror, octaves"] * 2])
    _legend(figure, nets, handles)
    return figure


def _parts(nets: Nets, models: Sequence[str]) -> Any:
    """Where each variant ends, at two step sizes."""
    labels = [label for label in (UNIFORM, *PARTS) if any(each.sampler == label for each in nets.of("parts"))]
    figure, axes = _panels("nets-parts", 2, models, height=0.26 * len(labels) + 0.5, wide=1.25)
    for column, model in enumerate(models):
        for row, (measure, words) in enumerate((("loss", "Training loss at the end"), ("gain", "Gain realised"))):
            axis, shown = axes[row][column], []
            for place, label in enumerate(labels):
                for level, filled in (("best", True), ("aggressive", False)):
                    for each in nets.of("parts", model=model, sampler=label, level=level):
                        value, error = each.last(measure), each.error(measure)
                        colour = _family(nets, label)
                        if math.isnan(value):
                            axis.text(
                                0.98,
                                place + (-0.16 if filled else 0.16),
                                "diverged",
                                transform=axis.get_yaxis_transform(),
                                ha="right",
                                va="center",
                                fontsize=7,
                                color=colour.colour,
                            )
                            continue
                        shown.append(value)
                        _dot(axis, value, place, colour, filled=filled, error=error)
            axis.set_xscale("log")
            if shown:
                axis.set_xlim(min(shown) / 1.4, max(shown) * 1.4)
            _few_ticks(axis.xaxis)
            _name_rows(axis, labels, named=column == 0)
            axis.set_xlabel(words)
    handles: dict[str, Any] = {}
    _explain_dots(handles, [f"at {words}" for words in LEVELS.values()])
    _legend(figure, nets, handles)
    return figure


def _levels(nets: Nets, models: Sequence[str], name: str, labels: Sequence[str]) -> Any:
    """Training loss against epochs, a row for each step size."""
    figure, axes = _panels(name, 2, models, wide=1.15)
    handles: dict[str, Any] = {}
    for column, model in enumerate(models):
        for row, level in enumerate(LEVELS):
            lines = [
                each
                for label in labels
                for each in nets.of("parts", model=model, sampler=label, level=level)
                if each.batch_size == min(_sizes(nets, model, "parts"))
            ]
            handles |= _curves(axes[row][column], nets, lines, "loss")
        axes[1][column].set_xlabel("Epochs")
    _label_rows(axes, [f"Training loss\nat {words}" for words in LEVELS.values()])
    _legend(figure, nets, handles)
    return figure


# --- what they share ------------------------------------------------------------------------


def _panels(name: str, rows: int, models: Sequence[str], *, height: float = _PANEL_HEIGHT, wide: float = 1.0) -> Any:
    """A column a net, with its title."""
    width = max(_WIDTH * wide * len(models), 5.6)
    figure = blank((width, 0.9 + height * rows))
    axes = figure.subplots(rows, len(models), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        axis.set_title(title(model), fontweight="bold", fontsize=9)
    figure.suptitle(QUESTIONS[name], fontsize=9, color="#555555")
    return figure, axes


def _curves(
    axis: Any,
    nets: Nets,
    lines: Sequence[Line],
    measure: str,
    *,
    along: str = "epochs",
    factor: float = 1.0,
    first: int = 0,
) -> dict[str, Any]:
    """Means with one standard deviation from the first checkpoint on, on a log axis; gives the line of each label."""
    handles, shown = {}, []
    for place, each in enumerate(lines):
        mean, deviation = factor * each.mean(measure), factor * each.deviation(measure)
        known = np.isfinite(mean)
        known[:first] = False
        x = (each.epochs if along == "epochs" else each.mean(along))[known]
        mean, deviation = mean[known], deviation[known]
        style = style_of(nets, each.sampler)
        lowest = factor * each.runs[measure].min(axis=0)[known]
        handles[each.sampler] = line(axis, x, mean, style, place, len(lines))
        if each.diverged and len(x):
            axis.plot(x[-1:], mean[-1:], marker="x", markersize=7, markeredgewidth=1.5, color=style.colour, zorder=4.0)
        bottom = np.maximum(mean - deviation, lowest)
        axis.fill_between(x, bottom, mean + deviation, color=style.colour, alpha=0.12, linewidth=0)
        shown.append(mean)
    _fit_log(axis, shown)
    axis.margins(x=0.03)
    return handles


def _fit_log(axis: Any, values: Sequence[NDArray[np.float64]]) -> None:
    """A log axis for what there is to show; says so where there is nothing."""
    numbers = np.concatenate([np.asarray(each, dtype=np.float64) for each in values]) if values else np.zeros(0)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0.0)]
    if not len(numbers):
        axis.text(0.5, 0.5, "no values", transform=axis.transAxes, ha="center", va="center", color=_GREY)
        axis.set_yticks([])
        return
    log_axis(axis, numbers, numbers)


def _few_ticks(axis: Any) -> None:
    """Numbers on a log axis, whether it spans much or little."""
    ticker = require("matplotlib.ticker", "drawing figures")
    low, high = axis.get_view_interval()
    decades = math.log10(high / low) if 0.0 < low < high else 1.0
    if decades < 1.2:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if decades > 0.45 else range(1, 10), numticks=6))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_major_locator(ticker.LogLocator(numticks=5))
    axis.set_minor_formatter(ticker.NullFormatter())


def _dot(axis: Any, x: float, place: int, style: Style, *, filled: bool, error: float = math.nan) -> None:
    """A mark in a row, with two standard errors."""
    shift = -0.14 if filled else 0.14
    if math.isfinite(error):
        axis.plot(
            [max(x - 2.0 * error, 0.02 * x), x + 2.0 * error],
            [place + shift] * 2,
            color=style.colour,
            linewidth=1.0,
            alpha=0.6,
            zorder=2.0,
        )
    axis.plot(
        [x],
        [place + shift],
        linestyle="",
        marker=style.marker,
        markersize=5.5,
        color=style.colour,
        markerfacecolor=style.colour if filled else "white",
        markeredgewidth=0.9,
        zorder=3.0,
    )


def _name_rows(axis: Any, labels: Sequence[str], *, named: bool) -> None:
    axis.set_yticks(range(len(labels)), labels if named else [""] * len(labels))
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)


def _label_rows(axes: Any, words: Sequence[str]) -> None:
    for row, text in zip(axes, words, strict=True):
        row[0].set_ylabel(text)


def _explain_dots(handles: dict[str, Any], words: Sequence[str]) -> None:
    lines = require("matplotlib.lines", "drawing figures")
    for text, filled in zip(words, (True, False), strict=False):
        handles[text] = lines.Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markersize=5.5,
            color=_GREY,
            markerfacecolor=_GREY if filled else "white",
        )


def _legend(figure: Any, nets: Nets, handles: Mapping[str, Any]) -> None:
    known = [label for label in nets.styles if label in handles]
    labels = [*sorted(known, key=_place(nets)), *(label for label in handles if label not in nets.styles)]
    width = sum(_HANDLE + _LETTER * len(label) for label in labels)
    rows = max(math.ceil(width / figure.get_figwidth()), 1)
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=-(-len(labels) // rows),
        handlelength=3.0,
        columnspacing=1.6,
    )


def _place(nets: Nets) -> Callable[[str], int]:
    order = list(dict.fromkeys([*nets.samplers, *PARTS, *AGES, *SPENDING]))
    order.remove(UNIFORM)
    order.append(UNIFORM)  # the yardstick comes last
    return lambda label: order.index(label) if label in order else len(order)


def _models(nets: Nets, part: str) -> list[str]:
    return [model for model in nets.models if nets.of(part, model=model)]


def _sizes(nets: Nets, model: str, part: str = "best") -> list[int]:
    return sorted({each.batch_size for each in nets.of(part, model=model)})


def _family(nets: Nets, label: str) -> Style:
    """Variants of calibrated memories look like `Calibrated`, others like `Avare`."""
    if label == UNIFORM:
        return nets.styles[UNIFORM]
    return nets.styles.get(DEFAULT if label.startswith("calibrated") else "Avare", nets.styles[label])
