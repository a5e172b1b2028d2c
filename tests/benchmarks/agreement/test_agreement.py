"""What agrees with the paper agrees, and what does not is named; of what cannot be judged it says why."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from agreement import checking
from agreement.checking import Row, exit_code, published, tally
from avare.experiments.paper import SETTINGS
from stored_runs import PAPER, as_published, parsed, run
from stored_runs import facts as table

Cells = dict[tuple[str, str, str], Row]


def check(records: Iterable[dict[str, Any]], datasets: Sequence[str] = tuple(SETTINGS), runs: int = 10) -> list[Row]:
    return checking.check(parsed(records), datasets, runs)


def cells(rows: Iterable[Row]) -> Cells:
    return {(row.steps, row.sampler, row.measure): row for row in rows}


def changed(records: list[dict[str, Any]], measure: str, factor: float, **which: str) -> list[dict[str, Any]]:
    """The same with one measure of some runs multiplied."""
    found = []
    for record in records:
        if all(record["spec"].get(name) == value for name, value in which.items()) and "trace" in record:
            trace = record["trace"]
            record = {**record, "trace": {**trace, measure: [value * factor for value in trace[measure]]}}
        found.append(record)
    assert found != records
    return found


def test_the_papers_own_numbers_agree() -> None:
    rows = check(as_published(2), runs=2)
    assert exit_code(rows) == 0
    verdicts = [row.verdict for row in rows]
    # Relative errors 6 x 4, regrets 6 x 2, gains 3, orders of 7 figures, suboptimality of 2 x 2 + 1.
    assert verdicts.count("agrees") == 24 + 12 + 3 + 7 + 5
    # Suboptimalities 7 x 2, the synthetic regrets 4 and gain 1, smoothness ratios 4.
    assert verdicts.count("reported") == 14 + 4 + 1 + 4
    assert tally(rows) == {"agrees": 51, "differs": 0, "missing": 0}


@pytest.mark.parametrize(
    ("measure", "sampler", "within", "beyond"),
    [
        ("relative_error", "Uniform", 10**0.149, 10**0.151),
        ("relative_error", "Avare", 10**-0.149, 10**-0.151),
        ("relative_error", "Avare", 1.0, 1e-9),
        ("relative_error", "Mabs", 10**0.149, 10**0.151),
        ("regret", "Uniform", 1.29, 1.31),
        ("regret", "Uniform", 1 / 1.29, 1 / 1.31),
        ("regret", "Avare", 1.49, 1.51),
        ("regret", "Avare", 1 / 1.49, 1 / 1.51),
    ],
)
def test_tolerances(measure: str, sampler: str, within: float, beyond: float) -> None:
    records = list(as_published(2, ["ijcnn1"]))
    which = {"dataset": "ijcnn1", "steps": "constant", "sampler": sampler}
    if within != 1.0:
        assert exit_code(check(changed(records, measure, within, **which), ["ijcnn1"], 2)) == 0
    rows = check(changed(records, measure, beyond, **which), ["ijcnn1"], 2)
    assert exit_code(rows) == 1
    (row,) = [row for row in rows if row.verdict == "differs"]
    assert (row.steps, row.sampler, row.measure) == ("constant", sampler, measure)


@pytest.mark.parametrize(("dataset", "limit"), [("mnist", 0.01), ("ijcnn1", 0.01), ("cifar10", 0.03)])
def test_gains_of_the_table(dataset: str, limit: float) -> None:
    gain = published()["table"][dataset]["gain_at_optimum"]
    runs = [record for record in as_published(1, [dataset]) if "trace" in record]
    for part, expected in ((limit * 0.99, 0), (-limit * 0.99, 0), (limit * 1.01, 1), (-limit * 1.01, 1)):
        rows = check([*runs, table(dataset, gain_at_optimum=gain * (1 + part))], [dataset], 1)
        assert exit_code(rows) == expected
    rows = check([*runs, table(dataset, smoothness_ratio=99.0)], [dataset], 1)
    assert exit_code(rows) == 0
    ratio = cells(rows)["", "", "smoothness_ratio"]
    assert (ratio.ours, ratio.verdict, ratio.note) == (99.0, "reported", "the paper does not define its constants")


def test_facts_of_other_problems_are_not_the_papers() -> None:
    old, new = table("mnist", gain_at_optimum=1.0), table("mnist", gain_at_optimum=2.0)
    new["where"] = {**new["where"], "date": "2026-12-12"}
    other = table("mnist", spec={"l2": 9.0}, gain_at_optimum=3.0)
    other["where"] = {**new["where"], "date": "2027-01-01"}
    found = checking.facts(parsed([other, new, old]))
    assert {name: known["gain_at_optimum"] for name, known in found.items()} == {"mnist": 2.0}
    assert checking.facts(parsed([other])) == {}
    row = cells(check([other], ["mnist"]))["", "", "gain_at_optimum"]
    assert (row.ours, row.verdict, row.note) == (None, "missing", "not run")


def test_the_order_of_samplers() -> None:
    records = list(as_published(1, ["synthetic"]))
    which = {"dataset": "synthetic", "steps": "decreasing", "sampler": "Vrb"}
    assert exit_code(check(changed(records, "regret", 1.4, **which), ["synthetic"], 1)) == 0  # 2.8e4 to 3.92e4
    rows = check(changed(records, "regret", 1.5, **which), ["synthetic"], 1)
    (row,) = [row for row in rows if row.verdict == "differs"]
    assert row.theirs == "Uniform > Mabs > Vrb > Avare" and row.ours == "Uniform > Vrb > Mabs > Avare"
    # Of two that the paper shows as equal, either may be ahead.
    for factor in (0.9, 1.1):
        records = list(as_published(1, ["cifar10"]))
        which = {"dataset": "cifar10", "steps": "constant", "sampler": "Vrb"}
        rows = check(changed(records, "relative_error", factor, **which), ["cifar10"], 1)
        assert exit_code(rows) == 0
        assert "Uniform > Mabs = Vrb > Avare" in [row.theirs for row in rows]


def test_only_the_order_is_judged_on_the_synthetic_set() -> None:
    found = cells(check(as_published(1, ["synthetic"]), ["synthetic"], 1))
    assert found["decreasing", "all", "regret"].verdict == "agrees"
    for cell in (("decreasing", "Uniform", "regret"), ("", "", "gain_at_optimum")):
        row = found[cell]
        assert row.verdict == "reported" and row.note == "another draw of the data: only the order must hold"
        assert row.tolerance == ""


def test_an_order_with_missing_samplers() -> None:
    def order(records: Iterable[dict[str, Any]], runs: int = 1) -> Row:
        return cells(check(records, ["synthetic"], runs))["decreasing", "all", "regret"]

    records = {each["spec"].get("sampler"): each for each in as_published(1, ["synthetic"])}
    row = order([records["Avare"]])
    assert (row.ours, row.verdict, row.note) == ("Avare", "missing", "not run: Uniform, Mabs, Vrb")
    row = order([records["Avare"], run("synthetic", "Vrb", epochs=5)])
    assert row.ours == "Vrb > Avare" and row.verdict == "missing"
    assert row.note == "not run: Uniform, Mabs; run for 5 epochs, the paper for 100: Vrb"
    row = order([run("synthetic", sampler, epochs=5) for sampler in PAPER])
    assert row.ours == "Uniform > Mabs > Vrb > Avare" and row.verdict == "missing"
    assert row.note == "run for 5 epochs, the paper for 100"
    row = order([run("synthetic", "Osmd")])
    assert (row.ours, row.verdict, row.note) == (None, "missing", "not run")


def test_avare_must_end_below_uniform_if_it_does_in_the_paper() -> None:
    for dataset, expected in (("mnist", 1), ("ijcnn1", 1), ("cifar10", 0)):
        records = list(as_published(1, [dataset]))
        which = {"dataset": dataset, "steps": "decreasing", "sampler": "Avare"}
        assert exit_code(check(changed(records, "suboptimality", 20.0, **which), [dataset], 1)) == expected


def test_suboptimality_itself_is_not_judged() -> None:
    row = cells(check(as_published(1, ["mnist"]), ["mnist"], 1))["decreasing", "Avare", "suboptimality"]
    assert row.theirs == 1.9 and row.ours == pytest.approx(1.9 + math.log10(0.9))
    assert (row.verdict, row.tolerance, row.note) == ("reported", "", "")


def test_missing_runs() -> None:
    assert exit_code(check([])) == 2
    assert {(row.verdict, row.ours, row.note) for row in check([])} == {("missing", None, "not run")}
    records = list(as_published(2, ["mnist"]))
    assert exit_code(check(records, ["mnist"], runs=2)) == 0
    assert exit_code(check(records, ["mnist"], runs=3)) == 2
    assert exit_code(check(records[1:], ["mnist"], runs=2)) == 2
    assert exit_code(check(records[1:], ["mnist"], runs=1)) == 0
    assert exit_code(check(records, ["mnist", "ijcnn1"], runs=2)) == 2
    without_table = [record for record in records if "trace" in record]
    assert exit_code(check(without_table, ["mnist"], runs=2)) == 2
    differing = changed(records[1:], "regret", 9.0, dataset="mnist", sampler="Uniform")
    assert exit_code(check(differing, ["mnist"], runs=2)) == 1  # which counts more than what is missing


def test_too_few_runs_are_shown_and_not_judged() -> None:
    rows = check(as_published(2, ["mnist"]), ["mnist"], runs=3)
    row = cells(rows)["decreasing", "Avare", "regret"]
    assert row.ours == pytest.approx(0.15e12) and (row.verdict, row.note) == ("missing", "2 of 3 runs")
    assert row.tolerance == "factor 1.5"


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"epochs": 20}, "run for 20 epochs, the paper for 100"),
        ({"batch_size": 64}, "batches of 64, the paper's of 128"),
        ({"epochs": 20, "batch_size": 64}, "run for 20 epochs, the paper for 100; batches of 64, the paper's of 128"),
    ],
)
def test_other_settings_are_shown_and_not_judged(changes: dict[str, Any], note: str) -> None:
    records = [{**each, "spec": {**each["spec"], **changes}} for each in as_published(1, ["mnist"])]
    rows = check(records, ["mnist"], 1)
    assert exit_code(rows) == 2
    row = cells(rows)["decreasing", "Avare", "relative_error"]
    assert row.ours == pytest.approx(-1.0 + math.log10(0.9)) and (row.verdict, row.note) == ("missing", note)
    # As soon as there are runs of the paper's settings they count, though the others are newer.
    for record in records:
        record["where"] = {**record["where"], "date": "2027-01-01"}
    assert exit_code(check([*as_published(1, ["mnist"]), *records], ["mnist"], 1)) == 0


def test_comparisons_do_not_count() -> None:
    records = [
        {**each, "spec": {**each["spec"], "experiment": "compare"}} if "trace" in each else each
        for each in as_published(1, ["mnist"])
    ]
    row = cells(check(records, ["mnist"], 1))["decreasing", "Avare", "regret"]
    assert (row.ours, row.verdict, row.note) == (None, "missing", "not run")


def test_runs_that_diverged_do_not_count() -> None:
    records = list(as_published(2, ["mnist"]))
    diverged = [{**each, "status": "diverged"} if each["spec"].get("seed") == 1 else each for each in records]
    row = cells(check(diverged, ["mnist"], 2))["decreasing", "Avare", "regret"]
    assert row.ours == pytest.approx(0.9 * 0.15e12) and (row.verdict, row.note) == (
        "missing",
        "1 of 2 runs; 1 diverged",
    )
    assert exit_code(check(diverged, ["mnist"], 1)) == 0
    none = [{**each, "status": "diverged"} for each in records]
    row = cells(check(none, ["mnist"], 2))["decreasing", "Avare", "regret"]
    assert (row.ours, row.verdict, row.note) == (None, "missing", "0 of 2 runs; 2 diverged")


def test_of_several_versions_the_latest_counts() -> None:
    old = list(as_published(2, ["mnist"]))
    where = {**old[0]["where"], "date": "2026-12-12"}
    new = [
        {**each, "where": where, "spec": {**each["spec"], "data_digest": "1"}}
        for each in changed(old, "regret", 9.0, sampler="Uniform", steps="constant")
    ]
    assert exit_code(check(old, ["mnist"], 2)) == 0
    assert exit_code(check([*new, *old], ["mnist"], 2)) == exit_code(check([*old, *new], ["mnist"], 2)) == 1
    assert exit_code(check([*old, new[0]], ["mnist"], 2)) == 2  # of the new data there are not enough


def test_a_record_without_date_and_status() -> None:
    records = list(as_published(1, ["mnist"]))
    for record in records:
        del record["where"], record["status"]
    assert exit_code(check(records, ["mnist"], 1)) == 0


def test_a_suboptimality_of_nothing_and_a_value_that_is_none() -> None:
    records = changed(list(as_published(1, ["mnist"])), "suboptimality", 0.0, sampler="Avare")
    rows = check(records, ["mnist"], 1)
    assert exit_code(rows) == 0
    row = cells(rows)["decreasing", "Avare", "suboptimality"]
    assert row.ours == -math.inf and row.as_dict()["ours"] is None  # for which JSON has no word
    for record in records:
        if "trace" in record:
            record["trace"]["regret"][-1] = None
    rows = check(records, ["mnist"], 1)
    assert exit_code(rows) == 2 and cells(rows)["decreasing", "Avare", "regret"].note == "no number"


def test_every_setting_is_published() -> None:
    paper = published()
    assert set(paper["table"]) == set(paper["batch_size"]) == set(SETTINGS)
    assert {name: setting.batch_size for name, setting in SETTINGS.items()} == paper["batch_size"]
    assert "NeurIPS 2020" in paper["source"]
    row = check(as_published(1, ["mnist"]), ["mnist"], 1)[0]
    assert row.as_dict()["dataset"] == "mnist" and row.as_dict()["theirs"] == 0.61


def test_the_papers_numbers_are_whole() -> None:
    paper = published()
    assert set(paper["table"]) == {"mnist", "ijcnn1", "cifar10", "synthetic"}
    for by_dataset in paper["last_epoch"].values():
        for dataset, by_measure in by_dataset.items():
            assert dataset in paper["table"]
            for measure, by_sampler in by_measure.items():
                assert measure in ("relative_error", "suboptimality", "regret")
                assert {"Uniform", "Avare"} <= set(by_sampler)
                assert all(math.isfinite(value) for value in by_sampler.values())


def test_a_row_that_differs_has_the_known_reason() -> None:
    records = list(as_published())
    for record in records:
        if record["spec"]["experiment"] == "reproduce" and record["spec"]["sampler"] == "Avare":
            record["trace"]["relative_error"][-1] = 0.25
    notes = {row.steps: row.note for row in check(records, ["mnist"], 2) if row.verdict == "differs"}
    assert notes == {"decreasing": "", "constant": published()["doubts"]["mnist constant Avare"]}
