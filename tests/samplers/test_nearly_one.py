"""One probability nearly 1: the mass left is summed, and the expectation is exact for any float64."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.batch import weigh
from avare.structures import Buckets
from avare.structures.weighted_draws import draw_batch, mass_left

CASES: list[list[float]] = [
    [1.0, 1e-17, 1e-17],
    [1.0, 1e-17, 3e-18, 2e-30],
    [1e17, 1.0, 1.0],
    [1.0, 1e-100, 1e-200, 1e-290],
    [0.6, 0.4, 1e-16, 1e-20],
    [1.0 - 2.0**-53, 2.0**-53, 2.0**-60, 2.0**-61],
    [3.0, 2.0, 1.0, 5e-300, 7e-300],
]


def expectation(p: NDArray[np.float64], size: int, weights_of: Any) -> list[float]:
    """The expected weight of each example, from the exact law of successive draws."""
    exact = [Fraction(float(each)) for each in p]
    mean = [Fraction(0)] * len(p)
    for sample in itertools.permutations(range(len(p)), size):
        chance, left = Fraction(1), sum(exact)
        for index in sample:
            chance *= exact[index] / left
            left -= exact[index]
        for index, weight in zip(sample, weights_of(np.array(sample)), strict=True):
            mean[index] += chance * Fraction(float(weight))
    return [float(each) for each in mean]


@pytest.mark.parametrize("values", CASES)
def test_expectations_are_exact_by_enumeration(values: list[float]) -> None:
    p = np.array(values) / np.sum(values)
    for size in range(1, len(values) + 1):
        mean = expectation(p, size, lambda indices: weigh(p[indices], False, mass_left(p, indices)))
        # Summing a few numbers of the same sign is exact to some 1e-16; we promise 1e-9.
        assert np.allclose(mean, 1.0, rtol=1e-9, atol=0)


@pytest.mark.parametrize("values", CASES)
def test_drawn_weights_are_those_of_the_law(values: list[float]) -> None:
    structure, generator = Buckets(values), np.random.default_rng(5)
    p, size = structure.probabilities(), len(values) - 1
    for _ in range(30):
        left = np.empty(size)
        indices, chances = structure.draw(size, replacement=False, generator=generator, left=left)
        exact = [math.fsum(np.delete(p, indices[:j])) for j in range(size)]
        batch = draw_batch(p, size, False, generator)
        assert np.allclose(left, exact, rtol=1e-12, atol=0)
        assert np.array_equal(chances, p[indices])
        exact = [math.fsum(np.delete(p, batch.indices[:j])) for j in range(size)]
        assert np.allclose(batch.weights, avare.batch_weights(p[batch.indices], False, exact), rtol=1e-12, atol=0)
    structure.check()


def test_the_cases_that_were_wrong() -> None:
    static = avare.Static(3, 2, smoothness=[1.0, 1e-17, 1e-17], uniform=0.0, seed=0)
    assert static.sample().weights.tolist() == [1.0, 1.0]
    optimal = avare.Optimal(3, 2, norms=lambda: [1e17, 1.0, 1.0], seed=0)
    assert optimal.sample().weights.tolist() == [1.0, 1.0]
    safe = avare.Safe(2, 1, smoothness=[1.0, 1.0], seed=0)
    safe.update([0, 1], [1e-300, 1e300])
    assert safe.sample().indices.tolist() == [1] and np.isclose(safe.probabilities().sum(), 1.0)


def test_what_no_weight_can_make_up_for_is_refused_or_floored() -> None:
    p = avare.Static(2, 1, smoothness=[1.0, 1e-310], uniform=0.0).probabilities()
    assert p.tolist() == [1.0, 2.0**-149]  # the smallest share that is kept
    p = avare.Optimal(3, 1, norms=lambda: [1e300, 1e-300, 0.0]).probabilities()
    assert p[1] == pytest.approx(1e-9 / 3)


def test_batch_weights_need_what_is_left_if_it_is_little() -> None:
    with pytest.raises(ValueError, match=r"probabilities leave .* before the last draw: pass left="):
        avare.batch_weights([1.0 - 1e-10, 5e-11], replacement=False)
    weights = avare.batch_weights([1.0 - 1e-10, 5e-11], replacement=False, left=[1.0, 1e-10])
    assert weights == pytest.approx([1.0, 1.0])
    with pytest.raises(ValueError, match="left has length 1: must match probabilities, which has 2"):
        avare.batch_weights([0.5, 0.25], replacement=False, left=[1.0])
