"""Draws in O(N), for rules that cost O(N) anyway and for what is left of a large batch."""

import math

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel
from avare.batch import LITTLE, Batch, weigh
from avare.structures.heap import sift_down, sift_up


def draw(p: NDArray[np.float64], size: int, replacement: bool, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw indices with given probabilities, in order. O(N).

    >>> import numpy as np
    >>> draw(np.array([0.0, 1.0]), 3, True, np.random.default_rng(0))
    array([1, 1, 1])
    >>> draw(np.array([0.0, 1e-9, 1.0]), 2, False, np.random.default_rng(0))
    array([2, 1])
    """
    if replacement:
        sums = np.cumsum(p)
        return np.searchsorted(sums, generator.random(size) * sums[-1], side="right")
    positive = np.count_nonzero(p)
    if positive < size:
        raise ValueError(f"size = {size}: only {positive} probabilities are above 0, and each is drawn once")
    indices = np.empty(size, dtype=np.int64)
    race(p, generator.standard_exponential(positive), indices)
    return indices


def draw_batch(p: NDArray[np.float64], size: int, replacement: bool, generator: np.random.Generator) -> Batch:
    """Draw a batch with given probabilities, with the weights that make it unbiased. O(N).

    >>> draw_batch(np.array([1.0, 1e-17, 1e-17]), 2, False, np.random.default_rng(0)).weights
    array([1., 1.])
    """
    indices = draw(p, size, replacement, generator)
    chances = p[indices]
    is_little = not replacement and chances[:-1].sum() > 1.0 - 2.0 * LITTLE  # otherwise `weigh` does not look at it
    return Batch(indices, weigh(chances, replacement, mass_left(p, indices) if is_little else chances), chances)


def mass_left(p: NDArray[np.float64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what is left of the mass before each of some distinct draws, summed from the last one back. O(N).

    >>> mass_left(np.array([1.0, 1e-17, 1e-17]), np.array([0, 2]))
    array([1.e+00, 2.e-17])
    """
    others = p.copy()
    others[indices] = 0.0
    sums = np.cumsum(np.append(others.sum(), p[indices][::-1]))
    left: NDArray[np.float64] = sums[:0:-1] / sums[-1]
    return left


# --- kernels -------------------------------------------------------------------------------

_MARGIN = 1e-9  # of two keys, far above what rounding can change
_EXACT = 600.0  # keys within it are logarithms of numbers that neither overflow nor lose digits


@kernel
def race(weights, exponentials, indices):
    """Draw distinct indices, each in proportion to the weights that are left; return whether there are enough.

    Each index runs for an exponential time with its weight as the rate. The first to arrive, in
    order, have exactly the wanted law. ``exponentials`` has one standard exponential variate for
    each weight above zero. O(N), and O(log size) for each that is among the first so far.
    """
    wanted = len(indices)
    heap, keys = np.empty_like(indices), np.empty(wanted, dtype=np.float64)  # the first so far, the last at the root
    size, runner, least = 0, 0, 0.0
    for index in range(len(weights) if wanted > 0 else 0):
        if weights[index] > 0.0:
            time = exponentials[runner]
            runner += 1
            if weights[index] < least * time:
                continue  # far from the first, as most are: this saves two logarithms
            key = math.log(weights[index]) - math.log(time)  # neither overflows
            if size < wanted:
                sift_up(heap, keys, size, index, key)
                size += 1
            elif key > keys[0]:
                sift_down(heap, keys, size, index, key)
            if size == wanted:
                least = math.exp(keys[0] - _MARGIN) if abs(keys[0]) < _EXACT else 0.0
    if size < wanted:
        return False
    for j in range(wanted - 1, -1, -1):
        indices[j] = heap[0]
        sift_down(heap, keys, j, heap[j], keys[j])
    return True
