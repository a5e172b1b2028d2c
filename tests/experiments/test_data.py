"""The data of a run: what is taken for classes, what is refused, and what is done to columns and rows before a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from avare.datasets import DatasetError
from avare.experiments.data import Data, digest, obtain, prepared
from avare.experiments.sgd_runs import Setting, descent_spec, held_out_error, problem_of

FILES = {
    "a.csv": lambda labels: "x,z,y\n" + "".join(f"{k % 7},{k % 5},{label}\n" for k, label in enumerate(labels)),
    "a.libsvm": lambda labels: "# x z\n" + "".join(f"{label} 1:{k % 7} 2:1\n" for k, label in enumerate(labels)),
}
files = pytest.mark.parametrize("name", FILES)


def put(folder: Path, name: str, labels: Any) -> dict[str, Any]:
    """What to ask for, of a file with these labels from line 2 on."""
    (folder / name).write_text(FILES[name](labels))
    return {"source": str(folder / name), "target": "y" if name == "a.csv" else None}


@files
@pytest.mark.parametrize(("classes", "chosen"), [(2, "logistic"), (100, "softmax"), (101, "least_squares")])
def test_the_loss_is_chosen_by_the_targets(tmp_path: Path, name: str, classes: int, chosen: str) -> None:
    wanted = put(tmp_path, name, np.arange(300) % classes - 7)
    data, loss = obtain(**wanted)
    assert loss == chosen and data.y.dtype == (np.float64 if chosen == "least_squares" else np.int64)
    for asked in ("least_squares", "huber"):
        data, loss = obtain(**wanted, loss=asked)
        assert loss == asked and data.y.dtype == np.float64


@files
def test_a_loss_for_classes_takes_any_number_of_them(tmp_path: Path, name: str) -> None:
    wanted = put(tmp_path, name, np.arange(300) % 101 - 7)
    data, loss = obtain(**wanted, loss="softmax")
    assert loss == "softmax" and data.y.dtype == np.int64 and data.y.tolist() == [k % 101 - 7 for k in range(300)]
    with pytest.raises(ValueError, match=r"loss = 'logistic': .* has 101 classes; use softmax"):
        obtain(**wanted, loss="logistic")


@files
@pytest.mark.parametrize("loss", ["softmax", "logistic", "smoothed_hinge"])
def test_a_label_that_is_no_class_is_named_by_its_line(tmp_path: Path, name: str, loss: str) -> None:
    wanted = put(tmp_path, name, [*(k % 2 for k in range(15)), 1.5, 1])
    with pytest.raises(DatasetError, match=rf"{name}, line 17: label = 1.5, must be an integer .*--loss least_squares"):
        obtain(**wanted, loss=loss)
    assert obtain(**wanted)[1] == "least_squares"


@files
@pytest.mark.parametrize("loss", [None, "softmax", "logistic"])
def test_one_class_is_too_few(tmp_path: Path, name: str, loss: str | None) -> None:
    with pytest.raises(DatasetError, match=rf"{name} has one class only, 4: classification needs two or more"):
        obtain(**put(tmp_path, name, [4, 4]), loss=loss)


def test_the_loss_must_be_known_before_anything_is_read() -> None:
    unknown: Any = "hinge"
    with pytest.raises(ValueError, match="loss = 'hinge': must be one of huber, least_squares, "):
        obtain("not/there.csv", loss=unknown)


# --- columns on one scale, and rows held out --------------------------------------------------


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
    assert found.toarray()[:, 0] == pytest.approx([0.0, 4.0 / np.sqrt(3.0), 0.0, 0.0])  # deviation sqrt(3)
    assert found.toarray().std(axis=0) == pytest.approx([1.0, 1.0])


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

    def spec_of(data: Data, loss: str) -> dict[str, Any]:
        return descent_spec("compare", data, Setting(loss, 1, 1, l2=0.0), "Uniform", "auto", 0)

    spec = spec_of(numbers, "least_squares")
    problem = problem_of(spec, numbers.X, numbers.y)
    assert problem.n == 2 and problem.dim == 2
    assert held_out_error(problem, spec, numbers.X, numbers.y, np.array([2.0, -1.0])) == pytest.approx(np.sqrt(2.5))
    two = Data("mine", numbers.X, np.array([5, 7, 7, 7]), "", held_out=2, bias=True)
    spec = spec_of(two, "logistic")
    problem = problem_of(spec, two.X, two.y)
    assert held_out_error(problem, spec, two.X, two.y, np.array([2.0, -1.0])) == 0.5  # 0 gives class 5, 3 gives class 7
    spec = spec_of(two, "softmax")
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


@pytest.mark.parametrize("raw", [False, True])
def test_numbers_whose_squares_overflow_are_refused(raw: bool) -> None:
    X, y = np.ones((3, 2)), np.array([0.0, 1.0, 2.0])
    X[1, 0] = -1e300
    with pytest.raises(ValueError, match=r"X\[1, 0\] = -1e\+300: must be within ±1e\+50; scale the column"):
        prepared(Data("mine", X, y, ""), "least_squares", raw=raw)
    with pytest.raises(ValueError, match=r"y\[2\] = 1e\+60: must be within"):
        prepared(Data("mine", np.eye(3), np.array([0.0, 1.0, 1e60]), ""), "least_squares", raw=raw)
    X[1, 0] = 1e50
    assert len(prepared(Data("mine", X, y, ""), "least_squares", raw=raw)) == 3
