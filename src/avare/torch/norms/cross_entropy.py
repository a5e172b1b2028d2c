"""Softmax minus one-hot class: the gradient of the cross-entropy in its logits, its norms, and the losses with them.

`losses_and_norms` computes all in one pass. PyTorch's ``cross_entropy`` keeps the logarithms of the
softmax, and computes the gradient from these in the backward pass. Here the forward pass computes the gradient itself:
one tensor of the logits' size, kept in place of the logarithms. Its norms then cost little, and the backward pass is a
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
_FLOATS = (torch.float32, torch.float64)
_FEW = 2**16  # logits; for more, operations are faster
_SMALL = 1e-30  # a smaller probability may be rounded


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


def plain_norms(logits: Any, target: Any, most: int = _FEW) -> Tensor | None:
    """Return the norms of a limited number of logits, (batch, classes), on the CPU.

    A few are read by one loop, which takes less time than operations to start. None in any other case, and if a class
    or a logit is not valid.
    """
    size = logits.numel() if _are_plain(logits, target) else most + 1
    if size > most:
        return None
    if size > _FEW:
        found = _by_one_loop(logits.detach(), target)
        return found and found[1]
    rows = logits.detach().numpy()
    norms = np.empty(len(rows), dtype=rows.dtype)
    return torch.from_numpy(norms) if _softmax_norms(rows, target.numpy(), norms) else None


def count_targets(target: Tensor) -> Tensor:
    """Return how many class indices of each example count."""
    return target.ne(IGNORED).reshape(len(target), -1).sum(dim=1)


def class_gradients(rows: Tensor, classes: Tensor, label_smoothing: float = 0.0, out: Tensor | None = None) -> Tensor:
    """Return the gradient of each row's cross-entropy in its logits, in float32 or wider."""
    space = None if out is None else out.resize_(0)
    softmax = torch.softmax(rows, 1, torch.promote_types(rows.dtype, torch.float32), out=space)
    return _subtract(softmax, classes, label_smoothing)


class _CrossEntropy(torch.autograd.Function):
    """The function of `losses_and_norms`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        rows, classes = logits.detach().flatten(0, -2), target.flatten()
        found = _by_one_loop(rows, classes) if label_smoothing == 0.0 and _are_plain(rows, classes) else None
        losses, norms, gradient = found or _by_operations(rows, classes, label_smoothing)
        if target.ndim > 1:  # sums of fewer squares at a time are more accurate
            losses = losses.view(target.shape).flatten(1).sum(dim=1)
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


def _are_plain(logits: Any, target: Any) -> bool:
    """Whether a kernel can read these: rows of logits and their classes, in memory that is contiguous."""
    if not (type(logits) is type(target) is Tensor and logits.is_cpu and target.is_cpu) or is_compiling():
        return False
    if logits.ndim != 2 or target.shape != logits.shape[:1]:
        return False
    is_common = logits.dtype in _FLOATS and target.dtype is torch.int64
    return bool(is_common and logits.is_contiguous() and target.is_contiguous())


def _by_one_loop(rows: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Do the same as `_by_operations` with fewer of them; None if a class is not valid."""
    losses, gradient = rows.new_empty(len(rows)), torch.softmax(rows, 1)
    if not _subtract_classes(rows.numpy(), classes.numpy(), gradient.numpy(), losses.numpy()):
        return None
    return losses, torch.linalg.vector_norm(gradient, dim=1), gradient


def _by_operations(rows: Tensor, classes: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the norm and the gradient of each row, on any device."""
    ignored = classes == IGNORED
    classes = classes.long().masked_fill(ignored, 0)
    softmax = torch.softmax(rows, 1, torch.promote_types(rows.dtype, torch.float32))
    own = softmax.gather(1, classes.unsqueeze(1)).squeeze(1)
    if is_compiling() or label_smoothing != 0.0 or not (own > _SMALL).all():
        # By the largest probability, which is not rounded to 0 as that of the class may be.
        highest, surprise = rows.amax(dim=1), -softmax.amax(dim=1).log()
        losses = highest - rows.gather(1, classes.unsqueeze(1)).squeeze(1).to(softmax) + surprise
        if label_smoothing != 0.0:
            of_all = highest - rows.mean(dim=1, dtype=own.dtype) + surprise
            losses = (1.0 - label_smoothing) * losses + label_smoothing * of_all
    else:
        losses = -own.log()
    losses.masked_fill_(ignored, 0.0)
    gradient = _subtract(softmax, classes, label_smoothing)
    if is_compiling():
        gradient.masked_fill_(ignored.unsqueeze(1), 0.0)
    else:  # without a pass over all rows
        gradient.index_fill_(0, ignored.nonzero().squeeze(1), 0.0)
    return losses, torch.linalg.vector_norm(gradient, dim=1), gradient


def _subtract(softmax: Tensor, classes: Tensor, label_smoothing: float) -> Tensor:
    """Subtract the smoothed one-hot class of each row, in place."""
    own = classes.unsqueeze(1)
    if label_smoothing != 0.0:
        softmax -= label_smoothing / softmax.shape[1]
    return softmax.scatter_add_(1, own, softmax.new_full((), label_smoothing - 1.0).expand_as(own))


# --- kernels -------------------------------------------------------------------------------


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
        norms[i] = math.sqrt(squares + others * others) / total  # accurate if the probability is rounded to 1
    return True


@lean
def _subtract_classes(logits, classes, softmax, losses):
    """Write the losses, and subtract the one-hot class of each row from the softmax; return False if one is invalid."""
    for i in range(len(logits)):
        own = classes[i]
        if own == IGNORED:
            softmax[i], losses[i] = 0.0, 0.0
            continue
        if not 0 <= own < logits.shape[1]:
            return False
        top = own
        if not softmax[i, own] > _SMALL:
            top = softmax[i].argmax()
        losses[i] = float(logits[i, top]) - float(logits[i, own]) - math.log(softmax[i, top])
        softmax[i, own] -= 1.0
    return True
