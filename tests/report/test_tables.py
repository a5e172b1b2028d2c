"""Tables as CSV, Markdown and HTML."""

import csv
import io
import math
from pathlib import Path

import pytest

import stored_runs
from avare.experiments import published
from avare.report import tables
from avare.report.results import gather
from avare.report.tables import Column, Table
from stored_runs import put, run


def rows(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.csv())))


SMALL = Table(
    "A <caption>",
    (
        Column("name", "name"),
        Column("n", "N", "integer"),
        Column("x", "x", "number"),
        Column("ratio", "ratio", "ratio"),
        Column("big", "big", "power"),
        Column("time", "time", "seconds"),
        Column("yes", "yes?", "answer"),
        Column("verdict", "verdict"),
        Column("detail", "", "detail"),
        Column("note", "note"),
    ),
    (
        ("a|b <c>", 60000, -1.2345, 5.0876, 1.69e10, 12.345, True, "agrees", 0.1, "n"),
        ("d", None, math.nan, 2500.0, 0.002, 1234.5, False, "differs", 1, ""),
        ("e", 1, "one > two", 1.0, 1.0, 0.001, None, "missing", 1.0, None),
        ("f", 1, -math.inf, 1.0, 1.0, 1.0, None, "", 1.0, None),
    ),
)


def test_csv_has_all_digits_and_all_columns() -> None:
    assert SMALL.csv().splitlines() == [
        "name,n,x,ratio,big,time,yes,verdict,detail,note",
        "a|b <c>,60000,-1.2345,5.0876,16900000000.0,12.345,yes,agrees,0.1,n",
        "d,,,2500.0,0.002,1234.5,no,differs,1,",
        "e,1,one > two,1.0,1.0,0.001,,missing,1.0,",
        "f,1,,1.0,1.0,1.0,,,1.0,",
    ]


def test_markdown_is_rounded_and_aligned() -> None:
    assert SMALL.markdown().splitlines() == [
        "A <caption>",
        "",
        "| name | N | x | ratio | big | time | yes? | verdict | note |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |",
        "| a\\|b <c> | 60\u202f000 | −1.23 | 5.088 | 1.69 × 10¹⁰ | 12.3 | yes | agrees | n |",
        "| d | – | – | 2.50 × 10³ | 2.00 × 10⁻³ | 1234 | no | differs | – |",
        "| e | 1 | one > two | 1.000 | 1.00 × 10⁰ | 0.001 | – | missing | – |",
        "| f | 1 | – | 1.000 | 1.00 × 10⁰ | 1 | – | – | – |",
    ]


def test_html_is_escaped_and_marks_the_verdicts() -> None:
    text = SMALL.html()
    assert "<caption>A &lt;caption&gt;</caption>" in text and "a|b &lt;c&gt;" in text
    assert '<span class="yes">agrees</span>' in text and '<span class="no">differs</span>' in text
    assert "<td>missing</td>" in text and "<td>yes</td>" in text
    assert '<td class="words">one &gt; two</td>' in text
    assert '<th scope="col" class="number">N</th>' in text and "detail" not in text


def test_columns_can_be_left_out() -> None:
    assert SMALL.without("name", "note").csv().splitlines()[0] == "n,x,ratio,big,time,yes,verdict,detail"


def test_table_one_has_theirs_beside_ours(tmp_path: Path) -> None:
    results = gather(put(tmp_path, [stored_runs.facts("mnist"), stored_runs.facts("ijcnn1")]))
    found = {row["dataset"]: row for row in rows(tables.table_one(results, published()))}
    assert list(found) == ["MNIST", "IJCNN1", "CIFAR10", "Synthetic"]
    mnist, absent = found["MNIST"], found["CIFAR10"]
    assert (mnist["gain_at_optimum_paper"], mnist["gain_at_optimum"], mnist["n"]) == ("5.08", "5.088", "60000")
    assert (mnist["smoothness_ratio_paper"], mnist["smoothness_ratio"]) == ("3.28", "3.36")
    assert (absent["gain_at_optimum_paper"], absent["gain_at_optimum"], absent["n"]) == ("1.14", "", "")


def test_the_last_epoch(tmp_path: Path) -> None:
    records = [run(sampler=sampler, seed=seed) for sampler in ("Avare", "Osmd") for seed in range(3)]
    results = gather(put(tmp_path, records))
    avare, osmd = rows(tables.last_epoch(results.groups, published()))
    assert (avare["dataset"], avare["steps"], avare["sampler"]) == ("MNIST", "decreasing", "Avare")
    assert avare["runs"] == "3" and float(avare["epoch"]) == 100
    assert float(avare["relative_error_log10"]) == pytest.approx(-1.0)
    assert float(avare["relative_error_deviation"]) == pytest.approx(0.01)
    assert float(avare["regret"]) == pytest.approx(1.5e11) and float(avare["regret_paper"]) == 0.15e12
    assert float(avare["suboptimality_log10_paper"]) == 1.9
    assert osmd["sampler"] == "Osmd" and osmd["regret_paper"] == "" and osmd["relative_error_log10_paper"] == ""
    without = rows(tables.last_epoch(results.groups, None))
    assert not any(name.endswith("paper") for name in without[0])


def test_the_papers_numbers_stand_beside_runs_like_its_own_only(tmp_path: Path) -> None:
    records = [run(epochs=4), run(batch_size=64), run(), run("synthetic"), run("synthetic", batch_size=128)]
    found = rows(tables.last_epoch(gather(put(tmp_path, records)).groups, published()))
    beside = {row["dataset"]: (row["regret_paper"], row["suboptimality_log10_paper"]) for row in found}
    assert beside == {
        "MNIST, batches of 128, 100 epochs": ("150000000000.0", "1.9"),
        "MNIST, batches of 64, 100 epochs": ("", ""),
        "MNIST, batches of 128, 4 epochs": ("", ""),
        "Synthetic, batches of 1": ("1000.0", "-2.6"),
        "Synthetic, batches of 128": ("", ""),
    }
    (short,) = rows(tables.last_epoch(gather(put(tmp_path / "short", [run(epochs=4)])).groups, published()))
    assert short["relative_error_log10"] and short["relative_error_log10_paper"] == ""


def test_checks_and_times_and_growths(tmp_path: Path) -> None:
    records = [run(options={"c": 0.12345, "list": list(range(100))}), stored_runs.theory("sgd")]
    records += [stored_runs.facts("mnist"), run(sampler="Uniform", options=None)]
    results = gather(put(tmp_path, records))
    gain = rows(tables.checks(results.checks))[-1]
    assert (gain["dataset"], gain["measure"], gain["verdict"]) == ("MNIST", "gain at the optimum", "agrees")
    assert gain["steps"] == gain["sampler"] == ""
    avare, uniform = rows(tables.times(results.groups[0]))
    assert (avare["seconds_steps"], avare["seconds_evaluation"], avare["replacement"]) == ("12.3", "4.5", "yes")
    assert avare["options"].startswith("c = 0.1235, list = [0, 1, 2") and avare["options"].endswith("…")
    assert uniform["options"] == ""
    (growth,) = rows(tables.growths(results))
    assert float(growth["slope"]) == pytest.approx(0.6) and growth["bound"] == "2/3"
