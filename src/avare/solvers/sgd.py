"""Stochastic gradient descent with any sampler."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._randomness import Seed
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.schedules import Auto, Schedule
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.kernels import NEVER, record_of
from avare.solvers.loop import Callback, Loop, Watch
from avare.solvers.run import Run, run_of
from avare.solvers.saga import bends_of, sampler_of
from avare.solvers.step_sizes import StepSize, falling, first_move, request_of, sizes_of
from avare.solvers.steps import Steps
from avare.solvers.updates.descent import descent
from avare.solvers.verdict import ConvergenceWarning

_RECENT = 3.0  # the power with which the weights of "recent" grow
_LITTLE = 0.1  # of the way of a coefficient, and of what a run has gained
_ROWS, _ENOUGH = 512, 1.0  # of a sample that shows curvatures, and the way of a coefficient that needs no closer look
_PILOT = 10  # if sizes fall by a given power, they are found during a tenth of the steps


def sgd(
    problem: Problem,
    sampler: Sampler | str,
    step_size: StepSize | Auto | Literal["auto"] = "auto",
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    start: ArrayLike | None = None,
    averaging: Literal["none", "polyak", "suffix", "recent"] | None = None,
    evaluate: Any = "epoch",
    progress: bool = False,
    callback: Callback | None = None,
    resume: Mapping[str, Any] | None = None,
    seed: Seed = None,
) -> Run:
    r"""Minimise a finite sum by :math:`x \leftarrow x - \alpha_t (\sum_j w_j g_{I_j} + \nabla R(x))`.

    Each step draws a batch, takes a step, and reports the norms of the batch to the sampler. The loop is compiled as
    a whole for the linear models of `avare.problems`, with a sampler that brings kernels: `Avare`, `Calibrated`,
    `Uniform`, `Static`, `Srg`, `Passes`, or your own (see `avare.samplers.kernels`).

    Parameters
    ----------
    problem : Problem
        One of `avare.problems`.
    sampler : Sampler or str
        Any sampler for the same number of examples, which continues from its present state; or the name of one. With a
        name its probabilities have a lasting floor, for any step sizes: see `avare.samplers.build`.
    step_size : "auto", float, schedule or callable, default="auto"
        "auto" finds step sizes that fit the problem and the sampler while it runs, from the distance to the start
        and the gradients so far. No step is spent on trials; each costs two sums over the coefficients more.
        ``schedules.auto(power)`` sets how fast step sizes fall. Or a number, one of `avare.schedules`, or a function
        of the step t = 1, 2, ...
        It multiplies the **sum** of gradients.
    epochs : int, optional
        Number of epochs, 10 by default. An epoch has ``n // batch_size`` steps, at least 1.
    steps : int, optional
        Number of steps, instead of `epochs`.
    batch_size : int, optional
        Draws per step if the sampler is given by name; 32 by default, and fewer for less than 3200 examples.
    start : array_like, optional
        The first iterate; 0 by default.
    averaging : {"none", "polyak", "suffix", "recent"}, optional
        "polyak" averages all iterates, "suffix" those of the second half, and "recent" all with weights that grow as
        t^3, so that the first ones are soon forgotten. ``run.x`` and the objectives in the trace are then those of the
        average, once it has begun. By default "recent" if the step sizes are "auto", otherwise "none".
    evaluate : "epoch", "never", int or list of int, default="epoch"
        When to evaluate: "epoch", "never", an interval in steps (an integer), or a list of steps, where 0 is
        before the first. Each evaluation costs a pass over the data; the measured time does not include it.
    progress : bool, default=False
        Whether to show the progress on the standard error stream.
    callback : callable, optional
        Called with a `Progress` after each evaluation. It can stop the run by returning True.
    resume : mapping, optional
        The state of an earlier run. The iterates are the same as without the interruption. Other
        arguments must be the same, but there may be more steps, unless ``averaging="suffix"`` or the step sizes are
        ``schedules.auto(power)``.
    seed : int, SeedSequence or Generator, optional
        Seed of the sampler, if it is given by name.

    Returns
    -------
    Run
        Also after a divergence, with a `DivergenceWarning`: see ``run.status``. If the columns of a linear model have
        scales so different that no stable step size is enough for one of them, a `ConvergenceWarning` names it.

    Raises
    ------
    Interrupted
        After Ctrl-C: a ``KeyboardInterrupt`` whose attribute ``run`` is the result so far.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 3)) * rng.lognormal(0, 1, (1000, 1))
    >>> problem = avare.problems.LeastSquares(X, X @ [1.0, 2.0, 3.0], l2=0.0)
    >>> sampler = avare.Avare(problem.n, batch_size=10, seed=0)
    >>> run = sgd(problem, sampler, epochs=20)
    >>> run.x.round(2)
    array([1., 2., 3.])
    >>> bool(run.trace.objective[-1] < 1e-3 * run.trace.objective[0])
    True
    """
    sampler = sampler_of(problem, sampler, batch_size, seed)
    if problem.l1 > 0.0:
        raise ValueError(f"problem has l1 = {problem.l1}: use avare.saga, which takes a proximal step")
    watch, epoch = Watch(evaluate, progress, callback), max(1, problem.n // sampler.batch_size)
    if epochs is not None and steps is not None:
        raise ValueError(f"epochs = {epochs} and steps = {steps}: pass only one of them")
    if steps is None:
        steps = epoch * validation.integer("epochs", 10 if epochs is None else epochs, at_least=0)
    steps = validation.integer("steps", steps, at_least=0)
    wanted = request_of(step_size)
    if averaging is None:
        averaging = "none" if wanted is None else "recent"
    ways = {"none": (NEVER, 0.0), "polyak": (0, 0.0), "suffix": (steps // 2, 0.0), "recent": (0, _RECENT)}
    average_from, power = ways[validation.choice("averaging", averaging, ways)]
    x = np.zeros(problem.dim) if start is None else problem.vector("start", start).copy()
    update, sizes = descent(x), step_size
    if wanted is not None:
        found_until, sizes = NEVER, 1.0
        if wanted.power is not None:
            found_until = max(1, steps // _PILOT)
            sizes = Schedule(falling, (found_until, wanted.power))
        update = descent(x, first_move(problem, x, sampler.batch_size), found_until)
    record = record_of(problem.dim, average_from=average_from, average_power=power)
    loop = Loop(Steps("sgd", sampler, PlainEstimator(problem, x), update, record), watch, sizes_of(sizes), steps)
    first = x.copy()
    run = run_of(loop, step_size if wanted is None else None, resume)
    if run.status == "finished" and run.steps and isinstance(problem, Linear):
        _warn_of_scales(problem, first, run)
    return run


def _warn_of_scales(problem: Linear, start: Vector, run: Run) -> None:
    """Warn of a coefficient that cannot have come a tenth of its way, if that costs a tenth of what the run has gained.

    Step sizes are stable up to 2 over the curvature of f, which is at least that along any column. So t steps bring a
    coefficient at most 2 t times its own curvature over the largest one closer, relative to its way. A change of this
    coefficient alone lowers f by the square of its gradient over twice its curvature, at least.

    With steps of one size, a coefficient comes t times this size times its curvature closer. If that is clearly enough
    for each by the curvature of some rows, no pass over the data is needed. There are two samples, of which the smaller
    curvature counts: a row of a rare column, or a long one, does not seem to be common.
    """
    size, least = run.step_size if isinstance(run.step_size, float) else 0.0, math.inf
    for first in (0, max(problem.n // _ROWS // 2, 1)):
        some = np.arange(first % problem.n, problem.n, max(problem.n // _ROWS, 1))
        weights = problem.model.sample_weight[some] if len(problem.model.sample_weight) else np.ones(len(some))
        least = min(least, float(_curvatures(problem.subset(some, weights * (problem.n / len(some)))).min()))
    if run.steps * size * least > _ENOUGH:
        return
    curvature = _curvatures(problem)
    slow = (curvature > 0.0) & (2.0 * run.steps * curvature < _LITTLE * curvature.max())
    if not slow.any():
        return
    left = np.divide(problem.gradient(run.x) ** 2, 2.0 * curvature, out=np.zeros(problem.dim), where=slow)
    gained, worst = problem.objective(start) - problem.objective(run.x), int(left.argmax())
    if left[worst] > _LITTLE * gained:
        ratio = math.sqrt(curvature.max() / curvature[worst])
        message = (
            f"{problem.names[worst]} has hardly moved in {run.steps} steps, because its column is {ratio:,.0f} times "
            f"smaller than the largest. It alone could lower the objective by {left[worst]:.3g}, where the run has "
            f"gained {gained:.3g}: scale the columns of X, or use avare.saga or problem.minimize()"
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)


def _curvatures(problem: Linear) -> Vector:
    """Return the largest curvature of f along each coefficient. One pass over the data."""
    return np.tile(problem.rows(centred=False).squares(bends_of(problem)), problem.outputs) + problem.penalty.l2
