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
number of ends on either side, in one pass. The solution stands between the largest l over N and the
largest l; Newton's steps that leave the bracket known so far, or are too many, are replaced by halvings
of the *floats* in it, of which there are 64 at most. If no u above zero is below the largest l, all
norms may be the same: p is uniform where u > 0.

*Example.* Intervals [0, 4], [0, 5], [27, 33], [1, 7]. From tau = 27: 4, 5 and 7 are below, and Newton's
step gives (16 + 25 + 49) / 16 = 5.63. Now 4 and 5 are below, and 27 is above: (16 + 25 + 729) / 36 = 21.4.
Now 7 is below as well: 819 / 43 = 19.05; and still the same are: done. c = (4, 5, 27, 7).
"""

import math

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel, summing

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

    They move apart by ``smoothness`` times the path since, which must be finite; from 0 to
    ``unvisited`` where ``visited_at`` is negative.

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
    top, bottom = (float(end) for end in _innermost(lower, upper))
    if bottom == math.inf:
        return np.full(len(upper), 1.0 / len(upper)), 0.0
    tau = bottom
    unit = math.ldexp(1.0, max(-1000, min(1000, -math.frexp(max(top, bottom))[1])))  # so that no square overflows
    if top > bottom:
        tau = float(_level(lower, upper, unit, guess, top))
    p = np.maximum(lower, tau)
    np.minimum(p, upper, out=p)
    p *= unit
    p /= p.sum()
    return p, tau


# --- kernels -------------------------------------------------------------------------------


@kernel
def _widen(norms, visited_at, smoothness, path, unvisited, lower, upper):
    for i in range(len(norms)):
        drift = smoothness[i] * (path - visited_at[i])
        visited = visited_at[i] >= 0.0
        lower[i] = max(norms[i] - drift, 0.0) if visited else 0.0
        upper[i] = norms[i] + drift if visited else unvisited


@kernel
def _innermost(lower, upper):
    """The largest lower end, and the smallest upper one above zero."""
    top, bottom = 0.0, np.inf
    for i in range(len(lower)):
        if lower[i] > top:
            top = lower[i]
        if 0.0 < upper[i] < bottom:
            bottom = upper[i]
    return top, bottom


@kernel
def _level(lower, upper, unit, guess, top):
    """Find tau, at most `top`; what is squared is multiplied by `unit` first."""
    low, high = 0.5 * top / len(lower), top
    tau = guess if low < guess < high else high
    nothing = len(lower) + 1
    exact_for = nothing  # the ends above less those below for which tau is exact
    for k in range(_PASSES):
        ends, total, squares = _tally(lower, upper, unit, tau)
        if ends == exact_for:
            break
        step = squares / total / unit
        if step == tau:
            break
        low, high = (tau, high) if step > tau else (low, tau)
        if k < _NEWTON_STEPS and low < step < high:
            tau, exact_for = step, ends
        else:
            first, last = np.float64(low).view(np.int64), np.float64(high).view(np.int64)
            if last - first <= 1:
                break
            tau, exact_for = np.int64(first + (last - first) // 2).view(np.float64), nothing
    return tau


@summing
def _tally(lower, upper, unit, tau):
    """Lower ends above tau, and upper ends below: how many more of the former; sum and squares of all."""
    ends, total, squares = 0, 0.0, 0.0
    for i in range(len(lower)):
        end = unit * (lower[i] if lower[i] > tau else (upper[i] if upper[i] < tau else 0.0))
        ends += 1 if lower[i] > tau else (-1 if upper[i] < tau else 0)
        total += end
        squares += end * end
    return ends, total, squares
