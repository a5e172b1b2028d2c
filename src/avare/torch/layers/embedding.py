"""Embeddings."""

from collections.abc import Iterator

from torch import Tensor, nn

from avare.torch.layers.parts import OneHot, Part


def embedding(module: nn.Module, inputs: Tensor, gradients: Tensor) -> Iterator[tuple[nn.Parameter, Part]]:
    """The gradient of a row is the sum over the positions that look it up; that of padding does not count."""
    if inputs.ndim < 1:
        raise ValueError("its input has shape (): must have a batch dimension")
    indices = inputs.unsqueeze(1) if inputs.ndim == 1 else inputs.flatten(1)
    values = gradients.unsqueeze(1) if inputs.ndim == 1 else gradients.flatten(1, -2)
    if module.padding_idx is not None:
        values = values.masked_fill((indices == module.padding_idx).unsqueeze(2), 0.0)
    yield module.weight, OneHot(indices.long(), values, module.num_embeddings)
