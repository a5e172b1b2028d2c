"""The aims on nets: how cells are judged, kept and read again, and that the kept tables can be read."""

import math
from pathlib import Path
from typing import Any

import pytest

import nets_aims
import nets_race
from nets import NetsExperiment, read_plan
from nets.results import NetResults, gather
from nets_aims import AIMS, CELLS, TALLY, cell_table, check_aims, read_cells, read_store, tally, tally_table
from stored_nets import grid_runs, net_run, net_runs
from stored_runs import put, run


def nets_of(records: list[dict[str, Any]]) -> NetResults:
    found = gather([NetsExperiment().parse(record) for record in records])
    assert found is not None
    return found


def test_not_worse_than_uniform() -> None:
    records = [
        *grid_runs("DataLoader", [1.0, 1.2, 1.1]),
        *grid_runs("Calibrated", [1.15, 1.25, 1.2]),  # worse, but not by two standard errors of both
        *grid_runs("DataLoader", [1.0, 1.02, 1.01], step=0.2),
        *grid_runs("Calibrated", [1.1, 1.12, 1.11], step=0.2),  # worse by more than that
        *grid_runs("DataLoader", [2.5, 2.6, 9.0], step=0.3),  # does not converge
        *grid_runs("Calibrated", [0.1, 0.1, 0.1], step=0.3),
        *grid_runs("DataLoader", [1.0, 1.0, 1.0], step=0.4),
        *grid_runs("Calibrated", [1.0, 1.0], step=0.4),
        *grid_runs("Calibrated", [1.0], step=0.4, first=2, status="diverged"),
        *grid_runs("DataLoader", [1.0], step=0.5),
        *grid_runs("Calibrated", [2.0], step=0.5),
        *grid_runs("DataLoader", [1.0], step=0.6),  # there is nothing to compare it with
        *grid_runs("DataLoader", [2.2, 2.2, 2.2], step=0.7),  # below its start, but not much better than guessing
        *grid_runs("Calibrated", [2.2, 2.2, 2.2], step=0.7),
    ]
    found = {(cell.setting.split()[1], cell.measure): cell for cell in check_aims(nets_of(records))}
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
def test_uniforms_final_loss_sooner(model: str, speed: float, verdicts: dict[str, bool | None]) -> None:
    # A step of ours takes 1.25 times as long as a uniform one, and the loss decreases exponentially.
    nets = nets_of([net_run(model, "DataLoader", speed=1.0), net_run(model, "Calibrated", speed=speed)])
    found = {cell.measure: cell for cell in check_aims(nets) if cell.aim == AIMS[1]}
    assert {measure: cell.holds for measure, cell in found.items()} == verdicts
    assert found["seconds"].note == ("" if speed > 1.0 else "not reached")
    if speed > 1.0:
        assert found["seconds"].ours / found["seconds"].uniform == pytest.approx(1.25 / speed, rel=0.05)


def test_gain_near_the_best() -> None:
    record = net_run(checkpoints=4)
    record["trace"]["possible"] = [9.0, 2.9, 4.0, 10.0, 12.0]
    record["trace"]["gain"] = [1.0, 1.0, 2.5, 4.0, 7.0]
    never = net_run(checkpoints=4, optimiser="adamw")
    never["trace"]["possible"] = [1.0, 1.5, 2.0, 2.5, 2.9]
    bad, unknown = [cell for cell in check_aims(nets_of([record, never])) if cell.aim == AIMS[2]]
    assert bad.holds is False and bad.ours == pytest.approx(2.5) and bad.uniform == pytest.approx(10.0)
    assert bad.note == "epoch 6; within it at 2 of 3 checkpoints"
    assert unknown.holds is None and unknown.note == "the possible gain is below 3"
    record["trace"]["gain"] = [1.0, 1.0, 2.5, 5.0, 7.0]
    (good,) = [cell for cell in check_aims(nets_of([record])) if cell.aim == AIMS[2]]
    assert good.holds is True and good.ours == pytest.approx(2.0)


# --- tables ---------------------------------------------------------------------------------


def test_kept_cells_are_read_as_they_were_written(tmp_path: Path) -> None:
    cells = check_aims(nets_of(net_runs(["mnist-mlp"])))
    (tmp_path / "cells.md").write_text(cell_table(cells).as_markdown())
    again = read_cells(tmp_path / "cells.md")
    assert [(c.aim, c.net, c.setting, c.measure, c.holds, c.note) for c in again] == [
        (c.aim, c.net, c.setting, c.measure, c.holds, c.note) for c in cells
    ]
    for ours, theirs in zip(again, cells, strict=True):  # tables have three digits
        assert ours.ours == pytest.approx(theirs.ours, rel=0.005, nan_ok=True)
        assert ours.limit == pytest.approx(theirs.limit, rel=0.005, nan_ok=True)
    assert nets_aims._number("1.20 × 10⁻⁵") == pytest.approx(1.2e-5)


def test_the_results_in_the_repository_can_be_read() -> None:
    cells = read_cells(CELLS)
    assert TALLY.read_text() == tally_table(cells).as_markdown()
    assert [tally(cells, aim) for aim in AIMS] == [(240, 250), (1, 7), (0, 18)]
    stored = nets_race._stored(seed=0)
    assert {record["spec"]["model"] for record in stored} == set(read_plan().models)
    best = nets_race._best(stored, "mnist-mlp", "DataLoader")
    assert (best["optimiser"], best["batch_size"], best["rule"], best["step"]) == ("sgd", 16, "constant", 0.3)


def test_the_script_judges_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = put(tmp_path / "store", [run(epochs=2), net_run(sampler="DataLoader"), net_run(speed=4.0)])
    monkeypatch.setattr(nets_aims, "TALLY", tmp_path / "tally.md")
    monkeypatch.setattr(nets_aims, "CELLS", tmp_path / "cells.md")
    monkeypatch.setattr("sys.argv", ["nets_aims.py", "--store", str(store), "--save"])
    nets_aims.main()
    printed = capsys.readouterr().out
    assert "| uniform's final loss sooner | MLP on MNIST | 2 | 2 | yes |" in printed
    assert len(read_cells(tmp_path / "cells.md")) == 3 and (tmp_path / "tally.md").read_text() in printed
    monkeypatch.setattr("sys.argv", ["nets_aims.py"])
    nets_aims.main()
    assert (tmp_path / "tally.md").read_text() in capsys.readouterr().out
    with pytest.raises(ValueError, match="holds no runs on nets"):
        read_store(put(tmp_path / "other", [run(epochs=2)]))
