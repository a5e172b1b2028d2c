r"""The safest distribution where of each norm only an interval is known.

Given :math:`l_i \le n_i \le u_i`, which p makes the second moment :math:`\sum n_i^2 / p_i` smallest
against uniform's, :math:`N \sum n_i^2`, for the norms that suit it least? The one in proportion to

.. math:: c_i = \min(\max(\tau, l_i), u_i), \qquad \tau = \textstyle\sum c_i^2 / \sum c_i.

For p = c / sum c, the worst norms are at c itself: n_i wants to be large where 1 / p_i is above its
mean, which is where c_i < tau and hence c_i = u_i, and small where c_i = l_i. And no p does better
against the norms c. Those give (sum c)^2 / sum c^2 <= N: **p is never worse than uniform**, whatever
the norms within their intervals.

*Solve.* ``sum c^2 - tau sum c`` is the sum of ``l (l - tau)`` over the l above tau, less that of
``u (tau - u)`` over the u below it: it falls as tau grows, and in straight lines between the ends of
the intervals. So Newton's step from any tau is exact if it passes no end, and this is seen from the
number of ends on either side, in one pass. Steps that leave the bracket known so far, or that
are too many, are replaced by halvings of the *floats* in the bracket, of which there are at most 64.
Where neither an l is above tau nor a u above zero below it, any tau will do, and p is uniform where u > 0.

*Example.* Intervals [0, 4], [0, 5], [27, 33], [1, 7]. From tau = 0: 27 and 1 are above, Newton's step
gives (27^2 + 1) / 28 = 26.07; now 27 is above, and 4, 5, 7 are below, tau = (27^2 + 16 + 25 + 49) / 43 =
19.05; and again the same are: done. c = (4, 5, 27, 7).
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

LARGEST = 1e300  # norms and drifts above count as this, so that no sum of two overflows
_NEWTON_STEPS = 20  # most often 2 to 6 are made
_PASSES = _NEWTON_STEPS + 70


def widened(
    norms: NDArray[np.float64],
    visited_at: NDArray[np.float64],
    smoothness: NDArray[np.float64],
    path: float,
    unvisited: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bounds on norms, each known at its own point of a path, at the path's end. O(N).

    They move apart by ``smoothness`` times the path since; from 0 to ``unvisited`` where
    ``visited_at`` is negative.

    >>> import numpy as np
    >>> norms, visited_at, smoothness = np.array([3.0, 1.0, 0.0]), np.array([5.0, 4.0, -1.0]), np.full(3, 2.0)
    >>> widened(norms, visited_at, smoothness, path=5.0, unvisited=9.0)
    (array([3., 0., 0.]), array([3., 3., 9.]))
    """
    lower, upper = np.empty(len(norms)), np.empty(len(norms))
    _widen(norms, visited_at, smoothness, path, unvisited, lower, upper)
    return lower, upper


def safest(
    lower: NDArray[np.float64], upper: NDArray[np.float64], guess: float = 0.0
) -> tuple[NDArray[np.float64], float]:
    """The distribution that is safest for norms in [lower, upper], and its tau. O(N).

    Parameters
    ----------
    lower, upper
        Finite, 0 <= lower <= upper. All of upper zero: uniform.
    guess
        Where to look for tau first: the last one, if the intervals have hardly moved.

    Examples
    --------
    >>> import numpy as np
    >>> p, tau = safest(np.array([0.0, 0.0, 27.0, 1.0]), np.array([4.0, 5.0, 33.0, 7.0]))
    >>> p.round(3), round(tau, 3)
    (array([0.093, 0.116, 0.628, 0.163]), 19.047)
    """
    top = float(upper.max())
    if top == 0.0:
        return np.full(len(upper), 1.0 / len(upper)), 0.0
    unit = math.ldexp(1.0, max(-1000, min(1000, -math.frexp(top)[1])))  # so that no square overflows or vanishes
    tau = float(_level(lower, upper, unit, min(guess, top) * unit, top * unit)) / unit
    p = np.maximum(lower, tau)
    np.minimum(p, upper, out=p)
    p *= unit
    p /= p.sum()
    return p, tau


# --- kernels -------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _widen(norms, visited_at, smoothness, path, unvisited, lower, upper):
    for i in range(len(norms)):
        if visited_at[i] < 0.0:
            lower[i], upper[i] = 0.0, unvisited
        else:
            drift = min(smoothness[i] * (path - visited_at[i]), LARGEST)
            lower[i] = max(norms[i] - drift, 0.0)
            upper[i] = norms[i] + drift


@njit(cache=True, nogil=True)
def _level(lower, upper, unit, guess, top):
    """Find tau, with all numbers multiplied by `unit`."""
    tau, low, high = guess, 0.0, top
    same_above, same_below = -1, -1  # the counts with which tau is exact; -1: with none
    for k in range(_PASSES):
        above, below, excess, total = 0, 0, 0.0, 0.0
        for i in range(len(lower)):
            least, most = unit * lower[i], unit * upper[i]
            if least > tau:
                above += 1
                total += least
                excess += least * (least - tau)
            elif most < tau:
                below += 1
                total += most
                excess -= most * (tau - most)
        if total == 0.0 or (above == same_above and below == same_below):
            break
        step = tau + excess / total
        if step == tau:
            break
        low, high = (tau, high) if excess > 0.0 else (low, tau)
        if k < _NEWTON_STEPS and low <= step <= high:
            tau, same_above, same_below = step, above, below
        else:
            first, last = np.float64(low).view(np.int64), np.float64(high).view(np.int64)
            if last - first <= 1:
                break
            tau, same_above, same_below = np.int64((first + last) // 2).view(np.float64), -1, -1
    return tau
