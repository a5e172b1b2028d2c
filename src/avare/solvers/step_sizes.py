"""Step sizes that a user gives: a number, a schedule, or a function of the step."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from avare import _validation as validation
from avare.problems.base import Vector
from avare.schedules import Schedule, constant

StepSize: TypeAlias = Schedule | float | Callable[[int], float]
Sizes: TypeAlias = Callable[[int, int], Vector]
"""A function of (first, count) that returns the sizes of steps."""


def sizes_of(step_size: Any) -> Sizes:
    """Return a function of (first, count) that returns the sizes of steps."""
    if isinstance(step_size, int | float | np.floating) and not isinstance(step_size, bool):
        step_size = constant(validation.number("step_size", step_size, above=0.0))
    if not callable(step_size):
        raise TypeError(f"step_size = {step_size!r}: must be a number, a schedule, or a function of the step")
    schedule: Callable[[Any], Any] = step_size

    def sizes(first: int, count: int) -> Vector:
        if count == 0:
            return np.empty(0)
        steps = np.arange(first, first + count)
        found = schedule(steps) if isinstance(schedule, Schedule) else list(map(schedule, steps.tolist()))
        try:
            values = np.broadcast_to(validation.real("step_size", found), (count,))
        except (TypeError, ValueError):
            raise TypeError(f"step_size({first}) = {found[0]!r}: must be one number for each step") from None
        faults = np.flatnonzero(~((values >= 0.0) & (values < np.inf)))
        if faults.size:
            raise ValueError(f"step_size({steps[faults[0]]}) = {values[faults[0]]}: must be finite and not negative")
        return values

    return sizes


def require_auto(step_size: str) -> None:
    """Raise an error unless the word is "auto"."""
    if step_size != "auto":
        raise TypeError(f'step_size = {step_size!r}: must be "auto", a number, a schedule or a function of the step')
