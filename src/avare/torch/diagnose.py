"""What importance sampling has to gain on a model and a dataset, as they are now."""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Subset

from avare import _validation as validation
from avare import diagnostics
from avare.torch.gradient_norms import GradientNorms
from avare.torch.indexed import check_dataset
from avare.torch.layers.recomputed import Fallback
from avare.torch.norms import from_output_grad

LossFunction = Callable[[Tensor, Any], Tensor]
Compute = Callable[[Any, Any], Tensor]
_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_WORTH, _PERHAPS = 2.0, 1.2  # gains


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `diagnose` returns; ``str()`` says it in plain words."""

    gain: float
    """The second moment of uniform minibatches over that of the best distribution: at least 1."""
    n: int
    """Examples looked at."""
    norms: str
    """Which norms: "output" or "exact"."""
    quantiles: dict[float, float]
    """Of the norms: level to value."""
    half_share: float
    """The smallest share of the examples that carries half of the sum of the norms: at most one half."""

    @property
    def advice(self) -> str:
        """What to make of it."""
        if self.quantiles[1.0] == 0.0:
            return "All gradients are zero: there is nothing to learn from these examples now."
        if self.gain >= _WORTH:
            return "Importance sampling is worth trying."
        if self.gain >= _PERHAPS:
            return "Importance sampling may pay, if norms come free or nearly so; look again later in training."
        return "Importance sampling is not worth it now; look again later in training."

    def __str__(self) -> str:
        kind = "gradient norm" if self.norms == "exact" else "gradient norm at the output"
        return (
            f"Uniform minibatches have {self.gain:.3g} times the second moment of the best distribution. "
            f"Half of the {kind} is carried by {100.0 * self.half_share:.3g} % of the {self.n:,} examples; "
            f"the median is {self.quantiles[0.5]:.3g}, the largest {self.quantiles[1.0]:.3g}. {self.advice}"
        )


def diagnose(
    model: nn.Module,
    loss_fn: LossFunction,
    dataset: Any,
    batch_size: int = 256,
    *,
    norms: Literal["output", "exact"] = "output",
    max_examples: int | None = None,
    fallback: Fallback | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    progress: bool = False,
    seed: int = 0,
) -> Diagnosis:
    """The gain to expect from importance sampling, for a model as it is now.

    The gain changes as the model learns, most often upwards: look again after some epochs.
    The model runs in evaluation mode, without augmentation of its own such as Dropout. Its mode,
    its gradients and PyTorch's random numbers are left as they were.

    Cost: a forward pass over the examples, and with "exact" norms a backward pass.

    Parameters
    ----------
    model
        Takes a batch of inputs, and gives outputs, one tensor, with the batch first.
    loss_fn
        Takes outputs and targets. If it has an option ``reduction``, as the losses of
        ``torch.nn`` and ``torch.nn.functional`` have, it is set to "none"; otherwise it must
        give a loss for each example.
    dataset
        Pairs (input, target), by index. An input of several tensors, all with the batch first, goes
        to the model as its arguments: a tuple by place, a dict by name.
    batch_size
        Examples at a time: for speed only.
    norms
        "output", of the gradient in the output, or "exact", in all parameters that are
        trained (`GradientNorms`).
    max_examples
        Look at so many, drawn at random, if there are more.
    fallback
        See `GradientNorms`.
    collate_fn
        Makes a pair (inputs, targets) of a list of items, whatever they are, as for a ``DataLoader``.
    num_workers
        Processes that fetch examples.
    progress
        Whether to count on the standard error.
    seed
        For the choice of examples.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.tensor([[1.0], [1.0], [1.0], [9.0]])
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> print(diagnose(model, nn.MSELoss(), TensorDataset(x, torch.zeros(4, 1)), norms="output"))
    Uniform minibatches have 2.33 times the second moment of the best distribution. Half of the gradient norm at \
the output is carried by 25 % of the 4 examples; the median is 2, the largest 18. Importance sampling is worth trying.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}: must be a torch.nn.Module")
    if norms not in ("output", "exact"):
        raise ValueError(f"norms = {norms!r}: must be 'output' or 'exact'")
    check_dataset(dataset)
    if len(dataset) == 0:
        raise ValueError("dataset is empty")
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    progress = validation.boolean("progress", progress)
    num_workers = validation.integer("num_workers", num_workers, at_least=0)
    count = len(dataset)
    if max_examples is not None:
        count = min(count, validation.integer("max_examples", max_examples, at_least=1))
    generator = np.random.default_rng(validation.integer("seed", seed, at_least=0))
    chosen = np.sort(generator.choice(len(dataset), size=count, replace=False)).tolist()
    # A generator of its own, for a loader draws a seed from the common one.
    options = {"collate_fn": collate_fn, "num_workers": num_workers, "generator": torch.Generator()}
    loader = DataLoader(Subset(dataset, chosen), batch_size=batch_size, **options)
    loss = _each(loss_fn)
    found: list[NDArray[np.float64]] = []
    with _undisturbed(model):
        compute = _exact(model, loss, fallback) if norms == "exact" else _at_output(model, loss)
        for batch in loader:
            found.append(compute(*_pair(batch, model)).double().cpu().numpy())
            if progress:
                print(f"\r{sum(map(len, found)):,} of {count:,} examples", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    return _diagnosis(np.concatenate(found), norms)


def _diagnosis(values: NDArray[np.float64], norms: str) -> Diagnosis:
    carried = np.cumsum(np.sort(values)[::-1])
    half = int(np.searchsorted(carried, 0.5 * carried[-1])) + 1 if carried[-1] > 0.0 else len(values) / 2
    quantiles = {level: float(np.quantile(values, level)) for level in _LEVELS}
    return Diagnosis(float(diagnostics.gain(values)), len(values), norms, quantiles, half / len(values))


def _at_output(model: nn.Module, loss: LossFunction) -> Compute:
    def compute(x: Any, y: Any) -> Tensor:
        with torch.no_grad():
            output = _run(model, x)
        output = output.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(_total(loss(output, y), _count(x)), output)
        return from_output_grad(gradient)

    return compute


def _exact(model: nn.Module, loss: LossFunction, fallback: Fallback | None) -> Compute:
    norms = GradientNorms(model, fallback=fallback)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("model has no parameters that are trained: there are no gradients to look at")

    def compute(x: Any, y: Any) -> Tensor:
        with norms, torch.enable_grad():
            total = _total(loss(_run(model, x), y), _count(x))
            torch.autograd.grad(total, parameters, allow_unused=True)
        return norms(reduction="sum")

    return compute


def _run(model: nn.Module, x: Any) -> Any:
    """What the model gives for an input of one tensor or several."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, list | tuple) else model(x)


def _count(x: Any) -> int:
    """Examples in an input."""
    return next(len(leaf) for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor))


def _total(losses: Tensor, count: int) -> Tensor:
    if losses.shape[:1] != (count,):
        raise ValueError(
            f"loss_fn gives shape {tuple(losses.shape)} for {count} examples: must give a loss for each, "
            "as with reduction='none'"
        )
    return losses.sum()


def _each(loss_fn: Any) -> LossFunction:
    """The loss of each example, where there is an option for it."""
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is of type {type(loss_fn).__name__}: must be callable")
    result: LossFunction = loss_fn
    if isinstance(loss_fn, nn.Module):
        if hasattr(loss_fn, "reduction"):
            result = copy.copy(loss_fn)
            result.reduction = "none"  # type: ignore[attr-defined]  # the copy of a loss that has one
        return result
    try:
        options = inspect.signature(loss_fn).parameters
    except ValueError:  # compiled code may have none
        return result
    return functools.partial(loss_fn, reduction="none") if "reduction" in options else result


def _pair(batch: Any, model: nn.Module) -> tuple[Any, Any]:
    """Input and target, where the model is."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ValueError("dataset does not give pairs (input, target); collate_fn= can make them")
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(batch[0])):
        raise ValueError(f"dataset gives inputs of type {type(batch[0]).__name__}: must be tensors; see collate_fn=")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    x, y = pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, list(batch))
    return x, y


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; then each module's own mode again, and the same random numbers as before."""
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng():
        model.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training
