"""The plain estimate of the gradient: the weighted sum of the gradients of the batch."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.problems.linear import add_gradients
from avare.solvers.kernels import ESTIMATE, Work


class Plain(NamedTuple):
    """The state of the plain estimate."""

    gradient: Vector
    """The estimate as a table, one row per output."""


class PlainEstimator:
    """Estimate the gradient of the losses at an iterate, which the steps change in place."""

    control = "none"
    memory: Any = None
    """What to save: a ``NamedTuple`` of arrays."""

    def __init__(self, problem: Problem, x: Vector, *, rows: int = 0) -> None:
        self.problem, self.x = problem, x
        self.shape = (problem.outputs, problem.width) if isinstance(problem, Linear) else (1, problem.dim)
        self.held = np.zeros((rows + self.shape[0], self.shape[1]))  # the estimate comes last
        self.gradient: Vector = self.held[rows:].reshape(-1)
        self.moving = x  # what a step changes
        self.scratch: Any = problem.scratch() if isinstance(problem, Linear) else None

    @property
    def state(self) -> Any:
        """The state for the kernel."""
        return Plain(self.held)

    def take(self, work: Work, step: int) -> bool:
        """Do in Python what the kernel does; return whether the norms are finite."""
        self.gradient[:], work.norms[:] = self.at(self.x, work.indices, work.weights)
        return True

    def at(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        """Return the estimate at x from a batch, and the norms of its terms. Nothing changes."""
        return self.problem.loss_batch_gradient(x, indices, weights)

    def norms(self, x: Vector) -> Vector:
        """Return the norms of the terms of all examples at x. One pass over the data."""
        return self.problem.loss_norms(x)

    def settle(self, step: int) -> None:
        """Set the iterate to what it is after `step` steps, if coefficients lag behind."""


@ESTIMATE.version(Plain)
@lean
def _estimate(state, model, work, scratch, step):
    add_gradients(model, work.coefficients, work.indices, work.weights, state.gradient, work.norms, scratch)
    return True
