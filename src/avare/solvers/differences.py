"""The steps of SAGA as a loop takes them: their memory, how they adapt, when they have converged."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from avare._state import Field, State, read
from avare.problems.base import Vector
from avare.problems.linear import Linear, Survey
from avare.problems.matrix import BLOCK
from avare.samplers.base import Sampler
from avare.samplers.kernels import can_learn
from avare.solvers.metric import Metric, bends_of, metric_of, step_size_of
from avare.solvers.passes import corrected_minimum
from avare.solvers.saga_kernels import (
    Buffers,
    Memory,
    Rates,
    advance,
    columns_of,
    current,
    slopes_into,
    step_by,
)
from avare.solvers.steps import Iterates, Settings

_GROWTH = 4.0  # of squared differences or the gradient over those at the start, at which the step is halved
_FIRST_MEASURE, _LESS = 4, 0.7  # when to measure curvatures first, and by how much they must be less to count
_SLOW, _FASTER = 0.5, 1.25  # if an epoch leaves more than the first of the gradient, steps grow by the second
_LEAST_SCALE = 1e-9  # of the step, after which it has diverged
_LARGEST_SCALE = 1e9
_MOST_NOISE = 1e280  # so that norms stay finite
_KEPT = 0.25  # of the decrease that a pass in order promises: with less, it was the last
_MARGIN = 0.5  # the estimate of the gradient must be this far below the tolerance, at first, to be verified


class Differences:
    """The steps of one run of SAGA, with their memory: a `Method` of the loop.

    With a survey of all examples at the first iterate, epochs are passes in order (see `passes`) as long as the
    objective falls as they promise.
    """

    def __init__(
        self,
        problem: Linear,
        sampler: Sampler,
        iterates: Iterates,
        metric: Metric,
        *,
        size: float | None,
        tol: float,
        survey: Survey | None = None,
    ) -> None:
        self._problem, self._sampler, self._iterates, self._metric = problem, sampler, iterates, metric
        self._auto, self._tol = size is None, tol
        self._scale = 1.0  # of the step: it grows if the gradient falls slowly, and is halved if the gradient grows
        self._widest = 1.0  # the largest it was
        self._last = 0.0  # the length of the gradient at the last check
        self._margin = _MARGIN
        self._measured = np.full(problem.dim, np.nan)  # where the curvatures were measured, if they were
        self.period = max(1, problem.n // sampler.batch_size)
        sparse = problem._model.matrix.sparse is not None
        self._columns = columns_of(problem.width, problem.outputs) if sparse else None
        self._memory = self._memory_of(problem)
        self._memory.x[:] = iterates.x.reshape(self._memory.x.shape)
        self._kept = iterates.x.reshape(self._memory.x.shape).copy()  # the iterate at the last check
        batch = sampler.batch_size
        self._buffers = Buffers(
            np.empty(batch, dtype=np.int64),
            np.empty(batch),
            np.empty(batch),
            np.empty(batch),
            np.empty((batch, problem.outputs)),
            np.empty((max(batch, BLOCK) if sparse else BLOCK, 2 * problem.outputs)),
            np.empty((batch if sparse else 0, problem.outputs)),
            np.empty(1 << (2 * batch).bit_length(), dtype=np.int64),
            np.empty(problem.width),
        )
        self._scratch = problem.scratch()
        bends = bends_of(problem)
        self._bend = float(bends.sum())
        self._largest = math.inf  # step that the present one may grow to
        if size is None:
            size, self._largest = step_size_of(problem, metric, bends, sampler.batch_size)
        self.size = size
        self._rates = self._rates_of(size)
        # Half of the squared gradient, in the metric, is about the decrease that is still possible.
        self._scale_of_objective = highest = problem._objective_at_zero()
        self._in_order, self._survey = survey is not None, survey  # whether epochs are passes, and what x's has shown
        self._height = self._promised = 0.0  # the objective at the last survey, and by how much it is to fall until ...
        if survey is not None:
            self._fill_table(survey)
            self._last, self._height = self._estimate(), survey.loss + problem._penalty(iterates.x)
        elif iterates.x.any():
            highest = max(highest, problem._objective(iterates.x))
            self._fill_table()  # with an empty one, the noise of the first epoch would lead away again
        # The largest that the estimated gradient may become.
        self._limit = _GROWTH * math.sqrt(2.0 * highest)
        moments = self._first_moments()
        self._most = _GROWTH * moments if self._auto else math.inf  # the same for the second moments
        self._memory.level[0] = math.sqrt(min(moments, _MOST_NOISE) / self.period)

    def _memory_of(self, problem: Linear) -> Memory:
        shape, table = (problem.outputs, problem.width), np.zeros((problem.n, problem.outputs))
        if self._columns is None:
            empty = np.zeros(0, dtype=np.int64)
            sums = np.zeros((2 * problem.outputs, problem.width))
            return Memory(np.zeros(shape), sums, table, empty, np.zeros(1), np.zeros(1))
        x, sums = self._columns[:, : problem.outputs], self._columns[:, problem.outputs : 3 * problem.outputs]
        since = self._columns.view(np.int64)[:, 3 * problem.outputs]
        return Memory(x.T, sums.T, table, since, np.zeros(1), np.zeros(1))

    # --- the method of a loop -----------------------------------------------------------------

    def advance(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        done, count = 0, len(sizes)
        if self._in_order:  # nothing until the end of the epoch
            with self._sampler._lock:
                self._sampler._steps += count
            if count and (step + count) % self.period == 0:
                self._pass_in_order()
            self._memory.since[:] = step + count
            return count
        epoch = step // self.period
        self._survey = self._survey if count == 0 else None
        if count and self._auto and step % self.period == 0 and epoch >= _FIRST_MEASURE and epoch & (epoch - 1) == 0:
            self._measure(_LESS)  # here and not after the last step, for which it would be too late
        while True:
            done += self._steps(step + done, count - done)
            if done >= count:
                break
            if not self._auto or self._scale < _LEAST_SCALE:
                return done
            self._retreat(step + done + 1)
            done += 1  # the step that failed has been drawn
            if done >= count:
                break
        current(self._memory, self._rates, step + count, self._iterates.x.reshape(self._memory.x.shape))
        return count

    def check(self, step: int) -> str | None:
        """Adapt the steps to what the last epoch has shown; return why the iterates have converged, if they have."""
        memory = self._memory
        if self._in_order and self._tol > 0.0:
            self._look()
        if self._in_order or self._survey is not None:  # the epoch was a pass
            return self._converged(step, self._last) if self._survey is not None else None
        noise = float(memory.noise[0])
        memory.noise[0] = 0.0
        memory.level[0] = math.sqrt(min(noise, _MOST_NOISE) / self.period)
        there = self._iterates.x.reshape(memory.x.shape)
        current(memory, self._rates, step, there)
        memory.x[:] = there
        memory.since[:] = step
        estimate = self._estimate()
        if self._auto and (noise > self._most or estimate > self._limit):
            self._retreat(step)
            return None
        self._kept[:] = memory.x
        if self._auto:
            self._pace(estimate)
        return self._converged(step, estimate)

    def _pace(self, estimate: float) -> None:
        """Let steps grow while the gradient falls slowly, and halve them if it has grown.

        The curvatures are bounds. Where these are far from tight, as for many classes that are nearly separable, steps
        may be many times as large.
        """
        scale = self._scale
        if self._last > 0.0 and estimate > self._last:  # perhaps by chance: not below the step that is safe
            scale = max(0.5 * scale, min(scale, 1.0))
        elif estimate > _SLOW * self._last > 0.0:
            scale = max(scale, min(_FASTER * scale, self._largest / self.size, _LARGEST_SCALE))
        self._last = estimate
        self._widest = max(self._widest, scale)
        self._set_scale(scale)

    def _set_scale(self, scale: float) -> None:
        if scale != self._scale:
            self._scale = scale
            self._rates = self._rates_of(self.size * scale)

    def _converged(self, step: int, estimate: float) -> str | None:
        if self._tol == 0.0:
            return None
        # Where steps could grow, curvatures are less than the metric says, and a larger decrease is still possible.
        bound = self._tol * math.sqrt(2.0 * self._scale_of_objective / self._widest)
        if estimate > (self._margin if self._survey is None else 1.0) * bound:
            return None
        exact = self._survey is not None
        true = estimate if exact else self._length(self._problem._gradient(self._iterates.x))
        if true > bound:  # wait until the estimate is smaller by as much as it was wrong
            self._margin = min(0.5 * self._margin, 0.7 * estimate / true)
            return None
        return f"converged after step {step}: the gradient is {true / bound * self._tol:.3g} of its scale"

    def norms(self) -> Vector:
        """Return how much the slopes of each example differ from the table's now, times the length of its row."""
        slopes = np.empty_like(self._memory.table)
        self._set_slopes(self._iterates.x, slopes)
        return np.asarray(np.linalg.norm(slopes - self._memory.table, axis=1) * self._metric.lengths)

    def state(self) -> dict[str, Any]:
        """Return what else to save."""
        memory = {f"saga/{name}": array.copy() for name, array in zip(Memory._fields, self._memory, strict=True)}
        return {
            **memory,
            "saga/kept": self._kept.copy(),
            "saga/measured": self._measured.copy(),
            "saga/auto": self._auto,
            "saga/in_order": self._in_order,
            "saga/surveyed": self._survey is not None,
            "saga/scales": np.array([self._scale, self._widest]),
            "saga/numbers": np.array([self._most, self._margin, self._limit, self._last]),
            "saga/heights": np.array([self._height, self._promised]),
            "saga/size": self.size,
        }

    def read(self, state: Mapping[str, Any], step: int) -> State:
        """Return what `resume` takes from a saved state, or raise a ``ValueError``. Nothing changes."""
        values = read(state, self._fields(step), "resume")
        auto, size = values["saga/auto"], values["saga/size"]
        if auto != self._auto:
            raise ValueError(f"resume['saga/auto'] = {auto}: this run has {self._auto}, by its step_size")
        if not (auto or size == self.size):
            raise ValueError(f"resume['saga/size'] = {size}: this run has step_size = {self.size}")
        return values

    def _fields(self, step: int) -> dict[str, Field]:
        """Declare what `state` returns."""
        any_number: dict[str, Any] = {"at_least": 0.0, "at_most": math.inf}
        fields = {
            f"saga/{name}": Field(array.dtype, array.shape)
            for name, array in zip(Memory._fields, self._memory, strict=True)
        }
        return {
            **fields,
            "saga/since": Field(np.int64, self._memory.since.shape, at_least=0, at_most=step),
            "saga/noise": Field(np.float64, self._memory.noise.shape, **any_number),
            "saga/level": Field(np.float64, self._memory.level.shape, **any_number),
            "saga/kept": Field(np.float64, self._kept.shape),
            "saga/measured": Field(np.float64, self._measured.shape, also=math.nan),
            "saga/auto": Field(bool),
            "saga/in_order": Field(bool),
            "saga/surveyed": Field(bool),
            "saga/scales": Field(np.float64, (2,), at_least=0.5 * _LEAST_SCALE, at_most=_LARGEST_SCALE),
            "saga/numbers": Field(np.float64, (4,), **any_number),
            "saga/heights": Field(np.float64, (2,), at_most=math.inf),
            "saga/size": Field(float, at_least=5e-324),
        }

    def resume(self, values: State) -> None:
        """Continue from what `read` returned."""
        for name, array in zip(Memory._fields, self._memory, strict=True):
            array[...] = values[f"saga/{name}"]
        self._kept[:] = values["saga/kept"]
        self._in_order = values["saga/in_order"]
        self._height, self._promised = map(float, values["saga/heights"])
        if values["saga/surveyed"]:
            self._survey = self._problem._survey(values["saga/x"].ravel())
        if not np.isnan(values["saga/measured"]).any():
            self._iterates.x[:] = values["saga/measured"]
            self._measure(math.inf)
        self._scale, self._widest = map(float, values["saga/scales"])
        self._most, self._margin, self._limit, self._last = map(float, values["saga/numbers"])
        self._rates = self._rates_of(self.size * self._scale)

    # --- their parts --------------------------------------------------------------------------

    def _steps(self, step: int, count: int) -> int:
        """Make steps until one is not finite; return how many were."""
        sampler, buffers, model = self._sampler, self._buffers, self._problem._model
        if can_learn(sampler._compiled()) and not sampler.follows_path:
            with sampler._lock:
                done: int = advance(
                    sampler._compiled(),
                    model,
                    self._metric,
                    self._memory,
                    self._rates,
                    (sampler.n, sampler._steps, step, count),
                    sampler._source,
                    sampler._moments,
                    buffers,
                    self._scratch,
                )
                sampler._steps += min(done + 1, count)
            return done
        for done in range(count):
            batch = sampler.sample()
            for own, drawn in zip(buffers[:3], (batch.indices, batch.probabilities, batch.weights), strict=True):
                own[:] = drawn
            before = self._memory.x.copy() if sampler.follows_path else self._memory.x
            if not step_by(
                model.matrix.dense,
                model.matrix.sparse,
                model,
                self._metric,
                self._memory,
                self._rates,
                step + done,
                buffers,
                self._scratch,
            ):
                return done
            sampler.update(batch.indices, buffers.norms)
            if sampler.follows_path:
                sampler.move(float(np.linalg.norm(self._memory.x - before)))  # type: ignore[attr-defined]  # only these have it
        return count

    def _pass_in_order(self) -> None:
        """Move to the minimum of a sample that the gradient of all rows corrects."""
        if self._survey is None:
            self._look()
        if self._in_order:
            assert self._survey is not None
            self._kept[:] = self._memory.x
            x, self._promised = corrected_minimum(self._problem, self._iterates.x, self._survey, self._metric.lengths)
            self._move(x)

    def _look(self) -> None:
        """Survey all examples. If the objective has not fallen as the last pass promised, it was the last in order."""
        before = self._height
        self._see()
        if not before - self._height >= _KEPT * self._promised:
            self._in_order = False
            if not self._height < before:
                self._move(self._kept.ravel())
                self._see()

    def _see(self) -> None:
        self._survey = self._problem._survey(self._iterates.x)
        self._fill_table(self._survey)
        self._last, self._height = self._estimate(), self._survey.loss + self._problem._penalty(self._iterates.x)

    def _move(self, x: Vector) -> None:
        self._iterates.x[:] = x
        self._memory.x[:] = x.reshape(self._memory.x.shape)
        self._survey = None

    def _retreat(self, step: int) -> None:
        """Return to the iterate of the last check, with its slopes, and halve the step.

        If curvatures were measured, they were too small: all are what they were before instead.
        """
        memory = self._memory
        memory.x[:] = self._kept
        memory.since[:] = step
        memory.noise[0] = 0.0
        self._iterates.x[:] = self._kept.ravel()
        self._fill_table()
        if np.isnan(self._measured).any():
            self._set_scale(0.5 * self._scale)
        else:
            self._scale = min(self._scale, 1.0)
            self._bend_by(bends_of(self._problem))
            self._measured[:] = np.nan
        self._limit = _GROWTH * max(math.sqrt(2.0 * self._scale_of_objective), self._estimate())
        self._last = 0.0

    def _fill_table(self, survey: Survey | None = None) -> None:
        """Set the table to the slopes at the iterate, and G to the gradient."""
        survey = self._problem._survey(self._iterates.x) if survey is None else survey
        self._memory.table[:] = survey.slopes
        gradient = survey.gradient.reshape(self._memory.x.shape)
        self._memory.sums[:] = np.vstack([gradient, gradient])

    def _first_moments(self) -> float:
        """The sum over an epoch of the second moments of uniform sampling at the first iterate, with an empty table."""
        slopes = self._memory.table
        if not self._iterates.x.any():  # all outputs are 0: no need to read X
            slopes = np.empty_like(slopes)
            slopes_into(*self._problem._terms(slice(None)), np.zeros_like(slopes), slopes)
        squares = np.einsum("ij,ij->i", slopes, slopes) * self._metric.lengths.astype(np.float64) ** 2
        return float(self.period * self._problem.n * squares.sum())

    def _set_slopes(self, x: Vector, table: Vector) -> None:
        problem = self._problem
        for part, outputs, _ in problem._outputs(x.reshape(self._memory.x.shape)):
            slopes_into(*problem._terms(part), outputs, table[part])

    def _measure(self, less: float) -> None:
        """Take the curvatures at the iterate for the metric and the step, if their sum is less than before."""
        problem = self._problem
        bends = bends_of(problem, problem._survey(self._iterates.x).curvatures)
        bend = float(bends.sum())
        if bend < less * self._bend:
            self._scale = min(self._scale, max(1.0, self._scale * bend / self._bend))  # it made up for the same
            self._measured[:] = self._iterates.x
            self._bend_by(bends)
            self._last = self._estimate()
            self._limit = _GROWTH * self._last

    def _bend_by(self, bends: Vector) -> None:
        """Set the metric and the step for the curvature of each example."""
        self._bend, before = float(bends.sum()), self._metric.lengths
        self._metric = metric_of(self._problem, bends)
        self._most *= float(self._metric.lengths @ self._metric.lengths) / max(float(before @ before), 1e-300)
        self.size, self._largest = step_size_of(self._problem, self._metric, bends, self._sampler.batch_size)
        self._rates = self._rates_of(self.size * self._scale)

    def _estimate(self) -> float:
        """The length of the gradient as the table has it."""
        return self._length(self._memory.sums[: self._problem.outputs].ravel())

    def _rates_of(self, size: float) -> Rates:
        width = self._problem.width
        l1, l2 = self._problem._l1[:width], self._problem._l2[:width]
        sizes = size * self._metric.inverse
        shrink, decay = 1.0 / (1.0 + sizes * l2), np.log1p(sizes * l2)
        if self._columns is not None:
            self._columns[:, -4:] = np.column_stack([sizes, shrink, decay, l2])
            sizes, shrink, decay, l2 = self._columns[:, -4:].T
        return Rates(sizes, size * self._metric.inverse * l1, shrink, decay, l1, l2, np.array([size]))

    def _length(self, gradient: Vector) -> float:
        """The length of a gradient of the losses in the metric, with the penalty's added."""
        whole = self._problem._subgradient(self._iterates.x, gradient).reshape(self._memory.x.shape)
        if len(self._metric.shift):
            whole = whole - whole[:, -1:] * self._metric.shift
        if len(self._metric.matrix):
            return math.sqrt(max(float((whole * (whole @ self._metric.matrix)).sum()), 0.0))
        square = float((whole**2 @ self._metric.inverse).sum())
        if len(self._metric.basis):
            square -= float(((whole @ self._metric.basis.T) ** 2).sum())
        return math.sqrt(max(square, 0.0))
