import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

import avare
from avare.simplex import minimize_variance

magnitudes = st.one_of(
    st.just(0.0),
    st.sampled_from([1.0, 2.5]),  # ties
    st.floats(1e-3, 1e3),
    st.floats(-150, 150).map(lambda exponent: 10.0**exponent),
    st.sampled_from([5e-324, 1e-310, 1e308]),
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[NDArray[np.float64], float]:
    a = np.array(draw(st.lists(magnitudes, min_size=1, max_size=12)))
    share = draw(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0), st.floats(-12, 0).map(lambda e: 10.0**e)))
    return a, share / len(a)


@given(problems())
def test_satisfies_the_kkt_conditions(problem: tuple[NDArray[np.float64], float]) -> None:
    a, floor = problem
    p = avare.minimize_variance(a, floor)
    assert p.shape == a.shape
    assert np.isclose(p.sum(), 1.0, rtol=0, atol=1e-12)
    assert (p >= floor * (1 - 1e-12)).all()
    if a.max() == 0.0:
        assert np.allclose(p, 1.0 / len(a), rtol=1e-12)
        return
    # Stationarity: a_i^2 / p_i^2 is the same number, nu, above the floor, and at most nu at the floor.
    slope = a / a.max() / np.where(p > 0.0, p, 1.0)  # its square root, scaled
    free = p > floor * (1 + 1e-9)
    if free.any():
        root = slope[p.argmax()]
        exact = p[free] >= 1e-290  # below float64's smallest normal number a quotient has fewer digits
        assert np.allclose(slope[free][exact], root, rtol=1e-9)
        assert (slope[~free][p[~free] >= 1e-290] <= root * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_a_general_convex_solver(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(2, 9))
    a = generator.lognormal(0.0, [0.3, 1.5, 3.0][seed % 3], n)
    a[generator.random(n) < 0.2] = 0.0
    a[0] = a[-1] = 1.3
    floor = [0.02, 0.3, 0.9, 0.999][seed % 4] / n
    p = avare.minimize_variance(a, floor)
    found = minimize(
        lambda q: np.sum((a / a.max()) ** 2 / q),
        np.full(n, 1.0 / n),
        jac=lambda q: -((a / a.max() / q) ** 2),
        bounds=[(floor, 1.0)] * n,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1.0, "jac": lambda q: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    ours = np.sum((a / a.max()) ** 2 / p)
    # SLSQP stops at about the square root of the rounding error; it must never be better than the closed form.
    assert np.isclose(ours, found.fun, rtol=1e-6)
    assert ours <= found.fun * (1 + 1e-9)
    assert np.allclose(p, found.x, atol=2e-4)


def test_has_two_public_names() -> None:
    assert avare.minimize_variance is avare.simplex.minimize_variance is minimize_variance


def test_special_cases() -> None:
    assert np.allclose(avare.minimize_variance([0.0, 0.0]), 0.5)
    assert np.allclose(avare.minimize_variance([3.0]), 1.0)
    assert np.allclose(avare.minimize_variance([3.0, 1.0]), [0.75, 0.25])
    assert np.allclose(avare.minimize_variance([3.0, 1.0], 0.5), 0.5)
    assert np.allclose(avare.minimize_variance([1e30, 1.0, 1.0], 0.01), [0.98, 0.01, 0.01])


@pytest.mark.parametrize(
    ("a", "floor", "error", "message"),
    [
        ([], 0.0, ValueError, "a is empty"),
        ([1.0, np.nan], 0.0, ValueError, r"a\[1\] = nan"),
        ([1.0, -2.0], 0.0, ValueError, r"a\[1\] = -2.0"),
        ([[1.0]], 0.0, ValueError, r"a has shape \(1, 1\)"),
        (["x"], 0.0, TypeError, "a has dtype"),
        ([[1.0], [1.0, 2.0]], 0.0, ValueError, "a is not an array"),
        ([1.0, 2.0], 0.51, ValueError, "floor = 0.51: must be at most 1/2"),
        ([1.0, 2.0], -0.1, ValueError, "floor = -0.1"),
        ([1.0, 2.0], np.inf, ValueError, "floor = inf"),
        ([1.0, 2.0], "0.1", TypeError, "floor = '0.1'"),
    ],
)
def test_refuses_bad_input(a: object, floor: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        avare.minimize_variance(a, floor)  # type: ignore[arg-type]  # the wrong types are the point
