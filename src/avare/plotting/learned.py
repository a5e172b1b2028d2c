"""What a sampler has learned, as a figure."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from avare.plotting.charts import BLACK, BLUE, DASHES, GREY, VERMILION, drawing, new_figure

if TYPE_CHECKING:
    from avare.samplers import Calibrated

_LARGEST, _SMALLEST = 170.0, 6.0  # points squared: the area of the largest cell and of the smallest
_LEARNED = 10.0  # norms, from which on a cell's expectation hardly depends on its prior
_MARGIN = 1.6  # factor between the marks and the ends of the axes


def calibration(sampler: "Calibrated") -> Any:
    """Draw what a `Calibrated` sampler remembers against what it has learned to expect.

    One mark per cell; larger cells have larger marks. A filled mark rests on ten observed norms or more, a hollow one
    mostly on the prior. On the diagonal the remembered norms are right, and the sampler is `Avare`; on the horizontal
    line they say nothing, and it is uniform. Examples that were never seen, or seen with norm 0, have no place on a
    log axis and are shown at the left.

    Parameters
    ----------
    sampler : Calibrated
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
    with drawing():
        figure = new_figure((5.4, 4.4))
        _draw_cells(figure, sampler)
        return figure


def _draw_cells(figure: Any, sampler: "Calibrated") -> None:
    members, remembered, expected, observations = sampler.calibration()
    shown = expected > 0.0
    placed = shown & (remembered > 0.0)
    unplaced = {"never\nseen": shown & np.isnan(remembered), "norm\n0": shown & (remembered == 0.0)}
    unplaced = {name: chosen for name, chosen in unplaced.items() if chosen.any()}
    widths = [0.11 * len(unplaced), 1.0] if unplaced else [1.0]
    *left, axis = figure.subplots(1, len(widths), sharey=True, width_ratios=widths, squeeze=False)[0]
    largest = int(members[shown].max(initial=1))
    sizes, learned = _area(members, largest), observations >= _LEARNED
    _lines(axis, members[shown], remembered[placed], expected[shown])
    _marks(axis, remembered[placed], expected[placed], sizes[placed], learned[placed])
    axis.set_xlabel("Norm remembered")
    figure.axes[0].set_ylabel("Norm expected (root mean square)")
    for beside in left:
        for place, chosen in enumerate(unplaced.values()):
            _marks(beside, np.full(chosen.sum(), place), expected[chosen], sizes[chosen], learned[chosen])
        beside.set_xlim(-0.5, len(unplaced) - 0.5)
        beside.set_xticks(range(len(unplaced)), list(unplaced))
        beside.tick_params(axis="x", length=0)
        beside.grid(axis="x", visible=False)
        axis.tick_params(axis="y", which="both", length=0)
        axis.spines["left"].set_visible(False)
    for text, filled in (("learned from 10 norms or more", True), ("from fewer: mostly the prior", False)):
        axis.scatter([], [], s=36, label=text, **_look(filled))
    figure.legend(loc="outside lower center", ncols=2, title="A mark per cell: larger, if it has more examples")
    without = int(members[~shown].sum())
    note = f"; {_whole(without)} of which norm 0 is expected are not shown" if without else ""
    figure.suptitle(f"{_whole(sampler.n)} examples, {_whole(sampler.steps)} steps{note}", fontsize=9, color="#555555")


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
    low, high = float(values.min()) / _MARGIN, float(values.max()) * _MARGIN
    axis.plot([low, high], [low, high], color=BLUE, linewidth=1.1, label="as remembered: Avare", zorder=1.5)
    axis.axhline(mean, color=BLACK, linewidth=1.0, linestyle=DASHES["dot"], label="all alike: uniform", zorder=1.4)
    axis.set_xlim(float(remembered.min()) / _MARGIN if len(remembered) else low, high)
    axis.set_ylim(float(expected.min()) / _MARGIN, high)


def _marks(
    axis: Any, x: NDArray[Any], y: NDArray[np.float64], sizes: NDArray[np.float64], learned: NDArray[np.bool_]
) -> None:
    """Draw the hollow marks, and the filled ones above them."""
    for filled in (False, True):
        these = learned == filled
        axis.scatter(x[these], y[these], s=sizes[these], zorder=2.5 + 0.5 * filled, **_look(filled))


def _look(filled: bool) -> dict[str, Any]:
    face, edge, width = (VERMILION, "white", 0.4) if filled else ("white", VERMILION, 0.9)
    return {"facecolor": face, "edgecolor": edge, "linewidth": width, "alpha": 0.75}


def _area(members: Any, largest: int) -> Any:
    """Return the area of a mark, in points squared; it grows with the root of the cell's members.

    >>> float(_area(1000, 1000)), float(_area(10, 1000)) < 0.15 * 170.0
    (170.0, True)
    """
    return _SMALLEST + (_LARGEST - _SMALLEST) * np.sqrt(np.asarray(members) / largest)


def _whole(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")
