"""The losses by name."""

import re
from collections.abc import Callable
from typing import TypeVar

from avare import _validation as validation
from avare.problems.linear import Linear

Kind = TypeVar("Kind", bound=type[Linear])

_KINDS: dict[str, type[Linear]] = {}


def register(name: str | None = None) -> Callable[[Kind], Kind]:
    """Make a loss known to `names` and `get`, and so to the `avare` command.

    Parameters
    ----------
    name : str or None, default=None
        By default the name of the class, in lower case: "least_squares" for ``LeastSquares``.

    Examples
    --------
    >>> from avare.problems.huber import Huber
    >>> Huber = register("huber")(Huber)  # as a decorator: @register() above the class
    >>> get("huber") is Huber
    True
    """

    def enter(kind: Kind) -> Kind:
        _KINDS[name or re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()] = kind
        return kind

    return enter


def names() -> list[str]:
    """List the losses.

    >>> "least_squares" in names()
    True
    """
    return sorted(_KINDS)


def get(name: str) -> type[Linear]:
    """Return the class of a loss.

    >>> get("least_squares").__name__, get("least_squares").target
    ('LeastSquares', 'numbers')
    """
    return _KINDS[validation.choice("name", name, names())]
