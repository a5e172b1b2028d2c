"""What chains of linear models find out before their first step: where to anchor, in which metric, with which steps.

It starts at the mode, with the metric of the second derivative there. If the posterior is not normal, the mode is not
its centre, and curvatures differ from place to place. So a few rounds of short chains follow. After each,

- the anchor of the control variate moves to the mean of their draws;
- the metric becomes that in which the regression of gradients on draws has slope 1: for draws of the posterior, that
  slope is the inverse of their covariance, whatever its form;
- the step size follows from the largest curvature at the draws and from the noise of the gradient, both in the metric.

In the metric a chain with curvature l and gradient noise of variance c has, for Langevin steps of size a, the variance
(2 + a c) / (2 - a l) where 1 / l is right. Hamiltonian steps of size h are stable up to h^2 l = 4, exact for a normal
law, and their noise is subtracted; without that, it would add k^2 h^2 c / (1 - k^2) to the variance of a velocity, with
k = exp(-friction h).
"""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from avare.problems import Linear
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.updates.metric import Metric, coloured, hessian, inverse_root, metric_at, whitened
from avare.solvers.verdict import batch_gradients, gradients_at

_ROUNDS, _CHAINS, _STEPS = 6, 4, 500  # of short chains
_KEPT = 64  # draws of each of them, for the metric
_POINTS, _BATCHES = 16, 16  # to measure curvatures, norms and noise
_WORK = 2e8  # products for second derivatives at draws; above, that at the mode is used
_WIDER = 1.05**2 - 1.0  # of the variances of Langevin chains, at most
_ADDED, _SUBTRACTED = 0.1, 0.4  # of the variance of a velocity, by noise: at most, and if it is subtracted
_STABLE = 0.7  # the step size of Hamiltonian steps, times the root of the largest curvature
_NORMAL = 1.3  # the largest curvature up to which a posterior counts as normal
_PRIOR = 20.0  # draws that the last metric is worth
_LEAST_BEND = 0.01  # of the largest curvature of an example: outputs may move to where it is larger
_SEED = 20


class Tuning(NamedTuple):
    """Where the chains will be."""

    anchor: Vector
    """The mode, or the mean of the last short chains."""
    points: Vector
    """Some draws, or points like them; may be empty."""


def points_around(x: Vector, metric: Metric) -> Vector:
    """Return some draws of the normal law around x with the covariance F F^T."""
    return x + coloured(metric, np.random.default_rng(_SEED).standard_normal((_POINTS, len(x))))


def expected_norms(problem: Linear, control: str, tuning: Tuning) -> Vector:
    """Approximate the norms of what is drawn: gradients, or with a control variate differences, in the metric.

    A difference is a curvature times the distance of two outputs; its length in the metric is again that distance, on
    average over the posterior. O(size of X) for each point.
    """
    if control == "none":
        return problem.loss_norms(tuning.anchor)
    largest = problem.curvature * (problem.model.sample_weight if len(problem.model.sample_weight) else 1.0)
    bends = 2.0 * problem.outputs * problem.curvatures(tuning.anchor) + _LEAST_BEND * largest
    table, squares = (tuning.points - tuning.anchor).reshape(-1, problem.width), np.empty(problem.n)
    for part, outputs, _ in problem.outputs_by_chunk(table):
        squares[part] = (outputs**2).mean(axis=1)
    return np.asarray(np.minimum(bends, largest) * squares)


class Trial(NamedTuple):
    """How a plan makes short chains: by functions of a `Tuning`."""

    sampler: Callable[[Tuning], Sampler]
    steps: Callable[[Tuning, Metric, Sampler, Vector, np.random.Generator, int], Any]
    """Steps from a point, which keep a number of draws."""


def tune(
    problem: Linear, mode: Vector, metric: Metric, trial: Trial, friction: float, *, moves: bool, scales: bool
) -> tuple[Tuning, Metric, float, Vector]:
    """Return where the chains will be, their metric and step size, and the last draws of short chains.

    `moves` and `scales` say whether the anchor and the metric may change.
    """
    tuning = Tuning(mode, points_around(mode, metric))
    starts, generator = tuning.points[:_CHAINS], np.random.default_rng(_SEED)
    curved, size = 1.0, 0.0
    for k in range(_ROUNDS):
        sampler = trial.sampler(tuning)
        probe = trial.steps(tuning, metric, sampler, tuning.anchor, generator, 0)
        curved = _largest_curvature(problem, metric, tuning.points)
        size = _size(probe, _noise(probe, metric, tuning.points), curved, friction)
        if k == _ROUNDS - 1 or (k > 0 and curved < _NORMAL):
            break
        found = []
        for x in starts:
            chain = trial.steps(tuning, metric, copy.deepcopy(sampler), x, generator, _STEPS)
            chain.sampler.reseed(generator)
            chain.advance(0, np.full(_STEPS, size), generator.standard_normal((_STEPS, problem.dim)))
            found.append(chain.record.draws)
        draws = np.stack(found)
        if not np.isfinite(draws).all():
            break
        starts = draws[:, -1]
        late = draws[:, _STEPS // 2 :: max(1, _STEPS // (2 * _KEPT))].reshape(-1, problem.dim)
        tuning = Tuning(late.mean(axis=0) if moves else mode, late[:: len(late) // _POINTS][:_POINTS])
        if scales and len(metric.factor):
            gradients = gradients_at(probe.estimator, sampler, late, 0)
            metric = _rescaled(metric, late - late.mean(axis=0), gradients)
    return tuning, metric, size, starts


def _rescaled(metric: Metric, away: Vector, gradients: Vector) -> Metric:
    """Return the metric in which the regression of gradients on draws has slope 1."""
    slopes, places = whitened(metric, gradients), np.linalg.solve(metric.factor, away.T).T
    prior = _PRIOR * np.eye(away.shape[1])
    slope = np.linalg.solve(places.T @ places + prior, places.T @ slopes + prior)
    return metric._replace(factor=metric.factor @ inverse_root(slope, 1e-6))


def _largest_curvature(problem: Linear, metric: Metric, points: Vector) -> float:
    """Return the largest second derivative of f at some points along any direction of the metric, at least 1."""
    count = min(len(points), int(_WORK / (problem.n * float(problem.dim) ** 2)))
    if not len(metric.factor) or count == 0:
        return 1.0
    found = [np.linalg.eigvalsh(metric.factor.T @ hessian(problem, x) @ metric.factor)[-1] for x in points[:count]]
    return max(1.0, *map(float, found))


def _noise(steps: Any, metric: Metric, points: Vector) -> float:
    """Return the largest variance of the estimate of the gradient along any direction of the metric."""
    total: Any = 0.0
    for x in points:
        found = whitened(metric, batch_gradients(steps.estimator, steps.sampler, x, _BATCHES))
        found -= found.mean(axis=0)
        total += (found.T @ found if len(metric.factor) else (found**2).sum(axis=0)) / ((_BATCHES - 1) * len(points))
    return float(np.linalg.eigvalsh(total)[-1] if len(metric.factor) else total.max())


def _size(steps: Any, noise: float, curved: float, friction: float) -> float:
    """Return the step size."""
    if friction == 0.0:
        return _WIDER * 2.0 / (noise + (1.0 + _WIDER) * curved)
    most = _SUBTRACTED if steps.sampler.independent else _ADDED
    size = _STABLE / math.sqrt(curved)
    while (size * math.exp(-friction * size)) ** 2 * noise > most * -math.expm1(-2.0 * friction * size):
        size *= 0.95
    return size
