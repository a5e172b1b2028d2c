"""Problems given by Python functions."""

import math
from typing import Any

import numpy as np
import pytest

from avare import problems
from avare.problems import generic
from plain_losses import CASES, Array, Plain


def example(seed: int = 0) -> tuple[problems.Logistic, Plain, Array]:
    generator = np.random.default_rng(seed)
    X, y = generator.normal(size=(17, 4)), CASES["Logistic"].targets(17, generator)
    return problems.Logistic(X, y, l2=0.6), Plain(CASES["Logistic"], X, y), generator.normal(size=4)


def plain_batch(plain: Plain) -> Any:
    def batch_gradient(x: Array, indices: Any, weights: Array) -> tuple[Array, Array]:
        gradients = plain.gradients(x)[indices]
        return weights @ gradients, np.linalg.norm(gradients, axis=1)

    return batch_gradient


@pytest.mark.parametrize("block", [4096, 17, 5, 1])
@pytest.mark.parametrize("with_norms", [False, True])
def test_same_as_the_linear_model(block: int, with_norms: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic, "_BLOCK", block)
    linear, plain, x = example()
    problem = problems.Generic(
        17,
        4,
        batch_gradient=plain_batch(plain),
        objective=plain.objective,
        norms=plain.norms if with_norms else None,
        l2=0.6,
        smoothness=linear.smoothness,
    )
    assert repr(problem) == "Generic(n=17, dim=4, l2=0.6)"
    assert problem.strong_convexity == 0.6 and np.array_equal(problem.smoothness, linear.smoothness)
    assert problem.objective(x) == pytest.approx(linear.objective(x), rel=1e-13)
    assert np.allclose(problem.gradient(x), linear.gradient(x), rtol=1e-12)
    assert np.allclose(problem.norms(x), linear.norms(x), rtol=1e-12)
    p = np.random.default_rng(1).dirichlet(np.ones(17))
    assert problem.evaluate(x, p) == pytest.approx(linear.evaluate(x, p), rel=1e-12)
    assert math.isnan(problem.evaluate(x)[2])
    for indices in ([], [3], [5, 5, 0, 16, 2]):
        weights = np.arange(len(indices)) - 1.5
        found, expected = (each.batch_gradient(x, indices, weights) for each in (problem, linear))
        assert np.allclose(found[0], expected[0], rtol=1e-12) and np.allclose(found[1], expected[1], rtol=1e-12)


def test_minimises_by_gradients() -> None:
    linear, plain, x = example()
    problem = problems.Generic(17, 4, batch_gradient=plain_batch(plain), objective=plain.objective, l2=0.6)
    found, best = problem.minimize(start=x, tolerance=1e-5), linear.minimize()
    # f is at least l2-strongly convex: what is left of the gradient bounds the distance.
    assert np.linalg.norm(found - best) <= 1e-5 / 0.6 * (1.0 + 1e-6)
    assert problem.optimum == pytest.approx(linear.optimum, rel=1e-9) and problem.optimum == problem.objective(found)
    with pytest.warns(problems.ToleranceWarning, match="above tolerance = 1e-300"):
        problem.minimize(tolerance=1e-300)
    without = problems.Generic(17, 4, batch_gradient=plain_batch(plain))
    with pytest.raises(ValueError, match="objective was not given: there is nothing to minimise"):
        without.minimize()


def test_without_an_objective_there_is_none_to_report() -> None:
    _, plain, x = example()
    problem = problems.Generic(17, 4, batch_gradient=plain_batch(plain), l2=1.0)
    assert math.isnan(problem.objective(x))
    objective, total, cost = problem.evaluate(x, np.full(17, 1 / 17))
    assert math.isnan(objective) and total == pytest.approx(plain.norms(x).sum())
    assert cost == pytest.approx(17 * np.square(plain.norms(x)).sum())
    with pytest.raises(ValueError, match="smoothness was not given"):
        _ = problem.smoothness


def test_an_objective_may_be_infinite() -> None:
    problem = problems.Generic(1, 1, batch_gradient=lambda x, i, w: (x, w), objective=lambda x: math.inf)
    assert problem.objective([0.0]) == math.inf


@pytest.mark.parametrize(
    ("found", "error", "message"),
    [
        (np.zeros(2), TypeError, "batch_gradient gave a ndarray: must give a gradient and norms"),
        (None, TypeError, "batch_gradient gave a NoneType: must give"),
        ((np.zeros(2), np.zeros(3), 0), TypeError, "batch_gradient gave a tuple of 3: must give"),
        ((np.zeros(3), np.zeros(3)), ValueError, r"gave a gradient of shape \(3,\): must be \(2,\)"),
        ((np.zeros((1, 2)), np.zeros(3)), ValueError, r"gave a gradient of shape \(1, 2\): must be \(2,\)"),
        ((np.zeros(2), np.zeros(2)), ValueError, r"gave norms of shape \(2,\): must be \(3,\)"),
        ((np.zeros(2), 0.0), ValueError, r"gave norms of shape \(\): must be \(3,\)"),
        ((["a", "b"], np.zeros(3)), TypeError, "batch_gradient's gradient has dtype <U1: must hold real numbers"),
        ((np.zeros(2), np.zeros(3) + 1j), TypeError, "batch_gradient's norms has dtype complex128"),
    ],
)
def test_refuses_what_batch_gradient_gives(found: Any, error: type[Exception], message: str) -> None:
    problem = problems.Generic(3, 2, batch_gradient=lambda x, indices, weights: found)
    for call in (problem.gradient, problem.norms, lambda x: problem.batch_gradient(x, [0, 1, 2], np.ones(3))):
        with pytest.raises(error, match=message):
            call(np.zeros(2))


@pytest.mark.parametrize(
    ("found", "error", "message"),
    [
        (np.ones(2), ValueError, r"norms\(x\) has shape \(2,\): must be \(3,\)"),
        (3.0, ValueError, r"norms\(x\) has shape \(\): must be \(3,\)"),
        (None, TypeError, r"norms\(x\) has dtype object"),
    ],
)
def test_refuses_what_norms_gives(found: Any, error: type[Exception], message: str) -> None:
    problem = problems.Generic(3, 2, batch_gradient=lambda x, i, w: (x, w), norms=lambda x: found)
    for call in (problem.norms, problem.evaluate):
        with pytest.raises(error, match=message):
            call(np.zeros(2))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_refuses_norms_that_are_none(value: float) -> None:
    problem = problems.Generic(3, 2, batch_gradient=lambda x, i, w: (x, w), norms=lambda x: [1.0, value, 1.0])
    with pytest.raises(ValueError, match=rf"norms\(x\)\[1\] = {value}: must be finite and not negative"):
        problem.norms(np.zeros(2))


@pytest.mark.parametrize("found", [None, "1", np.ones(1), 1j, [1.0]])
def test_refuses_what_objective_gives(found: Any) -> None:
    problem = problems.Generic(3, 2, batch_gradient=lambda x, i, w: (x, w), objective=lambda x: found)
    with pytest.raises(TypeError, match=r"objective\(x\) = .*: must be a number"):
        problem.objective(np.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n = 0: must be at least 1"),
        ({"dim": 0}, ValueError, "dim = 0: must be at least 1"),
        ({"l2": -1}, ValueError, "l2 = -1.0: must be at least 0"),
        ({"batch_gradient": None}, TypeError, "batch_gradient = None: must be a function"),
        ({"objective": 3.0}, TypeError, "objective = 3.0: must be a function"),
        ({"norms": [1.0]}, TypeError, r"norms = \[1.0\]: must be a function"),
        ({"smoothness": [1.0, 2.0]}, ValueError, "smoothness has length 2: must match n, which has 3"),
        ({"smoothness": [1.0, -2.0, 1.0]}, ValueError, r"smoothness\[1\] = -2.0"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        problems.Generic(**{"n": 3, "dim": 2, "batch_gradient": lambda x, i, w: (x, w), **arguments})
