"""Stochastic gradient Hamiltonian Monte Carlo: steps with a velocity, friction and noise.

With the metric F, the velocity v, the friction r, the step size h and xi standard normal, a step is a kick, half a
move, friction with noise, and half a move:

    v <- v - h F^T g,   x <- x + h/2 F v,   v <- c v + s xi,   x <- x + h/2 F v,

with c = exp(-r h) and s^2 = 1 - c^2 - c^2 h^2 V. V are the variances of F^T g as far as they have been measured, and 0
before: the noise of the batches replaces a part of the noise of the friction. If F is a whole matrix, it is rotated
such that F^T g has no correlations. For a normal law and an exact gradient, x has exactly the right law, whatever the
step size. This is the BAOAB splitting (Leimkuhler and Matthews, "Rational construction of stochastic numerical methods
for molecular sampling", 2013); the two half kicks of neighbouring steps are made at once, by the same batch. SGHMC is
by Chen, Fox and Guestrin (ICML 2014).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
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

_STABLE = 0.7
"""Step size times the root of the largest curvature. Steps are stable up to 2; the distance is a guess."""
_ADDED, _SUBTRACTED = 0.1, 0.4
"""Largest share of a velocity's variance that comes from gradient noise, without and with correction.

0.1 widens standard deviations by 5 %. What is subtracted is only known as well as it was measured: 0.4 is a guess.
"""


def sghmc(
    problem: Problem,
    sampler: Sampler | str | None = None,
    step_size: StepSize | Literal["auto"] = "auto",
    *,
    friction: float = 1.0,
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
    r"""Draw from the density :math:`e^{-f(x)}` by Hamiltonian dynamics with friction and noise.

    An iterate has a velocity, so that a chain crosses the posterior in fewer steps than with `sgld`. The step size
    hardly matters as long as steps are stable: for a normal posterior and exact gradients the law is exact. The noise
    of the gradient is measured now and then, with a copy of the sampler, and that much less noise is added with the
    friction. What is left is in ``chain.noise``.

    Parameters
    ----------
    friction : float, default=1.0
        How fast the velocity is forgotten, per unit of time; a step takes `step_size`. With ``precondition="hessian"``
        a coordinate oscillates with a period of about 6.3, and 1 is a good choice.
    precondition : {"none", "hessian", "moments"} or array_like, optional
        As for `sgld`, but by default "hessian" for every linear model, also if `step_size` is given.
    problem, sampler, step_size, control, batch_size
        The posterior, and how to estimate its gradient: see `sgld`.
    steps, burn_in, thin, chains, start, seed
        Which draws to make and to keep: see `sgld`.
    evaluate, progress, callback, resume
        How to watch a call, and to continue one: see `sgld`.

    Returns
    -------
    Chain
        The draws, with the same checks and warnings as those of `sgld`.

    Raises
    ------
    SolverInterrupted
        After Ctrl-C: a ``KeyboardInterrupt`` whose attribute ``run`` is the chain so far.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2)) * [1.0, 100.0]
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, -0.01] + rng.normal(size=500), l2=1.0)
    >>> chain = sghmc(problem, batch_size=10, steps=5000, seed=0)
    >>> exact = np.sqrt(np.diag(np.linalg.inv(problem.gram(np.zeros(2)))))
    >>> (chain.mean() * [1.0, 100.0]).round(1), (chain.std() / exact).round(1)
    (array([ 1., -1.]), array([1., 1.]))
    """
    dynamics = Hamiltonian(validation.number("friction", friction, above=0.0))
    options = ChainOptions(
        problem, dynamics, sampler, step_size, control, precondition, batch_size, steps, burn_in, thin, chains
    )
    return draw_chains(options, start, seed, Monitoring(evaluate, progress, callback), resume)


class Hamiltonian(Dynamics):
    """Hamiltonian dynamics with friction.

    In the metric, steps of size h are stable up to h^2 l = 4, with the curvature l, and exact for a normal law.
    Gradient noise of variance c adds k^2 h^2 c / (1 - k^2) to the variance of a velocity, with k = exp(-friction h),
    unless it is subtracted.
    """

    name = "sghmc"
    uses_hessian = True
    corrects_noise = True

    def __init__(self, friction: float) -> None:
        self.friction = friction

    def build(self, metric: Metric, generator: np.random.Generator) -> HamiltonianState:
        """Return the state of a new chain, with a velocity that the generator draws."""
        dim = len(metric.root)
        velocity = generator.standard_normal(dim)
        return HamiltonianState(metric, velocity, np.zeros(dim), np.zeros(dim), self.friction)

    def correct(self, state: HamiltonianState, covariance: Vector) -> None:
        """Subtract this covariance of F^T g from the noise of the friction; F, the velocity and it are rotated.

        Without a whole matrix F only its diagonal is used, and may be given alone.
        """
        factor = state.metric.factor
        if not len(factor):
            state.excess[:] = covariance
            return
        values, rotation = np.linalg.eigh(covariance)
        state.excess[:], factor[:] = np.maximum(values, 0.0), factor @ rotation
        state.velocity[:], covariance[:] = state.velocity @ rotation, np.diag(values)

    def choose_step_size(self, variance: float, curvature: float, *, independent: bool) -> float:
        """Return the largest step size with stable steps and little gradient noise."""
        most = _SUBTRACTED if independent else _ADDED
        size = _STABLE / math.sqrt(curvature)
        while (size * math.exp(-self.friction * size)) ** 2 * variance > most * -math.expm1(
            -2.0 * self.friction * size
        ):
            size *= 0.95
        return size

    def fast_step(self, step_size: float) -> tuple[float, float]:
        """Return how far the velocity of a step goes, and the stiffness of the step."""
        return step_size, step_size**2 / 4.0


class HamiltonianState(NamedTuple):
    """The state of a chain."""

    metric: Metric
    velocity: Vector
    excess: Vector
    """The measured variances of F^T g."""
    scratch: Vector
    """What a step overwrites."""
    friction: float


@update_kernel(HamiltonianState, saved=("velocity", "excess"))
def _step(state, work, size, noise, done, at):
    if not add_penalty(work, size):
        return False
    velocity, scratch, kept = state.velocity, state.scratch, math.exp(-state.friction * size)
    whiten(state.metric, work.gradient, scratch)
    for j in range(len(scratch)):
        velocity[j] -= size * scratch[j]
        spread = math.sqrt(max(1.0 - kept * kept * (1.0 + size * size * state.excess[j]), 0.0))
        scratch[j] = velocity[j]
        velocity[j] = kept * velocity[j] + spread * noise[done, j]
        scratch[j] = 0.5 * size * (scratch[j] + velocity[j])
    colour(state.metric, scratch, work.gradient)
    return move_by_gradient(work)
