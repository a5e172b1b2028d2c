import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.simplex import groups, intervals, newton
from avare.simplex.intervals import safest
from compiled import assert_kernels_release_the_gil_and_are_cached

compiled = not numba.config.DISABLE_JIT
Vector = NDArray[np.float64]


def by_sorting(lower: Vector, upper: Vector) -> tuple[Vector, float]:
    """The same from all ends in order: the sum of c (c - tau) is linear where it changes its sign."""
    ends = np.unique(np.concatenate([lower, upper]))
    values = [(np.clip(t, lower, upper) * (np.clip(t, lower, upper) - t)).sum() for t in ends]
    k = max(0, int(np.searchsorted(-np.array(values), 0.0, side="right")) - 1)
    middle = (ends[k] + ends[min(k + 1, len(ends) - 1)]) / 2
    held = np.where(lower > middle, lower, np.where(upper < middle, upper, 0.0))
    tau = (held**2).sum() / held.sum() if held.any() else middle
    c = np.clip(tau, lower, upper)
    return c / c.sum(), tau


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 200])
def test_exact(n: int, spread: float) -> None:
    generator = np.random.default_rng(n)
    for trial in range(200 if compiled else 20):
        lower = generator.lognormal(0.0, spread, n) * (generator.random(n) < 0.7)
        upper = lower + generator.lognormal(0.0, spread, n) * (generator.random(n) < 0.7)
        if trial % 3 == 0:  # many ends are the same
            lower, upper = np.round(lower), np.round(lower) + np.round(upper)
        upper[0] += upper[0] == 0.0
        p, tau = safest(lower, upper)
        expected, level = by_sorting(lower, upper)
        # Sums of some hundred numbers, and a quotient of two.
        assert np.allclose(p, expected, rtol=1e-12, atol=0.0)
        if len(np.unique(np.clip([tau, level], lower[:, None], upper[:, None]), axis=1).T) > 1:
            assert tau == pytest.approx(level, rel=1e-12)
        for scale in (1e-280, 1e290):  # no square overflows or underflows
            assert np.allclose(safest(lower * scale, upper * scale)[0], expected, rtol=1e-12, atol=0.0)
        for guess in (tau, 0.3 * tau, 3.0 * tau, 1e300):  # the first guess does not matter
            assert np.allclose(safest(lower, upper, guess)[0], expected, rtol=1e-12, atol=0.0)


def test_tau_solves_its_equation() -> None:
    generator = np.random.default_rng(0)
    n = 100_000 if compiled else 1000
    lower = generator.lognormal(0.0, 2.0, n)
    upper = lower * (1.0 + generator.exponential(1.0, n))
    p, tau = safest(lower, upper)
    c = np.clip(tau, lower, upper)
    assert (c**2).sum() / c.sum() == pytest.approx(tau, rel=1e-12)
    assert np.allclose(p, c / c.sum(), rtol=1e-12)
    assert lower.min() < tau < upper.max()


def test_uniform_if_all_norms_may_be_equal() -> None:
    p, tau = safest(np.array([0.0, 1.0, 0.5]), np.array([9.0, 2.0, 3.0]))
    assert p.tolist() == [1 / 3] * 3 and 1.0 <= tau <= 2.0
    assert safest(np.zeros(4), np.zeros(4))[0].tolist() == [0.25] * 4
    assert safest(np.zeros(3), np.array([2.0, 0.0, 5.0]))[0].tolist() == [0.5, 0.0, 0.5]  # surely zero
    assert safest(np.array([7.0]), np.array([7.0]))[0].tolist() == [1.0]


@pytest.mark.parametrize("smallest", [1e-20, 1e-170, 1e-300])  # some squares underflow
def test_intervals_of_any_width(smallest: float) -> None:
    # All may be equal, but only to the smallest.
    upper = np.geomspace(smallest, 1.0, 9)
    p, tau = safest(np.zeros(9), upper)
    assert np.allclose(p, 1 / 9, rtol=1e-12) and tau == upper[0]
    # The smallest is known, and one is at least twice as large: tau is between the two.
    lower = np.zeros(9)
    lower[0], lower[1], upper[0], upper[1] = smallest, 2.0 * smallest, smallest, 1.0
    p, tau = safest(lower, upper)
    assert tau / smallest == pytest.approx(5 / 3, rel=1e-12)
    assert np.allclose(p * (3 + 7 * 5 / 3), [1.0, 2.0] + [5 / 3] * 7, rtol=1e-12)
    # Two are known, and far apart.
    p, tau = safest(np.array([smallest, 1.0, 0.0]), np.array([smallest, 1.0, 1.0]))
    assert np.allclose(p, [smallest / 2, 0.5, 0.5], rtol=1e-12, atol=0.0) and tau == pytest.approx(1.0, rel=1e-12)


def test_terminates_if_newton_steps_alternate() -> None:
    # The Newton step from 4 is to 1, and that from 1 is to 4: each is the only end on the other side.
    p, tau = safest(np.array([1.0, 4.0]), np.array([1.0, 4.0]))
    assert p.tolist() == [0.2, 0.8] and tau == pytest.approx(17 / 5, rel=1e-15)
    generator = np.random.default_rng(1)
    for guess in np.concatenate([[0.0], generator.uniform(0.0, 10.0, 20)]):
        norms = np.array([1.0, 1.0 + 1e-9, 8.0, 9.0, 9.0 + 1e-9])
        p, tau = safest(norms, norms, guess)
        assert np.allclose(p, norms / norms.sum(), rtol=1e-15)
        assert tau == pytest.approx((norms**2).sum() / norms.sum(), rel=1e-14)


@pytest.mark.skipif(not compiled, reason="nothing is compiled here")
@pytest.mark.parametrize("module", [groups, intervals, newton])
def test_kernels_release_the_gil_and_are_cached(module: ModuleType) -> None:
    assert_kernels_release_the_gil_and_are_cached(module)


_PROGRAM = """
import numpy as np
from avare.simplex.intervals import safest
generator = np.random.default_rng(0)
for _ in range(200):
    lower = generator.random(1000) * generator.lognormal(0, 2, 1000)
    print(safest(lower, lower + generator.random(1000))[1].hex())
"""


@pytest.mark.skipif(not compiled, reason="nothing is compiled here")
def test_tau_is_the_same_where_kernels_are_compiled_and_where_they_are_read_from_disk(tmp_path: Path) -> None:
    # A sum whose order is free must be part of its caller: two copies of it may be linked in one process.
    environment = {"PYTHONPATH": str(Path(avare.__file__).parents[1]), "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout
