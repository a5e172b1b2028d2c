"""Convolutions: linear layers on patches."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional

from avare.torch.layers.parts import Outer, Part, Rows


def convolution(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Iterator[tuple[nn.Parameter, Part]]:
    """The gradient of the weight is the sum over places of the outer products of output's gradient and patch."""
    dimensions = len(module.kernel_size)
    if inputs.ndim != dimensions + 2:
        raise ValueError(f"its input has shape {tuple(inputs.shape)}: must have a batch dimension")
    left = gradients.flatten(2)
    if module.weight.requires_grad:
        yield module.weight, Outer(left, _patches(module, inputs, tuple(gradients.shape[2:])), module.groups)
    if module.bias is not None and module.bias.requires_grad:
        yield module.bias, Rows(left.sum(dim=2))


def _patches(module: nn.Module, inputs: Tensor, places: tuple[int, ...]) -> Tensor:
    """A view of shape (batch, channels, *kernel, *places): what the kernel sees at each place."""
    padding = []
    for j in reversed(range(len(places))):
        if module.padding == "same":
            total = module.dilation[j] * (module.kernel_size[j] - 1)
            padding += [total // 2, total - total // 2]
        else:
            each = 0 if module.padding == "valid" else module.padding[j]
            padding += [each, each]
    if any(padding):
        inputs = functional.pad(
            inputs, padding, mode="constant" if module.padding_mode == "zeros" else module.padding_mode
        )
    batch, channel, *steps = inputs.stride()
    within = [step * dilation for step, dilation in zip(steps, module.dilation, strict=True)]
    between = [step * stride for step, stride in zip(steps, module.stride, strict=True)]
    shape = (*inputs.shape[:2], *module.kernel_size, *places)
    return inputs.as_strided(shape, (batch, channel, *within, *between))
