"""Fewer rows than columns: the same minimum with as many columns as rows."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp

from avare.linear import newton as method
from avare.linear.free_bias import constant
from avare.linear.newton import newton
from avare.linear.objective import Objective
from avare.linear.turned import minimise_turned
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax


def wide_problem(*, sparse: bool = False, **options: Any) -> Softmax:
    """Rows that are far from 0, two of them the same; four classes."""
    generator = np.random.default_rng(0)
    X: Any = generator.normal(size=(30, 200)) + 1.0
    X[7] = X[3]
    X = sp.csr_array(X * (generator.random(X.shape) < 0.5)) if sparse else X
    return Softmax(X, np.arange(30) % 4, **{"l2": 0.3, **options})


@pytest.mark.parametrize("bias", [False, True, "free"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_minimum_is_that_of_all_columns(bias: Any, weighted: bool, sparse: bool) -> None:
    weights = np.random.default_rng(1).lognormal(size=30) * (np.arange(30) != 5) if weighted else None
    problem = wide_problem(bias=bias, sample_weight=weights, sparse=sparse)
    with mock.patch.object(method, "minimise_turned", wraps=minimise_turned) as turned:
        found = newton(problem, tol=1e-9)
    assert turned.called
    with mock.patch.object(method, "minimise_turned", return_value=None):
        plain = newton(problem, tol=1e-9)
    assert found.status == plain.status == "converged"
    assert problem.objective(found.table.ravel()) == pytest.approx(found.objective, rel=1e-12)
    assert abs(found.objective - plain.objective) <= 1e-9 * found.scale
    assert np.allclose(found.table, plain.table, atol=1e-3)  # a gap of 1e-9 allows the root of 1e-9 / l2


@pytest.mark.parametrize("kind", [Logistic, Huber, SmoothedHinge])
@pytest.mark.parametrize("bias", [False, True, "free"])
def test_one_output_has_the_minimum_of_all_columns(kind: type[Linear], bias: Any) -> None:
    generator = np.random.default_rng(3)
    X = generator.normal(size=(60, 400)) + 1.0
    y = X[:, 0] if kind is Huber else X[:, 0] + generator.normal(size=60) > 1.0
    problem = kind(X, y, l2=0.3, bias=bias, sample_weight=generator.lognormal(size=60))
    with (
        mock.patch.object(method, "minimise_small", return_value=None),
        mock.patch.object(method, "minimise_turned", wraps=minimise_turned) as turned,
    ):
        found = newton(problem, tol=1e-9)
        assert turned.called
        turned.side_effect = lambda *arguments: None
        plain = newton(problem, tol=1e-9)
    assert found.status == plain.status == "converged"
    assert problem.objective(found.table.ravel()) == pytest.approx(found.objective, rel=1e-12)
    assert abs(found.objective - plain.objective) <= 1e-9 * found.scale


def test_what_rounding_hides_is_found_with_all_columns() -> None:
    problem = wide_problem(l2=1e-6, bias="free")
    found = newton(problem, tol=1e-13)
    assert found.status == "converged"
    with mock.patch.object(method, "minimise_turned", return_value=None):
        assert found.objective == pytest.approx(newton(problem, tol=1e-13).objective, rel=1e-6, abs=1e-12 * found.scale)


def test_only_where_it_pays() -> None:
    generator = np.random.default_rng(2)
    X, never = generator.normal(size=(30, 200)), mock.Mock()
    problems: list[Linear] = [LeastSquares(X, X[:, 0]), Logistic(sp.csr_array(X), np.arange(30) % 2)]
    for problem in (*problems, Softmax(X.T, np.arange(200) % 3), wide_problem(l2=0.1, l1=0.1)):
        flat = constant(problem)[0]
        assert minimise_turned(Objective(problem), flat, never) is None
    places = (np.repeat(np.arange(2_000), 2), generator.integers(0, 20_000, 4_000))
    few = sp.csr_array((generator.random(4_000), places), shape=(2_000, 20_000))  # products are cheap
    problem = Softmax(few, np.arange(2_000) % 3)
    assert minimise_turned(Objective(problem), constant(problem)[0], never) is None
    assert not never.called
