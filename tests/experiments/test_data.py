"""The data of a run: what is taken for classes, what is refused, and what is done to columns and rows before a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from avare.datasets import DatasetError
from avare.experiments.data import Data, choose_rows, digest, obtain, prepared

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
    return Data("mine", X, np.asarray(y), digest(X, np.asarray(y)))


def test_columns_are_standardised() -> None:
    generator = np.random.default_rng(0)
    X = np.column_stack([1e6 + generator.normal(size=50), 1e-3 * generator.normal(size=50), np.full(50, 7.0)])
    data = some(X, generator.normal(size=50))
    found = prepared(data)
    assert found.bias and found.digest == digest(found.X, data.y) != data.digest
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
        prepared(Data("mine", X, y, ""), raw=raw)
    with pytest.raises(ValueError, match=r"y\[2\] = 1e\+60: must be within"):
        prepared(Data("mine", np.eye(3), np.array([0.0, 1.0, 1e60]), ""), raw=raw)
    X[1, 0] = 1e50
    assert len(prepared(Data("mine", X, y, ""), raw=raw)) == 3
