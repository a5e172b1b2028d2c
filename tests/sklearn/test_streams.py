"""Streams in parts of any size: one row, one class, columns that do not vary within a part."""

import numpy as np
import pytest

from avare.sklearn import AvareClassifier, AvareRegressor


@pytest.mark.parametrize(("size", "least"), [(1, 0.9), (2, 0.97), (50, 0.9999)])
def test_parts_of_any_size(size: int, least: float) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(2000, 3)) * [0.1, 1.0, 10.0] + [0.0, 100.0, 0.0]
    y = X @ [10.0, 2.0, 0.3] + 5.0
    model = AvareRegressor(C=1e3, random_state=0)
    for first in range(0, 2000, size):
        model.partial_fit(X[first : first + size], y[first : first + size])
    assert model.score(X, y) > least and model.n_seen_ == 2000


@pytest.mark.parametrize("loss", ["log_loss", "smoothed_hinge"])
def test_one_row_at_a_time(loss: str) -> None:
    generator = np.random.default_rng(1)
    X = generator.normal(size=(1500, 3))
    y = np.where(X[:, 0] + 0.5 * generator.logistic(size=1500) > 0.0, "yes", "no")
    model = AvareClassifier(loss, random_state=0)
    for i in range(1500):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=["no", "yes"])
    assert model.score(X, y) > AvareClassifier(loss).fit(X, y).score(X, y) - 0.03


def test_columns_that_do_not_vary_within_a_part() -> None:
    """One customer, or one day, in each part."""
    generator = np.random.default_rng(2)
    groups = generator.normal(size=40)
    X = np.column_stack([np.repeat(groups, 50), generator.normal(size=2000)])
    y = X @ [3.0, 1.0]
    model = AvareRegressor(random_state=0)
    for first in range(0, 2000, 50):
        model.partial_fit(X[first : first + 50], y[first : first + 50])
    assert np.allclose(model.coef_, [3.0, 1.0], atol=0.05)


def test_a_stream_continues_after_a_fit() -> None:
    generator = np.random.default_rng(3)
    X = generator.normal(size=(1000, 2)) + 10.0
    y = X @ [1.0, 2.0]
    model = AvareRegressor(random_state=0).fit(X, y)
    before = model.coef_
    model.partial_fit(X[:5], y[:5] + 1.0)
    assert model.n_seen_ == 1005 and 0.0 < np.abs(model.coef_ - before).max() < 0.05


def test_a_part_that_is_refused_does_not_count() -> None:
    generator = np.random.default_rng(4)
    X = generator.normal(size=(100, 2))
    model = AvareRegressor(random_state=0).partial_fit(X, X[:, 0])
    same = AvareRegressor(random_state=0).partial_fit(X, X[:, 0])
    with pytest.raises(ValueError, match="must be finite"):
        model.partial_fit(np.full((50, 2), 1e200), np.zeros(50))
    assert model.n_seen_ == 100
    assert np.array_equal(model.partial_fit(X, X[:, 1]).coef_, same.partial_fit(X, X[:, 1]).coef_)
