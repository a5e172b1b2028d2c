"""A torch layer from outside the package: a learned scale per feature, with its rule for gradient norms."""

import torch
from torch import Tensor, nn

from avare.torch.norms.layers import Dense, Parts, register


class Scale(nn.Module):  # type: ignore[misc]  # mypy skips torch
    """Multiply each feature by a learned factor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@register(Scale, parameters=["factor"])
def scale(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Parts:
    """The gradient of a factor is the sum over all positions of input times output gradient."""
    product = inputs * gradients
    yield module.factor, Dense(product.flatten(1, -2).sum(1) if product.ndim > 2 else product)
