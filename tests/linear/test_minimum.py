"""The reference optimum: as precise as rounding allows, for every loss, and equal to that of other libraries."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from avare import problems
from avare.problems import ToleranceWarning
from loss_checks import check_minimum, correlated
from plain_losses import CASES, Array, Case

every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_only_a_call_loads_the_solver() -> None:
    program = (
        "import sys, avare\n"
        "loaded = lambda: any(name.startswith('avare.linear') for name in sys.modules)\n"
        "problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 0.0])\n"
        "assert not loaded(), 'import avare loads it'\n"
        "problem.minimize()\n"
        "assert loaded()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def example(name: str, seed: int) -> tuple[Array, Array]:
    return correlated(CASES[name], seed=seed)


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("l2", [0.3, 1e-4])
def test_the_gradient_vanishes(case: Case, sparse: bool, l2: float) -> None:
    check_minimum(case, sparse=sparse, l2=l2)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("sparse", [False, True])
def test_logistic_and_softmax_are_scikit_learns(classes: int, sparse: bool) -> None:
    from sklearn.linear_model import LogisticRegression

    X, _ = example("Softmax", seed=6)
    y = np.random.default_rng(7).integers(0, classes, len(X))
    l2 = 0.8
    data = sp.csr_matrix(X) if sparse else X
    problem: problems.Linear = problems.Logistic(data, y, l2=l2) if classes == 2 else problems.Softmax(data, y, l2=l2)
    theirs = LogisticRegression(C=1.0 / l2, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=100)
    theirs.fit(X, y)
    found = problem.coefficients(problem.minimize())
    assert np.linalg.norm(problem.gradient(theirs.coef_.ravel())) < 1e-6  # their precision
    assert np.allclose(found, theirs.coef_, rtol=0, atol=1e-6 / l2)


@pytest.mark.parametrize("bias", [False, True])
def test_least_squares_are_ridge_and_the_closed_form(bias: bool) -> None:
    from sklearn.linear_model import Ridge

    X, y = example("LeastSquares", seed=8)
    weights = np.random.default_rng(9).lognormal(size=len(X))
    x = problems.LeastSquares(X, y, l2=2.5, sample_weight=weights, bias=bias).minimize()
    A = np.hstack([X, np.ones((len(X), 1))]) if bias else X
    closed = np.linalg.solve(A.T @ (weights[:, None] * A) + 2.5 * np.eye(A.shape[1]), A.T @ (weights * y))
    assert np.allclose(x, closed, rtol=1e-10)
    ridge = Ridge(alpha=2.5, fit_intercept=False, solver="cholesky").fit(A, y, sample_weight=weights)
    assert np.allclose(x, ridge.coef_, rtol=1e-10)


def test_two_classes_of_softmax_are_logistic() -> None:
    X, y = example("Logistic", seed=10)
    # x_2 = -x_1 halves the l2 term and doubles the outputs.
    softmax = problems.Softmax(X, y, l2=0.8)
    table = softmax.coefficients(softmax.minimize())
    logistic = problems.Logistic(X, y, l2=0.4)
    assert np.allclose(table[1] - table[0], logistic.minimize(), rtol=1e-9)
    assert softmax.optimum == pytest.approx(logistic.optimum, rel=1e-12)


@every_loss
def test_from_any_start(case: Case) -> None:
    X, y = correlated(case, seed=11)
    problem = case.make(X, y, l2=0.3)
    expected = problem.minimize()
    start = np.random.default_rng(12).normal(0.0, 30.0, problem.dim)
    before = start.copy()
    x = problem.minimize(start=start)
    assert np.linalg.norm(x - expected) <= 2e-10 / 0.3  # strongly convex, as above
    assert np.array_equal(start, before)
    again = problem.minimize(start=x)  # already there
    assert np.array_equal(again, x) and again is not x


def test_a_loose_tolerance_is_met() -> None:
    X, y = example("Logistic", seed=13)
    problem = problems.Logistic(X, y, l2=0.3)
    for tolerance in (1e-2, 1e-6):
        assert np.linalg.norm(problem.gradient(problem.minimize(tolerance=tolerance))) <= tolerance


@every_loss
def test_warns_if_rounding_is_the_limit(case: Case) -> None:
    X, y = correlated(case, seed=14)
    problem = case.make(X, y, l2=0.3, bias=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = problem.minimize(tolerance=1e-300)
    (warning,) = caught
    assert warning.category is ToleranceWarning and warning.filename == __file__  # where minimize was called
    assert "above tolerance = 1e-300" in str(warning.message)
    assert f"the norm of the gradient is {np.linalg.norm(problem.gradient(x)):.3g} " in str(warning.message)
    assert np.linalg.norm(problem.gradient(x)) <= 1e-10  # x is as precise as can be
    assert problem.optimum == problem.objective(x)


@pytest.mark.parametrize("name", ["Logistic", "Softmax"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-10, 1e-40])
@pytest.mark.parametrize("weights", [None, np.arange(30.0)])
def test_warns_if_there_is_no_minimum(name: str, tolerance: float, weights: Array | None) -> None:
    # Also where the tolerance is met: the gradient falls to 0, but no x is a minimum.
    X = np.random.default_rng(15).normal(size=(30, 2))
    y = X @ [1.0, 2.0] > 0.0
    if weights is not None:
        y[0] = not y[0]  # its weight is 0
    problem = CASES[name].make(X, y, l2=0.0, sample_weight=weights)
    with pytest.warns(ToleranceWarning, match="the classes are linearly separable, so the unpenalised") as caught:
        x = problem.minimize(tolerance=tolerance)
    assert [warning.filename for warning in caught] == [__file__]
    assert np.isfinite(x).all() and (tolerance > 1e-40 or problem.objective(x) < 1e-8)
    # The proof: along x it falls further, as long as numbers can show it.
    assert problem.objective(2.0 * x) < problem.objective(x) or problem.objective(x) == 0.0


@pytest.mark.parametrize("name", ["Logistic", "Softmax"])
def test_does_not_warn_of_a_minimum_that_exists(name: str) -> None:
    X = np.random.default_rng(15).normal(size=(30, 2))
    y = X @ [1.0, 2.0] > 0.0
    CASES[name].make(X, y, l2=1e-6).minimize(tolerance=1e-8)  # warnings are errors
    CASES[name].make(X, y, l2=0.0, l1=1e-3).minimize(tolerance=1e-6)
    CASES[name].make(X, y, l2=0.0, sample_weight=np.zeros(30)).minimize()
    y[:3] = ~y[:3]
    CASES[name].make(X, y, l2=0.0).minimize()


def test_a_loss_that_reaches_zero() -> None:
    X = np.random.default_rng(16).normal(size=(30, 2))
    problem = problems.SmoothedHinge(X, X @ [1.0, 2.0] > 0.0, l2=0.0)
    x = problem.minimize()
    assert np.linalg.norm(problem.gradient(x)) <= 1e-10
    assert problem.optimum is not None and 0.0 <= problem.optimum <= 1e-20  # half its squared slope


def test_losses_without_curvature_at_the_start() -> None:
    """Linear as far as steps of Newton's method get; 0 where the residual is."""
    problem = problems.Huber(np.array([[1e-3]]), [1e6], l2=0.0, delta=1e-3)
    assert problem.minimize() == pytest.approx([1e9])
    problem = problems.Huber(np.array([[1.0, 0.0], [0.0, 1e-3]]), [1.0, 1e6], l2=0.0, delta=1e-3)
    assert problem.minimize() == pytest.approx([1.0, 1e9])


def test_more_columns_than_examples() -> None:
    generator = np.random.default_rng(17)
    X, y = generator.normal(size=(10, 25)), generator.normal(size=10)
    x = problems.LeastSquares(X, y, l2=0.0).minimize()
    assert np.allclose(X @ x, y, atol=1e-10)


def test_progress_is_shown_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = example("Logistic", seed=18)
    problem = problems.Logistic(X, y, l2=0.3)
    problem.minimize()
    assert capsys.readouterr() == ("", "")
    problem.minimize(progress=True)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"minimising {problem!r}: ") and "objective" in err and err.endswith(" s]\n")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tolerance": 0.0}, ValueError, "tolerance = 0.0: must be above 0"),
        ({"tolerance": math.nan}, ValueError, "tolerance = nan: must be finite"),
        ({"progress": "yes"}, TypeError, "progress = 'yes': must be True or False"),
        ({"start": [1.0]}, ValueError, r"start has shape \(1,\): must be \(3,\)"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    problem = problems.LeastSquares(np.eye(3), np.ones(3))
    with pytest.raises(error, match=message):
        problem.minimize(**arguments)  # type: ignore[arg-type]  # the point
    assert problem.optimum is None
