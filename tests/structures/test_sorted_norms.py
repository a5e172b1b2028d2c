import numpy as np
import pytest

from sorted_norms import SortedNorms


def test_equal_norms_are_ordered_by_index() -> None:
    tree = SortedNorms([2.0, 1.0, 2.0, 1.0])
    for index in (3, 0, 2, 1):
        tree.update([index], [1.5])
        tree.check()
    assert np.array_equal(tree.norms(), np.full(4, 1.5))


def test_the_last_rank_is_tested_too() -> None:
    # The printed pseudo-code would accept rank N without a test; here only the largest norm is above the floor.
    solution = SortedNorms([10.0, 1.0]).solve(0.4)
    assert solution.above == 1
    assert np.allclose(SortedNorms([10.0, 1.0]).probabilities(0.4), [0.6, 0.4])


def test_sums_do_not_drift() -> None:
    tree = SortedNorms([1.0, 2.0, 3.0])
    tree.update([1], [1e30])
    assert tree.solve(0.0).scale == 1e30
    tree.update([1], [2.0])
    assert tree.solve(0.0).scale == 6.0


def test_no_sum_overflows() -> None:
    tree = SortedNorms([1e308, 1e308])
    tree.update([0], [1e308])
    assert np.allclose(tree.probabilities(0.1), 0.5)


def test_only_some_examples_are_asked_for() -> None:
    assert SortedNorms([3.0, 1.0, 2.0]).norms(np.array([2, 0])).tolist() == [2.0, 3.0]


def test_an_index_that_occurs_twice() -> None:
    tree = SortedNorms([1.0, 2.0, 3.0, 4.0])
    tree.update([3, 0, 3], [9.0, 2.0, 0.0])  # the last one counts
    tree.check()
    assert tree.norms().tolist() == [2.0, 2.0, 3.0, 0.0]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (np.ones(3), r"state\['norms'\] has shape \(3,\)"),
        (np.ones(4, dtype=np.float32), "dtype float32"),
        (np.array([1.0, np.nan, 1.0, 1.0]), r"state\['norms'\]\[1\] = nan"),
    ],
)
def test_refuses_a_damaged_state(state: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SortedNorms.from_state({"norms": state}, 4)


@pytest.mark.parametrize(("name", "place"), [("norms", 3), ("order", 5), ("sums", 7)])
def test_check_notices_damage(name: str, place: int) -> None:
    tree = SortedNorms(np.random.default_rng(4).lognormal(size=300))
    tree.check()
    getattr(tree.arrays, name)[place] += 1
    with pytest.raises((AssertionError, IndexError)):
        tree.check()
