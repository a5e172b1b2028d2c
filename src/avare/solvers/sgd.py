"""Stochastic gradient descent with any sampler: with given step sizes, or with sizes that a run finds by itself.

How long steps may be depends on the curvature of f, on the noise that a sampler leaves and on the distance to the
minimum. The steps themselves show all three (Ivgi, Hinder & Carmon, "DoG is SGD's best friend", ICML 2023):

    size_t = r_t / sqrt(|g_1|^2 + ... + |g_t|^2),    r_t = the largest distance from the start so far, at least r_0.

For example, start at x = 0 with gradients of norm 10 that all point to a minimum at distance 3. Then r grows from r_0
by a fraction 1 / sqrt(t) at step t, and is 3 after a few dozen steps, whatever r_0 was. With noise of norm 10 the size
then falls as 3 / (10 sqrt(t)), as it should for averaged iterates. Without noise the gradients vanish, their sum
converges, and the size stays. If steps are too long, gradients and their sum grow, and the size falls; no step is
longer than r_t. So no trial steps are needed, and each sampler gets its own sizes. Each step costs two extra passes
over the coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from avare import _validation as validation
from avare._compilation import inlined, product
from avare._randomness import Seed
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.schedules import Auto, Schedule
from avare.solvers.arguments import StepSize, resolve_sampler, sizes_of
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.kernels import NEVER, magnitude, record_of, update_kernel
from avare.solvers.loop import Callback, Loop, Monitoring
from avare.solvers.preconditioner import warn_of_scales
from avare.solvers.run import Run, run_of
from avare.solvers.steps import Steps

_RECENT = 3.0
"""Weights of "recent" grow as this power of the step, as documented: half of the weight is on the last 16 %."""
_PILOT = 10
"""If sizes fall by a given power, a tenth of the steps finds them, as documented: a guess."""
_ROWS = 64
"""Rows that show the gradient at the start; more with larger batches. A guess: r_0 may be too small, as it grows."""
_CAUTION = 16.0
"""The smoothness over the curvature along the gradient, if it is not known: a guess, and a small r_0 is safe."""
_MOVE = 1e-4
"""Relative length of the move that shows this curvature: a guess, well above the 1e-8 at which rounding dominates."""


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
        and the gradients so far. No step is spent on trials; each step costs two extra passes over the coefficients.
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
    SolverInterrupted
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
    sampler = resolve_sampler(problem, sampler, batch_size, seed)
    if problem.l1 > 0.0:
        raise ValueError(f"problem has l1 = {problem.l1}: use avare.saga, which takes a proximal step")
    monitoring, epoch = Monitoring(evaluate, progress, callback), max(1, problem.n // sampler.batch_size)
    if epochs is not None and steps is not None:
        raise ValueError(f"epochs = {epochs} and steps = {steps}: pass only one of them")
    if steps is None:
        steps = epoch * validation.integer("epochs", 10 if epochs is None else epochs, at_least=0)
    steps = validation.integer("steps", steps, at_least=0)
    request = Auto(None) if isinstance(step_size, str) and step_size == "auto" else step_size
    wanted = request if isinstance(request, Auto) else None
    if averaging is None:
        averaging = "none" if wanted is None else "recent"
    kinds = {"none": (NEVER, 0.0), "polyak": (0, 0.0), "suffix": (steps // 2, 0.0), "recent": (0, _RECENT)}
    average_from, power = kinds[validation.choice("averaging", averaging, kinds)]
    x = np.zeros(problem.dim) if start is None else problem.vector("start", start).copy()
    update, sizes = SgdState(np.empty(0), np.empty(0), 0), step_size
    if wanted is not None:
        found_until, sizes = NEVER, 1.0
        if wanted.power is not None:
            found_until = max(1, steps // _PILOT)
            sizes = Schedule(falling, (found_until, wanted.power))
        update = SgdState(x.copy(), np.array([first_move(problem, x, sampler.batch_size), 0.0]), found_until)
    record = record_of(problem.dim, average_from=average_from, average_power=power)
    first, method = x.copy(), SgdSteps("sgd", sampler, PlainEstimator(problem, x), update, record)
    loop = Loop(method, monitoring, sizes_of(sizes), steps)
    run = run_of(loop, step_size if wanted is None else None, resume)
    if run.status == "finished" and run.steps and isinstance(problem, Linear):
        warn_of_scales(problem, first, run)
    return run


def falling(t: Any, last: int, power: float) -> Any:
    """Return factors on the sizes found until step `last`: 1 until then, later falling by a power."""
    return (np.maximum(t, last) / last) ** -power


def first_move(problem: Problem, x: Vector, batch_size: int) -> float:
    """Return r_0, a short way to go at first: the norm of the gradient, from some rows, over the smoothness of f.

    The minimum cannot be nearer than gradient over smoothness, and r_0 must not be above its distance. If the
    smoothness is not known, a multiple of the curvature along the gradient takes its place.
    """
    size = min(problem.n, max(_ROWS, batch_size))
    rows = np.arange(size) * problem.n // size  # evenly spread
    weights = np.full(size, problem.n / size)

    def gradient(at: Vector) -> Vector:
        return problem.loss_batch_gradient(at, rows, weights)[0] + problem.penalty.l2 * at

    here = gradient(x)
    length = float(np.linalg.norm(here))
    if not 0.0 < length < math.inf:
        return 1.0
    if isinstance(problem, Linear):
        smoothness = float(problem.smoothness.sum())
    else:
        move = _MOVE * (1.0 + float(np.linalg.norm(x)))
        smoothness = _CAUTION * float(np.linalg.norm(gradient(x + here * (move / length)) - here)) / move
    return length / smoothness if 0.0 < smoothness < math.inf else 1e-3


class SgdState(NamedTuple):
    """The state of gradient descent; both arrays are empty if sizes are given."""

    origin: Vector
    """The first iterate."""
    reach: Vector
    """The largest distance from the origin, and the sum of the squared norms of all gradients."""
    adapt_until: int
    """Until this step, sizes follow the path; 0 if they are given."""


class SgdSteps(Steps):
    """The steps of one run of SGD."""

    update: SgdState

    def step_size_factor(self) -> float:
        """Return what multiplies the given step sizes."""
        return _dog_size(self.update.reach) if len(self.update.reach) else 1.0


def _dog_size(reach: Vector) -> float:
    """Return the distance over the root of the sum of squares: the size of the next step; NaN if it overflows."""
    if reach[1] == np.inf:
        return np.nan
    return reach[0] / math.sqrt(reach[1]) if reach[1] > 0.0 else 0.0


_dog_size_in_kernels = inlined(_dog_size)


@update_kernel(SgdState, saved=("origin", "reach"))
def _apply(state, work, size, noise, done, at):
    x, gradient, reach = work.x, work.gradient, state.reach
    if len(reach) > 0:
        if at <= state.adapt_until:
            reach[1] += _square(gradient, work.l2, x)
        size *= _dog_size_in_kernels(reach)
    for j in range(len(x)):
        gradient[j] = size * (gradient[j] + work.l2[j] * x[j])
    if not np.isfinite(magnitude(gradient) + magnitude(work.norms)):
        return False
    for j in range(len(x)):
        x[j] -= gradient[j]
    if at <= state.adapt_until:
        reach[0] = max(reach[0], _distance(x, state.origin))
    return True


@product
def _square(gradient, l2, x):
    """Return the squared norm of the gradient, the l2 term included."""
    total = 0.0
    for j in range(len(x)):
        total += (gradient[j] + l2[j] * x[j]) ** 2
    return total


@product
def _distance(x, origin):
    total = 0.0
    for j in range(len(x)):
        total += (x[j] - origin[j]) ** 2
    return math.sqrt(total)
