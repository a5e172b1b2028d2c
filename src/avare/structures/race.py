"""Draws in O(N), for rules that cost as much anyway."""

import numpy as np
from numpy.typing import NDArray


def draw(p: NDArray[np.float64], size: int, replacement: bool, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw indices with given probabilities, in order. O(N).

    >>> import numpy as np
    >>> draw(np.array([0.0, 1.0]), 3, True, np.random.default_rng(0))
    array([1, 1, 1])
    """
    if not replacement:
        return race(p, size, generator)
    sums = np.cumsum(p)
    return np.searchsorted(sums, generator.random(size) * sums[-1], side="right")


def race(weights: NDArray[np.float64], size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw distinct indices, one after another, each in proportion to the weights that are left. O(N).

    Each index runs for an exponential time with its weight as the rate; the first ``size`` to
    arrive, in order, have just that law.

    >>> import numpy as np
    >>> race(np.array([0.0, 1.0, 1e9]), 2, np.random.default_rng(0))
    array([2, 1])
    """
    runners = np.flatnonzero(weights)
    if len(runners) < size:
        raise ValueError(f"size = {size} draws without replacement, but fewer weights are above zero")
    times = np.log(generator.standard_exponential(len(runners))) - np.log(weights[runners])  # none overflows
    first = np.argpartition(times, size - 1)[:size] if size < len(runners) else np.arange(len(runners))
    return runners[first[np.argsort(times[first])]]
