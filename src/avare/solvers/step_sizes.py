"""Step sizes: a number, a schedule or a function of the step; or sizes that a run finds by itself.

How long steps may be depends on the curvature of f, on the noise that a sampler leaves and on the distance to the
minimum. The steps themselves show all three (Ivgi, Hinder & Carmon, "DoG is SGD's best friend", ICML 2023):

    size_t = r_t / sqrt(|g_1|^2 + ... + |g_t|^2),    r_t = the largest distance from the start so far, at least r_0.

For example, start at x = 0 with gradients of norm 10 that all point to a minimum at distance 3. Then r grows from r_0
by a fraction 1 / sqrt(t) at step t, and is 3 after a few dozen steps, whatever r_0 was. With noise of norm 10 the size
then falls as 3 / (10 sqrt(t)), as it should for averaged iterates. Without noise the gradients vanish, their sum
converges, and the size stays. If steps are too long, gradients and their sum grow, and the size falls; no step is
longer than r_t. So no trial steps are needed, and each sampler gets its own sizes. Each step costs two extra passes
over the coefficients. The update that uses these sizes is `avare.solvers.sgd`.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from avare import _validation as validation
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.schedules import Auto, Schedule, auto, constant

StepSize: TypeAlias = Schedule | float | Callable[[int], float]
Sizes: TypeAlias = Callable[[int, int], Vector]
"""A function of (first, count) that returns the sizes of steps."""
_ROWS = 64
"""Rows that show the gradient at the start; more with larger batches. A guess: r_0 may be too small, as it grows."""
_CAUTION = 16.0
"""The smoothness over the curvature along the gradient, if it is not known: a guess, and a small r_0 is safe."""
_MOVE = 1e-4
"""Relative length of the move that shows this curvature: a guess, well above the 1e-8 at which rounding dominates."""


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


def request_of(step_size: Any) -> Auto | None:
    """Return which step sizes to find; None if they are given."""
    if isinstance(step_size, str) and step_size == "auto":
        return auto()
    return step_size if isinstance(step_size, Auto) else None


def falling(t: Any, last: int, power: float) -> Any:
    """Return factors on the sizes found until step `last`: 1 until then, later falling by a power."""
    return (np.maximum(t, last) / last) ** -power


def first_move(problem: Problem, x: Vector, batch_size: int) -> float:
    """Return r_0, a short way to go at first: the norm of the gradient, from some rows, over the smoothness of f.

    The minimum cannot be nearer than gradient over smoothness, and r_0 must not be above its distance. If the
    smoothness is not known, a multiple of the curvature along the gradient takes its place.
    """
    size = min(problem.n, max(_ROWS, batch_size))
    rows = np.arange(size) * problem.n // size  # evenly spread
    weights = np.full(size, problem.n / size)

    def gradient(at: Vector) -> Vector:
        return problem.loss_batch_gradient(at, rows, weights)[0] + problem.penalty.l2 * at

    here = gradient(x)
    length = float(np.linalg.norm(here))
    if not 0.0 < length < math.inf:
        return 1.0
    if isinstance(problem, Linear):
        smoothness = float(problem.smoothness.sum())
    else:
        move = _MOVE * (1.0 + float(np.linalg.norm(x)))
        smoothness = _CAUTION * float(np.linalg.norm(gradient(x + here * (move / length)) - here)) / move
    return length / smoothness if 0.0 < smoothness < math.inf else 1e-3
