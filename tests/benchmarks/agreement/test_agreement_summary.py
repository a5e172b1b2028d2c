"""What the paper's records show: Table 1, and its numbers next to ours."""

from typing import Any

import stored_runs
from avare.experiments import base
from avare.experiments.base import Summary
from stored_runs import csv_rows, parsed, run


def summarised(records: list[dict[str, Any]]) -> Summary:
    found = base.get("paper").summarise(parsed(records))
    assert found is not None
    return found


def test_table_one_has_theirs_next_to_ours() -> None:
    table = summarised([stored_runs.facts("mnist"), stored_runs.facts("ijcnn1")]).tables["table1"]
    found = {row["dataset"]: row for row in csv_rows(table)}
    assert list(found) == ["MNIST", "IJCNN1", "CIFAR10", "Synthetic"]
    mnist, absent = found["MNIST"], found["CIFAR10"]
    assert (mnist["gain_at_optimum_paper"], mnist["gain_at_optimum"], mnist["n"]) == ("5.08", "5.088", "60000")
    assert (mnist["smoothness_ratio_paper"], mnist["smoothness_ratio"]) == ("3.28", "3.36")
    assert (absent["gain_at_optimum_paper"], absent["gain_at_optimum"], absent["n"]) == ("1.14", "", "")


def test_the_papers_numbers_are_next_to_runs_with_its_settings_only() -> None:
    records = [run(epochs=4), run(batch_size=64), run(), run("synthetic"), run("synthetic", batch_size=128)]
    found = csv_rows(summarised(records).tables["reproduce"])
    beside = {row["dataset"]: (row["regret_paper"], row["suboptimality_paper"]) for row in found}
    assert beside == {
        "MNIST, batch_size = 128, epochs = 100": ("150000000000.0", "1.9"),
        "MNIST, batch_size = 64, epochs = 100": ("", ""),
        "MNIST, batch_size = 128, epochs = 4": ("", ""),
        "Synthetic, batch_size = 1": ("1000.0", "-2.6"),
        "Synthetic, batch_size = 128": ("", ""),
    }
    (short,) = csv_rows(summarised([run(epochs=4)]).tables["reproduce"])
    assert short["relative_error_log10"] and short["relative_error_paper"] == ""
    (osmd,) = csv_rows(summarised([run(sampler="Osmd")]).tables["reproduce"])
    assert osmd["regret_paper"] == "" and osmd["relative_error_paper"] == ""


def test_checks() -> None:
    tables = summarised([run(), stored_runs.facts("mnist")]).tables
    gain = csv_rows(tables["check"])[-1]
    assert (gain["dataset"], gain["measure"], gain["verdict"]) == ("MNIST", "gain at optimum", "agrees")
    assert gain["steps"] == gain["sampler"] == ""


def test_runs_that_all_diverged_are_in_the_check() -> None:
    found = summarised([{**run(), "status": "diverged"}])
    assert list(found.tables) == ["reproduce", "table1", "check"] and found.lead.startswith("0 runs")
    assert {row["dataset"] for row in found.numbers["check"]} == {"mnist"}
    assert "0 of 10 runs; 1 diverged" in {row["note"] for row in found.numbers["check"]}


def test_no_record_no_summary() -> None:
    assert base.get("paper").summarise([]) is None
