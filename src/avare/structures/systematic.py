r"""Draw a fixed number of places, each at most once, with exact inclusion probabilities: systematic sampling.

*Inclusion probabilities.* Of M places with sizes :math:`x_j`, m are to be drawn. The variance of the estimate
:math:`\sum_{j \in B} x_j / \pi_j` is least for

.. math:: \pi_j = \min(\max(x_j / \tau, \varphi), 1), \qquad \textstyle\sum_j \pi_j = m,

in proportion to the sizes where that is possible. A place with a large size is drawn for certain, once. The
floor :math:`\varphi` keeps :math:`1 / \pi_j` bounded.

*Solve.* With :math:`\lambda = 1/\tau`, each term grows with :math:`\lambda`: it leaves the floor at
:math:`\varphi / x_j`, and reaches 1 at :math:`1 / x_j`. Both happen in the order of the sizes, largest first. So
two pointers walk along the sorted sizes from one such event to the next, and the sum between two events is
linear. If the places with a positive size are fewer than m, all of them are drawn, and the others are equally
likely.

*Draw.* Put intervals of lengths :math:`\pi_j` one after another in random order, and m pointers at
u, u + 1, ..., u + m - 1, with u uniform in [0, 1). A place is drawn if a pointer falls into its interval. An
interval is at most 1 long, so no place is drawn twice, and its probability is its length exactly.

*Example.* Sizes (6, 2, 1, 1), m = 2, no floor. In proportion, the first would have probability 1.2. It is
drawn for certain, and one of the others with probabilities 1/2, 1/4, 1/4.

>>> import numpy as np
>>> inclusion(np.array([6.0, 2.0, 1.0, 1.0]), 2)
array([1.  , 0.5 , 0.25, 0.25])
"""

import math

import numpy as np

from avare._compilation import kernel
from avare._randomness import next_uniform
from avare.structures.uniform_draws import draw_below

_SAFE, _MOST_SAFE = 100, 900  # of the largest size: exponents of two between which nothing is scaled
_MOST = 1000  # 2^1000 is finite, and 5e-324 times 2^1000 has all bits
_SMALLEST = 2.0**-960  # of a size above 0: a count over the sum of some is finite


@kernel
def choose(weights, scores, floor, source, before, after, places, drawn):
    """Draw places of a pool in proportion to weight times score, and give their weights over their probabilities.

    The draw takes one random number for each place. Those of ``before`` and ``after`` other places are skipped:
    processes that share a pool then use different numbers of the same source.
    """
    sizes, largest = np.empty(len(scores)), 0.0
    for j in range(len(scores)):
        largest = max(largest, scores[j])
    for j in range(len(scores)):  # scaled, so that no sum overflows
        sizes[j] = weights[j] * (scores[j] / largest) if largest > 0.0 else 0.0
    probabilities = inclusion(sizes, len(places), floor)
    for _ in range(before):
        next_uniform(source)
    places[:] = draw_systematically(probabilities, len(places), source)
    for _ in range(after):
        next_uniform(source)
    for k in range(len(places)):
        drawn[k] = weights[places[k]] / probabilities[places[k]]


@kernel
def inclusion(sizes, count, floor=0.0):
    """Return the probability of each place to be among the ``count`` that are drawn. O(M log M).

    Parameters
    ----------
    sizes
        Finite and not negative. If all are zero, all places are equally likely.
    count
        m, from 1 to the number of places M.
    floor
        The smallest probability, in units of m / M: in [0, 1].
    """
    many = len(sizes)
    probabilities = np.empty(many)
    least = floor * count / many
    sizes = in_safe_units(sizes)
    falling = np.sort(sizes)[::-1]
    positive = np.searchsorted(-falling, 0.0)  # how many sizes are above 0
    if positive <= count - least * (many - positive):  # these are drawn for certain
        rest = (count - positive) / (many - positive) if positive < many else 1.0
        for j in range(many):
            probabilities[j] = 1.0 if sizes[j] > 0.0 else rest
        return probabilities
    below = np.zeros(many + 1)  # the sum of this size and all smaller ones, from the smallest: nothing cancels
    for j in range(many - 1, -1, -1):
        below[j] = below[j + 1] + falling[j]
    free, full = 0, 0  # how many places have left the floor, and how many of these are certain
    if floor == 0.0:
        free = int(positive)
    while True:
        # Up to the next event, the sum is full + factor * (sizes between full and free) + least * (many - free).
        factor = np.inf
        if full < free:
            factor = (count - full - least * (many - free)) / (below[full] - below[free])
        leaves = free < positive and falling[free] * factor > least
        fills = full < free and falling[full] * factor > 1.0
        if leaves and not (full < free and falling[free] < least * falling[full]):  # at the smaller factor of the two
            free += 1
        elif fills:
            full += 1
        else:
            break
    for j in range(many):
        probabilities[j] = min(max(sizes[j] * factor, least), 1.0) if sizes[j] > 0.0 else least
    return probabilities


@kernel
def in_safe_units(sizes):
    """Return sizes times a power of two, so that no sum of them overflows, and no quotient of a count and a sum.

    A size below 2^-860 times the largest becomes 0.
    """
    largest = 0.0
    for size in sizes:
        largest = max(largest, size)
    exponent = math.frexp(largest)[1]
    shift = min(max(-exponent, 0), _MOST) if exponent < -_SAFE else min(_MOST_SAFE - exponent, 0)
    scaled = sizes * math.ldexp(1.0, shift)
    for j in range(len(sizes)):
        if 0.0 < scaled[j] < _SMALLEST:
            scaled[j] = 0.0
    return scaled


@kernel
def draw_systematically(probabilities, count, source):
    """Return ``count`` different places, in increasing order; their probabilities sum to ``count``. O(M)."""
    many = len(probabilities)
    order = np.arange(many)
    for j in range(many - 1, 0, -1):
        k = draw_below(j + 1, source)
        order[j], order[k] = order[k], order[j]
    pointer, end, found = next_uniform(source), 0.0, 0
    chosen = np.zeros(many, dtype=np.bool_)
    for place in order:
        end += probabilities[place]
        if end > pointer and found < count:
            chosen[place] = True
            found += 1
            pointer += 1.0
    for place in order:  # only if the sum is rounded to less than the last pointer
        if found < count and not chosen[place] and probabilities[place] > 0.0:
            chosen[place] = True
            found += 1
    return np.flatnonzero(chosen)
