"""Gradient norms at the output of a model, in closed form: no backward pass.

The norm of an example's gradient in the output bounds that in the parameters, up to a factor that changes
slowly from example to example. For a sampler this is usually enough, and it costs next to nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from avare import _validation as validation
from avare.torch.cross_entropy import IGNORED, softmax_minus_target

LossName = Literal["cross_entropy", "binary", "squared"]
NotFinite = Literal["raise", "keep"]
Reduction = Literal["sum", "mean", "all"]
_AT_A_TIME = 2**21  # logits, if an example has fewer: some megabytes, and few operations to start
_LOSSES: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {  # by name: PyTorch's, and their options
    "cross_entropy": (F.cross_entropy, ("class_weight", "label_smoothing", "ignore_index", "class_dim")),
    "binary": (F.binary_cross_entropy_with_logits, ("pos_weight",)),
    "squared": (F.mse_loss, ()),
}


def output_norms(
    output: Tensor,
    target: Tensor,
    loss: LossName = "cross_entropy",
    *,
    class_weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    class_dim: int = 1,
    reduction: Reduction = "sum",
    not_finite: NotFinite = "raise",
) -> Tensor:
    r"""Return the norm of each example's gradient in the output, :math:`\|\partial \ell_i / \partial z_i\|`. O(output).

    With class indices at many positions, as in language models, the output is read some examples at a time: no second
    tensor of its size is made, and positions that do not count have no effect.

    Parameters
    ----------
    output : Tensor
        z: logits, or predictions for "squared". The batch comes first; for "cross_entropy" the
        classes second, as in ``torch.nn.functional.cross_entropy``, or where ``class_dim`` says.
    target : Tensor
        Class indices, or class probabilities in the shape of ``output``, for "cross_entropy";
        numbers in [0, 1] for "binary", any for "squared".
    loss : {"cross_entropy", "binary", "squared"}, default="cross_entropy"
        "cross_entropy"; "binary", the cross-entropy of a logit with its sigmoid, for one or
        many labels; or "squared", the squared error.
    class_weight : Tensor, optional
        For "cross_entropy": a factor for each class.
    pos_weight : Tensor, optional
        For "binary": a factor for the positive part, of each label.
    label_smoothing : float, default=0.0
        For "cross_entropy": in [0, 1].
    ignore_index : int, optional
        For class indices: the target that does not count, by default -100. Its norm is 0.
    class_dim : int, default=1
        For "cross_entropy": the dimension of the classes. -1 for logits of shape (batch, time, vocabulary).
    reduction : {"sum", "mean", "all"}, default="sum"
        What the loss of an example is: the "sum" over its positions or entries that count, the "mean" over them, or
        their sum divided by the number of "all" that count in the batch.
    not_finite : {"raise", "keep"}, default="raise"
        "raise" an error if the output, or the target, is not finite, or "keep" a norm that is not finite
        either, for ``loader.update(index, norms, not_finite="skip")``.

    Returns
    -------
    Tensor
        Of shape (batch,), detached, in float32 or, if the output is, float64.

    Examples
    --------
    >>> output_norms(torch.tensor([[0.0, 0.0], [9.0, -9.0]]), torch.tensor([0, 1]))
    tensor([0.7071, 1.4142])
    >>> output_norms(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), loss="squared")
    tensor([4., 0.])
    >>> output_norms(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]), class_dim=-1, reduction="mean")
    tensor([0.5000])
    """
    given = class_weight, pos_weight, label_smoothing, ignore_index, class_dim, reduction, not_finite
    options = _Loss(loss, *given)
    found, counts = options.norms(output, target)
    return options.reduced(_row_norms(found), counts)


def last_layer_norms(
    features: Tensor,
    output: Tensor,
    target: Tensor,
    loss: LossName = "cross_entropy",
    *,
    bias: bool = True,
    **options: Any,
) -> Tensor:
    r"""Return the norm of each example's gradient in a last, linear layer. O(features + output).

    For :math:`z_i = W x_i + b` it is :math:`\|\partial \ell_i / \partial z_i\| \sqrt{\|x_i\|^2 + 1}`: exact.

    At many positions t, :math:`z_{it} = W x_{it} + b`, it is the sum over t of the same product, an upper bound, which
    is exact if one position counts. The exact norm needs all products of positions: `GradientNorms` computes it.

    Parameters
    ----------
    features : Tensor
        x, the input of the layer, of shape (batch, features) or (batch, ..., features).
    output : Tensor
        z, its output, of shape (batch,) or (batch, outputs), or with the classes where ``class_dim`` says.
    bias : bool, default=True
        Whether the layer has a trained bias.
    target, loss, **options
        See `output_norms`.

    Examples
    --------
    >>> features = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> last_layer_norms(features, torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([3.6056, 0.7071])
    """
    _require_floating("features", features)
    bias = validation.boolean("bias", bias)
    given = _Loss(loss, **options)
    found, counts = given.norms(output, target)
    if output.ndim > 2 and found.ndim != output.ndim - 1:
        raise ValueError(
            f"output has shape {tuple(output.shape)}: must be (batch,) or (batch, outputs), or have class indices at "
            "many positions; for other layers applied to many positions, use GradientNorms"
        )
    if features.shape[:-1] != found.shape:
        wanted = ", ".join(map(str, (*found.shape, "features")))
        raise ValueError(f"features has shape {tuple(features.shape)}: must have ({wanted}), as target")
    sizes = torch.linalg.vector_norm(features.detach(), dim=-1, dtype=found.dtype)
    if bias:
        sizes = torch.hypot(sizes, torch.ones_like(sizes))
    norms = (found * sizes).flatten(1).sum(dim=1) if found.ndim > 1 else found * sizes
    return given.reduced(_finite(norms, {"features": features}, given.not_finite), counts)


def from_output_grad(grad: Tensor, *, not_finite: NotFinite = "raise") -> Tensor:
    """Return the norm of each row of gradients, for any loss. O(grad).

    Parameters
    ----------
    grad : Tensor
        The gradient of each example's own loss in its output, the batch first: for example
        ``torch.autograd.grad(losses.sum(), output)[0]``.
    not_finite : {"raise", "keep"}, default="raise"
        "raise" an error, or "keep" norms that are not finite, as in `output_norms`.

    Examples
    --------
    >>> from_output_grad(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([5., 1.])
    """
    grad = _floating("grad", grad)
    check_not_finite(not_finite)
    if grad.ndim == 0:
        raise ValueError("grad has shape (): must have the batch as its first dimension")
    return _finite(_row_norms(grad), {"grad": grad}, not_finite)


def check_not_finite(not_finite: str) -> None:
    """Raise an error for any other way to treat values that are not finite."""
    if not_finite not in ("raise", "keep"):
        raise ValueError(f"not_finite = {not_finite!r}: must be 'raise' or 'keep'")


def gradient_in(output: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient of a sum of losses in the output of a model, which is a constant here."""
    leaf = output.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(total(leaf), leaf)
    found: Tensor = gradient
    return found


@dataclass(frozen=True, eq=False)
class _Loss:
    """A loss and its options: see `output_norms`."""

    name: str
    class_weight: Any = None
    pos_weight: Any = None
    label_smoothing: float = 0.0
    ignore_index: int | None = None
    class_dim: int = 1
    reduction: str = "sum"
    not_finite: NotFinite = "raise"

    def __post_init__(self) -> None:
        check_not_finite(self.not_finite)
        if self.name not in _LOSSES:
            raise ValueError(f"loss = {self.name!r}: must be one of {', '.join(map(repr, _LOSSES))}")
        if self.reduction not in ("sum", "mean", "all"):
            raise ValueError(f"reduction = {self.reduction!r}: must be 'sum', 'mean' or 'all'")
        validation.number("label_smoothing", self.label_smoothing, at_least=0.0, at_most=1.0)
        for field in fields(self):
            value = getattr(self, field.name)
            is_given = value is not None if field.default is None else value != field.default
            if is_given and field.name not in ("name", "reduction", "not_finite", *_LOSSES[self.name][1]):
                raise ValueError(f"{field.name} is given: it has no meaning for loss = {self.name!r}")

    def norms(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norm of each example, or at each position of class indices; and how many entries count in each."""
        _require_floating("output", output)
        if not isinstance(target, Tensor):
            raise TypeError(f"target is of type {type(target).__name__}: must be a tensor")
        least = 2 if self.name == "cross_entropy" else 1
        if output.ndim < least:
            wanted = "(batch, classes) or (batch, classes, ...)" if least == 2 else "(batch, ...)"
            raise ValueError(f"output has shape {tuple(output.shape)}: must be {wanted}")
        output, target = output.detach(), target.detach()
        if self.name == "cross_entropy":
            place = validation.integer("class_dim", self.class_dim, at_least=1 - output.ndim, at_most=output.ndim - 1)
            if place == 0:
                raise ValueError("class_dim = 0: that is the batch")
            if not target.is_floating_point():
                return self._norms_of_indices(output.movedim(place, -1), target, output)
            _require_shape(target, output.shape, "class probabilities", output)
            if self.ignore_index is not None:
                raise ValueError(f"ignore_index = {self.ignore_index}: it has no meaning for class probabilities")
            logits, likely = output.movedim(place, 1), target.movedim(place, 1)
            gradient, count = self._gradient(logits, likely), logits[:1, :1].numel()
        else:
            target = _matching(output, target)
            if self.name == "binary":
                _refuse("target", target, ~((target >= 0.0) & (target <= 1.0)), "must be in [0, 1]")
            gradient, count = self._gradient(output, target), output[:1].numel()
        norms = _finite(_row_norms(gradient), {"output": output, "target": target}, self.not_finite)
        return norms, torch.tensor(count)

    def reduced(self, norms: Tensor, counts: Tensor) -> Tensor:
        """Divide the norms of sums by what `reduction` says."""
        if self.reduction == "sum":
            return norms
        total = counts.expand_as(norms).sum() if self.reduction == "all" else counts
        return norms / total.clamp(min=1).to(norms)

    def _norms_of_indices(self, logits: Tensor, target: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """Read some examples at a time. Positions that do not count have no effect."""
        if target.dtype == torch.bool or target.is_complex():
            raise TypeError(f"target has dtype {target.dtype}: must hold class indices or class probabilities")
        shape, classes = logits.shape[:-1], logits.shape[-1]
        _require_shape(target, shape, "class indices", output)
        ignored = target == (IGNORED if self.ignore_index is None else self.ignore_index)
        own = target.long().masked_fill(ignored, 0)
        if own.numel() and not (own.min() >= 0 and own.max() < classes):
            _refuse("target", target, ~ignored & ((target < 0) | (target >= classes)), f"must be in [0, {classes})")
        some = max(1, _AT_A_TIME // max(logits[:1].numel(), 1))
        found = [
            _row_norms(self._gradient(part.flatten(0, -2), classes.flatten()))
            for part, classes in zip(logits.split(some), own.split(some), strict=True)
        ]
        norms = torch.cat(found).view(shape).masked_fill_(ignored, 0.0)
        counts = (~ignored).long() if len(shape) == 1 else (~ignored).flatten(1).sum(dim=1)
        return _finite(norms, {"output": output}, self.not_finite), counts

    def _gradient(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the gradient of the summed loss; classes are at dimension 1, and ignored targets are left out."""
        if self.name == "cross_entropy" and self.class_weight is None and not target.is_floating_point():
            return softmax_minus_target(output, target, self.label_smoothing)
        wide = _floating("output", output)
        options: dict[str, Any] = {"reduction": "sum"}
        if self.label_smoothing != 0.0:
            options["label_smoothing"] = self.label_smoothing
        for name, value in (("weight", self.class_weight), ("pos_weight", self.pos_weight)):
            if value is not None:
                options[name] = torch.as_tensor(value).detach().to(wide)
        target = target.to(wide) if self.name != "cross_entropy" or target.is_floating_point() else target
        return gradient_in(wide, lambda z: _LOSSES[self.name][0](z, target, **options))


def _row_norms(values: Tensor) -> Tensor:
    """Return the norm of each example's values."""
    return values.abs() if values.ndim == 1 else torch.linalg.vector_norm(values.flatten(1), dim=1)


def _matching(output: Tensor, target: Tensor) -> Tensor:
    """Return the target in output's shape; (batch,) and (batch, 1) match, and nothing else is broadcast."""
    shapes = {tuple(output.shape), tuple(target.shape)}
    if len(shapes) > 1 and shapes != {(len(output),), (len(output), 1)}:
        raise ValueError(f"target has shape {tuple(target.shape)}: must match output, which has {tuple(output.shape)}")
    return target.reshape(output.shape)


def _require_shape(target: Tensor, wanted: torch.Size, kind: str, output: Tensor) -> None:
    """Raise an error if targets do not fit the output."""
    if target.shape != wanted:
        raise ValueError(
            f"target has shape {tuple(target.shape)}: {kind} must have {tuple(wanted)}, "
            f"as output has {tuple(output.shape)}"
        )


def _floating(name: str, values: Any) -> Tensor:
    """Return a detached tensor of float32 or float64."""
    _require_floating(name, values)
    detached: Tensor = values.detach()
    return detached.to(torch.promote_types(values.dtype, torch.float32))


def _require_floating(name: str, values: Any) -> None:
    """Raise an error unless these are floating-point numbers."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} is of type {type(values).__name__}: must be a tensor")
    if not values.is_floating_point():
        raise TypeError(f"{name} has dtype {values.dtype}: must hold floating-point numbers")


def _finite(result: Tensor, sources: dict[str, Tensor], not_finite: NotFinite) -> Tensor:
    """Return the result, or raise an error that names what in the sources makes it NaN or infinite."""
    if not_finite == "raise" and not math.isfinite(result.sum().item()) and not torch.isfinite(result).all():
        for name, values in sources.items():
            _refuse_infinite(name, values)
        example = (~torch.isfinite(result)).nonzero()[0, 0].item()
        raise ValueError(f"the norm of example {example} is too large for {result.dtype}")
    return result


def _refuse_infinite(name: str, values: Tensor) -> None:
    """Raise an error that names the first value that is NaN, or else infinite, if there is one."""
    _refuse(name, values, torch.isnan(values) | torch.isposinf(values), "must be finite")
    _refuse(name, values, ~torch.isfinite(values), "must be finite")


def _refuse(name: str, values: Tensor, wrong: Tensor, rule: str) -> None:
    """Raise an error that names the first wrong value, if there is one."""
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"{name}[{', '.join(map(str, place))}] = {values[place].item()}: {rule}")
