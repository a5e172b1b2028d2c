"""How a step is put together: an estimator of the gradient and an update, joined when the loop is compiled.

Each brings a **state**, a ``NamedTuple`` of arrays and numbers, and a kernel for it.

- ``estimate(state, model, work)``, declared by `estimate_kernel`, sets the gradient and the norms
  of the batch in `Work`. It returns False if a norm is not finite;
- ``apply(state, work, size, noise, done, at)``, declared by `update_kernel`, moves the iterate by that gradient. The
  step has number ``at``, and its noise is row ``done``. It returns False, and has moved nothing, if the gradient
  or a norm is not finite.

Numba chooses the version by the type of the state, as for samplers (`avare.samplers.kernels`) and losses.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import ByType, lean, product
from avare.problems.base import Vector

NEVER = 1 << 62
SAVED: dict[type, tuple[str, ...]] = {}
"""By the type of a state, the arrays that have to be saved."""

ESTIMATE, APPLY = ByType("estimate"), ByType("apply")
estimate, apply = ESTIMATE.function, APPLY.function


def estimate_kernel(state: type, *, saved: tuple[str, ...]) -> Callable[[Callable[..., Any]], Any]:
    """Declare a kernel that estimates the gradient with a type of state, and the arrays of it that a run saves."""
    return _declare(ESTIMATE, state, saved)


def update_kernel(state: type, *, saved: tuple[str, ...]) -> Callable[[Callable[..., Any]], Any]:
    """Declare a kernel that moves the iterate with a type of state, and the arrays of it that a run saves."""
    return _declare(APPLY, state, saved)


def _declare(kernels: ByType, state: type, saved: tuple[str, ...]) -> Callable[[Callable[..., Any]], Any]:
    SAVED[state] = saved
    return lambda function: kernels.version(state)(lean(function))


class Work(NamedTuple):
    """What every step reads and writes."""

    x: Vector
    """The iterate."""
    coefficients: Vector
    """The same memory as a table, one row per output."""
    gradient: Vector
    """The estimate of the gradient, as a vector."""
    l2: Vector
    """Strength of the l2 term, per coefficient."""
    indices: NDArray[np.int64]
    probabilities: Vector
    weights: Vector
    norms: Vector
    """What the sampler learns from."""
    scratch: Any
    """What products with rows overwrite; None if the problem is not linear."""


class IterateRecord(NamedTuple):
    """What is kept of the iterates: their average, and draws."""

    mean: Vector
    """Of the iterates averaged so far."""
    average_from: int
    """Iterates after this step are averaged."""
    average_power: float
    """Weights in the average grow as this power of their number."""
    draws: Vector
    """The kept iterates, one per row."""
    burn_in: int
    """Iterates after this step are kept as draws."""
    thin: int
    """One of every `thin` iterates is kept."""


SAVED[IterateRecord] = ("mean",)


def record_of(
    dim: int, steps: int = 0, average_from: int = NEVER, average_power: float = 0.0, burn_in: int = NEVER, thin: int = 1
) -> IterateRecord:
    """Return a record for some steps; by default it keeps nothing."""
    kept, mean = max(0, steps - burn_in) // thin, np.zeros(dim if average_from < NEVER else 0)
    return IterateRecord(mean, average_from, average_power, np.empty((kept, dim)), burn_in, thin)


@lean
def record_iterate(record, x, at):
    """Add the iterate after step `at` to the average and the draws, if one of them takes it."""
    if at > record.average_from:
        part = (record.average_power + 1.0) / (at - record.average_from + record.average_power)
        for j in range(len(x)):
            record.mean[j] += (x[j] - record.mean[j]) * part
    after = at - record.burn_in
    if after > 0 and after % record.thin == 0:
        for j in range(len(x)):
            record.draws[after // record.thin - 1, j] = x[j]


@product
def magnitude(values):
    """Return a number that is finite only if all values are and their sum does not overflow."""
    total = 0.0
    for j in range(len(values)):
        total += abs(values[j])
    return total


@lean
def add_penalty(work, size):
    """Add the gradient of the l2 term; return whether a step of this size is finite."""
    for j in range(len(work.x)):
        work.gradient[j] += work.l2[j] * work.x[j]
    return np.isfinite(size * (magnitude(work.gradient) + magnitude(work.norms)))


@lean
def move_by_gradient(work):
    """Move the iterate by what replaced the gradient; return False, and move nothing, if it overflows."""
    for j in range(len(work.x)):
        work.gradient[j] += work.x[j]
    if not np.isfinite(magnitude(work.gradient)):
        return False
    for j in range(len(work.x)):
        work.x[j] = work.gradient[j]
    return True
