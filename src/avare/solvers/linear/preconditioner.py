"""How the steps of SAGA scale with the columns of X, so that data need not be scaled."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.problems.base import Vector
from avare.problems.linear import Linear

_ROWS, _ROUNDS = 1024, 10  # of the power method: a rough estimate is enough
_SHARE = 0.2  # of the batch over the total smoothness, and ...
_LARGEST = 0.1  # ... of one over the smoothness of the sum: good on several problems, with and without weights


class Preconditioner(NamedTuple):
    """What steps need to know of the data."""

    inverse: Vector
    """D_j of each column, one over the curvature of f along it."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise empty."""
    lengths: NDArray[np.float32]
    """The length of each row in the preconditioner, sqrt(sum_j D_j a_ij^2)."""


def bends_of(problem: Linear) -> Vector:
    """Return the largest curvature of each example, times its weight."""
    weights = problem.model.sample_weight
    return problem.curvature * (weights if len(weights) else np.ones(problem.n))


def preconditioner_of(problem: Linear) -> Preconditioner:
    """Measure the columns of X. Dense columns are centred if there is a free bias. O(size of X)."""
    bends, rows = bends_of(problem), problem.rows(centred=problem.model.matrix.sparse is None)
    curvature = rows.squares(bends) + problem.penalty.l2[: problem.width]
    inverse = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=curvature > 0.0)
    shift = np.empty(0) if rows.means is None else np.append(rows.means, 0.0)
    return Preconditioner(inverse, shift, np.sqrt(rows.lengths(inverse)).astype(np.float32))


def step_size_of(problem: Linear, preconditioner: Preconditioner, batch_size: int) -> float:
    """Choose a step size, 1 / (5 S / m + 10 L).

    S is the sum of the smoothness constants and L the constant of the sum, both in the preconditioner. The power method
    on some rows estimates L.
    """
    bends = bends_of(problem)
    constants = bends * preconditioner.lengths.astype(np.float64) ** 2
    total = float(constants.sum())
    if total == 0.0:
        return 1.0
    generator = np.random.default_rng(0)
    chosen = generator.choice(problem.n, min(_ROWS, 4 * problem.n), p=constants / total)
    weights = bends[chosen] * total / (len(chosen) * constants[chosen])
    rows, root = (
        problem.rows(centred=problem.model.matrix.sparse is None).subset(chosen),
        np.sqrt(preconditioner.inverse),
    )
    direction, largest = generator.standard_normal((1, problem.width)), 0.0
    for _ in range(_ROUNDS):
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        direction = root * rows.sums(weights[:, None] * rows.outputs(root * direction))
        largest = float(np.linalg.norm(direction))
    return 1.0 / (total / (_SHARE * batch_size) + largest / _LARGEST)
