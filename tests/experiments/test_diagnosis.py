"""What to expect, from pilot runs. Of large data some rows are looked at, and no class is left out."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare.experiments import diagnosis
from avare.experiments.data import Data, choose_rows, obtain
from avare.experiments.diagnosis import Diagnosis, diagnose


@pytest.fixture
def missed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of 1,200 that are not among the 1,000 drawn with seed 3."""
    monkeypatch.setattr(diagnosis, "_MOST_NUMBERS", 2000)
    drawn = np.random.default_rng(3).permutation(1200)[:1000]
    return [int(row) for row in np.setdiff1d(np.arange(1200), drawn)]


def found(y: list[int], loss: str, seed: int = 3) -> Diagnosis:
    X = np.random.default_rng(1).normal(size=(len(y), 2))
    return diagnose(Data("rare", X, np.array(y), ""), loss, epochs=1, seed=seed)


def test_rare_classes_are_not_missed(missed: list[int]) -> None:
    y = [k % 2 for k in range(1200)]
    assert (found(y, "softmax").rows, found(y, "softmax").dim) == (1000, 2 * 2)
    y[missed[0]] = y[missed[10]] = y[missed[20]] = -7
    y[missed[5]] = 8
    assert (found(y, "softmax").rows, found(y, "softmax").dim) == (1000 + 2 + 1, 4 * 2)
    assert found(y, "softmax") == found(y, "softmax") != found(y, "softmax", seed=4)
    assert found(y, "least_squares").rows == 1000


def test_pilot_runs_take_turns_and_are_counted() -> None:
    said: list[str] = []
    data, loss = obtain("synthetic")
    found = diagnose(data, loss, batch_size=4, epochs=4, runs=3, say=said.append)
    pilots = [re.sub("; roughly .* left", "", text) for text in said if text.startswith("pilot run ")]
    assert pilots == [f"pilot run {k + 1} of 6, with {('Uniform', 'Calibrated')[k % 2]}" for k in range(6)]
    assert re.fullmatch(".*; roughly [0-9]+ s left", said[-2]) and said[-1] == "separating noise and distance"
    assert found.runs == 3 and found.noise_share is not None
    low, high = found.noise_share
    assert low <= found.noise / (found.noise + found.distance) <= high
    with pytest.raises(ValueError, match="runs = 2: must be at least 3"):
        diagnose(data, loss, runs=2)


def test_the_deviation_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=7)
    means = [np.delete(values, k).mean() for k in range(7)]
    assert diagnosis._deviation(means) == pytest.approx(values.std(ddof=1) / np.sqrt(7))


def test_the_ratio_of_times_is_that_of_undisturbed_runs() -> None:
    theirs = np.array([1.0, 1.05, 5.0, 9.0])  # other work makes a run longer, never shorter
    assert diagnosis._ratio(theirs, np.array([7.0, 1.6, 6.0, 1.61])) == pytest.approx(1.6)
    assert np.isnan(diagnosis._ratio(theirs, np.array([7.0, 1.6, 6.0, 2.0])))  # no run may have been undisturbed
    assert np.isnan(diagnosis._ratio(np.zeros(4), theirs))  # the clock is too coarse


@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "softmax"])
def test_two_classes_stay_two(missed: list[int], loss: str) -> None:
    y = 1200 * [-1]
    y[missed[7]] = 1
    assert found(y, loss).rows == 1001


@given(y=st.lists(st.integers(-3, 9), min_size=1, max_size=60), data=st.data())
def test_two_rows_of_each_class_or_all_it_has(y: list[int], data: st.DataObject) -> None:
    size, labels = data.draw(st.integers(1, len(y))), np.array(y)
    rows = choose_rows(labels, "softmax", size, np.random.default_rng(0))
    assert rows.tolist() == sorted(set(rows.tolist())) and len(rows) >= size
    for each in set(y):
        assert (labels[rows] == each).sum() >= min(2, y.count(each))
    assert len(choose_rows(labels, "least_squares", size, np.random.default_rng(0))) == size


def test_which_rows_are_added_is_drawn() -> None:
    y = np.array([0, 0, *(10 * [1])])
    rows = [choose_rows(y, "logistic", 1, np.random.default_rng(seed)) for seed in range(200)]
    assert all(len(each) == 4 for each in rows)
    assert {int(row) for each in rows for row in each} == set(range(12))  # one is left out with chance 10 * 0.8**200
