"""What agrees with the paper agrees, and what does not is named."""

from typing import Any

import pytest

from avare.experiments.checking import check, exit_code, published
from avare.experiments.reproduction import SETTINGS
from fabricated import as_published, run, table


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
    assert "missing" not in verdicts and "differs" not in verdicts


@pytest.mark.parametrize(
    ("measure", "sampler", "within", "beyond"),
    [
        ("relative_error", "Uniform", 10**0.149, 10**0.151),
        ("relative_error", "Avare", 10**-0.149, 10**-0.151),
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
    assert exit_code(rows) == 0  # the paper does not define it
    assert [row.ours for row in rows if row.measure == "smoothness_ratio"] == [99.0]


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


def test_avare_must_end_below_uniform_where_the_paper_does() -> None:
    for dataset, expected in (("mnist", 1), ("ijcnn1", 1), ("cifar10", 0)):
        records = list(as_published(1, [dataset]))
        which = {"dataset": dataset, "steps": "decreasing", "sampler": "Avare"}
        assert exit_code(check(changed(records, "suboptimality", 20.0, **which), [dataset], 1)) == expected


def test_missing_runs() -> None:
    assert exit_code(check([])) == 2
    assert {row.verdict for row in check([])} == {"missing"}
    records = list(as_published(2, ["mnist"]))
    assert exit_code(check(records, ["mnist"], runs=2)) == 0
    assert exit_code(check(records, ["mnist"], runs=3)) == 2
    assert exit_code(check(records[1:], ["mnist"], runs=2)) == 2
    assert exit_code(check(records[1:], ["mnist"], runs=1)) == 0
    assert exit_code(check(records, ["mnist", "ijcnn1"], runs=2)) == 2
    without_table = [record for record in records if "trace" in record]
    assert exit_code(check(without_table, ["mnist"], runs=2)) == 2
    differing = changed(records[1:], "regret", 9.0, dataset="mnist", sampler="Avare")
    assert exit_code(check(differing, ["mnist"], runs=2)) == 1  # which counts more than what is missing


def test_other_settings_do_not_count() -> None:
    for more in (
        {"epochs": 20},
        {"status": "diverged"},
        {"spec": {"batch_size": 64}},
        {"spec": {"experiment": "compare"}},
    ):
        records = [
            run(
                each["spec"]["dataset"],
                each["spec"]["steps"],
                each["spec"]["sampler"],
                each["spec"]["seed"],
                {},
                **more,
            )
            if "trace" in each
            else each
            for each in as_published(1, ["mnist"])
        ]
        assert exit_code(check(records, ["mnist"], 1)) == 2


def test_of_several_versions_the_latest_counts() -> None:
    old = list(as_published(2, ["mnist"]))
    where = {**old[0]["where"], "date": "2026-02-02"}
    new = [
        {**each, "where": where, "spec": {**each["spec"], "data_digest": "1"}}
        for each in changed(old, "regret", 9.0, sampler="Uniform", steps="constant")
    ]
    assert exit_code(check(old, ["mnist"], 2)) == 0
    assert exit_code(check([*new, *old], ["mnist"], 2)) == exit_code(check([*old, *new], ["mnist"], 2)) == 1
    assert exit_code(check([*old, new[0]], ["mnist"], 2)) == 2  # of the new data there are not enough


def test_a_suboptimality_of_nothing_and_a_value_that_is_none() -> None:
    records = changed(list(as_published(1, ["mnist"])), "suboptimality", 0.0, sampler="Avare")
    assert exit_code(check(records, ["mnist"], 1)) == 0
    for record in records:
        if "trace" in record:
            record["trace"]["regret"][-1] = None
    assert exit_code(check(records, ["mnist"], 1)) == 2


def test_every_setting_is_published() -> None:
    paper = published()
    assert set(paper["table"]) == set(paper["batch_size"]) == set(SETTINGS)
    assert {name: setting.batch_size for name, setting in SETTINGS.items()} == paper["batch_size"]
    assert "NeurIPS 2020" in paper["source"]
    row = check(as_published(1, ["mnist"]), ["mnist"], 1)[0]
    assert row.as_dict()["dataset"] == "mnist" and row.as_dict()["theirs"] == 0.61
