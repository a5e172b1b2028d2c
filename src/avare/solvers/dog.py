"""Step sizes that a run finds by itself, from how far it has come and from the gradients it has met.

How long steps may be depends on the curvature of f, on the noise that a sampler leaves and on the distance to the
minimum. The steps themselves show all three (Ivgi, Hinder & Carmon, "DoG is SGD's best friend", ICML 2023):

    size_t = r_t / sqrt(|g_1|^2 + ... + |g_t|^2),    r_t = the largest distance from the start so far, at least r_0.

For example, from x = 0 with gradients of norm 10 that all point to a minimum at distance 3: r grows from r_0 by a part
1 / sqrt(t) at step t, and is 3 after a few dozen steps, whatever r_0 was. With noise of that norm the size then falls
as 3 / (10 sqrt(t)), as it should for averaged iterates. Without noise the gradients vanish, their sum ends, and the
size stays. If steps are too long, gradients and their sum grow, and the size falls; no step is longer than r_t. So
nothing has to be tried first: each sampler gets its own sizes, at the price of two sums over the coefficients per step.
"""

import math
from typing import Any

import numpy as np

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.schedules import Auto, Schedule, auto
from avare.solvers.kernels import NEVER
from avare.solvers.step_sizes import require_auto
from avare.solvers.updates.descent import Descent, descent

_PILOT = 10  # if sizes fall by a given power, they adapt during a tenth of the steps
_ROWS = 64  # that show the gradient at the start; more with larger batches
_CAUTION = 16.0  # times the curvature along the gradient, if the smoothness is not known


def _falling(t: Any, last: int, power: float) -> Any:
    """Return a factor on the sizes found until step `last`: 1 until then, later falling by a power."""
    return (np.maximum(t, last) / last) ** -power


def request_of(step_size: Any) -> Auto | None:
    """Return what step sizes to find; None if they are given."""
    if isinstance(step_size, str):
        require_auto(step_size)
        return auto()
    return step_size if isinstance(step_size, Auto) else None


def adaptive_descent(
    wanted: Auto, problem: Problem, x: Vector, batch_size: int, steps: int
) -> tuple[Descent, Schedule | float]:
    """Return the update for steps from x that find their sizes, and factors on these sizes."""
    first = _first_move(problem, x, batch_size)
    if wanted.power is None:
        return descent(x, first, NEVER), 1.0
    last = max(1, steps // _PILOT)
    return descent(x, first, last), Schedule(_falling, (last, wanted.power))


def _first_move(problem: Problem, x: Vector, batch_size: int) -> float:
    """Return a short way to go at first: the norm of the gradient, from some of the rows, over the smoothness of f.

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
        move = 1e-4 * (1.0 + float(np.linalg.norm(x)))
        smoothness = _CAUTION * float(np.linalg.norm(gradient(x + here * (move / length)) - here)) / move
    return length / smoothness if 0.0 < smoothness < math.inf else 1e-3
