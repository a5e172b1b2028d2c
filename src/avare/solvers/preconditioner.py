"""The diagonal preconditioner of a linear model, and the step size of SAGA in it.

D_j is one over the curvature of f along column j, so that data need not be scaled. In it, the example i has the
smoothness constant l_i (sum_j D_j a_ij^2), with l_i the largest curvature of its loss.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.problems import Linear
from avare.problems.base import Vector

_ROWS, _ITERATIONS = 1024, 10
"""Rows and iterations of the power method. A rough estimate is enough: `tests/solvers/test_saga.py` allows a third."""
_OF_BATCH, _OF_SUM = 0.2, 0.1
"""Step sizes in units of one over the smoothness of a batch, and of the sum.

Theory allows 1/3 of one over the largest smoothness of an example (Defazio et al., NIPS 2014). These two were good on
several problems, with and without weights, and are otherwise a guess.
"""


class DiagonalPreconditioner(NamedTuple):
    """How steps scale with the columns of X, so that data need not be scaled."""

    inverse: Vector
    """D_j of each column, one over the curvature of f along it."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise 0."""
    lengths: NDArray[np.float32]
    """The length of each row in the preconditioner, sqrt(sum_j D_j a_ij^2)."""


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


def automatic_step_size(
    problem: Linear, preconditioner: DiagonalPreconditioner, batch_size: int, rows: Any = None
) -> float:
    """Choose a step size, 1 / (5 S / m + 10 L).

    S is the sum of the smoothness constants and L the constant of the sum, both in the preconditioner. The power method
    on some rows estimates L; they can be centred by other means than their own.
    """
    curvatures = largest_curvatures(problem)
    constants = curvatures * preconditioner.lengths.astype(np.float64) ** 2
    total = float(constants.sum())
    if total == 0.0:
        return 1.0
    generator = np.random.default_rng(0)
    chosen = generator.choice(problem.n, min(_ROWS, 4 * problem.n), p=constants / total)
    weights = curvatures[chosen] * total / (len(chosen) * constants[chosen])
    rows, root = (rows or _rows_of(problem)).subset(chosen), np.sqrt(preconditioner.inverse)
    direction, largest = generator.standard_normal((1, problem.width)), 0.0
    for _ in range(_ITERATIONS):
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        direction = root * rows.sums(weights[:, None] * rows.outputs(root * direction))
        largest = float(np.linalg.norm(direction))
    return 1.0 / (total / (_OF_BATCH * batch_size) + largest / _OF_SUM)


def sampler_options(problem: Linear, preconditioner: DiagonalPreconditioner) -> dict[str, Vector]:
    """Return norms for the first step, and the smoothness of each example: both in the preconditioner."""
    lengths, weights = preconditioner.lengths.astype(np.float64), problem.model.sample_weight
    norms = lengths * weights if len(weights) else lengths
    return {"initial_norms": norms, "smoothness": problem.curvature * norms * lengths}


def _rows_of(problem: Linear) -> Any:
    """Return the rows; dense columns are centred if there is a free bias."""
    return problem.rows(centred=problem.model.matrix.sparse is None)
