"""Of large data some rows are looked at, and no class is left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare.experiments import diagnosis
from avare.experiments.data import Data
from avare.experiments.diagnosis import DataDiagnosis, diagnose_data
from avare.experiments.preparation import with_all_classes


@pytest.fixture
def missed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of 1,200 that are not among the 1,000 drawn with seed 3."""
    monkeypatch.setattr(diagnosis, "_MOST_NUMBERS", 2000)
    drawn = np.random.default_rng(3).choice(1200, size=1000, replace=False)
    return [int(row) for row in np.setdiff1d(np.arange(1200), drawn)]


def found(y: list[int], loss: str, seed: int = 3) -> DataDiagnosis:
    X = np.random.default_rng(1).normal(size=(len(y), 2))
    return diagnose_data(Data("rare", X, np.array(y), ""), loss, epochs=1, seed=seed)


def test_rare_classes_are_not_missed(missed: list[int]) -> None:
    y = [k % 2 for k in range(1200)]
    assert (found(y, "softmax").rows, found(y, "softmax").dim) == (1000, 2 * 2)
    y[missed[0]] = y[missed[10]] = y[missed[20]] = -7
    y[missed[5]] = 8
    assert (found(y, "softmax").rows, found(y, "softmax").dim) == (1000 + 2 + 1, 4 * 2)
    assert found(y, "softmax") == found(y, "softmax") != found(y, "softmax", seed=4)
    assert found(y, "least_squares").rows == 1000


@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "softmax"])
def test_two_classes_stay_two(missed: list[int], loss: str) -> None:
    y = 1200 * [-1]
    y[missed[7]] = 1
    assert found(y, loss).rows == 1001


@given(y=st.lists(st.integers(-3, 9), min_size=1, max_size=60), data=st.data())
def test_two_rows_of_each_class_or_all_it_has(y: list[int], data: st.DataObject) -> None:
    labels = np.array(y)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(y) - 1), min_size=1, unique=True)))
    rows = with_all_classes(chosen, labels, np.random.default_rng(0))
    assert set(chosen.tolist()) <= set(rows.tolist()) and rows.tolist() == sorted(set(rows.tolist()))
    for each in set(y):
        there, before = y.count(each), int((labels[chosen] == each).sum())
        assert (labels[rows] == each).sum() == max(before, min(2, there))


def test_which_rows_are_added_is_drawn() -> None:
    y = np.array([0, 0, *(10 * [1])])
    rows = [with_all_classes(np.array([0, 1]), y, np.random.default_rng(seed)) for seed in range(200)]
    assert all(len(each) == 4 for each in rows)
    assert {int(row) for each in rows for row in each} == set(range(12))  # one is left out with chance 10 * 0.8**200
