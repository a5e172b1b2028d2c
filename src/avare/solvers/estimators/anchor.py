"""The estimate by differences from the gradients at one fixed point, usually the mode."""

import math

import numpy as np
from numpy.typing import NDArray

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.estimators.table import TableEstimator


class TableAtMode(TableEstimator):
    """Differences from a fixed table, for a linear model."""

    control = "mode"

    def __init__(self, problem: Linear, x: Vector, batch_size: int, mode: Vector) -> None:
        super().__init__(problem, x, batch_size, fixed=True)
        self.memory = None  # the table follows from the mode
        self.fill(problem.survey(mode))


class GradientsAtMode(PlainEstimator):
    """Differences for any problem: two calls per example, because each difference must be computed separately."""

    control = "mode"

    def __init__(self, problem: Problem, x: Vector, mode: Vector) -> None:
        super().__init__(problem, x)
        self._mode, self._sum = mode, problem.loss_gradient(mode)

    def at(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        """Return the estimate at x from a batch, and the norms of its terms. Nothing changes."""
        one, gradient, norms = np.ones(1), self._sum.copy(), np.empty(len(indices))
        for j in range(len(indices)):
            which = indices[j : j + 1]
            difference = self.problem.loss_batch_gradient(x, which, one)[0]
            difference = difference - self.problem.loss_batch_gradient(self._mode, which, one)[0]
            norms[j] = math.sqrt(float(difference @ difference))
            gradient += weights[j] * difference
        return gradient, norms

    def norms(self, x: Vector) -> Vector:
        """Return the norms of the differences of all examples at x. Two calls per example."""
        return self.at(x, np.arange(self.problem.n), np.ones(self.problem.n))[1]
