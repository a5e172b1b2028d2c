"""The two-stage draw in plain NumPy, close to its definition: what the compiled one is tested against.

Everything is enumerated: all pools, all orders of a pool, and all intervals of the one uniform number.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray


def inclusion(sizes: NDArray[np.float64], count: int, floor: float) -> NDArray[np.float64]:
    """clip(size / tau, least, 1) with the sum ``count``, by bisection in log tau; least = floor count / M."""
    many, least = len(sizes), floor * count / len(sizes)
    positive = sizes > 0.0

    def at(log_tau: float) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", over="ignore"):
            return np.where(positive, np.clip(np.exp(np.log(sizes) - log_tau), least, 1.0), least)

    low, high = -800.0, 800.0
    if at(low).sum() <= count:  # too few are positive: these for certain, the others alike
        rest = (count - positive.sum()) / max(many - positive.sum(), 1)
        return np.where(positive, 1.0, rest)
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle).sum() > count else (low, middle)
    found: NDArray[np.float64] = at(high)
    return found


def systematic_law(probabilities: NDArray[np.float64], count: int) -> dict[tuple[int, ...], float]:
    """The probability of each set of places, over all orders and all of [0, 1)."""
    many = len(probabilities)
    law: dict[tuple[int, ...], float] = defaultdict(float)
    orders = list(itertools.permutations(range(many)))
    for order in orders:
        ends = np.cumsum(probabilities[list(order)])
        cuts = sorted({0.0, 1.0, *(float(end % 1.0) for end in ends)})
        for left, right in itertools.pairwise(cuts):
            if right - left < 1e-13:
                continue
            pointers = 0.5 * (left + right) + np.arange(count)
            places = np.minimum(np.searchsorted(ends, pointers, side="right"), many - 1)
            law[tuple(sorted(order[place] for place in places))] += (right - left) / len(orders)
    return dict(law)


def two_stages(
    pools: Mapping[tuple[int, ...], float],
    weights_of: Mapping[tuple[int, ...], NDArray[np.float64]],
    scores: NDArray[np.float64],
    count: int,
    floor: float,
) -> Iterator[tuple[tuple[int, ...], NDArray[np.float64], float]]:
    """Every batch, with its weights for the sum over all examples and its probability."""
    for pool, chance in pools.items():
        weights = weights_of[pool]
        included = inclusion(weights * scores[list(pool)], count, floor)
        for places, part in systematic_law(included, count).items():
            chosen = list(places)
            yield tuple(pool[place] for place in places), weights[chosen] / included[chosen], chance * part


def thinned_law(probabilities: NDArray[np.float64], count: int, size: int) -> dict[tuple[int, ...], float]:
    """The probability of each ordered batch of a pass that keeps ``count`` examples: all sets, and all orders."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for kept, chance in systematic_law(np.minimum(count * probabilities, 1.0), count).items():
        samples = list(itertools.permutations(kept, size))
        for sample in samples:
            law[sample] += chance / len(samples)
    return dict(law)


def brute_force_ratio(relative_error: float, cost_ratio: float, most: float, without: float | None = None) -> float:
    """The pool ratio with the least product of cost and noise, on a fine grid; 1 for no pool."""
    without = relative_error if without is None else without
    grid = np.linspace(1.25, most, 20_001)
    products = (grid + cost_ratio) * (1.0 + relative_error / grid)
    best = int(np.argmin(products))
    return float(grid[best]) if products[best] < cost_ratio * (1.0 + without) else 1.0


def unordered(law: Mapping[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """A law of ordered samples, as one of sets."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for sample, chance in law.items():
        found[tuple(sorted(sample))] += chance
    assert math.isclose(math.fsum(found.values()), 1.0, rel_tol=1e-9)
    return dict(found)
