"""Stochastic gradient Langevin dynamics: steps of SGD plus noise.

With the metric F, the step size a and xi standard normal, a step is

    x <- x - a F F^T g + sqrt(2 a) F xi.

With steps that decrease, the law of the chain tends to the posterior (Welling and Teh, "Bayesian learning via
stochastic gradient Langevin dynamics", ICML 2011).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from avare.problems import Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.arguments import StepSize
from avare.solvers.chains import ChainOptions, Control, Precondition, draw_chains
from avare.solvers.dynamics import Dynamics
from avare.solvers.kernels import add_penalty, move_by_gradient, update_kernel
from avare.solvers.loop import Callback, Monitoring
from avare.solvers.metric import Metric, colour, whiten
from avare.solvers.run import Chain
from avare.solvers.sghmc import Hamiltonian

_WIDER = 1.05**2 - 1.0
"""By how much gradient noise and the step may increase variances: standard deviations by 5 %, as documented."""
_PROBE_FRICTION = 1.0
"""Friction of the short chains of tuning: the default of `sghmc`."""


def sgld(
    problem: Problem,
    sampler: Sampler | str | None = None,
    step_size: StepSize | Literal["auto"] = "auto",
    *,
    control: Control = None,
    precondition: Precondition = None,
    batch_size: int | None = None,
    steps: int = 10_000,
    burn_in: int = 0,
    thin: int = 1,
    chains: int = 4,
    start: ArrayLike | None = None,
    seed: int | np.random.SeedSequence | None = None,
    evaluate: Any = "never",
    progress: bool = False,
    callback: Callback | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Chain:
    r"""Draw from the density :math:`e^{-f(x)}` by steps of SGD plus noise of variance :math:`2 \alpha_t`.

    f is a negative log-posterior: the losses are negative log-likelihoods, and the l2 term is a normal prior of
    standard deviation 1 / sqrt(l2). As step sizes decrease, the law of the chain tends to that density. With a constant
    step size it has an error of the order of the step size, and the noise of the gradient makes it wider:
    ``chain.noise`` says by how much. A control variate removes most of that noise.

    Parameters
    ----------
    problem : Problem
        One of `avare.problems`.
    sampler : Sampler, str or None, default=None
        A sampler for the same number of examples, which continues from its present state. Or, for a linear model, the
        name of one. It is built with the norms that are expected near the mode: those of gradients or, with a control
        variate, of differences. By default `Static`, whose fixed probabilities are the best if a mode is known. With
        few examples each step uses all of them. For steps that fall as t^-b, use `Avare` with ``delta=b / 2``.
    step_size : "auto", float, schedule or callable, default="auto"
        For a linear model, "auto" chooses a constant step size with which all standard deviations should be right to
        5 %. It follows from the largest curvature in the metric and the noise of the gradient. It costs the mode, and a
        few rounds of short chains. If the posterior is not normal, they also improve the metric and the point of the
        control variate. Or a number, one of `avare.schedules`, or a function of the step t = 1, 2, ...
    control : {"none", "mode", "saga"} or array_like, optional
        How to estimate the gradient from a batch. "none": by the gradients of the batch. "mode": by their differences
        from the gradients at a mode, which ``problem.minimize`` finds; or pass your own point instead of the word.
        "saga": by their differences from the last gradients of the same examples, in a table. The sampler then learns
        the norms of the differences. By default "mode" if the step size is "auto", otherwise "none".
    precondition : {"none", "hessian", "moments"} or array_like, optional
        The metric in which steps are made. "none": no scaling. "hessian": the inverse Hessian at the mode, so that
        columns may be scaled, correlated or dummies. It is a whole matrix for up to 1000 coordinates; for more it is a
        diagonal plus 32 directions. "moments": a diagonal, one over the mean square of the gradient estimate, adapted
        until `burn_in`. Or your own diagonal. By default "hessian" if the step size is "auto", otherwise "none".
    batch_size : int, optional
        Draws per step if the sampler is not an object. By default all examples if there are at most 512. Otherwise 32
        or the number of coordinates, whichever is more, and still more if the gradient is noisy.
    steps : int, default=10_000
        Number of steps of each chain.
    burn_in : int, default=0
        Number of steps before the first draw is kept.
    thin : int, default=1
        After `burn_in`, one of every `thin` iterates is kept.
    chains : int, default=4
        Number of chains, each in a thread: compiled loops run in parallel, Python functions in turn. R-hat needs some.
        The first chain uses the sampler itself, the others copies of it with different seeds.
    start : array_like, optional
        The first iterate: a vector, or one vector per chain. By default the last draws of short chains if the step size
        is "auto", otherwise the mode if it was needed, or 0.
    seed : int or SeedSequence, optional
        Seed of the noise, and of the samplers of all chains after the first.
    evaluate : "epoch", "never", int or list of int, default="never"
        As for `sgd`; "never" by default.
    progress : bool, default=False
        Whether to show the progress on the standard error stream.
    callback : callable, optional
        Called with a `Progress` after each evaluation, in the thread of its chain. It can stop that chain by returning
        True.
    resume : mapping, optional
        The state of an earlier call. The draws are the same as without the interruption. Other arguments must be the
        same, but there may be more steps.

    Returns
    -------
    Chain
        Each call ends with checks: of R-hat, of the effective number of draws and, by gradients at some draws, of means
        and standard deviations. ``chain.warnings`` lists what is wrong, and a `ConvergenceWarning` says it. After a
        divergence there is a `DivergenceWarning`: see ``chain.status``.

    Raises
    ------
    SolverInterrupted
        After Ctrl-C: a ``KeyboardInterrupt`` whose attribute ``run`` is the chain so far.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, -1.0] + rng.normal(size=500), l2=1.0)
    >>> sampler = avare.Avare(problem.n, batch_size=50, delta=1 / 6, seed=0)
    >>> chain = sgld(problem, sampler, avare.schedules.polynomial(5e-4, 1, 0.33), steps=20_000, burn_in=2000, seed=0)
    >>> chain.mean().round(1), chain.std().round(2)
    (array([ 1., -1.]), array([0.05, 0.05]))

    With everything chosen for you: step size, control variate and metric.

    >>> chain = sgld(problem, seed=0)
    >>> chain.warnings, bool(abs(chain.noise.widening).max() < 0.1)
    ([], True)
    """
    options = ChainOptions(
        problem, Langevin(), sampler, step_size, control, precondition, batch_size, steps, burn_in, thin, chains
    )
    return draw_chains(options, start, seed, Monitoring(evaluate, progress, callback), resume)


class Langevin(Dynamics):
    """Langevin dynamics.

    In the metric a chain with curvature l, gradient noise of variance c and steps of size a has the variance
    (2 + a c) / (2 - a l) where 1 / l is right. Steps are stable up to a l = 2.
    """

    name = "sgld"

    def build(self, metric: Metric, generator: np.random.Generator) -> LangevinState:
        """Return the state of a new chain."""
        return LangevinState(metric, np.zeros(len(metric.root)))

    def probe(self) -> Dynamics:
        """Return Hamiltonian dynamics: short chains see more of the posterior with them in the same time."""
        return Hamiltonian(_PROBE_FRICTION)

    def choose_step_size(self, variance: float, curvature: float, *, independent: bool) -> float:
        """Return the step size with which no variance is too large by more than allowed, by the rule above."""
        return _WIDER * 2.0 / (variance + (1.0 + _WIDER) * curvature)

    def fast_step(self, step_size: float) -> tuple[float, float]:
        """Return how far the noise of a step goes, and the stiffness of the step."""
        return math.sqrt(2.0 * step_size), step_size / 2.0


class LangevinState(NamedTuple):
    """The state of a chain."""

    metric: Metric
    scratch: Vector
    """What a step overwrites."""


@update_kernel(LangevinState, saved=())
def _step(state, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    scratch, spread = state.scratch, math.sqrt(2.0 * size)
    whiten(state.metric, work.gradient, scratch)
    for j in range(len(scratch)):
        scratch[j] = spread * noise[done, j] - size * scratch[j]
    colour(state.metric, scratch, work.gradient)
    return move_by_gradient(work)
