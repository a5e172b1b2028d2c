"""The scales of the columns of X: a diagonal preconditioner, the step size of SAGA in it, and a warning of SGD.

D_j is one over the curvature of f along column j, so that data need not be scaled. In it, the example i has the
smoothness constant l_i (sum_j D_j a_ij^2), with l_i the largest curvature of its loss.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.problems import Linear
from avare.problems.base import Vector
from avare.solvers.convergence import ConvergenceWarning
from avare.solvers.run import Run

_ROWS, _ITERATIONS = 1024, 10
"""Rows and iterations of the power method. A rough estimate is enough: `tests/solvers/test_saga.py` allows a third."""
_OF_BATCH, _OF_SUM = 0.2, 0.1
"""Step sizes in units of one over the smoothness of a batch, and of the sum.

Theory allows 1/3 of one over the largest smoothness of an example (Defazio et al., NIPS 2014). These two were good on
several problems, with and without weights, and are otherwise a guess.
"""
_LITTLE = 0.1
"""Of the distance to a coefficient's minimum, and of what the run has gained: documented as "a tenth"."""
_SAMPLE = 512
"""Rows of a sample that shows curvatures: it costs less than a few steps."""
_ENOUGH = 1.0
"""Steps times size times curvature, from which on no closer look is needed: the error has then fallen by e."""


class DiagonalPreconditioner(NamedTuple):
    """How steps scale with the columns of X, so that data need not be scaled."""

    inverse: Vector
    """D_j of each column, one over the curvature of f along it."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise 0."""
    lengths: NDArray[np.float32]
    """The length of each row in the preconditioner, sqrt(sum_j D_j a_ij^2)."""

    def step_size(self, problem: Linear, batch_size: int, rows: Any = None) -> float:
        """Choose a step size, 1 / (5 S / m + 10 L).

        S is the sum of the smoothness constants and L the constant of the sum, both in the preconditioner. The power
        method on some rows estimates L; they can be centred by other means than their own.
        """
        curvatures = largest_curvatures(problem)
        constants = curvatures * self.lengths.astype(np.float64) ** 2
        total = float(constants.sum())
        if total == 0.0:
            return 1.0
        generator = np.random.default_rng(0)
        chosen = generator.choice(problem.n, min(_ROWS, 4 * problem.n), p=constants / total)
        weights = curvatures[chosen] * total / (len(chosen) * constants[chosen])
        rows, root = (rows or _rows_of(problem)).subset(chosen), np.sqrt(self.inverse)
        largest = largest_eigenvalue(
            lambda direction: root * rows.sums(weights[:, None] * rows.outputs(root * direction)),
            generator.standard_normal((1, problem.width)),
        )
        return 1.0 / (total / (_OF_BATCH * batch_size) + largest / _OF_SUM)

    def sampler_options(self, problem: Linear) -> dict[str, Vector]:
        """Return norms for the first step, and the smoothness of each example: both in the preconditioner."""
        lengths, weights = self.lengths.astype(np.float64), problem.model.sample_weight
        norms = lengths * weights if len(weights) else lengths
        return {"initial_norms": norms, "smoothness": problem.curvature * norms * lengths}


def largest_curvatures(problem: Linear) -> Vector:
    """Return the largest curvature of the loss of each example, times its weight."""
    weights = problem.model.sample_weight
    return problem.curvature * (weights if len(weights) else np.ones(problem.n))


def column_curvatures(problem: Linear) -> Vector:
    """Return the largest curvature of f along each coefficient. One pass over the data."""
    squares = problem.rows(centred=False).squares(largest_curvatures(problem))
    return np.tile(squares, problem.outputs) + problem.penalty.l2


def diagonal_preconditioner(problem: Linear) -> DiagonalPreconditioner:
    """Measure the columns of X. O(size of X)."""
    rows = _rows_of(problem)
    curvature = rows.squares(largest_curvatures(problem)) + problem.penalty.l2[: problem.width]
    inverse = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=curvature > 0.0)
    shift = np.zeros(problem.width) if rows.means is None else np.append(rows.means + rows.shift, 0.0)
    return DiagonalPreconditioner(inverse, shift, np.sqrt(rows.lengths(inverse)).astype(np.float32))


def largest_eigenvalue(product: Callable[[Vector], Vector], start: Vector) -> float:
    """Estimate the largest eigenvalue by the power method, from below, from the products with a positive matrix."""
    direction, largest = start, 0.0
    for _ in range(_ITERATIONS):
        direction = product(direction / max(float(np.linalg.norm(direction)), 1e-300))
        largest = float(np.linalg.norm(direction))
    return largest


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
    for first in (0, max(problem.n // _SAMPLE // 2, 1)):
        some = np.arange(first % problem.n, problem.n, max(problem.n // _SAMPLE, 1))
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


def _rows_of(problem: Linear) -> Any:
    """Return the rows; dense columns are centred if there is a free bias."""
    return problem.rows(centred=problem.model.matrix.sparse is None)
