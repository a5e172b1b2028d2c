"""Modules without a rule: run the module a second time, alone, to get its gradients example by example."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
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
        self,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        output: Any,
        fallback: Fallback,
        excluded: Collection[nn.Parameter],
    ) -> None:
        leaves, self._arguments = pytree.tree_flatten((args, kwargs))
        self._leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        # Copied, because later layers may change it in place.
        self._outputs = [leaf.detach().clone() for leaf in tensors_of(output)]
        self._module = module
        self._loop = fallback == "loop"
        self._autocast = _autocast_of(self._outputs[0].device.type)
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
        wanted = sorted(gradients)
        count = len(gradients[wanted[0]])
        split = [isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == count for leaf in self._leaves]
        leaves = [leaf[examples] if apart else leaf for leaf, apart in zip(self._leaves, split, strict=True)]
        pulled = [gradients[j][examples].to(self._outputs[j].dtype) for j in wanted]
        given = [leaf for leaf, apart in zip(leaves, split, strict=True) if apart]

        def run(given: list[Tensor], gradients: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
            """Return the outputs of one example, and the gradients of the parameters."""
            own = iter(given)
            each = [next(own).unsqueeze(0) if apart else leaf for leaf, apart in zip(leaves, split, strict=True)]
            args, kwargs = pytree.tree_unflatten(each, self._arguments)

            def outputs(parameters: dict[str, Tensor]) -> list[Tensor]:
                found = tensors_of(functional_call(self._module, parameters, args, kwargs))
                return [found[j] for j in wanted]

            parameters = {name: p.detach() for name, p in self._parameters.items()}
            each_gradient = [gradient.unsqueeze(0) for gradient in gradients]
            if self._loop:  # by plain autograd, which supports all operations
                with torch.enable_grad():
                    values = outputs({name: value.requires_grad_() for name, value in parameters.items()})
                    of_leaves = torch.autograd.grad(
                        values, list(parameters.values()), each_gradient, materialize_grads=True
                    )
                found = dict(zip(parameters, of_leaves, strict=True))
            else:
                values, pull = vjp(outputs, parameters)
                (found,) = pull(each_gradient)
            return [value.detach().squeeze(0) for value in values], found

        try:
            with torch.autocast(**self._autocast):
                outputs, results = (_in_a_loop if self._loop else vmap)(run)(given, pulled)
        except RuntimeError as error:
            hint = "" if self._loop else "; fallback='loop' may help"
            raise ValueError(f"it cannot be run example by example{hint}: {error}") from error
        for found, j in zip(outputs, wanted, strict=True):
            _compare(found, self._outputs[j][examples])
        wide = {name: rows.to(torch.promote_types(rows.dtype, torch.float32)) for name, rows in results.items()}
        return {self._parameters[name]: rows.flatten(1) for name, rows in wide.items()}

    def _changeable(self) -> list[Tensor]:
        return [leaf for leaf in self._leaves if isinstance(leaf, Tensor)] + self.parameters


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of real numbers in the output of a module."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _in_a_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do what ``vmap`` does, for operations that it does not support."""

    def run(given: list[Tensor], gradients: list[Tensor]) -> Any:
        results = [
            function([leaf[j] for leaf in given], [gradient[j] for gradient in gradients])
            for j in range(len(gradients[0]))
        ]
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


def _autocast_of(device: str) -> dict[str, Any]:
    """Return the present mode of mixed precision, to enter it again."""
    return {
        "device_type": device,
        "dtype": torch.get_autocast_dtype(device),
        "enabled": torch.is_autocast_enabled(device),
        "cache_enabled": False,
    }
