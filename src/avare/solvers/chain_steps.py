"""The steps of a chain, which adapt to measurements of the gradient noise.

Every so often the gradient is estimated at the iterate from some more batches, drawn by a copy of the sampler. Their
second moments set the scale during the burn-in if ``precondition="moments"``. Their covariance goes to dynamics that
correct for gradient noise.
"""

import copy
from typing import NamedTuple

import numpy as np

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.checkpoint import ArrayGroups
from avare.solvers.dynamics import Dynamics
from avare.solvers.estimators.plain import GradientsAtMode, PlainEstimator
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.kernels import IterateRecord
from avare.solvers.metric import Metric, covariance, root_of
from avare.solvers.steps import Steps
from avare.solvers.tuning import Tuned
from avare.state import State

_BATCHES = 32
"""Batches of one measurement. With `_KEEP` some 1,600 count, so that a variance has a relative error of 4 %."""
_KEEP = 0.98
"""Weight of earlier measurements: the last 50 count, which is a guess."""
_PERIOD, _OFTEN = 1000, 4
"""Steps between two measurements, and how many times as often it is measured in the first 4,000 steps.

The batches of measurements cost 3.2 % of those of the steps; the period is a guess.
"""
_ADAPTATIONS = 20
"""Adaptations of the scale during the burn-in: a guess."""
_SEED = 20  # any number: measurements do not depend on the seed of a chain


class Measurements(NamedTuple):
    """Averages of what was measured."""

    moments: Vector
    """Second moments of the gradient, for the scale."""
    noise: Vector
    """The covariance of the gradient estimate in the metric; its diagonal if the metric is not a whole matrix."""
    times: Vector
    """How often it was measured, one number."""


class ChainSteps(Steps):
    """The steps of a chain, which adapt the scale until some step.

    Parameters
    ----------
    dynamics : Dynamics
    tuned : Tuned
        The metric, and what a state contains.
    sampler : Sampler
    estimator : PlainEstimator
    noise : Generator
        What the state of the dynamics draws from.
    record : IterateRecord
    adapt_until : int
    """

    def __init__(
        self,
        dynamics: Dynamics,
        tuned: Tuned,
        sampler: Sampler,
        estimator: PlainEstimator,
        noise: np.random.Generator,
        record: IterateRecord,
        adapt_until: int,
    ) -> None:
        self._dynamics, self._tuned, self._adapt_until = dynamics, tuned, adapt_until
        self._metric = Metric(*(each.copy() for each in tuned.metric))  # a chain may adapt it
        super().__init__(dynamics.name, sampler, estimator, dynamics.build(self._metric, noise), record)
        self._corrects = dynamics.corrects_noise and sampler.independent
        dim = self.problem.dim
        covariances = np.zeros((dim, dim) if len(self._metric.factor) else dim)
        self._measured = Measurements(np.zeros(dim), covariances, np.zeros(1))
        if self._corrects:
            self.period = max(1, _PERIOD // _OFTEN)
        if adapt_until > 0:
            self.period = max(1, adapt_until // _ADAPTATIONS)

    def check(self, step: int) -> str | None:
        """Measure the noise of the gradient, with more batches; a chain never ends."""
        late = step > max(self._adapt_until, _OFTEN * _PERIOD)
        if late and (not self._corrects or step % _PERIOD >= self.period):
            return None
        found, metric = self._batch_gradients(), self._metric
        if step <= self._adapt_until:
            moments = self._measured.moments
            self._average(moments, np.mean((found + self.problem.penalty.l2 * self.x) ** 2, axis=0))
            metric.root[:] = root_of(moments)
        if self._corrects:
            self._average(self._measured.noise, covariance(metric, found))
            self._dynamics.correct(self.update, self._measured.noise)
        self._measured.times[0] += 1.0
        return None

    def _batch_gradients(self) -> Vector:
        """Return estimates from some batches, with a seed that depends on the step only: resuming changes nothing.

        A copy of the sampler draws, unless draws leave no trace: batches are independent, and nothing is learned.
        """
        sampler, generator = self.sampler, self.sampler.generator
        if sampler.learns or not sampler.independent:
            sampler = copy.deepcopy(sampler)
        sampler.reseed(np.random.SeedSequence([_SEED, sampler.steps]))
        try:
            return self.estimator.from_batches(self.x, sampler, _BATCHES)
        finally:
            self.sampler.reseed(generator)

    def _average(self, average: Vector, found: Vector) -> None:
        keep = min(_KEEP, 1.0 - 1.0 / (self._measured.times[0] + 1.0))
        average[:] = keep * average + (1.0 - keep) * found

    def settings(self) -> State:
        """Return what must be the same when a state is resumed."""
        return {**super().settings(), "control": self.estimator.control, "adapt_until": self._adapt_until}

    def array_groups(self) -> ArrayGroups:
        """Return what to save besides the iterate."""
        own = {"metric": self._metric, "measured": self._measured, "tuning": self._tuned.arrays()}
        return {**super().array_groups(), **own}


def build_estimator(
    problem: Problem, control: str, x: Vector, batch_size: int, point: Vector | None = None
) -> PlainEstimator:
    """Build an estimator at an iterate x, with known gradients at a point, by default x; one pass over the data."""
    known = x if point is None else point
    if control == "none":
        return PlainEstimator(problem, x)
    if not isinstance(problem, Linear):
        return GradientsAtMode(problem, x, known)
    estimator = TableEstimator(problem, x, batch_size, fixed=control == "mode")
    estimator.fill(known)
    return estimator
