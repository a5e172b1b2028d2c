"""The report on stored runs on nets: which runs are shown, and what figures, tables and page show."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avare.experiments import report
from avare.experiments.report.charts import lay_out
from avare.experiments.report.writing import gather as gather_store
from avare.experiments.store import Result, key_of
from avare.plotting.charts import drawing, styles_of
from nets import NetsExperiment
from nets.figures import QUESTIONS, NetCharts
from nets.results import NetResults, gather, reached
from nets.tables import net_tables
from stored_nets import MODELS, SAMPLERS, grid_runs, net_run, net_runs
from stored_runs import put, run


def parse(record: dict[str, Any]) -> Result:
    return NetsExperiment().parse(record)


def nets_of(records: list[dict[str, Any]]) -> NetResults:
    found = gather([parse(record) for record in records])
    assert found is not None
    return found


@pytest.fixture(scope="module")
def whole() -> NetResults:
    return nets_of(net_runs())


# --- what is shown --------------------------------------------------------------------------


def test_runs_that_differ_by_their_seed_are_one_group() -> None:
    records = [net_run(seed=seed) for seed in (3, 1, 2)]
    records.append(net_run(seed=1, sampler="DataLoader", status="diverged"))
    nets = nets_of(records)
    ours, uniform = nets.groups
    assert ours.seeds == (1, 2, 3) and uniform.diverged == 1 and ours.diverged == 0
    losses = [record["trace"]["loss"][-1] for record in records[:3]]
    assert ours.last("loss") == pytest.approx(np.mean(losses))
    assert ours.error("loss") == pytest.approx(np.std(losses, ddof=1) / math.sqrt(3))
    assert math.isnan(uniform.error("loss")) and math.isnan(uniform.last("loss"))
    assert nets.best("mnist-mlp", "DataLoader") is None and nets.best("mnist-mlp", "Calibrated") is ours
    steps = 8 * 1600 / 16
    assert ours.step_seconds == pytest.approx(records[0]["trace"]["seconds"][-1] / steps)
    assert nets.models == {"mnist-mlp": "MLP on MNIST"} and nets.samplers == ["Calibrated", "DataLoader"]
    assert nets.seconds == pytest.approx(4 * 4.0)


def test_the_best_of_all_settings() -> None:
    settings = ((16, 0.1, 1.0), (32, 0.2, 3.0), (64, 0.4, 2.0))
    nets = nets_of([net_run(speed=speed, batch_size=size, step=step) for size, step, speed in settings])
    best = nets.best("mnist-mlp", "Calibrated")
    assert best is not None and (best["batch_size"], best["step"]) == (32, 0.2)


def test_of_several_setups_the_one_with_most_runs_is_shown() -> None:
    quick = [net_run(seed=seed, data_digest="quick", examples=100) for seed in (1, 2)]
    full = [net_run(seed=seed) for seed in (1, 2, 3)]
    longer = [net_run(seed=1, epochs=99)]
    nets = nets_of([*quick, *full, *longer])
    (group,) = nets.groups
    assert group.seeds == (1, 2, 3) and nets.left_out == 3 and nets.records == 3
    equal = nets_of([net_run(seed=1), net_run(seed=1, epochs=9)])
    assert equal.groups[0].spec["epochs"] == 9


def test_of_several_plans_one_is_shown() -> None:
    # Other options of a sampler, or the best step of another grid, are not settings of the same sampler.
    older, newer = ({"kind": "Calibrated", "options": {"p_min": floor}} for floor in (0.0, 0.1))
    records = [net_run(seed=seed, loader=older, speed=9.0) for seed in (1, 2, 3)]
    records += [net_run(seed=seed, loader=newer, step=0.2) for seed in (1, 2, 3)]
    for record in records[3:]:
        record["where"] = {**record["where"], "date": "2026-12-01T00:00:00+00:00"}
    nets = nets_of(records)
    (group,) = nets.groups
    assert group["loader"] == newer and group["step"] == 0.2 and nets.left_out == 3
    (group,) = nets_of(records[:5]).groups
    assert group["loader"] == older and group["step"] == 0.1
    of_grid = [
        net_run(part="grid", checkpoints=1, step=step, loader=loader)
        for step, loader in ((0.1, older), (0.2, older), (0.4, older), (0.1, newer))
    ]
    assert [group["step"] for group in nets_of(of_grid).groups] == [0.1, 0.2, 0.4]


def test_a_store_without_nets_shows_none(tmp_path: Path) -> None:
    assert "nets" not in gather_store(put(tmp_path, [run(epochs=2)])).summaries
    assert gather([]) is None and NetsExperiment().summarise([parse(net_run(status="stopped"))]) is None


def test_names_of_nets() -> None:
    # Only names that are made of dataset and kind are written out.
    mine = nets_of([net_run("mine"), net_run("mnist-cnn"), net_run("other-net", network=None)])
    assert mine.models == {"mnist-cnn": "CNN on MNIST", "mine": "mine", "other-net": "other-net"}


def test_runs_that_diverged_are_shown() -> None:
    assert parse(net_run()).shown and parse(net_run(status="diverged")).shown
    assert not parse(net_run(status="stopped")).shown


def test_diverged_runs_are_shown_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    store = put(tmp_path, [net_run(seed=1, status="diverged"), net_run(seed=2, status="stopped")])
    contents = gather_store(store)
    (line,) = contents.summaries["nets"].numbers["nets"]["lines"]
    assert line["seeds"] == (1,) and line["diverged"] == 1
    (skipped,) = contents.skipped
    assert skipped == f"{key_of(net_run(seed=2)['spec'])}.json: status = 'stopped': the run has not finished"


# --- reaching a loss ------------------------------------------------------------------------


def test_reached() -> None:
    record = net_run(checkpoints=4, epochs=4)
    record["trace"]["loss"] = [8.0, 4.0, 2.0, 3.0, 1.0]
    (group,) = nets_of([record]).groups
    loss, seconds = group.mean("loss"), group.mean("seconds")
    assert reached(loss, 9.0, group.epochs) == 0.0
    assert reached(loss, 4.0, group.epochs) == 1.0
    assert reached(loss, 2.0 * math.sqrt(2.0), group.epochs) == pytest.approx(1.5)  # linear in the logarithm
    assert reached(loss, 1.0, group.epochs) == 4.0
    assert math.isnan(reached(loss, 0.5, group.epochs))
    assert reached(loss, 4.0, seconds) == pytest.approx(seconds[1])


# --- figures --------------------------------------------------------------------------------


def drawn(nets: NetResults) -> dict[str, Any]:
    found = NetCharts(nets).figures()
    styles = styles_of(chart for figure in found.values() for row in figure.rows for chart in row)
    with drawing():
        figures = {name: lay_out(figure, styles) for name, figure in found.items()}
        for figure in figures.values():
            figure.draw_without_rendering()
    return figures


@pytest.fixture(scope="module")
def pictures(whole: NetResults) -> dict[str, Any]:
    return drawn(whole)


def test_a_figure_for_each_question(pictures: dict[str, Any]) -> None:
    assert set(pictures) == set(QUESTIONS)
    for name, figure in pictures.items():
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert all(not box.overlaps(axis.get_tightbbox()) for axis in figure.axes)
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 + 1
        assert figure.get_suptitle() == QUESTIONS[name]
    titles = [axis.get_title() for axis in pictures["nets-faster"].axes[:4]]
    assert titles == ["MLP on MNIST", "CNN on MNIST", "MLP on IJCNN1", "CNN on CIFAR10"]
    assert len(pictures["nets-step-and-batch"].axes) == 3 * 4 and len(pictures["nets-parts"].axes) == 2 * 3
    labels = [text.get_text() for text in pictures["nets-faster"].legends[0].get_texts()]
    assert labels[0] == "Calibrated" and labels[-2:] == ["DataLoader", "possible, with Calibrated"] and len(labels) == 7


def test_lines_are_those_of_the_best_settings(whole: NetResults, pictures: dict[str, Any]) -> None:
    axis = pictures["nets-faster"].axes[0]
    best = whole.best("mnist-mlp", "Calibrated")
    assert best is not None
    first = axis.lines[0]
    assert first.get_ydata().tolist() == best.mean("loss").tolist() and first.get_color() == "#D55E00"
    uniform = whole.best("mnist-mlp", "DataLoader")
    assert uniform is not None
    level = axis.lines[-1]
    assert list(level.get_ydata()) == [uniform.last("loss")] * 2
    seconds = pictures["nets-seconds"].axes[0].lines[0]
    assert seconds.get_xdata().tolist() == best.mean("seconds").tolist()


def crosses_of(axis: Any) -> list[Any]:
    """The crosses on an axis, without the entry of the legend."""
    return [line for line in axis.lines if line.get_marker() == "x" and len(line.get_xdata())]


def test_what_diverged_is_marked(pictures: dict[str, Any]) -> None:
    crosses = crosses_of(pictures["nets-step-and-batch"].axes[0])
    assert len(crosses) == 2 and {line.get_color() for line in crosses} == {"#0072B2"}  # Avare, both batch sizes
    steps = [
        each
        for sampler in ("Calibrated", "Avare", "DataLoader")
        for each in grid_runs(sampler, [1.0], step=0.3, status="diverged") + grid_runs(sampler, [1.0])
    ]
    (axis,) = drawn(nets_of(steps))["nets-step-and-batch"].axes
    crosses = crosses_of(axis)
    assert len({float(line.get_xdata()[0]) for line in crosses}) == 3  # none hides another
    larger = pictures["nets-larger-step"].axes
    assert [len(crosses_of(axis)) for axis in larger] == [0, 0, 0, 1, 1, 1]


def test_diverged_variants_are_named() -> None:
    records = [
        net_run(sampler=name, part="parts", level="best", status=status)
        for name, status in (("calibrated", "finished"), ("remembered", "diverged"))
    ]
    found = drawn(nets_of(records))
    assert set(found) == {"nets-parts"}
    assert [text.get_text() for text in found["nets-parts"].axes[0].texts] == ["diverged"]


def test_unknown_variants_are_drawn_too() -> None:
    records = [net_run(sampler=name, part="parts", level="best") for name in ("calibrated", "mine", "by norm")]
    nets = nets_of(records)
    found = drawn(nets)
    assert set(found) == {"nets-parts"}
    assert [text.get_text() for text in found["nets-parts"].axes[0].get_yticklabels()] == [
        "calibrated",
        "by norm",
        "mine",
    ]
    shown = {curve.label for chart in NetCharts(nets).panel().charts for curve in chart.curves}
    assert shown == {"calibrated", "mine", "by norm"}
    assert len(net_tables(nets)["nets-parts"].rows) == 3


def test_a_label_has_one_style_on_figures_and_page(whole: NetResults) -> None:
    charts = NetCharts(whole)
    curves = [curve for chart in charts.panel().charts for curve in chart.curves]
    curves += [c for figure in charts.figures().values() for row in figure.rows for chart in row for c in chart.curves]
    looks: dict[str, set[Any]] = {}
    for curve in curves:
        assert curve.style is not None
        looks.setdefault(curve.label, set()).add((curve.style.colour, curve.style.marker))
    assert all(len(each) == 1 for each in looks.values())
    assert looks["calibrated"] == looks["Calibrated"] and looks["Calibrated"] != looks["Avare"]


def test_figures_and_tables_without_runs_are_left_out() -> None:
    only_grid = nets_of(grid_runs("DataLoader", [1.0]))
    assert set(drawn(only_grid)) == {"nets-step-and-batch"}
    assert set(net_tables(only_grid)) == {"nets-setups"}
    headings = [section.heading for section in NetCharts(only_grid).panel().sections]
    assert headings == [QUESTIONS["nets-step-and-batch"], "At the best settings"]
    lost = nets_of([net_run(status="diverged")])
    axis = drawn(lost)["nets-faster"].axes[0]
    assert [text.get_text() for text in axis.texts] == ["no values"]


# --- tables, page and numbers ---------------------------------------------------------------


def test_tables(whole: NetResults) -> None:
    found = net_tables(whole)
    assert list(found) == ["nets-setups", "nets-best", "nets-settings", "nets-parts"]
    best = found["nets-best"]
    assert len(best.rows) == len(MODELS) * len(SAMPLERS)
    row = dict(zip([column.name for column in best.columns], best.rows[0], strict=True))
    assert row["net"] == "MLP on MNIST" and row["sampler"] == "Calibrated" and row["runs"] == 3
    assert row["epochs_to_uniform"] == pytest.approx(0.5, abs=0.02)
    assert row["seconds_to_uniform"] == pytest.approx(0.62, abs=0.02)
    text = best.as_markdown()
    assert "| MLP on MNIST | Calibrated | SGD | 16 | constant | 0.1 | 3 | 0 |" in text and " % |" in text
    assert "| MLP on MNIST | mlp | 1\u202f600 | 100 | 2 | 8 | 8 |" in found["nets-setups"].as_markdown()
    assert len(net_tables(nets_of([net_run()]))["nets-best"].rows) == 1  # also without uniform runs
    (lost,) = net_tables(nets_of([net_run(status="diverged")]))["nets-best"].rows  # diverged samplers are listed too
    assert lost[1] == "Calibrated" and lost[7] == 1 and math.isnan(lost[8])


@pytest.mark.usefixtures("no_pictures")
def test_the_page_and_the_numbers(tmp_path: Path) -> None:
    store = put(tmp_path / "store", [*net_runs(["mnist-mlp", "cifar10-cnn"]), net_run(data_digest="other")])
    index = report.write(store, tmp_path / "out")
    text = index.read_text().split("<script")[0]
    assert ">Nets</button>" in text and "runs on 2 nets, 2026-11-16." in text
    for question in QUESTIONS.values():
        assert question in text
    assert "runs of other setups, left out" in text and "Each sampler at its best setting" in text
    numbers = json.loads((index.parent / "numbers.json").read_text())["nets"]
    assert numbers["left_out"] == 1 and numbers.keys() == {"lines", "left_out"}
    assert {path.suffix for path in (index.parent / "figures").iterdir()} == {".png", ".svg"}
    assert (index.parent / "tables" / "nets-best.csv").read_text().startswith("net,sampler,optimiser,batch_size")


@pytest.mark.usefixtures("no_pictures")
def test_a_page_of_nets_beside_others(tmp_path: Path) -> None:
    records = [run(epochs=2), net_run(sampler="DataLoader"), net_run()]
    text = report.write(put(tmp_path / "store", records), tmp_path / "out").read_text().split("<script")[0]
    assert "1 run on 1 dataset; " in text and "2 runs on 1 net, 2026-11-16." in text
    assert QUESTIONS["nets-parts"] not in text


@pytest.mark.slow
def test_the_same_store_gives_the_same_files(tmp_path: Path) -> None:
    store = put(tmp_path / "store", [net_run(), net_run(sampler="DataLoader")])
    for name in ("one", "two"):
        report.write(store, tmp_path / name)
    first, second = (sorted((tmp_path / name / "figures").iterdir()) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second] and len(first) == 8
