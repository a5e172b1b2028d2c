"""Samplers by name: register them, list them, build them for a problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from avare import _validation as validation
from avare._randomness import Seed
from avare.samplers.base import Sampler

Kind = TypeVar("Kind", bound=type[Sampler])
Example = Callable[[int], dict[str, Any]]

_KINDS: dict[str, type[Sampler]] = {}
_EXAMPLES: dict[str, Example] = {}
_SOURCES: dict[str, Callable[[Any], Any]] = {
    "smoothness": lambda problem: problem.smoothness,
    "components": lambda problem: np.stack([problem.smoothness, problem.lengths]),
}
LASTING_FLOOR = 5
"""With a lasting floor no probability falls below 1 / (5 n)."""


def register(example: Example = lambda n: {}) -> Callable[[Kind], Kind]:
    """Register a sampler under the name of its class.

    Parameters
    ----------
    example : callable, default=lambda n: {}
        A function that returns, for n examples, arguments that the constructor requires besides ``n``,
        ``batch_size`` and ``seed``. Common tests and benchmarks use it.

    Examples
    --------
    >>> from avare.samplers.uniform import Uniform
    >>> Uniform = register()(Uniform)  # as a decorator: @register() above the class
    >>> "Uniform" in names()
    True
    """

    def enter(kind: Kind) -> Kind:
        _KINDS[kind.__name__] = kind
        _EXAMPLES[kind.__name__] = example
        return kind

    return enter


def names() -> list[str]:
    """Return the names of all registered samplers.

    >>> "Avare" in names()
    True
    """
    return sorted(_KINDS)


def get(name: str) -> type[Sampler]:
    """Return the class of a sampler by its name.

    >>> get("Avare").__name__
    'Avare'
    """
    return _KINDS[validation.choice("name", name, names())]


def build(
    name: str,
    problem: Any,
    batch_size: int = 128,
    *,
    replacement: bool | None = None,
    horizon: int | None = None,
    lasting_floor: bool = False,
    seed: Seed = None,
    **options: Any,
) -> Sampler:
    """Build a sampler by name, with what it needs taken from the problem.

    Parameters
    ----------
    name : str
        One of `names`.
    problem : Problem or int
        One of `avare.problems`, anything else with ``n`` and, where the sampler needs them,
        ``smoothness`` and ``lengths``, or just the number of examples.
    batch_size : int, default=128
        Draws per step.
    replacement : bool or None, default=None
        Whether an index may occur twice in a batch. By default it does not, if the sampler can do without.
    horizon : int or None, default=None
        The number of draws to come (steps times batch size), for samplers that use it.
    lasting_floor : bool, default=False
        Set it to True if the step sizes stay large: samplers whose floor falls with the steps get
        ``p_min = 1 / (5 n)``, unless the options have ``p_min`` or ``c``.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.
    **options
        Other arguments of the sampler's constructor. They take precedence over the problem's.

    Examples
    --------
    >>> import numpy as np
    >>> import avare
    >>> problem = avare.problems.LeastSquares(np.array([[1.0], [2.0], [3.0]]), [0.0, 1.0, 2.0], l2=0.0)
    >>> build("Static", problem, batch_size=1, uniform=0.0).probabilities().round(2)
    array([0.07, 0.29, 0.64])
    >>> build("Avare", 100, batch_size=10, lasting_floor=True)
    Avare(n=100, batch_size=10, replacement=False, delta=1.0, c=125.0, p_min=0.002, memory=0.0)
    """
    kind = get(name)
    n = int(problem if isinstance(problem, int | np.integer) else problem.n)
    for need in kind.needs:
        if need not in options:
            options[need] = _from_problem(name, need, problem)
    if horizon is not None and "horizon" in kind.takes:
        options.setdefault("horizon", horizon)
    if lasting_floor and "p_min" in kind.takes and not {"p_min", "c"} & options.keys():
        options["p_min"] = 1.0 / (LASTING_FLOOR * n)
    if replacement is None:
        replacement = kind.with_replacement_only
    return kind(n, batch_size, replacement=replacement, seed=seed, **options)


def _from_problem(name: str, need: str, problem: Any) -> Any:
    try:
        return _SOURCES[need](problem)
    except (AttributeError, ValueError):
        raise ValueError(f"{name} needs {need}, which the problem does not have: pass {need}=...") from None


def example(name: str, n: int) -> dict[str, Any]:
    """Return arguments, besides the common ones, that build a sampler for n examples."""
    return _EXAMPLES[get(name).__name__](n)
