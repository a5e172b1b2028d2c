"""How `sgld` and `sghmc` put chains together: arguments, defaults, and one loop per chain.

A chain adapts: its scale during the burn-in if ``precondition="moments"``, and how much noise its friction adds. Every
so often the gradient is estimated at the iterate from some more batches, drawn by a copy of the sampler. Their second
moments set the scale; their covariance is subtracted from the noise of the friction of Hamiltonian dynamics.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare.problems import Linear, Problem, ToleranceWarning
from avare.problems.base import Vector
from avare.samplers import Sampler, Uniform
from avare.solvers.checkpoint import Memory, read
from avare.solvers.estimators.plain import GradientsAtMode, PlainEstimator
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.kernels import Record, record_of
from avare.solvers.loop import Loop, Watch, checked_pair, checked_problem, part_of, run_loops
from avare.solvers.run import Chain, ended
from avare.solvers.saga import sampler_of
from avare.solvers.step_sizes import sizes_of
from avare.solvers.steps import Steps
from avare.solvers.tuning import POINTS, Tuning, expected_norms, points_around, tune
from avare.solvers.updates.dynamics import Hamiltonian, Langevin, subtract
from avare.solvers.updates.metric import Metric, blank, covariance, diagonal, metric_at, root_of
from avare.solvers.verdict import ConvergenceWarning, batch_gradients, judge
from avare.state import Field, State, refuse_unless, require_mapping, require_same

Control = Literal["none", "mode", "saga"] | ArrayLike | None
Precondition = Literal["none", "hessian", "moments"] | ArrayLike | None
CONTROLS = ("none", "mode", "saga")
_PRECONDITIONS = ("none", "hessian", "moments")
_DEFAULT = "Static"
_FEW = 512  # examples, up to which each step uses all of them
_BATCH = 32  # examples of a step otherwise, or as many as there are coordinates
_EVENLY = 0.1  # of the draws with fixed probabilities are uniform
_BATCHES = 32  # to measure the noise of the gradient with
_KEEP = 0.98  # of earlier measurements
_PERIOD, _OFTEN = 1000, 4  # steps between two measurements; at first it is measured this many times as often
_ADAPTATIONS = 20  # of the scale
_SEED = 20


def draw_chains(
    solver: str,
    plan: "Plan",
    start: ArrayLike | None,
    seed: int | np.random.SeedSequence | None,
    watch: Watch,
    resume: Mapping[str, Any] | None,
) -> Chain:
    """Run chains of any dynamics; `sgld` and `sghmc` describe the arguments."""
    if watch.callback is not None and isinstance(watch.evaluate, str) and watch.evaluate == "never":
        raise ValueError('callback is called after each evaluation, and evaluate = "never": pass another evaluate=')
    problem, chains = plan.problem, plan.chains
    starts = _starts(problem, start, chains)
    if resume is not None:
        require_mapping(resume, "resume")
        require_same(resume, {"chains": chains, "0/method": solver}, "resume", "this call")
    plan.prepare(resume)
    starts = np.resize(plan.starts, (chains, problem.dim)) if starts is None else starts
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    seeds = root.spawn(2 * chains)
    samplers, noises = plan.samplers(seeds[chains:]), map(np.random.default_rng, seeds[:chains])
    loops = [
        Loop(plan.chain_steps(solver, sampler, x, noise), watch, sizes_of(plan.size), plan.steps, noise=noise, chain=k)
        for k, (sampler, x, noise) in enumerate(zip(samplers, starts, noises, strict=True))
    ]
    if resume is not None:
        read_all = [loop.read(part_of(resume, k)) for k, loop in enumerate(loops)]  # before anything changes
        for loop, values in zip(loops, read_all, strict=True):
            loop.resume(*values)
    run_loops(loops)
    chain = Chain(loops, plan.size)
    if chain.status != "interrupted" and len(chain.step_sizes):
        first = loops[chain.sound[0]].method
        sampler = first.sampler.copy_with_seed(_SEED)
        weights, steps = chain.weighted()[1], chains * chain.steps
        improper = problem.why_improper(plan.mode) if isinstance(problem, Linear) else ""
        chain.noise = judge(chain.draws, weights, first.estimator, sampler, steps, improper)
        chain.warnings += chain.noise.warnings()
        if chain.noise.warnings():
            warnings.warn("; ".join(chain.noise.warnings()), ConvergenceWarning, stacklevel=3)
    ended(chain, loops)
    return chain


@dataclass
class Plan:
    """What a call of a solver asks for, checked, and what follows from it."""

    problem: Problem
    sampler: Sampler | str | None
    size: Any
    """The step size."""
    control: Any
    precondition: Any
    batch_size: int | None
    steps: int
    burn_in: int
    thin: int
    chains: int
    friction: float = 0.0

    def __post_init__(self) -> None:
        problem, sampler = self.problem, self.sampler
        checked_problem(problem)
        if sampler is not None and not isinstance(sampler, str):
            checked_pair(problem, sampler, batch_size=self.batch_size)
        for name, least in (("steps", 0), ("burn_in", 0), ("thin", 1), ("chains", 1)):
            validation.integer(name, getattr(self, name), at_least=least)
        if problem.l1 > 0.0:
            raise ValueError(f"problem has l1 = {problem.l1}: its density is not smooth; use an l2 term")
        self.automatic, linear = isinstance(self.size, str) and self.size == "auto", isinstance(problem, Linear)
        if not self.automatic:
            sizes_of(self.size)  # which checks them
        default = "mode" if self.automatic and linear else "none"
        self.control, self.point = _word_or_vector(problem, "control", self.control, CONTROLS, default)
        if self.point is not None:
            self.control = "mode"
        default = "hessian" if linear and (self.automatic or self.friction > 0.0) else "none"
        found = _word_or_vector(problem, "precondition", self.precondition, _PRECONDITIONS, default)
        self.precondition, self.scale = found
        if self.scale is not None:
            refuse_unless(self.scale > 0.0, self.scale, "precondition", "must be above 0")
        if self.precondition == "moments" and self.burn_in == 0:
            raise ValueError('burn_in = 0: precondition="moments" adapts during the burn-in')
        if not linear:
            self._refuse_what_is_linear()

    def _refuse_what_is_linear(self) -> None:
        """Raise an error if something is asked for that only a linear model has."""
        needs = f"needs a linear model of avare.problems, not {type(self.problem).__name__}"
        for asked, what, instead in (
            (self.automatic, 'step_size = "auto":', "pass a number"),
            (not isinstance(self.sampler, Sampler), f"sampler = {self.sampler!r}: a name", "pass a sampler"),
            (self.precondition == "hessian", 'precondition = "hessian":', '"moments" works for any problem'),
            (self.control == "saga", 'control = "saga":', '"mode" works for any problem'),
        ):
            if asked:
                raise TypeError(f"{what} {needs}; {instead}")

    def prepare(self, state: Mapping[str, Any] | None) -> None:
        """Find what the chains need: mode, metric and step size; or take them from a state."""
        problem, dim, whole = self.problem, self.problem.dim, self.precondition == "hessian"
        around = whole or self.automatic or not isinstance(self.sampler, Sampler)
        self.metric = diagonal(np.ones(dim) if self.scale is None else self.scale)
        rows = problem.n if problem.n <= max(_FEW, dim) else max(_BATCH, dim)  # it is less than n
        self.tuning = Tuning(np.zeros(dim), np.empty((POINTS if around else 0, dim)), np.array([rows]))
        if state is not None:
            if self.automatic:
                self.size = Field(float, at_least=5e-324).read(state, "step_size", "resume")
            bounds = {"tuning/rows": {"at_least": 1, "at_most": problem.n}}
            self.tuning = Tuning(*read(part_of(state, 0), {"tuning": self.tuning}, bounds).values())
            self.metric = blank(dim) if whole else self.metric
        elif around or self.control == "mode":
            mode = self._mode() if self.point is None else self.point
            at_mode = metric_at(problem, mode) if around and isinstance(problem, Linear) else self.metric
            self.metric = at_mode if whole else self.metric
            points = points_around(problem, mode, at_mode, len(self.tuning.points))
            self.tuning = self.tuning._replace(anchor=mode, points=points)
        self.starts = self.mode = self.tuning.anchor
        if self.automatic and state is None:
            tune(self, moves=self.control == "mode" and self.point is None, scales=whole)

    def _mode(self) -> Vector:
        """Return the mode, or a point near it: the verdict on the draws says if that was not enough."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ToleranceWarning)
            return self.problem.minimize()

    def build_sampler(self, seed: Any) -> Sampler:
        """Return the given sampler, or one that is built by its name."""
        if isinstance(self.sampler, Sampler):
            return self.sampler
        assert isinstance(self.problem, Linear)
        n, size = self.problem.n, int(self.tuning.rows[0]) if self.batch_size is None else self.batch_size
        if self.sampler is None and size == n:
            return Uniform(n, n, seed=seed)
        norms = expected_norms(self.problem, self.control, self.tuning)
        name = _DEFAULT if self.sampler is None else self.sampler
        return sampler_of(self.problem, name, size, seed, initial_norms=norms, smoothness=norms, uniform=_EVENLY)

    def samplers(self, seeds: Sequence[np.random.SeedSequence]) -> list[Sampler]:
        """Return one sampler per chain: the given one, or one that is built by its name, and copies of it."""
        first = self.build_sampler(seeds[0])
        return [first, *map(first.copy_with_seed, seeds[1:])]

    def chain_steps(
        self, name: str, sampler: Sampler, start: Vector, noise: np.random.Generator, record: Record | None = None
    ) -> "ChainSteps":
        """Return the steps of one chain; a velocity is the first that its noise draws."""
        point = self.tuning.anchor if self.control == "mode" else None
        estimator = estimator_of(self.problem, self.control, start.copy(), sampler.batch_size, point)
        metric = Metric(*(each.copy() for each in self.metric))  # a chain may adapt it
        update: Any = Langevin(metric, np.zeros(len(start)))
        if self.friction > 0.0:
            velocity, excess = noise.standard_normal(len(start)), np.zeros(len(start))
            update = Hamiltonian(metric, velocity, excess, update.held, self.friction)
        if record is None:
            record = record_of(len(start), self.steps, burn_in=self.burn_in, thin=self.thin)
        return ChainSteps(self, name, sampler, estimator, update, record)


def estimator_of(
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


def _word_or_vector(
    problem: Problem, name: str, value: Any, allowed: Sequence[str], default: str
) -> tuple[str, Vector | None]:
    """Return one of some words, and a vector if that was given."""
    if value is None:
        return default, None
    if not isinstance(value, str):
        return "none", problem.vector(name, value)
    return validation.choice(name, value, allowed), None


def _starts(problem: Problem, start: ArrayLike | None, chains: int) -> Vector | None:
    """Return the first iterates, one row per chain; None if they were not given."""
    if start is None:
        return None
    starts, dim = validation.real("start", start), problem.dim
    if starts.shape not in ((dim,), (chains, dim)):
        raise ValueError(f"start has shape {starts.shape}: must be ({dim},) or ({chains}, {dim})")
    refuse_unless(np.isfinite(starts), starts, "start", "must be finite")
    return np.broadcast_to(starts, (chains, dim))


class Measured(NamedTuple):
    """Averages of what was measured."""

    moments: Vector
    """Second moments of the gradient, for the scale."""
    noise: Vector
    """The covariance of the gradient estimate in the metric; its diagonal if the metric is no whole matrix."""
    times: Vector
    """How often it was measured."""


class ChainSteps(Steps):
    """The steps of a chain, which adapt to measurements; the scale until the end of the burn-in, if it does."""

    def __init__(self, plan: Plan, name: str, sampler: Sampler, estimator: Any, update: Any, record: Record) -> None:
        super().__init__(name, sampler, estimator, update, record)
        self._adapt_until, self._tuning = plan.burn_in if plan.precondition == "moments" else 0, plan.tuning
        self._corrects = isinstance(update, Hamiltonian) and sampler.independent
        dim = self.problem.dim
        noise = np.zeros((dim, dim) if len(update.metric.factor) else dim)
        self._measured = Measured(np.zeros(dim), noise, np.zeros(1))
        if self._corrects:
            self.period = max(1, _PERIOD // _OFTEN)
        if self._adapt_until > 0:
            self.period = max(1, self._adapt_until // _ADAPTATIONS)

    def check(self, step: int) -> str | None:
        """Measure the noise of the gradient, with more batches; a chain never ends."""
        late = step > max(self._adapt_until, _OFTEN * _PERIOD)
        if late and (not self._corrects or step % _PERIOD >= self.period):
            return None
        found, metric = self._batch_gradients(), self.update.metric
        if step <= self._adapt_until:
            moments = self._measured.moments
            self._take_in(moments, np.mean((found + self.problem.penalty.l2 * self.x) ** 2, axis=0))
            metric.root[:] = root_of(moments)
        if self._corrects:
            self._take_in(self._measured.noise, covariance(metric, found))
            subtract(self.update, self._measured.noise)
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
            return batch_gradients(self.estimator, sampler, self.x, _BATCHES)
        finally:
            self.sampler.reseed(generator)

    def _take_in(self, average: Vector, found: Vector) -> None:
        keep = min(_KEEP, 1.0 - 1.0 / (self._measured.times[0] + 1.0))
        average[:] = keep * average + (1.0 - keep) * found

    def settings(self) -> State:
        """Return what must be the same when a state is resumed."""
        return {**super().settings(), "control": self.estimator.control, "adapt_until": self._adapt_until}

    def memory(self) -> Memory:
        """Return what to save besides the iterate."""
        own = {"metric": self.update.metric, "measured": self._measured, "tuning": self._tuning}
        return {**super().memory(), **own}
