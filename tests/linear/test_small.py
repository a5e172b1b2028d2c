"""Small models: one kernel per step finds and certifies the minimum, and leaves what is hard to `newton`."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from avare.linear import newton as method
from avare.linear.free_bias import constant
from avare.linear.newton import newton
from avare.linear.small import minimise_small, way_of
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax

KINDS = [Logistic, LeastSquares, Huber]


def example(kind: type[Linear], seed: int, *, n: int = 60, columns: int = 4, **options: Any) -> Linear:
    """Dense or sparse, with weights of which some are 0, columns of different scales, by turns of the seed."""
    generator = np.random.default_rng(seed)
    X: Any = generator.normal(size=(n, columns)) * np.exp(generator.normal(size=columns)) + 2.0 * (seed % 2)
    score = X[:, 0] + generator.normal(size=n)
    weights = generator.lognormal(size=n) * (generator.random(n) < 0.9) if seed % 3 == 0 else None
    if seed % 4 < 2:
        X = sp.csr_array(X * (generator.random(X.shape) < 0.6))
    y = score if kind in (LeastSquares, Huber) else score > np.median(score)
    settings = {"l2": 0.3, "sample_weight": weights, "bias": [False, True, "free"][seed % 3]}
    return kind(X, y, **{**settings, **options})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(60, 4), (15, 40)])  # by columns, and by rows
def test_the_minimum_is_that_of_newton(
    kind: type[Linear], shape: tuple[int, int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"delta": 5.0} if kind is Huber else {}  # with less, steps are often too long
    problem = example(kind, seed, n=shape[0], columns=shape[1], **options)
    flat, scale = constant(problem)
    least = problem.objective(problem.minimize(tolerance=1e-9))
    for tol in (1e-2, 1e-9):
        found = minimise_small(problem, flat, scale, tol * scale, 100)
        assert found is not None and found.gap <= tol * scale
        # Both objectives are sums of some ten numbers, right to about 1e-14 of the scale.
        assert problem.objective(found.table.ravel()) == pytest.approx(found.objective, rel=1e-12)
        assert found.objective - least <= found.gap + 1e-13 * scale
        assert newton(problem, tol=tol).table.tolist() == found.table.tolist()
    monkeypatch.setattr(method, "minimise_small", lambda *arguments: None)
    other = newton(problem, tol=1e-13)
    assert found is not None and abs(found.objective - other.objective) <= (1e-9 + 1e-12) * scale


@pytest.mark.parametrize("shape", [(80, 3), (20, 30)])
def test_columns_far_from_0_cost_no_accuracy(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(7)
    X, y = generator.normal(size=shape), generator.integers(0, 2, shape[0])
    near, far = (newton(Logistic(Z, y, bias="free"), tol=1e-9) for Z in (X, X + 1e6))
    assert near.status == far.status == "converged"
    np.testing.assert_allclose(near.table[:, :-1], far.table[:, :-1], rtol=1e-4, atol=1e-6)


def test_only_problems_whose_steps_are_cheap_are_small() -> None:
    assert way_of(example(Logistic, 0)) and way_of(example(LeastSquares, 2))
    assert not way_of(example(Logistic, 0, n=300, columns=300))
    assert not way_of(example(Logistic, 0, n=500_000, columns=2))
    assert way_of(example(Logistic, 1, n=20, columns=2000))
    assert not way_of(example(Logistic, 1, n=20, columns=2000, l2=np.linspace(1.0, 2.0, 2001)))
    assert not way_of(example(Logistic, 2, l2=0.0)) and not way_of(example(Logistic, 2, l1=0.1))
    assert not way_of(Softmax(np.eye(3), [0, 1, 2]))


def test_what_does_not_converge_quickly_is_left_to_newton() -> None:
    problem = example(Logistic, 2)
    flat, scale = constant(problem)
    found = minimise_small(problem, flat, scale, 1e-9 * scale, steps=1)
    assert found and found.steps == 1 and found.gap == np.inf and found.objective < scale
    assert newton(problem, tol=1e-9, steps=1).status == "finished"
    # A column twice, with almost no penalty: the matrix is singular.
    generator = np.random.default_rng(8)
    X = generator.normal(size=(50, 1))
    twice = Logistic(np.hstack([X, X]), generator.integers(0, 2, 50), l2=1e-15)
    flat, scale = constant(twice)
    found = minimise_small(twice, flat, scale, 1e-6 * scale, 100)
    assert found and found.steps == 0 and found.gap == np.inf and found.objective == scale
    assert newton(twice, tol=1e-6).status == "converged"
    # No loss is curved at the best constant: nothing holds the bias.
    heavy = Huber(X, np.where(np.arange(50) % 2, 1e6, -1e6), bias="free")
    assert newton(heavy, tol=1e-6).status == "converged"
    assert all(newton(example(SmoothedHinge, seed), tol=1e-9).status == "converged" for seed in range(6))


def test_newton_continues_where_a_small_model_ended() -> None:
    """Rows of very different lengths, nearly separable: short steps make some way, and newton certifies the rest."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(120, 12)) * (1.0 + generator.pareto(1.0, (120, 1)))
    problem = Logistic(X, X[:, 0] + 0.1 * generator.logistic(size=120) > 0.0, l2=1e-6)
    flat, scale = constant(problem)
    part = minimise_small(problem, flat, scale, 1e-9 * scale, steps=9)
    assert part and part.steps == 9 and part.gap == np.inf
    found = newton(problem, tol=1e-9, steps=10)
    assert found.steps == 10 and found.status == "finished" and found.objective <= part.objective < scale
    whole = newton(problem, tol=1e-9)
    assert whole.status == "converged" and whole.objective <= found.objective


def test_a_class_without_weight_leaves_no_minimum() -> None:
    X, y = np.random.default_rng(4).normal(size=(40, 3)), np.arange(40) % 2
    for weights in (y, 1 - y):
        found = newton(Logistic(X, y, l2=1.0, bias="free", sample_weight=weights), tol=1e-6)
        assert found.status == "stalled" and found.gap == np.inf
        assert newton(Logistic(X, y, l2=1.0, bias=True, sample_weight=weights), tol=1e-6).status == "converged"
    three = np.arange(40) % 3
    assert newton(Softmax(X, three, l2=1.0, bias="free", sample_weight=1.0 * (three > 0)), tol=1e-6).status == "stalled"
