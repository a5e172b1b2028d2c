"""Lightning's callback: the weighted loss, resuming, logs, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import avare.torch as avt
from framework_page import run_snippet
from torch_plain import make_dataset

lightning = pytest.importorskip("lightning", reason="lightning is not installed")
from avare.torch.lightning import ImportanceCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own
N, M = 24, 4


def dataset() -> TensorDataset:
    rows, labels = make_dataset(n=N).tensors
    return TensorDataset(rows, labels)


class Module(lightning.LightningModule):  # type: ignore[name-defined]
    """A linear model that notes its batches and losses."""

    def __init__(self, loader: Any = None, *, norms: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(20, 10)
        self.loader = DataLoader(dataset(), batch_size=M, shuffle=True) if loader is None else loader
        self.with_norms = norms
        self.seen: list[list[float]] = []
        self.measured: list[dict[str, float]] = []

    def train_dataloader(self) -> Any:
        return self.loader

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        rows, labels = batch
        self.seen.append(rows[:, 0].tolist())
        logits = self.net(rows)
        losses = F.cross_entropy(logits, labels, reduction="none")
        return {"loss": losses, "norms": avt.output_norms(logits, labels)} if self.with_norms else losses

    def on_train_batch_end(self, *_: Any) -> None:
        self.measured.append(dict(self.trainer.callback_metrics))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: Any, steps: int, *callbacks: Any, checkpoint: Path | None = None, **options: Any) -> Any:
    lightning.seed_everything(5, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    common = {"accelerator": "cpu", "max_epochs": -1, "max_steps": steps, "enable_checkpointing": False}
    trainer = lightning.Trainer(callbacks=list(callbacks), log_every_n_steps=1, **{**quiet, **common, **options})
    trainer.fit(module, ckpt_path=checkpoint)
    return trainer


def test_the_loss_is_the_weighted_mean_and_nothing_is_left_behind() -> None:
    module, callback = Module(), ImportanceCallback(avt.Importance(pool=None))
    losses: list[Tensor] = []
    callback.on_before_backward = lambda trainer, module, loss: losses.append(loss.detach())
    fit(module, 9, callback)
    loader = callback.loader
    assert loader is not None and loader.measures()["waiting"] == 0 and loader.importance_sampler.steps >= 9
    twin = Module()
    for loss, (batch, _, weight) in zip(losses, _batches(twin), strict=True):
        torch.testing.assert_close(loss, (weight * _losses(twin, batch)).mean())
    assert "training_step" not in vars(module) and module.trainer.fit_loop._data_source.instance is module


def _losses(module: Module, batch: Any) -> Tensor:
    return F.cross_entropy(module.net(batch[0]), batch[1], reduction="none")


def _batches(module: Module) -> Any:
    """The same training by hand."""
    loader = avt.Importance(pool=None, seed=5).loader(dataset(), M)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batches: Any = None
    for step in range(9):
        batches = batches if step % 6 else iter(loader)
        batch, index, weight = next(batches)
        yield batch, index, weight
        loss = avt.weighted_mean(_losses(module, batch), weight)
        loader.update(index, avt.output_norms(module.net(batch[0]), batch[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_logs_what_it_measures() -> None:
    module = Module(norms=False)
    score = lambda module, batch: avt.output_norms(module.net(batch[0]), batch[1])  # noqa: E731
    fit(module, 3, ImportanceCallback(avt.Importance(pool=2.0), score=score))
    assert module.measured[-1]["importance/pool_ratio"] == 2.0 and module.measured[-1]["importance/gain"] > 0.0


@pytest.mark.parametrize("with_norms", [True, False])
def test_batches_without_targets_leave_the_model_as_it_is(with_norms: bool) -> None:
    """Labels of -100 only: no loss, no gradient, and norms of 0."""
    rows, labels = dataset().tensors
    loader = DataLoader(TensorDataset(rows, torch.full_like(labels, -100)), batch_size=M)
    module = Module(loader, norms=with_norms)
    before = [each.tolist() for each in module.parameters()]
    score = lambda module, batch: avt.output_norms(module.net(batch[0]), batch[1])  # noqa: E731
    callback = ImportanceCallback(avt.Importance(pool=2.0), score=None if with_norms else score)
    if with_norms:
        callback = ImportanceCallback(avt.Importance(pool=None))
    fit(module, 8, callback)
    assert [each.tolist() for each in module.parameters()] == before
    assert callback.loader is not None and callback.loader.measures()["waiting"] == 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(dataset())


def test_refuses_what_it_cannot_do_and_says_what_to_do() -> None:
    with pytest.raises(TypeError, match="must have __getitem__ and __len__, as a map-style dataset"):
        fit(Module(DataLoader(Stream(), batch_size=2)), 2, ImportanceCallback())
    with pytest.raises(TypeError, match="the train loader is of type dict: must be one torch DataLoader"):
        fit(Module({"a": DataLoader(dataset())}), 2, ImportanceCallback())
    with pytest.raises(ValueError, match="no batch_size: make it with batch_size="):
        fit(Module(DataLoader(dataset(), batch_size=None)), 2, ImportanceCallback())
    with pytest.raises(ValueError, match=r"returns no norms.*or pass score= to the callback"):
        fit(Module(norms=False), 2, ImportanceCallback())
    with pytest.raises(TypeError, match=r"importance is of type str: must be an avare.torch.Importance"):
        ImportanceCallback("auto")  # type: ignore[arg-type]
    module = Module()
    module.training_step = lambda *_: torch.tensor(1.0)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r'loss has shape \(\).*a loss for each example, as with reduction="none"'):
        fit(module, 2, ImportanceCallback(avt.Importance(sampler="Uniform")))


def test_an_importance_loader_of_ones_own_is_kept() -> None:
    loader = avt.ImportanceLoader(dataset(), M, seed=1)
    callback = ImportanceCallback()
    fit(Module(loader), 3, callback)
    assert callback.loader is loader and loader.importance_sampler.steps == 3
    assert np.isfinite(loader.gain)


def test_the_page_runs() -> None:
    run_snippet("Lightning")
