"""Results of solvers, as figures."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.plotting.charts import GREY, Chart, Curve, draw, drawing, new_figure, styles_of, verbatim

_MOST_COORDINATES = 6  # in a figure of chains
_BINS = 40
_MOST_POINTS = 2_000  # of a path


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
    charts = [
        Chart(title, words, (Curve(label, along, values),), log_y=known)
        for words, along in (("Epochs", trace.epoch), ("Seconds of steps", trace.seconds))
    ]
    with drawing():
        figure = new_figure((7.2, 3.0))
        for axis, chart in zip(figure.subplots(1, 2), charts, strict=True):
            draw(axis, chart, styles_of(charts))
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
        figure.suptitle(f"{len(draws)} chains of {draws.shape[1]} draws{note}", fontsize=9, color=GREY)
        return figure
