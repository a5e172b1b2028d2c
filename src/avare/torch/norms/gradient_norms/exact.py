"""The gradient norm of each example over all parameters."""

import math
from collections.abc import Iterable
from typing import Any, Literal, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from avare import _validation as validation
from avare.torch.norms.gradient_norms.capture import Capture
from avare.torch.norms.gradient_norms.survey import Place, parameters_of, survey
from avare.torch.norms.gradient_norms.uses import Recomputed, Use
from avare.torch.norms.layers.parts import Part, chunks, square_rows, squares
from avare.torch.norms.outputs import NotFinite, refuse_where


class GradientNorms:
    r"""The norm of each example's gradient in all trained parameters, from the same backward pass.

    It records the input of each layer and the gradient of its output during the passes. From these follows
    the norm of each example's gradient, usually without writing the gradient out. The gradients of the
    parameters are not touched: they have the same bits as without it.

    Make it once, and leave it attached for the whole training::

        norms = GradientNorms(model).attach()
        for x, y, weight in batches:
            loss = F.cross_entropy(model(x), y, reduction="none")
            (weight * loss).mean().backward()
            n = norms(weight)

    Requirements:

    - The batch is the first dimension of the input and output of each layer, and no example's loss depends
      on another example. BatchNorm is refused, except in evaluation mode, where it is a factor and an
      offset. Positions that all examples share go into an embedding as ``torch.arange(T).expand(n, T)``;
      otherwise they are refused, if this can be seen.
    - The loss is the mean, or the sum, over the batch of weight times the example's own loss.

    A parameter that is used several times, by one module or by many, counts once, with the sum of its
    gradients. Frozen parameters do not count. Forward passes without gradients record nothing.

    There are rules for ``Linear``, ``Conv1d`` to ``Conv3d``, ``Embedding``, ``LayerNorm``, ``RMSNorm``,
    ``GroupNorm``, and ``BatchNorm`` in evaluation mode;
    `avare.torch.layers.register` adds more. A module with other parameters is an error that names it, unless
    ``fallback`` says what to do.

    Cost: for linear layers two passes over inputs and gradients; for a convolution about that of its weight's
    gradient. Memory: inputs and output gradients of all layers, until the norms are asked for; beyond these,
    some tens of megabytes at most, or one gradient if that is larger.

    Parameters
    ----------
    model : Module
        Any module. With ``DistributedDataParallel``, each process has the norms of its own examples.
    fallback : {"vmap"}, optional
        What to do with the largest modules that own parameters without a rule, with all modules below them.
        None raises an error. "vmap" runs each of them a second time, by ``torch.func``, for gradients of
        each example. Such a module must not draw random numbers; this is checked.
    exclude : iterable of Module or Parameter, default=()
        Parameters, and modules with all modules below them, that do not count, as if they were frozen. How
        they are used does not matter. They are trained all the same.
    recompute : iterable of Module, default=()
        Modules to run a second time, with all modules below them, as ``fallback="vmap"`` does, although their layers
        have rules: for example one inside which the first dimension is not always the batch.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[0.0], [0.0]])
    >>> weight = torch.tensor([0.5, 1.5])
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> with GradientNorms(model) as norms:
    ...     loss = (model(x) - y).square().sum(dim=1)
    ...     (weight * loss).mean().backward()
    >>> norms(weight)
    tensor([70.,  2.])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        fallback: Literal["vmap"] | None = None,
        exclude: Iterable[nn.Module | nn.Parameter] = (),
        recompute: Iterable[nn.Module] = (),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is of type {type(model).__name__}: must be a torch.nn.Module")
        if fallback not in (None, "vmap"):
            raise ValueError(f"fallback = {fallback!r}: must be None or 'vmap'")
        if isinstance(model, nn.DataParallel):
            raise ValueError("model is a DataParallel, which copies it at each pass: use DistributedDataParallel")
        if hasattr(model, "_orig_mod"):
            raise ValueError("model is compiled: pass the model that torch.compile was given, and train that one")
        self._model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        for name, module in self._model.named_modules():
            Place(name, module, None).refuse()
        self._excluded = parameters_of("exclude", exclude, self._model)
        again = set(recompute)
        for module in again - set(self._model.modules()):
            raise ValueError(f"recompute has a {type(module).__name__}: must have modules of the model only")
        places = list(survey("", self._model, self._excluded, again, set()))
        unknown = [place for place in places if place.rule is None and place.module not in again]
        if unknown and fallback is None:
            owners = ", ".join(place.title for place in unknown)
            raise ValueError(
                f"no rule is known for the parameters of {owners}: fallback='vmap' runs such modules a "
                "second time, example by example; exclude= leaves them out; avare.torch.layers.register adds a rule"
            )
        self._capture = Capture(self._model, places, self._excluded)

    def attach(self) -> Self:
        """Start to record passes, until `detach`. Cost: some microseconds per module and pass."""
        self._capture.attach()
        return self

    def detach(self) -> None:
        """Remove all hooks from the model. The norms of the last pass are still available."""
        self._capture.detach()

    def reset(self) -> None:
        """Forget what was recorded."""
        self._capture.reset()

    def __call__(
        self,
        weight: ArrayLike | Tensor | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        not_finite: NotFinite = "raise",
    ) -> Tensor:
        """Return the norms of the last backward pass, and forget it.

        Call it after each backward pass and before the next forward pass, which starts again.

        Parameters
        ----------
        weight : Tensor or array, optional
            The factors of the examples' losses, of shape (batch,), none 0; None if there are none. The norms
            are those without these factors. They may include a factor that all examples share, such as the
            scale of a ``GradScaler``.
        reduction : {"mean", "sum"}, default="mean"
            Whether the loss was the "mean" over the batch, or the "sum".
        not_finite : {"raise", "keep"}, default="raise"
            "raise" an error if a gradient is not finite, or "keep" a norm that is not finite either: gradients
            in float16 overflow in the first steps with a ``GradScaler``, which then skips the step. Pass such
            norms to ``loader.update(index, norms, not_finite="skip")``.

        Returns
        -------
        Tensor
            Of shape (batch,), detached, in float32 or, if the model is, float64.
        """
        validation.choice("reduction", reduction, ("mean", "sum"))
        validation.choice("not_finite", not_finite, ("raise", "keep"))
        capture = self._capture
        if not capture.uses:
            raise RuntimeError("no backward pass to give the norms of: attach, call the model, then loss.backward()")
        if capture.several:
            raise RuntimeError(
                "several backward passes without a forward pass between them, or one within another, as reentrant "
                "checkpoints have: ask for the norms after each, or make checkpoints with use_reentrant=False"
            )
        count = capture.check()
        factors = _factors(weight, count)
        device = capture.uses[0].device
        capture.paused = True
        try:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                norms = self._squares(capture.uses, count).sqrt_() if count else torch.zeros(0, device=device)
        finally:
            capture.paused = False
        if reduction == "mean":
            norms *= count
        if factors is not None:
            norms /= factors.to(norms)
        if not_finite == "raise" and not math.isfinite(norms.sum().item()):
            refuse_where(~torch.isfinite(norms), "norms", norms, "the gradient is not finite")
        self.reset()
        return norms

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.detach()
        if kind is not None:
            self.reset()

    def _squares(self, uses: list[Use], count: int) -> Tensor:
        """Return the squared norm of each example's gradient, as it was in the pass."""
        recomputed = [use for use in uses if isinstance(use, Recomputed)]
        written: dict[nn.Parameter, list[Part]] = {p: [] for use in recomputed for p in use.parameters.values()}
        summed: dict[nn.Parameter, list[Part]] = {}
        for use in uses:
            for parameter, part in use.parts():
                if parameter not in self._excluded:
                    (written if parameter in written else summed).setdefault(parameter, []).append(part)
        total = torch.zeros(count, device=uses[0].device)
        for parameter, parts in summed.items():
            found = squares(parts)
            if found is None:
                written[parameter] = parts
            else:
                total = total + found
        return total + _squares_written(recomputed, written, count) if written else total


def _factors(weight: Any, count: int) -> Tensor | None:
    """Return the absolute weights, checked."""
    if weight is None:
        return None
    values = torch.as_tensor(weight).detach()
    if values.shape != (count,):
        raise ValueError(f"weight has shape {tuple(values.shape)}: must be ({count},), one for each example")
    factors = values.abs()
    if not math.isfinite(factors.log().sum().item()):
        refuse_where(~torch.isfinite(values) | (values == 0), "weight", values, "must be finite and not 0")
    return factors


def _squares_written(uses: list[Recomputed], others: dict[nn.Parameter, list[Part]], count: int) -> Tensor:
    """Return the squared norms of gradients that are written out, a chunk of examples at a time."""
    results = []
    for examples in chunks(count, sum(parameter.numel() for parameter in others)):
        totals: dict[nn.Parameter, Tensor] = {}
        found = [item for use in uses for item in use.rows(examples).items()]
        found += [(parameter, part.rows(examples)) for parameter, parts in others.items() for part in parts]
        for parameter, rows in found:
            totals[parameter] = totals[parameter] + rows if parameter in totals else rows
        results.append(sum(square_rows(rows) for rows in totals.values()))
    return torch.cat(results)
