"""What to expect, from pilot runs. Of large data some rows are looked at, and no class is left out."""

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
    return diagnose(Data("rare", X, np.array(y)), loss, epochs=1, seed=seed)


def test_rare_classes_are_not_missed(missed: list[int]) -> None:
    y = [k % 2 for k in range(1200)]
    assert (found(y, "softmax").rows, found(y, "softmax").dim) == (1000, 2 * 2)
    y[missed[0]] = y[missed[10]] = y[missed[20]] = -7
    y[missed[5]] = 8
    assert (found(y, "softmax").rows, found(y, "softmax").dim) == (1000 + 2 + 1, 4 * 2)
    first, again, other = (found(y, "softmax", seed) for seed in (3, 3, 4))
    assert (first.gain, first.noise) == (again.gain, again.noise) != (other.gain, other.noise)
    assert found(y, "least_squares").rows == 1000


def test_runs_take_turns_and_are_counted() -> None:
    counts: list[tuple[float, str]] = []
    data, loss = obtain("synthetic")
    found = diagnose(
        data,
        loss,
        batch_size=4,
        epochs=4,
        runs=3,
        count=lambda share, text: counts.append((share, text)),
    )
    turns = [f"run {k + 1} of 3, {name}" for k in range(3) for name in ("Uniform", "Calibrated")]
    assert [text for _, text in counts] == [*turns, "the optimum", "done"]
    shares = [share for share, _ in counts]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0
    assert found.in_epochs.runs == 3
    with pytest.raises(ValueError, match="runs = 1: must be at least 2"):
        diagnose(data, loss, runs=1)
    with pytest.raises(ValueError, match="batch_size = 101: must be at most 100, the number of examples"):
        diagnose(data, loss, batch_size=101)


def test_noise_and_distance_are_those_of_the_whole_optimum() -> None:
    """A quadratic: L-BFGS finds its optimum, and the parts add up to the suboptimality."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(500, 3))
    data = Data("mine", X, X @ [1.0, 2.0, 3.0] + generator.normal(size=500))
    found = diagnose(data, "least_squares", batch_size=8, epochs=3, runs=2)
    assert found.noise > 0.0 and found.distance >= 0.0 and "AvareRegressor" in found.words


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
