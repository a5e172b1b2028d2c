"""Columns on one scale, and rows held out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from avare.experiments.data import Data, digest, obtain
from avare.experiments.descent import descent_spec, held_out_error, problem_of
from avare.experiments.preparation import prepared


def some(X: object, y: object) -> Data:
    return Data("mine", X, np.asarray(y), digest(X, np.asarray(y)))


def test_columns_are_standardised_over_the_rows_that_are_trained_on() -> None:
    generator = np.random.default_rng(0)
    X = np.column_stack([1e6 + generator.normal(size=50), 1e-3 * generator.normal(size=50), np.full(50, 7.0)])
    found = prepared(some(X, generator.normal(size=50)), "least_squares", test=0.3)
    assert (len(found), found.held_out, found.bias) == (35, 15, True)
    assert found.X[:35].mean(axis=0) == pytest.approx(0.0, abs=1e-8)
    assert found.X[:35].std(axis=0) == pytest.approx([1.0, 1.0, 0.0])
    assert abs(found.X[35:].mean(axis=0)[0]) > 1e-6  # with the scale of the others
    # The rows are the same, in another order, and the targets go with them.
    order = np.argsort(found.y)
    assert np.corrcoef(found.X[order, 0], X[:, 0])[0, 1] < 1.0
    assert sorted(found.y) == sorted(prepared(some(X, found.y), "least_squares", raw=True).y)


@pytest.mark.parametrize("raw", [False, True])
def test_missing_values_are_filled_by_the_rows_that_are_trained_on(raw: bool) -> None:
    generator = np.random.default_rng(0)
    values, absent, y = generator.normal(5.0, 1.0, 40), generator.random(40) < 0.3, np.arange(40.0)
    values[absent] = values[~absent].mean()  # as `read` fills them
    data = Data("mine", np.column_stack([y, values, absent]), y, "", filled=((1, 2),))
    found = prepared(data, "least_squares", raw=raw, test=0.5)
    where = absent[found.y.astype(int)]  # y is the number of the row
    assert where[:20].any() and where[20:].any()
    trained = found.X[:20, 1][~where[:20]]
    assert found.X[where, 1] == pytest.approx(trained.mean()) and trained.std() > 0.0
    # What is held out changes nothing of what is trained on.
    other = np.array(data.X)
    other[found.y[20:].astype(int), 1] = 1e6
    again = prepared(replace(data, X=other), "least_squares", raw=raw, test=0.5)
    assert np.array_equal(again.X[:20], found.X[:20])
    assert data.X[absent, 1] == pytest.approx(values[absent])  # the data itself is as before


def test_a_column_without_a_value_to_train_on() -> None:
    y = np.arange(10.0)
    rows = prepared(some(y[:, None], y), "least_squares", raw=True, test=0.5).y.astype(int)
    values, absent = np.zeros(10), np.zeros(10)
    absent[rows[:5]], values[rows[5:]] = 1.0, 7.0
    found = prepared(
        Data("mine", np.column_stack([values, absent]), y, "", filled=((0, 1),)), "least_squares", test=0.5
    )
    assert found.X[:5].tolist() == [[0.0, 0.0]] * 5 and np.isfinite(found.X).all()


def test_zeros_of_a_sparse_matrix_stay_zeros() -> None:
    X = csr_array(np.array([[0.0, 2.0], [4.0, 0.0], [0.0, 0.0], [0.0, 2.0]]))
    found = prepared(some(X, [0, 1, 0, 1]), "logistic").X
    assert found.nnz == X.nnz
    assert found.toarray()[:, 0] == pytest.approx([0.0, 2.0, 0.0, 0.0])  # root mean square 2
    assert np.sqrt((found.toarray() ** 2).mean(axis=0)) == pytest.approx([1.0, 1.0])


def test_raw_is_as_given() -> None:
    data = some(np.eye(3, dtype=np.float32), [0, 1, 2])
    assert prepared(data, "softmax", raw=True) is data
    kept = prepared(data, "least_squares", raw=True, test=0.3)
    assert kept.held_out == 1 and not kept.bias and kept.X.sum() == 3.0
    assert prepared(data, "softmax").X.dtype == np.float32


def test_every_class_is_trained_on() -> None:
    y = np.array([0] * 30 + [1] * 2 + [2])
    found = prepared(some(np.arange(66.0).reshape(33, 2), y), "softmax", test=0.5)
    assert set(found.y[: len(found)]) == {0, 1, 2} and found.digest != digest(found.X, y)


@pytest.mark.parametrize(
    ("test", "words"), [(-0.1, "test = -0.1"), (1.0, "test = 1.0: must be below 1"), (0.001, "no row of 3")]
)
def test_bad_shares(test: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepared(some(np.eye(3), [0, 1, 0]), "logistic", test=test)


def test_the_error_on_the_rows_held_out() -> None:
    # By hand: with slope 2 and intercept -1, rows 0 and 3 give -1 and 5.
    numbers = Data(
        "mine", np.array([[1.0], [2.0], [0.0], [3.0]]), np.array([1.0, 3.0, 0.0, 7.0]), "", held_out=2, bias=True
    )
    common: dict[str, Any] = {"seed": 0, "steps": "auto", "epochs": 1, "batch_size": 1, "l2": 0.0}
    spec = descent_spec("compare", numbers, "least_squares", "Uniform", **common)
    problem = problem_of(spec, numbers.X, numbers.y)
    assert problem.n == 2 and problem.dim == 2
    assert held_out_error(problem, spec, numbers.X, numbers.y, np.array([2.0, -1.0])) == pytest.approx(np.sqrt(2.5))
    two = Data("mine", numbers.X, np.array([5, 7, 7, 7]), "", held_out=2, bias=True)
    spec = descent_spec("compare", two, "logistic", "Uniform", **common)
    problem = problem_of(spec, two.X, two.y)
    assert held_out_error(problem, spec, two.X, two.y, np.array([2.0, -1.0])) == 0.5  # 0 gives class 5, 3 gives class 7
    spec = descent_spec("compare", two, "softmax", "Uniform", **common)
    problem = problem_of(spec, two.X, two.y)
    assert held_out_error(problem, spec, two.X, two.y, np.array([0.0, 1.0, 1.0, 0.0])) == 0.5


def test_a_file_with_missing_values_is_filled_by_the_rows_that_are_trained_on(tmp_path: Path) -> None:
    cells = [str(k * k) if k % 3 else "" for k in range(30)]
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{cell},{k}.5\n" for k, cell in enumerate(cells)))
    data, loss = obtain(str(path), target="y")
    found = prepared(data, loss, raw=True, test=0.5)
    trained = [int(k) ** 2 for k in found.y[:15] if int(k) % 3]
    assert found.X[found.X[:, 1] == 1.0, 0] == pytest.approx(np.mean(trained))
    assert np.mean(trained) != pytest.approx(data.X[0, 0])  # the mean of all
