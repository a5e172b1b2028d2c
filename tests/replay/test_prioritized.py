"""Prioritised replay. See `laws.FALSE_ALARM` for the law of draws."""

import copy
import io
import math
import pickle
from typing import Any

import numpy as np
import pytest

from avare.replay import Prioritized
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

DRAWS = draws_of(40_000)
PRIORITIES = np.array([0.3, 5.0, 1.0, 0.0, 2.2])


def filled(**arguments: Any) -> Prioritized:
    buffer = Prioritized(5, **{"alpha": 0.7, "beta": 0.5, "seed": 0, **arguments})
    buffer.extend(PRIORITIES)
    return buffer


def law(alpha: float) -> Any:
    powers = np.where(PRIORITIES > 0.0, PRIORITIES**alpha, 0.0)
    return powers / powers.sum()


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("replacement", [True, False])
def test_draws_follow_the_priorities(alpha: float, replacement: bool) -> None:
    buffer, p = filled(alpha=alpha, replacement=replacement), law(alpha)
    draws = [tuple(buffer.sample(2)[0].tolist()) for _ in range(DRAWS // 4)]
    assert chi_square(draws, dict(ordered_samples(p, 2, replacement))) > FALSE_ALARM


def test_weights_are_those_of_the_paper() -> None:
    buffer = filled(beta=0.4)
    indices, weights = buffer.sample(200)
    p = law(0.7)
    expected = (5 * p[indices]) ** -0.4 / ((5 * p[p > 0.0]) ** -0.4).max()
    assert np.allclose(weights, expected, rtol=1e-13)
    assert weights.max() == 1.0 and set(indices.tolist()) == {0, 1, 2, 4}
    buffer.beta = 0.0
    assert (buffer.sample(50)[1] == 1.0).all()


def test_with_beta_1_the_weighted_mean_is_unbiased_up_to_one_factor() -> None:
    # By enumeration: sum_i P_i w_i g_i = constant * mean of g, for items with a priority above 0.
    buffer, g = filled(beta=1.0), np.array([3.0, -1.0, 0.5, 7.0, 2.0])
    indices, weights = buffer.sample(1000)
    w = np.zeros(5)
    w[indices] = weights
    p, kept = law(0.7), PRIORITIES > 0.0
    assert (p * w * g).sum() / (p * w).sum() == pytest.approx(g[kept].mean(), rel=1e-12)


def test_a_ring_replaces_the_oldest() -> None:
    buffer = Prioritized(4, alpha=1.0, seed=0)
    assert len(buffer) == 0 and buffer.total == buffer.minimum == 0.0
    assert buffer.extend([1.0, 2.0, 3.0]).tolist() == [0, 1, 2] and len(buffer) == 3
    assert buffer.extend([4.0, 5.0]).tolist() == [3, 0] and len(buffer) == 4
    assert (buffer.total, buffer.minimum) == (14.0, 2.0)
    assert buffer.extend(2).tolist() == [1, 2]  # with the highest priority so far
    assert (buffer.total, buffer.minimum, buffer.default_priority) == (19.0, 4.0, 5.0)
    assert buffer.extend(0).tolist() == [] and buffer.extend([]).tolist() == []
    buffer.clear()
    assert len(buffer) == 0 and buffer.default_priority == 1.0
    assert buffer.extend(np.int64(1)).tolist() == [0] and buffer.total == 1.0


@pytest.mark.compiled
def test_total_and_minimum_stay_exact() -> None:
    generator = np.random.default_rng(1)
    buffer = Prioritized(1000, alpha=0.6, seed=1)
    for _ in range(draws_of(40_000_000, 40_000) // 2000):  # each: 1,000 items replaced or added, 1,000 updated
        buffer.extend(generator.lognormal(0.0, 5.0, 1000))
        priorities = generator.lognormal(0.0, 5.0, 1000) * (generator.random(1000) > 0.2)
        buffer.update(generator.integers(0, 1000, 1000), priorities)
    values = buffer.state_dict()["weights"]
    fresh = Prioritized(1000, alpha=1.0)
    fresh.extend(values)
    assert (buffer.total, buffer.minimum) == (fresh.total, fresh.minimum)  # to the last bit
    assert buffer.total == pytest.approx(math.fsum(values.tolist()), rel=1e-15)
    assert buffer.minimum == values[values > 0.0].min()


@pytest.mark.slow
@pytest.mark.compiled
def test_a_hundred_million_draws_find_no_item_of_priority_zero() -> None:
    generator = np.random.default_rng(2)
    priorities = np.where(np.arange(30_000) % 3 == 0, 10.0 ** generator.uniform(-8.0, 0.0, 30_000), 0.0)
    buffer = Prioritized(50_000, seed=2)
    buffer.extend(priorities)
    for _ in range(100):
        indices, weights = buffer.sample(1_000_000)
        assert (indices % 3 == 0).all() and indices.max() < 30_000 and weights.max() <= 1.0
        changed = generator.integers(0, 10_000, 1000) * 3
        buffer.update(changed, 10.0 ** generator.uniform(-8.0, 0.0, 1000))


@pytest.mark.parametrize("replacement", [True, False])
def test_resumes_with_the_same_draws(replacement: bool) -> None:
    buffer = filled(replacement=replacement)
    buffer.extend([9.0, 0.1])
    buffer.sample(3)
    buffer.beta = 0.9
    content = io.BytesIO()
    np.savez(content, **buffer.state_dict())
    content.seek(0)
    twin = Prioritized(5, alpha=0.7, replacement=replacement, seed=9)
    twin.load_state_dict(dict(np.load(content)))
    copies = [twin, copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))]
    for _ in range(20):
        indices, weights = buffer.sample(3)
        buffer.update(indices, weights)
        places = buffer.extend(1)
        for each in copies:
            found, theirs = each.sample(3)
            assert found.tolist() == indices.tolist() and theirs.tolist() == weights.tolist()
            each.update(found, theirs)
            assert each.extend(1).tolist() == places.tolist()


def test_refuses_a_damaged_state_and_changes_nothing() -> None:
    buffer, twin = filled(), filled(seed=1)
    state, before = buffer.state_dict(), twin.state_dict()
    for name, value in {
        "weights": state["weights"] * 2,
        "generator": "text",
        "alpha": 0.6,
        "beta": -1.0,
        "added": -1,
        "highest": math.nan,
        "replacement": 0,
        "checksum": 3,
    }.items():
        with pytest.raises(ValueError, match=rf"state\['({name}|checksum)'\]"):
            twin.load_state_dict({**state, name: value})
        with pytest.raises(ValueError, match=f"state lacks '{name}'"):
            twin.load_state_dict({key: each for key, each in state.items() if key != name})
    with pytest.raises(ValueError, match=r"state\['alpha'\] = 0.7: this buffer has 0.6"):
        filled(alpha=0.6).load_state_dict(state)
    with pytest.raises(TypeError, match="state is of type list"):
        twin.load_state_dict([])  # type: ignore[arg-type]  # the point
    after = twin.state_dict()
    assert all(np.array_equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda buffer: buffer.update([0, 5], [1.0, 1.0]), r"indices\[1\] = 5: must be in \[0, 5\)"),
        (lambda buffer: buffer.update([0, 1], [1.0, -1.0]), r"priorities\[1\] = -1.0: must be finite and not negative"),
        (lambda buffer: buffer.update([0, 1], [1.0, math.nan]), r"priorities\[1\] = nan"),
        (lambda buffer: buffer.update([0], [1.0, 2.0]), "has length 2"),
        (lambda buffer: buffer.extend([1.0, math.inf]), r"items\[1\] = inf"),
        (lambda buffer: buffer.extend([1.0] * 6), "items: 6 do not fit into a capacity of 5"),
        (lambda buffer: buffer.extend(-1), "items = -1: must be at least 0"),
        (lambda buffer: buffer.sample(-1), "size = -1: must be at least 0"),
        (lambda buffer: setattr(buffer, "beta", math.nan), "beta = nan: must be finite"),
        (lambda buffer: Prioritized(0), "capacity = 0: must be at least 1"),
        (lambda buffer: Prioritized(1, alpha=-1.0), "alpha = -1.0: must be at least 0"),
        (lambda buffer: Prioritized(1).sample(1), "nothing to draw: no item was added yet, or"),
    ],
)
def test_refuses_bad_input_and_changes_nothing(wrong: Any, message: str) -> None:
    buffer, twin = filled(), filled()
    with pytest.raises(ValueError, match=message):
        wrong(buffer)
    assert (len(buffer), buffer.total, buffer.default_priority) == (5, twin.total, 5.0)
    assert buffer.sample(9)[0].tolist() == twin.sample(9)[0].tolist()


def test_too_large_a_batch_of_distinct_items_changes_nothing() -> None:
    buffer, twin = filled(replacement=False), filled(replacement=False)
    with pytest.raises(ValueError, match="size = 5: fewer examples"):
        buffer.sample(5)
    assert buffer.total == twin.total
    assert [buffer.sample(4)[0].tolist() for _ in range(9)] == [twin.sample(4)[0].tolist() for _ in range(9)]


def test_a_priority_above_zero_can_be_drawn_however_small_it_is() -> None:
    buffer = Prioritized(5, alpha=2.0, beta=1.0, seed=0)
    buffer.extend([1e-170, 0.0, 1e-200, 5e-324])  # whose squares are 0 as float64
    assert (buffer.total, buffer.minimum) == (1.5e-323, 5e-324)
    indices, weights = buffer.sample(3000)
    assert chi_square([(i,) for i in indices.tolist()], dict.fromkeys([(0,), (2,), (3,)], 1 / 3)) > FALSE_ALARM
    assert (weights == 1.0).all()
    buffer = Prioritized(3, alpha=1.0, replacement=False, seed=0)
    buffer.extend([1e300, 5e-324, 0.0])
    assert np.isfinite(buffer.sample(2)[1]).all()  # although the second probability is 0 as float64


def test_an_item_that_is_not_there_yet_cannot_be_updated() -> None:
    buffer = Prioritized(5)
    buffer.extend(2)
    with pytest.raises(ValueError, match=r"indices\[0\] = 2: must be in \[0, 2\)"):
        buffer.update([2], [1.0])
