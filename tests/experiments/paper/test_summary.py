"""What the paper's records show: the growth of the regret, Table 1, and its numbers beside ours."""

from typing import Any

import numpy as np
import pytest

import stored_runs
from avare.experiments import registry
from avare.experiments.base import Summary
from avare.experiments.paper.theory import Growth, exponent, growths_of
from stored_runs import csv_rows, parsed, run


def growths(records: list[dict[str, Any]]) -> list[Growth]:
    return growths_of(parsed(records))


def summarised(records: list[dict[str, Any]], runs: int = 10) -> Summary:
    found = registry.get("paper").summarise(parsed(records), runs)
    assert found is not None
    return found


def test_growth_of_the_regret() -> None:
    found = growths([stored_runs.theory(method, seed) for method in ("sgd", "sgld") for seed in range(3)])
    assert [(growth.label, growth.runs) for growth in found] == [("SGD", 3), ("SGLD", 3)]
    assert [growth.slope for growth in found] == pytest.approx([0.6, 0.75])


def test_the_slope_is_the_mean_of_the_runs_exponents() -> None:
    records = [stored_runs.theory("sgd", seed) for seed in range(2)]
    steps = np.array(records[0]["trace"]["step"])
    late = steps[-1] / 10.0
    records[0]["trace"]["regret"] = np.where(steps < late, steps**2, late**2 * (steps / late) ** 0.5).tolist()
    (growth,) = growths(records)
    assert growth.slope == pytest.approx((0.5 + 0.6) / 2, rel=1e-6)
    assert growth.slope == np.mean([exponent(record["trace"]) for record in records])


def test_theory_of_other_settings_is_not_mixed() -> None:
    other = stored_runs.theory("sgd")
    other["spec"] = {**other["spec"], "n": 50}
    labels = [growth.label for growth in growths([stored_runs.theory("sgd"), other])]
    assert sorted(labels) == ["SGD (n = 50)", "SGD (n = None)"]


def test_table_one_has_theirs_beside_ours() -> None:
    table = summarised([stored_runs.facts("mnist"), stored_runs.facts("ijcnn1")]).tables["table1"]
    found = {row["dataset"]: row for row in csv_rows(table)}
    assert list(found) == ["MNIST", "IJCNN1", "CIFAR10", "Synthetic"]
    mnist, absent = found["MNIST"], found["CIFAR10"]
    assert (mnist["gain_at_optimum_paper"], mnist["gain_at_optimum"], mnist["n"]) == ("5.08", "5.088", "60000")
    assert (mnist["smoothness_ratio_paper"], mnist["smoothness_ratio"]) == ("3.28", "3.36")
    assert (absent["gain_at_optimum_paper"], absent["gain_at_optimum"], absent["n"]) == ("1.14", "", "")


def test_the_papers_numbers_are_beside_runs_with_its_settings_only() -> None:
    records = [run(epochs=4), run(batch_size=64), run(), run("synthetic"), run("synthetic", batch_size=128)]
    found = csv_rows(summarised(records).tables["reproduce"])
    beside = {row["dataset"]: (row["regret_paper"], row["suboptimality_log10_paper"]) for row in found}
    assert beside == {
        "MNIST, batches of 128, 100 epochs": ("150000000000.0", "1.9"),
        "MNIST, batches of 64, 100 epochs": ("", ""),
        "MNIST, batches of 128, 4 epochs": ("", ""),
        "Synthetic, batches of 1": ("1000.0", "-2.6"),
        "Synthetic, batches of 128": ("", ""),
    }
    (short,) = csv_rows(summarised([run(epochs=4)]).tables["reproduce"])
    assert short["relative_error_log10"] and short["relative_error_log10_paper"] == ""
    (osmd,) = csv_rows(summarised([run(sampler="Osmd")]).tables["reproduce"])
    assert osmd["regret_paper"] == "" and osmd["relative_error_log10_paper"] == ""


def test_checks_and_growths() -> None:
    tables = summarised([run(), stored_runs.theory("sgd"), stored_runs.facts("mnist")]).tables
    gain = csv_rows(tables["check"])[-1]
    assert (gain["dataset"], gain["measure"], gain["verdict"]) == ("MNIST", "gain at the optimum", "agrees")
    assert gain["steps"] == gain["sampler"] == ""
    (growth,) = csv_rows(tables["theory"])
    assert float(growth["slope"]) == pytest.approx(0.6) and growth["bound"] == "2/3"


def test_runs_that_all_diverged_are_in_the_check() -> None:
    found = summarised([{**run(), "status": "diverged"}])
    assert list(found.tables) == ["check"] and found.panels == () and found.lead == ""
    assert {row["dataset"] for row in found.numbers["check"]} == {"mnist"}
    assert "0 of 10 runs; 1 diverged" in {row["note"] for row in found.numbers["check"]}


def test_no_record_no_summary() -> None:
    assert registry.get("paper").summarise([], 10) is None
