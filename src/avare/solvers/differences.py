"""The steps of SAGA as a loop takes them: their memory, how they adapt, when they have converged."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from avare._state import Field, State, read
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.problems.matrix import BLOCK
from avare.samplers.base import Sampler
from avare.samplers.kernels import can_learn
from avare.solvers.metric import Metric, bends_of, metric_of, step_size_of
from avare.solvers.saga_kernels import (
    Buffers,
    Memory,
    Rates,
    advance,
    current,
    slopes_into,
    step_by,
    sum_table,
)
from avare.solvers.steps import Iterates, Settings

_GROWTH = 4.0  # of squared differences or the gradient over those at the start, at which the step is halved
_FIRST_MEASURE, _LESS = 4, 0.7  # when to measure curvatures first, and by how much they must be less to count
_LEAST_SCALE = 1e-9  # of the step, after which it has diverged
_MARGIN = 0.5  # the estimate of the gradient must be this far below the tolerance, at first, to be verified


class Differences:
    """The steps of one run of SAGA, with their memory: a `Method` of the loop."""

    def __init__(
        self,
        problem: Linear,
        sampler: Sampler,
        iterates: Iterates,
        metric: Metric,
        *,
        size: float | None,
        tol: float,
    ) -> None:
        self._problem, self._sampler, self._iterates, self._metric = problem, sampler, iterates, metric
        self._auto, self._tol = size is None, tol
        self._scale = 1.0  # of the step: halved when the differences grow
        self._margin = _MARGIN
        self._measured = np.full(problem.dim, np.nan)  # where the curvatures were measured, if they were
        self._bend = math.inf  # their sum
        self.period = max(1, problem.n // sampler.batch_size)
        shape = (problem.outputs, problem.width)
        sparse = problem._model.matrix.sparse is not None
        self._memory = Memory(
            iterates.x.reshape(shape).copy(),
            np.zeros((2 * problem.outputs, problem.width)),
            np.zeros((problem.n, problem.outputs)),
            np.zeros(problem.width if sparse else 0, dtype=np.int64),
            np.zeros(1),
        )
        self._kept = self._memory.x.copy()  # the iterate at the last check
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
        if size is None:
            bends = bends_of(problem)
            self._bend = float(bends.sum())
            size = step_size_of(problem, metric, bends, sampler.batch_size)
        self.size = size
        self._rates = self._rates_of(size)
        # Half of the squared gradient, in the metric, is about the decrease that is still possible.
        self._scale_of_objective = problem._objective(np.zeros(problem.dim))
        highest = problem._objective(iterates.x) if iterates.x.any() else 0.0
        # The largest that the estimated gradient may become.
        self._limit = _GROWTH * math.sqrt(2.0 * max(self._scale_of_objective, highest))
        self._most = _GROWTH * self._first_moments() if self._auto else math.inf  # the same for the second moments

    # --- the method of a loop -----------------------------------------------------------------

    def advance(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        done, count = 0, len(sizes)
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
        noise = float(memory.noise[0])
        memory.noise[0] = 0.0
        current(memory, self._rates, step, memory.x)
        memory.since[:] = step
        self._iterates.x[:] = memory.x.ravel()
        estimate = self._estimate()
        if self._auto and (noise > self._most or estimate > self._limit):
            self._retreat(step)
            return None
        self._kept[:] = memory.x
        converged = self._converged(step, estimate)
        epoch = step // self.period
        if converged is None and self._auto and epoch >= _FIRST_MEASURE and epoch & (epoch - 1) == 0:
            self._measure(_LESS)
        return converged

    def _converged(self, step: int, estimate: float) -> str | None:
        if self._tol == 0.0:
            return None
        bound = self._tol * math.sqrt(2.0 * self._scale_of_objective)
        if estimate > self._margin * bound:
            return None
        true = self._length(self._problem._gradient(self._iterates.x))
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
            "saga/numbers": np.array([float(self._auto), self._scale, self._most, self._margin, self._limit]),
            "saga/size": np.array([self.size]),
        }

    def read(self, state: Mapping[str, Any], step: int) -> State:
        """Return what `resume` takes from a saved state, or raise a ``ValueError``. Nothing changes."""
        values = read(state, self._fields(step), "resume")
        auto, size = bool(values["saga/numbers"][0]), float(values["saga/size"][0])
        if auto != self._auto or not (self._auto or size == self.size):
            raise ValueError(f"resume was made with step_size = {size}: this run has another")
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
            "saga/kept": Field(np.float64, self._kept.shape),
            "saga/measured": Field(np.float64, self._measured.shape, also=math.nan),
            "saga/numbers": Field(np.float64, (5,), **any_number),
            "saga/size": Field(np.float64, (1,), at_least=5e-324),
        }

    def resume(self, values: State) -> None:
        """Continue from what `read` returned."""
        for name, array in zip(Memory._fields, self._memory, strict=True):
            array[...] = values[f"saga/{name}"]
        self._kept[:] = values["saga/kept"]
        if not np.isnan(values["saga/measured"]).any():
            self._iterates.x[:] = values["saga/measured"]
            self._measure(math.inf)
        _, self._scale, self._most, self._margin, self._limit = map(float, values["saga/numbers"])
        self._rates = self._rates_of(self.size * self._scale)

    # --- their parts --------------------------------------------------------------------------

    def _steps(self, step: int, count: int) -> int:
        """Make steps until one is not finite; return how many were."""
        sampler, buffers = self._sampler, self._buffers
        if can_learn(sampler._compiled()) and not sampler.follows_path:
            with sampler._lock:
                done: int = advance(
                    sampler._compiled(),
                    self._problem._model,
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
                self._problem._model, self._metric, self._memory, self._rates, step + done, buffers, self._scratch
            ):
                return done
            sampler.update(batch.indices, buffers.norms)
            if sampler.follows_path:
                sampler.move(float(np.linalg.norm(self._memory.x - before)))  # type: ignore[attr-defined]
        return count

    def _retreat(self, step: int) -> None:
        """Return to the iterate of the last check, with its slopes, and halve the step."""
        memory = self._memory
        memory.x[:] = self._kept
        self._set_slopes(self._kept, memory.table)
        memory.since[:] = step
        memory.noise[0] = 0.0
        sum_table(self._problem._model, memory, np.arange(self._problem.n), self._buffers.factors, self._scratch)
        memory.sums[self._problem.outputs :] = memory.sums[: self._problem.outputs]
        self._scale *= 0.5
        self._rates = self._rates_of(self.size * self._scale)
        self._iterates.x[:] = memory.x.ravel()

    def _first_moments(self) -> float:
        """The sum over an epoch of the second moments of uniform sampling at the first iterate, with an empty table."""
        slopes = np.empty_like(self._memory.table)
        if self._iterates.x.any():
            self._set_slopes(self._iterates.x, slopes)
        else:  # all outputs are 0: no need to read X
            slopes_into(*self._problem._terms(slice(None)), np.zeros_like(slopes), slopes)
        norms = np.linalg.norm(slopes, axis=1) * self._metric.lengths
        return float(self.period * self._problem.n * (norms @ norms))

    def _set_slopes(self, x: Vector, table: Vector) -> None:
        problem = self._problem
        for part, outputs, _ in problem._outputs(x.reshape(self._memory.x.shape)):
            slopes_into(*problem._terms(part), outputs, table[part])

    def _measure(self, less: float) -> None:
        """Take the curvatures at the iterate for the metric and the step, if their sum is less than before."""
        problem = self._problem
        bends = bends_of(problem, self._iterates.x)
        if float(bends.sum()) < less * self._bend:
            self._bend = float(bends.sum())
            self._measured[:] = self._iterates.x
            before = self._metric.lengths
            self._metric = metric_of(problem, bends)
            self._most *= float(self._metric.lengths @ self._metric.lengths) / max(float(before @ before), 1e-300)
            self.size = step_size_of(problem, self._metric, bends, self._sampler.batch_size)
            self._rates = self._rates_of(self.size * self._scale)
            self._limit = _GROWTH * self._estimate()

    def _estimate(self) -> float:
        """The length of the gradient as the table has it."""
        return self._length(self._memory.sums[: self._problem.outputs].ravel())

    def _rates_of(self, size: float) -> Rates:
        width = self._problem.width
        l1, l2 = self._problem._l1[:width], self._problem._l2[:width]
        sizes = size * self._metric.inverse
        return Rates(sizes, sizes * l1, 1.0 / (1.0 + sizes * l2), np.log1p(sizes * l2), l1, l2, np.array([size]))

    def _length(self, gradient: Vector) -> float:
        """The length of a gradient of the losses in the metric, with the penalty's added."""
        whole = self._problem._subgradient(self._iterates.x, gradient).reshape(self._memory.x.shape)
        if len(self._metric.shift):
            whole = whole - whole[:, -1:] * self._metric.shift
        if len(self._metric.matrix):
            return math.sqrt(max(float((whole * (whole @ self._metric.matrix)).sum()), 0.0))
        return math.sqrt(float((whole**2 @ self._metric.inverse).sum()))
