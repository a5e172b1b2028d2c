"""What is made of stored runs on nets: which are shown, what the figures show, and how the aims are judged."""

import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from avare.experiments.nets.aims import AIMS, check_aims, tally
from avare.experiments.nets.summary import Nets, reached
from avare.report.records import RecordError, parse
from avare.report.results import gather

import avare.report
from avare.experiments.nets import figures as net_figures
from avare.experiments.nets import tables as net_tables
from avare.experiments.store import key_of
from avare.report import figures
from stored_nets import MODELS, SAMPLERS, net_run, net_runs
from stored_runs import put, run


def nets_of(folder: Path, records: list[dict[str, Any]]) -> Nets:
    found = gather(put(folder, records)).nets
    assert found is not None
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Nets:
    return nets_of(tmp_path_factory.mktemp("nets"), net_runs())


# --- what is shown --------------------------------------------------------------------------


def test_runs_that_differ_by_their_seed_are_one_line(tmp_path: Path) -> None:
    records = [net_run(seed=seed) for seed in (3, 1, 2)]
    records.append(net_run(seed=1, sampler="DataLoader", status="diverged"))
    nets = nets_of(tmp_path, records)
    ours, uniform = nets.lines
    assert ours.seeds == (1, 2, 3) and uniform.diverged == 1 and ours.diverged == 0
    losses = [record["trace"]["loss"][-1] for record in records[:3]]
    assert ours.last("loss") == pytest.approx(np.mean(losses))
    assert ours.error("loss") == pytest.approx(np.std(losses, ddof=1) / math.sqrt(3))
    assert math.isnan(uniform.error("loss")) and math.isnan(uniform.last("loss"))
    assert nets.best("mnist-mlp", "DataLoader") is None and nets.best("mnist-mlp", "Calibrated") is ours
    steps = 8 * 1600 / 16
    assert ours.step_seconds == pytest.approx(records[0]["trace"]["seconds"][-1] / steps)
    assert ours.setting == "SGD 0.1 constant, batches of 16"
    assert nets.models == ["mnist-mlp"] and nets.samplers == ["Calibrated", "DataLoader"]
    assert nets.seconds == pytest.approx(4 * 4.0)


def test_the_best_of_all_settings(tmp_path: Path) -> None:
    settings = ((16, 0.1, 1.0), (32, 0.2, 3.0), (64, 0.4, 2.0))
    nets = nets_of(tmp_path, [net_run(speed=speed, batch_size=size, step=step) for size, step, speed in settings])
    best = nets.best("mnist-mlp", "Calibrated")
    assert best is not None and (best.batch_size, best.step) == (32, 0.2)


def test_of_several_setups_the_larger_is_shown(tmp_path: Path) -> None:
    quick = [net_run(seed=seed, data_digest="quick", examples=100) for seed in (1, 2)]
    full = [net_run(seed=seed) for seed in (1, 2, 3)]
    longer = [net_run(seed=1, epochs=99)]
    nets = nets_of(tmp_path, [*quick, *full, *longer])
    (line,) = nets.lines
    assert line.seeds == (1, 2, 3) and nets.left_out == 3 and nets.records == 3
    equal = nets_of(tmp_path / "equal", [net_run(seed=1), net_run(seed=1, epochs=9)])
    assert equal.lines[0].spec["epochs"] == 9


def test_of_several_plans_one_is_shown(tmp_path: Path) -> None:
    # The same samplers by other options, or at the step that was the best of another grid, are not settings of one.
    older, newer = ({"kind": "Calibrated", "options": {"p_min": floor}} for floor in (0.0, 0.1))
    records = [net_run(seed=seed, loader=older, speed=9.0) for seed in (1, 2, 3)]
    records += [net_run(seed=seed, loader=newer, step=0.2) for seed in (1, 2, 3)]
    for record in records[3:]:
        record["where"] = {**record["where"], "date": "2026-12-01T00:00:00+00:00"}
    nets = nets_of(tmp_path, records)
    (line,) = nets.lines
    assert line.spec["loader"] == newer and line.step == 0.2 and nets.left_out == 3
    (line,) = nets_of(tmp_path / "fewer", records[:5]).lines
    assert line.spec["loader"] == older and line.step == 0.1
    of_grid = [
        net_run(part="grid", checkpoints=1, step=step, loader=loader)
        for step, loader in ((0.1, older), (0.2, older), (0.4, older), (0.1, newer))
    ]
    assert [line.step for line in nets_of(tmp_path / "grid", of_grid).lines] == [0.1, 0.2, 0.4]


def test_a_store_without_nets_has_none(tmp_path: Path) -> None:
    assert gather(put(tmp_path, [run(epochs=2)])).nets is None


def test_records_of_nets_are_checked() -> None:
    sound = net_run()
    assert parse(sound).status == "finished"
    assert parse(net_run(status="diverged")).status == "diverged"
    for change, message in (
        ({"model": 3}, r"spec\['model'\] = 3: must be text"),
        ({"batch_size": None}, "spec lacks 'batch_size'"),
        ({"seed": 1.5}, r"spec\['seed'\] = 1.5"),
    ):
        with pytest.raises(RecordError, match=message):
            parse({**sound, "spec": {**sound["spec"], **change}})
    trace = {name: values for name, values in sound["trace"].items() if name != "gain"}
    with pytest.raises(RecordError, match="trace lacks 'gain'"):
        parse({**sound, "trace": trace})


def test_runs_that_diverged_are_shown_and_others_that_have_not_finished_are_named(tmp_path: Path) -> None:
    store = put(tmp_path, [net_run(seed=1, status="diverged"), net_run(seed=2, status="stopped")])
    results = gather(store)
    assert results.nets is not None
    (line,) = results.nets.lines
    assert line.seeds == (1,) and line.diverged == 1
    (skipped,) = results.skipped
    assert skipped.name == f"{key_of(net_run(seed=2)['spec'])}.json"
    assert skipped.reason == "status = 'stopped': the run has not finished"


# --- where a loss is reached ----------------------------------------------------------------


def test_reached(tmp_path: Path) -> None:
    record = net_run(checkpoints=4, epochs=4)
    record["trace"]["loss"] = [8.0, 4.0, 2.0, 3.0, 1.0]
    (line,) = nets_of(tmp_path, [record]).lines
    loss = line.mean("loss")
    assert reached(loss, 9.0, line.epochs) == 0.0
    assert reached(loss, 4.0, line.epochs) == 1.0
    assert reached(loss, 2.0 * math.sqrt(2.0), line.epochs) == pytest.approx(1.5)  # straight in the logarithm
    assert reached(loss, 1.0, line.epochs) == 4.0
    assert math.isnan(reached(loss, 0.5, line.epochs))
    assert reached(loss, 4.0, line.mean("seconds")) == pytest.approx(line.mean("seconds")[1])


# --- the aims -------------------------------------------------------------------------------


def grid(
    sampler: str, losses: list[float], step: float = 0.1, *, first: int = 0, status: str = "finished"
) -> list[dict[str, Any]]:
    records = []
    for seed, loss in enumerate(losses, start=first):
        record = net_run(sampler=sampler, seed=seed, part="grid", checkpoints=1, step=step, status=status)
        if record["status"] == "finished":
            record["trace"]["loss"] = [2.3, loss]
            record["trace"]["test_error"] = [0.9, loss / 10]
        records.append(record)
    return records


def test_not_worse_than_uniform(tmp_path: Path) -> None:
    records = [
        *grid("DataLoader", [1.0, 1.2, 1.1]),
        *grid("Calibrated", [1.15, 1.25, 1.2]),  # worse, but not by two standard errors of both
        *grid("DataLoader", [1.0, 1.02, 1.01], step=0.2),
        *grid("Calibrated", [1.1, 1.12, 1.11], step=0.2),  # worse by more
        *grid("DataLoader", [2.5, 2.6, 9.0], step=0.3),  # does not converge
        *grid("Calibrated", [0.1, 0.1, 0.1], step=0.3),
        *grid("DataLoader", [1.0, 1.0, 1.0], step=0.4),
        *grid("Calibrated", [1.0, 1.0], step=0.4),
        *grid("Calibrated", [1.0], step=0.4, first=2, status="diverged"),
        *grid("DataLoader", [1.0], step=0.5),
        *grid("Calibrated", [2.0], step=0.5),
        *grid("DataLoader", [1.0], step=0.6),  # and nothing to compare it with
        *grid("DataLoader", [2.2, 2.2, 2.2], step=0.7),  # below its start, but not much better than guessing
        *grid("Calibrated", [2.2, 2.2, 2.2], step=0.7),
    ]
    found = {(aim.setting.split()[1], aim.measure): aim for aim in check_aims(nets_of(tmp_path, records))}
    error = math.hypot(0.1, 0.05) / math.sqrt(3)
    near = found["0.1", "training loss"]
    assert near.holds is True and near.limit == pytest.approx(1.1 + 2 * error) and near.ours == pytest.approx(1.2)
    assert found["0.1", "test error"].holds is True
    assert found["0.2", "training loss"].holds is False and found["0.2", "test error"].holds is False
    assert found["0.3", "training loss"].holds is None and "does not converge" in found["0.3", "test error"].note
    assert found["0.4", "training loss"].holds is False and "1 of 3 runs diverged" in found["0.4", "test error"].note
    assert found["0.5", "training loss"].holds is None and found["0.5", "training loss"].note == "one seed only"
    assert ("0.6", "training loss") not in found
    assert found["0.7", "training loss"].holds is None
    assert tally(list(found.values()), AIMS[0]) == (2, 6)


@pytest.mark.parametrize(
    ("model", "speed", "verdicts"),
    [
        ("mnist-mlp", 3.0, {"epochs": True, "seconds": True}),
        ("mnist-mlp", 1.9, {"epochs": False, "seconds": False}),
        ("cifar10-cnn", 1.3, {"seconds": True}),
        ("cifar10-cnn", 1.1, {"seconds": False}),
        ("mnist-mlp", 0.9, {"epochs": False, "seconds": False}),
        ("other-net", 3.0, {"seconds": None}),
    ],
)
def test_uniforms_final_loss_sooner(tmp_path: Path, model: str, speed: float, verdicts: dict[str, bool | None]) -> None:
    # A step of ours takes 1.25 times as long as a uniform one, and the loss falls exponentially.
    nets = nets_of(tmp_path, [net_run(model, "DataLoader", speed=1.0), net_run(model, "Calibrated", speed=speed)])
    found = {aim.measure: aim for aim in check_aims(nets) if aim.aim == AIMS[1]}
    assert {measure: aim.holds for measure, aim in found.items()} == verdicts
    assert found["seconds"].note == ("" if speed > 1.0 else "not reached")
    if speed > 1.0:
        assert found["seconds"].ours / found["seconds"].uniform == pytest.approx(1.25 / speed, rel=0.05)


def test_gain_near_the_best(tmp_path: Path) -> None:
    record = net_run(checkpoints=4)
    record["trace"]["possible"] = [9.0, 2.9, 4.0, 10.0, 12.0]
    record["trace"]["gain"] = [1.0, 1.0, 2.5, 4.0, 7.0]
    never = net_run(checkpoints=4, optimiser="adamw")
    never["trace"]["possible"] = [1.0, 1.5, 2.0, 2.5, 2.9]
    bad, unknown = [aim for aim in check_aims(nets_of(tmp_path, [record, never])) if aim.aim == AIMS[2]]
    assert bad.holds is False and bad.ours == pytest.approx(2.5) and bad.uniform == pytest.approx(10.0)
    assert bad.note == "epoch 6; within it at 2 of 3 checkpoints"
    assert unknown.holds is None and unknown.note == "never 3 to gain"
    record["trace"]["gain"] = [1.0, 1.0, 2.5, 5.0, 7.0]
    (good,) = [aim for aim in check_aims(nets_of(tmp_path / "good", [record])) if aim.aim == AIMS[2]]
    assert good.holds is True and good.ours == pytest.approx(2.0)


# --- figures --------------------------------------------------------------------------------


def drawn(nets: Nets) -> dict[str, Any]:
    with matplotlib.rc_context(figures.SETTINGS):
        found = dict(net_figures.net_figures(nets))
        for figure in found.values():
            figure.draw_without_rendering()
    return found


def test_a_figure_for_each_question(whole: Nets) -> None:
    found = drawn(whole)
    assert set(found) == set(net_figures.QUESTIONS)
    for name, figure in found.items():
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert all(not box.overlaps(axis.get_tightbbox()) for axis in figure.axes)
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 + 1
        assert figure.get_suptitle() == net_figures.QUESTIONS[name]
    titles = [axis.get_title() for axis in found["nets-faster"].axes[:4]]
    assert titles == ["MLP on MNIST", "CNN on MNIST", "MLP on IJCNN1", "CNN on CIFAR10"]
    assert len(found["nets-step-and-batch"].axes) == 3 * 4 and len(found["nets-parts"].axes) == 2 * 3
    labels = [text.get_text() for text in found["nets-faster"].legends[0].get_texts()]
    assert labels[0] == "Calibrated" and labels[-1] == "possible, on Calibrated's way" and len(labels) == 7


def test_lines_are_those_of_the_best_settings(whole: Nets) -> None:
    axis = drawn(whole)["nets-faster"].axes[0]
    best = whole.best("mnist-mlp", "Calibrated")
    assert best is not None
    first = axis.lines[0]
    assert first.get_ydata().tolist() == best.mean("loss").tolist() and first.get_color() == "#D55E00"
    uniform = whole.best("mnist-mlp", "DataLoader")
    assert uniform is not None
    level = axis.lines[-1]
    assert list(level.get_ydata()) == [uniform.last("loss")] * 2
    seconds = drawn(whole)["nets-seconds"].axes[0].lines[0]
    assert seconds.get_xdata().tolist() == best.mean("seconds").tolist()


def test_what_diverged_is_marked(whole: Nets, tmp_path: Path) -> None:
    figure = drawn(whole)
    crosses = [line for line in figure["nets-step-and-batch"].axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == 2 and {line.get_color() for line in crosses} == {"#0072B2"}  # Avare, both batch sizes
    steps = [
        each
        for sampler in ("Calibrated", "Avare", "DataLoader")
        for each in grid(sampler, [1.0], step=0.3, status="diverged") + grid(sampler, [1.0])
    ]
    (axis,) = drawn(nets_of(tmp_path, steps))["nets-step-and-batch"].axes
    crosses = [line for line in axis.lines if line.get_marker() == "x"]
    assert len({float(line.get_xdata()[0]) for line in crosses}) == 3  # none hides another
    larger = figure["nets-larger-step"].axes
    assert [sum(line.get_marker() == "x" for line in axis.lines) for axis in larger] == [0, 0, 0, 1, 1, 1]


def test_diverged_variants_are_named(tmp_path: Path) -> None:
    records = [
        net_run(sampler=name, part="parts", level="best", status=status)
        for name, status in (("calibrated", "finished"), ("remembered", "diverged"))
    ]
    found = drawn(nets_of(tmp_path, records))
    assert set(found) == {"nets-parts"}
    assert [text.get_text() for text in found["nets-parts"].axes[0].texts] == ["diverged"]


def test_what_there_is_not_is_left_out(tmp_path: Path) -> None:
    only_grid = nets_of(tmp_path / "grid", grid("DataLoader", [1.0]))
    assert set(drawn(only_grid)) == {"nets-step-and-batch"}
    assert set(net_tables.all_tables(only_grid)) == {"nets-setups"}
    lost = nets_of(tmp_path / "lost", [net_run(status="diverged")])
    axis = drawn(lost)["nets-faster"].axes[0]
    assert [text.get_text() for text in axis.texts] == ["no values"]


# --- tables, page and numbers ---------------------------------------------------------------


def test_tables(whole: Nets) -> None:
    found = net_tables.all_tables(whole)
    assert list(found) == ["nets-setups", "nets-best", "nets-settings", "nets-parts", "nets-aims", "nets-aims-cells"]
    assert len(found["nets-best"].rows) == len(MODELS) * len(SAMPLERS)
    row = dict(zip([column.name for column in found["nets-best"].columns], found["nets-best"].rows[0], strict=True))
    assert row["net"] == "MLP on MNIST" and row["sampler"] == "Calibrated" and row["runs"] == 3
    assert row["epochs_to_uniform"] == pytest.approx(0.5, abs=0.02)
    assert row["seconds_to_uniform"] == pytest.approx(0.62, abs=0.02)
    text = found["nets-best"].markdown()
    assert "| MLP on MNIST | Calibrated | SGD | 16 | constant | 0.1 | 3 | 0 |" in text and " % |" in text
    assert len(found["nets-aims"].rows) == 3 * 4
    assert "| mlp |" in found["nets-setups"].markdown()


def test_the_page_and_the_numbers(tmp_path: Path) -> None:
    store = put(tmp_path / "store", [*net_runs(["mnist-mlp", "cifar10-cnn"]), net_run(data_digest="other")])
    index = avare.report.write(store, tmp_path / "out")
    text = index.read_text().split("<script")[0]
    assert ">Nets</button>" in text and "runs on 2 nets, 2026-11-16." in text
    for question in net_figures.QUESTIONS.values():
        assert question in text
    assert '<span class="no">no</span>' in text and '<span class="yes">yes</span>' in text
    assert "Cells that do not hold" in text and "runs of other setups, left out" in text
    numbers = json.loads((index.parent / "numbers.json").read_text())["nets"]
    assert numbers["left_out"] == 1 and {aim["aim"] for aim in numbers["aims"]} == set(AIMS)
    assert {path.suffix for path in (index.parent / "figures").iterdir()} == {".png", ".svg"}
    assert (index.parent / "tables" / "nets-aims-cells.csv").read_text().startswith("aim,net,setting,measure")


def test_a_page_of_nets_beside_others(tmp_path: Path) -> None:
    records = [run(epochs=2), net_run(sampler="DataLoader"), net_run()]
    text = avare.report.write(put(tmp_path / "store", records), tmp_path / "out").read_text().split("<script")[0]
    assert "1 run of 1 sampler on 1 dataset; 2 runs on 1 net, 2026-11-16." in text
    assert "Which part does it?" not in text


def test_all_aims_hold(tmp_path: Path) -> None:
    store = put(tmp_path / "store", [net_run(sampler="DataLoader"), net_run(speed=4.0)])
    text = avare.report.write(store, tmp_path / "out").read_text()
    assert "No cell that can be judged fails." in text


def test_the_same_store_gives_the_same_files(tmp_path: Path) -> None:
    results = gather(put(tmp_path / "store", [net_run(), net_run(sampler="DataLoader")]))
    first, second = (figures.draw(results, tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
