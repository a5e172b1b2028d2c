import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import avare
from avare import diagnostics

# Not smaller: a norm 1e308 times below the largest has a probability that is 0 in float64.
norms = st.lists(st.just(0.0) | st.floats(1e-100, 1e6), min_size=1, max_size=20).filter(
    lambda values: max(values) > 1e-3
)


@given(norms, st.integers(0, 2**32 - 1))
def test_measures_agree_with_their_definitions(values: list[float], seed: int) -> None:
    n = np.array(values)
    p = np.random.default_rng(seed).dirichlet(np.ones(len(n))) * 0.9 + 0.1 / len(n)
    assert np.isclose(diagnostics.cost(n, p), sum(n**2 / p), rtol=1e-12)
    assert diagnostics.optimal_cost(n) <= diagnostics.cost(n, p) * (1 + 1e-12)
    assert np.isclose(diagnostics.cost(n, avare.minimize_variance(n)), diagnostics.optimal_cost(n), rtol=1e-9)
    assert diagnostics.relative_error(n, p) >= -1e-12
    assert 1.0 - 1e-12 <= diagnostics.gain(n) <= len(n) * (1 + 1e-12)


def test_many_steps_at_once() -> None:
    generator = np.random.default_rng(1)
    n, p = generator.lognormal(size=(6, 9)), generator.dirichlet(np.ones(9), size=6)
    assert np.allclose(diagnostics.cost(n, p), [diagnostics.cost(a, b) for a, b in zip(n, p, strict=True)])
    assert np.allclose(diagnostics.cost(n, p[0]), [diagnostics.cost(a, p[0]) for a in n])
    assert np.allclose(diagnostics.relative_error(n, p)[2], diagnostics.relative_error(n[2], p[2]))  # type: ignore[index]  # an array here
    assert np.allclose(diagnostics.gain(n), 9 * (n**2).sum(axis=1) / n.sum(axis=1) ** 2)


def test_edge_cases() -> None:
    assert diagnostics.cost([0.0, 1.0], [0.0, 1.0]) == 1.0
    assert diagnostics.cost([1.0, 1.0], [0.0, 1.0]) == np.inf
    assert diagnostics.relative_error([0.0, 0.0], [0.5, 0.5]) == 0.0
    assert diagnostics.gain([0.0, 0.0]) == 1.0
    assert diagnostics.gain([0.0, 7.0, 0.0]) == pytest.approx(3.0)
    assert diagnostics.smoothness_ratio([2.0, 2.0]) == 1.0
    for scale in (1e-200, 1e200):  # whose squares leave float64's range
        assert diagnostics.gain([1.0 * scale, 2.0 * scale]) == pytest.approx(10 / 9)
        assert diagnostics.relative_error([scale, 2.0 * scale], [0.5, 0.5]) == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: diagnostics.cost([1.0, 2.0], [1.0]), r"p has shape \(1,\): must match norms, which have \(2,\)"),
        (lambda: diagnostics.cost([1.0], [[1.0]]), r"p has shape \(1, 1\)"),
        (lambda: diagnostics.cost([-1.0], [1.0]), r"norms\[0\] = -1.0"),
        (lambda: diagnostics.cost([1.0, 2.0], [0.5, 0.6]), "p sums to 1.1: must sum to 1"),
        (lambda: diagnostics.relative_error([[1.0, 2.0]] * 2, [[0.5, 0.5], [0.2, 0.2]]), r"p\[1\] sums to 0.4"),
        (lambda: diagnostics.gain([[1.0, 2.0], [1.0, np.inf]]), r"norms\[1, 1\] = inf"),
        (lambda: diagnostics.gain([]), r"norms has shape \(0,\): must not be empty"),
        (lambda: diagnostics.gain(3.0), r"norms has shape \(\)"),
        (lambda: diagnostics.smoothness_ratio([0.0, 0.0]), "smoothness is all zero"),
    ],
)
def test_refuses_bad_input(call, message: str) -> None:  # type: ignore[no-untyped-def]  # any call
    with pytest.raises(ValueError, match=message):
        call()
