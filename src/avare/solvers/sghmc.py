"""Stochastic gradient Hamiltonian Monte Carlo with any sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare.problems import Problem
from avare.samplers import Sampler
from avare.solvers.chains import Chain, Control, Precondition, draw_chains
from avare.solvers.loop import Callback, StepSize


def sghmc(
    problem: Problem,
    sampler: Sampler | str = "Static",
    step_size: StepSize | Literal["auto"] = "auto",
    *,
    friction: float = 1.0,
    control: Control = None,
    precondition: Precondition = None,
    batch_size: int | None = None,
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
    r"""Draw from the density :math:`e^{-f(x)}` by Hamiltonian dynamics with friction and noise.

    An iterate has a velocity, so that a chain crosses the posterior in fewer steps than with `sgld`. A step is split
    such that its size hardly matters as long as it is stable: for a normal posterior and exact gradients the law is
    exact (the BAOAB splitting of Leimkuhler and Matthews). The noise of the gradient is measured now and then, with a
    copy of the sampler, and that much less noise is added with the friction. What is left is in ``chain.noise``.

    Parameters
    ----------
    problem
        One of `avare.problems`.
    sampler
        A sampler for the same number of examples, which continues from its present state. Or, for a linear model,
        the name of one: it is built with the norms that are expected near the mode, those of gradients or, with a
        control variate, of differences. For steps that fall as t^-b, use `Avare` with ``delta=b / 2``.
    step_size
        "auto" chooses, for a linear model, the largest constant step size with which all standard deviations should
        be right to 5 %, and which is safely stable. It costs the mode, and the gradients of some hundred batches.
        Or a number, one of `avare.schedules`, or a function of the step t = 1, 2, ...
    friction
        How fast the velocity is forgotten, per unit of time; a step takes `step_size`. With ``precondition="hessian"``
        a coordinate oscillates with a period of about 6.3, and 1 is a good choice.
    control
        How to estimate the gradient from a batch. "none": by the gradients of the batch. "mode": by how much they
        differ from those at a mode, which ``problem.minimize`` finds; or pass your own point instead of the word.
        "saga": by how much they differ from the last ones of the same examples, in a table. The sampler then learns
        the norms of the differences. By default "mode" if the step size is "auto",
        otherwise "none".
    precondition
        A diagonal D, one over the masses of the coordinates. "none": 1. "hessian": one over the
        curvature of f along each coordinate, at the mode. "moments": one over the mean square of the gradient estimate,
        adapted until `burn_in`. Or your own vector. By default "hessian" for a linear model, otherwise "none".
    batch_size
        Draws per step if the sampler is given by name; 32 by default, and fewer for less than 3200 examples.
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
        The first iterate: a vector, or one vector per chain. By default the mode if it was needed, otherwise 0.
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
    >>> X = rng.normal(size=(500, 2)) * [1.0, 100.0]
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, -0.01] + rng.normal(size=500), l2=1.0)
    >>> chain = sghmc(problem, batch_size=10, steps=5000, burn_in=500, seed=0)
    >>> exact = np.sqrt(np.diag(np.linalg.inv(problem.gram(np.zeros(2)))))
    >>> (chain.mean() * [1.0, 100.0]).round(1), (chain.std() / exact).round(1)
    (array([ 1., -1.]), array([1., 1.]))
    """
    return draw_chains(
        "sghmc",
        problem,
        sampler,
        step_size,
        friction=validation.number("friction", friction, above=0.0),
        control=control,
        precondition=precondition,
        batch_size=batch_size,
        steps=steps,
        burn_in=burn_in,
        thin=thin,
        chains=chains,
        start=start,
        seed=seed,
        evaluate=evaluate,
        optimum=optimum,
        progress=progress,
        callback=callback,
        resume=resume,
    )
