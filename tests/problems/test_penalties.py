"""The penalty of a linear model: a free bias, and an l1 term."""

import numpy as np
import pytest

from linear_models import PROBLEMS, make


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_free_bias_has_no_penalty(name: str) -> None:
    free, bound = make(name, bias="free", l2=3.0), make(name, bias=True, l2=3.0)
    x = np.random.default_rng(1).normal(size=free.dim)
    table = free.coefficients(x)
    assert bound.objective(x) - free.objective(x) == pytest.approx(1.5 * (table[:, -1] ** 2).sum(), rel=1e-9)
    difference = (bound.gradient(x) - free.gradient(x)).reshape(table.shape)
    assert np.allclose(difference[:, -1], 3.0 * table[:, -1]) and np.abs(difference[:, :-1]).max() == 0.0
    assert free.strong_convexity == 0.0 and bound.strong_convexity == 3.0
    optimum = free.minimize()
    assert np.linalg.norm(free.gradient(optimum)) < 1e-8


def test_the_gradient_with_an_l1_term_is_the_shortest_subgradient() -> None:
    problem, smooth = make("Logistic", l1=2.5, bias="free"), make("Logistic", bias="free")
    x = np.array([1.0, 0.0, -2.0, 0.0, 0.3])
    below = smooth.gradient(x)
    found = problem.gradient(x)
    assert problem.objective(x) - smooth.objective(x) == pytest.approx(2.5 * 3.0)
    assert np.allclose(found[[0, 2, 4]], below[[0, 2, 4]] + [2.5, -2.5, 0.0])
    for place in (1, 3):  # at 0 the slope of l1 |x| is any number in [-l1, l1]
        assert abs(found[place]) == pytest.approx(max(abs(below[place]) - 2.5, 0.0))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.compiled
def test_the_minimum_with_an_l1_term(name: str) -> None:
    problem = make(name, l1=60.0 if name in ("LeastSquares", "Huber") else 4.0, bias="free")
    optimum = problem.minimize(tolerance=1e-8)
    assert (optimum == 0.0).any() and (optimum != 0.0).any()
    assert np.linalg.norm(problem.gradient(optimum)) <= 1e-8
    generator = np.random.default_rng(2)
    for _ in range(20):
        assert problem.objective(optimum + 1e-3 * generator.normal(size=problem.dim)) > problem.objective(optimum)
