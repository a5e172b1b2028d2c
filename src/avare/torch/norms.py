"""Gradient norms at the output of a model, in closed form: no backward pass.

The norm of an example's gradient in the output bounds that in the parameters, up to a factor that changes
slowly from example to example. For a sampler this is usually enough, and it costs next to nothing.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.compiler import is_compiling

from avare import _validation as validation
from avare._compilation import lean

LossName = Literal["cross_entropy", "binary", "squared"]
NotFinite = Literal["raise", "keep"]
Reduction = Literal["sum", "mean", "all"]
_DEFAULTS: dict[str, Any] = {
    "class_weight": None,
    "pos_weight": None,
    "label_smoothing": 0.0,
    "ignore_index": None,
    "class_dim": 1,
    "reduction": "sum",
    "not_finite": "raise",
}
_FLOATS = (torch.float32, torch.float64)
_SMALL = 2**16  # logits; for more, torch is faster than the kernel
_AT_A_TIME = 2**21  # logits of sequences: few megabytes, and few operations to start


class LossOptions(TypedDict, total=False):
    """The keyword arguments of `output_norms`, for functions that pass them on."""

    class_weight: Tensor | None
    pos_weight: Tensor | None
    label_smoothing: float
    ignore_index: int | None
    class_dim: int
    reduction: Reduction
    not_finite: NotFinite


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

    With class indices at many positions, as in language models, the output is read in parts that fit into the
    cache: no second tensor of its size is made, and positions that do not count have no effect.

    Parameters
    ----------
    output
        z: logits, or predictions for "squared". The batch comes first; for "cross_entropy" the
        classes second, as in ``torch.nn.functional.cross_entropy``, or where ``class_dim`` says.
    target
        Class indices, or class probabilities in the shape of ``output``, for "cross_entropy";
        numbers in [0, 1] for "binary", any for "squared".
    loss
        "cross_entropy"; "binary", the cross-entropy of a logit with its sigmoid, for one or
        many labels; or "squared", the squared error.
    class_weight
        For "cross_entropy": a factor for each class.
    pos_weight
        For "binary": a factor for the positive part, of each label.
    label_smoothing
        For "cross_entropy": in [0, 1].
    ignore_index
        For class indices: the target that does not count, by default -100. Its norm is 0.
    class_dim
        For "cross_entropy": the dimension of the classes. -1 for logits of shape (batch, time, vocabulary).
    reduction
        What the loss of an example is: the "sum" over its positions or entries that count, the "mean" over them, or
        their sum divided by the number of "all" that count in the batch.
    not_finite
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
    is_plain = class_weight is None and pos_weight is None and label_smoothing == 0.0
    if is_plain and loss == "cross_entropy" and reduction == "sum":
        norms = _common(output, target, ignore_index, class_dim, not_finite)
        if norms is not None:
            return norms
    given = class_weight, pos_weight, label_smoothing, ignore_index, class_dim, reduction, not_finite
    found, counts = _position_norms(output, target, loss, dict(zip(_DEFAULTS, given, strict=True)))
    norms = found if found.ndim == 1 else torch.linalg.vector_norm(found.flatten(1), dim=1)
    return _reduced(norms, counts, reduction)


def last_layer_norms(
    features: Tensor,
    output: Tensor,
    target: Tensor,
    loss: LossName = "cross_entropy",
    *,
    bias: bool = True,
    **options: Unpack[LossOptions],
) -> Tensor:
    r"""Return the norm of each example's gradient in a last, linear layer. O(features + output).

    For :math:`z_i = W x_i + b` it is :math:`\|\partial \ell_i / \partial z_i\| \sqrt{\|x_i\|^2 + 1}`: exact.

    At many positions t, :math:`z_{it} = W x_{it} + b`, it is the sum over t of the same product, an upper bound, which
    is exact if one position counts. The exact norm needs all products of positions: `GradientNorms` computes it.

    Parameters
    ----------
    features
        x, the input of the layer, of shape (batch, features) or (batch, ..., features).
    output
        z, its output, of shape (batch,) or (batch, outputs), or with the classes where ``class_dim`` says.
    bias
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
    found, counts = _position_norms(output, target, loss, dict(options))
    if output.ndim > 2 and found.ndim != output.ndim - 1:
        raise ValueError(
            f"output has shape {tuple(output.shape)}: must be (batch,) or (batch, outputs), or have class indices at "
            "many positions; for other layers applied to many positions, use GradientNorms"
        )
    if features.ndim != found.ndim + 1:
        expected = "(batch, features)" if found.ndim == 1 else "(batch, ..., features), a row for each position"
        raise ValueError(f"features has shape {tuple(features.shape)}: must be {expected}")
    validation.same_length("features", len(features), "output", len(output))
    if features.shape[:-1] != found.shape:
        raise ValueError(f"features has shape {tuple(features.shape)}: must begin with {tuple(found.shape)}, as target")
    sizes = torch.linalg.vector_norm(features.detach(), dim=-1, dtype=found.dtype)
    if bias:
        sizes = torch.hypot(sizes, torch.ones_like(sizes))
    norms = (found * sizes).flatten(1).sum(dim=1) if found.ndim > 1 else found * sizes
    not_finite = options.get("not_finite", "raise")
    return _reduced(_finite(norms, {"features": features}, not_finite), counts, options.get("reduction", "sum"))


def from_output_grad(grad: Tensor, *, not_finite: NotFinite = "raise") -> Tensor:
    """Return the norm of each row of gradients, for any loss. O(grad).

    Parameters
    ----------
    grad
        The gradient of each example's own loss in its output, the batch first: for example
        ``torch.autograd.grad(losses.sum(), output)[0]``.
    not_finite
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
    norms = grad.abs() if grad.ndim == 1 else torch.linalg.vector_norm(grad.flatten(1), dim=1)
    return _finite(norms, {"grad": grad}, not_finite)


def check_not_finite(not_finite: str) -> None:
    """Raise an error for any other way to treat values that are not finite."""
    if not_finite not in ("raise", "keep"):
        raise ValueError(f"not_finite = {not_finite!r}: must be 'raise' or 'keep'")


def _common(output: Any, target: Any, ignore_index: Any, class_dim: Any, not_finite: str) -> Tensor | None:
    """The common cases, where kernels replace dozens of operations: contiguous logits on the CPU and class indices.

    Return None in any other case, and if a class or a norm is not valid.
    """
    if not (type(output) is type(target) is Tensor and output.is_cpu and target.is_cpu) or is_compiling():
        return None
    if not (target.dtype is torch.int64 and output.is_contiguous() and target.is_contiguous()):
        return None
    dimensions = output.ndim
    if dimensions == 2 and class_dim == 1 and ignore_index is None and not_finite == "raise":
        return _small(output.detach(), target.numpy()) if output.dtype in _FLOATS else None
    if dimensions > 2 and class_dim in (-1, dimensions - 1) and not_finite in ("raise", "keep"):
        ignored = -100 if ignore_index is None else ignore_index
        is_common = output.is_floating_point() and type(ignored) is int and abs(ignored) < 2**63
        return _of_positions(output.detach(), target.numpy(), ignored) if is_common else None
    return None


def _small(output: Tensor, classes: NDArray[np.int64]) -> Tensor | None:
    """The norms of few logits, (batch, classes): operations take longer to start than to run."""
    logits = output.numpy()
    if classes.shape != logits.shape[:1] or logits.size > _SMALL:
        return None
    norms = np.empty(len(logits), dtype=logits.dtype)
    return torch.from_numpy(norms) if _softmax_norms(logits, classes, norms) else None


def _of_positions(output: Tensor, classes: NDArray[np.int64], ignored: int) -> Tensor | None:
    """The norms of logits at many positions, (batch, ..., classes): as `_norms_of_sequences`, with kernels."""
    if classes.shape != output.shape[:-1] or not classes.size:
        return None
    wide = torch.promote_types(output.dtype, torch.float32)
    logits, classes, found = output.flatten(0, -2), classes.reshape(-1), torch.zeros(len(output), dtype=wide)
    norms = np.zeros(len(classes))
    count = max(1, _AT_A_TIME // max(logits.shape[1], 1))
    for first in range(0, len(classes), count):
        part, own = logits[first : first + count], classes[first : first + count]
        rows: Any = slice(None)  # read all if half count: a view is faster than a copy of some
        if 2 * _number_of(ignored, own) > len(own):
            rows = np.flatnonzero(own != ignored)
            part, own = part.index_select(0, torch.from_numpy(rows)), own[rows]
        p = torch.softmax(part, 1, wide)
        if not _subtract_one_hot(p.numpy(), own, ignored):
            return None
        norms[first : first + count][rows] = torch.linalg.vector_norm(p, dim=1).numpy()
    return found if _add_up(norms, found.numpy()) else None


def _position_norms(output: Tensor, target: Tensor, loss: str, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the norm of each example, or at each of its positions, and how many positions or entries count in each."""
    given = _checked(output, target, loss, options)
    class_dim, _ = given.pop("class_dim"), given.pop("reduction")
    is_dense = target.is_floating_point() or target.dtype == torch.bool or target.is_complex()
    if loss != "cross_entropy":
        norms = from_output_grad(_gradient(output, target, loss, given), not_finite=given["not_finite"])
        return norms, norms.new_full((), output[:1].numel()).expand_as(norms)
    original = output
    if class_dim != 1:
        target = target.movedim(class_dim, 1) if is_dense and target.ndim == output.ndim else target
        output = output.movedim(class_dim, 1)
    if is_dense or output.ndim == 2 or target.shape != (output.shape[0], *output.shape[2:]):  # also what is refused
        norms = from_output_grad(_gradient(output, target, loss, given), not_finite=given["not_finite"])
        return norms, ~_ignored(target, given) if output.ndim == 2 and not is_dense else torch.tensor(
            output[:1, :1].numel()
        )
    norms, counts = _norms_of_sequences(output.detach().movedim(1, -1), target.detach(), given)
    return _finite(norms, {"output": original}, given["not_finite"]), counts


def _norms_of_sequences(output: Tensor, target: Tensor, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the norm at each position of class indices; the classes come last. Some positions at a time."""
    classes, ignored = output.shape[-1], _ignored(target, given)
    indices = target.long().masked_fill(ignored, 0)
    if indices.numel() and not _are_below(indices, classes):
        wrong = (target < 0) | (target >= classes)
        _refuse("target", target, wrong & ~ignored, f"must be in [0, {classes})")
    output, indices, counted = output.flatten(1, -2), indices.flatten(1), ~ignored.flatten(1)
    count, length = indices.shape
    norms = output.new_zeros(count, length, dtype=torch.promote_types(output.dtype, torch.float32))
    gradient = _gradient_of_classes
    if given["class_weight"] is not None or given["label_smoothing"] != 0.0:
        options = {**given, "ignore_index": None, "not_finite": "keep"}
        gradient = functools.partial(_gradient, loss="cross_entropy", given=options)
    positions = max(1, min(length, _AT_A_TIME // max(classes, 1)))
    examples = max(1, _AT_A_TIME // max(classes * length, 1))
    for first in range(0, count, examples):
        for start in range(0, length, positions):
            part = slice(first, first + examples), slice(start, start + positions)
            chosen, rows, own = counted[part], output[part], indices[part]
            number = int(chosen.sum())
            if 2 * number >= chosen.numel():  # read all: a view is faster than a copy of some
                found = torch.linalg.vector_norm(gradient(rows.flatten(0, 1), own.flatten()), dim=1)
                norms[part] = found.view(chosen.shape)
            elif number:
                norms[part][chosen] = torch.linalg.vector_norm(gradient(rows[chosen], own[chosen]), dim=1)
    return norms.masked_fill_(~counted, 0.0).reshape(target.shape), counted.sum(dim=1)


def _reduced(norms: Tensor, counts: Tensor, reduction: str) -> Tensor:
    """Divide the norms of sums by what `reduction` says."""
    if reduction == "sum":
        return norms
    total = counts.expand_as(norms).sum() if reduction == "all" else counts
    return norms / total.clamp(min=1).to(norms)


def _ignored(target: Tensor, given: dict[str, Any]) -> Tensor:
    """Return where a class index does not count."""
    index = given["ignore_index"]
    return target == (-100 if index is None else validation.integer("ignore_index", index, at_least=-(2**63)))


def _checked(output: Tensor, target: Tensor, loss: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return all options, or raise an error that names what is wrong."""
    if not options.keys() <= _DEFAULTS.keys():
        raise TypeError(f"{', '.join(options.keys() - _DEFAULTS.keys())}: must be one of {', '.join(_DEFAULTS)}")
    given = {**_DEFAULTS, **options}
    check_not_finite(given["not_finite"])
    if loss not in tuple(_GRADIENTS):
        raise ValueError(f"loss = {loss!r}: must be one of {', '.join(map(repr, _GRADIENTS))}")
    if given["reduction"] not in ("sum", "mean", "all"):
        raise ValueError(f"reduction = {given['reduction']!r}: must be 'sum', 'mean' or 'all'")
    given["label_smoothing"] = validation.number("label_smoothing", given["label_smoothing"], at_least=0.0, at_most=1.0)
    for name in _DEFAULTS.keys() - {"reduction", "not_finite", *_GRADIENTS[loss][1]}:
        if given[name] != _DEFAULTS[name]:
            raise ValueError(f"{name} is given: it has no meaning for loss = {loss!r}")
    _require_floating("output", output)
    if output.ndim == 0:
        raise ValueError("output has shape (): must have the batch as its first dimension")
    if not isinstance(target, Tensor):
        raise TypeError(f"target is of type {type(target).__name__}: must be a tensor")
    if loss == "cross_entropy" and output.ndim > 1:
        place = validation.integer("class_dim", given["class_dim"], at_least=1 - output.ndim, at_most=output.ndim - 1)
        if place == 0:
            raise ValueError("class_dim = 0: that is the batch")
    return given


def _gradient(output: Tensor, target: Tensor, loss: str, given: dict[str, Any]) -> Tensor:
    """Return the gradient of each example's loss in its output, checked to be finite if it must be."""
    gradient, known = _GRADIENTS[loss]
    arguments = {name: given[name] for name in known if name != "class_dim"}
    return gradient(_floating("output", output), target.detach(), given["not_finite"], **arguments)


def _cross_entropy(
    output: Tensor,
    target: Tensor,
    not_finite: NotFinite,
    class_weight: Tensor | None,
    label_smoothing: float,
    ignore_index: int | None,
) -> Tensor:
    """Return the gradient p sum(q) - q, where q is the target, smoothed and weighted."""
    if output.ndim < 2:
        raise ValueError(f"output has shape {tuple(output.shape)}: must be (batch, classes) or (batch, classes, ...)")
    classes = output.shape[1]
    p = torch.softmax(output, dim=1)
    if not_finite == "raise" and not math.isfinite(p.sum().item()):  # here, because ignored targets are removed below
        _refuse_infinite("output", output)
    if class_weight is None and label_smoothing == 0.0 and ignore_index is None and _are_classes(target, output):
        return _less_one_hot(p, target.long())  # the same as below, in a third of the time
    weights = torch.ones(classes, dtype=output.dtype, device=output.device)
    if class_weight is not None:
        weights = torch.as_tensor(class_weight).detach().to(weights)
        if weights.shape != (classes,):
            raise ValueError(f"class_weight has shape {tuple(weights.shape)}: must be ({classes},), one for each class")
    along = (1, classes, *[1] * (output.ndim - 2))
    if target.is_floating_point():
        if ignore_index is not None:
            raise ValueError(f"ignore_index = {ignore_index}: it has no meaning for class probabilities")
        if target.shape != output.shape:
            raise ValueError(
                f"target has shape {tuple(target.shape)}: class probabilities must match output, "
                f"which has {tuple(output.shape)}"
            )
        q = (target.to(p) * (1.0 - label_smoothing) + label_smoothing / classes) * weights.view(along)
        return _finite(p * q.sum(dim=1, keepdim=True) - q, {"target": target}, not_finite)
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"target has dtype {target.dtype}: must hold class indices or class probabilities")
    wanted = (output.shape[0], *output.shape[2:])
    if target.shape != wanted:
        raise ValueError(
            f"target has shape {tuple(target.shape)}: class indices must have {wanted}, "
            f"as output has {tuple(output.shape)}"
        )
    target = target.long()
    ignored = _ignored(target, {"ignore_index": ignore_index})
    _refuse("target", target, ~ignored & ((target < 0) | (target >= classes)), f"must be in [0, {classes})")
    target = target.masked_fill(ignored, 0)
    own = (1.0 - label_smoothing) * weights[target]
    smooth = label_smoothing / classes * weights
    gradient = p * (own + smooth.sum()).unsqueeze(1) - smooth.view(along)
    gradient.scatter_add_(1, target.unsqueeze(1), -own.unsqueeze(1))
    return gradient.masked_fill_(ignored.unsqueeze(1), 0.0)


def _are_classes(target: Tensor, output: Tensor) -> bool:
    """Whether each target is the index of a class, and none is ignored."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool or not target.numel():
        return False
    if target.shape != (output.shape[0], *output.shape[2:]):
        return False
    return _are_below(target, output.shape[1])


def _are_below(indices: Tensor, classes: int) -> bool:
    """Whether integers, at least one, are indices of classes."""
    low, high = torch.aminmax(indices)
    return bool(low.item() >= 0 and high.item() < classes)


def _gradient_of_classes(output: Tensor, classes: Tensor) -> Tensor:
    """Return softmax minus one-hot class, row by row."""
    return _less_one_hot(torch.softmax(output, 1, torch.promote_types(output.dtype, torch.float32)), classes)


def _less_one_hot(p: Tensor, classes: Tensor) -> Tensor:
    """Subtract 1 in place at the class of each row, or position."""
    indices = classes.unsqueeze(1)
    return p.scatter_add_(1, indices, p.new_full((), -1.0).expand_as(indices))


def _binary(output: Tensor, target: Tensor, not_finite: NotFinite, pos_weight: Tensor | None) -> Tensor:
    """Return the gradient sigmoid(z) (w y + 1 - y) - w y, with w the weight of the positive part."""
    target = _matching(output, target)
    _refuse("target", target, ~((target >= 0.0) & (target <= 1.0)), "must be in [0, 1]")
    positive = target
    if pos_weight is not None:
        weights = torch.as_tensor(pos_weight).detach().to(output)
        try:
            positive = (target * weights).expand_as(output)
        except RuntimeError:
            raise ValueError(
                f"pos_weight has shape {tuple(weights.shape)}: must fit the labels of output, "
                f"which has {tuple(output.shape)}"
            ) from None
    return _finite(torch.sigmoid(output) * (positive + 1.0 - target) - positive, {"output": output}, not_finite)


def _squared(output: Tensor, target: Tensor, not_finite: NotFinite) -> Tensor:
    """Return the gradient 2 (z - y)."""
    target = _matching(output, target)
    return _finite(2.0 * (output - target), {"output": output, "target": target}, not_finite)


def _matching(output: Tensor, target: Tensor) -> Tensor:
    """Return the target in output's shape; (batch,) and (batch, 1) match, and nothing else is broadcast."""
    shapes = {tuple(output.shape), tuple(target.shape)}
    if len(shapes) > 1 and shapes != {(len(output),), (len(output), 1)}:
        raise ValueError(f"target has shape {tuple(target.shape)}: must match output, which has {tuple(output.shape)}")
    return target.reshape(output.shape).to(output)


_GRADIENTS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "cross_entropy": (_cross_entropy, ("class_weight", "label_smoothing", "ignore_index", "class_dim")),
    "binary": (_binary, ("pos_weight",)),
    "squared": (_squared, ()),
}


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


# --- kernels -------------------------------------------------------------------------------


@lean
def _number_of(value, values):
    """Count a value."""
    number = 0
    for j in range(len(values)):
        number += values[j] == value
    return number


@lean
def _subtract_one_hot(p, classes, ignored):
    """Subtract 1 at the class of each row; rows that are ignored become 0. Return whether all classes are valid."""
    for i in range(len(p)):
        if classes[i] == ignored:
            p[i] = 0.0
        elif 0 <= classes[i] < p.shape[1]:
            p[i, classes[i]] -= 1.0
        else:
            return False
    return True


@lean
def _add_up(norms, found):
    """Write the norm of each example, from those at its positions; return whether all are finite."""
    length = len(norms) // len(found)
    for i in range(len(found)):
        square = 0.0
        for j in range(i * length, (i + 1) * length):
            square += norms[j] * norms[j]
        if not square < np.inf:
            return False
        found[i] = math.sqrt(square)
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
