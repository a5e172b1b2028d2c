"""The exact law of a batch, by enumeration, and a test of draws against it."""

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import stats

# Below this p-value a chi-square test fails. With fixed seeds a test that passed passes for ever;
# a change that alters the draws but not their law then raises a false alarm once in a million.
FALSE_ALARM = 1e-6


def draws_of(count: int, interpreted: int = 2_000) -> int:
    """The number of draws or steps of a long test: a quarter of `count`; all of it with ``AVARE_DRAWS=all``.

    `make test-all` sets that. Without compiled code it is `interpreted`.
    """
    if numba.config.DISABLE_JIT:
        return interpreted
    return count if os.environ.get("AVARE_DRAWS") == "all" else count // 4


def ordered_samples(p: NDArray[np.float64], size: int, replacement: bool) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every ordered sample and its probability: draws one after another, renormalised if without replacement."""
    pool = itertools.product if replacement else itertools.permutations
    arguments = {"repeat": size} if replacement else {"r": size}
    for sample in pool(range(len(p)), **arguments):
        chance, left = 1.0, list(p)
        for index in sample:
            if p[index] > 0.0:
                chance *= p[index] / math.fsum(left)  # summed again, because a difference would not be exact
            else:
                chance = 0.0
            left[index] = p[index] if replacement else 0.0
        yield sample, chance


def chi_square(draws: Iterable[tuple[int, ...]], law: Mapping[tuple[int, ...], float]) -> float:
    """The p-value of the draws under the law; 0 if something impossible was drawn."""
    counts = Counter(draws)
    total = sum(counts.values())
    if any(law.get(outcome, 0.0) == 0.0 for outcome in counts):
        return 0.0
    rare_observed, rare_expected, observed, expected = 0, 0.0, [], []
    for outcome, chance in law.items():
        if chance * total < 5.0:  # too rare for the approximation: pooled
            rare_observed += counts[outcome]
            rare_expected += chance * total
        else:
            observed.append(counts[outcome])
            expected.append(chance * total)
    if rare_expected > 0.0:
        observed.append(rare_observed)
        expected.append(rare_expected)
    if len(observed) == 1:
        return 1.0
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(observed) - 1))
