"""What a sampler has learned, as a figure."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.plotting.charts import BLACK, BLUE, DASHES, GREY, RC_PARAMS, VERMILION, blank

_LARGEST, _SMALLEST = 170.0, 6.0  # points squared: the area of the largest cell and of the smallest
_LEARNED = 10.0  # norms, from which on a cell's expectation hardly depends on its prior


class Calibrating(Protocol):
    """A sampler that learns what to expect of the norms it remembers: `avare.Calibrated`.

    >>> import avare
    >>> sampler: Calibrating = avare.Calibrated(100, batch_size=10, seed=0)
    >>> sampler.calibration()[0]  # no norm has been reported yet: all examples are in one cell
    array([100])
    """

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
