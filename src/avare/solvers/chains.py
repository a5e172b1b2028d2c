"""How `sgld` and `sghmc` run chains: arguments and defaults, what is found first, one loop per chain, and a report.

Chains adapt. Every so often the gradient is estimated at the iterate from some more batches, drawn by a copy of the
sampler. Their second moments set the scale during the burn-in if ``precondition="moments"``. Their covariance goes to
dynamics that correct for gradient noise.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare.problems import Linear, Problem, ToleranceWarning
from avare.problems.base import Vector
from avare.samplers import Sampler, Uniform
from avare.solvers.arguments import check_pair, check_problem, resolve_sampler, sizes_of
from avare.solvers.checkpoint import ArrayGroups, fields_of, part_of
from avare.solvers.convergence import ConvergenceWarning, convergence_report
from avare.solvers.dynamics import Dynamics
from avare.solvers.estimators.plain import GradientsAtMode, PlainEstimator
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.kernels import record_of
from avare.solvers.loop import Loop, Monitoring, run_loops
from avare.solvers.metric import Metric, blank, covariance, diagonal, metric_at, root_of
from avare.solvers.run import Chain, ended
from avare.solvers.steps import Steps
from avare.solvers.tuning import POINTS, STEPS, Tuned, TuningOptions, expected_norms, points_around, tune
from avare.state import Field, State, read, refuse_unless, require_mapping, require_same

Control = Literal["none", "mode", "saga"] | ArrayLike | None
Precondition = Literal["none", "hessian", "moments"] | ArrayLike | None
_CONTROLS = ("none", "mode", "saga")
_PRECONDITIONS = ("none", "hessian", "moments")
_DEFAULT = "Static"  # docs/sampling.md says why
_FEW = 512
"""Examples up to which each step uses all of them: a guess."""
_BATCH = 32
"""Examples of a step otherwise, or the number of coordinates if that is more: a guess."""
_UNIFORM = 0.1
"""Share of uniform draws among those with fixed probabilities. It bounds weights by 10; the value is a guess."""
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
_UNWATCHED = Monitoring()
_SEED = 20  # any number: what is measured does not depend on the seed of a chain


@dataclass
class ChainOptions:
    """The arguments of a solver that draws: checked, with the defaults that depend on the problem; see `avare.sgld`."""

    problem: Problem
    dynamics: Dynamics
    sampler: Sampler | str | None = None
    step_size: Any = "auto"
    control: Any = None
    precondition: Any = None
    batch_size: int | None = None
    steps: int = 10_000
    burn_in: int = 0
    thin: int = 1
    chains: int = 4

    def __post_init__(self) -> None:
        problem, sampler = self.problem, self.sampler
        check_problem(problem)
        if sampler is not None and not isinstance(sampler, str):
            check_pair(problem, sampler, batch_size=self.batch_size)
        for name, least in (("steps", 0), ("burn_in", 0), ("thin", 1), ("chains", 1)):
            validation.integer(name, getattr(self, name), at_least=least)
        if problem.l1 > 0.0:
            raise ValueError(f"problem has l1 = {problem.l1}: its density is not smooth; use an l2 term")
        linear = isinstance(problem, Linear)
        self.automatic = isinstance(self.step_size, str) and self.step_size == "auto"
        if not self.automatic:
            sizes_of(self.step_size)  # which checks them
        default = "mode" if self.automatic and linear else "none"
        self.control, self.point = _word_or_vector(problem, "control", self.control, _CONTROLS, default)
        if self.point is not None:
            self.control = "mode"
        default = "hessian" if linear and (self.automatic or self.dynamics.uses_hessian) else "none"
        found = _word_or_vector(problem, "precondition", self.precondition, _PRECONDITIONS, default)
        self.precondition, self.scale = found
        if self.scale is not None:
            refuse_unless(self.scale > 0.0, self.scale, "precondition", "must be above 0")
        if self.precondition == "moments" and self.burn_in == 0:
            raise ValueError('burn_in = 0: precondition="moments" adapts during the burn-in')
        if not linear:
            self._refuse_what_is_linear()

    def _refuse_what_is_linear(self) -> None:
        """Raise an error if an argument needs a linear model."""
        needs = f"needs a linear model of avare.problems, not {type(self.problem).__name__}"
        for asked, what, instead in (
            (self.automatic, 'step_size = "auto":', "pass a number"),
            (not isinstance(self.sampler, Sampler), f"sampler = {self.sampler!r}: a name", "pass a sampler"),
            (self.precondition == "hessian", 'precondition = "hessian":', '"moments" works for any problem'),
            (self.control == "saga", 'control = "saga":', '"mode" works for any problem'),
        ):
            if asked:
                raise TypeError(f"{what} {needs}; {instead}")

    def of_short_chains(self) -> "ChainOptions":
        """Return the options of the short chains of tuning, which keep every draw."""
        other = copy.copy(self)
        other.dynamics, other.steps, other.burn_in, other.thin = self.dynamics.probe(), STEPS, 0, 1
        return other

    def build_sampler(self, tuned: Tuned, seed: Any) -> Sampler:
        """Return the given sampler, or one that is built by its name."""
        if isinstance(self.sampler, Sampler):
            return self.sampler
        assert isinstance(self.problem, Linear)
        n, size = self.problem.n, tuned.batch_size if self.batch_size is None else self.batch_size
        if self.sampler is None and size == n:
            return Uniform(n, n, seed=seed)
        norms = expected_norms(self.problem, self.control, tuned.anchor, tuned.points)
        name = _DEFAULT if self.sampler is None else self.sampler
        return resolve_sampler(self.problem, name, size, seed, initial_norms=norms, smoothness=norms, uniform=_UNIFORM)


def draw_chains(
    options: ChainOptions,
    start: ArrayLike | None = None,
    seed: int | np.random.SeedSequence | None = None,
    monitoring: Monitoring = _UNWATCHED,
    resume: Mapping[str, Any] | None = None,
) -> Chain:
    """Run chains of any dynamics; `avare.sgld` describes the arguments."""
    if monitoring.callback is not None and isinstance(monitoring.evaluate, str) and monitoring.evaluate == "never":
        raise ValueError('callback is called after each evaluation, and evaluate = "never": pass another evaluate=')
    problem, dynamics, chains = options.problem, options.dynamics, options.chains
    starts = _first_iterates(problem, start, chains)
    if resume is not None:
        require_mapping(resume, "resume")
        require_same(resume, {"chains": chains, "0/method": dynamics.name}, "resume", "this call")
    tuned = _prepare(options, resume)
    starts = np.resize(tuned.starts, (chains, problem.dim)) if starts is None else starts
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    seeds = root.spawn(2 * chains)
    sampler, noises = options.build_sampler(tuned, seeds[chains]), map(np.random.default_rng, seeds[:chains])
    samplers = [sampler, *map(sampler.copy_with_seed, seeds[chains + 1 :])]
    loops = []
    for k, (sampler, x, noise) in enumerate(zip(samplers, starts, noises, strict=True)):
        steps = ChainSteps(options, tuned, sampler, x, noise)
        loops.append(Loop(steps, monitoring, sizes_of(tuned.step_size), options.steps, noise=noise, chain=k))
    if resume is not None:
        read_all = [loop.read(part_of(resume, str(k))) for k, loop in enumerate(loops)]  # before anything changes
        for loop, values in zip(loops, read_all, strict=True):
            loop.resume(*values)
    run_loops(loops)
    chain = Chain(loops, tuned.step_size)
    if chain.status != "interrupted" and len(chain.step_sizes):
        _check_draws(chain, loops, problem.why_improper(tuned.mode) if isinstance(problem, Linear) else "")
    ended(chain, loops)
    return chain


def _check_draws(chain: Chain, loops: Sequence[Loop], improper: str) -> None:
    """Add the convergence report, and warn of what it found."""
    first = loops[chain.sound[0]].method
    sampler, steps = first.sampler.copy_with_seed(_SEED), len(loops) * chain.steps
    chain.noise = convergence_report(chain.draws, chain.weighted()[1], first.estimator, sampler, steps, improper)
    found = chain.noise.warnings()
    chain.warnings += found
    if found:
        warnings.warn("; ".join(found), ConvergenceWarning, stacklevel=4)


def _prepare(options: ChainOptions, state: Mapping[str, Any] | None) -> Tuned:
    """Return what chains start with: found, or from a state."""
    problem, n, dim = options.problem, options.problem.n, options.problem.dim
    whole = options.precondition == "hessian"
    measures = whole or options.automatic or not isinstance(options.sampler, Sampler)
    metric = diagonal(np.ones(dim) if options.scale is None else options.scale)
    points, nowhere = np.empty((POINTS if measures else 0, dim)), np.zeros(dim)
    size = n if n <= max(_FEW, dim) else max(_BATCH, dim)
    first = Tuned(nowhere, nowhere, points, size, metric, nowhere, options.step_size)
    if state is not None:
        return _read_tuned(options, first, state)
    if measures or options.control == "mode":
        mode = _mode(problem) if options.point is None else options.point
        at_mode = metric_at(problem, mode) if measures and isinstance(problem, Linear) else metric
        points = points_around(problem, mode, at_mode, len(points))
        metric = at_mode if whole else metric
        first = first._replace(mode=mode, anchor=mode, starts=mode, points=points, metric=metric)
    if not (options.automatic and isinstance(problem, Linear)):
        return first
    moves, grows = options.control == "mode" and options.point is None, options.batch_size is None
    steps_of = partial(ChainSteps, options.of_short_chains())
    return tune(problem, TuningOptions(first, options.dynamics, options.build_sampler, steps_of, moves, whole, grows))


def _read_tuned(options: ChainOptions, first: Tuned, state: Mapping[str, Any]) -> Tuned:
    """Return what an earlier call has found; the chains restore their own metrics."""
    step, size, metric = options.step_size, first.batch_size, first.metric
    if options.automatic:
        step = Field(float, at_least=5e-324).read(state, "step_size", "resume")
        if options.batch_size is None and not isinstance(options.sampler, Sampler):  # batches may have grown
            size = Field(int, at_least=1, at_most=options.problem.n).read(state, "0/sampler/batch_size", "resume")
    if options.precondition == "hessian":
        metric = blank(options.problem.dim)
    anchor, points = read(part_of(state, "0"), fields_of({"tuning": first}), "resume").values()
    return Tuned(anchor, anchor, points, size, metric, anchor, step)


def _mode(problem: Problem) -> Vector:
    """Return the mode, or a point near it: the report on the draws says if that was not enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)
        return problem.minimize()


def _word_or_vector(
    problem: Problem, name: str, value: Any, allowed: Sequence[str], default: str
) -> tuple[str, Vector | None]:
    """Return one of some words, and a vector if that was given."""
    if value is None:
        return default, None
    if not isinstance(value, str):
        return "none", problem.vector(name, value)
    return validation.choice(name, value, allowed), None


def _first_iterates(problem: Problem, start: ArrayLike | None, chains: int) -> Vector | None:
    """Return the first iterates, one row per chain; None if they were not given."""
    if start is None:
        return None
    starts, dim = validation.real("start", start), problem.dim
    if starts.shape not in ((dim,), (chains, dim)):
        raise ValueError(f"start has shape {starts.shape}: must be ({dim},) or ({chains}, {dim})")
    refuse_unless(np.isfinite(starts), starts, "start", "must be finite")
    return np.broadcast_to(starts, (chains, dim))


class Measurements(NamedTuple):
    """Averages of what was measured."""

    moments: Vector
    """Second moments of the gradient, for the scale."""
    noise: Vector
    """The covariance of the gradient estimate in the metric; its diagonal if the metric is not a whole matrix."""
    times: Vector
    """How often it was measured, one number."""


class ChainSteps(Steps):
    """The steps of a chain, which adapt to measurements of the gradient noise.

    Parameters
    ----------
    options : ChainOptions
    tuned : Tuned
        Where known gradients are taken, and the metric.
    sampler : Sampler
    start : ndarray
        The first iterate.
    noise : Generator
        What the state of the dynamics draws from.
    """

    def __init__(
        self, options: ChainOptions, tuned: Tuned, sampler: Sampler, start: Vector, noise: np.random.Generator
    ) -> None:
        self._dynamics, self._tuned = options.dynamics, tuned
        self._metric = Metric(*(each.copy() for each in tuned.metric))  # a chain may adapt it
        self._adapt_until = options.burn_in if options.precondition == "moments" else 0
        point = tuned.anchor if options.control == "mode" else None
        estimator = build_estimator(options.problem, options.control, start.copy(), sampler.batch_size, point)
        record = record_of(len(start), options.steps, burn_in=options.burn_in, thin=options.thin)
        dynamics, state = options.dynamics, options.dynamics.build(self._metric, noise)
        super().__init__(dynamics.name, sampler, estimator, state, record)
        self._corrects = dynamics.corrects_noise and sampler.independent
        dim = self.problem.dim
        covariances = np.zeros((dim, dim) if len(self._metric.factor) else dim)
        self._measured = Measurements(np.zeros(dim), covariances, np.zeros(1))
        if self._corrects:
            self.period = max(1, _PERIOD // _OFTEN)
        if self._adapt_until > 0:
            self.period = max(1, self._adapt_until // _ADAPTATIONS)

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
        own = {"metric": self._metric, "measured": self._measured, "tuning": self._tuned}
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
