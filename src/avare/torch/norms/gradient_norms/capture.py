"""Record what goes into the modules of a model, and the gradients of what comes out.

A forward pass makes a `Use` of each watched module that it calls, and hooks its output. The backward pass
brings the gradients of these outputs, and with them the uses that count. The next forward pass starts again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from avare.torch.norms.gradient_norms.survey import Place
from avare.torch.norms.gradient_norms.uses import SHARED, Recomputed, Use, tensors_of


class Capture:
    """The uses of the watched modules of a model in its last backward pass."""

    def __init__(self, model: nn.Module, places: list[Place], excluded: set[nn.Parameter]) -> None:
        self._model = model
        self._places = places
        self._excluded = excluded
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        covered = {parameter for place in places for parameter in place.parameters}
        self._frozen = [parameter for parameter in self._names if parameter not in covered | excluded]
        self.uses: list[Use] = []
        self.several = False
        """Whether the uses are of several backward passes."""
        self.paused = False
        """Whether to ignore forward passes: modules are being run a second time."""
        self.handles: list[Any] = []
        self._called: list[nn.Module] = []  # in the current forward pass
        self._inspected: list[nn.Module] | None = None  # called in the last forward pass whose graph was inspected
        self._passes = 0
        self._reached: set[nn.Parameter] = set()  # parameters that got a gradient, from any use
        self._pass: int | None = None  # the backward pass of the uses
        self._within = 0  # how many modules without a rule are being run

    def attach(self) -> None:
        """Put hooks on the model, if there are none."""
        if self.handles:
            return
        self._within = 0
        for place in self._places:  # before other hooks, which may change the output
            options = {"prepend": True, "with_kwargs": True, "always_call": place.rule is None}
            self.handles.append(place.module.register_forward_hook(_Hook(self._after_module, place), **options))
            if place.rule is None:
                self.handles.append(place.module.register_forward_pre_hook(_Hook(self._before_module), prepend=True))
        self.handles.append(self._model.register_forward_hook(_Hook(self._after_model), with_kwargs=True))
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._excluded:
                self.handles.append(parameter.register_hook(lambda _, each=parameter: self._reached.add(each)))

    def detach(self) -> None:
        """Remove all hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def reset(self) -> None:
        """Forget all uses."""
        self._called, self.uses = [], []
        self._reached.clear()
        self._pass = None
        self.several = False

    def check(self) -> int:
        """Return the number of examples.

        Raise an error if the uses do not agree, a gradient was not seen per example, or a recorded input has changed.
        """
        first = self.uses[0]
        for use in self.uses:
            if use.count != first.count:
                raise ValueError(
                    f"{use.place.title} has a batch of {use.count}, {first.place.title} one of {first.count}: "
                    f"the first dimension must be the batch, throughout the model; {SHARED}"
                )
        for use in self.uses:
            use.check()
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise ValueError(f"{self._names[parameter]} was frozen, and is now trained: make GradientNorms again")
        covered = {parameter for use in self.uses for parameter in use.place.parameters}
        for parameter in self._reached - covered:
            raise ValueError(self._unseen(parameter))
        return first.count

    # --- hooks ------------------------------------------------------------------------

    def _before_module(self, *_: object) -> None:
        self._within += 1

    def _after_module(self, place: Place, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record the input of a module, and hook its output."""
        rule = place.rule
        if rule is None:
            self._within -= 1
        if self.paused or self._within or not torch.is_grad_enabled():
            return
        place.refuse()
        is_again = _backward_pass() >= 0  # checkpoints run parts of the model again
        if (self.uses or self._reached) and not is_again:
            self.reset()
        outputs = [_base(output)] if rule is not None else tensors_of(output)
        trained = any(p.requires_grad and p not in self._excluded for p in place.parameters)
        if not trained or not any(each.requires_grad for each in outputs):
            return
        if not is_again:
            self._called.append(module)
        if rule is not None:
            use = Use(place, args[0] if args else next(iter(kwargs.values())), output.shape)
        else:
            use = Recomputed(place, args, kwargs, outputs, self._excluded)
        for j, each in enumerate(outputs):
            if each.requires_grad:
                each.register_hook(lambda gradient, j=j: self._record(use, j, gradient))

    def _record(self, use: Use, j: int, gradient: Tensor) -> None:
        """Record the gradient of a module's output."""
        now = _backward_pass()
        if self._pass is None:
            self._pass = now
        self.several |= self._pass != now
        if use.passed != now:
            use.passed = now
            use.gradients = {}
            self.uses.append(use)
        recorded = gradient.detach() if use.shape is None else gradient.detach().reshape(use.shape)
        # With a single example, a parameter may use the same tensor as its gradient, which is then clipped or added to.
        use.gradients[j] = recorded.clone() if recorded.shape[:1] == (1,) else recorded

    def _after_model(self, _: Place | None, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """After a forward pass, look for uses of parameters that no module sees.

        This takes some microseconds per operation, so only if other modules were called than in the last
        pass, and at passes 1, 2, 4, 8, ...
        """
        if self.paused or not torch.is_grad_enabled():
            return
        called, self._called = self._called, []
        self._passes += 1
        if called == self._inspected and self._passes & (self._passes - 1):
            return
        with_rule = {p for place in self._places if place.rule is not None for p in place.parameters}
        recomputed = {p for place in self._places if place.rule is None for p in place.parameters}
        watched = with_rule - recomputed - self._excluded
        calls = Counter(parameter for each in called for parameter in each.parameters(recurse=False))
        for parameter, count in Counter(_operands(output)).items():
            if parameter in watched and count > calls[parameter]:
                raise ValueError(self._unseen(parameter))
        self._inspected = called

    def _unseen(self, parameter: nn.Parameter) -> str:
        return (
            f"{self._names[parameter]} is used other than by a call of the module that owns it, so its gradients per "
            "example are not seen: call the module, or let another module own it too (as in output.weight = "
            "embedding.weight); or the module's output is a view that was changed in place"
        )


class _Hook:
    """A hook of a module. A copy of it, which a copied or pickled model has, does nothing."""

    def __init__(self, call: Callable[..., None] | None = None, place: Place | None = None) -> None:
        self._call = call
        self._place = place

    def __call__(self, *arguments: Any) -> None:
        if self._call is not None:
            self._call(self._place, *arguments)

    def __reduce__(self) -> Any:
        return _Hook, ()


def _backward_pass() -> int:
    """Return a number that identifies the present backward pass; -1 outside of one."""
    return int(torch._C._current_graph_task_id())


def _operands(output: Any) -> Iterator[nn.Parameter]:
    """Return the parameters that each operation that led to an output took. Some microseconds per operation."""
    stack = [each.grad_fn for each in tensors_of(output) if each.grad_fn is not None]
    visited = set(stack)
    while stack:
        for source, _ in stack.pop().next_functions:
            if hasattr(source, "variable"):
                yield source.variable
            elif source is not None and source not in visited:
                visited.add(source)
                stack.append(source)


def _base(output: Tensor) -> Tensor:
    """Return the tensor that an output is a view of: if that one is changed in place, gradients bypass the view."""
    base = output._base
    whole = base is not None and base.numel() == output.numel() and base.is_contiguous() and output.is_contiguous()
    return base if whole else output
