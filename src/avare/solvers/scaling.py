"""Whether the columns of X had scales so different that SGD could not move a coefficient far enough."""

import math
import warnings

import numpy as np

from avare.problems import Linear
from avare.problems.base import Vector
from avare.solvers.convergence import ConvergenceWarning
from avare.solvers.preconditioner import column_curvatures
from avare.solvers.run import Run

_LITTLE = 0.1
"""Of the distance to a coefficient's minimum, and of what the run has gained: documented as "a tenth"."""
_ROWS = 512
"""Rows of a sample that shows curvatures: it costs less than a few steps."""
_ENOUGH = 1.0
"""Steps times size times curvature, from which on no closer look is needed: the error has then fallen by e."""


def warn_of_scales(problem: Linear, start: Vector, run: Run) -> None:
    """Warn if badly scaled columns have kept a coefficient from moving 10 % of its distance.

    It warns only if that costs 10 % of what the run has gained.

    Step sizes are stable up to 2 over the curvature of f, which is at least the curvature along any column. So t steps
    reduce the distance of a coefficient by a fraction of at most 2 t times its own curvature over the largest one. A
    change of this coefficient alone lowers f by the square of its gradient over twice its curvature, at least.

    With steps of one size, the fraction is t times this size times the curvature. If that is clearly enough for each
    coefficient by the curvature of some rows, no pass over the data is needed. There are two samples, and the smaller
    curvature counts: a row of a rare column, or a long one, could make the column look common in one of them.
    """
    size, least = run.step_size if isinstance(run.step_size, float) else 0.0, math.inf
    for first in (0, max(problem.n // _ROWS // 2, 1)):
        some = np.arange(first % problem.n, problem.n, max(problem.n // _ROWS, 1))
        weights = problem.model.sample_weight[some] if len(problem.model.sample_weight) else np.ones(len(some))
        least = min(least, float(column_curvatures(problem.subset(some, weights * (problem.n / len(some)))).min()))
    if run.steps * size * least > _ENOUGH:
        return
    curvature = column_curvatures(problem)
    slow = (curvature > 0.0) & (2.0 * run.steps * curvature < _LITTLE * curvature.max())
    if not slow.any():
        return
    left = np.divide(problem.gradient(run.x) ** 2, 2.0 * curvature, out=np.zeros(problem.dim), where=slow)
    gained, worst = problem.objective(start) - problem.objective(run.x), int(left.argmax())
    if left[worst] > _LITTLE * gained:
        ratio = math.sqrt(curvature.max() / curvature[worst])
        message = (
            f"{problem.names[worst]} has hardly moved in {run.steps} steps, because its column is {ratio:,.0f} times "
            f"smaller than the largest. It alone could lower the objective by {left[worst]:.3g}, where the run has "
            f"gained {gained:.3g}: scale the columns of X, or use avare.saga or problem.minimize()"
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
