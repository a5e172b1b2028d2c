"""What a model can gain from importance sampling on a dataset: a report on its gradient norms."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from avare import _validation as validation
from avare import diagnostics
from avare.torch.loading.weighted_batches import check_dataset
from avare.torch.norms.outputs import LossFunction, output_norms

_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_LARGE, _SMALL = 2.0, 1.2  # possible gains


@dataclass(frozen=True, slots=True)
class NormReport:
    """What `diagnose` returns; ``str()`` says it in a few sentences.

    >>> report = NormReport(gain=1.1, n=100, quantiles={0.5: 0.1, 1.0: 0.2}, half_share=0.45)
    >>> report.advice.split(":")[0]
    'Too early to say'
    """

    gain: float
    """The second moment of uniform minibatches over the second moment of the best distribution: at least 1."""
    n: int
    """Number of examples measured."""
    quantiles: dict[float, float]
    """Quantiles of the norms of the gradient at the output: level to value."""
    half_share: float
    """The smallest share of the examples that has half of the sum of the norms: at most one half."""

    @property
    def advice(self) -> str:
        """What to use: an `ImportanceLoader` with `update`, `score=`, or shuffled batches."""
        if self.quantiles[1.0] == 0.0:
            return "All gradients are zero: these examples have nothing to teach the model now."
        if self.gain >= _LARGE:
            return (
                "Use an ImportanceLoader with update(), which costs next to nothing; pass score= if the training loss "
                "is the aim, or the examples that matter are rare."
            )
        if self.gain >= _SMALL:
            return "An ImportanceLoader with update() may pay, and score= does not. Measure again later in training."
        return (
            "Too early to say: the norms are alike, as in a net that has not been trained. Measure again after an "
            "epoch; if they are still alike, keep shuffled batches."
        )

    def __str__(self) -> str:
        return (
            f"Uniform minibatches have {self.gain:.3g} times the second moment of the best distribution. "
            f"Half of the total gradient norm at the output comes from {100.0 * self.half_share:.3g} % of the "
            f"{self.n:,} examples; the median is {self.quantiles[0.5]:.3g}, the largest {self.quantiles[1.0]:.3g}. "
            f"{self.advice}"
        )


def diagnose(
    model: nn.Module, loss_fn: LossFunction, dataset: Any, batch_size: int = 256, **options: Any
) -> NormReport:
    """Measure what importance sampling can gain for a model in its present state.

    The gain changes as the model learns, and usually grows: measure again after some epochs. The model
    runs in evaluation mode, for example without Dropout. Its mode, its gradients and PyTorch's random
    numbers do not change.

    Cost: a forward pass over the examples.

    Parameters
    ----------
    model : Module
        Takes a batch of inputs, and returns one tensor, with the batch as first dimension.
    loss_fn : callable
        Takes outputs and targets. If it has an option ``reduction``, as the losses of ``torch.nn`` and
        ``torch.nn.functional`` have, it is set to "none"; otherwise it must return a loss for each
        example.
    dataset : Dataset
        Pairs (input, target), by index; of a large dataset, a ``Subset`` chosen at random is enough. If an input
        has several tensors, all with the batch first, they are the model's arguments:
        by position from a tuple, by name from a dict.
    batch_size : int, default=256
        Examples at a time; it only affects the speed.
    **options
        For a ``DataLoader``: num_workers, or collate_fn, which makes a pair (inputs, targets) of a list of items.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.tensor([[1.0], [1.0], [1.0], [9.0]])
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> report = diagnose(model, nn.MSELoss(), TensorDataset(x, torch.zeros(4, 1)))
    >>> round(report.gain, 2), report.half_share
    (2.33, 0.25)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}: must be a torch.nn.Module")
    check_dataset(dataset)
    if len(dataset) == 0:
        raise ValueError("dataset is empty")
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    # With its own generator, the loader takes no random number from torch's global one.
    loader = DataLoader(dataset, batch_size=batch_size, generator=torch.Generator(), **options)
    loss = _each(loss_fn)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    kind = "cuda" if device.type in ("cpu", "meta") else device.type
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.random.fork_rng(device_type=kind), torch.no_grad():
            values = torch.cat([_norms(model, loss, batch, device).double().cpu() for batch in loader]).numpy()
    finally:
        for module in training:
            module.training = True
    carried = np.cumsum(np.sort(values)[::-1])
    half = int(np.searchsorted(carried, 0.5 * carried[-1])) + 1 if carried[-1] > 0.0 else len(values) / 2
    quantiles = {level: float(np.quantile(values, level)) for level in _LEVELS}
    return NormReport(float(diagnostics.gain(values)), len(values), quantiles, half / len(values))


def _norms(model: nn.Module, loss: LossFunction, batch: Any, device: torch.device) -> Tensor:
    """Return the norms of a batch, at the output."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ValueError("dataset does not return pairs (input, target); collate_fn= can make them")
    sizes = [len(leaf) for leaf in pytree.tree_leaves(batch[0]) if isinstance(leaf, Tensor)]
    if not sizes:
        raise ValueError(f"dataset returns inputs of type {type(batch[0]).__name__}: must be tensors; see collate_fn=")
    x, y = pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, list(batch))
    output = model(**x) if isinstance(x, Mapping) else model(*x) if isinstance(x, list | tuple) else model(x)

    def each(output: Tensor, target: Any) -> Tensor:
        losses = loss(output, target)
        if losses.shape[:1] != (sizes[0],):
            shape = tuple(losses.shape)
            raise ValueError(f"loss_fn returns shape {shape} for {sizes[0]} examples: must return a loss for each")
        return losses

    return output_norms(output, y, each)


def _each(loss_fn: Any) -> LossFunction:
    """Return a loss function that returns the loss of each example, if there is an option for it."""
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is of type {type(loss_fn).__name__}: must be callable")
    result: Any = loss_fn
    if hasattr(loss_fn, "reduction"):
        result = copy.copy(loss_fn)
        result.reduction = "none"
    with contextlib.suppress(ValueError):  # compiled functions may have no signature
        if "reduction" in inspect.signature(loss_fn).parameters:
            result = functools.partial(loss_fn, reduction="none")
    return cast(LossFunction, result)
