"""Stochastic gradient Langevin dynamics with any sampler."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._optional import require
from avare._progress import Line
from avare._state import require_same
from avare.plotting import chain_figure
from avare.problems import Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.interrupt import Interrupt
from avare.solvers.loop import Callback, DivergenceWarning, Loop, StepSize, checked_pair
from avare.solvers.sgd import describe, resume_of
from avare.solvers.trace import Trace, evaluation_steps


class Chain:
    """The result of `sgld`: draws of one or several chains.

    With decreasing steps a draw represents the time of its step, so averages over draws must be weighted by the
    step sizes. The methods of this class do so.

    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 2.0], l2=1.0)
    >>> chain = sgld(problem, avare.Uniform(2, 1, seed=0), 0.01, steps=100, thin=10, chains=2, seed=0)
    >>> chain.draws.shape, chain.mean().shape, chain.status
    ((2, 10, 1), (1,), 'finished')
    """

    def __init__(self, loops: list[Loop], burn_in: int, thin: int) -> None:
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
        self._loops = loops
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
        return chain_figure(self.draws, self.step_sizes, self._names(names) or [f"x[{k}]" for k in range(dim)])

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
        """Return everything needed for ``sgld(..., resume=state)``, including the samplers' states.

        It can be pickled, or saved with ``numpy.savez(file, **state)``. Call this before the sampler draws again.
        """
        state: dict[str, Any] = {"solver": "sgld", "chains": len(self._loops)}
        for k, loop in enumerate(self._loops):
            state.update({f"{k}/{key}": value for key, value in loop.state().items()})
        return state

    def __repr__(self) -> str:
        chains, draws, dim = self.draws.shape
        return (
            f"Chain({self.status} after {self.steps} steps in {self.seconds:.3g} s: {chains} x {draws} draws of {dim})"
        )


def sgld(
    problem: Problem,
    sampler: Sampler,
    step_size: StepSize,
    *,
    steps: int = 10_000,
    burn_in: int = 0,
    thin: int = 1,
    chains: int = 1,
    start: ArrayLike | None = None,
    seed: int | np.random.SeedSequence | None = None,
    evaluate: Any = "never",
    optimum: float | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Chain:
    r"""Draw from the density :math:`e^{-f(x)}` by steps of SGD plus noise of variance :math:`2 \alpha_t`.

    f is a negative log-posterior: the losses are negative log-likelihoods, and the l2 term is a normal
    prior of precision l2. As step sizes decrease, the law of the chain tends to that density. With a constant
    step size it has an error of the order of the step size.

    Parameters
    ----------
    problem
        One of `avare.problems`.
    sampler
        Any sampler for the same number of examples. It continues from its present state. For steps that fall
        as t^-b, use `Avare` with ``delta=b / 2``.
    step_size
        A number, one of `avare.schedules`, or a function of the step t = 1, 2, ...
    steps
        Number of steps of each chain.
    burn_in
        Number of steps before the first draw is kept.
    thin
        After `burn_in`, one of every `thin` iterates is kept.
    chains
        Number of chains, each in a thread: compiled loops run in parallel, Python functions in turn.
        The first chain uses the sampler itself, the others copies of it with different seeds.
    start
        The first iterate: a vector, or one vector per chain; 0 by default.
    seed
        Seed of the noise, and of the samplers of all chains after the first.
    evaluate
        As for `sgd`; "never" by default.
    optimum
        The smallest objective, for the suboptimality; by default the problem's, if it is known.
    progress
        Whether to show the progress on the standard error stream.
    callback
        Called with a `Progress` after each evaluation, in the thread of its chain. It can stop that
        chain by returning True.
    resume
        The state of an earlier call. The draws are the same as without the interruption. Other
        arguments must be the same, but there may be more steps.

    Returns
    -------
    Chain
        Also after a divergence, with a `DivergenceWarning`, and after Ctrl-C: see ``chain.status``.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, -1.0] + rng.normal(size=500), l2=1.0)
    >>> sampler = avare.Avare(problem.n, batch_size=10, delta=1 / 6, seed=0)
    >>> chain = sgld(problem, sampler, avare.schedules.polynomial(1e-3, 1, 0.33), steps=5000, burn_in=500, seed=0)
    >>> chain.mean().round(1), chain.std().round(1)
    (array([ 1., -1.]), array([0.1, 0.1]))
    """
    checked_pair(problem, sampler)
    steps = validation.integer("steps", steps, at_least=0)
    burn_in = validation.integer("burn_in", burn_in, at_least=0)
    thin = validation.integer("thin", thin, at_least=1)
    chains = validation.integer("chains", chains, at_least=1)
    progress = validation.boolean("progress", progress)
    if callback is not None and isinstance(evaluate, str) and evaluate == "never":
        raise ValueError('callback is called after each evaluation, and evaluate = "never": pass another evaluate=')
    starts = _starts(problem, start, chains)
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    seeds = root.spawn(2 * chains)
    samplers = [sampler, *(copy.deepcopy(sampler) for _ in range(chains - 1))]
    for k in range(1, chains):
        samplers[k].reseed(seeds[chains + k])
    loops = [
        Loop(
            problem,
            samplers[k],
            step_size,
            steps=steps,
            evaluations=evaluation_steps(evaluate, steps, max(1, problem.n // sampler.batch_size)),
            optimum=optimum,
            start=starts[k],
            burn_in=burn_in,
            thin=thin,
            noise=np.random.default_rng(seeds[k]),
            callback=callback,
            chain=k,
        )
        for k in range(chains)
    ]
    if resume is not None:
        state = resume_of("sgld", resume)
        require_same(state, {"chains": chains}, "resume", "this call")
        parts = [
            {key.removeprefix(f"{k}/"): each for key, each in state.items() if key.startswith(f"{k}/")}
            for k in range(chains)
        ]
        read = [loop.read(part) for loop, part in zip(loops, parts, strict=True)]  # all, before any is replaced
        for loop, (values, of_sampler) in zip(loops, read, strict=True):
            loop.resume(values, of_sampler)
    title = f"sgld with {type(sampler).__name__}" + (f", {chains} chains" if chains > 1 else "")
    with Interrupt() as interrupt, Line(title, shown=progress) as line:
        _run(loops, interrupt, line)
    for loop in loops:
        if loop.status == "diverged":
            place = f"chain {loop._chain} " if chains > 1 else ""
            warnings.warn(place + loop.message, DivergenceWarning, stacklevel=2)
    return Chain(loops, burn_in, thin)


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
