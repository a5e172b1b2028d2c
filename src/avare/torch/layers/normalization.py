"""Normalisations: a factor and an offset for each feature, or for each channel, of what was normalised."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from avare.torch.layers.parts import Part, Rows

Parts = Iterator[tuple[nn.Parameter, Part]]
_INSTANCE_DIMENSIONS = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}


def layer_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over the last dimensions."""
    shape = module.normalized_shape
    normalized = functional.layer_norm(inputs, shape, eps=module.eps) if _trained(module.weight) else None
    return _over_features(module, inputs, normalized, gradients)


def rms_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over the last dimensions, by their root mean square."""
    normalized = (
        functional.rms_norm(inputs, module.normalized_shape, eps=module.eps) if _trained(module.weight) else None
    )
    return _over_features(module, inputs, normalized, gradients)


def group_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over groups of channels."""
    normalized = functional.group_norm(inputs, module.num_groups, eps=module.eps) if _trained(module.weight) else None
    return _over_channels(module, normalized, gradients)


def instance_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over each channel of each example."""
    if inputs.ndim != _INSTANCE_DIMENSIONS[next(kind for kind in _INSTANCE_DIMENSIONS if isinstance(module, kind))]:
        raise ValueError(f"its input has shape {tuple(inputs.shape)}: must have a batch dimension")
    return _over_channels(module, functional.instance_norm(inputs, eps=module.eps), gradients)


def batch_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """By the running statistics, which are constants in evaluation mode."""
    if not _trained(module.weight):
        return _over_channels(module, None, gradients)
    along = (1, -1, *[1] * (inputs.ndim - 2))
    scale = torch.rsqrt(module.running_var.to(inputs) + module.eps)
    return _over_channels(module, (inputs - module.running_mean.to(inputs).view(along)) * scale.view(along), gradients)


def _over_features(module: nn.Module, inputs: Tensor, normalized: Tensor | None, gradients: Tensor) -> Parts:
    width = len(module.normalized_shape)
    if inputs.ndim <= width:
        raise ValueError(f"its input has shape {tuple(inputs.shape)}: must have a batch dimension")
    middle = tuple(range(1, inputs.ndim - width))
    return _affine(module, normalized, gradients, middle)


def _over_channels(module: nn.Module, normalized: Tensor | None, gradients: Tensor) -> Parts:
    return _affine(module, normalized, gradients, tuple(range(2, gradients.ndim)))


def _affine(module: nn.Module, normalized: Tensor | None, gradients: Tensor, others: tuple[int, ...]) -> Parts:
    if normalized is not None and _trained(module.weight):
        yield module.weight, Rows(_total(normalized * gradients, others))
    if _trained(getattr(module, "bias", None)):
        yield module.bias, Rows(_total(gradients, others))


def _total(values: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    return (values.sum(dim=dimensions) if dimensions else values).flatten(1)


def _trained(parameter: nn.Parameter | None) -> bool:
    return parameter is not None and parameter.requires_grad
