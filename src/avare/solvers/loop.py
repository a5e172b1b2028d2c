"""The loop that SGD and SGLD share: chunks of steps, and between them all that looks at them."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

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

_FORMAT = 1  # of the state; to be raised when its meaning changes
_CHUNK_SECONDS = 0.05  # after which to look for Ctrl-C
_LARGEST_CHUNK = 1 << 16  # steps
_MOST_NOISE = 1 << 20  # numbers drawn ahead


class DivergenceWarning(RuntimeWarning):
    """The iterates went to infinity."""


class Progress:
    """What a callback is told, after each evaluation."""

    def __init__(self, loop: "Loop", chain: int) -> None:
        self._loop = loop
        self.step: int = loop.step
        self.epoch: float = loop.epoch
        self.x: Vector = loop.iterates.x.view()
        """The current iterate; read-only."""
        self.x.flags.writeable = False
        self.sampler: Sampler = loop.sampler
        self.chain: int = chain

    @property
    def trace(self) -> Trace:
        """All rows so far."""
        return self._loop.trace


Callback: TypeAlias = Callable[[Progress], bool | None]


class Loop:
    """One run or chain: what it has, and how it goes on."""

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
    ) -> None:
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
        self._compiled = None
        if isinstance(problem, Linear) and can_learn(sampler._compiled()) and not sampler.follows_path:
            self._compiled = Compiled(problem, sampler, self.iterates)
        self._settings = Settings(problem.l2, average_from, burn_in, thin)
        self._chunk = 1
        self._began = (time.perf_counter(), 0)
        self._drawn = sampler.steps  # at the end

    @property
    def epoch(self) -> float:
        """Draws so far, in passes over the data."""
        return self.step * self.sampler.batch_size / self.problem.n

    @property
    def trace(self) -> Trace:
        """All evaluations so far."""
        return table(self.rows)

    @property
    def x(self) -> Vector:
        """The average, where one is being made, or else the iterate."""
        return self.iterates.mean if self.step > self._settings.average_from else self.iterates.x

    def seconds_left(self) -> float:
        """How long the rest will take, evaluations included, if it goes on as it has since it began."""
        began, first = self._began
        return (time.perf_counter() - began) / max(self.step - first, 1) * (self.steps - self.step)

    def kept(self) -> int:
        """How many iterates have been kept."""
        return max(0, self.step - self._settings.burn_in) // self._settings.thin

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is found, and told as divergence
    def run(self, interrupt: Interrupt, say: Callable[["Loop"], None]) -> None:
        """Go on until the end, or until something stops it."""
        self.sampler._follow(lambda: self.problem._norms(self.iterates.x))
        self._began = (time.perf_counter(), self.step)
        try:
            self._advance(0)  # compiles what is to be timed
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
                if not self._advance(min(self._chunk, until - self.step)):
                    return
                say(self)
        finally:
            self.sampler._follow(None)
            self._drawn = self.sampler.steps

    def _advance(self, count: int) -> bool:
        """Go some steps; return whether all could be gone."""
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
        """Add a row; return whether that is the end."""
        x, iterate = self.x, self.iterates.x
        measures = self.problem.evaluate(iterate, self.sampler.probabilities())
        if x is not iterate:
            measures = (self.problem.objective(x), *measures[1:])
        regret = self.rows[-1][8] if self.rows else 0.0
        self.rows.append(row(self.step, self.epoch, self.seconds, measures, self._optimum, regret, self.sampler.gain))
        # An objective that is not a number may not have been given; norms always are there.
        for what, value in (("the objective", measures[0]), ("the sum of norms", measures[1])):
            if math.isinf(value) or (math.isnan(value) and what != "the objective"):
                self._diverge(self.step, float(self._sizes(max(self.step, 1), 1)[0]), what)
                return True
        if self._callback is not None and self._callback(Progress(self, self._chain)):
            self._end("stopped", f"stopped by the callback after step {self.step} of {self.steps}")
            return True
        return False

    def _diverge(self, step: int, size: float, what: str) -> None:
        self._end("diverged", f"diverged at step {step}, of size {size:.6g}: {what} is not finite; take smaller steps")

    def _end(self, status: str, message: str) -> None:
        self.status, self.message = status, message

    # --- saved and taken up again ---------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All it takes to go on: numbers, text and arrays."""
        if self.sampler.steps != self._drawn:
            raise ValueError(f"the sampler has drawn {self.sampler.steps - self._drawn} batches since this ended")
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
        return {**state, **{f"sampler/{key}": value for key, value in self.sampler.state_dict().items()}}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; one that does not fit is a ``ValueError``, and nothing has changed."""
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
            raise ValueError("resume holds arrays of other sizes than this run's: it is damaged")
        prefix = "sampler/"
        self.sampler.load_state_dict(
            {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        )
        self.step, self.seconds, self.noise = int(fields["step"]), float(fields["seconds"]), noise
        self.iterates.x[:] = x
        self.iterates.mean[:] = mean
        self.iterates.draws[:kept] = fields["draws"]
        self.rows = [(int(each[0]), *(float(value) for value in each[1:])) for each in fields["rows"]]


def checked_pair(problem: Any, sampler: Any) -> None:
    """A problem and a sampler of the same size."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem is of type {type(problem).__name__}: must be one of avare.problems")
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler is of type {type(sampler).__name__}: must be one of avare.samplers")
    if problem.n != sampler.n:
        raise ValueError(f"sampler has n = {sampler.n}: must match the problem's {problem.n}")


def _step_sizes(step_size: StepSize) -> Callable[[int, int], Vector]:
    """The sizes of some steps from a given one on."""
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
