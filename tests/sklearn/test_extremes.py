"""Data on which answers were wrong once: offsets, scales, heavy rows, tiny classes, huge numbers, parts of streams."""

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from avare.linear.solver import solve
from avare.problems import Huber, Logistic
from avare.sklearn import AvareClassifier, AvareRegressor


@pytest.mark.parametrize("offset", [0.0, 1e5, 1e6, 1e9])
def test_targets_far_from_0_are_fitted_as_by_ridge(offset: float) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30_000, 5))
    y = X @ [1.0, 2.0, 3.0, 4.0, 5.0] + 2.0 * generator.normal(size=30_000) + offset
    ours, theirs = AvareRegressor().fit(X, y), Ridge(1.0).fit(X, y)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-6)
    # Targets of 1e9 are rounded to 1e-7.
    assert np.allclose(ours.coef_, theirs.coef_, rtol=1e-4)


def test_targets_that_are_all_0() -> None:
    model = AvareRegressor().fit(np.random.default_rng(0).normal(size=(500, 3)), np.zeros(500))
    assert model.gap_ == 0.0 and not model.coef_.any() and model.intercept_ == 0.0


@pytest.mark.parametrize("n", [15_000, 16_000])
def test_huber_far_from_its_targets(n: int) -> None:
    X = np.random.default_rng(1).normal(size=(n, 8))
    model = AvareRegressor("huber").fit(X, 2000.0 + 10.0 * X[:, 0])
    assert model.coef_[0] == pytest.approx(10.0, rel=1e-3) and model.intercept_ == pytest.approx(2000.0, rel=1e-6)


def test_huber_with_fewer_rows_than_columns() -> None:
    generator = np.random.default_rng(2)
    X, y = generator.normal(size=(200, 400)), 5.0 * generator.normal(size=200)
    model = AvareRegressor("huber").fit(X, y)
    assert model.gap_ <= 1e-9


@pytest.mark.parametrize("shape", [0.5, 1.5])
def test_heavy_rows(shape: float) -> None:
    generator = np.random.default_rng(3)
    X = generator.normal(size=(20_000, 20)) * generator.pareto(shape, (20_000, 1))
    y = X @ generator.normal(size=20) + generator.logistic(size=20_000) > 0.0
    assert AvareClassifier().fit(X, y).gap_ <= 1e-9


def test_one_positive_in_a_hundred_thousand() -> None:
    X, y = np.random.default_rng(4).normal(size=(100_000, 5)), np.zeros(100_000, dtype=int)
    y[7] = 1
    ours = AvareClassifier().fit(X, y)
    theirs = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(X, y)
    assert ours.gap_ <= 1e-9 and np.allclose(ours.coef_, theirs.coef_, atol=1e-3)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-3)


def test_separable_classes_with_almost_no_penalty() -> None:
    X = np.random.default_rng(5).normal(size=(300, 4))
    model = AvareClassifier(C=1e9).fit(X, X[:, 0] > 0.0)
    assert model.gap_ <= 1e-9 and model.score(X, X[:, 0] > 0.0) == 1.0


@pytest.mark.parametrize("scale", [1e-9, 1e9, 1e18])
def test_columns_of_any_scale(scale: float) -> None:
    """A column in other units, with almost no penalty or a strong one: its unit says how much is 1."""
    generator = np.random.default_rng(7)
    X = generator.normal(size=(400, 3))
    y = X[:, 0] + 2.0 * X[:, 1] + generator.logistic(size=400) > 0.0
    model = AvareClassifier().fit(X * [1.0, scale, 1.0], y)
    problem = Logistic(X, y, l2=[1.0, scale**-2, 1.0], bias="free")
    exact = solve(problem, tol=1e-12)
    x = np.concatenate([model.coef_[0] * [1.0, scale, 1.0], model.intercept_])
    assert model.gap_ <= 1e-9 and problem.objective(x) - exact.objective <= 1e-9 * exact.scale


def test_what_cannot_be_certified_is_said() -> None:
    generator = np.random.default_rng(6)
    X = generator.normal(size=(300, 4))
    X[:, 3] = X[:, 2] + 1e-9 * X[:, 3]  # parts of 1e9 cancel in each output
    y = X[:, 0] + 1e9 * (X[:, 3] - X[:, 2]) + generator.logistic(size=300) > 0.0
    with pytest.warns(ConvergenceWarning, match="newton did not converge to tol = 1e-06"):
        model = AvareClassifier(C=1e18, tol=1e-6).fit(X, y)
    assert model.gap_ > 1e-12
    with pytest.warns(ConvergenceWarning, match="there may be no minimum, .* pass a smaller C"):
        AvareClassifier(C=np.inf).fit(X[:, :1], X[:, 0] > 0.0)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("X", r"X\[3, 2\] = 1e\+308: must be finite, and at most 1e\+150 in size"),
        ("weight", r"sample_weight\[3\] = 1e\+200: must be finite, and at most 1e\+150 in size"),
    ],
)
def test_numbers_whose_squares_overflow_are_refused(place: str, message: str) -> None:
    X = np.random.default_rng(7).normal(size=(50, 3))
    y, weight = X[:, 0] > 0.0, np.ones(50)
    if place == "X":
        X[3, 2] = 1e308
    else:
        weight[3] = 1e200
    with pytest.raises(ValueError, match=message):
        AvareClassifier().fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2]])
@pytest.mark.parametrize("loss", ["log_loss", "smoothed_hinge"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_parts_of_a_stream_may_lack_classes(classes: list[int], loss: str, kind: str) -> None:
    from scipy import sparse

    X: Any = np.random.default_rng(8).normal(size=(400, 4))
    y = np.sort(np.digitize(X[:, 0], [-0.5, 0.5][: len(classes) - 1]))  # one class after another
    X = X[np.argsort(X[:, 0], kind="stable")]
    model = AvareClassifier(loss, random_state=0)
    for repeat in range(3):
        for first in range(0, 400, 40):
            part = sparse.csr_matrix(X[first : first + 40]) if kind == "sparse" else X[first : first + 40]
            model.partial_fit(part, y[first : first + 40], classes=classes if repeat == first == 0 else None)
    rows = 1 if len(classes) == 2 else 3
    assert model.coef_.shape == (rows, 4) and np.isfinite(model.coef_).all() and np.isnan(model.gap_)
    assert model.classes_.tolist() == classes and model.coef_[-1, 0] > 0.0  # the last class has the largest


@pytest.mark.parametrize("l1_ratio", [0.3, 1.0])
def test_the_l1_penalty_is_certified_for_every_loss(l1_ratio: float) -> None:
    generator = np.random.default_rng(9)
    X = generator.normal(size=(300, 12)) * generator.lognormal(0.0, 1.0, 12)
    y = 3.0 + X[:, 0] + generator.standard_cauchy(300)
    models = [AvareClassifier(l1_ratio=l1_ratio, C=0.1), AvareClassifier("smoothed_hinge", l1_ratio=l1_ratio, C=0.1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        for labels in (y > 3.0, np.digitize(y, [2.0, 4.0])):
            for model in models:
                assert model.fit(X, labels).gap_ <= 1e-9 and (model.coef_ == 0.0).any()
        for loss in ("squared_error", "huber"):
            regressor = AvareRegressor(loss, l1_ratio=l1_ratio, C=0.1).fit(X, y)
            assert regressor.gap_ <= 1e-9 and regressor.solver_ == "newton"


@pytest.mark.parametrize("scales", [(1e-4, 1e4), (1.0, 1e8), (1e-2, 1e9)])
@pytest.mark.parametrize("loss", ["log_loss", "smoothed_hinge", "squared_error", "huber"])
@pytest.mark.parametrize("classes", [2, 3])
def test_no_column_is_lost_by_its_scale(scales: tuple[float, float], loss: str, classes: int) -> None:
    generator = np.random.default_rng(12)
    Z = generator.normal(size=(2000, 2))
    score = Z @ [1.0, 1.0] + generator.logistic(size=2000)
    if loss in ("log_loss", "smoothed_hinge"):
        y = np.digitize(score, [-0.5, 0.5] if classes == 3 else [0.0])
        plain, scaled = (AvareClassifier(loss=loss, C=np.inf).fit(X, y) for X in (Z, Z * scales))
    else:
        plain, scaled = (AvareRegressor(loss=loss, C=np.inf).fit(X, score) for X in (Z, Z * scales))
    np.testing.assert_allclose(scaled.coef_ * scales, plain.coef_, rtol=1e-3, atol=1e-3)
    assert (np.abs(plain.coef_) > 0.1).any(axis=None)


def test_a_gap_counts_coefficients_that_are_still_zero() -> None:
    """Without a penalty, a coefficient of 0 may be far from its minimum."""
    generator = np.random.default_rng(12)
    Z = generator.normal(size=(500, 2))
    y = Z @ [1.0, 1.0] + generator.logistic(size=500) > 0.0
    problem, alone = Logistic(Z, y), Logistic(Z[:, :1], y).minimize()
    x = np.array([alone[0], 0.0])
    assert problem.gap(x) >= problem.objective(x) - problem.objective(problem.minimize()) > 1.0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_dummies_of_all_levels_without_a_penalty(seed: int, sparse: bool) -> None:
    """They determine each other, and the intercept: rounding must not move them far."""
    generator = np.random.default_rng(seed)
    X = np.hstack([np.eye(4)[generator.integers(0, 4, 1000)], np.eye(3)[generator.integers(0, 3, 1000)]])
    X = np.column_stack([X, generator.integers(1980, 2024, 1000)]) if seed % 2 else X
    y = generator.random(1000) < 0.2 + 0.3 * X[:, 0] + 0.3 * X[:, 5]
    model = AvareClassifier(C=np.inf).fit(sp.csr_matrix(X) if sparse else X, y)  # a warning would be an error
    assert np.abs(model.coef_).max() < 10.0 and model.gap_ <= 1e-9
    tiny = AvareClassifier(C=1e8).fit(X, y)
    assert np.allclose(model.predict_proba(X), tiny.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("seed", range(16))
def test_huber_without_a_penalty(seed: int) -> None:
    """No residual is near 0 at first, and few are at the minimum: the gap was 0 far above it, without a warning."""
    generator = np.random.default_rng(seed)
    n, epsilon, intercept = 20 + 40 * (seed % 4), [0.01, 0.1, 1.35, 10.0][seed // 4], seed % 2 == 1
    X = generator.normal(size=(n, 3)) * [0.1, 1.0, 10.0]
    y = X @ generator.normal(size=3) + 10.0 * generator.standard_cauchy(n) + 1000.0 * generator.integers(0, 2, n)
    model = AvareRegressor("huber", C=np.inf, epsilon=epsilon, fit_intercept=intercept).fit(X, y)
    problem = Huber(X, y, l2=0.0, delta=epsilon, bias="free" if intercept else False)
    x = np.append(model.coef_, [model.intercept_] * intercept)
    options = {"method": "L-BFGS-B", "options": {"ftol": 0.0, "gtol": 1e-12, "maxiter": 20_000, "maxfun": 20_000}}
    others = [minimize(problem.objective, at, jac=problem.gradient, **options).fun for at in (x, np.zeros(len(x)))]
    assert problem.objective(x) - min(others) <= (model.gap_ + 1e-12) * problem.best_constant()
    assert model.gap_ <= 1e-9


@pytest.mark.parametrize("loss", ["huber", "smoothed_hinge"])
def test_losses_that_are_flat_in_parts_with_a_weak_penalty(loss: str) -> None:
    generator = np.random.default_rng(10)
    X = generator.normal(size=(80, 6)) * 10.0 ** generator.uniform(-3.0, 3.0, 6)
    score = 100.0 * X[:, 0] / X[:, 0].std() + 100.0 * generator.standard_cauchy(80)
    models = [
        AvareRegressor(loss, C=C, epsilon=0.01).fit(X, score)
        if loss == "huber"
        else AvareClassifier(loss, C=C).fit(X, score > 0.0)
        for C in (1e3, 1e6, 1e9, 1e12)
    ]
    assert all(model.gap_ <= 1e-9 and model.n_iter_ < 400 for model in models)


@pytest.mark.parametrize("offset", [1e6, 1e8, 1e9])
@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("l1_ratio", [0.0, 1.0])
def test_columns_far_from_0(offset: float, classes: int, l1_ratio: float) -> None:
    generator = np.random.default_rng(11)
    X: Any = generator.normal(size=(300, 3)) + offset  # rounded
    near = X - offset  # exact
    score = near @ [1.0, -1.0, 0.3] + generator.normal(size=300)
    y = np.digitize(score, [[0.0], [-0.5, 0.5]][classes - 2]) if classes else score
    model = (AvareClassifier if classes else AvareRegressor)(l1_ratio=l1_ratio)
    far, coefficients = model.fit(X, y).gap_, model.coef_
    assert far <= 1e-9 and np.allclose(coefficients, model.fit(near, y).coef_, atol=1e-7)


def test_few_rows_with_huge_columns_are_right_or_warned_of() -> None:
    """Two rows count, and three coefficients are free: steps along the free direction were far, and left rounding."""
    for seed in range(20):
        generator = np.random.default_rng(seed)
        X, y = generator.normal(size=(3, 2)), 100.0 * generator.normal(size=3)
        for scale in (1e12, 1e15, 1e18, 1e40):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = AvareRegressor().fit(scale * X, y, sample_weight=[3.0, 3.0, 0.0])
            left = y[:2] - (scale * X[:2]).astype(np.longdouble) @ model.coef_ - np.longdouble(model.intercept_)
            above = 1.5 * float(left @ left) + 0.5 * float(model.coef_ @ model.coef_)
            # The minimum is less than 1e-12 of the constant model's objective.
            assert above / (0.75 * (y[0] - y[1]) ** 2) <= model.gap_ + 1e-8


@pytest.mark.parametrize("kind", ["ones", "far", "zeros"])
def test_constant_columns_with_few_rows(kind: str) -> None:
    y: Any
    X = np.full((5, 40), {"ones": 1.0, "far": 1e9, "zeros": 0.0}[kind])
    for y in (np.array([0, 1, 2, 0, 1]), np.array([1, 0, 0, 0, 1])):
        model = AvareClassifier().fit(X, y)
        assert not model.coef_.any() and np.allclose(model.predict_proba(X)[0], np.bincount(y) / 5.0)
    assert AvareRegressor("huber").fit(X[:2], [0.0, 1.0]).predict(X[:1]) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8, np.int64, np.uint64])
def test_labels_at_the_ends_of_their_type(kind: type) -> None:
    ends, places = np.iinfo(kind), np.random.default_rng(12).integers(0, 2, 400)
    y: Any = np.array([ends.min, ends.max], dtype=kind)[places]
    model = AvareClassifier().fit(places[:, None] + 0.0, y)
    assert model.classes_.tolist() == [ends.min, ends.max] and np.array_equal(model.predict(places[:, None]), y)


def test_l1_with_separable_classes_ends_when_it_is_certified() -> None:
    X, y = np.random.default_rng(0).normal(size=(100, 40)), np.arange(100) % 10
    model = AvareClassifier(C=1e8, l1_ratio=0.5, tol=1e-3).fit(X, y)
    assert model.n_iter_ <= 50 and 1e-14 <= model.gap_ <= 1e-6  # the last step did not go on to 1e-19


def test_balanced_classes_count_weights() -> None:
    generator = np.random.default_rng(13)
    X = generator.normal(size=(400, 3))
    y = (X[:, 0] + generator.logistic(size=400) > 1.0).astype(int)
    weights = np.where(y == 1, generator.integers(1, 9, 400), 1).astype(float)
    model = AvareClassifier(class_weight="balanced").fit(X, y, sample_weight=weights)
    sums = np.bincount(y, weights=weights)
    same = AvareClassifier().fit(X, y, sample_weight=weights * (weights.sum() / (2.0 * sums))[y])
    assert (
        np.allclose(model.coef_, same.coef_) and abs(model.predict_proba(X)[:, 1] @ weights / weights.sum() - 0.5) < 0.1
    )


def test_errors_name_what_is_wrong() -> None:
    X = np.random.default_rng(14).normal(size=(20, 2))
    with pytest.raises(ValueError, match=r"could not convert string to float: .*'a'"):
        AvareRegressor().fit(X, np.array(["a", "b"] * 10))
    with pytest.raises(ValueError, match="C = 1e-309: must be at least 1e-307"):
        AvareClassifier(C=1e-309).fit(X, np.arange(20) % 2)
