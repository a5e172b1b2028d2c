"""Softmax minus one-hot class: the gradient of the cross-entropy in its logits, its norms, and the losses with them.

`losses_and_norms` computes all in one pass. PyTorch's ``cross_entropy`` keeps the logarithms of the
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

IGNORED = -100
"""The class index that does not count, in PyTorch's losses."""
AT_A_TIME = 2**21
"""How many logits are read at a time: few megabytes, and few operations to start."""
_FEW = 2**16  # logits; for more, torch is faster than the kernel
_SMALL = 1e-30  # the logarithm of a smaller probability is taken from the logits: it may be rounded to 0


def losses_and_norms(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of each example, and the norm of its gradient in the logits. O(logits).

    The values agree with ``F.cross_entropy(..., reduction="none")``, summed, and with `output_norms`. A target of -100
    does not count, whatever its logits are. Gradients can be computed several times, but not differentiated again.

    Parameters
    ----------
    logits : Tensor
        Of shape (batch, ..., classes), in any precision.
    target : Tensor
        Class indices, of shape (batch, ...).
    label_smoothing : float, default=0.0
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
                raise IndexError(f"target has {classes[wrong].item()}: must be in [0, {rows.shape[1]}), or {IGNORED}")
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


def plain_norms(logits: Any, target: Any, class_dim: int) -> Tensor | None:
    """Return the norm of each example's softmax minus one-hot class, with kernels in place of dozens of operations.

    Return None unless there are class indices for contiguous logits on the CPU whose classes come last, and if a class
    or a norm is not valid.
    """
    if not (_are_common(logits, target) and logits.is_contiguous() and target.is_contiguous() and target.numel()):
        return None
    if class_dim not in (-1, logits.ndim - 1) or target.shape != logits.shape[:-1]:
        return None
    rows, classes, dtype = logits.detach(), target.numpy(), np.float32 if logits.dtype is torch.float32 else np.float64
    norms = np.zeros(classes.size, dtype=dtype)
    if logits.ndim == 2 and logits.numel() <= _FEW:
        return torch.from_numpy(norms) if _softmax_norms(rows.numpy(), classes, norms) else None
    rows, classes = rows.flatten(0, -2), classes.reshape(-1)
    count = max(1, AT_A_TIME // max(rows.shape[1], 1))
    for first in range(0, len(rows), count):
        read: Any = slice(first, first + count)
        some, own = rows[read], classes[read]
        if 2 * np.count_nonzero(own == IGNORED) > len(own):  # otherwise read all: a view is faster than a copy of some
            read = first + np.flatnonzero(own != IGNORED)
            some, own = rows.index_select(0, torch.from_numpy(read)), classes[read]
        gradient = torch.softmax(some, 1)
        if not _subtract_one_hot(gradient.numpy(), own):
            return None
        norms[read] = torch.linalg.vector_norm(gradient, dim=1).numpy()
    positions = norms.reshape(len(target), -1)
    found = np.sqrt(np.einsum("ij,ij->i", positions, positions))
    return torch.from_numpy(found) if math.isfinite(found.sum()) else None


def softmax_minus_target(rows: Tensor, classes: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the gradient of each row's cross-entropy in its logits, in float32 or wider, on any device."""
    return _subtract(torch.softmax(rows, 1, torch.promote_types(rows.dtype, torch.float32)), classes, label_smoothing)


def _subtract(softmax: Tensor, classes: Tensor, label_smoothing: float) -> Tensor:
    """Subtract the smoothed one-hot class of each row, in place."""
    if label_smoothing != 0.0:
        softmax -= label_smoothing / softmax.shape[1]
    own = classes.unsqueeze(1)
    return softmax.scatter_add_(1, own, softmax.new_full((), label_smoothing - 1.0).expand_as(own))


def _are_common(rows: Any, classes: Any) -> bool:
    """Whether a kernel can replace a dozen operations, each of which takes longer to start than to run."""
    if not (type(rows) is type(classes) is Tensor and rows.is_cpu and classes.is_cpu) or is_compiling():
        return False
    return rows.dtype in (torch.float32, torch.float64) and classes.dtype is torch.int64


def _by_operations(rows: Tensor, classes: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its gradient, on any device."""
    ignored = classes == IGNORED
    own = classes.long().masked_fill(ignored, 0)
    logarithms = torch.log_softmax(rows, 1, torch.promote_types(rows.dtype, torch.float32))
    losses = -logarithms.gather(1, own.unsqueeze(1)).squeeze(1)
    if label_smoothing != 0.0:
        losses = (1.0 - label_smoothing) * losses - label_smoothing * logarithms.mean(dim=1)
    gradient = _subtract(logarithms.exp_(), own, label_smoothing)
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
            if own == IGNORED:
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


@lean
def _subtract_one_hot(gradient, classes):
    """Do the same without the losses; return False if a class is not valid."""
    for j in range(len(classes)):
        own = classes[j]
        if own == IGNORED:
            gradient[j] = 0.0
        elif 0 <= own < gradient.shape[1]:
            gradient[j, own] -= 1.0
        else:
            return False
    return True


@lean
def _softmax_norms(logits, classes, norms):
    """Write the norm of softmax minus one-hot class, row by row; return False if a class or a logit is not valid."""
    for i in range(len(logits)):
        own = classes[i]
        if not 0 <= own < logits.shape[1]:
            return False
        highest = logits[i, own]
        for k in range(logits.shape[1]):
            highest = max(highest, logits[i, k])
        others, squares = 0.0, 0.0
        for k in range(logits.shape[1]):
            if k != own:
                mass = np.float64(math.exp(logits[i, k] - highest))
                others += mass
                squares += mass * mass
        total = others + math.exp(logits[i, own] - highest)
        if not total >= 1.0:  # the highest counts for 1, if all are numbers
            return False
        norms[i] = math.sqrt(squares + others * others) / total
    return True
