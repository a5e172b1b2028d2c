"""Importance sampling in Lightning: a callback that swaps the train loader, weighs the loss, logs, and resumes."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from avare._optional import require

require("lightning", "avare.torch.lightning", "lightning")  # which says what to install

# isort: split
import lightning
import numpy as np

from avare.state import State
from avare.torch.frameworks.importance import Importance
from avare.torch.loading.loader import ImportanceLoader, weighted_mean

__all__ = ["ImportanceCallback"]


class ImportanceCallback(lightning.Callback):
    """Draw the batches of ``Trainer.fit`` by importance, with weights in the loss.

    Your module and your train loader stay as they are, except that ``training_step`` returns the loss of each example,
    of shape (batch,), and their norms::

        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, y, reduction="none"), "norms": avt.output_norms(logits, y)}

        trainer = lightning.Trainer(callbacks=[ImportanceCallback()])

    The callback returns the weighted mean of the losses to Lightning, and reports the norms. It takes dataset, batch
    size, collate function and workers from your train loader; shuffling and samplers do not apply, and batches are
    shared between ranks without Lightning's distributed sampler. Checkpoints contain the state of the loader, so that
    ``fit(ckpt_path=...)`` continues with the same batches, also in the middle of an epoch. Every ``log_every_n_steps``
    steps it logs what `ImportanceLoader.measures` returns, as ``importance/gain`` and so on. Validation is not changed.

    Parameters
    ----------
    importance : Importance, optional
        The options; by default ``Importance()``. With None as seed, the seed of
        ``seed_everything`` is used, if it was called.
    score : callable, optional
        Switches the second stage on: a function of the module and a batch on its device, which returns a score for each
        example. See `ImportanceLoader`. Norms of ``training_step`` are then optional.

    Attributes
    ----------
    loader
        The `ImportanceLoader` of the current or last fit; None before the first.

    Examples
    --------
    >>> callback = ImportanceCallback(Importance(sampler="Avare", seed=0))
    >>> isinstance(callback, lightning.Callback), callback.loader
    (True, None)
    """

    def __init__(self, importance: Importance | None = None, *, score: Callable[..., Any] | None = None) -> None:
        self.importance = Importance.checked(importance)
        self.score = score
        self.loader: ImportanceLoader | None = None
        self._replaced: tuple[Any, Any, Any] | None = None  # the source of the train loader, as it was
        self._saved: Any = None  # a state of the loader, until training begins

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Swap the train loader, and weigh the loss of ``training_step``."""
        source = trainer.fit_loop._data_source
        self.loader = plain = source.dataloader()
        if not isinstance(plain, ImportanceLoader):
            score = None if self.score is None else functools.partial(_score, self.score, trainer, pl_module)
            seed, size = os.environ.get("PL_GLOBAL_SEED"), getattr(plain, "batch_size", None)
            self.loader = self.importance.loader_like(plain, size, score, None if seed is None else int(seed))
        self._replaced = source, source.instance, source.name
        source.instance, source.name = _Shown(self.loader, trainer), ""
        step = pl_module.training_step
        pl_module.training_step = functools.update_wrapper(functools.partial(self._weighted_step, step), step)
        self.on_train_start(trainer, pl_module)  # which Lightning calls only if there is something to train

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Resume the loader from the checkpoint, if there is one."""
        if self._saved is not None:
            cast(ImportanceLoader, self.loader).load_state_dict(self._saved)
            self._saved = None

    def state_dict(self) -> State:
        """Return the state of the loader, for a checkpoint."""
        return {} if self.loader is None else {"loader": self.loader.state_dict()}

    def load_state_dict(self, state_dict: State) -> None:
        """Keep the state of the loader until training begins."""
        self._saved = state_dict.get("loader")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Log the measurements of the loader."""
        if self.loader is not None and trainer.global_step % trainer.log_every_n_steps == 0:
            found = {f"importance/{name}": value for name, value in self.loader.measures().items()}
            pl_module.log_dict(found, on_step=True, on_epoch=False, batch_size=1)

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Restore the train loader and ``training_step``, also after an error."""
        if self._replaced is not None:
            source, source.instance, source.name = self._replaced[0], *self._replaced[1:]
            del pl_module.training_step
        self._replaced = self._saved = None

    def _weighted_step(self, step: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Take a ``training_step`` with a batch of the loader: weigh its losses, and report the norms."""
        loader = cast(ImportanceLoader, self.loader)
        plain, index, weight = batch
        try:
            found = step(plain, *args, **kwargs)
            output = dict(found) if isinstance(found, Mapping) else {"loss": found}
            norms = output.pop("norms", None)
            if norms is None and self.score is None and loader.importance_sampler.learns:
                raise ValueError(
                    "training_step returns no norms, so nothing can be learned: return {'loss': losses, 'norms': "
                    "avare.torch.output_norms(logits, target)}, or pass score= to the callback"
                )
            output["loss"] = weighted_mean(output.get("loss"), weight)
        except Exception:  # whatever it is, the other ranks must not wait
            loader.fail()
            raise
        if norms is None:  # all ranks still learn whether one has failed
            index, norms = index[:0], np.empty(0)
        loader.update(index, norms, not_finite="skip")
        return output


class _Shown:
    """A loader as Lightning sees it: not a ``DataLoader``, because Lightning would replace its batch sampler."""

    def __init__(self, loader: ImportanceLoader, trainer: lightning.Trainer) -> None:
        self.loader, self.trainer = loader, trainer

    def __iter__(self) -> Iterator[Any]:
        """Begin with the first batch: Lightning asks for more iterators than it uses."""
        if self.trainer.fit_loop.batch_idx < 0 < self.loader.received:  # Lightning begins an epoch, so the loader does
            self.loader.finish_epoch()
        yield from self.loader

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the state is that of the callback. Lightning asks whether the loader can resume."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Do nothing."""


def _score(score: Callable[..., Any], trainer: lightning.Trainer, module: lightning.LightningModule, batch: Any) -> Any:
    """Score a pool on the device of the module, in its precision."""
    with trainer.precision_plugin.forward_context():
        return score(module, trainer.strategy.batch_to_device(batch, dataloader_idx=0))
