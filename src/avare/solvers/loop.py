"""The loop that SGD and SGLD share: chunks of steps, with evaluations, progress and Ctrl-C between them."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._state import generator_from_text, generator_to_text, plain
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.samplers.kernels import can_learn
from avare.schedules import Schedule, constant
from avare.solvers.interrupt import Interrupt
from avare.solvers.steps import NEVER, Compiled, Iterates, Settings, advance_plainly
from avare.solvers.trace import COLUMNS, Trace, row, table

StepSize: TypeAlias = Schedule | float | Callable[[int], float]

_FORMAT = 1  # of the state; raise it when the meaning of the state changes
_CHUNK_SECONDS = 0.05  # the length of a chunk: after it, check for Ctrl-C
_LARGEST_CHUNK = 1 << 16  # in steps
_MOST_NOISE = 1 << 20  # how many numbers to draw for a chunk at most


class DivergenceWarning(RuntimeWarning):
    """The iterates diverged."""


class Progress:
    """The argument of a callback, after each evaluation."""

    def __init__(self, loop: "Loop", chain: int) -> None:
        self._loop = loop
        self.step: int = loop.step
        self.epoch: float = loop.epoch
        self.x: Vector = loop.iterates.x.view()
        """The current iterate, read-only."""
        self.x.flags.writeable = False
        self.sampler: Sampler = loop.sampler
        self.chain: int = chain

    @property
    def trace(self) -> Trace:
        """All rows so far."""
        return self._loop.trace


Callback: TypeAlias = Callable[[Progress], bool | None]


class Method(Protocol):
    """Steps of another kind than those of SGD, with a memory of their own."""

    period: int
    """After how many steps to call `check`, again and again."""

    def advance(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""

    def check(self, step: int) -> str | None:
        """Return why the iterates have converged, if they have."""

    def norms(self) -> Vector:
        """Return the true norms that the sampler would learn."""

    def state(self) -> dict[str, Any]:
        """Return what else to save."""

    def restore(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Return a function that restores it, or raise a ``ValueError``: nothing has changed yet."""


class Loop:
    """One run or chain: its state, and how to advance it."""

    def __init__(
        self,
        problem: Problem,
        sampler: Sampler,
        step_size: StepSize,
        *,
        steps: int,
        evaluations: NDArray[np.int64],
        optimum: float | None,
        start: ArrayLike | None,
        average_from: int = NEVER,
        burn_in: int = NEVER,
        thin: int = 1,
        noise: np.random.Generator | None = None,
        callback: Callback | None = None,
        chain: int = 0,
        method: Callable[[Iterates], Method] | None = None,
    ) -> None:
        if problem.l1 > 0.0 and method is None:
            raise ValueError(f"problem has l1 = {problem.l1}: use avare.saga, which takes a proximal step")
        self.problem, self.sampler, self.steps, self.noise = problem, sampler, steps, noise
        self._sizes = _step_sizes(step_size)
        self._evaluations = evaluations
        self._optimum = problem.optimum if optimum is None else validation.number("optimum", optimum)
        self._callback, self._chain = callback, chain
        x = np.zeros(problem.dim) if start is None else problem.vector("start", start).copy()
        kept = max(0, steps - burn_in) // thin
        self.iterates = Iterates(x, np.zeros(problem.dim if average_from < NEVER else 0), np.empty((kept, problem.dim)))
        self.step = 0
        self.seconds = 0.0
        self.status = "finished"
        self.message = ""
        self.rows: list[tuple[float, ...]] = []
        self._method = None if method is None else method(self.iterates)
        self._compiled: Method | Compiled | None = self._method
        compiles = isinstance(problem, Linear) and can_learn(sampler._compiled()) and not sampler.follows_path
        if self._method is None and isinstance(problem, Linear) and compiles:
            self._compiled = Compiled(problem, sampler, self.iterates)
        self._settings = Settings(problem._l2, average_from, burn_in, thin)
        self._chunk = 1
        self._began = (time.perf_counter(), 0)
        self._drawn = sampler.steps  # when this loop ended

    @property
    def epoch(self) -> float:
        """The number of draws so far, in passes over the data."""
        return self.step * self.sampler.batch_size / self.problem.n

    @property
    def trace(self) -> Trace:
        """All evaluations so far."""
        return table(self.rows)

    @property
    def x(self) -> Vector:
        """The average of the iterates if averaging has begun, otherwise the last iterate."""
        return self.iterates.mean if self.step > self._settings.average_from else self.iterates.x

    def seconds_left(self) -> float:
        """Estimate the remaining time, evaluations included, from the time so far."""
        began, first = self._began
        return (time.perf_counter() - began) / max(self.step - first, 1) * (self.steps - self.step)

    def kept(self) -> int:
        """Return the number of kept iterates."""
        return max(0, self.step - self._settings.burn_in) // self._settings.thin

    @np.errstate(over="ignore", invalid="ignore")  # an overflow is reported as divergence
    def run(self, interrupt: Interrupt, say: Callable[["Loop"], None]) -> None:
        """Advance to the last step, or until something stops it."""
        method = self._method
        self.sampler._follow(lambda: self.problem._norms(self.iterates.x) if method is None else method.norms())
        self._began = (time.perf_counter(), self.step)
        try:
            self._advance(0)  # compiles, outside the measured time
            while True:
                if self._is_due() and self._evaluate():
                    return
                if self.step == self.steps:
                    return
                if interrupt.wished:
                    self._end("interrupted", f"interrupted after step {self.step} of {self.steps}")
                    return
                later = self._evaluations[np.searchsorted(self._evaluations, self.step, side="right") :]
                until = int(later[0]) if len(later) else self.steps
                if method is not None:
                    until = min(until, self.step - self.step % method.period + method.period)
                if not self._advance(min(self._chunk, until - self.step)):
                    return
                say(self)
                converged = method.check(self.step) if method and self.step % method.period == 0 else None
                if converged is not None:
                    self._end("converged", converged)
                    if self._is_due():
                        self._evaluate()
                    return
        finally:
            self.sampler._follow(None)
            self._drawn = self.sampler.steps

    def _advance(self, count: int) -> bool:
        """Make a number of steps; return whether all were finite."""
        first = self.step + 1
        started = time.perf_counter()
        sizes = self._sizes(first, count)
        noise = np.empty((0, self.problem.dim))
        if self.noise is not None:
            noise = self.noise.standard_normal((count, self.problem.dim))
        if self._compiled is not None:
            done = self._compiled.advance(self._settings, self.step, sizes, noise)
        else:
            done = advance_plainly(self.problem, self.sampler, self._settings, self.iterates, self.step, sizes, noise)
        taken = time.perf_counter() - started
        self.step += done
        if count:
            self.seconds += taken
            most = _LARGEST_CHUNK if self.noise is None else max(1, _MOST_NOISE // self.problem.dim)
            wanted = int(count * _CHUNK_SECONDS / max(taken, 1e-9))
            self._chunk = min(max(1, wanted), 2 * self._chunk, most)
        if done < count:
            self._diverge(first + done, float(sizes[done]), "the gradient")
        return done == count

    def _is_due(self) -> bool:
        place = int(np.searchsorted(self._evaluations, self.step))
        due = place < len(self._evaluations) and self._evaluations[place] == self.step
        return due and (not self.rows or self.rows[-1][0] < self.step)

    def _evaluate(self) -> bool:
        """Add a row to the trace; return whether to stop."""
        x, iterate = self.x, self.iterates.x
        measures = self.problem.evaluate(iterate, self.sampler.probabilities())
        if x is not iterate:
            measures = (self.problem.objective(x), *measures[1:])
        regret = self.rows[-1][8] if self.rows else 0.0
        self.rows.append(row(self.step, self.epoch, self.seconds, measures, self._optimum, regret, self.sampler.gain))
        # The objective is NaN if the problem has none; norms always exist.
        for what, value in (("the objective", measures[0]), ("the sum of norms", measures[1])):
            if math.isinf(value) or (math.isnan(value) and what != "the objective"):
                self._diverge(self.step, float(self._sizes(max(self.step, 1), 1)[0]), what)
                return True
        if self._callback is not None and self._callback(Progress(self, self._chain)):
            self._end("stopped", f"stopped by the callback after step {self.step} of {self.steps}")
            return True
        return False

    def _diverge(self, step: int, size: float, what: str) -> None:
        self._end("diverged", f"diverged at step {step}, of size {size:.6g}: {what} is not finite; use smaller steps")

    def _end(self, status: str, message: str) -> None:
        self.status, self.message = status, message

    # --- save and resume ------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume: numbers, text and arrays."""
        if self.sampler.steps != self._drawn:
            raise ValueError(
                f"the sampler has drawn {self.sampler.steps - self._drawn} batches since this run ended: "
                "call state_dict() before it draws again"
            )
        x, mean, draws = self.iterates
        state = {
            "format": _FORMAT,
            "dim": self.problem.dim,
            "n": self.problem.n,
            "step": self.step,
            "seconds": self.seconds,
            "x": x.copy(),
            "mean": mean.copy(),
            "draws": draws[: self.kept()].copy(),
            "rows": np.array(self.rows, dtype=np.float64).reshape(len(self.rows), len(COLUMNS)),
            "burn_in": self._settings.burn_in,
            "thin": self._settings.thin,
            "average_from": self._settings.average_from,
        }
        if self.noise is not None:
            state["noise"] = generator_to_text(self.noise)
        if self._method is not None:
            state |= self._method.state()
        return {**state, **{f"sampler/{key}": value for key, value in self.sampler.state_dict().items()}}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. One that does not fit raises a ``ValueError``, and nothing has changed."""
        fields = {key: plain(value) for key, value in state.items()}
        expected = {
            "format": _FORMAT,
            "dim": self.problem.dim,
            "n": self.problem.n,
            "burn_in": self._settings.burn_in,
            "thin": self._settings.thin,
            "average_from": self._settings.average_from,
        }
        needed = [*expected, "step", "seconds", "x", "mean", "draws", "rows"]
        for key in needed if self.noise is None else [*needed, "noise"]:
            if key not in fields:
                raise ValueError(f"resume lacks {key!r}: it is damaged, or not the state of such a run")
        for key, own in expected.items():
            if fields[key] != own:
                raise ValueError(f"resume[{key!r}] = {fields[key]!r}: this run has {own!r}")
        if not 0 <= fields["step"] <= self.steps:
            raise ValueError(f"resume['step'] = {fields['step']}: this run has {self.steps} steps")
        noise = None if self.noise is None else generator_from_text(fields["noise"])
        x, mean = self.problem.vector("resume['x']", fields["x"]), fields["mean"]
        kept = max(0, int(fields["step"]) - self._settings.burn_in) // self._settings.thin
        if mean.shape != self.iterates.mean.shape or fields["draws"].shape != (kept, self.problem.dim):
            raise ValueError("resume has arrays whose shapes do not fit this run: it is damaged")
        restore = None if self._method is None else self._method.restore(fields)
        prefix = "sampler/"
        self.sampler.load_state_dict(
            {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        )
        if restore is not None:
            restore()
        self.step, self.seconds, self.noise = int(fields["step"]), float(fields["seconds"]), noise
        self.iterates.x[:] = x
        self.iterates.mean[:] = mean
        self.iterates.draws[:kept] = fields["draws"]
        self.rows = [(int(each[0]), *(float(value) for value in each[1:])) for each in fields["rows"]]


def checked_pair(problem: Any, sampler: Any) -> None:
    """Raise an error unless the arguments are a problem and a sampler of the same size."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem is of type {type(problem).__name__}: must be one of avare.problems")
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler is of type {type(sampler).__name__}: must be one of avare.samplers")
    if problem.n != sampler.n:
        raise ValueError(f"sampler has n = {sampler.n}: must match the problem's {problem.n}")


def _step_sizes(step_size: StepSize) -> Callable[[int, int], Vector]:
    """Return a function of (first, count) that gives the sizes of steps."""
    if isinstance(step_size, int | float | np.floating) and not isinstance(step_size, bool):
        step_size = constant(validation.number("step_size", step_size, above=0.0))
    if not callable(step_size):
        raise TypeError(f"step_size = {step_size!r}: must be a number, a schedule, or a function of the step")
    schedule: Callable[[Any], Any] = step_size

    def sizes(first: int, count: int) -> Vector:
        if count == 0:
            return np.empty(0)
        steps = range(first, first + count)
        found = schedule(np.arange(first, first + count)) if isinstance(schedule, Schedule) else map(schedule, steps)
        values = np.array(list(found), dtype=np.float64) if not isinstance(found, np.ndarray) else found
        faults = np.flatnonzero(~((values >= 0.0) & (values < math.inf)))
        if faults.size:
            raise ValueError(f"step_size({steps[faults[0]]}) = {values[faults[0]]}: must be finite and not negative")
        return np.asarray(values, dtype=np.float64)

    return sizes
