"""Modules without a rule: run the module a second time, alone, to get its gradients example by example."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

Fallback = Literal["vmap", "loop"]


class Recomputed:
    """One use of a module: its arguments and its output.

    Tensors among the arguments whose first dimension is the batch are split; each example gets the others whole.
    The output for each example is compared with that for the whole batch.

    Parameters
    ----------
    module
        The module, with all modules below it.
    args, kwargs
        The arguments of the call.
    output
        What the call returned: a tensor, or a nest of tensors.
    fallback
        "vmap", all examples of a chunk at once, or "loop", one after another.
    excluded
        Parameters that do not count.
    """

    def __init__(
        self, module: nn.Module, args: Any, kwargs: Any, output: Any, fallback: Fallback, excluded: set[nn.Parameter]
    ) -> None:
        leaves, self._arguments = pytree.tree_flatten((args, kwargs))
        self._leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        # Copied, because later layers may change it in place.
        self._outputs = [leaf.detach().clone() for leaf in tensors_of(output)]
        self._module = module
        self._fallback = fallback
        kind = self._outputs[0].device.type
        is_mixed, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        self._autocast = torch.autocast(kind, dtype, is_mixed, cache_enabled=False)  # the present mode, for later
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad and p not in excluded}
        self._versions = [leaf._version for leaf in self._changeable()]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradients it gives."""
        return list(self._parameters.values())

    @property
    def changed(self) -> bool:
        """Whether arguments or parameters have changed since the module was called."""
        return self._versions != [leaf._version for leaf in self._changeable()]

    def rows(self, examples: slice, gradients: Mapping[int, Tensor]) -> dict[nn.Parameter, Tensor]:
        """Return the gradient of each parameter, in shape (examples, size of the parameter).

        Parameters
        ----------
        examples
            Which examples.
        gradients
            The gradient of each output that has one, by the output's place.
        """
        count = len(next(iter(gradients.values())))
        dims = [0 if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == count else None for leaf in self._leaves]
        leaves = [leaf if dim is None else leaf[examples] for leaf, dim in zip(self._leaves, dims, strict=True)]
        pulled = {j: gradients[j][examples].to(self._outputs[j].dtype) for j in sorted(gradients)}
        parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}

        def total(parameters: Any, leaves: list[Any], pulled: Mapping[int, Tensor]) -> Any:
            """Return, for one example, a number with the wanted gradient, and the outputs."""
            whole = [leaf if dim is None else leaf.unsqueeze(0) for leaf, dim in zip(leaves, dims, strict=True)]
            args, kwargs = pytree.tree_unflatten(whole, self._arguments)
            found = tensors_of(functional_call(self._module, parameters, args, kwargs))
            outputs = {j: found[j].squeeze(0) for j in pulled}
            return sum((outputs[j] * each).sum() for j, each in pulled.items()), outputs

        each = grad(total, has_aux=True)
        try:
            with self._autocast:
                run = vmap if self._fallback == "vmap" else _in_a_loop
                results, outputs = run(each, in_dims=(None, dims, 0))(parameters, leaves, pulled)
        except RuntimeError as error:
            hint = "; fallback='loop' may help" if self._fallback == "vmap" else ""
            raise ValueError(f"it cannot be run example by example{hint}: {error}") from error
        for j, found in outputs.items():
            _compare(found, self._outputs[j][examples])
        wide = {name: rows.to(torch.promote_types(rows.dtype, torch.float32)) for name, rows in results.items()}
        return {self._parameters[name]: rows.flatten(1) for name, rows in wide.items()}

    def _changeable(self) -> list[Tensor]:
        return [leaf for leaf in self._leaves if isinstance(leaf, Tensor)] + self.parameters


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of real numbers in the output of a module."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _in_a_loop(function: Callable[..., Any], in_dims: Any) -> Callable[..., Any]:
    """Do what ``vmap`` does, for operations that it does not support."""
    dims = in_dims[1]

    def run(parameters: Any, leaves: list[Any], pulled: Mapping[int, Tensor]) -> Any:
        results = []
        for i in range(len(next(iter(pulled.values())))):
            own = [leaf if dim is None else leaf[i] for leaf, dim in zip(leaves, dims, strict=True)]
            results.append(function(parameters, own, {j: each[i] for j, each in pulled.items()}))
        return pytree.tree_map(lambda *each: torch.stack(each), *results)

    return run


def _compare(found: Tensor, kept: Tensor) -> None:
    """Raise a ``ValueError`` if the outputs for single examples are not those for the batch."""
    tolerance = torch.finfo(kept.dtype).eps ** 0.5  # rounding errors are far smaller, mixed examples far larger
    largest = float(kept.abs().nan_to_num(0.0, 0.0, 0.0).max())
    if found.shape != kept.shape or not torch.allclose(
        found.to(kept.dtype), kept, rtol=tolerance, atol=tolerance * largest, equal_nan=True
    ):
        raise ValueError(
            "its output for an example alone is not that in the batch: it mixes examples, draws random numbers "
            "(as Dropout does), or its first dimension is not the batch"
        )
