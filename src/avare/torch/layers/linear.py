"""Linear layers, at one or many positions per example."""

from torch import Tensor, nn

from avare.torch.layers.parts import Dense, Outer
from avare.torch.layers.registry import Parts, is_trained, register, require_batch


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
