"""The data of a run: what is taken for classes, what is refused, and what is done to columns and rows before a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from avare.experiments.data import Data, choose_rows, obtain, prepared
from avare.experiments.datasets import DatasetError
from avare.experiments.sgd_runs import common_spec, held_out_error, problem_of

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


# --- columns on one scale, and rows that are drawn ---------------------------------------------


def some(X: object, y: object) -> Data:
    return Data("mine", X, np.asarray(y))


def test_columns_are_standardised() -> None:
    generator = np.random.default_rng(0)
    X = np.column_stack([1e6 + generator.normal(size=50), 1e-3 * generator.normal(size=50), np.full(50, 7.0)])
    data = some(X, generator.normal(size=50))
    found = prepared(data)
    assert found.bias and found.digest != data.digest
    assert found.X.mean(axis=0) == pytest.approx(0.0, abs=1e-8)
    assert found.X.std(axis=0) == pytest.approx([1.0, 1.0, 0.0])


def test_zeros_of_a_sparse_matrix_stay_zeros() -> None:
    X = csr_array(np.array([[0.0, 2.0], [4.0, 0.0], [0.0, 0.0], [0.0, 2.0]]))
    found = prepared(some(X, [0, 1, 0, 1])).X
    assert found.nnz == X.nnz
    assert found.toarray()[:, 0] == pytest.approx([0.0, 4.0 / np.sqrt(3.0), 0.0, 0.0])  # deviation sqrt(3)
    assert found.toarray().std(axis=0) == pytest.approx([1.0, 1.0])


def test_raw_is_as_given() -> None:
    data = some(np.eye(3, dtype=np.float32), [0, 1, 2])
    assert prepared(data, raw=True) is data and not data.bias
    assert prepared(data).X.dtype == np.float32


def test_every_class_is_drawn_twice_or_whole() -> None:
    y = np.array([0] * 30 + [1] * 2 + [2])
    for seed in range(5):
        chosen = choose_rows(y, "softmax", 5, np.random.default_rng(seed))
        assert {1, 2} < set(y[chosen]) and sum(y[chosen] == 1) == 2 and list(chosen) == sorted(set(chosen))
        assert len(choose_rows(y, "least_squares", 5, np.random.default_rng(seed))) == 5


@pytest.mark.parametrize("raw", [False, True])
def test_numbers_whose_squares_overflow_are_refused(raw: bool) -> None:
    X, y = np.ones((3, 2)), np.array([0.0, 1.0, 2.0])
    X[1, 0] = -1e300
    with pytest.raises(ValueError, match=r"X\[1, 0\] = -1e\+300: must be within ±1e\+50; scale the column"):
        prepared(Data("mine", X, y), raw=raw)
    with pytest.raises(ValueError, match=r"y\[2\] = 1e\+60: must be within"):
        prepared(Data("mine", np.eye(3), np.array([0.0, 1.0, 1e60])), raw=raw)
    X[1, 0] = 1e50
    assert len(prepared(Data("mine", X, y), raw=raw)) == 3


# --- rows that are held out ----------------------------------------------------------------


def test_columns_are_standardised_over_the_rows_that_are_trained_on() -> None:
    generator = np.random.default_rng(0)
    X = np.column_stack([1e6 + generator.normal(size=50), np.arange(50.0)])
    found = prepared(some(X, np.arange(50.0)), test=0.3)
    assert (len(found), found.held_out, found.bias) == (35, 15, True)
    assert found.X[:35].mean(axis=0) == pytest.approx(0.0, abs=1e-8)
    assert found.X[:35].std(axis=0) == pytest.approx(1.0)
    assert sorted(found.y) == list(range(50)) and np.corrcoef(found.X[:, 1], found.y)[0, 1] > 0.999  # rows stay whole
    raw = prepared(some(X, np.arange(50.0)), raw=True, test=0.3)
    assert np.array_equal(raw.y, found.y) and np.array_equal(raw.X[:, 1], raw.y) and not raw.bias


@pytest.mark.parametrize("raw", [False, True])
def test_missing_values_are_filled_by_the_rows_that_are_trained_on(raw: bool) -> None:
    generator = np.random.default_rng(0)
    values, absent, y = generator.normal(5.0, 1.0, 40), generator.random(40) < 0.3, np.arange(40.0)
    values[absent] = values[~absent].mean()  # as `read` fills them
    data = Data("mine", np.column_stack([y, values, absent]), y, filled=(1,))
    found = prepared(data, raw=raw, test=0.5)
    where = absent[found.y.astype(int)]  # y is the number of the row
    assert where[:20].any() and where[20:].any()
    trained = found.X[:20, 1][~where[:20]]
    assert found.X[where, 1] == pytest.approx(trained.mean()) and trained.std() > 0.0
    # What is held out changes nothing of what is trained on.
    other = np.array(data.X)
    other[found.y[20:].astype(int), 1] = 1e6
    assert np.array_equal(prepared(replace(data, X=other), raw=raw, test=0.5).X[:20], found.X[:20])
    assert data.X[absent, 1] == pytest.approx(values[absent])  # the data itself is as before


def test_a_file_with_missing_values_is_filled_by_the_rows_that_are_trained_on(tmp_path: Path) -> None:
    cells = [str(k * k) if k % 3 else "" for k in range(30)]
    path = tmp_path / "a.csv"
    path.write_text("w,x,y\n" + "".join(f"{'ab'[k % 2]},{cell},{k}.5\n" for k, cell in enumerate(cells)))
    data, _ = obtain(str(path), target="y")
    assert data.filled == (1,)
    found = prepared(data, raw=True, test=0.5)
    trained = [int(k) ** 2 for k in found.y[:15] if int(k) % 3]
    assert found.X[found.X[:, 2] == 1.0, 1] == pytest.approx(np.mean(trained))
    assert np.mean(trained) != pytest.approx(data.X[0, 1])  # the mean of all


def test_every_class_is_trained_on() -> None:
    y = np.array([0] * 30 + [1] * 2 + [2])
    found = prepared(some(np.arange(66.0).reshape(33, 2), y), test=0.5)
    assert set(found.y[: len(found)]) == {0, 1, 2}


@pytest.mark.parametrize(
    ("test", "words"), [(-0.1, "test = -0.1"), (1.0, "test = 1.0: must be at most 0.99"), (0.001, "no row of 3")]
)
def test_bad_shares(test: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepared(some(np.eye(3), [0, 1, 0]), test=test)


def test_the_error_on_the_rows_held_out() -> None:
    # By hand: with slope 2 and intercept -1, rows 0 and 3 give -1 and 5.
    X = np.array([[1.0], [2.0], [0.0], [3.0]])
    for loss, y, x, error in (
        ("least_squares", [1.0, 3.0, 0.0, 7.0], [2.0, -1.0], np.sqrt(2.5)),
        ("logistic", [5, 7, 7, 7], [2.0, -1.0], 0.5),  # 0 gives class 5, 3 gives class 7
        ("softmax", [5, 7, 7, 7], [0.0, 1.0, 1.0, 0.0], 0.5),
    ):
        data = Data("mine", X, np.array(y), held_out=2, bias=True)
        spec = common_spec("compare", data, loss, 0.0)
        problem = problem_of(spec, data.X, data.y)
        assert problem.n == 2
        assert held_out_error(spec, problem, data.X, data.y, np.array(x)) == pytest.approx(error)
