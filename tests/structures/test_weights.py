import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare._randomness import uniform_source
from avare.structures import Weights
from avare.structures.weighted_draws import draw
from avare.structures.weights import draw_smoothed_into
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

DRAWS = draws_of(100_000)
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
            weights.update([index], [value])
            weights.check()
    assert np.array_equal(weights.values, expected)


def test_draws_after_the_largest_weight_was_replaced() -> None:
    # The largest weight set the scale of the proposals, and falls by hundreds of octaves.
    generator = np.random.default_rng(2)
    weights, source = Weights([1e200, 1.0, 3.0]), uniform_source(generator)
    weights.update([0], [2.0])
    indices, p = weights.draw(DRAWS, replacement=True, source=source)
    assert chi_square([(i,) for i in indices.tolist()], {(0,): 2 / 6, (1,): 1 / 6, (2,): 3 / 6}) > FALSE_ALARM
    assert np.array_equal(p, weights.probabilities()[indices])
    weights.check()
    weights.update([1], [1e300])
    weights.check()
    assert weights.draw(10, replacement=True, source=source)[0].tolist() == [1] * 10


@pytest.mark.compiled
def test_distinct_draws_of_any_range() -> None:
    # Without the largest weight, the proposals for the others are far out of scale.
    generator = np.random.default_rng(3)
    weights, source = Weights([1e200, 1.0, 3.0, 0.0]), uniform_source(generator)
    draws = [tuple(weights.draw(3, replacement=False, source=source)[0].tolist()) for _ in range(DRAWS // 5)]
    assert chi_square(draws, {(0, 1, 2): 1 / 4, (0, 2, 1): 3 / 4}) > FALSE_ALARM
    weights.update([0], [2.0])
    draws = [tuple(weights.draw(2, replacement=False, source=source)[0].tolist()) for _ in range(DRAWS // 5)]
    assert chi_square(draws, dict(ordered_samples(weights.probabilities(), 2, replacement=False))) > FALSE_ALARM
    with pytest.raises(ValueError, match="size = 4: fewer examples have a probability above 0"):
        weights.draw(4, replacement=False, source=source)


@pytest.mark.parametrize("start", [[0.3, 1 / 3, 2.0, 0.0], [0.0] * 4])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_smoothed_draws(start: list[float], share: float) -> None:
    generator = np.random.default_rng(4)
    weights = Weights(start)
    p = (1.0 - share) * weights.probabilities() + share / 4
    draws: list[tuple[int, ...]] = []
    for size in (1, 2, 100) * (DRAWS // 100):
        indices, probabilities, uniform = np.empty(size, np.int64), np.empty(size), np.empty(size, np.bool_)
        draw_smoothed_into(weights.arrays, share, uniform_source(generator), indices, probabilities, uniform)
        assert np.allclose(probabilities, p[indices], rtol=1e-12)
        draws += zip(indices.tolist(), uniform.tolist(), strict=True)
    uniform_share = share if any(start) else 1.0
    law: dict[tuple[int, ...], float] = {
        (i, came): uniform_share / 4 if came else (1.0 - uniform_share) * weights.probabilities()[i]
        for i in range(4)
        for came in (True, False)
    }
    assert chi_square(draws, law) > FALSE_ALARM


@pytest.mark.parametrize("p", [[0.1, 0.2, 0.3, 0.4], [0.9, 1e-3, 0.099, 0.0], [1e-200, 3e-200, 1.0, 0.0]])
@pytest.mark.parametrize("replacement", [True, False])
def test_draws_in_linear_time(p: list[float], replacement: bool) -> None:
    generator, size = np.random.default_rng(5), 2 if replacement else 3
    draws = [tuple(draw(np.array(p), size, replacement, generator).tolist()) for _ in range(DRAWS // 5)]
    law = dict(ordered_samples(np.array(p), size, replacement))
    if p[0] < 1e-100 and not replacement:  # which float64 cannot renormalise by subtraction
        law = {(2, 0, 1): 1 / 4, (2, 1, 0): 3 / 4}
    assert chi_square(draws, law) > FALSE_ALARM
    assert len(draw(np.array(p), 0, replacement, generator)) == 0
    if not all(p):
        with pytest.raises(ValueError, match="size = 4: only 3 probabilities are above 0"):
            draw(np.array(p), 4, False, generator)


def test_no_weight_at_all_is_uniform() -> None:
    assert np.allclose(Weights([0.0, 0.0]).probabilities(), 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights_values": np.ones(3)}, r"state\['weights_values'\] has shape \(3,\)"),
        ({"weights_values": np.array([1.0, math.nan])}, r"state\['weights_values'\]\[1\] = nan: must be finite"),
        ({"weights_values": np.array([2.0, 2.0])}, r"state\['weights_values'\]\[0\] = 2.0: does not fit"),
        ({"weights_shift": 7}, r"state\['weights_values'\]\[0\] = 1.0: does not fit"),
        ({"weights_shift": 10_000}, r"state\['weights_shift'\] = 10000: must be an integer from"),
        ({"weights_members": np.array([0, 1])}, r"state\['weights_values'\]\[0\] = 1.0: does not fit"),
        ({"weights_members": np.array([0, 0])}, r"state\['weights_members'\]\[1\] = 0"),
    ],
)
def test_refuses_a_damaged_state(changes: dict[str, object], message: str) -> None:
    state = Weights([1.0, 2.0]).state()
    with pytest.raises(ValueError, match=message):
        Weights.from_state({**state, **changes}, 2)
