"""What a stranger adds, one file each: they pass the common checks, and take part in loops, command and report."""

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import toy_layer
import toy_loss
import toy_sampler
from torch import nn
from toy_experiment import CostExperiment

import avare
from avare import experiments, problems, samplers
from avare.experiments import base
from avare.experiments.cli import main
from avare.samplers.kernels import can_learn
from loss_checks import check_loss
from per_example import check_layer
from plain_losses import Case
from sampler_checks import SamplerChecks, by_name


class TestSampler(SamplerChecks):
    samplers: ClassVar = {"Halves": by_name("Halves")}


def test_a_sampler_is_built_by_name_and_drawn_in_the_compiled_loop() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 3))
    problem = avare.problems.LeastSquares(X, X @ [1.0, 2.0, 3.0], l2=0.1)
    sampler = samplers.build("Halves", problem, 5, seed=1)
    # By name: several test modules use the file, and pytest may import it for each of them.
    assert type(sampler).__name__ == toy_sampler.Halves.__name__ and can_learn(sampler.kernels)
    run = avare.sgd(problem, sampler, 1e-3, epochs=20)
    assert run.trace.objective[-1] < 0.1 * run.trace.objective[0]


def log_cosh(z: Any, y: float) -> tuple[float, Any, Any]:
    """Value, slope and curvature in plain NumPy."""
    r = z - y
    return float(np.logaddexp(r, -r).sum() - np.log(2.0)), np.tanh(r), np.diag(1.0 - np.tanh(r) ** 2)


def test_a_loss_passes_the_checks_of_all_losses() -> None:
    assert problems.get("log_cosh") is toy_loss.LogCosh
    check_loss(Case(toy_loss.LogCosh, log_cosh, 1.0))


def test_a_layer_passes_the_checks_of_all_layers() -> None:
    check_layer(lambda: toy_layer.Scale(4), lambda n: torch.randn(n, 4))
    check_layer(lambda: nn.Sequential(nn.Linear(3, 4), toy_layer.Scale(4)), lambda n: torch.randn(n, 6, 3))


def test_sampler_and_loss_take_part_in_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 2))
    rows = np.column_stack([X, X @ [1.0, -1.0] + 0.1 * generator.normal(size=60)])
    np.savetxt(tmp_path / "mine.csv", rows, delimiter=",", header="a,b,y", comments="")
    where, out = str(tmp_path / "mine.csv"), str(tmp_path / "out")
    words = ["compare", where, "--target", "y", "--loss", "log_cosh", "--samplers", "Uniform,Halves"]
    assert main([*words, "--epochs", "2", "--runs", "2", "--jobs", "1", "--out", out, "--json"]) == 0
    assert {row["sampler"] for row in json.loads(capsys.readouterr().out)["runs"]} == {"Uniform", "Halves"}


def test_an_experiment_takes_part_in_command_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(base, "_EXPERIMENTS", dict(base._EXPERIMENTS))
    experiments.register(CostExperiment())
    words = ("--jobs", "2", "--out", str(tmp_path))  # other processes, which have not registered it
    assert main(["reproduce", "toy", *words]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("toy: 4 wanted, 0 stored already\n") and "[4/4] toy, synthetic, " in err
    assert "At the end" in out and "Page: " in out
    more = ("--runs", "1", "--epochs", "1", "--steps", "constant", "--samplers", "Uniform", "--json")
    assert main(["reproduce", "toy", "synthetic", *words, *more]) == 0
    out, err = capsys.readouterr()
    assert err.index("optima: 1 wanted") < err.index("toy: 4 wanted, 4 stored already")
    found = json.loads(out)
    assert sorted(each["label"] for each in found["toy"]) == ["Avare", "Uniform"] and len(found["runs"]) == 1
    (page,) = tmp_path.rglob("index.html")
    assert ">Toy</button>" in page.read_text() and "toy: 4 toy runs" in page.read_text()
    assert (page.parent / "figures" / "toy.png").stat().st_size > 5_000
    assert "Avare" in (page.parent / "tables" / "toy.md").read_text()
    numbers = json.loads((page.parent / "numbers.json").read_text())["toy"]
    assert {each["label"]: each["error"] for each in numbers} == {each["label"]: each["error"] for each in found["toy"]}
    assert main(["reproduce", "toys"]) == 1
    assert capsys.readouterr().err.startswith("avare: reproduce = 'toys': must be one of synthetic, mnist")


def test_a_batch_of_the_wrong_length_is_named() -> None:
    class Short(avare.Uniform):
        def draw(self, size: int) -> avare.Batch:
            return super().draw(size - 1)

    with pytest.raises(ValueError, match=r"^Short.draw\(4\) returned 3 indices: must be 4$"):
        Short(10, 4).sample()
