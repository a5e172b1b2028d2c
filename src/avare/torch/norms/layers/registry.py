"""Which rule belongs to which layer, and which layers have no gradients per example.

A rule is a function of a module, its input and the gradient of its output, both with the batch as first
dimension. For each trained parameter of the module it yields the parameter and a `Part`: what this use of the
parameter adds to the gradient of each example. `Dense` stores these gradients; `Outer` and `OneHot` represent
sums whose norms need not write them out.

A layer of your own needs one decorated function, in any file that is imported before `GradientNorms` is made:

>>> import torch
>>> from avare.torch import GradientNorms
>>> from avare.torch.norms.layers import Dense, register
>>> class Scale(nn.Module):
...     def __init__(self, width):
...         super().__init__()
...         self.factor = nn.Parameter(torch.ones(width))
...
...     def forward(self, x):
...         return x * self.factor
>>> @register(Scale, parameters=["factor"])
... def scale(module, inputs, gradients):
...     yield module.factor, Dense(inputs * gradients)
>>> model = Scale(2)
>>> with GradientNorms(model) as norms:
...     model(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).sum().backward()
>>> norms(reduction="sum")
tensor([5., 1.])

Test a rule by comparing its norms with one backward pass per example, as this package does for its own layers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from avare.torch.norms.layers.parts import Part

Parts = Iterator[tuple[nn.Parameter, Part]]
Rule = Callable[[nn.Module, Tensor, Tensor], Iterable[tuple[nn.Parameter, Part]]]
Refusal = Callable[[nn.Module], str | None]


# By class, or by the pattern of a class's full name: a rule, and the names of parameters and of attributes.
_RULES: dict[type[nn.Module] | str, tuple[Rule, Sequence[str], Sequence[str]]] = {}
_REFUSALS: dict[type[nn.Module], Refusal] = {}


def register(
    *kinds: type[nn.Module] | str, parameters: Sequence[str] = ("weight", "bias"), attributes: Sequence[str] = ()
) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule for some kinds of layers. A later rule replaces an earlier one.

    The rule also applies to subclasses that do not change ``forward``. It does not apply to a module that has
    other parameters than these, or computes them from others at each call, as ``weight_norm`` does.

    Parameters
    ----------
    *kinds
        Classes of modules. Their ``forward`` must take one tensor, and return one. Text is a pattern for the full name
        of a class, for packages that need not be installed: ``"package.module.*Norm"``. It does not apply to
        subclasses.
    parameters : sequence of str, default=("weight", "bias")
        The names of all parameters that such a layer may have. The input is needed for all but "bias".
    attributes : sequence of str, default=()
        Other attributes that the rule reads: it does not apply to a module without them.

    Examples
    --------
    >>> import torch
    >>> from avare.torch.norms.layers.parts import Dense
    >>> class Shift(nn.Module):
    ...     def __init__(self, width):
    ...         super().__init__()
    ...         self.bias = nn.Parameter(torch.zeros(width))
    ...
    ...     def forward(self, x):
    ...         return x + self.bias
    >>> @register(Shift, parameters=["bias"])
    ... def shift(module, inputs, gradients):
    ...     yield module.bias, Dense(gradients)
    >>> rule_of(Shift(3)) is shift
    True
    """

    def enter(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, (rule, parameters, attributes)))
        return rule

    return enter


def refuse(*kinds: type[nn.Module]) -> Callable[[Refusal], Refusal]:
    """Register the decorated function to say why a module of these kinds, or of subclasses, cannot be used.

    The function takes the module and returns a reason, or None if the module can be used in its present mode.

    >>> class Mix(nn.Module):
    ...     pass
    >>> @refuse(Mix)
    ... def mix(module):
    ...     return "it mixes the examples of a batch" if module.training else None
    """

    def enter(refusal: Refusal) -> Refusal:
        _REFUSALS.update(dict.fromkeys(kinds, refusal))
        return refusal

    return enter


def rule_of(module: nn.Module) -> Rule | None:
    """Return the rule for a module, or None if there is none, or the module is not what the rule expects."""
    for kind in type(module).__mro__:
        if kind in _RULES:
            same = all(
                getattr(type(module), name, None) is getattr(kind, name, None) for name in ("forward", "_conv_forward")
            )
            return _rule_if_it_fits(module, *_RULES[kind]) if same else None
    full = f"{type(module).__module__}.{type(module).__qualname__}"
    for pattern, entry in _RULES.items():
        if isinstance(pattern, str) and fnmatchcase(full, pattern):
            return _rule_if_it_fits(module, *entry)
    return None


def _rule_if_it_fits(module: nn.Module, rule: Rule, names: Sequence[str], attributes: Sequence[str]) -> Rule | None:
    """Return the rule if the module has the parameters and attributes that the rule knows, and no others."""
    plain = all(name in module._parameters for name in names if getattr(module, name, None) is not None)
    fits = plain and set(module._parameters) <= set(names) and all(hasattr(module, name) for name in attributes)
    return rule if fits else None


def refusal_of(module: nn.Module) -> str | None:
    """Return why a module cannot be used in its present mode, or None if it can."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters have no shape yet: run the model once first"
    for kind in type(module).__mro__:
        if kind in _REFUSALS:
            reason = _REFUSALS[kind](module)
            if reason is not None:
                return reason
    if any(parameter.is_complex() for parameter in module.parameters(recurse=False)):
        return "it has complex parameters"
    return None


def require_batch(inputs: Tensor, dimensions: int = 2, *, exactly: bool = False) -> None:
    """Raise an error if a layer's input has too few dimensions to begin with the batch."""
    if inputs.ndim < dimensions or (exactly and inputs.ndim != dimensions):
        raise ValueError(f"its input has shape {tuple(inputs.shape)}: must have a batch dimension")


def is_trained(parameter: nn.Parameter | None) -> bool:
    """Whether a layer has this parameter, and its gradient is computed."""
    return parameter is not None and parameter.requires_grad
