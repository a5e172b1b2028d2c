"""The law of draws, by chi-square against the enumerated law. See `laws.FALSE_ALARM`."""

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from avare._randomness import uniform_source
from avare.structures import Buckets, OrderTree
from laws import FALSE_ALARM, chi_square, ordered_samples

DRAWS = 2_000 if numba.config.DISABLE_JIT else 200_000
Structure = type[Buckets] | type[OrderTree]

# Away from neutral values: norms that share a cell, a bin, an octave, and none; some below the threshold, zeros.
CASES: dict[str, tuple[list[float], float]] = {
    "spread": ([0.3, 5.0, 1.0, 2.2, 0.0], 0.05),
    "one cell": ([1.0, 1.02, 1.05, 1.08, 1.1], 0.19),
    "one octave": ([1.0, 1.2, 1.5, 1.7, 1.95], 0.1),
    "no floor": ([0.0, 1.0, 1.3, 7.0, 1.9], 0.0),
    "concentrated": ([1000.0, 1.0, 2.0, 3.0, 0.5], 0.001),
    "nearly uniform": ([3.0, 1.0, 2.0, 0.0, 9.0], 0.1999),
    "all zero": ([0.0, 0.0, 0.0, 0.0, 0.0], 0.01),
}


def shuffled(structure: Structure, norms: list[float]) -> Buckets | OrderTree:
    """A structure that has reached these norms through others."""
    generator = np.random.default_rng(8)
    found = structure(generator.lognormal(size=len(norms)))
    for _ in range(20):
        found.update(generator.integers(0, len(norms), 3), generator.lognormal(0, 2, 3))
    found.update(np.arange(len(norms)), norms)
    return found


@pytest.mark.parametrize("structure", [Buckets, OrderTree])
@pytest.mark.parametrize("case", CASES)
def test_with_replacement(structure: Structure, case: str) -> None:
    norms, floor = CASES[case]
    found = shuffled(structure, norms)
    p = found.probabilities(floor)
    generator = np.random.default_rng(21)
    indices, _ = found.draw(DRAWS, replacement=True, source=uniform_source(generator), floor=floor)
    # In pairs, so that dependence between neighbours would show.
    pairs = list(zip(indices[::2].tolist(), indices[1::2].tolist(), strict=True))
    assert chi_square(pairs, dict(ordered_samples(p, 2, replacement=True))) > FALSE_ALARM


@pytest.mark.parametrize("structure", [Buckets, OrderTree])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [3, 5])
def test_without_replacement(structure: Structure, case: str, size: int) -> None:
    norms, floor = CASES[case]
    size = min(size, len(norms) if floor > 0.0 else int(np.count_nonzero(norms)))
    found = shuffled(structure, norms)
    p = found.probabilities(floor)
    generator = np.random.default_rng(22)
    source = uniform_source(generator)
    draws = [
        tuple(found.draw(size, replacement=False, source=source, floor=floor)[0].tolist()) for _ in range(DRAWS // 4)
    ]
    found.check()
    assert chi_square(draws, dict(ordered_samples(p, size, replacement=False))) > FALSE_ALARM


@pytest.mark.parametrize("replacement", [True, False])
def test_if_no_example_matters_much(replacement: bool) -> None:
    # Nothing is set aside: repeated draws are dropped.
    generator = np.random.default_rng(23)
    norms: NDArray[np.float64] = generator.lognormal(0.0, 0.5, 60)
    buckets = Buckets(norms)
    p = buckets.probabilities(0.01)
    assert 2 * p.max() < 0.5
    source = uniform_source(generator)
    draws = [
        tuple(buckets.draw(2, replacement=replacement, source=source, floor=0.01)[0].tolist()) for _ in range(DRAWS)
    ]
    assert chi_square(draws, dict(ordered_samples(p, 2, replacement))) > FALSE_ALARM


def test_many_examples_in_few_bins() -> None:
    # The threshold is inside a bin with many examples, and is moved to its edge.
    generator = np.random.default_rng(24)
    norms = 1.0 + generator.random(3000) * 2.0**-7
    buckets = Buckets(norms)
    floor = 0.999 / 3000
    p = buckets.probabilities(floor)
    assert floor < buckets.solve(floor).floor <= floor * (1 + 2.0**-10)
    indices, _ = buckets.draw(10 * DRAWS, replacement=True, source=uniform_source(generator), floor=floor)
    law: dict[tuple[int, ...], float] = {(i,): chance for i, chance in enumerate(p.tolist())}
    assert chi_square([(i,) for i in indices.tolist()], law) > FALSE_ALARM
