"""The data of a run: what is taken for classes, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avare.datasets import DatasetError
from avare.experiments.data import obtain

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
