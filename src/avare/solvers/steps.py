"""The steps of SGD: draw, gradient, step, update; compiled if the problem and the sampler have kernels.

Both loops do the same arithmetic in the same order and use the same random numbers, so that they
give the same iterates from the same seed.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean, product
from avare.problems.base import Problem, Vector
from avare.problems.linear import Linear, add_gradients
from avare.samplers.base import Sampler, smooth
from avare.samplers.kernels import draw_into, learn_from

NEVER = 1 << 62
_NOWHERE = np.empty(0)


class Settings(NamedTuple):
    """Numbers that are the same at every step."""

    l2: Vector
    average_from: int
    """Iterates after this step are averaged, ..."""
    average_power: float
    """... with weights that grow as this power of their number."""
    burn_in: int
    """Iterates after this step are kept, ..."""
    thin: int
    """... one of every `thin`."""
    adapt_until: int = 0
    """Until this step, sizes follow the distance from the origin and the gradients so far."""


class Iterates(NamedTuple):
    """Arrays that the steps change."""

    x: Vector
    mean: Vector
    """The mean of the iterates averaged so far."""
    draws: Vector
    """The kept iterates, one per row."""
    origin: Vector = _NOWHERE
    """The first iterate, if step sizes adapt; otherwise empty."""
    path: Vector = _NOWHERE
    """The largest distance from there, and the sum of the squared norms of all gradients."""


def advance_plainly(
    problem: Problem, sampler: Sampler, settings: Settings, iterates: Iterates, step: int, sizes: Vector
) -> int:
    """Make one step per size, after `step` steps; return how many were finite."""
    x, mean, _, origin, path = iterates
    for done, size in enumerate(sizes):
        at = step + done + 1
        batch = sampler.sample()
        gradient, norms = problem._batch_gradient(x, batch.indices, batch.weights)
        change = gradient + settings.l2 * x
        if len(path):
            if at <= settings.adapt_until:
                path[1] += change @ change
            size = size * pace(path)
        change *= size
        if not (np.isfinite(norms).all() and np.isfinite(change).all()):
            return done
        x -= change
        if at <= settings.adapt_until:
            path[0] = max(path[0], np.linalg.norm(x - origin))
        sampler.update(batch.indices, norms)
        if sampler.follows_path:
            sampler.move(float(np.linalg.norm(change)))  # type: ignore[attr-defined]  # such samplers have it
        if at > settings.average_from:
            power = settings.average_power
            mean += (x - mean) * ((power + 1.0) / (at - settings.average_from + power))
    return len(sizes)


class Compiled:
    """The same steps in a kernel, for a linear model and a sampler that brings kernels."""

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

    def advance(self, settings: Settings, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one step per size, after `step` steps; return how many were finite."""
        sampler = self._sampler
        with sampler._lock:
            done: int = _advance(
                sampler._compiled(),
                self._model,
                settings,
                sampler.n,
                sampler._source,
                sampler._moments,
                sampler._steps,
                step,
                sizes,
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
    """The gradient as a table, one row per output."""
    coefficients: Vector
    """The iterate as such a table."""


# --- kernels -------------------------------------------------------------------------------


@lean
def _advance(state, model, settings, n, source, moments, drawn, step, sizes, iterates, buffers, scratch):
    x, gradient = iterates.x, buffers.gradient
    indices, probabilities, weights, norms = buffers.indices, buffers.probabilities, buffers.weights, buffers.norms
    for done in range(len(sizes)):
        draw_into(state, drawn + done, source, indices, probabilities, weights)
        add_gradients(model, buffers.coefficients, indices, weights, buffers.gradients, norms, scratch)
        size, at = sizes[done], step + done + 1
        if len(iterates.path) > 0:
            if at <= settings.adapt_until:
                iterates.path[1] += _square(gradient, settings.l2, x)
            size *= _pace(iterates.path)
        for j in range(len(x)):
            gradient[j] = size * (gradient[j] + settings.l2[j] * x[j])
        if not np.isfinite(magnitude(gradient) + magnitude(norms)):
            return done
        for j in range(len(x)):
            x[j] -= gradient[j]
        if at <= settings.adapt_until:
            iterates.path[0] = max(iterates.path[0], _distance(x, iterates.origin))
        learn_from(state, indices, norms)
        smooth(moments, n, weights, probabilities, norms)
        if at > settings.average_from:
            part = (settings.average_power + 1.0) / (at - settings.average_from + settings.average_power)
            for j in range(len(x)):
                iterates.mean[j] += (x[j] - iterates.mean[j]) * part
    return len(sizes)


@product
def magnitude(values):
    """Return a number that is finite only if all values are and their sum does not overflow."""
    total = 0.0
    for j in range(len(values)):
        total += abs(values[j])
    return total


@product
def _square(gradient, l2, x):
    """Return the squared norm of the gradient with that of the l2 term."""
    total = 0.0
    for j in range(len(x)):
        total += (gradient[j] + l2[j] * x[j]) ** 2
    return total


@product
def _distance(x, origin):
    total = 0.0
    for j in range(len(x)):
        total += (x[j] - origin[j]) ** 2
    return math.sqrt(total)


def pace(path: Vector) -> float:
    """Return the distance over the root of the sum of squares: the size of the next step; NaN if it overflows."""
    if path[1] == np.inf:
        return np.nan
    return path[0] / math.sqrt(path[1]) if path[1] > 0.0 else 0.0


_pace = inlined(pace)
