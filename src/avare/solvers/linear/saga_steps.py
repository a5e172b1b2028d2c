"""The steps of SAGA as a loop takes them, and when they have converged."""

import math

import numpy as np

from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.samplers import Sampler
from avare.solvers.checkpoint import NOT_NEGATIVE, Bounds, Memory
from avare.solvers.estimators.lagged import LaggedEstimator
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.linear.preconditioner import Preconditioner
from avare.solvers.steps import Steps
from avare.solvers.updates.proximal import proximal
from avare.state import State


class Tolerance:
    """When to compute the gap, which costs some passes over the data: when an estimate of it is small enough.

    >>> tolerance = Tolerance(1.0)
    >>> tolerance.is_near(0.9), tolerance.is_near(0.4)
    (False, True)
    >>> tolerance.missed(0.4, 2.0)  # the estimate was too small by a factor of 5
    >>> tolerance.is_near(0.2), tolerance.is_near(0.1)
    (False, True)
    """

    def __init__(self, goal: float) -> None:
        self._goal, self.margin = goal, 0.5

    def is_near(self, estimate: float) -> bool:
        """Whether the gap may be small enough."""
        return estimate <= self.margin * self._goal

    def missed(self, estimate: float, gap: float) -> None:
        """Wait until the estimate is smaller by as much as it was wrong."""
        self.margin = min(0.5 * self.margin, 0.7 * estimate / gap)


class SagaSteps(Steps):
    """The steps of one run of SAGA, all of one size. The table is filled at the first iterate, unless that is 0."""

    problem: Linear
    estimator: TableEstimator

    def __init__(
        self, problem: Linear, sampler: Sampler, x: Vector, preconditioner: Preconditioner, *, size: float, tol: float
    ) -> None:
        self._preconditioner, self.step_size = preconditioner, size
        is_dense, penalty, width = problem.model.matrix.sparse is None, problem.penalty, problem.width
        kind = TableEstimator if is_dense else LaggedEstimator
        estimator = kind(problem, x, sampler.batch_size, preconditioner=preconditioner)
        if isinstance(estimator, LaggedEstimator):
            estimator.rates(preconditioner.inverse, size)
        update = proximal(preconditioner, size, penalty.l1[:width], penalty.l2[:width])
        super().__init__("saga", sampler, estimator, update if is_dense else estimator.state)
        self.period = self.epoch_steps
        self._goal = tol**2 * problem.best_constant() if tol > 0.0 else -math.inf
        self._tolerance = Tolerance(self._goal)
        if x.any():  # with an empty table, the noise of the first epoch would lead away again
            self.estimator.fill(problem.survey(x))

    def advance(self, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        done = super().advance(step, sizes, noise)
        self.estimator.settle(step + done)
        return done

    def check(self, step: int) -> str | None:
        """Return why the iterates have converged, if they have."""
        whole = self.problem.penalty.subgradient(self.x, self.estimator.sums().ravel())
        table = whole.reshape(self.problem.outputs, self.problem.width)
        if len(self._preconditioner.shift):
            table = table - table[:, -1:] * self._preconditioner.shift
        estimate = 0.5 * float((table**2 @ self._preconditioner.inverse).sum())
        if not self._tolerance.is_near(estimate):
            return None
        gap = self.problem.gap(self.x)
        if gap > self._goal:
            self._tolerance.missed(estimate, gap)
            return None
        return f"converged after step {step}: the objective is at most {gap:.3g} above the minimum"

    def settings(self) -> State:
        """Return what must be the same when a state is resumed."""
        return {"step_size": self.step_size}

    def memory(self) -> Memory:
        """Return what to save besides the iterate."""
        return {**super().memory(), "tolerance": self._tolerance}

    def bounds(self, step: int) -> Bounds:
        """Return the bounds of fields in the memory that are not any finite number."""
        return {**super().bounds(step), "tolerance/margin": NOT_NEGATIVE}


def first_norms(problem: Linear, preconditioner: Preconditioner) -> tuple[Vector, Vector]:
    """Return norms for the first step, and the smoothness of each example: both in the preconditioner."""
    lengths, weights = preconditioner.lengths.astype(np.float64), problem.model.sample_weight
    norms = lengths * weights if len(weights) else lengths
    return norms, problem.curvature * norms * lengths
