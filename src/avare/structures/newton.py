r"""A Newton step that stays on a simplex with floors.

From a point x on :math:`\{x : x_i \ge f_i, \sum x = 1\}`, the step minimises the model

.. math:: s^\top d + \tfrac12 d^\top A d

over all d for which x + d is there too: the same as going to :math:`x - A^{-1} s` and projecting back
in the norm of A.

*Solve.* By an active set: minimise over the coordinates not at their floors, with ``sum d = 0``; go
there, or as far as the first floor on the way, which then holds; if none was met, let go of the floor
that pulls most, or end if none does. Each round costs a Cholesky factor of what is free, O(K^3), and
lowers the model, so that no set comes twice; most often there are one to three.

*Example.* From x = (0.5, 0.5, 0) with A = I, s = (1, 0, -0.2) and floors 0. The third is at its floor;
on the others the model's least point is d = (-0.5, 0.5, 0), which meets the first floor just there. Then
the third pulls: its slope -0.2 is below the second's, 0.5. Letting go of it, d = (-0.5, 0.15, 0.35):
x = (0, 0.65, 0.35), and the first's slope, 0.5, is above the common 0.15.
"""

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, kernel

_PULL = 1e-13  # of the largest slope: what counts as none
_ROUNDS = 20  # a coordinate: more only where rounding makes a set come twice


def newton_step(
    point: NDArray[np.float64],
    slope: NDArray[np.float64],
    metric: NDArray[np.float64],
    floors: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The point of the simplex with the least ``slope . d + d . metric d / 2``. O(K^3) a round.

    Parameters
    ----------
    point
        K numbers, not below the floors, that sum to 1.
    slope
        s, K numbers.
    metric
        A, K x K, symmetric and positive definite.
    floors
        f, K numbers that sum to 1 at most.

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
        # As far as the first floor on the way.
        length, blocking = 1.0, -1
        for k in range(count):
            i = free[k]
            if step[k] < 0.0 and floors[i] - x[i] > length * step[k]:
                length, blocking = (floors[i] - x[i]) / step[k], k
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
    x[largest] += 1.0 - total  # so that nothing drifts
    return x


@inlined
def _set_slopes(slope, metric, point, x, slopes):
    """The model's slope at x."""
    for i in range(len(x)):
        slopes[i] = slope[i]
        for j in range(len(x)):
            slopes[i] += metric[i, j] * (x[j] - point[j])


@inlined
def _free_step(metric, slopes, free, count, factor, step, ones):
    """Set `step` to the model's least point on the free coordinates; return the slope common to them there."""
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
    """The coordinate at its floor whose slope is the furthest below the common one, or -1."""
    largest = 0.0
    for i in range(len(slopes)):
        largest = max(largest, abs(slopes[i]))
    for k in range(count):
        slopes[free[k]] = level  # they have it, but for rounding
    released, lowest = -1, level - _PULL * largest
    for i in range(len(slopes)):
        if slopes[i] < lowest:
            released, lowest = i, slopes[i]
    return released
