"""Linear layers, at one position an example or at many."""

from collections.abc import Iterator

from torch import Tensor, nn

from avare.torch.layers.parts import Outer, Part, Rows


def linear(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Iterator[tuple[nn.Parameter, Part]]:
    """The gradient of the weight is the sum over positions of the outer products of output's gradient and input."""
    if inputs.ndim < 2:
        raise ValueError(f"its input has shape {tuple(inputs.shape)}: must have a batch dimension")
    left, right = _positions(gradients), _positions(inputs)
    single = Rows(left.squeeze(1)) if left.shape[1] == 1 else None
    if module.weight.requires_grad:
        yield module.weight, Outer(left.mT, right.mT, rows_of_left=single)
    if module.bias is not None and module.bias.requires_grad:
        yield module.bias, single or Rows(left.sum(dim=1))


def _positions(values: Tensor) -> Tensor:
    """Of shape (batch, positions, width)."""
    return values.unsqueeze(1) if values.ndim == 2 else values.flatten(1, -2)
