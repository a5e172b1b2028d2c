"""Chains: their draws, and how any dynamics is run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._optional import require
from avare._progress import Line
from avare._state import Field, refuse_unless, require_same
from avare.plotting import chain_figure
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.control import CONTROLS, Estimator
from avare.solvers.dynamics import MODE, PRECONDITIONS, Dynamics, Motion
from avare.solvers.interrupt import Interrupt
from avare.solvers.loop import Callback, DivergenceWarning, Loop, StepSize, checked_pair
from avare.solvers.saga import build_by_norms
from avare.solvers.sgd import describe, resume_of
from avare.solvers.steps import Iterates
from avare.solvers.trace import Trace, evaluation_steps
from avare.solvers.widening import Widening, automatic_size, diagonal_curvature, expected_norms, widening

Control = Literal["none", "mode", "saga"] | ArrayLike | None
Precondition = Literal["none", "hessian", "moments"] | ArrayLike | None
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_EVENLY = 0.1  # of the draws with fixed probabilities are uniform
_FLAT = 1e-12  # of the largest curvature: coordinates below it do not move faster


class WideningWarning(UserWarning):
    """The draws of a chain are wider than the posterior.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", WideningWarning)  # if you know it, and want the draws all the same
    """


class Chain:
    """The result of `sgld` and `sghmc`: draws of one or several chains.

    With decreasing steps a draw represents the time of its step, so averages over draws must be weighted by the
    step sizes. The methods of this class do so.

    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 2.0], l2=1.0)
    >>> chain = avare.sgld(problem, avare.Uniform(2, 2, seed=0), 0.01, steps=100, thin=10, chains=2, seed=0)
    >>> chain.draws.shape, chain.mean().shape, chain.status
    ((2, 10, 1), (1,), 'finished')
    """

    def __init__(self, solver: str, loops: list[Loop], step_size: Any, burn_in: int, thin: int) -> None:
        sound = [loop for loop in loops if loop.status != "diverged"] or loops
        kept = min(loop.kept() for loop in sound)
        self.draws: Vector = np.stack([loop.iterates.draws[:kept] for loop in sound])
        """The draws, chains x draws x dim; without the chains that diverged, if there are others."""
        self.sound: list[int] = [loop._chain for loop in sound]
        """The numbers of these chains."""
        self.step_sizes: Vector = loops[0]._sizes(burn_in + 1, kept * thin)[thin - 1 :: thin]
        """The step size at each draw."""
        self.traces: list[Trace] = [loop.trace for loop in loops]
        """One table of evaluations per chain."""
        self.steps: int = min(loop.step for loop in sound)
        """Number of steps of each of them."""
        self.seconds: float = max(loop.seconds for loop in loops)
        """Time of the steps of the slowest chain, without evaluations."""
        self.step_size: Any = step_size
        """The step sizes; if they were "auto", the number that was found."""
        self._solver, self._loops = solver, loops
        ended = next((loop for loop in loops if loop.status != "finished"), loops[0])
        self.status: str = ended.status
        """"finished", "stopped" (by the callback), "interrupted" (by Ctrl-C) or "diverged"."""
        self.message: str = ended.message
        """Why it ended, if it did not finish."""

    @property
    def trace(self) -> Trace:
        """The evaluations of the first chain."""
        return self.traces[0]

    def mean(self) -> Vector:
        """Return the mean of all draws, weighted by their step sizes."""
        draws, weights = self._weighted()
        return weights @ draws

    def covariance(self) -> Vector:
        """Return the covariance of all draws, weighted by their step sizes."""
        draws, weights = self._weighted()
        centred = draws - weights @ draws
        return (centred * weights[:, None]).T @ centred

    def std(self) -> Vector:
        """Return the standard deviations of all draws, weighted by their step sizes."""
        draws, weights = self._weighted()
        return np.sqrt(weights @ (draws - weights @ draws) ** 2)

    def quantile(self, q: float) -> Vector:
        """Return a quantile of each coordinate over all draws, weighted by their step sizes."""
        q = validation.number("q", q, at_least=0.0, at_most=1.0)
        draws, weights = self._weighted()
        order = np.argsort(draws, axis=0)
        reached = np.cumsum(weights[order], axis=0) >= q * (1.0 - 1e-12)
        rows = np.argmax(reached, axis=0)
        columns = np.arange(draws.shape[1])
        quantiles: Vector = draws[order[rows, columns], columns]
        return quantiles

    @cached_property
    def noise(self) -> Widening:
        """How much wider than the posterior the draws are, by gradient noise and by the step, per coordinate.

        It is estimated from the noise of the gradient at some of the draws; ``print(chain.noise)`` says it in words. It
        is computed when it is first asked for: the gradients of some hundred batches, and for a linear model its
        second derivative, O(n dim^2) for up to 1000 coefficients. See `avare.solvers.Widening`.
        """
        draws, weights = self._weighted()
        loop = self._loops[self.sound[0]]
        dynamics = loop._method
        assert isinstance(dynamics, Dynamics)
        sizes = self.step_sizes
        size = float((sizes @ sizes) / sizes.sum())  # what counts for averages that are weighted by the steps
        return widening(dynamics.estimator, loop.sampler, dynamics.motion, size, draws, weights, self.draws[0])

    def summary(self, names: Sequence[str] | None = None) -> Any:
        """Return a table of the draws, one row per coordinate, as a pandas ``DataFrame``; it needs ArviZ.

        Mean, standard deviation ("sd") and quantiles are weighted by the step sizes. The effective number of draws and
        R-hat (from two chains on) are ArviZ's. "wider_by_noise" and "wider_by_step" are the two parts of `noise`. If a
        standard deviation is wrong by more than 10 %, a `WideningWarning` says so.

        Parameters
        ----------
        names
            Names of the coordinates; by default x[0], x[1], ...
        """
        arviz = require("arviz", "summary", "arviz")
        import pandas  # with ArviZ

        data, dim = self.to_arviz(), self.draws.shape[2]
        wider = self.noise
        if wider.is_too_wide:
            warnings.warn(str(wider), WideningWarning, stacklevel=2)
        columns = {"mean": self.mean(), "sd": self.std()}
        columns |= {f"{100 * q:g}%": self.quantile(q) for q in _QUANTILES}
        columns["ess_bulk"] = arviz.ess(data, method="bulk")["x"].values
        columns["ess_tail"] = arviz.ess(data, method="tail")["x"].values
        several = len(self.draws) > 1
        columns["r_hat"] = arviz.rhat(data)["x"].values if several else np.full(dim, np.nan)
        columns |= {"wider_by_noise": wider.gradient, "wider_by_step": wider.step}
        return pandas.DataFrame(columns, index=self._names(names) or _numbered(dim))

    def _weighted(self) -> tuple[Vector, Vector]:
        """Return all draws as one list, and weights that sum to 1."""
        if not len(self.step_sizes):
            raise ValueError(f"no draws were kept in {self.steps} steps")
        weights = np.tile(self.step_sizes, len(self.draws))
        return self.draws.reshape(len(weights), -1), weights / weights.sum()

    def plot(self, names: Sequence[str] | None = None) -> Any:
        """Draw the law of each coordinate and the paths of the chains; return a Matplotlib figure.

        Histograms are weighted by the step sizes. Of more than six coordinates the first six are shown.

        Parameters
        ----------
        names
            Names of the coordinates; by default x[0], x[1], ...
        """
        self._weighted()  # raises an error if there are no draws
        dim = self.draws.shape[2]
        return chain_figure(self.draws, self.step_sizes, self._names(names) or _numbered(dim))

    def to_arviz(self, *, name: str = "x", names: Sequence[str] | None = None, resample: bool = False) -> Any:
        """Return the draws as an ArviZ object, with the step sizes as a sample statistic.

        Its dimensions are "chain" (the numbers of the chains), "draw" and "coefficient".

        Parameters
        ----------
        name
            Name of the variable.
        names
            Names of the coefficients, such as ``dataset.columns``; by default their numbers.
        resample
            ArviZ does not use weights. If True, each chain is resampled in proportion to the step sizes
            (systematically, in order), so that plain averages are correct for
            decreasing steps. Draws then repeat, and ArviZ counts them as correlated.
        """
        arviz = require("arviz", "to_arviz", "arviz")
        self._weighted()  # raises an error if there are no draws
        draws, sizes = self.draws, self.step_sizes
        if resample:
            reached = np.cumsum(sizes) / sizes.sum()
            chosen = np.searchsorted(reached, (np.arange(len(sizes)) + 0.5) / len(sizes))
            draws, sizes = draws[:, chosen], sizes[chosen]
        statistics = {"step_size": np.tile(sizes, (len(draws), 1))}
        labels = {
            "coords": {"chain": self.sound, "coefficient": self._names(names) or np.arange(draws.shape[2])},
            "dims": {name: ["coefficient"]},
        }
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.from_dict(posterior={name: draws}, sample_stats=statistics, **labels)
        return arviz.from_dict({"posterior": {name: draws}, "sample_stats": statistics}, **labels)

    def _names(self, names: Sequence[str] | None) -> list[str]:
        """Return the names, one per coordinate; [] if none were given."""
        found = [] if names is None else [str(each) for each in names]
        if names is not None:
            validation.same_length("names", len(found), "the draws", self.draws.shape[2])
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed for ``resume=state``, including the samplers' states.

        It can be pickled, or saved with ``numpy.savez(file, **state)``. Call this before the sampler draws again.
        """
        state: dict[str, Any] = {"solver": self._solver, "chains": len(self._loops)}
        if isinstance(self.step_size, float):
            state["step_size"] = self.step_size
        for k, loop in enumerate(self._loops):
            state.update({f"{k}/{key}": value for key, value in loop.state().items()})
        return state

    def __repr__(self) -> str:
        chains, draws, dim = self.draws.shape
        return (
            f"Chain({self.status} after {self.steps} steps in {self.seconds:.3g} s: {chains} x {draws} draws of {dim})"
        )


def draw_chains(
    solver: str,
    problem: Problem,
    sampler: Sampler | str,
    step_size: StepSize | str,
    *,
    friction: float,
    control: Control,
    precondition: Precondition,
    batch_size: int | None,
    steps: int,
    burn_in: int,
    thin: int,
    chains: int,
    start: ArrayLike | None,
    seed: int | np.random.SeedSequence | None,
    evaluate: Any,
    optimum: float | None,
    progress: bool,
    callback: Callback | None,
    resume: Mapping[str, Any] | None,
) -> Chain:
    """Run chains of any dynamics; `sgld` and `sghmc` describe the arguments."""
    if not isinstance(sampler, str):
        checked_pair(problem, sampler)
        if batch_size is not None:
            raise ValueError(
                f"batch_size = {batch_size}: the sampler has its own; pass it only with the name of a sampler"
            )
    if problem.l1 > 0.0:
        raise ValueError(f"problem has l1 = {problem.l1}: its density is not smooth; use an l2 term")
    steps = validation.integer("steps", steps, at_least=0)
    burn_in = validation.integer("burn_in", burn_in, at_least=0)
    thin = validation.integer("thin", thin, at_least=1)
    chains = validation.integer("chains", chains, at_least=1)
    progress = validation.boolean("progress", progress)
    if callback is not None and isinstance(evaluate, str) and evaluate == "never":
        raise ValueError('callback is called after each evaluation, and evaluate = "never": pass another evaluate=')
    if isinstance(step_size, str) and step_size != "auto":
        raise TypeError(f'step_size = {step_size!r}: must be "auto", a number, a schedule or a function of the step')
    automatic, linear = isinstance(step_size, str), isinstance(problem, Linear)
    kind, mode = _control(problem, control, "mode" if automatic and linear else "none")
    scaling, scale = _precondition(
        problem, precondition, "hessian" if linear and (automatic or friction > 0.0) else "none"
    )
    if scaling == "moments" and burn_in == 0:
        raise ValueError('burn_in = 0: precondition="moments" adapts during the burn-in')
    starts = _starts(problem, start, chains)
    state = None
    if resume is not None:
        state = resume_of(solver, resume)
        require_same(state, {"chains": chains}, "resume", "this call")
        if kind == "mode" and mode is None and f"0/{MODE}" in state:
            mode = Field(np.float64, (problem.dim,)).read(state, f"0/{MODE}", "resume")
    named = isinstance(sampler, str)
    if mode is None and (kind == "mode" or scaling == "hessian" or automatic or named):
        mode = problem.minimize()
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    seeds = root.spawn(2 * chains)
    if isinstance(sampler, str):
        sampler = _built(sampler, problem, kind, mode, batch_size, seeds[chains])
    scale = _scale(problem, scaling, mode) if scale is None else scale

    def method_of(drawing: Sampler, noise: np.random.Generator, iterates: Iterates) -> Dynamics:
        estimator = Estimator(problem, kind, iterates.x, drawing.batch_size, mode if kind == "mode" else None)
        return Dynamics(
            estimator,
            drawing,
            iterates,
            scale=scale,
            friction=friction,
            adapt_until=burn_in if scaling == "moments" else 0,
            velocity=noise.standard_normal(problem.dim) if friction > 0.0 else None,
        )

    if automatic:
        assert mode is not None
        if state is not None:
            step_size = Field(float, at_least=5e-324).read(state, "step_size", "resume")
        else:
            probe = Estimator(problem, kind, mode.copy(), sampler.batch_size, mode if kind != "none" else None)
            motion = Motion(friction, empty := np.zeros(0), scale, np.sqrt(scale), np.zeros(problem.dim), empty, empty)
            step_size = automatic_size(probe, sampler, motion, mode)
    samplers = [sampler, *(copy.deepcopy(sampler) for _ in range(chains - 1))]
    for k in range(1, chains):
        samplers[k].reseed(seeds[chains + k])
    noises = [np.random.default_rng(each) for each in seeds[:chains]]
    loops = [
        Loop(
            problem,
            samplers[k],
            step_size,  # type: ignore[arg-type]  # no text any more
            steps=steps,
            evaluations=evaluation_steps(evaluate, steps, max(1, problem.n // sampler.batch_size)),
            optimum=optimum,
            start=mode if starts[k] is None else starts[k],
            burn_in=burn_in,
            thin=thin,
            noise=noises[k],
            callback=callback,
            chain=k,
            method=partial(method_of, samplers[k], noises[k]),
        )
        for k in range(chains)
    ]
    if state is not None:
        _resume(loops, state)
    title = f"{solver} with {type(sampler).__name__}" + (f", {chains} chains" if chains > 1 else "")
    with Interrupt() as interrupt, Line(title, shown=progress) as line:
        _run(loops, interrupt, line)
    for loop in loops:
        if loop.status == "diverged":
            place = f"chain {loop._chain} " if chains > 1 else ""
            warnings.warn(place + loop.message, DivergenceWarning, stacklevel=3)
    return Chain(solver, loops, step_size, burn_in, thin)


def _built(
    name: str, problem: Problem, control: str, mode: Vector | None, batch_size: int | None, seed: Any
) -> Sampler:
    """Build a sampler from the norms that are expected near the mode."""
    if not isinstance(problem, Linear):
        raise TypeError(
            f"sampler = {name!r}: a name needs a linear model of avare.problems, not {type(problem).__name__}; "
            "pass a sampler"
        )
    assert mode is not None
    norms = expected_norms(problem, control, mode)
    return build_by_norms(name, problem, batch_size, norms, norms, seed, uniform=_EVENLY)


def _one_of(name: str, value: Any, allowed: Sequence[str], default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(repr, allowed))}")
    return value


def _control(problem: Problem, control: Control, default: str) -> tuple[str, Vector | None]:
    """Return the kind of control variate, and the point where it was asked for."""
    if control is None or isinstance(control, str):
        return _one_of("control", control, CONTROLS, default), None
    return "mode", problem.vector("control", control)


def _precondition(problem: Problem, precondition: Precondition, default: str) -> tuple[str, Vector | None]:
    """Return the kind of preconditioning, and the diagonal if it was given."""
    if precondition is None or isinstance(precondition, str):
        return _one_of("precondition", precondition, PRECONDITIONS, default), None
    scale = problem.vector("precondition", precondition)
    refuse_unless(scale > 0.0, scale, "precondition", "must be above 0")
    return "none", scale


def _scale(problem: Problem, precondition: str, mode: Vector | None) -> Vector:
    """Return the diagonal that multiplies the gradient."""
    if precondition != "hessian":
        return np.ones(problem.dim)
    if not isinstance(problem, Linear):
        raise TypeError(
            f'precondition = "hessian": needs a linear model of avare.problems, not {type(problem).__name__}; '
            'precondition="moments" works for any problem'
        )
    assert mode is not None
    curvature = diagonal_curvature(problem, mode)
    return np.asarray(1.0 / np.maximum(curvature, _FLAT * max(float(curvature.max()), 1e-300)))


def _resume(loops: list[Loop], state: Mapping[str, Any]) -> None:
    """Continue all loops from a state; if one part of it is wrong, none has changed."""
    parts = [
        {key.removeprefix(f"{k}/"): each for key, each in state.items() if key.startswith(f"{k}/")}
        for k in range(len(loops))
    ]
    read = [loop.read(part) for loop, part in zip(loops, parts, strict=True)]
    for loop, (values, of_sampler) in zip(loops, read, strict=True):
        loop.resume(values, of_sampler)


def _run(loops: list[Loop], interrupt: Interrupt, line: Line) -> None:
    """Run all loops, each in its own thread."""
    if len(loops) == 1:
        loops[0].run(interrupt, lambda loop: line.say(describe(loop)))
        return
    with ThreadPoolExecutor(len(loops)) as pool:
        running = [pool.submit(loop.run, interrupt, lambda loop: line.say(describe(loop))) for loop in loops]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            for each in ended:
                each.result()
        except BaseException:
            interrupt.wished = True  # the other chains end as well
            raise


def _starts(problem: Problem, start: ArrayLike | None, chains: int) -> list[Any]:
    if start is None or np.ndim(start) == 1:
        return [start] * chains
    array = validation.as_array("start", start)
    if array.shape != (chains, problem.dim):
        raise ValueError(f"start has shape {array.shape}: must be ({problem.dim},) or ({chains}, {problem.dim})")
    return list(array)


def _numbered(dim: int) -> list[str]:
    return [f"x[{k}]" for k in range(dim)]
