"""A figure of what a sampler has learned of its own memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.report.figures import SETTINGS
from avare.report.styles import BLACK, BLUE, MATPLOTLIB_DASHES, VERMILION
from avare.samplers import Calibrated

_QUIET = "#777777"
_LARGEST, _SMALLEST = 170.0, 6.0  # points squared: the area of the largest cell and of the smallest
_LEARNED = 10.0  # norms told, from which on a cell's expectation is its own and hardly its prior's
_DOTS = 160


def calibration(sampler: Calibrated) -> Any:
    """Draw what a `Calibrated` sampler remembers against what it has learned to expect.

    One mark a cell, the larger the more examples are in it; filled where the expectation rests on
    ten norms or more that were told, hollow where it is still mostly the prior. On the diagonal the
    memory is right, and the sampler is `Avare`; on the horizontal line nothing can be told from the
    memory, and it is uniform. What was never seen, or seen with norm 0, has no place on a log axis
    and stands to the left.

    Parameters
    ----------
    sampler
        With what it has learned so far; it is not changed.

    Returns
    -------
    matplotlib.figure.Figure
        To be saved by ``savefig``.

    Examples
    --------
    >>> sampler = Calibrated(100, batch_size=10, seed=0)
    >>> norms = np.random.default_rng(1).lognormal(size=100)
    >>> for _ in range(50):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> calibration(sampler).axes[-1].get_xlabel()
    'Norm remembered'
    """
    if not isinstance(sampler, Calibrated):
        raise TypeError(f"sampler is of type {type(sampler).__name__}: must be an avare.Calibrated")
    matplotlib = require("matplotlib", "drawing figures")
    figures = require("matplotlib.figure", "drawing figures")
    with matplotlib.rc_context(SETTINGS):
        figure = figures.Figure(figsize=(5.4, 4.4), dpi=_DOTS, layout="constrained")
        _draw(figure, sampler)
        return figure


def _draw(figure: Any, sampler: Calibrated) -> None:
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
    told = f"{_whole(sampler.n)} examples, {_whole(sampler.steps)} steps"
    without = int(members[~shown].sum())
    note = f"; {_whole(without)} of which norm 0 is expected are not shown" if without else ""
    figure.suptitle(told + note, fontsize=9, color="#555555")


def _lines(
    axis: Any, members: NDArray[np.int64], remembered: NDArray[np.float64], expected: NDArray[np.float64]
) -> None:
    """The diagonal and the horizontal line, over a square part of the plane; log axes."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    if not len(expected):
        axis.text(0.5, 0.5, "nothing is expected yet", transform=axis.transAxes, ha="center", color=_QUIET)
        return
    mean = float(np.sqrt(np.average(expected**2, weights=members)))
    values = np.concatenate([remembered, expected])
    low, high = float(values.min()) / 1.6, float(values.max()) * 1.6
    axis.plot([low, high], [low, high], color=BLUE, linewidth=1.1, label="as remembered: Avare", zorder=1.5)
    axis.axhline(
        mean, color=BLACK, linewidth=1.0, linestyle=MATPLOTLIB_DASHES["dot"], label="all alike: uniform", zorder=1.4
    )
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
    """Of a mark, in points squared: grows with the root of its cell's members, so that small cells are seen too.

    >>> float(area(1000, 1000)), float(area(10, 1000)) < 0.15 * 170.0
    (170.0, True)
    """
    return _SMALLEST + (_LARGEST - _SMALLEST) * np.sqrt(np.asarray(members) / largest)


def _legend(axis: Any, largest: int) -> None:
    """The lines, and what filled, hollow and large marks mean."""
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
    """Two round numbers of examples to show the sizes of.

    >>> _counts(734), _counts(3)
    ([50, 500], [3])
    """
    top = 10 ** int(np.log10(largest))
    top = max(digit * top for digit in (1, 2, 5) if digit * top <= largest)
    return [top // 10, top] if top >= 10 else [largest]


def _whole(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")
