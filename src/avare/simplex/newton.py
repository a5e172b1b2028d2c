r"""A Newton step on the simplex with floors.

From a point x of :math:`\{x : x_i \ge f_i, \sum x = 1\}`, the step minimises the model

.. math:: s^\top d + \tfrac12 d^\top A d

over all d for which x + d is in the same set. The result is the projection of :math:`x - A^{-1} s` onto
the set, in the norm of A.

*Solve.* By an active set. Minimise over the coordinates that are not at their floors, with
``sum d = 0``. Move there, or up to the first floor on the way, which is then active. If no floor is in
the way, release the active floor whose slope is lowest; stop if there is none to release. Each round
costs a Cholesky factor of the free coordinates, O(K^3), and decreases the model, so that no set occurs
twice. Usually there are one to three rounds.

*Example.* x = (0.5, 0.5, 0), A = I, s = (1, 0, -0.2), floors 0. The third coordinate is at its floor. On
the others the minimum of the model is d = (-0.5, 0.5, 0), where the first coordinate reaches its floor.
The slope of the third, -0.2, is now below that of the second, 0.5, so the third is released:
d = (-0.5, 0.15, 0.35) and x = (0, 0.65, 0.35). The slope of the first, 0.5, is above the common 0.15, so
this is the solution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, kernel

_PULL = 1e-13  # of the largest slope: smaller differences count as zero
_ROUNDS = 20  # per coordinate; only rounding errors can make a set occur twice and reach this limit


def newton_step(
    point: NDArray[np.float64],
    slope: NDArray[np.float64],
    metric: NDArray[np.float64],
    floors: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the point of the simplex that minimises ``slope·d + d·metric·d / 2``. O(K^3) per round.

    Parameters
    ----------
    point
        x, K numbers that are not below the floors and sum to 1.
    slope
        s, K numbers.
    metric
        A, K x K, symmetric and positive definite.
    floors
        f, K numbers that sum to at most 1.

    Examples
    --------
    >>> import numpy as np
    >>> newton_step(np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, -0.2]), np.eye(3), np.zeros(3)).round(10)
    array([0.  , 0.65, 0.35])
    """
    moved: NDArray[np.float64] = _newton_step(point, slope, metric, floors)
    return moved


# --- kernels -------------------------------------------------------------------------------


@kernel
def _newton_step(point, slope, metric, floors):
    n = len(point)
    x, slopes = point.copy(), np.empty(n)
    free = np.empty(n, dtype=np.int64)  # the first `count` of them
    count = 0
    for i in range(n):
        if x[i] > floors[i]:
            free[count] = i
            count += 1
    factor, step, ones = np.empty((n, n)), np.empty(n), np.empty(n)
    for _ in range(_ROUNDS * n):
        if count == 0:
            break
        _set_slopes(slope, metric, point, x, slopes)
        level = _free_step(metric, slopes, free, count, factor, step, ones)
        length, blocking = _first_floor(x, floors, step, free, count)
        for k in range(count):
            x[free[k]] = max(x[free[k]] + length * step[k], floors[free[k]])
        if blocking >= 0:
            x[free[blocking]] = floors[free[blocking]]
            count -= 1
            free[blocking] = free[count]
            continue
        _set_slopes(slope, metric, point, x, slopes)
        released = _released(slopes, free, count, level)
        if released < 0:
            break
        free[count] = released
        count += 1
    largest, total = 0, 0.0
    for i in range(n):
        largest = i if x[i] > x[largest] else largest
        total += x[i]
    x[largest] += 1.0 - total  # errors do not add up over many steps
    return x


@inlined
def _first_floor(x, floors, step, free, count):
    """Return how far x can move along the step, 1 at most, and the free coordinate that stops it, -1 if none does."""
    length, blocking = 1.0, -1
    for k in range(count):
        i = free[k]
        if step[k] < 0.0 and floors[i] - x[i] > length * step[k]:
            length, blocking = (floors[i] - x[i]) / step[k], k
    return length, blocking


@inlined
def _set_slopes(slope, metric, point, x, slopes):
    """Set `slopes` to the gradient of the model at x."""
    for i in range(len(x)):
        slopes[i] = slope[i]
        for j in range(len(x)):
            slopes[i] += metric[i, j] * (x[j] - point[j])


@inlined
def _free_step(metric, slopes, free, count, factor, step, ones):
    """Set `step` to the minimum of the model on the free coordinates; return their common slope there."""
    for a in range(count):  # Cholesky
        for b in range(a + 1):
            rest = metric[free[a], free[b]]
            for c in range(b):
                rest -= factor[a, c] * factor[b, c]
            factor[a, b] = np.sqrt(rest) if a == b else rest / factor[b, b]
    for a in range(count):  # forward
        first, second = -slopes[free[a]], 1.0
        for c in range(a):
            first -= factor[a, c] * step[c]
            second -= factor[a, c] * ones[c]
        step[a], ones[a] = first / factor[a, a], second / factor[a, a]
    for a in range(count - 1, -1, -1):  # and back
        for c in range(a + 1, count):
            step[a] -= factor[c, a] * step[c]
            ones[a] -= factor[c, a] * ones[c]
        step[a] /= factor[a, a]
        ones[a] /= factor[a, a]
    total, size = 0.0, 0.0
    for a in range(count):
        total += step[a]
        size += ones[a]
    level = -total / size
    for a in range(count):
        step[a] += level * ones[a]
    return level


@inlined
def _released(slopes, free, count, level):
    """Return the coordinate at its floor whose slope is the furthest below the common one, or -1."""
    largest = 0.0
    for i in range(len(slopes)):
        largest = max(largest, abs(slopes[i]))
    for k in range(count):
        slopes[free[k]] = level  # equal to it up to rounding
    released, lowest = -1, level - _PULL * largest
    for i in range(len(slopes)):
        if slopes[i] < lowest:
            released, lowest = i, slopes[i]
    return released
