"""Uses of modules in a pass: with a rule, or run a second time, to get gradients example by example."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from avare.torch.norms.gradient_norms.survey import Place
from avare.torch.norms.layers.parts import Part

SHARED = (
    "pass positions that all examples share once per example, as torch.arange(T).expand(n, T), or exclude them, or "
    "recompute the module around them"
)


class Use:
    """One use of a module: its input, and the gradients of its outputs."""

    changeable = "its input"
    """What must not change in place until the norms are asked for."""

    def __init__(self, place: Place, inputs: Tensor | None, shape: torch.Size | None) -> None:
        self.place = place
        self.inputs: Any = None if inputs is None else inputs.detach()
        self.shape = shape
        """Of its output; None if it has several."""
        self.passed: int | None = None
        """The backward pass of its gradients."""
        self.gradients: dict[int, Tensor] = {}
        """The gradient of each output that has one, by the output's place."""
        self._versions = self.versions()

    @property
    def device(self) -> Any:
        """The device of its gradients."""
        return next(iter(self.gradients.values())).device

    @property
    def count(self) -> int:
        """The number of examples: the first dimension of the output."""
        shape = next(iter(self.gradients.values())).shape
        if not shape:
            raise ValueError(f"{self.place.title}: its output is a single number, without a batch")
        return int(shape[0])

    def versions(self) -> list[int]:
        """Return the versions of what was recorded."""
        return [self.inputs._version]

    def check(self) -> None:
        """Raise an error if what was recorded has changed since, or is not of the examples; a bias needs no input."""
        is_flat = self.place.rule is not None and isinstance(self.place.module, nn.Embedding) and self.inputs.ndim == 1
        if is_flat and len(self.inputs) > 2 and (self.inputs.diff() == 1).all():
            raise ValueError(f"{self.place.title}: its input is the same positions for all examples; {SHARED}")
        if self._versions == self.versions():
            return
        trained = {name for name, parameter in self.place.module.named_parameters() if parameter.requires_grad}
        if self.place.rule is None or trained - {"bias"}:
            what = f"{self.place.title}: {self.changeable}"
            raise ValueError(f"{what} was changed in place after the forward pass: ask for the norms before that")

    def parts(self) -> list[tuple[nn.Parameter, Part]]:
        """Return what it adds to the gradient of each parameter, in float32 or wider."""
        assert self.place.rule is not None
        inputs, gradient = self.inputs, self.gradients[0]
        wide = torch.promote_types(gradient.dtype, torch.float32)
        if inputs.is_floating_point():
            wide = torch.promote_types(wide, inputs.dtype)
            inputs = inputs.to(wide)
        try:
            return list(self.place.rule(self.place.module, inputs, gradient.to(wide)))
        except ValueError as error:
            raise ValueError(f"{self.place.title}: {error}") from None


class Recomputed(Use):
    """One use of a module without a rule, with all modules below it.

    Tensors among the arguments whose first dimension is the batch are split; each example gets the others whole.
    The output for each example is compared with that for the whole batch.

    Parameters
    ----------
    place
        The module.
    args, kwargs
        The arguments of the call.
    outputs
        The tensors that the call returned.
    excluded
        Parameters that do not count.
    """

    changeable = "its input, or a parameter,"

    def __init__(
        self, place: Place, args: Any, kwargs: Any, outputs: list[Tensor], excluded: set[nn.Parameter]
    ) -> None:
        leaves, self._arguments = pytree.tree_flatten((args, kwargs))
        self._leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        # Copied, because later layers may change it in place.
        self._outputs = [leaf.detach().clone() for leaf in outputs]
        kind = self._outputs[0].device.type
        is_mixed, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        self._autocast = torch.autocast(kind, dtype, is_mixed, cache_enabled=False)  # the present mode, for later
        trained = ((name, p) for name, p in place.module.named_parameters() if p.requires_grad and p not in excluded)
        self.parameters: dict[str, nn.Parameter] = dict(trained)
        """The parameters whose gradients it gives, by their names in the module."""
        super().__init__(place, None, None)

    def versions(self) -> list[int]:
        """Return the versions of arguments and parameters."""
        return [leaf._version for leaf in (*self._leaves, *self.parameters.values()) if isinstance(leaf, Tensor)]

    def parts(self) -> list[tuple[nn.Parameter, Part]]:
        """Return nothing: see `rows`."""
        return []

    def rows(self, examples: slice) -> dict[nn.Parameter, Tensor]:
        """Return the gradient of each parameter for some examples, in shape (examples, size of the parameter)."""
        count, gradients = self.count, self.gradients
        dims = [0 if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == count else None for leaf in self._leaves]
        leaves = [leaf if dim is None else leaf[examples] for leaf, dim in zip(self._leaves, dims, strict=True)]
        pulled = {j: gradients[j][examples].to(self._outputs[j].dtype) for j in sorted(gradients)}
        parameters = {name: parameter.detach() for name, parameter in self.parameters.items()}

        def total(parameters: Any, leaves: list[Any], pulled: Mapping[int, Tensor]) -> Any:
            """Return, for one example, a number with the wanted gradient, and the outputs."""
            whole = [leaf if dim is None else leaf.unsqueeze(0) for leaf, dim in zip(leaves, dims, strict=True)]
            args, kwargs = pytree.tree_unflatten(whole, self._arguments)
            found = tensors_of(functional_call(self.place.module, parameters, args, kwargs))
            outputs = {j: found[j].squeeze(0) for j in pulled}
            return sum((outputs[j] * each).sum() for j, each in pulled.items()), outputs

        each = grad(total, has_aux=True)
        try:
            with self._autocast:
                results, outputs = vmap(each, in_dims=(None, dims, 0))(parameters, leaves, pulled)
        except RuntimeError as error:
            raise ValueError(f"{self.place.title}: it cannot be run example by example by vmap: {error}") from error
        for j, found in outputs.items():
            if not _agree(found, self._outputs[j][examples]):
                raise ValueError(
                    f"{self.place.title}: its output for an example alone is not that in the batch: it mixes examples, "
                    "draws random numbers (as Dropout does), or its first dimension is not the batch"
                )
        wide = {name: rows.to(torch.promote_types(rows.dtype, torch.float32)) for name, rows in results.items()}
        return {self.parameters[name]: rows.flatten(1) for name, rows in wide.items()}


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of real numbers in the output of a module."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _agree(found: Tensor, kept: Tensor) -> bool:
    """Whether the outputs for single examples are those for the batch."""
    tolerance = torch.finfo(kept.dtype).eps ** 0.5  # rounding errors are far smaller, mixed examples far larger
    largest = float(kept.abs().nan_to_num(0.0, 0.0, 0.0).max())
    limits = {"rtol": tolerance, "atol": tolerance * largest, "equal_nan": True}
    return found.shape == kept.shape and torch.allclose(found.to(kept.dtype), kept, **limits)
