"""Steps of gradient descent, x <- x - size g, of a given size or of sizes that follow the path (see `step_sizes`)."""

import math
from typing import NamedTuple

import numpy as np

from avare._compilation import inlined, lean, product
from avare.problems.base import Vector
from avare.solvers.kernels import APPLY, SAVED, magnitude


class Descent(NamedTuple):
    """The state of gradient descent; both arrays are empty if sizes are given."""

    origin: Vector
    """The first iterate."""
    reach: Vector
    """The largest distance from the origin, and the sum of the squared norms of all gradients."""
    adapt_until: int
    """Until this step, sizes follow the path."""


SAVED[Descent] = ("origin", "reach")


def descent(x: Vector, first_move: float = 0.0, adapt_until: int = 0) -> Descent:
    """Return the state for steps from x, with sizes that adapt until some step, by default never."""
    if adapt_until == 0:
        return Descent(np.empty(0), np.empty(0), 0)
    return Descent(x.copy(), np.array([first_move, 0.0]), adapt_until)


def pace(reach: Vector) -> float:
    """Return the distance over the root of the sum of squares: the size of the next step; NaN if it overflows."""
    if reach[1] == np.inf:
        return np.nan
    return reach[0] / math.sqrt(reach[1]) if reach[1] > 0.0 else 0.0


# --- kernels -------------------------------------------------------------------------------

_pace = inlined(pace)


@APPLY.version(Descent)
@lean
def _apply(descent, work, size, noise, done, at):
    x, gradient, reach = work.x, work.gradient, descent.reach
    if len(reach) > 0:
        if at <= descent.adapt_until:
            reach[1] += _square(gradient, work.l2, x)
        size *= _pace(reach)
    for j in range(len(x)):
        gradient[j] = size * (gradient[j] + work.l2[j] * x[j])
    if not np.isfinite(magnitude(gradient) + magnitude(work.norms)):
        return False
    for j in range(len(x)):
        x[j] -= gradient[j]
    if at <= descent.adapt_until:
        reach[0] = max(reach[0], _distance(x, descent.origin))
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
