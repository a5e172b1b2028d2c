"""The examples run, alone and on two processes, and resume; Accelerate; a rank that fails."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import avare.torch as avt
from framework_page import run_snippet
from torch_plain import make_dataset

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "lightning": ("lightning", "--epochs", "4"),
    "accelerate": ("accelerate", "--epochs", "4"),
    "language_model": ("transformers", "--steps", "120"),
}
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
OFFLINE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(*words: str, launcher: tuple[str, ...] = ()) -> str:
    """What an example prints."""
    found = subprocess.run(
        [sys.executable, *launcher, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **OFFLINE},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def gain_in(text: str) -> float:
    """The last gain printed."""
    return float(re.findall(r"gain ([\d.]+)", text)[-1])


def test_plain_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["torch_plain.py", "--epochs", "4"])
    runpy.run_path(str(ROOT / "examples" / "torch_plain.py"), run_name="__main__")
    assert gain_in(capsys.readouterr().out) > 1.3


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    package, *options = EXAMPLES[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    assert gain_in(run(f"examples/torch_{name}.py", *options)) > 1.1


@pytest.mark.slow
def test_the_plain_example_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    whole = run("examples/torch_plain.py", "--epochs", "2")
    path = str(tmp_path / "checkpoint.pt")
    parts = [run("examples/torch_plain.py", "--epochs", epochs, "--checkpoint", path) for epochs in ("1", "2")]
    assert "".join(parts) == whole


@pytest.mark.slow
def test_the_plain_example_on_two_processes() -> None:
    assert gain_in(run("examples/torch_plain.py", launcher=TWO)) > 1.3


@pytest.mark.slow
def test_accelerate_on_two_processes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    alone = run("examples/torch_accelerate.py", "--epochs", "2")
    two = run("examples/torch_accelerate.py", "--epochs", "2", launcher=TWO)
    assert gain_in(two) == pytest.approx(gain_in(alone), rel=0.1)  # float32 sums in another order
    folder = str(tmp_path / "checkpoint")
    for epochs in ("1", "2"):
        parts = run("examples/torch_accelerate.py", "--epochs", epochs, "--checkpoint", folder, launcher=TWO)
    assert parts == two


@pytest.mark.slow
def test_lightning_on_two_processes() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    one, two = (run("examples/torch_lightning.py", "--epochs", "2", "--devices", devices) for devices in ("1", "2"))
    assert gain_in(one) == pytest.approx(gain_in(two), rel=0.1)
    assert one.split()[:4] == two.split()[:4]  # steps and draws


@pytest.mark.slow
def test_the_trainer_on_two_processes(tmp_path: Path) -> None:
    """The draws and the losses of one process with the whole batch, also resumed; then a rank that raises an error."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    script = str(ROOT / "tests" / "torch" / "train_trainer_ranks.py")
    one = run(script, str(tmp_path / "one"))
    two = run(script, str(tmp_path / "two"), launcher=TWO)
    drawn = [re.findall(r"^drawn (.*)$", text, flags=re.MULTILINE) for text in (one, two)]
    assert drawn[0] == drawn[1] == 2 * drawn[0][:1]
    losses = [[float(word) for word in re.findall(r"loss ([\d.]+)", text)] for text in (one, two)]
    assert len(losses[0]) == 12
    for each in losses:
        assert each[6:] == each[:6]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)  # AdamW amplifies what rounding differs
    assert "rank 0 stopped: ValueError: rank 1 failed, or received invalid norms" in two
    assert "rank 1 stopped: RuntimeError: out of luck" in two


@pytest.mark.filterwarnings("ignore")  # the framework's own
def test_accelerate_moves_batches_knows_the_last_one_and_saves_the_loader(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(torch.nn.Linear(20, 10))
    loader, twin = (avt.ImportanceLoader(make_dataset(n=320), 64, seed=seed) for seed in range(2))
    assert accelerator.prepare(loader) is loader
    synchronised = []
    for (rows, _), index, weight in loader:
        assert rows.device == weight.device == accelerator.device
        with accelerator.accumulate(model):
            synchronised.append(accelerator.sync_gradients)
        loader.update(index, torch.ones(64))
    assert synchronised == [False, True, False, True, True]  # the last batch of an epoch, too
    assert accelerator.gradient_state.active_dataloader is None
    batches = iter(loader)
    for _ in range(3):
        _, index, _ = next(batches)
        loader.update(index, torch.ones(64))
    accelerator.save_state(str(tmp_path))
    twin.load_state_dict(torch.load(tmp_path / "dl_state_dict.bin", weights_only=True))
    assert next(batches)[1].tolist() == (after := next(iter(twin))[1].tolist())
    accelerator.load_state(str(tmp_path))
    assert next(iter(loader))[1].tolist() == after
    accelerator.end_training()


@pytest.mark.filterwarnings("ignore")  # the framework's own
def test_the_page_runs() -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    run_snippet("Accelerate")


def test_the_page_explains_everything_that_is_logged() -> None:
    loader = avt.ImportanceLoader(make_dataset(n=40), 4, seed=0, pool=2.0, score=lambda batch: batch[1] + 1.0)
    for _, index, _ in loader:
        loader.update(index, torch.ones(4))
    explained = re.findall(
        r"^\| `importance/(\w+)` \|", (ROOT / "docs" / "frameworks.md").read_text(), flags=re.MULTILINE
    )
    assert set(explained) == {*loader.measures(), "cost_ratio"}  # which is not known so soon


def test_options_are_those_of_the_loader() -> None:
    importance = avt.Importance(sampler="Avare", sampler_options={"delta": 0.5}, seed=3, pool=2.0, replacement=True)
    loader = importance.loader(make_dataset(n=40), 4, score=lambda batch: batch[1] + 1.0, batches_per_epoch=5)
    other = avt.ImportanceLoader(
        make_dataset(n=40), 4, sampler="Avare", sampler_options={"delta": 0.5}, seed=3, pool=2.0, replacement=True,
        score=lambda batch: batch[1] + 1.0, batches_per_epoch=5,
    )  # fmt: skip
    for (_, index, weight), (_, same, also) in zip(loader, other, strict=True):
        assert torch.equal(index, same) and torch.equal(weight, also)
    assert "pool_ratio" not in avt.Importance().loader(range(9), 3).measures()
    assert "pool_ratio" in avt.Importance().loader(range(9), 3, score=lambda batch: batch).measures()
    with pytest.raises(ValueError, match=r"pool = 2\.0: needs score"):
        avt.Importance(pool=2.0).loader(range(9), 3)


def test_weighted_mean() -> None:
    loss, weight = torch.tensor([1.0, 4.0], dtype=torch.float64, requires_grad=True), torch.tensor([0.5, 2.0])
    avt.weighted_mean(loss, weight).backward()
    assert loss.grad is not None and loss.grad.tolist() == [0.25, 1.0]
    empty = torch.ones(0, requires_grad=True)
    avt.weighted_mean(empty, torch.ones(0)).backward()
    assert avt.weighted_mean(empty, torch.ones(0)).item() == 0.0
    bad: Any
    for bad in (torch.ones(2, 1), torch.ones(()), torch.ones(3)):
        with pytest.raises(
            ValueError, match=r'both must be \(batch,\), a loss for each example, as with reduction="none"'
        ):
            avt.weighted_mean(bad, weight)
    bad = [1.0, 2.0]
    with pytest.raises(TypeError, match="loss is of type list: must be a tensor"):
        avt.weighted_mean(bad, weight)


def test_a_batch_of_texts_without_targets() -> None:
    """As the page does it: the mean over the targets of each text, of which one, or all, have none."""
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for labels in (torch.tensor([[1, 2, -100], [-100] * 3]), torch.full((2, 3), -100)):
        losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(dim=1)
        losses = losses / labels.ne(-100).sum(dim=1).clamp(min=1)
        (gradient,) = torch.autograd.grad(avt.weighted_mean(losses, torch.tensor([0.5, 1.5])), logits)
        norms = avt.output_norms(logits, labels, class_dim=-1) / labels.ne(-100).sum(dim=1).clamp(min=1)
        assert gradient.isfinite().all() and not gradient[1].any()
        assert norms.isfinite().all() and norms[1] == 0.0


def test_a_single_process_has_nobody_to_tell_of_a_failure() -> None:
    loader = avt.ImportanceLoader(make_dataset(n=8), 2, seed=0)
    _, index, _ = next(iter(loader))
    loader.fail()
    loader.update(index[:0], np.empty(0))  # no norms
    loader.update(index, [1.0, 2.0])
    assert loader.measures()["waiting"] == 0
