import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare.structures import WeightTree
from avare.structures.weight_tree import replace
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

DRAWS = draws_of(100_000)
values = st.one_of(
    st.just(0.0), st.floats(1e-3, 1e3), st.floats(-300, 300).map(lambda e: 10.0**e), st.sampled_from([5e-324, 1e-310])
)


@given(
    st.lists(values, min_size=1, max_size=300),
    st.lists(st.lists(st.tuples(st.integers(0, 299), values), max_size=8), max_size=10),
)
def test_sums_and_minima_depend_on_the_present_weights_only(
    start: list[float], changes: list[list[tuple[int, float]]]
) -> None:
    tree = WeightTree(start)
    expected = np.array(start)
    for batch in changes:
        inside = [(index, value) for index, value in batch if index < len(start)]
        for index, value in inside:
            expected[index] = value
        tree.update(np.array([index for index, _ in inside], dtype=int), [value for _, value in inside])
        tree.check()
    assert np.array_equal(tree.values, expected)


@pytest.mark.compiled
def test_ten_million_changes_leave_the_total_and_the_minimum_exact() -> None:
    generator = np.random.default_rng(0)
    n, size = 5000, 1000
    tree = WeightTree(generator.lognormal(0.0, 3.0, n))
    for _ in range(draws_of(40_000_000, 10_000) // size):
        changed = generator.lognormal(0.0, 20.0, size)
        changed[generator.random(size) < 0.1] = 0.0
        replace(tree.arrays, generator.integers(0, n, size), changed)
    tree.check()
    assert tree.total == WeightTree(tree.values.copy()).total
    assert tree.total == pytest.approx(math.fsum(tree.values.tolist()), rel=1e-15)


@pytest.mark.slow
@pytest.mark.compiled
def test_a_hundred_million_draws_find_no_weight_of_zero() -> None:
    # Weights of all magnitudes: rounding is as frequent as it can be.
    generator = np.random.default_rng(1)
    weights = np.where(np.arange(10_000) % 3 == 0, 10.0 ** generator.uniform(-12.0, 0.0, 10_000), 0.0)
    tree = WeightTree(weights)
    for _ in range(100):
        indices, p = tree.draw(1_000_000, replacement=True, generator=generator)
        assert (indices % 3 == 0).all() and (p > 0.0).all()


@pytest.mark.compiled
def test_distinct_draws_of_any_range() -> None:
    generator = np.random.default_rng(3)
    tree = WeightTree([1e200, 1.0, 3.0, 0.0])
    draws = [tuple(tree.draw(3, replacement=False, generator=generator)[0].tolist()) for _ in range(DRAWS // 5)]
    assert chi_square(draws, {(0, 1, 2): 1 / 4, (0, 2, 1): 3 / 4}) > FALSE_ALARM


def test_what_is_left_before_each_distinct_draw() -> None:
    tree, left = WeightTree([1.0, 1e-17, 1e-17]), np.empty(3)
    generator = np.random.default_rng(0)
    tree.draw(3, replacement=False, generator=generator, left=left)
    assert left.tolist() == [1.0, 2e-17, 1e-17]


@pytest.mark.parametrize("n", [16, 17, 256, 257, 5000])
def test_draws_at_every_depth(n: int) -> None:
    generator = np.random.default_rng(n)
    weights = generator.lognormal(0.0, 1.0, n) * (np.arange(n) % 7 > 0)
    tree = WeightTree(np.ones(n))
    tree.update(np.arange(n), weights)
    tree.check()
    indices, _ = tree.draw(DRAWS, replacement=True, generator=generator)
    law: dict[tuple[int, ...], float] = {(i,): p for i, p in enumerate((weights / weights.sum()).tolist())}
    assert chi_square([(i,) for i in indices.tolist()], law) > FALSE_ALARM


@pytest.mark.parametrize("size", [1, 3])
def test_all_zero_means_uniform(size: int) -> None:
    tree, generator = WeightTree.zeros(3), np.random.default_rng(5)
    draws = [
        tuple(tree.draw(size, replacement=False, generator=generator)[0].tolist()) for _ in range(draws_of(8000, 500))
    ]
    assert chi_square(draws, dict(ordered_samples(np.full(3, 1 / 3), size, replacement=False))) > FALSE_ALARM
    assert (tree.total, tree.minimum) == (0.0, 0.0)


def test_one_draw_takes_one_random_number_whatever_the_batch() -> None:
    tree = WeightTree(np.arange(1.0, 1001.0))
    for replacement in (True, False):
        whole, parts = np.random.default_rng(6), np.random.default_rng(6)
        expected, _ = tree.draw(600, replacement=replacement, generator=whole)
        if replacement:
            found = [tree.draw(k, replacement=True, generator=parts)[0] for k in (1, 255, 300, 44)]
            assert np.concatenate(found).tolist() == expected.tolist()
        else:
            parts.random(600)
        assert whole.random() == parts.random()


def test_a_sum_that_might_overflow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weights\[1\] = 1e\+308: must be at most"):
        WeightTree([1.0, 1e308])
    tree = WeightTree([1.0, 2.0])
    with pytest.raises(ValueError, match=r"values\[0\] = 1e\+308: must be at most"):
        tree.update([1], [1e308])
    assert tree.total == 3.0


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_weights_with_too_few_bits_for_a_random_number(first: float) -> None:
    tree, generator, p = WeightTree([5e-324, 0.0, 1e-323, first]), np.random.default_rng(7), [1 / 3, 0.0, 2 / 3]
    if first == 0.0:
        draws = [(i,) for i in tree.draw(draws_of(30_000), replacement=True, generator=generator)[0].tolist()]
        assert chi_square(draws, {(0,): 1 / 3, (2,): 2 / 3}) > FALSE_ALARM
    size = 3 if first else 2
    firsts = [(int(tree.draw(size, replacement=False, generator=generator)[0][-2]),) for _ in range(draws_of(5_000))]
    assert chi_square(firsts, {(0,): p[0], (2,): p[2]}) > FALSE_ALARM
    tree.check()
    with pytest.raises(ValueError, match=r"state\['weights'\]\[1\] = 1e\+308: must be at most"):
        WeightTree.from_state({"weights": np.array([1.0, 1e308])}, 2)
