import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare.simplex import split
from avare.structures.race import race
from avare.structures.weights import Weights
from laws import FALSE_ALARM, chi_square, ordered_samples

DRAWS = 2_000 if numba.config.DISABLE_JIT else 100_000
values = st.one_of(
    st.just(0.0),
    st.floats(1e-3, 1e3),
    st.floats(-300, 300).map(lambda e: 10.0**e),
    st.sampled_from([5e-324, 1e-310, 1e308]),
)


@given(st.lists(values, min_size=1, max_size=20), st.lists(st.tuples(st.integers(0, 19), values), max_size=30))
def test_sums_stay_exact(start: list[float], changes: list[tuple[int, float]]) -> None:
    if max(start) > 1e306:  # their sum may leave float64's range
        return
    weights = Weights(start)
    expected = np.array(start)
    weights.check()
    for index, value in changes:
        if index < len(start) and value < 1e306:
            expected[index] = value
            weights.set([index], [value])
            weights.check()
    assert np.array_equal(weights.values, expected)


@pytest.mark.parametrize("start", [[0.3, 1 / 3, 2.0, 0.0, 1e-9], [1e200, 3e200, 2e200], [1e-310, 3e-310], [1.0]])
def test_draws_are_in_proportion(start: list[float]) -> None:
    weights = Weights(start)
    weights.set([0], [start[0]])
    indices = weights.draw(2 * DRAWS, np.random.default_rng(1))
    law = dict(ordered_samples(weights.probabilities(), 2, replacement=True))
    pairs = list(zip(indices[::2].tolist(), indices[1::2].tolist(), strict=True))
    assert chi_square(pairs, law) > FALSE_ALARM


def test_draws_after_the_scale_has_gone() -> None:
    # The largest weight set the scale of the proposals, and falls by hundreds of octaves.
    weights = Weights([1e200, 1.0, 3.0])
    weights.set([0], [2.0])
    indices = weights.draw(DRAWS, np.random.default_rng(2))
    assert chi_square([(i,) for i in indices.tolist()], {(0,): 2 / 6, (1,): 1 / 6, (2,): 3 / 6}) > FALSE_ALARM
    weights.set([1], [1e300])
    weights.check()
    assert weights.draw(10, np.random.default_rng(3)).tolist() == [1] * 10


@pytest.mark.parametrize("start", [[0.3, 1 / 3, 2.0, 1.0], [1000.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 0.0]])
@pytest.mark.parametrize("how", ["weights", "race"])
def test_distinct_draws(start: list[float], how: str) -> None:
    weights, generator = Weights(start), np.random.default_rng(4)
    draw = weights.draw_distinct if how == "weights" else lambda size, generator: race(np.array(start), size, generator)
    draws = [tuple(draw(3, generator).tolist()) for _ in range(DRAWS // 5)]
    assert chi_square(draws, dict(ordered_samples(weights.probabilities(), 3, replacement=False))) > FALSE_ALARM


@pytest.mark.parametrize("start", [[0.3, 1 / 3, 2.0, 0.0, 1e-9], [1e300, 1e100, 1.0, 1e-100, 1e-300, 5e-324, 0.0]])
def test_distinct_draws_leave_the_weights_as_they_were(start: list[float]) -> None:
    # Each of the second is nearly all of the mass that is left: its order is certain, but for 1e-100.
    weights, generator = Weights(start), np.random.default_rng(6)
    some = int(np.count_nonzero(start))
    for _ in range(20):
        drawn = weights.draw_distinct(some, generator)
        assert sorted(drawn.tolist()) == np.flatnonzero(start).tolist()
        assert len(start) == 5 or drawn.tolist() == list(range(some))
        assert weights.values.tolist() == start
        weights.check()


def test_too_few_to_be_distinct() -> None:
    for draw in (Weights([1.0, 0.0, 2.0]).draw_distinct, lambda size, g: race(np.array([1.0, 0.0, 2.0]), size, g)):
        with pytest.raises(ValueError, match=r"size = \d draws without replacement"):
            draw(3, np.random.default_rng(5))


def test_no_weight_at_all_is_uniform() -> None:
    assert np.allclose(Weights([0.0, 0.0]).probabilities(), 0.5)


def test_refuses_a_damaged_state() -> None:
    state = Weights([1.0, 2.0]).state()
    with pytest.raises(ValueError, match=r"weights have shape \(2,\)"):
        Weights.from_state(state, 3)
    with pytest.raises(ValueError, match=r"state\[1\]"):
        Weights.from_state({**state, "weights_members": state["weights_members"][::-1].copy()}, 2)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=40), st.integers(1, 10))
def test_groups_have_near_equal_mass(scores: list[float], count: int) -> None:
    count = min(count, len(scores))
    s = np.array(scores)
    groups = split(s, count)
    assert sorted(groups.order.tolist()) == list(range(len(s)))
    for k in range(count):
        members = groups.order[groups.starts[k] : groups.starts[k + 1]]
        assert len(members) > 0
        assert np.isclose(groups.masses[k], s[members].sum())
        assert len(members) == 1 or groups.masses[k] <= s.sum() / count + s[members].min() + 1e-9
