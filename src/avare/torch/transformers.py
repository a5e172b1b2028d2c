"""Importance sampling in the Trainer of Hugging Face Transformers, and in trainers derived from it.

`ImportanceTrainer` takes the place of ``Trainer``. For another trainer, put `ImportanceMixin` before it::

    class ImportanceSFTTrainer(ImportanceMixin, trl.SFTTrainer): ...

*The loss.* The Trainer's loss is the mean over all targets that count in the accumulated batch. With the sum S of an
example's losses, the number n of its targets that count, and its weight w, here it is

    sum w S / D,    D = M (sum w n) / (sum w),

over the M examples of the accumulated batch, of all ranks if the Trainer counts these. D estimates the number of
targets in a uniform batch. If all examples have the same number of targets, as in classification and with packed
sequences, D is that number, and the gradient is unbiased. Otherwise it is a quotient of unbiased estimates, as it is in
the plain Trainer, with an error of order 1 / M. With weights of 1 it is the Trainer's loss.

*The norms* come from `output_norms`: they are norms of the gradient of S in the logits.
"""

import contextlib
import functools
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from avare._optional import require

require("transformers", "avare.torch.transformers", "transformers")  # which says what to install

# isort: split
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from avare.torch.frameworks.importance import Importance
from avare.torch.loading.loader import ImportanceLoader
from avare.torch.loading.tensors import load, save
from avare.torch.loading.weighted_batches import check_dataset
from avare.torch.norms.cross_entropy import count_targets, losses_and_norms
from avare.torch.norms.outputs import output_norms

__all__ = ["ImportanceMixin", "ImportanceTrainer"]

_INDEX, _WEIGHT = "avare_index", "avare_weight"  # keys in the inputs of a training step
_STATE = "importance.pt"  # the file of a checkpoint with the state of the loader
_CLOSE = 1e-3  # the model's loss and ours differ by rounding errors only, in half precision too
_Trainer: Any = object  # for type checkers: the mixin comes before a trainer


class ImportanceMixin(_Trainer):
    """Draw the batches of a Trainer by importance, weigh its loss, and report the norms.

    Evaluation and prediction are not changed. Checkpoints contain the state of the loader, so that
    ``train(resume_from_checkpoint=...)`` continues with the same batches, also in the middle of an epoch. Logs have,
    next to the loss, what `ImportanceLoader.measures` returns, as ``importance/gain`` and so on.

    The loss of an example is computed from ``logits`` and ``labels``: classification, regression, several labels, token
    classification, masked and causal language models, with padding or packed to equal lengths, and labels of -100. The
    first batch compares it with the model's own loss, and raises an error if they differ: then override
    `example_losses` and `example_norms`.

    Parameters
    ----------
    *args, **kwargs
        As for the trainer.
    importance : Importance, optional
        The options; by default ``Importance()``, which learns from the norms of each batch. With ``pool="auto"`` it
        also scores pools of candidates while that pays.

    Attributes
    ----------
    importance_loader
        The `ImportanceLoader` of the current or last training; None before the first.

    Examples
    --------
    >>> class ImportanceSeq2SeqTrainer(ImportanceMixin, transformers.Seq2SeqTrainer):
    ...     pass
    >>> issubclass(ImportanceSeq2SeqTrainer, transformers.Trainer)
    True
    """

    importance_loader: ImportanceLoader | None = None

    def __init__(self, *args: Any, importance: Importance | None = None, **kwargs: Any) -> None:
        self.importance = Importance.checked(importance)
        self._is_compared = False  # whether the loss was compared with the model's
        self._loader_size = 0  # its batch size
        self._checkpoint: str | None = None  # to resume from, until the random state is restored
        super().__init__(*args, **kwargs)
        if self.train_dataset is not None:
            check_dataset(self.train_dataset)
            self._check_importance()

    def example_losses(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of each example, and how many of its targets count; both of shape (batch,).

        Override it, and `example_norms`, for a loss of your own.

        Parameters
        ----------
        logits : Tensor
            What the model returns under this name.
        labels : Tensor
            The inputs of this name.
        """
        return self._losses_and_norms(logits, labels)[:2]

    def example_norms(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the norm of each example's gradient, or a bound, up to a common factor; of shape (batch,)."""
        kind, target = self._loss_and_target(logits, labels)
        if kind != "cross_entropy":
            return output_norms(logits.reshape(target.shape), target, kind, not_finite="keep")
        smoothing = self.args.label_smoothing_factor  # without a gradient, which `_losses_and_norms` computes
        return output_norms(logits, target, class_dim=-1, label_smoothing=smoothing, not_finite="keep")

    # --- methods of the Trainer ---------------------------------------------------------

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does; True resumes from the last checkpoint that was saved completely."""
        self.importance_loader, self._is_compared = None, False
        self.__dict__.pop("_task", None)  # the model may be another one
        if resume_from_checkpoint is True and list(Path(self.args.output_dir).glob("checkpoint-*")):
            resume_from_checkpoint = _last_complete_checkpoint(self.args.output_dir)
        self._checkpoint = resume_from_checkpoint or None
        module, skip = transformers.trainer, transformers.trainer.skip_first_batches
        # An importance loader knows its position: the Trainer must not skip batches.
        module.skip_first_batches = lambda each, *n: each if isinstance(each, ImportanceLoader) else skip(each, *n)
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            module.skip_first_batches = skip

    def get_train_dataloader(self) -> ImportanceLoader:
        """Return the loader of this training, which knows the other ranks."""
        size = self._train_batch_size
        if self.importance_loader is None or self._loader_size != size:
            self._loader_size = size
            plain = super().get_train_dataloader()
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            score = None if self.importance.pool is None else self._score
            self.importance_loader = self.importance.loader_like(plain, size, score, seed)
            if self._checkpoint is not None:
                self._load_importance(self.importance_loader, self._checkpoint)
        return self.importance_loader

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any) -> tuple[list[Any], Any]:
        """Return the batches of an accumulated batch, and the number of targets to divide by."""
        self._load_rng_state(None)
        batches = map(functools.partial(_with_weights, self.importance_loader), epoch_iterator)
        samples, count = super().get_batch_samples(batches, *args)
        if count is not None and samples and _WEIGHT in samples[0]:
            count = count * self._share_of_targets(samples)
        return samples, count

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        """Return the weighted loss in training, and report the norms; otherwise the loss of the Trainer."""
        if _WEIGHT not in inputs:
            return super().compute_loss(model, inputs, return_outputs, **options)
        loader = cast(ImportanceLoader, self.importance_loader)
        index, weight = inputs.pop(_INDEX), inputs.pop(_WEIGHT)
        try:
            loss, outputs, norms = self._weighted_loss(model, inputs, weight, options.get("num_items_in_batch"))
        except Exception:  # whatever it is, the other ranks must not wait
            loader.fail()
            raise
        loader.update(index, norms, not_finite="skip")
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, and add the measurements of the loader to the training logs."""
        if self.importance_loader is not None and "loss" in logs:
            logs.update({f"importance/{name}": value for name, value in self.importance_loader.measures().items()})
        super().log(logs, *args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        """Save the state of the loader with the checkpoint."""
        super()._save_rng_state(output_dir)
        if self.importance_loader is not None and (self.args.should_save or self._part):
            save(self.importance_loader.state_dict(), os.path.join(output_dir, self._part + _STATE))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random state once, before the first pool is scored; the Trainer does it after that."""
        checkpoint, self._checkpoint = self._checkpoint, None
        super()._load_rng_state(checkpoint)

    # --- of this class ------------------------------------------------------------------

    def _load_importance(self, loader: ImportanceLoader, checkpoint: str) -> None:
        """Load the state of the loader from a checkpoint."""
        file = os.path.join(checkpoint, self._part + _STATE)
        if not os.path.isfile(file):
            warnings.warn(f"there is no {file}, so another trainer has saved it: no norms are known yet", stacklevel=2)
            return
        load(file, loader)
        if loader.is_over or self.args.ignore_data_skip:  # the Trainer begins an epoch
            loader.finish_epoch()

    @property
    def _part(self) -> str:
        """The first part of the name of this rank's file, if each rank has its own state."""
        return f"rank{self.args.process_index}_" if self.importance.distributed == "sharded" else ""

    def _check_importance(self) -> None:
        """Raise an error for what cannot be combined with importance sampling, and say what to do."""
        strategy = "group_by_length" if getattr(self.args, "group_by_length", False) else "random"  # of early versions
        strategy = getattr(self.args, "train_sampling_strategy", strategy)
        if strategy != "random":
            raise ValueError(f"args: the sampling strategy is {strategy!r}: leave it out, importance draws the batches")
        if self.args.n_gpu > 1:
            raise ValueError(f"args.n_gpu = {self.args.n_gpu}: DataParallel loses the weights; start with torchrun")
        if self.compute_loss_func is not None:
            raise ValueError("compute_loss_func returns one loss per batch: override example_losses and example_norms")

    def _loss_and_target(self, logits: Tensor, labels: Tensor) -> tuple[Any, Tensor]:
        """Return the name of the loss, and the labels in the shape of the targets."""
        config, shifts_labels = self._task
        if labels.is_floating_point() and labels.numel() == logits.numel():
            is_binary = getattr(config, "problem_type", None) == "multi_label_classification"
            return "binary" if is_binary else "squared", labels.reshape(len(labels), -1)
        if labels.shape != logits.shape[:-1]:
            shapes = f"logits has shape {tuple(logits.shape)}, labels has {tuple(labels.shape)}"
            raise ValueError(f"{shapes}: no loss is known for these; override example_losses and example_norms")
        if shifts_labels:
            labels = F.pad(labels[..., 1:], (0, 1), value=-100)
        return "cross_entropy", labels

    @functools.cached_property
    def _task(self) -> tuple[Any, bool]:
        """The configuration of the model, without wrappers, and whether the label of a position is the next token."""
        model = self.accelerator.unwrap_model(self.model)  # takes milliseconds
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # of PEFT
        config = getattr(model, "config", None)
        is_causal = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        return config, is_causal and not getattr(config, "is_encoder_decoder", False)

    def _score(self, batch: Any) -> Tensor:
        """Score a pool, with the model of this rank alone."""
        inputs = self._prepare_inputs(batch)
        with self.compute_loss_context_manager():
            outputs = self._forward(self.model, inputs, with_loss=False)
        return self.example_norms(outputs["logits"], inputs["labels"])

    def _forward(self, model: nn.Module, inputs: Mapping[str, Any], *, with_loss: bool) -> Mapping[str, Any]:
        """Call the model; without labels it computes no loss, which would be a waste."""
        if "labels" not in inputs:
            raise ValueError(f"the batch has {', '.join(inputs)}, and no labels: the weighted loss needs them")
        needs_labels = with_loss or getattr(self._task[0], "is_encoder_decoder", False)
        outputs = model(**{key: value for key, value in inputs.items() if needs_labels or key != "labels"})
        if not isinstance(outputs, Mapping) or "logits" not in outputs:
            raise ValueError(f"the model returns {type(outputs).__name__}: must return a mapping with logits")
        return outputs

    def _weighted_loss(self, model: nn.Module, inputs: Any, weight: Tensor, count: Any) -> tuple[Tensor, Any, Tensor]:
        """Return the loss to train on, the outputs of the model, and the norms."""
        outputs = self._forward(model, inputs, with_loss=not self._is_compared)
        logits, labels = outputs["logits"], inputs["labels"]
        if self._overrides("example_losses") or self._overrides("example_norms"):
            losses, counts, norms = *self.example_losses(logits, labels), self.example_norms(logits, labels)
        else:
            losses, counts, norms = self._losses_and_norms(logits, labels)
        if not self._is_compared and counts.any():
            self._compare(outputs, labels, losses.sum() / counts.sum())
        weight = weight.to(losses)
        takes_all = count is not None and self.model_accepts_loss_kwargs  # the Trainer expects the whole mean
        if takes_all and not self._overrides("example_losses") and not labels.is_floating_point():
            is_shared = self.args.average_tokens_across_devices and self.accelerator.num_processes > 1
            targets = count / self.accelerator.num_processes if is_shared else count
        else:
            targets = len(weight) * torch.dot(weight, counts) / weight.sum()
            if takes_all:
                targets = targets * self.current_gradient_accumulation_steps
        divisor = torch.where(targets > 0, targets, 1.0)  # if all labels are -100, the loss is 0
        return torch.dot(losses, weight / divisor), outputs, norms

    def _losses_and_norms(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `example_losses` and `example_norms` do by default, in one pass if possible."""
        kind, target = self._loss_and_target(logits, labels)
        if kind == "cross_entropy":
            losses, norms = losses_and_norms(logits, target, self.args.label_smoothing_factor)
            return losses, count_targets(target).to(losses), norms
        function = F.mse_loss if kind == "squared" else F.binary_cross_entropy_with_logits
        losses = function(logits.reshape(target.shape), target.to(logits), reduction="none").mean(dim=1)
        return losses, torch.ones_like(losses), self.example_norms(logits, labels)

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(ImportanceMixin, name)

    def _compare(self, outputs: Any, labels: Tensor, found: Tensor) -> None:
        """Raise an error if the mean loss is not the model's."""
        smooth = self.label_smoother
        wanted = outputs.get("loss") if smooth is None else smooth(outputs, labels, shift_labels=self._task[1])
        if wanted is not None and abs(wanted.item() - found.item()) > _CLOSE * max(1.0, abs(wanted.item())):
            raise ValueError(
                f"the model's loss is {wanted.item():.6g}, and that of its logits and labels {found.item():.6g}: it "
                "has other terms; override example_losses and example_norms"
            )
        self._is_compared = True

    def _share_of_targets(self, samples: list[Any]) -> float:
        """Return D over the number of targets in the accumulated batch: see the module."""
        sums = torch.zeros(4, dtype=torch.float64)
        shifts_labels = getattr(self, "_loss_shifts_labels", False)  # as the Trainer counts
        for inputs in samples:
            weight, labels = inputs[_WEIGHT].double(), inputs["labels"]
            shown = labels[..., 1:] if shifts_labels else labels
            counts = count_targets(shown).double()
            sums += torch.stack([weight.sum(), weight @ counts, counts.sum(), torch.ones_like(weight).sum()])
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device), "sum")
        weights, weighted, plain, examples = sums.tolist()
        return float(examples * weighted / (weights * max(plain, 1.0)))


class ImportanceTrainer(ImportanceMixin, transformers.Trainer):
    """The Trainer of Transformers, with batches drawn by importance: see `ImportanceMixin`.

    Examples
    --------
    >>> from avare.torch import Importance
    >>> trainer = ImportanceTrainer(model, args, train_dataset=dataset, importance=Importance())  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    """


def _with_weights(loader: Any, triple: Any) -> Any:
    """Put index and weight into the inputs; if the sampler learns nothing and all weights are 1, there is no need."""
    inputs, index, weight = triple
    if not isinstance(inputs, Mapping):
        raise TypeError(f"data_collator returns {type(inputs).__name__}: must return a mapping of inputs")
    if len(inputs.get("labels", weight)) != len(weight):
        raise ValueError(
            f"labels has {len(inputs['labels'])} rows for {len(weight)} examples: the batch was flattened; set "
            "padding_free=False, and pack with packing_strategy='wrapped'"
        )
    if not loader.importance_sampler.learns and bool((weight == 1.0).all()):
        return inputs
    return {**inputs, _INDEX: index.numpy(), _WEIGHT: weight}


def _last_complete_checkpoint(folder: str) -> str | None:
    """Return the path of the last checkpoint that has the Trainer's own state, which is written last."""
    steps: dict[str, int] = {}
    for file in Path(folder).glob("checkpoint-*/trainer_state.json"):
        with contextlib.suppress(ValueError):  # a kill has cut it off
            steps[str(file.parent)] = json.loads(file.read_text())["global_step"]
    if not steps:
        warnings.warn(f"no checkpoint in {folder} is complete: training starts from the beginning", stacklevel=3)
    return max(steps, key=lambda path: steps[path], default=None)
