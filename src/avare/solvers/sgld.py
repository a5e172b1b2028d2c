"""Stochastic gradient Langevin dynamics with any sampler."""

import copy
import warnings
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._optional import require
from avare._progress import Line
from avare.problems import Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.interrupt import Interrupt
from avare.solvers.loop import Callback, DivergenceWarning, Loop, StepSize, checked_pair
from avare.solvers.sgd import describe, resume_of
from avare.solvers.trace import Trace, evaluation_steps


class Chain:
    """What `sgld` gives: draws of one chain or several.

    With decreasing steps a draw stands for the time of its step: averages over draws are right
    when weighted by the step sizes, as those here are.
    """

    def __init__(self, loops: list[Loop], burn_in: int, thin: int) -> None:
        sound = [loop for loop in loops if loop.status != "diverged"] or loops
        kept = min(loop.kept() for loop in sound)
        self.draws: Vector = np.stack([loop.iterates.draws[:kept] for loop in sound])
        """Chains by draws by dim; without those that diverged, if there are others."""
        self.sound: list[int] = [loop._chain for loop in sound]
        """Which chains these are."""
        self.step_sizes: Vector = loops[0]._sizes(burn_in + 1, kept * thin)[thin - 1 :: thin]
        """The step size at each draw."""
        self.traces: list[Trace] = [loop.trace for loop in loops]
        """One table of evaluations a chain."""
        self.steps: int = min(loop.step for loop in sound)
        """How many steps each of them has made."""
        self.seconds: float = max(loop.seconds for loop in loops)
        """How long the longest took, evaluations not counted."""
        self._loops = loops
        ended = next((loop for loop in loops if loop.status != "finished"), loops[0])
        self.status: str = ended.status
        """"finished", "stopped" (by the callback), "interrupted" (by Ctrl-C) or "diverged"."""
        self.message: str = ended.message
        """Why it ended, if before its time."""

    @property
    def trace(self) -> Trace:
        """The evaluations of the first chain."""
        return self.traces[0]

    def mean(self) -> Vector:
        """The mean of all draws, weighted by their step sizes."""
        draws, weights = self._weighted()
        return weights @ draws

    def covariance(self) -> Vector:
        """The covariance of all draws, weighted by their step sizes."""
        draws, weights = self._weighted()
        centred = draws - weights @ draws
        return (centred * weights[:, None]).T @ centred

    def std(self) -> Vector:
        """The standard deviations of all draws, weighted by their step sizes."""
        draws, weights = self._weighted()
        return np.sqrt(weights @ (draws - weights @ draws) ** 2)

    def quantile(self, q: float) -> Vector:
        """A quantile of each coordinate over all draws, weighted by their step sizes."""
        q = validation.number("q", q, at_least=0.0, at_most=1.0)
        draws, weights = self._weighted()
        order = np.argsort(draws, axis=0)
        reached = np.cumsum(weights[order], axis=0) >= q * (1.0 - 1e-12)
        rows = np.argmax(reached, axis=0)
        columns = np.arange(draws.shape[1])
        quantiles: Vector = draws[order[rows, columns], columns]
        return quantiles

    def _weighted(self) -> tuple[Vector, Vector]:
        """All draws, one after another, and weights that sum to 1."""
        if not len(self.step_sizes):
            raise ValueError(f"no draws were kept in {self.steps} steps")
        weights = np.tile(self.step_sizes, len(self.draws))
        return self.draws.reshape(len(weights), -1), weights / weights.sum()

    def to_arviz(self, *, name: str = "x", resample: bool = False) -> Any:
        """The draws as ArviZ takes them, with the step sizes beside them.

        Parameters
        ----------
        name
            Of the variable.
        resample
            ArviZ knows no weights. True: each chain is resampled in proportion to the step sizes
            (systematically, in order), so that its plain averages are the right ones for
            decreasing steps; but draws then repeat, and it counts them as correlated.
        """
        arviz = require("arviz", "to_arviz")
        self._weighted()  # refuses where there are none
        draws, sizes = self.draws, self.step_sizes
        if resample:
            reached = np.cumsum(sizes) / sizes.sum()
            chosen = np.searchsorted(reached, (np.arange(len(sizes)) + 0.5) / len(sizes))
            draws, sizes = draws[:, chosen], sizes[chosen]
        statistics = {"step_size": np.tile(sizes, (len(draws), 1))}
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.from_dict(posterior={name: draws}, sample_stats=statistics)
        return arviz.from_dict({"posterior": {name: draws}, "sample_stats": statistics})

    def state_dict(self) -> dict[str, Any]:
        """All it takes to go on with ``sgld(..., resume=state)``, the sampler's state included.

        May be pickled, or kept with ``numpy.savez(file, **state)``. To be asked for before the
        sampler draws again.
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
    r"""Draw from the density :math:`e^{-f(x)}`: steps of SGD plus noise of variance :math:`2 \alpha_t`.

    f is then a negative log-posterior: the losses negative log-likelihoods, the l2 term a normal
    prior of precision l2. As step sizes fall the chain's law tends to that density; at a constant
    size it stays off by something of the order of the step.

    Parameters
    ----------
    problem
        One of `avare.problems`.
    sampler
        Any sampler, for as many examples; it goes on from where it is. For steps falling as t^-b,
        `Avare` with ``delta=b / 2``.
    step_size
        A number, one of `avare.schedules`, or a function of the step t = 1, 2, ...
    steps
        Of each chain.
    burn_in
        How many of them come before the first draw is kept.
    thin
        Of the steps after, one in so many is kept.
    chains
        How many, side by side in threads: compiled loops run at once, Python functions in turn.
        The first uses the sampler itself, the others copies of it with draws of their own.
    start
        Where to start: a vector, or one for each chain; 0 by default.
    seed
        Of the noise (of all draws, in the chains after the first).
    evaluate
        As for `sgd`; never, by default.
    optimum
        The least objective, for the suboptimality; by default the problem's, if it is known.
    progress
        Whether to say on the standard error stream how it goes.
    callback
        Called after each evaluation with a `Progress`, in the thread of its chain; may stop that
        chain by returning True.
    resume
        The state of an earlier call, which goes on to the same draws as without the stop. Other
        arguments must be as they were, but there may be more steps.

    Returns
    -------
    Chain
        Also on divergence, with a `DivergenceWarning`, and on Ctrl-C: ``chain.status`` tells.

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
        raise ValueError('callback is called after each evaluation: give evaluate=, which is "never"')
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
        found = int(np.asarray(state.get("chains", 0)))
        if found != chains:
            raise ValueError(f"resume['chains'] = {found}: this call has {chains}")
        for k, loop in enumerate(loops):
            prefix = f"{k}/"
            loop.resume({key.removeprefix(prefix): each for key, each in state.items() if key.startswith(prefix)})
    title = f"sgld with {type(sampler).__name__}" + (f", {chains} chains" if chains > 1 else "")
    with Interrupt() as interrupt, Line(title, shown=progress) as line:
        _run(loops, interrupt, line)
    for loop in loops:
        if loop.status == "diverged":
            place = f"chain {loop._chain} " if chains > 1 else ""
            warnings.warn(place + loop.message, DivergenceWarning, stacklevel=2)
    return Chain(loops, burn_in, thin)


def _run(loops: list[Loop], interrupt: Interrupt, line: Line) -> None:
    """Run all, each in a thread of its own."""
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
    array = np.asarray(start)
    if array.shape != (chains, problem.dim):
        raise ValueError(f"start has shape {array.shape}: must be ({problem.dim},) or ({chains}, {problem.dim})")
    return list(array)
