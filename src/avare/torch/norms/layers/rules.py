"""The rules of PyTorch's layers: linear layers, convolutions, embeddings and normalisations."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from avare.torch.norms.layers.parts import Dense, OneHot, Outer
from avare.torch.norms.layers.registry import Parts, is_trained, refuse, register, require_batch

# --- linear layers, at one or many positions per example ----------------------------------------


@register(nn.Linear)
def linear(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """The weight's gradient is the sum over positions of outer products: output gradient times input."""
    require_batch(inputs)
    left, right = _positions(gradients), _positions(inputs)
    if is_trained(module.weight):
        yield module.weight, Outer(left.mT, right.mT)
    if is_trained(module.bias):
        yield module.bias, Dense(left.squeeze(1) if left.shape[1] == 1 else left.sum(dim=1))


@register("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """A linear layer whose weight is transposed, as GPT-2 has it: input times output gradient."""
    for parameter, part in linear(module, inputs, gradients):
        yield parameter, Outer(part.right, part.left) if isinstance(part, Outer) else part


def _positions(values: Tensor) -> Tensor:
    """Return values in shape (batch, positions, width)."""
    return values.unsqueeze(1) if values.ndim == 2 else values.flatten(1, -2)


# --- convolutions: linear layers on patches ------------------------------------------------------


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """The weight's gradient is the sum over places of outer products: output gradient times patch."""
    require_batch(inputs, len(module.kernel_size) + 2, exactly=True)
    left = gradients.flatten(2)
    if is_trained(module.weight):
        yield module.weight, Outer(left, _patches(module, inputs, tuple(gradients.shape[2:])), module.groups)
    if is_trained(module.bias):
        yield module.bias, Dense(left.sum(dim=2))


def _patches(module: nn.Module, inputs: Tensor, places: tuple[int, ...]) -> Tensor:
    """Return a view of shape (batch, channels, *kernel, *places): what the kernel sees at each place."""
    padding = module._reversed_padding_repeated_twice
    if any(padding):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = functional.pad(inputs, padding, mode=mode)
    batch, channel, *steps = inputs.stride()
    within = [step * dilation for step, dilation in zip(steps, module.dilation, strict=True)]
    between = [step * stride for step, stride in zip(steps, module.stride, strict=True)]
    shape = (*inputs.shape[:2], *module.kernel_size, *places)
    return inputs.as_strided(shape, (batch, channel, *within, *between))


# --- embeddings ----------------------------------------------------------------------------------


@register(nn.Embedding)
def embedding(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """The gradient of a row is the sum over the positions that look it up; padding has none."""
    require_batch(inputs, 1)
    indices = inputs.unsqueeze(1) if inputs.ndim == 1 else inputs.flatten(1)
    values = gradients.unsqueeze(1) if inputs.ndim == 1 else gradients.flatten(1, -2)
    if module.padding_idx is not None:
        values = values.masked_fill((indices == module.padding_idx).unsqueeze(2), 0.0)
    yield module.weight, OneHot(indices.long(), values, module.num_embeddings)


@refuse(nn.Embedding, nn.EmbeddingBag)
def scaled_by_frequency(module: nn.Module) -> str | None:
    """Counts over the batch make the gradient of an example depend on the others."""
    if module.scale_grad_by_freq:
        return "scale_grad_by_freq divides by counts over the batch, so no example has a gradient of its own"
    return None


# --- normalisations: a factor and an offset for each feature or channel of the normalised input --


@register(nn.LayerNorm, nn.RMSNorm)
@register(
    "transformers.models.*RMSNorm", "transformers.models.*T5LayerNorm",
    parameters=["weight"], attributes=["variance_epsilon"],
)  # fmt: skip
def norm_over_features(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over the last dimensions: PyTorch's layers, and RMSNorm as LLaMA and most models after it have it."""
    require_batch(inputs, module.weight.ndim + 1)
    return _affine(module, inputs, gradients, range(1, inputs.ndim - module.weight.ndim))


@register(nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
def norm_over_channels(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over groups of channels, or by running statistics, which are constants in evaluation mode."""
    return _affine(module, inputs, gradients, range(2, gradients.ndim))


@refuse(_BatchNorm)
def mixes_examples(module: nn.Module) -> str | None:
    """In training mode, the statistics are those of the batch."""
    if module.training or module.running_mean is None:
        return (
            "it normalises by the statistics of the batch, so the loss of an example depends on the others, and no "
            "example has a gradient of its own: put it in evaluation mode, or use GroupNorm or LayerNorm instead"
        )
    return None


def _affine(module: nn.Module, inputs: Tensor, gradients: Tensor, others: Iterable[int]) -> Parts:
    """The gradients of factor and offset, summed over the other dimensions."""
    others = tuple(others)
    if is_trained(module.weight):
        yield module.weight, Dense(_total(_normalized(module, inputs) * gradients, others))
    if is_trained(getattr(module, "bias", None)):
        yield module.bias, Dense(_total(gradients, others))


def _normalized(module: nn.Module, inputs: Tensor) -> Tensor:
    """Run a copy of the module with a factor of 1 and no offset, in the precision of the inputs."""
    plain = copy.copy(module)
    plain._parameters = {"weight": torch.ones_like(module.weight, dtype=inputs.dtype), "bias": None}
    plain._buffers = {name: None if value is None else value.to(inputs) for name, value in module._buffers.items()}
    found: Tensor = type(module).forward(plain, inputs)
    return found


def _total(values: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    return (values.sum(dim=dimensions) if dimensions else values).flatten(1)
