"""The loop that all solvers share.

A run has three layers, and each exists once:

- **A step** (`avare.solvers.kernels`): an estimator turns a batch into an estimate of the gradient and into the norms
  that the sampler learns; an update turns the estimate into the next iterate. Both are joined at compile time by the
  type of their state.
- **Steps** (`avare.solvers.steps`): draw, estimate, apply, learn, record. One compiled loop for linear models and
  samplers with kernels, and one in Python for all others; both give the same iterates.
- **The loop** (here): chunks of steps, and between them evaluations, callbacks, progress, convergence and Ctrl-C.

A solver is a choice of an estimator and an update: `sgd` is plain and descent, `saga` is table and proximal. `sgld` and
`sghmc` move by their dynamics, with either estimator.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from avare import _validation as validation
from avare._progress import Line
from avare.problems.base import Vector
from avare.samplers.stateful import read_state, replace_state
from avare.solvers.arguments import Sizes
from avare.solvers.checkpoint import Checkpoint, fields_of, part_of, run_checksum, saved
from avare.solvers.kernels import NEVER
from avare.solvers.steps import Steps
from avare.solvers.trace import COLUMNS, TYPE, Row, Trace, evaluation_steps
from avare.state import Field, State, generator_to_text, read, refuse_unless, require_checksum, require_same

_CHUNK_SECONDS = 0.05
"""Length of a chunk, after which the loop looks for Ctrl-C: shorter than a person notices."""
_FIRST_CHUNK, _LARGEST_CHUNK = 16, 1 << 16
"""Steps of the first chunk, if they are compiled, and of any: chunks at most double. Guesses."""
_MOST_NOISE = 1 << 20
"""Normal numbers for a chunk at most: 8 MB."""


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
    """The state of a run: what a callback receives after each evaluation.

    Attributes
    ----------
    step : int
        Number of steps so far.
    epoch : float
        The same in epochs of ``n // batch_size`` steps: exactly 2.0 after two epochs.
    x : ndarray
        The current iterate, read-only. Copy it to keep it.
    average : ndarray
        The average of the iterates if averaging has begun, otherwise the current iterate. Read-only.
    sampler : Sampler
        The sampler; a callback may read it, and must not draw from it.
    chain : int
        Number of the chain, counted from 0; 0 for `avare.sgd`.
    trace : recarray
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

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self.step: int = loop.step
        self.epoch: float = loop.epoch
        self.x: Vector = loop.method.x.view()
        self.average: Vector = loop.x.view()
        for each in (self.x, self.average):
            each.flags.writeable = False
        self.sampler: Any = loop.method.sampler
        self.chain: int = loop.chain

    @property
    def trace(self) -> Trace:
        """All evaluations so far."""
        return self._loop.trace


Callback: TypeAlias = Callable[[Progress], bool | None]


class Monitoring(NamedTuple):
    """How to watch a run: arguments that all solvers have."""

    evaluate: Any = "never"
    progress: bool = False
    callback: Callback | None = None


@dataclass
class Loop:
    """One run or chain: how far it is, and how to advance it."""

    method: Steps
    monitoring: Monitoring
    sizes: Sizes
    """The step sizes."""
    steps: int
    """The number of steps to make."""
    noise: np.random.Generator | None = None
    """Source of standard normal numbers, one per coordinate and step."""
    chain: int = 0
    """Its number among several."""

    def __post_init__(self) -> None:
        validation.boolean("progress", self.monitoring.progress)
        self._evaluations = evaluation_steps(self.monitoring.evaluate, self.steps, self.method.epoch_steps)
        self.step, self.seconds, self.rows = 0, 0.0, list[Row]()
        self.status, self.message = "finished", ""
        self._most = _LARGEST_CHUNK if self.noise is None else max(1, _MOST_NOISE // self.method.problem.dim)
        self._chunk = min(_FIRST_CHUNK, self._most) if self.method.compiled else 1

    @property
    def epoch(self) -> float:
        """How far it is, in epochs."""
        return self.step / self.method.epoch_steps

    @property
    def trace(self) -> Trace:
        """All evaluations so far."""
        return np.array(self.rows, dtype=TYPE).view(np.recarray)

    @property
    def x(self) -> Vector:
        """The average of the iterates if averaging has begun, otherwise the last iterate."""
        record = self.method.record
        return record.mean if self.step > record.average_from else self.method.x

    def draws(self, step: int) -> Vector:
        """Return the iterates that are kept after some steps."""
        record = self.method.record
        return record.draws[: max(0, step - record.burn_in) // record.thin]

    def step_size(self, step: int) -> float:
        """Return the size of a step; if sizes adapt, what it would be if it were the next one."""
        return float(self.sizes(max(step, 1), 1)[0]) * self.method.step_size_factor()

    @property
    def _place(self) -> str:
        return f"step {self.step} of {self.steps}"

    def _describe(self, began: float, first: int) -> str:
        """Describe the progress in one line."""
        left = (time.perf_counter() - began) / max(self.step - first, 1) * (self.steps - self.step)
        objective = f", objective {self.rows[-1].objective:.6g}" if self.rows else ""
        return f"{self._place}{objective}, {left:.0f} s left"

    def run(self, interrupt: threading.Event, line: Line) -> None:
        """Advance to the last step, or until something stops it."""
        method, sampler = self.method, self.method.sampler
        if sampler.needs_all_norms:  # no method of this loop: a copy of the sampler would copy all of it
            sampler.follow(lambda: method.estimator.norms(method.x))  # type: ignore[attr-defined]  # these have it
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # an overflow is reported as divergence
                self._run(interrupt, line)
        except BaseException:
            interrupt.set()  # the other chains end as well
            raise
        finally:
            if sampler.needs_all_norms:
                sampler.follow(None)  # type: ignore[attr-defined]

    def _run(self, interrupt: threading.Event, line: Line) -> None:
        self._advance(0)  # compiles, outside the measured time
        began = (time.perf_counter(), self.step)
        while not (self._until_evaluation() == 0 and self._evaluate()) and self.step < self.steps:
            if interrupt.is_set():
                self.status, self.message = "interrupted", f"interrupted after {self._place}"
                return
            period = self.method.period
            left = min(self._until_evaluation(), self.steps - self.step, period - self.step % period)
            if not self._advance(min(self._chunk, left)):
                return
            line.say(self._describe(*began))
            converged = self.method.check(self.step) if self.step % period == 0 else None
            if converged is not None:
                self.status, self.message, self.steps = "converged", converged, self.step

    def _until_evaluation(self) -> int:
        """Return the number of steps until the next evaluation; 0 if it is due."""
        first = self.step + (len(self.rows) > 0 and self.rows[-1].step == self.step)
        place = np.searchsorted(self._evaluations, first)
        return int(self._evaluations[place]) - self.step if place < len(self._evaluations) else NEVER

    def _advance(self, count: int) -> bool:
        """Make a number of steps; return whether all were made."""
        dim, started = self.method.problem.dim, time.perf_counter()
        sizes = self.sizes(self.step + 1, count)
        noise = np.empty((0, dim)) if self.noise is None else self.noise.standard_normal((count, dim))
        done = self.method.advance(self.step, sizes, noise)
        taken = time.perf_counter() - started
        self.step += done
        if count:
            self.seconds += taken
            wanted = int(count * _CHUNK_SECONDS / max(taken, 1e-9))
            self._chunk = min(max(1, wanted), 2 * self._chunk, self._most)
        if done < count:
            self._diverge(self.step + 1, "the gradient")
        return done == count

    def _evaluate(self) -> bool:
        """Add a row to the trace; return whether to stop."""
        method, x = self.method, self.x
        gain = method.sampler.gain
        objective, total, cost = method.problem.evaluate(method.x, method.sampler.probabilities())
        if x is not method.x:
            objective = method.problem.objective(x)
        optimum, least = method.problem.optimum, total * total
        above = math.nan if optimum is None else objective - optimum
        error = cost / least - 1.0 if least > 0.0 else 0.0
        regret = (self.rows[-1].regret if self.rows else 0.0) + cost - least
        now = (self.step, self.epoch, self.seconds)
        self.rows.append(Row(*now, objective, above, cost, least, error, regret, gain))
        if math.isinf(objective) or not math.isfinite(total):  # the objective is NaN if the problem has none
            self._diverge(self.step, "the objective" if math.isinf(objective) else "the sum of norms")
        elif self.monitoring.callback is not None and self.monitoring.callback(Progress(self)):
            self.status, self.message = "stopped", f"stopped by the callback after {self._place}"
        return self.status not in ("finished", "converged")

    def _diverge(self, step: int, what: str) -> None:
        place = f"diverged at step {step}, of size {self.step_size(step):.6g}"
        self.status, self.message = "diverged", f"{place}: {what} is not finite; use smaller steps"

    # --- save and resume ------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return everything needed to resume."""
        method = self.method
        own = {
            **method.settings(),
            "step": self.step,
            "seconds": self.seconds,
            "x": method.x,
            "draws": self.draws(self.step),
            "rows": np.array(self.rows, dtype=np.float64).reshape(len(self.rows), len(COLUMNS)),
            **saved(method.array_groups()),
        }
        if self.noise is not None:
            own["noise"] = generator_to_text(self.noise)
        return Checkpoint(own, method.sampler, method.sampler.steps)

    def read(self, state: Mapping[str, Any]) -> tuple[State, State]:
        """Return what `resume` takes from a saved state, or raise a ``ValueError``. Nothing changes."""
        method = self.method
        require_same(state, method.settings(), "resume", "this run")
        step = Field(int, at_least=0, at_most=self.steps).read(state, "step", "resume")
        fields = {
            "seconds": Field(float, at_least=0.0),
            "x": Field(np.float64, method.x.shape),
            "draws": Field(np.float64, self.draws(step).shape),
            "rows": Field(np.float64, (None, len(COLUMNS)), -np.inf, np.inf, also=np.nan),
            "checksum": Field(int),
            "noise": None if self.noise is None else Field(np.random.Generator),
            **fields_of(method.array_groups()),
        }
        values = {"step": step, **read(state, fields, "resume")}
        steps = values["rows"][:, 0]
        are_steps = (steps >= 0) & (steps <= step) & (steps == np.floor(steps))
        refuse_unless(are_steps, steps, "resume['rows'][:, 0]", f"must be a step up to {step}")
        require_checksum(state, run_checksum(state), "resume")
        read_sampler = read_state(method.sampler, part_of(state, "sampler"))
        Field(int, at_least=step, at_most=NEVER).read(state, "sampler/steps", "resume")  # each step draws a batch
        return values, read_sampler

    def resume(self, values: State, of_sampler: State) -> None:
        """Continue from what `read` returned."""
        method = self.method
        replace_state(method.sampler, of_sampler)
        self.step, self.seconds, self.noise = values["step"], values["seconds"], values.get("noise")
        method.x[:] = values["x"]
        self.draws(self.step)[:] = values["draws"]
        for name, own in saved(method.array_groups()).items():
            own[...] = values[name]
        self.rows = [Row(int(each[0]), *each[1:]) for each in values["rows"].tolist()]


@contextmanager
def noted_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets; a second one raises ``KeyboardInterrupt`` as usual.

    Signals reach the main thread only. In other threads, or if another handler is installed, nothing changes.
    """
    wished = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if wished.is_set():
            signal.default_int_handler(number, frame)
        wished.set()

    main, before = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGINT)
    if not main or before is not signal.default_int_handler:
        yield wished
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield wished
    finally:
        signal.signal(signal.SIGINT, before)


def run_loops(loops: Sequence[Loop]) -> None:
    """Run all loops, each in its own thread if there are several; Ctrl-C ends them after the current steps."""
    title = f"{loops[0].method.name} with {type(loops[0].method.sampler).__name__}"
    title += f", {len(loops)} chains" if len(loops) > 1 else ""
    with noted_interrupt() as interrupt, Line(title, shown=loops[0].monitoring.progress) as line:
        if len(loops) == 1:
            loops[0].run(interrupt, line)
            return
        with ThreadPoolExecutor(len(loops)) as pool:
            list(pool.map(lambda loop: loop.run(interrupt, line), loops))
