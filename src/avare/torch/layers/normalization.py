"""Normalisations: a factor and an offset for each feature or channel of the normalised input."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from avare.torch.layers.parts import Dense
from avare.torch.layers.registry import Parts, is_trained, refuse, register, require_batch


@register(nn.LayerNorm)
def layer_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over the last dimensions."""
    return _over_features(module, functional.layer_norm, inputs, gradients)


@register(nn.RMSNorm)
def rms_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over the last dimensions, by their root mean square."""
    return _over_features(module, functional.rms_norm, inputs, gradients)


@register(
    "transformers.models.*RMSNorm", "transformers.models.*T5LayerNorm",
    parameters=["weight"], attributes=["variance_epsilon"],
)  # fmt: skip
def rms_norm_of_transformers(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over the last dimension, by its root mean square, as LLaMA and most models after it have it."""
    require_batch(inputs)
    shape = tuple(module.weight.shape)
    others = tuple(range(1, inputs.ndim - 1))
    return _affine(module, lambda: functional.rms_norm(inputs, shape, eps=module.variance_epsilon), gradients, others)


@register(nn.GroupNorm)
def group_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over groups of channels."""
    return _over_channels(module, lambda: functional.group_norm(inputs, module.num_groups, eps=module.eps), gradients)


@register(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """Over each channel of each example."""
    require_batch(inputs, module._get_no_batch_dim() + 1, exactly=True)
    return _over_channels(module, lambda: functional.instance_norm(inputs, eps=module.eps), gradients)


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
def batch_norm(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """By the running statistics, which are constants in evaluation mode."""

    def normalize() -> Tensor:
        along = (1, -1, *[1] * (inputs.ndim - 2))
        scale = torch.rsqrt(module.running_var.to(inputs) + module.eps)
        return (inputs - module.running_mean.to(inputs).view(along)) * scale.view(along)

    return _over_channels(module, normalize, gradients)


@refuse(_BatchNorm)
def mixes_examples(module: nn.Module) -> str | None:
    """In training mode, the statistics are those of the batch."""
    if module.training or module.running_mean is None:
        return (
            "it normalises by the statistics of the batch, so the loss of an example depends on the others, and no "
            "example has a gradient of its own: put it in evaluation mode, or use GroupNorm or LayerNorm instead"
        )
    return None


@refuse(_InstanceNorm)
def tracks_statistics(module: nn.Module) -> str | None:
    """Running statistics are those of all examples."""
    if module.track_running_stats:
        return "it keeps running statistics of all examples: make it with track_running_stats=False"
    return None


def _over_features(module: nn.Module, normalize: Callable[..., Tensor], inputs: Tensor, gradients: Tensor) -> Parts:
    shape = module.normalized_shape
    require_batch(inputs, len(shape) + 1)
    others = tuple(range(1, inputs.ndim - len(shape)))
    return _affine(module, lambda: normalize(inputs, shape, eps=module.eps), gradients, others)


def _over_channels(module: nn.Module, normalize: Callable[[], Tensor], gradients: Tensor) -> Parts:
    return _affine(module, normalize, gradients, tuple(range(2, gradients.ndim)))


def _affine(module: nn.Module, normalize: Callable[[], Tensor], gradients: Tensor, others: tuple[int, ...]) -> Parts:
    """The gradients of factor and offset; the input is normalised only if the factor is trained."""
    if is_trained(module.weight):
        yield module.weight, Dense(_total(normalize() * gradients, others))
    if is_trained(getattr(module, "bias", None)):
        yield module.bias, Dense(_total(gradients, others))


def _total(values: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    return (values.sum(dim=dimensions) if dimensions else values).flatten(1)
