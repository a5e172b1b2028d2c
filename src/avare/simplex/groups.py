"""Split examples into groups of near-equal mass."""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel


class Groups(NamedTuple):
    """Indices in groups, one group after another.

    >>> import numpy as np
    >>> groups = split(np.array([5.0, 1.0, 3.0, 2.0]), 2)
    >>> groups.order[groups.starts[0] : groups.starts[1]]  # the members of the first group
    array([0, 1])
    """

    order: NDArray[np.int64]  # the indices, group by group
    starts: NDArray[np.int64]  # where each group starts in `order`, then the end of the last group
    sums: NDArray[np.float64]  # the sum of the scores in `order` before each place
    masses: NDArray[np.float64]  # the sum of the scores of each group


def split(scores: NDArray[np.float64], count: int) -> Groups:
    """Split indices into non-empty groups of near-equal mass. O(N log N).

    The largest scores come first, and each goes to the group with the least mass so far. A group
    then exceeds the mean by at most the score of its last member, or it has only one member.

    >>> import numpy as np
    >>> split(np.array([5.0, 1.0, 3.0, 2.0]), 2).masses
    array([6., 5.])
    """
    largest_first = np.argsort(-scores, kind="stable")
    group_of = _assign(scores[largest_first], count)
    by_group = np.argsort(group_of, kind="stable")
    order, sizes = largest_first[by_group], np.bincount(group_of, minlength=count)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    sums = np.concatenate([np.zeros(1), np.cumsum(scores[order])])
    return Groups(order, starts, sums, masses=np.add.reduceat(scores[order], starts[:-1]))


# --- kernels -------------------------------------------------------------------------------


@kernel
def _assign(scores, count):
    """Return the group of each score; scores are in decreasing order."""
    group_of = np.empty(len(scores), dtype=np.int64)
    heap = [(0.0, group) for group in range(count)]  # the lightest at the root; of equal ones, the first
    for j in range(len(scores)):
        mass, group_of[j] = heap[0]
        heapq.heapreplace(heap, (mass + scores[j], group_of[j]))
    return group_of
