"""Runs of three epochs, resumed from a checkpoint after each of their steps: the batches of the uninterrupted run."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # before the imports

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import avare.torch as avt

# The frameworks' own; Python warns about every fork of a process with threads, and torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore")
N, M, EPOCHS = 12, 4, 3
STEPS = EPOCHS * N // M


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, 3, generator=generator), torch.randint(4, (N,), generator=generator))


def net(dropout: float = 0.5) -> torch.nn.Module:
    """With dropout, a pool that is scored with another random state has other scores."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 4))


# --- Transformers -----------------------------------------------------------------------


def trainer_of(folder: Path, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from avare.torch.transformers import ImportanceTrainer

    class Noting(ImportanceTrainer):
        """Notes the indices of its batches."""

        def get_batch_samples(self, *args: Any) -> Any:
            samples, count = super().get_batch_samples(*args)
            self.__dict__.setdefault("drawn", []).extend(each["avare_index"].tolist() for each in samples)
            return samples, count

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Any, labels: Any = None) -> Any:
            logits = self.net(x)
            return {"logits": logits, **({} if labels is None else {"loss": F.cross_entropy(logits, labels)})}

    common: dict[str, Any] = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "seed": 3}
    common |= {"per_device_train_batch_size": M, "num_train_epochs": EPOCHS, "save_strategy": "steps", "save_steps": 1}
    args = transformers.TrainingArguments(str(folder), **{**common, **options})
    rows = [{"x": x, "labels": y} for x, y in dataset()]
    return Noting(Classifier(), args, train_dataset=rows, importance=avt.Importance(pool=2.0))


def facts_of(trainer: Any) -> tuple[Any, ...]:
    """What a training ends with: losses, norms, position, parameters."""
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    state = trainer.importance_loader.state_dict()
    parameters = [each.tolist() for each in trainer.model.parameters()]
    return losses, state["fingerprint"], state["epoch"], state["drawn"], parameters


@pytest.mark.parametrize(("accumulated", "workers"), [(1, 0), (2, 0), (1, 1)])
def test_the_trainer(accumulated: int, workers: int, tmp_path: Path) -> None:
    """Also with dropout and pools: the random state is restored before the first pool is scored."""
    options = {"gradient_accumulation_steps": accumulated, "dataloader_num_workers": workers}
    whole = trainer_of(tmp_path, **options)
    whole.train()
    assert len(whole.drawn) == STEPS
    last = whole.state.global_step
    for stop in range(1, last) if workers == 0 else (2, 3, 4):
        resumed = trainer_of(tmp_path, save_strategy="no", **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
        per_epoch = -(-N // (M * accumulated))  # steps; the last one of an epoch may have fewer batches
        received = (stop // per_epoch) * (N // M) + (stop % per_epoch) * accumulated
        assert resumed.drawn == whole.drawn[received:], stop
        assert facts_of(resumed) == facts_of(whole), stop


def test_the_trainer_begins_an_epoch_if_it_is_asked_to_skip_no_data(tmp_path: Path) -> None:
    trainer_of(tmp_path).train()
    resumed = trainer_of(tmp_path, save_strategy="no", ignore_data_skip=True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))  # the first of the second epoch
    assert len(resumed.drawn) == STEPS - 4 and resumed.state.global_step == STEPS


# --- Lightning --------------------------------------------------------------------------


def fit(folder: Path | None = None, checkpoint: Path | None = None, **options: Any) -> tuple[list[Any], Any]:
    """Train, and return the batches with Lightning's trainer."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from avare.torch.lightning import ImportanceCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    workers = options.pop("workers", 0)
    seen = []

    class Module(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net(dropout=0.0)  # Lightning does not restore the random state

        def training_step(self, batch: Any) -> Any:
            seen.append(batch[0][:, 0].tolist())
            return F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

        def validation_step(self, batch: Any) -> None:
            self.log("checked", 1.0)

        def train_dataloader(self) -> Any:
            return DataLoader(dataset(), batch_size=M, shuffle=True, num_workers=workers)

        def val_dataloader(self) -> Any:
            return DataLoader(dataset(), batch_size=N)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lightning.seed_everything(5, verbose=False)
    saved = options.pop("saved", {"every_n_train_steps": 1})
    score = lambda module, batch: avt.output_norms(module.net(batch[0]), batch[1])  # noqa: E731
    callbacks: list[Any] = [ImportanceCallback(avt.Importance(pool=2.0), score=score)]
    if folder is not None:
        callbacks.append(ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **saved))
    trainer = lightning.Trainer(
        callbacks=callbacks, enable_checkpointing=folder is not None, accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(Module(), ckpt_path=checkpoint, weights_only=True)
    return seen, trainer


LIGHTNING: dict[str, dict[str, Any]] = {
    "by epochs": {"max_epochs": EPOCHS},
    "by steps": {"max_steps": STEPS, "max_epochs": -1},
    "by both": {"max_steps": 10 * STEPS, "max_epochs": EPOCHS},
    "without validation": {"max_epochs": EPOCHS, "limit_val_batches": 0},
    "accumulated": {"max_epochs": EPOCHS, "accumulate_grad_batches": 2},
    "shorter epochs": {"max_epochs": EPOCHS, "limit_train_batches": 2},
    "with workers": {"max_epochs": EPOCHS, "workers": 1},
    "after epochs": {"max_epochs": EPOCHS, "saved": {"save_on_train_epoch_end": True}},
    "after validation": {"max_epochs": EPOCHS, "saved": {"save_on_train_epoch_end": False}},
    "by steps, after epochs": {"max_steps": STEPS, "max_epochs": -1, "saved": {"save_on_train_epoch_end": True}},
}


@pytest.mark.parametrize("name", LIGHTNING)
def test_lightning(name: str, tmp_path: Path) -> None:
    """Checkpoints after each step, the last of an epoch too, or after each epoch."""
    options = LIGHTNING[name]
    whole, trainer = fit(tmp_path, **options)
    length, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    assert len(whole) == EPOCHS * length
    per_epoch = -(-length // accumulated)  # steps; the last one of an epoch may have fewer batches
    stops = sorted(int(path.stem.removeprefix("step=")) for path in tmp_path.glob("step=*.ckpt"))
    wanted = range(
        per_epoch if "saved" in options else 1, EPOCHS * per_epoch + 1, per_epoch if "saved" in options else 1
    )
    assert stops == list(wanted)
    for stop in stops if name != "with workers" else (2, 3, 4):
        rest, _ = fit(checkpoint=tmp_path / f"step={stop}.ckpt", **options)
        received = (stop // per_epoch) * length + (stop % per_epoch) * accumulated
        assert rest == whole[received:], stop


def test_lightning_keeps_the_norms_of_a_run_that_has_ended(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path, max_epochs=EPOCHS)
    rest, trainer = fit(checkpoint=tmp_path / f"step={STEPS - N // M}.ckpt", max_epochs=EPOCHS - 1)
    assert rest == []
    trainer.save_checkpoint(tmp_path / "again.ckpt")
    rest, _ = fit(checkpoint=tmp_path / "again.ckpt", max_epochs=EPOCHS)
    assert rest == whole[-N // M :]


# --- Accelerate -------------------------------------------------------------------------


def test_accelerate(tmp_path: Path) -> None:
    """With dropout and pools: ``load_state`` restores the random state before the loop begins."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True)

    def train(checkpoint: Path | None = None) -> tuple[list[Any], list[Any]]:
        accelerator.free_memory()
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = avt.Importance(pool=2.0, seed=0).loader(
            dataset(), M, score=lambda batch: avt.output_norms(model(batch[0]), batch[1])
        )
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        if checkpoint is not None:
            accelerator.load_state(str(checkpoint))
        drawn = []
        for _ in range(loader.epoch, EPOCHS):
            for (x, y), index, weight in loader:
                drawn.append(index.tolist())
                accelerator.backward(avt.weighted_mean(F.cross_entropy(model(x), y, reduction="none"), weight))
                optimizer.step()
                optimizer.zero_grad()
                if checkpoint is None:
                    accelerator.save_state(str(tmp_path / str(len(drawn))))
        return drawn, [each.tolist() for each in model.parameters()]

    whole, parameters = train()
    assert len(whole) == STEPS
    for stop in range(1, STEPS + 1):
        assert train(tmp_path / str(stop)) == (whole[stop:], parameters), stop
    accelerator.end_training()
