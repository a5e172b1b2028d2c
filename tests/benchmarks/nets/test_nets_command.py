"""The command ``avare reproduce nets``."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from avare.experiments import base
from nets import NetsExperiment
from tiny_datasets import enter, mnist, write

pytestmark = pytest.mark.usefixtures("cache", "known")

PLAN = """
[networks.mnist-mlp]
dataset = "mnist"
kind = "mlp"
hidden = [4]
[samplers.DataLoader]
kind = "DataLoader"
[samplers.Calibrated]
kind = "Calibrated"
[full]
samplers = ["DataLoader", "Calibrated"]
optimisers = ["sgd"]
batch_sizes = [10]
rules = ["constant"]
models = { mnist-mlp = { examples = 100, tested = 2, grid_epochs = 1, epochs = 1 } }
sizes = { sgd = [0.1, STEP] }
grid = { seeds = [0], checkpoints = 1, test_every = 1 }
best = { seeds = [1], checkpoints = 2, test_every = 1 }
"""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets are registered, for this test."""
    monkeypatch.setattr(base, "_EXPERIMENTS", dict(base._EXPERIMENTS))
    base.register(NetsExperiment())


def test_reproduce_nets(avare_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="nets are trained with PyTorch")
    files, _, _ = mnist(n=150)
    enter(monkeypatch, "mnist", files)
    folder = write(tmp_path / "data", files)
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace("STEP", "0.2"))
    arguments = ("reproduce", "nets", "--plan", str(plan), "--data", str(folder), "--jobs", "1")
    code, out, err = avare_command(*arguments)
    assert code == 0 and err.startswith("nets: 6 runs in all\nnets: grid: 4 wanted, 0 stored already\n")
    assert "nets: best settings: 2 wanted" in err
    assert "mnist-mlp, Calibrated, sgd 0." in err and "constant, batches of 10, seed 1: " in err
    assert "│ MLP on MNIST │ DataLoader │ SGD " in out and "│ MLP on MNIST │ Calibrated │ SGD " in out
    assert out.endswith("Page: results/report/index.html\n")
    code, out, err = avare_command(*arguments, "--json")
    found = json.loads(out)
    assert code == 0 and "nets: grid: 4 wanted, 4 stored already" in err
    assert {row["sampler"] for row in found["nets"]} == {"DataLoader", "Calibrated"}
    times = "[times.mnist-mlp]\nstep = { 10 = 5.0 }\nimportance = 0.0\npool = {}\nevaluation = 0.0\n"
    plan.write_text(PLAN.replace("0.1, STEP", "1e38") + times)  # all diverge
    code, out, err = avare_command(*arguments)
    assert code == 0 and "│ –             │" in out
    assert err.startswith("nets: 4 runs in all, about 3 min if none is stored\n")


def test_reproduce_nets_fails(avare_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = avare_command("reproduce", "nets", "--plan", "plan.toml")
    assert code == 1 and "plan.toml" in err and err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = avare_command("reproduce", "nets", "--quick")
    assert code == 1 and err == "avare: training nets needs torch: pip install 'avare[torch,experiments]'\n"
