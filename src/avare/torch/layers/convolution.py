"""Convolutions: linear layers on patches."""

from torch import Tensor, nn
from torch.nn import functional

from avare.torch.layers.parts import Dense, Outer
from avare.torch.layers.registry import Parts, is_trained, register, require_batch


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
    padding = []
    for j in reversed(range(len(places))):
        if module.padding == "same":
            total = module.dilation[j] * (module.kernel_size[j] - 1)
            padding += [total // 2, total - total // 2]
        else:
            padding += [0 if module.padding == "valid" else module.padding[j]] * 2
    if any(padding):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = functional.pad(inputs, padding, mode=mode)
    batch, channel, *steps = inputs.stride()
    within = [step * dilation for step, dilation in zip(steps, module.dilation, strict=True)]
    between = [step * stride for step, stride in zip(steps, module.stride, strict=True)]
    shape = (*inputs.shape[:2], *module.kernel_size, *places)
    return inputs.as_strided(shape, (batch, channel, *within, *between))
