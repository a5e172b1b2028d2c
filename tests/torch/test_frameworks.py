"""Lightning, Accelerate and the Trainer, if they are installed: the examples run, and resume from checkpoints."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import avare.torch as avt
from torch_plain import make_dataset

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"lightning": "lightning", "accelerate": "accelerate", "trainer": "transformers"}


def run(*words: str, launcher: tuple[str, ...] = ()) -> str:
    """What an example prints."""
    found = subprocess.run(
        [sys.executable, *launcher, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def gain_in(text: str) -> float:
    """The last gain printed."""
    return float(re.findall(r"gain (\S+)", text)[-1])


def test_plain_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["torch_plain.py", "--epochs", "4"])
    runpy.run_path(str(ROOT / "examples" / "torch_plain.py"), run_name="__main__")
    assert gain_in(capsys.readouterr().out) > 1.3


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_examples(name: str) -> None:
    pytest.importorskip(FRAMEWORKS[name], reason=f"{FRAMEWORKS[name]} is not installed")
    assert gain_in(run(f"examples/torch_{name}.py", "--epochs", "4")) > 1.3


@pytest.mark.slow
def test_the_plain_example_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    whole = run("examples/torch_plain.py", "--epochs", "2")
    path = str(tmp_path / "checkpoint.pt")
    parts = [run("examples/torch_plain.py", "--epochs", epochs, "--checkpoint", path) for epochs in ("1", "2")]
    assert "".join(parts) == whole


TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.slow
def test_the_plain_example_on_two_processes() -> None:
    assert gain_in(run("examples/torch_plain.py", launcher=TWO)) > 1.3


@pytest.mark.slow
def test_accelerate_on_two_processes() -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    alone = run("examples/torch_accelerate.py", "--epochs", "2")
    assert gain_in(run("examples/torch_accelerate.py", "--epochs", "2", launcher=TWO)) == gain_in(alone)


@pytest.mark.slow
def test_lightning_on_two_processes() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    one, two = (run("examples/torch_lightning.py", "--epochs", "2", "--devices", devices) for devices in ("1", "2"))
    assert gain_in(one) == gain_in(two) > 1.0


class Updates:
    """The indices of a loader's updates, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[list[int]] = []
        update = avt.ImportanceLoader.update

        def noted(loader: avt.ImportanceLoader, index: Any, norms: Any) -> None:
            self.seen.append(index.tolist())
            update(loader, index, norms)

        monkeypatch.setattr(avt.ImportanceLoader, "update", noted)

    def take(self) -> list[list[int]]:
        seen, self.seen = self.seen, []
        return seen


@pytest.mark.filterwarnings("ignore")  # the framework's own
@pytest.mark.parametrize("stop", [70, 126])
def test_lightning_resumes_where_it_stopped(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from torch_lightning import Classifier

    def fit(steps: int, checkpoint: Path | None = None) -> Any:
        lightning.seed_everything(0, verbose=False)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=-1, max_steps=steps, enable_checkpointing=False, **quiet
        )
        trainer.fit(Classifier(), ckpt_path=checkpoint)
        return trainer

    updates = Updates(monkeypatch)
    fit(150)
    whole = updates.take()
    fit(stop).save_checkpoint(tmp_path / "checkpoint.ckpt")  # epochs have 63 steps
    fit(150, tmp_path / "checkpoint.ckpt")
    assert updates.take() == whole


@pytest.mark.filterwarnings("ignore")
def test_accelerate_does_not_change_the_loader_and_saves_it(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True)
    loader, twin = (avt.ImportanceLoader(make_dataset(), 64, seed=seed) for seed in range(2))
    assert accelerator.prepare(loader) is loader
    accelerator.register_for_checkpointing(loader)
    batches = iter(loader)
    for _ in range(3):
        _, index, _ = next(batches)
        loader.update(index, torch.ones(64))
    accelerator.save_state(str(tmp_path))
    twin.load_state_dict(torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True))
    assert next(batches)[1].tolist() == (after := next(iter(twin))[1].tolist())
    accelerator.load_state(str(tmp_path))
    assert next(iter(loader))[1].tolist() == after
    accelerator.end_training()


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_resumes_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from torch_trainer import make_trainer

    updates = Updates(monkeypatch)
    make_trainer(tmp_path / "whole", 2, save_strategy="no").train()
    whole = updates.take()
    assert len(whole) == 126
    first = make_trainer(tmp_path / "parts", 2, save_strategy="steps", save_steps=70)
    first.train()
    assert updates.take() == whole
    second = make_trainer(tmp_path / "parts", 2, save_strategy="no")
    folder = tmp_path / "parts" / "checkpoint-70"
    second.get_train_dataloader().load_state_dict(torch.load(folder / "loader.pt", weights_only=True))
    second.train(resume_from_checkpoint=str(folder))
    assert updates.take() == whole[70:]
    assert second.evaluate(first.train_dataset)["eval_loss"] > 0.0
