"""Embeddings."""

from torch import Tensor, nn

from avare.torch.layers.parts import OneHot
from avare.torch.layers.registry import Parts, refuse, register, require_batch


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
