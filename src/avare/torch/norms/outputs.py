"""Gradient norms at the output of a model, in closed form: no backward pass.

The norm of an example's gradient in the output bounds that in the parameters, up to a factor that changes
slowly from example to example. For a sampler this is usually enough, and it costs next to nothing.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from avare import _validation as validation
from avare.torch.norms.cross_entropy import IGNORED, class_gradients, count_targets, plain_norms

LossFunction = Callable[[Tensor, Any], Tensor]
"""A function of outputs and targets that returns the loss of each example, or at each of its positions."""
LossName = Literal["cross_entropy", "binary", "squared"]
NotFinite = Literal["raise", "keep"]
Reduction = Literal["sum", "mean", "all"]
_GRADIENTS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    "binary": lambda output, target: torch.sigmoid(output) - target,
    "squared": lambda output, target: 2.0 * (output - target),
}
_AT_A_TIME = 2**19  # logits, if an example has fewer: two megabytes, and few operations to start
_NEARLY_ONE = 1e-2  # what class probabilities in bfloat16 may miss it by


def output_norms(
    output: Tensor,
    target: Any,
    loss: LossName | LossFunction = "cross_entropy",
    *,
    label_smoothing: float = 0.0,
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
        Class indices, -100 where none counts, or class probabilities in the shape of ``output``, for "cross_entropy";
        numbers in [0, 1] for "binary", any for "squared"; for your own loss, what it takes.
    loss : {"cross_entropy", "binary", "squared"} or callable, default="cross_entropy"
        "cross_entropy"; "binary", the cross-entropy of a logit with its sigmoid, for one or
        many labels; or "squared", the squared error. Or your own: a function of ``output`` and ``target`` that
        returns the loss of each example, or at each of its positions, which are summed. It is differentiated in the
        output only, also under ``no_grad``. An example's loss must not depend on other examples.
    label_smoothing : float, default=0.0
        For "cross_entropy": in [0, 1].
    class_dim : int, default=1
        For "cross_entropy": the dimension of the classes. -1 for logits of shape (batch, time, vocabulary).
    reduction : {"sum", "mean", "all"}, default="sum"
        What the loss of an example is: the "sum" over its positions or entries that count, or their "mean". "all":
        their sum, divided by the number of all that count in the batch. Your own loss has its own reduction.
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
    >>> output_norms(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]), class_dim=-1)
    tensor([1.0000])
    >>> output_norms(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]), class_dim=-1, reduction="mean")
    tensor([0.5000])
    >>> output_norms(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), loss=lambda z, y: (z - y).abs())
    tensor([1., 0.])
    """
    validation.choice("not_finite", not_finite, ("raise", "keep"))
    if (loss, label_smoothing, class_dim, reduction) == ("cross_entropy", 0.0, 1, "sum"):
        few = plain_norms(output, target)
        if few is not None:
            return few
    norms = _row_norms(_norms(output, target, loss, label_smoothing, class_dim, not_finite))
    return norms if reduction == "sum" else norms / _divisors(output, target, loss, class_dim, reduction)


def last_layer_norms(
    features: Tensor,
    output: Tensor,
    target: Any,
    loss: LossName | LossFunction = "cross_entropy",
    *,
    bias: bool = True,
    label_smoothing: float = 0.0,
    class_dim: int = 1,
    reduction: Reduction = "sum",
    not_finite: NotFinite = "raise",
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
    target, loss, label_smoothing, class_dim, reduction, not_finite
        See `output_norms`.

    Examples
    --------
    >>> features = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> last_layer_norms(features, torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([3.6056, 0.7071])
    """
    _require_floating("features", features)
    bias = validation.boolean("bias", bias)
    found = _norms(output, target, loss, label_smoothing, class_dim, not_finite)
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
    if reduction != "sum":
        norms = norms / _divisors(output, target, loss, class_dim, reduction)
    return _finite(norms, {"features": features}, not_finite)


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
    if grad.ndim == 0:
        raise ValueError("grad has shape (): must have the batch as its first dimension")
    return _finite(_row_norms(grad), {"grad": grad}, not_finite)


def _norms(
    output: Tensor, target: Any, loss: Any, label_smoothing: float, class_dim: int, not_finite: NotFinite
) -> Tensor:
    """Return the norm of each example, or at each position of class indices."""
    _require_floating("output", output)
    has_classes = loss == "cross_entropy"
    if not (callable(loss) or has_classes or loss in _GRADIENTS):
        raise ValueError(f"loss = {loss!r}: must be a function, or one of 'cross_entropy', 'binary', 'squared'")
    if not has_classes and (label_smoothing, class_dim) != (0.0, 1):
        raise ValueError("label_smoothing and class_dim are for loss = 'cross_entropy' only")
    if output.ndim < 1 + has_classes:
        wanted = "(batch, classes) or (batch, classes, ...)" if has_classes else "(batch, ...)"
        raise ValueError(f"output has shape {tuple(output.shape)}: must be {wanted}")
    output, sources = output.detach(), {"output": output}
    if callable(loss):
        leaf = _floating("output", output).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(leaf, target).sum(), leaf)
        return _finite(_row_norms(gradient), sources, not_finite)
    if not isinstance(target, Tensor):
        raise TypeError(f"target is of type {type(target).__name__}: must be a tensor")
    if target.is_floating_point():
        sources["target"] = target
    if has_classes:
        norms = _norms_of_classes(output, target.detach(), label_smoothing, class_dim)
    else:
        target = _matching(output, target.detach())
        if loss == "binary":
            refuse_where(~((target >= 0.0) & (target <= 1.0)), "target", target, "must be in [0, 1]")
        wide = _floating("output", output)
        norms = _row_norms(_GRADIENTS[loss](wide, target.to(wide)))
    return _finite(norms, sources, not_finite)


def _norms_of_classes(output: Tensor, target: Tensor, smoothing: float, class_dim: int) -> Tensor:
    """Return the norms for class indices, at each position, or for class probabilities."""
    place = validation.integer("class_dim", class_dim, at_least=1 - output.ndim, at_most=output.ndim - 1)
    if place == 0:
        raise ValueError("class_dim = 0: that is the batch")
    smoothing = validation.number("label_smoothing", smoothing, at_least=0.0, at_most=1.0)
    logits = output.movedim(place, -1)
    if not target.is_floating_point():
        return _norms_of_indices(logits, target, output, smoothing)
    _require_shape(target, output.shape, "class probabilities", output)
    sums = target.sum(dim=1) if target.ndim == 2 else target.new_ones(0)
    for example in ((sums - 1.0).abs() > _NEARLY_ONE).nonzero().flatten().tolist():
        raise ValueError(
            f"target[{example}] has the sum {sums[example].item():.4g}: class probabilities must have the sum 1; for "
            "several labels of an example pass loss='binary'"
        )
    wide = _floating("output", logits)
    wanted = (1.0 - smoothing) * target.movedim(place, -1).to(wide) + smoothing / logits.shape[-1]
    gradient = torch.softmax(wide, -1) * wanted.sum(dim=-1, keepdim=True) - wanted
    return _row_norms(gradient)


def _norms_of_indices(logits: Tensor, target: Tensor, output: Tensor, smoothing: float) -> Tensor:
    """Read some examples, or positions, at a time. Positions that do not count have no effect."""
    shape, classes = logits.shape[:-1], logits.shape[-1]
    _require_shape(target, shape, "class indices", output)
    if smoothing == 0.0 and logits.is_contiguous():
        plain = plain_norms(logits.flatten(0, -2), target.flatten(), _AT_A_TIME)
        if plain is not None:
            return plain.view(shape)
    own, ignored = target.long(), None
    least, most = torch.aminmax(own) if own.numel() else (0, 0)
    if not 0 <= int(least) <= int(most) < classes:
        ignored = target == IGNORED
        refuse_where(~ignored & ((own < 0) | (own >= classes)), "target", target, f"must be in [0, {classes})")
        own = own.masked_fill(ignored, 0)
    if logits.is_contiguous():  # then positions are rows, of which some fit into the cache
        logits, own = logits.flatten(0, -2), own.flatten()
    some = max(1, _AT_A_TIME // max(logits[:1].numel(), 1))
    parts, space = list(zip(logits.split(some), own.split(some), strict=True)), None
    if len(parts) > 1:  # one part after another, in the same space
        space = logits.new_empty(0, dtype=torch.promote_types(logits.dtype, torch.float32))
    found = [
        _row_norms(class_gradients(part.flatten(0, -2), wanted.flatten(), smoothing, space)) for part, wanted in parts
    ]
    norms = torch.cat(found).view(shape)
    return norms if ignored is None else norms.masked_fill_(ignored, 0.0)


def _divisors(output: Tensor, target: Any, loss: Any, class_dim: int, reduction: str) -> Tensor:
    """Return what divides the sum of the losses of each example."""
    if reduction not in ("mean", "all") or callable(loss):
        raise ValueError(f"reduction = {reduction!r}: must be 'sum', 'mean' or 'all', and 'sum' for a loss of your own")
    has_classes = loss == "cross_entropy"
    if has_classes and not target.is_floating_point():
        counts = count_targets(target)
    else:
        entries = output[:1].numel() // (output.shape[class_dim] if has_classes else 1)
        counts = target.new_full((len(output),), entries)
    return (counts.sum() if reduction == "all" else counts).clamp(min=1)


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
    validation.choice("not_finite", not_finite, ("raise", "keep"))
    if not_finite == "raise" and not math.isfinite(result.sum().item()) and not torch.isfinite(result).all():
        for name, values in sources.items():  # a logit of -inf is valid: NaN and inf first
            refuse_where(torch.isnan(values) | torch.isposinf(values), name, values, "must be finite")
            refuse_where(~torch.isfinite(values), name, values, "must be finite")
        example = (~torch.isfinite(result)).nonzero()[0, 0].item()
        raise ValueError(f"the norm of example {example} is too large for {result.dtype}")
    return result


def refuse_where(wrong: Tensor, name: str, values: Tensor, rule: str) -> None:
    """Raise an error that names the first wrong value, if there is one."""
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"{name}[{', '.join(map(str, place))}] = {values[place].item()}: {rule}")
