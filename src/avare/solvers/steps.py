"""The steps themselves: draw, gradient, step, update; compiled where problem and sampler allow.

Both ways do the same arithmetic in the same order and take the same random numbers, so that they
give the same iterates from the same seed.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean, product
from avare.batch import weigh_into
from avare.problems.base import Problem, Vector
from avare.problems.linear import Linear, add_gradients
from avare.samplers.base import Sampler, smooth
from avare.structures.buckets import draw_with_replacement, draw_without_replacement, store
from avare.structures.evenly import draw_evenly

NEVER = 1 << 62


class Plan(NamedTuple):
    """What stays the same from step to step."""

    n: int
    replacement: bool
    c: float
    delta: float
    p_min: float
    l2: float
    average_from: int
    """Iterates after this step are averaged."""
    burn_in: int
    """Iterates after this step are kept ..."""
    thin: int
    """... one in so many."""


class Iterates(NamedTuple):
    """What the steps change."""

    x: Vector
    mean: Vector
    """Of the iterates averaged so far."""
    draws: Vector
    """The iterates kept, one a row."""


def advance_plainly(
    problem: Problem, sampler: Sampler, plan: Plan, iterates: Iterates, step: int, sizes: Vector, noise: Vector
) -> int:
    """Go from `step` as many steps as there are sizes; return how many could be gone."""
    x, mean, draws = iterates
    for done, size in enumerate(sizes):
        batch = sampler.sample()
        gradient, norms = problem._batch_gradient(x, batch.indices, batch.weights)
        change = size * (gradient + plan.l2 * x)
        if not (np.isfinite(norms).all() and np.isfinite(change).all()):
            return done
        if len(noise):
            change -= math.sqrt(2.0 * size) * noise[done]
        x -= change
        sampler.update(batch.indices, norms)
        if sampler.follows_path:
            sampler.move(float(np.linalg.norm(change)))  # type: ignore[attr-defined]  # those that follow it have it
        at = step + done + 1
        if at > plan.average_from:
            mean += (x - mean) / (at - plan.average_from)
        if at > plan.burn_in and (at - plan.burn_in) % plan.thin == 0:
            draws[(at - plan.burn_in) // plan.thin - 1] = x
    return len(sizes)


class Compiled:
    """The same for a linear model and a sampler that can be drawn from inside a kernel."""

    def __init__(self, problem: Linear, sampler: Sampler, iterates: Iterates) -> None:
        self._sampler, self._iterates = sampler, iterates
        self._model = problem._model
        gradient = np.empty(problem.dim)
        table = (problem.outputs, problem.width)
        self._buffers = _Buffers(
            np.empty(sampler.batch_size, dtype=np.int64),
            np.empty(sampler.batch_size),
            np.empty(sampler.batch_size),
            np.empty(sampler.batch_size),
            gradient,
            gradient.reshape(table),
            iterates.x.reshape(table),
        )
        self._scratch = problem.scratch()

    def advance(self, plan: Plan, step: int, sizes: Vector, noise: Vector) -> int:
        """Go from `step` as many steps as there are sizes; return how many could be gone."""
        sampler = self._sampler
        with sampler._lock:
            drawing = sampler._compiled()
            assert drawing is not None
            done: int = _advance(
                drawing.memory,
                self._model,
                plan,
                sampler._source,
                sampler._moments,
                sampler._steps,
                step,
                sizes,
                noise,
                self._iterates,
                self._buffers,
                self._scratch,
            )
            sampler._steps += min(done + 1, len(sizes))
            return done


class _Buffers(NamedTuple):
    indices: NDArray[np.int64]
    probabilities: Vector
    weights: Vector
    norms: Vector
    gradient: Vector
    gradients: Vector
    """The same, a row for each output."""
    coefficients: Vector
    """The iterate likewise."""


# --- kernels -------------------------------------------------------------------------------


@lean
def _advance(memory, model, plan, source, moments, drawn, step, sizes, noise, iterates, buffers, scratch):
    x, gradient = iterates.x, buffers.gradient
    indices, weights, norms = buffers.indices, buffers.weights, buffers.norms
    for done in range(len(sizes)):
        _draw(memory, plan, source, drawn + done, indices, buffers.probabilities, weights)
        add_gradients(model, buffers.coefficients, indices, weights, buffers.gradients, norms, scratch)
        size = sizes[done]
        for j in range(len(x)):
            gradient[j] = size * (gradient[j] + plan.l2 * x[j])
        if not np.isfinite(_magnitude(gradient) + _magnitude(norms)):
            return done
        if len(noise) > 0:
            spread = math.sqrt(2.0 * size)
            for j in range(len(x)):
                gradient[j] -= spread * noise[done, j]
        for j in range(len(x)):
            x[j] -= gradient[j]
        _learn(memory, indices, norms)
        smooth(moments, plan.n, weights, buffers.probabilities, norms)
        at = step + done + 1
        if at > plan.average_from:
            for j in range(len(x)):
                iterates.mean[j] += (x[j] - iterates.mean[j]) / (at - plan.average_from)
        if at > plan.burn_in and (at - plan.burn_in) % plan.thin == 0:
            kept = (at - plan.burn_in) // plan.thin - 1
            for j in range(len(x)):
                iterates.draws[kept, j] = x[j]
    return len(sizes)


@inlined
def _draw(memory, plan, source, drawn, indices, probabilities, weights):
    """The sampler's next batch."""
    if memory is None:
        draw_evenly(plan.n, source, indices, plan.replacement)
        for j in range(len(indices)):
            probabilities[j] = 1.0 / plan.n
            weights[j] = plan.n / len(indices)
    else:
        floor = plan.p_min
        if plan.c < np.inf:
            floor += (plan.c / (plan.c + len(indices) * drawn)) ** (plan.delta / 3.0) / plan.c
        if plan.replacement or len(indices) == 1:  # which is the same, and no array is made
            draw_with_replacement(memory, floor, source, indices, probabilities)
        else:
            draw_without_replacement(memory, floor, source, indices, probabilities)
        weigh_into(weights, probabilities, plan.replacement)


@inlined
def _learn(memory, indices, norms):
    if memory is not None:
        store(memory, indices, norms)


@product
def _magnitude(values):
    """Finite only if all values are, and no sum of them overflows."""
    total = 0.0
    for j in range(len(values)):
        total += abs(values[j])
    return total
