"""Systematic draws: exact inclusion probabilities, the law by enumeration, and the two stages unbiased."""

import itertools
import math

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import avare
import two_stages
from avare._randomness import uniform_source
from avare.structures.systematic import choose, draw_systematically, inclusion
from laws import FALSE_ALARM, chi_square, ordered_samples

SIZES = {
    "different": [5.0, 1.0, 0.5, 2.0, 9.0],
    "ties": [2.0, 2.0, 2.0, 1.0, 1.0],
    "zeros": [0.0, 3.0, 0.0, 1.0, 1.0],
    "one positive": [0.0, 0.0, 4.0, 0.0, 0.0],
    "all zero": [0.0] * 5,
    "far apart": [1e-300, 1e300, 1.0, 1e-5, 1e5],
}


@pytest.mark.parametrize("floor", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("name", SIZES)
def test_inclusion_probabilities(name: str, count: int, floor: float) -> None:
    sizes = np.array(SIZES[name])
    found = inclusion(sizes, count, floor)
    assert np.allclose(found, two_stages.inclusion(sizes, count, floor), rtol=1e-9, atol=1e-12)
    assert math.isclose(found.sum(), count, rel_tol=1e-12)
    assert found.min() >= floor * count / 5 * (1 - 1e-12) and found.max() <= 1.0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=30),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.01, 0.3]),
)
def test_inclusion_probabilities_of_any_sizes(sizes: list[float], count: int, floor: float) -> None:
    count = min(count, len(sizes))
    x = np.array(sizes)
    found = inclusion(x, count, floor)
    assert math.isclose(found.sum(), count, rel_tol=1e-9)
    least = floor * count / len(x)
    assert found.min() >= least * (1 - 1e-9) and found.max() <= 1.0
    inside = (found > least * (1 + 1e-9)) & (found < 1.0 - 1e-9) & (x > 0.0)
    ratios = found[inside] / x[inside]
    assert not inside.any() or np.allclose(ratios, ratios[0], rtol=1e-6)  # in proportion, where it is possible


@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("name", ["different", "ties", "zeros", "one positive", "all zero"])
def test_the_law_of_systematic_draws(name: str, floor: float) -> None:
    probabilities = inclusion(np.array(SIZES[name]), 2, floor)
    law = two_stages.systematic_law(probabilities, 2)
    assert math.isclose(math.fsum(law.values()), 1.0, rel_tol=1e-9)
    for place in range(5):
        included = math.fsum(chance for places, chance in law.items() if place in places)
        assert math.isclose(included, probabilities[place], rel_tol=1e-9, abs_tol=1e-12)
    generator = np.random.default_rng(3)
    draws = [tuple(draw_systematically(probabilities, 2, uniform_source(generator)).tolist()) for _ in range(20_000)]
    assert chi_square(draws, law) > FALSE_ALARM


def test_a_sum_that_is_rounded_down_still_gives_all_places() -> None:
    generator = np.random.default_rng(0)
    for many in (3, 10, 1000):
        probabilities = np.full(many, (2.0 / many) * (1.0 - 1e-3))  # less than 2 by far more than rounding
        for _ in range(100 if numba.config.DISABLE_JIT else 2000):
            assert len(set(draw_systematically(probabilities, 2, uniform_source(generator)).tolist())) == 2


def test_choose_skips_the_numbers_of_other_ranks() -> None:
    weights, scores = np.array([1.0, 2.0, 1.0, 3.0]), np.array([2.0, 0.5, 4.0, 1.0])
    for before, after in ((0, 8), (8, 0), (4, 4)):
        generator, plain = np.random.default_rng(5), np.random.default_rng(5)
        places, drawn = np.empty(2, dtype=np.int64), np.empty(2, dtype=np.float32)
        choose(weights, scores, 0.1, uniform_source(generator), before, after, places, drawn)
        plain.random(before)
        probabilities = inclusion(weights * scores, 2, 0.1)
        assert np.array_equal(places, draw_systematically(probabilities, 2, uniform_source(plain)))
        assert np.allclose(drawn, weights[places] / probabilities[places], rtol=1e-6)
        plain.random(after)
        assert generator.random() == plain.random()
    huge = np.array([1e308, 1e308, 1e308, 0.0])
    generator = np.random.default_rng(0)  # it must outlive its source
    choose(weights, huge, 0.0, uniform_source(generator), 0, 0, places, drawn)
    assert np.isfinite(drawn).all() and 3 not in places


@pytest.mark.parametrize("scores", ["different", "ties", "zeros", "all zero"])
@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("replacement", [True, False])
def test_two_stages_are_unbiased_by_enumeration(replacement: bool, floor: float, scores: str) -> None:
    p, g = np.array([0.1, 0.3, 0.25, 0.05, 0.3]), np.array([3.0, -1.0, 4.0, 1.0, -5.0])
    s = np.array(SIZES[scores])
    if floor == 0.0 and s.any():
        g = np.where(s > 0.0, g, 0.0)  # without a floor, an example with score 0 must have no gradient
    pools = dict(ordered_samples(p, 3, replacement))
    weights = {pool: avare.batch_weights(p[list(pool)], replacement) for pool in pools}
    mean, total = 0.0, 0.0
    for batch, factors, chance in two_stages.two_stages(pools, weights, s, 2, floor):
        mean += chance * float(factors @ g[list(batch)])
        total += chance
    assert math.isclose(total, 1.0, rel_tol=1e-9)
    assert math.isclose(mean, g.sum(), rel_tol=1e-9, abs_tol=1e-9)


def test_each_rank_draws_from_its_part_and_the_sum_is_unbiased() -> None:
    # Four of five examples are drawn; each of two ranks has two of them, and trains on one.
    p, g, s = np.array([0.1, 0.3, 0.25, 0.05, 0.3]), np.array([3.0, -1.0, 4.0, 1.0, -5.0]), np.array(SIZES["different"])
    mean = 0.0
    for pool, chance in ordered_samples(p, 4, False):
        weights = avare.batch_weights(p[list(pool)], False)
        for part in (slice(0, 2), slice(2, 4)):
            own, w = list(pool[part]), weights[part]
            included = inclusion(w * s[own], 1, 0.1)
            for places, share in two_stages.systematic_law(included, 1).items():
                (place,) = places
                mean += chance * share * w[place] / included[place] * g[own[place]]
    assert math.isclose(mean, g.sum(), rel_tol=1e-9)


def test_the_second_draw_is_the_best_of_its_kind() -> None:
    sizes = np.array([6.0, 2.0, 1.0, 1.0, 0.2])
    best = inclusion(sizes, 2)
    least = float(np.sum(sizes**2 / best))
    generator = np.random.default_rng(1)
    for _ in range(500):
        other = np.clip(best + generator.normal(0.0, 0.05, 5), 1e-3, 1.0)
        other *= 2.0 / other.sum()
        if other.max() <= 1.0:
            assert float(np.sum(sizes**2 / other)) >= least - 1e-9
    assert list(itertools.chain(best[:1])) == [1.0]
