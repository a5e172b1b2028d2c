"""The experiment on loaders, on small data: every loader trains, runs repeat exactly, and seconds follow from pools."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # what follows imports it: hence the exemptions from E402

import loader_runs as loaders  # noqa: E402
import which_loader  # noqa: E402
from avare.experiments import datasets  # noqa: E402
from avare.experiments.base import Request  # noqa: E402
from avare.experiments.runner import execute  # noqa: E402
from avare.experiments.store import Store  # noqa: E402
from loader_runs import scripts, training  # noqa: E402
from nets.training import build  # noqa: E402


def digits(script: scripts.Script, folder: Any) -> tuple[Any, Any]:
    found = datasets.load("digits")
    count = sum(script.sizes)
    return (found.X[:count] / 16.0).astype(np.float32), found.y[:count].astype(np.int64)


def text(script: scripts.Script, folder: Any) -> tuple[Any, Any]:
    count = sum(script.sizes)
    return np.random.default_rng(0).integers(97, 123, (count, 64)), np.zeros(count, dtype=np.int64)


SMALL = {
    "digits": scripts.Script(
        "digits",
        "digits",
        (320, 64, 200),
        6,
        1,
        scripts.noisy,
        lambda: build({"kind": "mlp", "hidden": [16]}, (64,), 10),
        digits,
        cost_ratio=20.0,
    ),
    "text": scripts.Script(
        "text", "text", (256, 64, 64), 8, 1, scripts.windows, scripts.SmallTransformer, text, cost_ratio=20.0
    ),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (scripts, training):
        monkeypatch.setattr(module, "SCRIPTS", SMALL)


def run(script: str, loader: str, seed: int = 0) -> dict[str, Any]:
    data = SMALL[script].load(None)
    spec = {"script": script, "loader": loader, "rate": 0.01, "epochs": float(SMALL[script].epochs), "seed": seed}
    return training.train(spec, data.X, data.y)


@pytest.mark.parametrize("loader", loaders.COMPARED)
def test_runs_learn_and_repeat_exactly(loader: str) -> None:
    first, again = run("digits", loader), run("digits", loader)
    assert first["trace"] == again["trace"] and first["steps"] == 30
    assert first["trace"]["test_error"][0] < 0.6  # guessing has 0.9
    assert run("digits", loader, seed=1)["trace"] != first["trace"]
    assert (first["pools"] > 0) == (loader == "score")
    assert run("text", loader)["trace"]["train_loss"][0] < 4.2  # of 128 characters, guessing has 4.9


def test_images_are_moved_and_nothing_else() -> None:
    torch.manual_seed(0)
    images = torch.zeros(50, 2, 9, 9)
    images[:, 0, 4, 4], images[:, 1, 4, 5] = 1.0, 2.0
    moved = scripts.shifted(images, 2)
    assert moved.shape == images.shape and torch.equal(moved.sum(dim=(2, 3)), images.sum(dim=(2, 3)))
    places = moved[:, 0].flatten(1).argmax(dim=1)
    rows, columns = places // 9, places % 9
    assert {*rows.tolist()} == {*columns.tolist()} == {2, 3, 4, 5, 6}
    assert torch.equal(moved[:, 1].flatten(1).argmax(dim=1), places + 1)  # all channels alike


def test_texts_begin_at_random_places() -> None:
    torch.manual_seed(0)
    texts = torch.arange(64).expand(500, 64)
    found = scripts.windows(texts)
    assert found.shape == (500, 33) and torch.equal(found - found[:, :1], torch.arange(33).expand(500, 33))
    assert {*found[:, 0].tolist()} == {
        *range(32)
    }  # the last start leaves out one character: 64 - 33 + 1 starts less one


def test_the_experiment_searches_rates_and_then_runs_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "RATES", (1e-6, 0.01))
    monkeypatch.setattr(loaders, "SEEDS", (0, 1))
    experiment = loaders.LoadersExperiment()
    monkeypatch.setitem(SMALL, "text", SMALL["digits"])
    execute([experiment.stages(Request())], Store(tmp_path), jobs=1)
    found = which_loader.read(tmp_path)
    assert len(found["searched"]) == 2 * 2 * 2 and {run["rate"] for run in found["runs"]} == {0.01}
    assert {run["loader"] for run in found["runs"]} == {*loaders.COMPARED}
    assert len(found["runs"]) == 2 * 2 * (len(loaders.COMPARED) + 1)
    records = Store(tmp_path).read()[0]
    summary = experiment.summarise([experiment.parse(record) for record in records])
    assert summary is not None and len(summary.tables["loaders"].rows) == 2 * (len(loaders.COMPARED) + 1)


def test_seconds_and_errors_after_the_same_seconds() -> None:
    steps = dict.fromkeys(("DataLoader", "update", "InfoBatch", "no pool"), 1.0)
    steps |= {"Passes": 1.25, "pool 2": 2.0, "pool 4": 3.0}  # a pool of k batches: 1 + k / 2
    pooled = {"loader": "score", "steps": 10, "pools": 4, "scored": 4 * 3 * 64}
    assert which_loader.seconds_of(pooled, steps) == pytest.approx(6 * 1.0 + 4 * 2.5)

    runs = []
    for seed in range(3):
        for loader, epochs, loss, error in (
            ("DataLoader", 4.0, 0.4, 0.10),
            ("DataLoader", 6.0, 0.1, 0.06),
            *((name, 4.0, 0.1, 0.07) for name in loaders.COMPARED[1:]),
        ):
            row = {
                "script": "mlp",
                "loader": loader,
                "epochs": epochs,
                "seed": seed,
                "rate": 0.1,
                "pools": 0,
                "scored": 0,
            }
            row |= {"steps": 10 * epochs, "train_loss": loss, "test_error": error + 0.001 * seed, "test_f1": 0.5}
            runs.append(row)
    result = {"runs": runs, "seconds": {"steps": {"mlp": steps}}}
    script = which_loader.scripts_of(result)["mlp"]
    assert script.seconds("Passes") == pytest.approx(50.0)  # between 40 and 60 of the DataLoader
    assert script.uniform("Passes", "train_loss").mean == pytest.approx(math.sqrt(0.4 * 0.1))
    assert script.ratio("Passes", "train_loss") == pytest.approx(0.1 / 0.2)
    apart = script.difference("Passes", "test_error")
    assert apart.mean == pytest.approx(0.07 - 0.08)
    assert apart.error == pytest.approx(math.sqrt(2.0) * 0.001 / math.sqrt(3.0))
    assert script.ratio("update", "train_loss") == pytest.approx(0.25)
