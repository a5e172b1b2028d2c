"""Cross-entropy of class indices with the norms of its gradients, in one pass.

The gradient of a loss in its logits is softmax minus target. PyTorch's ``cross_entropy`` keeps the logarithms of the
softmax, and computes the gradient from these in the backward pass. Here the forward pass computes the gradient itself:
one tensor of the logits' size, kept in place of the logarithms. Its norms are then at hand, and the backward pass is a
product.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from avare._compilation import lean

_IGNORED = -100
_SMALL = 1e-30  # the logarithm of a smaller probability is taken from the logits: it may be rounded to 0


def losses_and_norms(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of each example, and the norm of its gradient in the logits. O(logits).

    The values are those of ``F.cross_entropy(..., reduction="none")``, summed, and of `output_norms`. A target of -100
    does not count, whatever its logits are. Gradients can be computed several times, but not differentiated again.

    Parameters
    ----------
    logits
        Of shape (batch, ..., classes), in any precision.
    target
        Class indices, of shape (batch, ...).
    label_smoothing
        In [0, 1].

    Returns
    -------
    tuple of Tensor
        Both of shape (batch,), in float32 or, if the logits are, float64. The norms are detached.

    Examples
    --------
    >>> logits = torch.tensor([[[0.0, 0.0], [9.0, -9.0]]], requires_grad=True)
    >>> losses, norms = losses_and_norms(logits, torch.tensor([[0, -100]]))
    >>> losses.detach(), norms
    (tensor([0.6931]), tensor([0.7071]))
    """
    found: tuple[Tensor, Tensor] = _CrossEntropy.apply(logits, target, label_smoothing)
    return found


class _CrossEntropy(torch.autograd.Function):
    """The function of `losses_and_norms`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        rows, classes = logits.detach().flatten(0, -2), target.flatten()
        if label_smoothing == 0.0 and _are_common(rows, classes):
            losses, gradient = rows.new_empty(len(target)), torch.softmax(rows, 1)
            wrong = _subtract_classes(rows.numpy(), classes.numpy(), gradient.numpy(), losses.numpy())
            if wrong >= 0:
                raise IndexError(f"target has {classes[wrong].item()}: must be in [0, {rows.shape[1]}), or {_IGNORED}")
        else:
            losses, gradient = _by_operations(rows, classes, label_smoothing)
            losses = losses.view(target.shape).flatten(1).sum(dim=1) if target.ndim > 1 else losses
        norms = torch.linalg.vector_norm(gradient, dim=1)
        if target.ndim > 1:  # sums of fewer squares at a time are more accurate
            norms = torch.linalg.vector_norm(norms.view(target.shape).flatten(1), dim=1)
        ctx.save_for_backward(gradient.view(logits.shape))
        ctx.mark_non_differentiable(norms)
        return losses, norms

    @staticmethod
    def backward(ctx: Any, of_losses: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # the gradient is stored as a constant, which has no derivative
            raise NotImplementedError(
                "create_graph=True: the gradient of this loss cannot be differentiated; use "
                "torch.nn.functional.cross_entropy (in a Trainer, override example_losses)"
            )
        (gradient,) = ctx.saved_tensors
        return gradient * of_losses.view(-1, *[1] * (gradient.ndim - 1)), None, None


def _are_common(rows: Tensor, classes: Tensor) -> bool:
    """Whether a kernel can replace a dozen operations, each of which takes longer to start than to run."""
    if not (type(rows) is type(classes) is Tensor and rows.is_cpu and classes.is_cpu) or is_compiling():
        return False
    return rows.dtype in (torch.float32, torch.float64) and classes.dtype is torch.int64


def _by_operations(rows: Tensor, classes: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its gradient, on any device."""
    ignored = classes == _IGNORED
    own = classes.long().masked_fill(ignored, 0).unsqueeze(1)
    logarithms = torch.log_softmax(rows, 1, torch.promote_types(rows.dtype, torch.float32))
    losses = -logarithms.gather(1, own).squeeze(1)
    if label_smoothing != 0.0:
        losses = (1.0 - label_smoothing) * losses - label_smoothing * logarithms.mean(dim=1)
    gradient = logarithms.exp_()
    if label_smoothing != 0.0:
        gradient -= label_smoothing / rows.shape[1]
    gradient.scatter_add_(1, own, gradient.new_full((), label_smoothing - 1.0).expand_as(own))
    return losses.masked_fill_(ignored, 0.0), gradient.masked_fill_(ignored.unsqueeze(1), 0.0)


# --- kernels -------------------------------------------------------------------------------


@lean
def _subtract_classes(rows, classes, gradient, losses):
    """Make gradients of the softmax, and add up the losses of each example; return the place of an invalid class."""
    length = len(classes) // max(len(losses), 1)
    for i in range(len(losses)):
        loss = 0.0
        for j in range(i * length, (i + 1) * length):
            own = classes[j]
            if own == _IGNORED:
                gradient[j] = 0.0
                continue
            if not 0 <= own < rows.shape[1]:
                return j
            top = own
            if not gradient[j, own] >= _SMALL:
                for k in range(rows.shape[1]):
                    if gradient[j, k] > gradient[j, top]:
                        top = k
            loss += np.float64(rows[j, top]) - rows[j, own] - math.log(gradient[j, top])
            gradient[j, own] -= 1.0
        losses[i] = loss
    return -1
