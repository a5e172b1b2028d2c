"""Arguments that all solvers share: a problem, a sampler for it, given as an object or by its name, and step sizes."""

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from avare import _validation as validation
from avare._randomness import Seed
from avare.problems import Problem
from avare.problems.base import Vector
from avare.samplers import Sampler, build, get, names
from avare.schedules import Schedule, constant

StepSize: TypeAlias = Schedule | float | Callable[[int], float]
Sizes: TypeAlias = Callable[[int, int], Vector]
"""A function of (first, count) that returns the sizes of steps."""
DEFAULT = "Calibrated"
"""The sampler of `saga` by default."""
_BATCH = 32
"""Draws of a batch by default: a usual number, not a measured one."""
_BATCHES = 100
"""Batches that an epoch has at least by default: a guess."""


def default_batch_size(n: int) -> int:
    """Choose a batch size: 32, but at most a hundredth of the examples."""
    return min(_BATCH, math.ceil(n / _BATCHES))


def resolve_sampler(
    problem: Problem, sampler: Sampler | str, batch_size: int | None, seed: Seed, **options: Any
) -> Sampler:
    """Return the given sampler; or build one by its name, with those of the options that it takes."""
    if not isinstance(sampler, str):
        check_pair(problem, sampler, batch_size=batch_size, seed=seed)
        return sampler
    check_problem(problem)
    parameters = inspect.signature(get(validation.choice("sampler", sampler, names()))).parameters
    known = {key: value for key, value in options.items() if key in parameters}
    size = default_batch_size(problem.n) if batch_size is None else batch_size
    return build(sampler, problem, size, lasting_floor=True, seed=seed, **known)


def check_problem(problem: Any) -> None:
    """Raise an error unless it is a problem."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem is of type {type(problem).__name__}: must be one of avare.problems")


def check_pair(problem: Any, sampler: Any, **by_name: Any) -> None:
    """Raise an error unless the arguments are a problem and a sampler of the same size.

    The others are arguments that only the name of a sampler may have.
    """
    check_problem(problem)
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler is of type {type(sampler).__name__}: must be one of avare.samplers")
    if not problem.n == sampler.n == sampler.present:
        raise ValueError(f"sampler has n = {sampler.n}: must match the problem's {problem.n}, with no example retired")
    for name, value in by_name.items():
        if value is not None:
            raise ValueError(f"{name} = {value!r}: the sampler has its own; pass it only with the name of a sampler")


def sizes_of(step_size: Any) -> Sizes:
    """Return a function of (first, count) that returns the sizes of steps."""
    if isinstance(step_size, int | float | np.floating) and not isinstance(step_size, bool):
        step_size = constant(validation.number("step_size", step_size, above=0.0))
    if not callable(step_size):
        raise TypeError(f'step_size = {step_size!r}: must be "auto", a number, a schedule or a function of the step')
    schedule: Callable[[Any], Any] = step_size

    def sizes(first: int, count: int) -> Vector:
        steps, values = np.arange(first, first + count), np.empty(count)
        if count == 0:
            return values
        found = schedule(steps) if isinstance(schedule, Schedule) else list(map(schedule, steps.tolist()))
        try:  # no view, because a kernel for read-only arrays would be another one
            values[:] = validation.real("step_size", found)
        except (TypeError, ValueError):
            raise TypeError(f"step_size({first}) = {found[0]!r}: must be one number for each step") from None
        faults = np.flatnonzero(~((values >= 0.0) & (values < np.inf)))
        if faults.size:
            raise ValueError(f"step_size({steps[faults[0]]}) = {values[faults[0]]}: must be finite and not negative")
        return values

    return sizes
