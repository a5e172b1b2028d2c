"""Figures that need no stored results: what a sampler has learned, a run, and chains."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.plotting import charts
from avare.plotting.charts import Chart, Curve, drawing, new_figure, verbatim
from avare.samplers import Calibrated

_LARGEST = 170.0  # points squared: the area of the mark of the largest cell
_LEARNED = 10.0  # norms, from which on a cell's expectation hardly depends on its prior
_MOST_COORDINATES = 6  # in a figure of chains
_BINS = 40
_MOST_POINTS = 2_000  # of a path


def calibration(sampler: Calibrated) -> Any:
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
            norms = np.concatenate([remembered[shown], expected[shown]])
            ends = np.array([norms.min(), norms.max()])
            axis.plot(ends, ends, color=charts.BLUE, linewidth=1.1, label="as remembered: Avare", zorder=1.5)
            level = float(np.sqrt(np.average(expected**2, weights=members)))
            axis.axhline(level, color=charts.BLACK, linewidth=1.0, linestyle=":", label="all alike: uniform")
            faces = np.where(observations >= _LEARNED, charts.VERMILION, "white")[shown]
            sizes = _LARGEST * np.sqrt(members / members[shown].max())[shown]
            look = {"facecolor": faces, "edgecolor": charts.VERMILION, "alpha": 0.75, "zorder": 2.5}
            axis.scatter(remembered[shown], expected[shown], s=sizes, label="a cell; hollow: mostly the prior", **look)
            figure.legend(loc="outside lower center", ncols=3)
        else:
            axis.text(0.5, 0.5, "nothing is expected yet", transform=axis.transAxes, ha="center", color=charts.GREY)
        without = int(members[~shown].sum())
        note = f"; {without:,} never seen, or with norm 0, are not shown" if without else ""
        figure.suptitle(f"{sampler.n:,} examples, {sampler.steps:,} steps{note}", fontsize=9, color="#555555")
        return figure


def run_figure(label: str, trace: Any) -> Any:
    """Draw a run over epochs and over seconds: the suboptimality, or the objective if its least value is not known.

    Parameters
    ----------
    label
        The name of the sampler, which determines the colour.
    trace
        The table of evaluations.

    Examples
    --------
    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 2.0], l2=0.0)
    >>> run = avare.sgd(problem, avare.Uniform(2, 1, seed=0), 0.1, epochs=5)
    >>> len(run_figure("Uniform", run.trace).axes)
    2
    """
    if not len(trace):
        raise ValueError("there is nothing to draw: the run was not evaluated (evaluate=...)")
    known = bool(np.isfinite(trace.suboptimality).any())
    title = "Suboptimality  f(x) − f*" if known else "Objective  f(x)"
    values = trace.suboptimality if known else trace.objective
    panels = [
        Chart(title, words, (Curve(label, along, values),), log_y=known)
        for words, along in (("Epochs", trace.epoch), ("Seconds of steps", trace.seconds))
    ]
    with drawing():
        figure = new_figure((7.2, 3.0))
        for axis, chart in zip(figure.subplots(1, 2), panels, strict=True):
            charts.draw(axis, chart, charts.styles_of(panels))
            axis.set_xlabel(chart.x_title)
        figure.suptitle(f"{title}, {verbatim(label)}", fontsize=9.5)
        return figure


def chain_figure(draws: NDArray[np.float64], weights: NDArray[np.float64], names: list[str]) -> Any:
    """Draw the law of each coordinate and the paths of all chains; of many coordinates the first six.

    Parameters
    ----------
    draws
        Chains x draws x coordinates.
    weights
        The weight of each draw of a chain.
    names
        Of the coordinates.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(2, 100, 3))
    >>> len(chain_figure(draws, np.full(100, 0.01), ["a", "b", "c"]).axes)
    6
    """
    shown = min(draws.shape[2], _MOST_COORDINATES)
    every = max(1, draws.shape[1] // _MOST_POINTS)
    with drawing():
        figure = new_figure((7.2, 0.8 + 1.3 * shown))
        axes = figure.subplots(shown, 2, squeeze=False, width_ratios=[1, 2])
        for k, (law, path) in enumerate(axes):
            edges = np.histogram_bin_edges(draws[:, :, k], _BINS)
            for chain in draws[:, :, k]:
                law.hist(chain, edges, weights=weights, density=True, histtype="step", linewidth=0.9)
                path.plot(np.arange(0, len(chain), every), chain[::every], linewidth=0.5, alpha=0.8)
            law.set_yticks([])
            law.set_ylabel(verbatim(names[k]), fontweight="bold")
        axes[-1][0].set_xlabel("Value")
        axes[-1][1].set_xlabel("Draw")
        left = draws.shape[2] - shown
        note = f"; {left} more coordinates are not shown" if left else ""
        figure.suptitle(f"{len(draws)} chains of {draws.shape[1]} draws{note}", fontsize=9, color=charts.GREY)
        return figure
