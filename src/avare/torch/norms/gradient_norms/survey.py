"""Which modules of a model to watch, and by which rules."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from avare.torch.norms.layers.registry import Rule, refusal_of, rule_of


class Place(NamedTuple):
    """A module to watch."""

    name: str
    module: nn.Module
    rule: Rule | None
    """None: the module has no rule, and is run a second time with all modules below it."""

    @property
    def title(self) -> str:
        """Its name and class, for messages."""
        return f"{self.name or 'model'} ({type(self.module).__name__})"

    @property
    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters whose gradients it gives."""
        found: Iterator[nn.Parameter] = self.module.parameters(recurse=self.rule is None)
        return found

    def refuse(self) -> None:
        """Raise an error if the module cannot be used in its present mode."""
        reason = refusal_of(self.module)
        if reason is not None:
            raise ValueError(f"{self.title}: {reason}")


def survey(
    name: str, module: nn.Module, excluded: set[nn.Parameter], recompute: set[nn.Module], visited: set[nn.Module]
) -> Iterator[Place]:
    """Return the modules to watch, each once; a module without a rule includes all modules below it."""
    if module in visited:  # it has another parent too: a second hook would count its gradient twice
        return
    visited.add(module)
    rule = None if module in recompute else rule_of(module)
    if rule is not None:
        yield Place(name, module, rule)
    elif module in recompute or any(p.requires_grad and p not in excluded for p in _own(module)):
        yield Place(name, module, None)
    else:
        for child_name, child in module.named_children():
            yield from survey(f"{name}.{child_name}" if name else child_name, child, excluded, recompute, visited)


def parameters_of(argument: str, given: Iterable[Any], model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters given one by one or by module, and check that the model has them."""
    known = {*model.modules(), *model.parameters()}
    found: set[nn.Parameter] = set()
    for place, member in enumerate(given):
        if member not in known:
            kind = type(member).__name__
            raise ValueError(f"{argument}[{place}] is of type {kind}: must be a module or a parameter of the model")
        found.update([member] if isinstance(member, nn.Parameter) else member.parameters())
    return found


def _own(module: nn.Module) -> Iterator[nn.Parameter]:
    """Return the parameters of a module itself, and those from which they are computed at each call."""
    yield from module.parameters(recurse=False)
    if nn.utils.parametrize.is_parametrized(module):
        yield from module.parametrizations.parameters()
