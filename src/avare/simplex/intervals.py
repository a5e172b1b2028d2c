r"""The safest distribution when only an interval is known for each norm.

Given :math:`l_i \le n_i \le u_i`, which p has the smallest ratio of its second moment
:math:`\sum n_i^2 / p_i` to that of uniform sampling, :math:`N \sum n_i^2`, for the worst norms in the
intervals? The one in proportion to

.. math:: c_i = \min(\max(\tau, l_i), u_i), \qquad \tau = \textstyle\sum c_i^2 / \sum c_i.

For p = c / sum c, the worst norms are c itself: a large n_i is worst where 1 / p_i is above its mean,
which means c_i < tau and therefore c_i = u_i; a small n_i is worst where c_i = l_i. No other p is better
for the norms c. They give the ratio (sum c)^2 / (N sum c^2) <= 1: **p is never worse than uniform**,
whatever the norms in their intervals are.

*Solve.* ``sum c^2 - tau sum c`` is the sum of ``l (l - tau)`` over the l above tau, minus the sum of
``u (tau - u)`` over the u below it. It decreases as tau grows, and it is linear between the ends of the
intervals. So a Newton step from any tau is exact if it crosses no end; one pass over the intervals shows
this by the number of ends on either side. The solution is between the largest l over N and the largest l.
A Newton step that leaves the current bracket, or that comes after too many others, is replaced by
bisection of the *floats* in the bracket, which takes at most 64 steps. If no positive u is below the
largest l, all norms may be equal: p is uniform over the examples with u > 0.

*Example.* Intervals [0, 4], [0, 5], [27, 33], [1, 7]. At tau = 27, the ends 4, 5 and 7 are below, and the
Newton step gives (16 + 25 + 49) / 16 = 5.63. There, 4 and 5 are below and 27 is above:
(16 + 25 + 729) / 36 = 21.4. There, 7 is below as well: 819 / 43 = 19.05. There, the same ends are below
and above, so this is the solution: c = (4, 5, 27, 7).
"""

import math

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel, product

_NEWTON_STEPS = 20  # usually 2 to 6 are enough
_PASSES = _NEWTON_STEPS + 70


def safest(
    lower: NDArray[np.float64], upper: NDArray[np.float64], guess: float = 0.0
) -> tuple[NDArray[np.float64], float]:
    """Return the safest distribution for norms in [lower, upper], and its tau. O(N).

    Parameters
    ----------
    lower, upper
        Finite, 0 <= lower <= upper. If all of upper is zero, the result is uniform.
    guess
        The first value to try for tau: the previous tau, if the intervals have changed little.

    Examples
    --------
    >>> import numpy as np
    >>> p, tau = safest(np.array([0.0, 0.0, 27.0, 1.0]), np.array([4.0, 5.0, 33.0, 7.0]))
    >>> p.round(3), round(tau, 3)
    (array([0.093, 0.116, 0.628, 0.163]), 19.047)
    """
    top, bottom = float(lower.max()), float(upper.min(initial=math.inf, where=upper > 0.0))
    if bottom == math.inf:
        return np.full(len(upper), 1.0 / len(upper)), 0.0
    tau = bottom
    unit = math.ldexp(1.0, max(-1000, min(1000, -math.frexp(max(top, bottom))[1])))  # no square overflows
    if top > bottom:
        tau = float(_level(lower, upper, unit, guess, top))
    p = np.maximum(lower, tau)
    np.minimum(p, upper, out=p)
    p *= unit
    p /= p.sum()
    return p, tau


# --- kernels -------------------------------------------------------------------------------


@kernel
def _level(lower, upper, unit, guess, top):
    """Find tau, which is at most `top`; numbers are multiplied by `unit` before they are squared."""
    low, high = 0.5 * top / len(lower), top
    tau = guess if low < guess < high else high
    nothing = len(lower) + 1
    exact_for = nothing  # tau is exact if the ends above minus those below are this number
    for k in range(_PASSES):
        ends, total, squares = _tally(lower, upper, unit, tau)
        if ends == exact_for or total == 0.0:  # all other ends are too small to count beside tau
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


@product
def _tally(lower, upper, unit, tau):
    """Return the count of lower ends above tau minus that of upper ends below, and the sum and squares of all these."""
    ends, total, squares = 0, 0.0, 0.0
    for i in range(len(lower)):
        end = unit * (lower[i] if lower[i] > tau else (upper[i] if upper[i] < tau else 0.0))
        ends += 1 if lower[i] > tau else (-1 if upper[i] < tau else 0)
        total += end
        squares += end * end
    return ends, total, squares
