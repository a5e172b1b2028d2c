"""Theirs, ours, and whether they agree: on both sides of each limit."""

import math
from pathlib import Path
from typing import Any

import pytest

import stored_runs
from avare.report import paper
from avare.report.checking import Check, check
from avare.report.results import gather
from stored_runs import put, run


def checked(folder: Path, records: list[dict[str, Any]]) -> dict[tuple[str, str, str], Check]:
    found = check(gather(put(folder, records)), paper())
    return {(each.rule, each.sampler, each.measure): each for each in found}


def with_last(record: dict[str, Any], measure: str, value: float) -> dict[str, Any]:
    record["trace"][measure][-1] = value
    return record


def test_numbers_as_in_the_paper_agree(tmp_path: Path) -> None:
    found = check(gather(stored_runs.full_store(tmp_path)), paper())
    judged = [each for each in found if each.agrees is not None]
    # Of each of six experiments four relative errors and two regrets, three gains and an order.
    assert len(judged) == 6 * 6 + 3 + 1
    # The stored runs with constant steps end like those with decreasing steps: the paper's IJCNN1 does not.
    wrong = {(each.dataset, each.rule, each.sampler, each.measure) for each in judged if not each.agrees}
    assert wrong == {
        ("IJCNN1", "constant", "Avare", "relative_error"),
        ("IJCNN1", "constant", "Avare", "regret"),
    }


@pytest.mark.parametrize(
    ("sampler", "measure", "value", "agrees"),
    [
        ("Avare", "relative_error", 10**-0.86, True),
        ("Avare", "relative_error", 10**-0.84, False),
        ("Avare", "relative_error", 10**-1.14, True),
        ("Avare", "relative_error", 10**-1.16, False),
        ("Avare", "relative_error", 0.0, False),
        ("Avare", "regret", 0.15e12 * 1.49, True),
        ("Avare", "regret", 0.15e12 * 1.51, False),
        ("Avare", "regret", 0.15e12 / 1.49, True),
        ("Avare", "regret", 0.15e12 / 1.51, False),
        ("Uniform", "regret", 2.5e12 * 1.29, True),
        ("Uniform", "regret", 2.5e12 * 1.31, False),
        ("Uniform", "regret", 2.5e12 / 1.31, False),
    ],
)
def test_the_limits(tmp_path: Path, sampler: str, measure: str, value: float, agrees: bool) -> None:
    found = checked(tmp_path, [with_last(run(sampler=sampler), measure, value)])
    assert found["decreasing", sampler, measure].agrees is agrees


@pytest.mark.parametrize(
    ("dataset", "gain", "agrees"),
    [("mnist", 5.13, True), ("mnist", 5.14, False), ("cifar10", 1.17, True), ("cifar10", 1.18, False)],
)
def test_the_limits_of_the_gain(tmp_path: Path, dataset: str, gain: float, agrees: bool) -> None:
    record = stored_runs.facts(dataset)
    record["facts"] = {**record["facts"], "gain_at_optimum": gain}
    found = checked(tmp_path, [record])
    assert found["", "", "gain_at_optimum"].agrees is agrees
    assert found["", "", "smoothness_ratio"].agrees is None


def test_suboptimality_is_shown_and_not_judged(tmp_path: Path) -> None:
    found = checked(tmp_path, [run()])["decreasing", "Avare", "suboptimality"]
    assert found.theirs == 1.9 and found.ours == pytest.approx(1.9) and found.agrees is None and found.note == ""


def test_what_was_not_run_is_not_judged(tmp_path: Path) -> None:
    found = checked(tmp_path, [run()])["decreasing", "Vrb", "relative_error"]
    assert found.ours is None and found.agrees is None and found.note == "not run"


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"epochs": 20}, "run for 20 epochs, the paper for 100"),
        ({"batch_size": 64}, "batches of 64, the paper's of 128"),
    ],
)
def test_other_settings_are_not_judged(tmp_path: Path, changes: dict[str, Any], note: str) -> None:
    found = checked(tmp_path, [run(**changes)])["decreasing", "Avare", "relative_error"]
    assert found.agrees is None and found.note == note


def test_of_the_synthetic_set_the_order_is_judged(tmp_path: Path) -> None:
    records = [run("synthetic", sampler) for sampler in stored_runs.PAPER]
    found = checked(tmp_path / "right", records)
    assert found["decreasing", "all", "regret"].agrees is True
    assert found["decreasing", "Uniform", "regret"].agrees is None
    swapped = [*records[:3], with_last(run("synthetic", "Vrb"), "regret", 5e4)]
    order = checked(tmp_path / "swapped", swapped)["decreasing", "all", "regret"]
    assert order.agrees is False and order.ours == "Uniform > Vrb > Mabs > Avare"
    order = checked(tmp_path / "missing", records[:1])["decreasing", "all", "regret"]
    assert order.agrees is None and order.note == "not run: Uniform, Mabs, Vrb"
    order = checked(tmp_path / "none", [run("synthetic", "Osmd")])["decreasing", "all", "regret"]
    assert order.ours is None and order.agrees is None


def test_a_dataset_that_the_paper_has_not_is_not_checked(tmp_path: Path) -> None:
    assert checked(tmp_path, [run("digits")]) == {}


def test_a_comparison_is_not_checked(tmp_path: Path) -> None:
    assert checked(tmp_path, [run("mnist", experiment="compare")]) == {}


def test_a_gain_without_a_limit_is_shown(tmp_path: Path) -> None:
    found = checked(tmp_path, [stored_runs.facts("synthetic")])["", "", "gain_at_optimum"]
    assert found.agrees is None and found.note == "another draw of the data"


def test_the_papers_numbers_are_whole() -> None:
    numbers = paper()
    assert "NeurIPS 2020" in numbers["source"]
    assert set(numbers["table"]) == {"mnist", "ijcnn1", "cifar10", "synthetic"}
    for by_dataset in numbers["last_epoch"].values():
        for dataset, by_measure in by_dataset.items():
            assert dataset in numbers["table"]
            for measure, by_sampler in by_measure.items():
                assert measure in ("relative_error", "suboptimality", "regret")
                assert {"Uniform", "Avare"} <= set(by_sampler)
                assert all(math.isfinite(value) for value in by_sampler.values())
