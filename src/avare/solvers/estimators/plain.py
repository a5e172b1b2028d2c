"""The plain estimate of the gradient, the weighted sum over the batch; and that of differences, for any problem."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.problems.linear import add_gradients
from avare.samplers import Sampler
from avare.solvers.kernels import Work, estimate, estimate_kernel


class PlainState(NamedTuple):
    """The state of the plain estimate."""

    gradient: Vector
    """The estimate as a table, one row per output."""


class PlainEstimator:
    """Estimate the gradient of the losses at an iterate, which the steps change in place."""

    control = "none"

    def __init__(self, problem: Problem, x: Vector, *, rows: int = 0) -> None:
        self.problem, self.x = problem, x
        self.shape = (problem.outputs, problem.width) if isinstance(problem, Linear) else (1, problem.dim)
        self.sums_and_estimate = np.zeros((rows + self.shape[0], self.shape[1]))  # the estimate comes last
        self.gradient: Vector = self.sums_and_estimate[rows:].reshape(-1)
        self.scratch: Any = problem.scratch() if isinstance(problem, Linear) else None
        self.state: Any = PlainState(self.sums_and_estimate)  # for the kernel

    def take(self, work: Work) -> bool:
        """Estimate by the kernel, or in Python if the problem is not linear; return whether the norms are finite."""
        if isinstance(self.problem, Linear):
            return bool(estimate(self.state, self.problem.model, work))
        self.gradient[:], work.norms[:] = self.at(self.x, work.indices, work.weights)
        return True

    def at(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        """Return the estimate at x from a batch, and the norms of its terms. Nothing changes."""
        return self.problem.loss_batch_gradient(x, indices, weights)

    def from_batches(self, x: Vector, sampler: Sampler, count: int) -> Vector:
        """Return one estimate at x a row, from batches that the sampler draws without counting or learning."""
        found = np.empty((count, len(x)))
        for each in found:
            batch = sampler.draw(sampler.batch_size)
            each[:] = self.at(x, batch.indices, batch.weights)[0]
        return found

    def norms(self, x: Vector) -> Vector:
        """Return the norms of the terms of all examples at x. One pass over the data."""
        if self.control == "none":
            return self.problem.loss_norms(x)
        return self.at(x, np.arange(self.problem.n), np.ones(self.problem.n))[1]


class GradientsAtMode(PlainEstimator):
    """Differences from the gradients at one point: two calls per example, because each must be computed separately."""

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


@estimate_kernel(PlainState, saved=())
def _estimate(state, model, work):
    add_gradients(model, work.coefficients, work.indices, work.weights, state.gradient, work.norms, work.scratch)
    return True
