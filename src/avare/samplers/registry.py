"""Which samplers there are, by name."""

from collections.abc import Callable
from typing import Any, TypeVar

from avare.samplers.base import Sampler

Kind = TypeVar("Kind", bound=type[Sampler])
Example = Callable[[int], dict[str, Any]]

_KINDS: dict[str, type[Sampler]] = {}
_EXAMPLES: dict[str, Example] = {}


def register(example: Example = lambda n: {}) -> Callable[[Kind], Kind]:
    """Make a sampler known by the name of its class, and put it under the common tests.

    Parameters
    ----------
    example
        Gives, for n examples, the arguments that the constructor wants beside ``n``,
        ``batch_size`` and ``seed``.
    """

    def enter(kind: Kind) -> Kind:
        _KINDS[kind.__name__] = kind
        _EXAMPLES[kind.__name__] = example
        return kind

    return enter


def names() -> list[str]:
    """The samplers there are.

    >>> "Avare" in names()
    True
    """
    return sorted(_KINDS)


def get(name: str) -> type[Sampler]:
    """The sampler of a name.

    >>> get("Avare").__name__
    'Avare'
    """
    if name not in _KINDS:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(names())}")
    return _KINDS[name]


def example(name: str, n: int) -> dict[str, Any]:
    """Arguments, beside the common ones, with which a sampler can be made for n examples."""
    return _EXAMPLES[get(name).__name__](n)
