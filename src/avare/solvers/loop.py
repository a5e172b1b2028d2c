"""The loop that all solvers share: chunks of steps, with evaluations, progress and Ctrl-C between them."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._state import (
    Field,
    State,
    checksum,
    generator_to_text,
    plain,
    read,
    refuse_unless,
    require_checksum,
    require_same,
)
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.samplers.kernels import can_learn
from avare.schedules import Schedule, constant
from avare.solvers.interrupt import Interrupt
from avare.solvers.steps import NEVER, Compiled, Iterates, Settings, advance_plainly, pace
from avare.solvers.trace import COLUMNS, Trace, row, table

StepSize: TypeAlias = Schedule | float | Callable[[int], float]

_FORMAT = 2  # of the state; raise it when the meaning of the state changes
_WITHOUT_CHECKSUM = 1  # an earlier format, which is still read
_SAMPLER = "sampler/"  # before the names of the sampler's fields
_CHUNK_SECONDS = 0.05  # the length of a chunk: after it, check for Ctrl-C
_LARGEST_CHUNK = 1 << 16  # in steps
_MOST_NOISE = 1 << 20  # how many numbers to draw for a chunk at most


class DivergenceWarning(RuntimeWarning):
    """The iterates diverged.

    >>> import warnings
    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 2.0], l2=1.0)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     run = avare.sgd(problem, avare.Uniform(2, 1, seed=0), 1e9, epochs=100)
    >>> caught[0].category.__name__, run.status
    ('DivergenceWarning', 'diverged')
    """


class Progress:
    """Where a run is: what a callback of `avare.sgd` and `avare.sgld` receives after each evaluation.

    Attributes
    ----------
    step
        Number of steps so far.
    epoch
        The same in epochs of ``n // batch_size`` steps: exactly 2.0 after two epochs.
    x
        The current iterate, read-only. Copy it to keep it.
    sampler
        The sampler; a callback may read it, and must not draw from it.
    chain
        Number of the chain, counted from 0; 0 for `avare.sgd`.
    trace
        All evaluations so far, as ``run.trace``.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> problem = avare.problems.LeastSquares(np.eye(5), np.ones(5))
    >>> run = avare.sgd(problem, avare.Uniform(5, 2, seed=0), 0.1, epochs=9, callback=lambda now: now.epoch >= 2)
    >>> run.status, run.trace.epoch[-1]
    ('stopped', np.float64(2.0))
    """

    def __init__(self, loop: "Loop", chain: int) -> None:
        self._loop = loop
        self.step: int = loop.step
        self.epoch: float = loop.epoch
        self.x: Vector = loop.iterates.x.view()
        self.x.flags.writeable = False
        self.average: Vector = loop.x.view()
        """The average of the iterates if averaging has begun, otherwise the current iterate, read-only."""
        self.average.flags.writeable = False
        self.sampler: Sampler = loop.sampler
        self.chain: int = chain

    @property
    def trace(self) -> Trace:
        """All evaluations so far."""
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

    def read(self, state: Mapping[str, Any], step: int) -> State:
        """Return what `resume` takes from a saved state, or raise a ``ValueError``. Nothing changes."""

    def resume(self, values: State) -> None:
        """Continue from what `read` returned."""


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
        average_power: float = 0.0,
        adapt_until: int = 0,
        first_move: float = 0.0,
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
        mean = np.zeros(problem.dim if average_from < NEVER else 0)
        self.iterates = Iterates(x, mean, np.empty((kept, problem.dim)))
        if adapt_until:
            self.iterates = self.iterates._replace(origin=x.copy(), path=np.array([first_move, 0.0]))
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
        self._settings = Settings(problem._l2, average_from, average_power, burn_in, thin, adapt_until)
        self._chunk = 1
        self._began = (time.perf_counter(), 0)
        self._drawn = sampler.steps  # when this loop ended

    @property
    def epoch(self) -> float:
        """The number of steps so far, in epochs of n // batch size steps."""
        return self.step / max(1, self.problem.n // self.sampler.batch_size)

    @property
    def trace(self) -> Trace:
        """All evaluations so far."""
        return table(self.rows)

    @property
    def x(self) -> Vector:
        """The average of the iterates if averaging has begun, otherwise the last iterate."""
        return self.iterates.mean if self.step > self._settings.average_from else self.iterates.x

    def step_size(self, step: int) -> float:
        """Return the size of a step; if sizes adapt, what it would be if it were the next one."""
        size = float(self._sizes(max(step, 1), 1)[0])
        return size * float(pace(self.iterates.path)) if len(self.iterates.path) else size

    def seconds_left(self) -> float:
        """Estimate the remaining time, evaluations included, from the time so far."""
        began, first = self._began
        return (time.perf_counter() - began) / max(self.step - first, 1) * (self.steps - self.step)

    def kept(self, step: int | None = None) -> int:
        """Return the number of iterates that are kept after a step, by default the present one."""
        return max(0, (self.step if step is None else step) - self._settings.burn_in) // self._settings.thin

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
            done = advance_plainly(self.problem, self.sampler, self._settings, self.iterates, self.step, sizes)
        taken = time.perf_counter() - started
        self.step += done
        if count:
            self.seconds += taken
            most = _LARGEST_CHUNK if self.noise is None else max(1, _MOST_NOISE // self.problem.dim)
            wanted = int(count * _CHUNK_SECONDS / max(taken, 1e-9))
            self._chunk = min(max(1, wanted), 2 * self._chunk, most)
        if done < count:
            self._diverge(first + done, "the gradient")
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
                self._diverge(self.step, what)
                return True
        if self._callback is not None and self._callback(Progress(self, self._chain)):
            self._end("stopped", f"stopped by the callback after step {self.step} of {self.steps}")
            return True
        return False

    def _diverge(self, step: int, what: str) -> None:
        size = f"{self.step_size(step):.6g}"
        self._end("diverged", f"diverged at step {step}, of size {size}: {what} is not finite; use smaller steps")

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
        x, mean, draws, origin, path = self.iterates
        state = {
            **self._expected(),
            "step": self.step,
            "seconds": self.seconds,
            "x": x.copy(),
            "mean": mean.copy(),
            "draws": draws[: self.kept()].copy(),
            "rows": np.array(self.rows, dtype=np.float64).reshape(len(self.rows), len(COLUMNS)),
        }
        if len(path):
            state |= {"origin": origin.copy(), "path": path.copy()}
        if self.noise is not None:
            state["noise"] = generator_to_text(self.noise)
        if self._method is not None:
            state |= self._method.state()
        state.update({_SAMPLER + key: value for key, value in self.sampler.state_dict().items()})
        return {**state, "checksum": _checksum(state)}

    def read(self, state: Mapping[str, Any]) -> tuple[State, State]:
        """Return what `resume` takes from a saved state, or raise a ``ValueError``. Nothing changes."""
        own = {key: plain(value) for key, value in state.items() if not key.startswith(_SAMPLER)}
        expected = self._expected()
        if isinstance(own.get("format"), int) and own["format"] == _WITHOUT_CHECKSUM:
            expected["format"] = _WITHOUT_CHECKSUM
            if expected["average_power"] == 0.0 and "average_power" not in own:
                del expected["average_power"]  # all steps had the same weight then
        require_same(own, expected, "resume", "this run")
        values = read(own, self._fields(), "resume")
        kept = (self.kept(values["step"]), self.problem.dim)
        values["draws"] = Field(np.float64, kept).read(own, "draws", "resume")
        steps = values["rows"][:, 0]
        are_steps = (steps >= 0) & (steps <= values["step"]) & (steps == np.floor(steps))
        refuse_unless(are_steps, steps, "resume['rows'][:, 0]", f"must be a step up to {values['step']}")
        if self._method is not None:
            values["method"] = self._method.read(own, values["step"])
        if expected["format"] != _WITHOUT_CHECKSUM:
            if "checksum" not in own:
                raise ValueError("resume lacks 'checksum': it is damaged")
            require_checksum(own, _checksum(state), "resume")
        of_sampler = {key.removeprefix(_SAMPLER): each for key, each in state.items() if key.startswith(_SAMPLER)}
        sampler = self.sampler._read(of_sampler)
        if sampler["steps"] < values["step"]:
            raise ValueError(
                f"resume['step'] = {values['step']}: the sampler has drawn only {sampler['steps']} batches"
            )
        return values, sampler

    def resume(self, values: State, sampler: State) -> None:
        """Continue from what `read` returned."""
        with self.sampler._lock:
            self.sampler._replace(sampler)
        if self._method is not None:
            self._method.resume(values["method"])  # before the iterate, which it may overwrite
        self.step, self.seconds, self.noise = values["step"], values["seconds"], values.get("noise")
        self.iterates.x[:] = values["x"]
        self.iterates.mean[:] = values["mean"]
        if len(self.iterates.path):
            self.iterates.origin[:], self.iterates.path[:] = values["origin"], values["path"]
        self.iterates.draws[: len(values["draws"])] = values["draws"]
        self.rows = [(int(each[0]), *(float(value) for value in each[1:])) for each in values["rows"]]

    def _expected(self) -> State:
        """Return what must be the same in a state."""
        return {
            "format": _FORMAT,
            "dim": self.problem.dim,
            "n": self.problem.n,
            "burn_in": self._settings.burn_in,
            "thin": self._settings.thin,
            "average_from": self._settings.average_from,
            "average_power": self._settings.average_power,
            **({"adapt_until": self._settings.adapt_until} if len(self.iterates.path) else {}),
        }

    def _fields(self) -> dict[str, Field]:
        """Declare what else a state has, except the draws, whose number depends on the step."""
        anything = {"at_least": -math.inf, "at_most": math.inf, "also": math.nan}
        fields = {
            "step": Field(int, at_least=0, at_most=self.steps),
            "seconds": Field(float, at_least=0.0),
            "x": Field(np.float64, (self.problem.dim,)),
            "mean": Field(np.float64, self.iterates.mean.shape),
            "rows": Field(np.float64, (None, len(COLUMNS)), **anything),
        }
        if len(self.iterates.path):
            fields |= {"origin": fields["x"], "path": Field(np.float64, (2,), at_least=0.0)}
        return fields if self.noise is None else {**fields, "noise": Field(np.random.Generator)}


def _checksum(state: Mapping[str, Any]) -> int:
    """The checksum of a run's own fields; the sampler's state has its own, which is used for it."""
    own = {key: plain(each) for key, each in state.items() if not key.startswith(_SAMPLER) and key != "checksum"}
    return checksum({**own, "sampler": plain(state.get(_SAMPLER + "checksum"))})


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
        values = _numbers(found if isinstance(found, np.ndarray) else list(found), steps)
        faults = np.flatnonzero(~((values >= 0.0) & (values < math.inf)))
        if faults.size:
            raise ValueError(f"step_size({steps[faults[0]]}) = {values[faults[0]]}: must be finite and not negative")
        return values

    return sizes


def _numbers(found: Any, steps: range) -> Vector:
    """Return what a step-size function gave, one number for each step, or raise an error."""
    try:
        values = validation.real("step_size", found)
        if values.shape == (len(steps),):
            return values
        raise TypeError
    except (TypeError, ValueError):
        sample = f"step_size({steps[0]}) = {found[0]!r}" if len(found) else "step_size is empty"
        raise TypeError(f"{sample}: must be one number for each step") from None
