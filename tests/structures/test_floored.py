import copy
import math

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare._randomness import uniform_source
from avare.structures import Floored, Weights
from laws import FALSE_ALARM, chi_square

compiled = not numba.config.DISABLE_JIT
Vector = NDArray[np.float64]


def projected(log_v: Vector, floor: float) -> Vector:
    """The direct projection of exp(log_v), whatever its size."""
    return avare.minimize_variance(np.exp(log_v - log_v.max()), floor)


def pushed(p: Vector, floor: float, indices: NDArray[np.int64], exponents: Vector) -> Vector:
    """The direct push, in O(N)."""
    log_v = np.log(p)
    np.add.at(log_v, indices, exponents)
    return projected(log_v, floor)


@pytest.mark.parametrize("share", [1e-100, 1e-3, 0.4, 0.9, 1.0 - 2.0**-53, 1.0])
@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_a_push_agrees_with_the_direct_one(n: int, share: float) -> None:
    generator = np.random.default_rng(n)
    floored, p = Floored(n, share), np.full(n, 1.0 / n)
    returns = 0
    for step in range(300 if compiled else 60):
        indices = generator.integers(0, n, 5)
        exponents = generator.exponential([0.01, 0.3, 3.0][step % 3], 5) * (generator.random(5) < 0.8)
        returns += int((floored.probabilities()[indices[exponents > 0.0]] == share / n).sum())
        floored.push(indices, exponents)
        if step % 10 == 9:  # the check is slow
            floored.check()
        p = pushed(p, share / n, indices, exponents)
        # p is rounded at each step, the values only when they are pushed: 300 steps of 1e-15.
        assert np.allclose(floored.probabilities(), p, rtol=1e-12, atol=0.0)
        assert np.array_equal(floored.probabilities_of(indices), floored.probabilities()[indices])
        assert floored.solution.floor == share / n and floored.solution.above <= n
    assert returns > 0 or share < 0.1 or n == 1  # some that were at the floor were pushed again


def test_the_projection_is_that_of_lemma_1() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200 if compiled else 10):
        n, share = int(generator.integers(1, 40)), float(generator.uniform(0.01, 1.0))
        v = generator.lognormal(0.0, generator.uniform(0.1, 3.0), n)
        floored = Floored(n, share)
        order = generator.permutation(n)
        floored.push(order, np.log(v / v.min())[order])
        floored.check()
        assert np.allclose(floored.probabilities(), avare.minimize_variance(v, share / n), rtol=1e-12, atol=0.0)


def test_equal_values_fall_together() -> None:
    floored = Floored(1000, 0.5)
    floored.push(np.arange(10), np.full(10, 20.0))
    floored.check()
    assert floored.solution.above == 10
    assert np.allclose(floored.probabilities()[:10], (1.0 - 990 * 0.0005) / 10, rtol=1e-12)


def test_values_on_the_threshold_stay_above() -> None:
    # As in Lemma 1: the scale is 5 + 1 + 1 + 1 and the threshold an eighth of it, without rounding.
    floored = Floored.from_state(Weights([5.0, 1.0, 1.0, 1.0]).state(), 4, 0.5)
    assert floored.solution == (0.125, 1.0, 8.0, 4)
    floored = Floored.from_state(Weights([5.0, 1.0, 1.0, 1.0 - 2.0**-50]).state(), 4, 0.5)
    assert floored.solution.above == 3
    assert np.flatnonzero(floored._weights.values == 0.0).tolist() == [3]


@pytest.mark.parametrize("exponent", [99.0, 101.0, 709.0, 800.0, 1e6])
@pytest.mark.parametrize("share", [1e-100, 0.4])
@pytest.mark.compiled
def test_no_exponent_overflows(exponent: float, share: float) -> None:
    floored, p = Floored(6, share), np.full(6, 1.0 / 6.0)
    for indices, more in (([2], 0.0), ([2, 4], 1.0), ([5, 5, 1], 0.5), ([0], -1.0), ([3, 3], 0.25)):
        where, exponents = np.array(indices), np.full(len(indices), exponent + more)
        floored.push(where, exponents)
        floored.check()
        p = pushed(p, share / 6, where, exponents)
        # An exponent is only known to 2^-53 of itself: to 2e-10 at 2e6.
        assert np.allclose(floored.probabilities(), p, rtol=1e-12 + 2.0**-52 * exponent, atol=0.0)
    floored.push([1, 1, 0], [1e300, 1e300, 1e-300])
    floored.check()
    assert floored.solution.above == 1 and floored.probabilities().argmax() == 1


def test_errors_do_not_add_up() -> None:
    # The scale exceeds 2^100 many times.
    generator = np.random.default_rng(1)
    floored, p, rebuilt = Floored(50, 0.4), np.full(50, 0.02), 0
    for _ in range(20_000 if compiled else 300):
        indices, exponents = generator.integers(0, 50, 4), generator.exponential(2.0, 4)
        before = floored.solution.scale
        floored.push(indices, exponents)
        rebuilt += floored.solution.scale < before
        p = pushed(p, 0.008, indices, exponents)
    floored.check()
    assert rebuilt > (20 if compiled else 1)
    # Errors do not add up for long: values fall to the floor, or are rounded again.
    assert np.allclose(floored.probabilities(), p, rtol=1e-12, atol=0.0)
    values = np.maximum(floored._weights.values, floored.solution.threshold)
    assert np.allclose(floored.probabilities(), avare.minimize_variance(values, 0.008), rtol=1e-13, atol=0.0)


def test_both_ways_of_drawing_follow_the_probabilities() -> None:
    floored = Floored(6, 0.6)
    floored.push([1, 4, 5], [1.5, 2.0, 2.5])
    assert floored.solution.above == 3
    p = floored.probabilities()
    generator = np.random.default_rng(2)
    draws: list[tuple[int, ...]] = []
    for size in (0, 1, 2, 1_000) * (50 if compiled else 2):
        indices, probabilities = floored.draw(size, replacement=True, source=uniform_source(generator))
        assert len(indices) == size and np.array_equal(probabilities, p[indices])
        draws += [(index,) for index in indices.tolist()]
    assert chi_square(draws, {(i,): p[i] for i in range(6)}) > FALSE_ALARM


def test_pushes_by_zero_change_nothing() -> None:
    floored = Floored(5, 0.4)
    floored.push([0, 1], [5.0, 4.0])
    before = floored.probabilities().tolist()
    floored.push([], [])
    floored.push([0, 3, 3], [0.0, 0.0, 0.0])
    floored.check()
    assert floored.solution.above == 2 and floored.probabilities().tolist() == before
    floored.push([3], [1e-300])  # from the threshold, by a factor 1
    floored.check()
    assert floored.probabilities().tolist() == pytest.approx(before, rel=1e-15)


def test_resumes_with_another_heap() -> None:
    generator = np.random.default_rng(3)
    floored = Floored(30, 0.5)
    for _ in range(100):
        floored.push(generator.integers(0, 30, 5), generator.exponential(0.5, 5))
    twin = Floored.from_state(floored.state(), 30, 0.5)
    one, two = np.random.default_rng(4), np.random.default_rng(4)
    for _ in range(100):  # the heaps may differ, because keys are updated late
        indices, p = floored.draw(7, replacement=True, source=uniform_source(one))
        assert indices.tolist() == twin.draw(7, replacement=True, source=uniform_source(two))[0].tolist()
        for each in (floored, twin):
            each.push(indices, 1e-3 / p)
        assert np.array_equal(floored.probabilities(), twin.probabilities())
    assert floored.solution == twin.solution


def test_refuses_a_damaged_state() -> None:
    floored = Floored(4, 0.4)
    floored.push([1], [2.0])
    for values, message in (
        (np.zeros(4), "does not fit"),
        (np.array([1.0, -1.0, 1.0, 1.0]), "not negative"),
        (np.array([1.0, math.nan, 1.0, 1.0]), "must be finite"),
        (np.array([1.0, math.inf, 1.0, 1.0]), "must be finite"),
        (np.ones(3), r"shape \(3,\)"),
        (np.ones(4, dtype=np.float32), "dtype float32"),
    ):
        with pytest.raises(ValueError, match=message):
            Floored.from_state({**floored.state(), "weights_values": values}, 4, 0.4)
    with pytest.raises(ValueError, match=r"state\['weights_values'\] is all zero: at least one must be above 0"):
        Floored.from_state(Weights(np.zeros(4)).state(), 4, 0.4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f._heap.__setitem__(0, f._heap[1]), "once each"),
        (lambda f: f._keys.__setitem__(0, 1e9), "out of order"),
        (lambda f: f._keys.__setitem__(f._above - 1, 1e9), "above its value"),
        (lambda f: f._weights.update([int(f._heap[0])], [1e-9]), "above its value"),
        (lambda f: f._weights.update([int(f._heap[0])], [1e3]), "do not sum to 1"),
        (lambda f: setattr(f, "_above", f._above - 1), "once each"),
        (lambda f: setattr(f, "_solution", f._solution._replace(threshold=1e9)), "below the threshold"),
        (lambda f: f._weights.values.__setitem__(2, 1e-3), "differ"),
    ],
)
def test_check_notices_damage(damage, message: str) -> None:  # type: ignore[no-untyped-def]  # any change
    floored = Floored(9, 0.4)
    floored.push([0, 1, 2, 3, 4], [1.0, 1.5, 2.0, 2.5, 3.0])
    floored.check()
    floored = copy.deepcopy(floored)
    damage(floored)
    with pytest.raises(AssertionError, match=message):
        floored.check()
