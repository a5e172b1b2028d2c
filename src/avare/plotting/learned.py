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
    log axis; the title counts them.

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
    members, remembered, expected, observations = sampler.calibration()
    shown = (expected > 0.0) & (remembered > 0.0)
    with drawing():
        figure = new_figure((5.4, 4.4))
        axis = figure.subplots()
        axis.set(xscale="log", yscale="log", xlabel="Norm remembered", ylabel="Norm expected (root mean square)")
        if shown.any():
            _draw_cells(axis, members[shown], remembered[shown], expected[shown], observations[shown] >= _LEARNED)
            axis.axhline(
                float(np.sqrt(np.average(expected**2, weights=members))),
                **{"color": BLACK, "linewidth": 1.0, "linestyle": DASHES["dot"], "label": "all alike: uniform"},
            )
            figure.legend(loc="outside lower center", ncols=2, title="A mark per cell: larger, if it has more examples")
        else:
            axis.text(0.5, 0.5, "nothing is expected yet", transform=axis.transAxes, ha="center", color=GREY)
        without = int(members[~shown].sum())
        note = f"; {without:,} never seen, or with norm 0, are not shown" if without else ""
        figure.suptitle(f"{sampler.n:,} examples, {sampler.steps:,} steps{note}", fontsize=9, color="#555555")
        return figure


def _draw_cells(
    axis: Any,
    members: NDArray[np.int64],
    remembered: NDArray[np.float64],
    expected: NDArray[np.float64],
    learned: NDArray[np.bool_],
) -> None:
    """Draw the diagonal, the hollow marks, and the filled ones above them; their area grows with the cell's members."""
    values = np.concatenate([remembered, expected])
    ends = [float(values.min()) / _MARGIN, float(values.max()) * _MARGIN]
    axis.plot(ends, ends, color=BLUE, linewidth=1.1, label="as remembered: Avare", zorder=1.5)
    sizes = _SMALLEST + (_LARGEST - _SMALLEST) * np.sqrt(members / members.max())
    for filled, label in ((False, "from fewer: mostly the prior"), (True, "learned from 10 norms or more")):
        these = learned == filled
        face, edge, width = (VERMILION, "white", 0.4) if filled else ("white", VERMILION, 0.9)
        look = {"facecolor": face, "edgecolor": edge, "linewidth": width, "alpha": 0.75, "label": label}
        axis.scatter(remembered[these], expected[these], s=sizes[these], zorder=2.5 + 0.5 * filled, **look)
