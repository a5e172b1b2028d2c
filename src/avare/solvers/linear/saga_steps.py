"""The steps of SAGA as a loop takes them: how they adapt, and when they have converged."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from avare.problems.base import Vector
from avare.problems.linear import Linear, Survey
from avare.samplers import Sampler
from avare.solvers.checkpoint import ANY_NUMBER, NOT_NEGATIVE, Bounds, Memory
from avare.solvers.estimators.lagged import LaggedEstimator
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.linear.preconditioner import (
    Preconditioner,
    bends_of,
    length_of,
    preconditioner_of,
    step_size_of,
)
from avare.solvers.linear.tolerance import Tolerance
from avare.solvers.steps import Steps
from avare.solvers.updates.proximal import proximal
from avare.state import State

_GROWTH = 4.0  # of squared differences or the gradient over those at the start, at which the step is halved
_FIRST_MEASURE, _LESS = 4, 0.7  # when to measure curvatures first, and by how much they must be less to count
_SLOW, _FASTER = 0.5, 1.25  # if an epoch leaves more than the first of the gradient, steps grow by the second
_LEAST_SCALE = 1e-9  # of the step, after which it has diverged
_LARGEST_SCALE = 1e9
_MOST_NOISE = 1e280  # so that norms stay finite


@dataclass
class Pacing:
    """What the steps have learned about their size."""

    last_x: Vector
    """The iterate at the last check."""
    measured: Vector
    """Where the curvatures were measured; NaN if they were not."""
    size: float
    limit: float
    """The largest that the estimated gradient may become."""
    most: float = math.inf
    """The largest that the second moments may become."""
    scale: float = 1.0
    """What multiplies the size: it grows if the gradient falls slowly, and is halved if the gradient grows."""
    widest: float = 1.0
    """The largest that the scale was."""
    last: float = 0.0
    """The length of the gradient at the last check."""


class SagaSteps(Steps):
    """The steps of one run of SAGA, with a given size or, if it is None, one that adapts.

    The table is filled at the first iterate, from a survey if there is one; it is empty if that is 0.
    """

    problem: Linear
    estimator: TableEstimator

    def __init__(
        self,
        problem: Linear,
        sampler: Sampler,
        x: Vector,
        preconditioner: Preconditioner,
        *,
        size: float | None,
        tol: float,
        survey: Survey | None = None,
    ) -> None:
        self._preconditioner, self._auto = preconditioner, size is None
        bends, self._largest = bends_of(problem), math.inf  # the step that the present one may grow to
        self._bend = float(bends.sum())
        if size is None:
            size, self._largest = step_size_of(problem, preconditioner, bends, sampler.batch_size)
        kind = TableEstimator if problem.model.matrix.sparse is None else LaggedEstimator
        estimator = kind(problem, x, sampler.batch_size, preconditioner=preconditioner)
        super().__init__("saga", sampler, estimator, None)
        self.period = self.epoch_steps
        self._scale_of_objective = highest = problem.loss_at_zero()
        self._tolerance = Tolerance(tol, highest)
        if survey is None and x.any():
            survey = problem.survey(x)  # with an empty table, the noise of the first epoch would lead away again
            highest = max(highest, survey.loss)
        nowhere = np.full(problem.dim, np.nan)
        self.pacing = Pacing(x.copy(), nowhere, size, _GROWTH * math.sqrt(2.0 * highest))
        self._set_update()
        if survey is not None:
            self.estimator.fill(survey)
        moments = self._first_moments()
        if self._auto:
            self.pacing.most = _GROWTH * moments
        self.estimator.memory.noise[1] = math.sqrt(min(moments, _MOST_NOISE) / self.period)

    @property
    def step_size(self) -> float:  # type: ignore[override]  # it changes
        """The size of the steps, without their scale."""
        return self.pacing.size

    # --- the method of a loop -----------------------------------------------------------------

    def advance(self, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        done, count, epoch = 0, len(sizes), step // self.period
        if count and self._auto and step % self.period == 0 and epoch >= _FIRST_MEASURE and epoch & (epoch - 1) == 0:
            self._measure()  # here and not after the last step, for which it would be too late
        while True:
            done += super().advance(step + done, sizes[done:], noise)
            if done >= count:
                break
            if not self._auto or self.pacing.scale < _LEAST_SCALE:
                return done
            self._retreat(step + done + 1)
            done += 1  # the step that failed has been drawn
            if done >= count:
                break
        self.estimator.settle(step + count)
        return count

    def check(self, step: int) -> str | None:
        """Adapt the steps to what the last epoch has shown; return why the iterates have converged, if they have."""
        moments = self.estimator.memory.noise
        noise = float(moments[0])
        moments[:] = 0.0, math.sqrt(min(noise, _MOST_NOISE) / self.period)
        self.estimator.settle(step)
        self.estimator.move_to(self.x, step)
        estimate = self._length(self.estimator.sums().ravel())
        if self._auto and (noise > self.pacing.most or estimate > self.pacing.limit):
            self._retreat(step)
            return None
        self.pacing.last_x[:] = self.x
        if self._auto:
            self._adapt(estimate)
        # Where steps could grow, curvatures are less than the bounds say, and a larger decrease is still possible.
        return self._tolerance.reached(
            step, estimate, lambda: self._length(self.problem.survey(self.x).gradient), self.pacing.widest
        )

    def _adapt(self, estimate: float) -> None:
        """Let steps grow while the gradient falls slowly, and halve them if it has grown.

        The curvatures are bounds. Where these are far from tight, as for many classes that are nearly separable, steps
        may be many times as large.
        """
        own = self.pacing
        scale = own.scale
        if own.last > 0.0 and estimate > own.last:  # perhaps by chance: not below the step that is safe
            scale = max(0.5 * scale, min(scale, 1.0))
        elif estimate > _SLOW * own.last > 0.0:
            scale = max(scale, min(_FASTER * scale, self._largest / own.size, _LARGEST_SCALE))
        own.last, own.widest = estimate, max(own.widest, scale)
        self._set_scale(scale)

    def settings(self) -> State:
        """Return what must be the same when a state is resumed."""
        return {"step_size": "auto" if self._auto else self.pacing.size}

    def memory(self) -> Memory:
        """Return what to save besides the iterate."""
        return {**super().memory(), "pacing": self.pacing, "tolerance": self._tolerance}

    def bounds(self, step: int) -> Bounds:
        """Return the bounds of fields in the memory that are not any finite number."""
        scales = {"at_least": 0.5 * _LEAST_SCALE, "at_most": _LARGEST_SCALE}
        bounds: dict[str, Any] = {f"pacing/{name}": NOT_NEGATIVE for name in ("limit", "most", "last")}
        bounds |= {"pacing/size": {"at_least": 5e-324}, "pacing/scale": scales, "pacing/widest": scales}
        bounds |= {"pacing/measured": ANY_NUMBER, "estimator/noise": NOT_NEGATIVE, "tolerance/margin": NOT_NEGATIVE}
        return {**super().bounds(step), **bounds}

    def resumed(self) -> None:
        """Compute the preconditioner again where the curvatures were measured, and the rates of the steps."""
        if np.isfinite(self.pacing.measured).all():
            self._bend_by(bends_of(self.problem, self.problem.survey(self.pacing.measured).curvatures))
        self._set_update()

    # --- their parts --------------------------------------------------------------------------

    def _set_update(self) -> None:
        """Set what a step of the present size does."""
        own, width, penalty = self._preconditioner, self.problem.width, self.problem.penalty
        size = self.pacing.size * self.pacing.scale
        if isinstance(self.estimator, LaggedEstimator):
            self.estimator.rates(own.inverse, size)
            self.update = self.estimator.state
        else:
            self.update = proximal(own, size, penalty.l1[:width], penalty.l2[:width])

    def _set_scale(self, scale: float) -> None:
        if scale != self.pacing.scale:
            self.pacing.scale = scale
            self._set_update()

    def _retreat(self, step: int) -> None:
        """Return to the iterate of the last check, with its slopes, and halve the step.

        If curvatures were measured, they were too small: all are what they were before instead.
        """
        own = self.pacing
        self.estimator.move_to(own.last_x, step)
        self.estimator.memory.noise[0] = 0.0
        self.estimator.fill(self.problem.survey(self.x))
        if np.isnan(self.pacing.measured).any():
            self._set_scale(0.5 * own.scale)
        else:
            own.scale = min(own.scale, 1.0)
            self._change_bends(bends_of(self.problem))
            self.pacing.measured[:] = np.nan
        estimate = self._length(self.estimator.sums().ravel())
        own.limit = _GROWTH * max(math.sqrt(2.0 * self._scale_of_objective), estimate)
        own.last = 0.0

    def _first_moments(self) -> float:
        """The sum over an epoch of the second moments of uniform sampling at the first iterate, with an empty table."""
        slopes = self.estimator.memory.slopes if self.x.any() else self.problem.slopes_at_zero()
        squares = np.einsum("ij,ij->i", slopes, slopes) * self._preconditioner.lengths.astype(np.float64) ** 2
        return float(self.period * self.problem.n * squares.sum())

    def _measure(self) -> None:
        """Take the curvatures at the iterate for the preconditioner and the step, if their sum is much less."""
        own = self.pacing
        bends = bends_of(self.problem, self.problem.survey(self.x).curvatures)
        bend = float(bends.sum())
        if bend < _LESS * self._bend:
            own.scale = min(own.scale, max(1.0, own.scale * bend / self._bend))  # it made up for the same
            self.pacing.measured[:] = self.x
            self._change_bends(bends)
            own.last = self._length(self.estimator.sums().ravel())
            own.limit = _GROWTH * own.last

    def _change_bends(self, bends: Vector) -> None:
        """Set the preconditioner and the step for the curvature of each example."""
        before = self._preconditioner.lengths
        self.pacing.size = self._bend_by(bends)
        after = self._preconditioner.lengths
        self.pacing.most *= float(after @ after) / max(float(before @ before), 1e-300)
        self._set_update()

    def _bend_by(self, bends: Vector) -> float:
        """Set the preconditioner for the curvature of each example; return the size of the steps."""
        self._bend, self._preconditioner = float(bends.sum()), preconditioner_of(self.problem, bends)
        own = self._preconditioner
        self.estimator.precondition(own)
        size, self._largest = step_size_of(self.problem, own, bends, self.sampler.batch_size)
        return size

    def _length(self, gradient: Vector) -> float:
        """The length of a gradient of the losses in the preconditioner, with the penalty's added."""
        return length_of(self._preconditioner, self.problem, self.x, gradient)
