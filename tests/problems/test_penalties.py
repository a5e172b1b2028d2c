"""One l2 penalty per coefficient: the same problem as with scaled columns, in every method, and refused if wrong."""

import re
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import avare

KINDS = ("Logistic", "LeastSquares", "Huber", "SmoothedHinge", "Softmax")
N, D = 60, 4


def _data(kind: str, n: int = N, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    X = generator.normal(size=(n, d))
    z = X @ generator.normal(size=d) + generator.normal(size=n)
    if kind == "Softmax":
        return X, np.digitize(z, [-0.7, 0.7])
    return X, (z > 0.0) if kind in ("Logistic", "SmoothedHinge") else z


@pytest.mark.parametrize("bias", [False, True, "free"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scaled_columns(kind: str, bias: Any) -> None:
    """With v = sqrt(l2) x, a penalty per coefficient is one of strength 1 for the columns over sqrt(l2)."""
    X, y = _data(kind)
    strengths = np.array([0.1, 3.0, 40.0, 1.0])
    make = getattr(avare.problems, kind)
    own = make(X, y, l2=np.append(strengths, 1.0) if bias is True else strengths, bias=bias)
    other = make(X / np.sqrt(strengths), y, l2=1.0, bias=bias)
    scale = np.tile(np.append(np.sqrt(strengths), np.ones(own.width - D)), own.outputs)
    x = np.random.default_rng(1).normal(size=own.dim)
    assert np.isclose(own.objective(x), other.objective(scale * x), rtol=1e-12)
    assert np.allclose(own.gradient(x), scale * other.gradient(scale * x), rtol=1e-10)
    assert np.allclose(own.hessian_product(x, x), scale * other.hessian_product(scale * x, scale * x), rtol=1e-10)
    assert own.l2 == 40.0 and own.strong_convexity == (0.0 if bias == "free" else 0.1)
    assert (own.smoothness >= 40.0 / N).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avare.problems.ToleranceWarning)
        assert np.allclose(scale * own.minimize(), other.minimize(), atol=1e-6)
    assert own.gap(own.minimize()) < 1e-6


@pytest.mark.parametrize("bias", [False, True, "free"])
def test_more_columns_than_rows(bias: Any) -> None:
    X, y = _data("LeastSquares", n=8, d=30)
    strengths = 10.0 ** np.random.default_rng(2).uniform(-1.0, 1.0, 30 + (bias is True))
    problem = avare.problems.LeastSquares(X, y, l2=strengths, bias=bias)
    rows = X if bias is False else np.column_stack([X, np.ones(8)])
    exact = np.linalg.solve(rows.T @ rows + np.diag(problem.penalty.l2), rows.T @ y)
    assert np.allclose(problem.minimize(), exact, atol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_saga_uses_each_penalty(sparse: bool) -> None:
    X, y = _data("Logistic")
    problem = avare.problems.Logistic(scipy.sparse.csr_matrix(X) if sparse else X, y, l2=[0.5, 3.0, 40.0, 1.0])
    run = avare.saga(problem, epochs=1000, tol=1e-10, seed=0)
    assert np.allclose(run.x, problem.minimize(), atol=1e-4)


@pytest.mark.compiled
@pytest.mark.parametrize("method", [avare.sgld, avare.sghmc])
def test_a_chain_has_each_prior(method: Any) -> None:
    """Columns of zeros: the posterior of their coefficients is the prior, of standard deviation 1 / sqrt(l2)."""
    X, y = _data("Logistic")
    X[:, 2:] = 0.0
    chain = method(avare.problems.Logistic(X, y, l2=[1.0, 1.0, 0.25, 25.0]), seed=0)
    # At least 1000 effective draws: 1 / sqrt(2000), four times over, and 5 % by the steps of sgld.
    assert chain.noise.ess.min() > 1000.0 and not chain.warnings
    assert np.abs(chain.std()[2:] * [0.5, 5.0] - 1.0).max() < 0.14


def test_a_generic_problem_takes_one_per_coefficient() -> None:
    problem = avare.problems.Generic(3, 2, batch_gradient=lambda x, i, w: (0.0 * x, 0.0 * w), l2=[1.0, 2.0])
    assert problem.gradient([1.0, 1.0]).tolist() == [1.0, 2.0]
    assert repr(problem) == "Generic(n=3, dim=2, l2=1 to 2)"


@pytest.mark.parametrize(
    ("l2", "message"),
    [
        ([1.0, 2.0], "l2 has shape (2,): must be a number, or (4,), one number per column of X"),
        (np.ones((2, 2)), "l2 has shape (2, 2): must be a number, or (4,)"),
        ([1.0, -2.0, 1.0, 1.0], "l2[1] = -2.0: must be finite and not negative"),
        ([1.0, 1.0, np.nan, 1.0], "l2[2] = nan: must be finite and not negative"),
        (-1.0, "l2 = -1.0: must be at least 0"),
    ],
)
def test_refuses(l2: Any, message: str) -> None:
    X, y = _data("Logistic")
    with pytest.raises(ValueError, match=re.escape(message)):
        avare.problems.Logistic(X, y, l2=l2)


def test_the_bias_is_counted() -> None:
    X, y = _data("Logistic")
    with pytest.raises(ValueError, match=r"must be a number, or \(5,\), one number per column of X, and the last for"):
        avare.problems.Logistic(X, y, l2=np.ones(D), bias=True)
    given = np.ones(D)
    problem = avare.problems.Logistic(X, y, l2=given)
    given[:] = 7.0
    assert problem.penalty.l2.tolist() == [1.0] * D  # a copy
