"""Draws in O(N), for rules that cost O(N) anyway."""

import numpy as np
from numpy.typing import NDArray

from avare.batch import LITTLE, Batch, weigh


def draw(p: NDArray[np.float64], size: int, replacement: bool, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw indices with given probabilities, 0 or at least 1e-300, in order. O(N).

    >>> import numpy as np
    >>> draw(np.array([0.0, 1.0]), 3, True, np.random.default_rng(0))
    array([1, 1, 1])
    >>> draw(np.array([0.0, 1e-9, 1.0]), 2, False, np.random.default_rng(0))
    array([2, 1])
    """
    if replacement:
        sums = np.cumsum(p)
        return np.searchsorted(sums, generator.random(size) * sums[-1], side="right")
    runners = np.flatnonzero(p)
    if len(runners) < size:
        raise ValueError(f"size = {size}: only {len(runners)} probabilities are above 0, and each is drawn once")
    # Each runs for an exponential time with its probability as the rate: the first to arrive, in order, have exactly
    # the wanted law.
    times = generator.standard_exponential(len(runners)) / p[runners]
    first = np.argpartition(times, size - 1)[:size]
    return runners[first[np.argsort(times[first])]]


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
    return np.asarray(sums[:0:-1] / sums[-1])
