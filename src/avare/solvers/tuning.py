"""What chains of linear models find out before their first step: where to anchor, in which metric, with which steps.

It starts at the mode, with the metric of the second derivative there. If the posterior is not normal, the mode is not
its centre, and curvatures differ from place to place. So a few rounds of short chains follow. After each,

- the anchor of the control variate moves to the mean of their draws;
- the metric becomes that in which draws and gradients have the same covariance. For a normal law that is its own
  covariance, wherever the draws are; otherwise it is between that of the draws and the inverse of the mean curvature.
  It stays positive with fewer draws than coordinates;
- the step size follows from the largest curvature at the draws and from the noise of the gradient, both in the metric.

Short chains are Hamiltonian, also for Langevin steps, because they see more of the posterior in the same time.

Posteriors of nearly separable classes have walls: the curvature grows many times within one step, and a step too long
throws the chain far out. Such places are rare among draws. So the step also is short enough for the curvature that it
would meet if it climbed from the steepest of the draws, there or on average on its way. If the mode is next to a wall,
as with a dummy level of one class and a weak prior, short chains start at points that the posterior may have.

In the metric a chain with curvature l and gradient noise of variance c has, for Langevin steps of size a, the variance
(2 + a c) / (2 - a l) where 1 / l is right. Hamiltonian steps of size h are stable up to h^2 l = 4, exact for a normal
law, and their noise is subtracted; without that, it would add k^2 h^2 c / (1 - k^2) to the variance of a velocity, with
k = exp(-friction h).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.kernels import record_of
from avare.solvers.updates.metric import Metric, coloured, covariance, inverse_root, whitened
from avare.solvers.verdict import batch_gradients

POINTS = 16
"""Draws at which curvatures, norms and noise are measured."""
_ROUNDS, _CHAINS, _STEPS = 6, 4, 500  # of short chains
_KEPT = 16, 250  # draws of each of them, for the metric, at least and at most: exact gradients at all of them need ...
_ROWS = 4_000_000  # ... no more than this many rows
_BATCHES = 16  # to measure noise at each point
_WORK = 1e9  # products for second derivatives at draws
_WIDER = 1.05**2 - 1.0  # of the variances of Langevin chains, at most
_ADDED, _SUBTRACTED = 0.1, 0.4  # of the variance of a velocity, by noise: at most, and if it is subtracted
_STABLE = 0.7  # the step size of Hamiltonian steps, times the root of the largest curvature
_NOISY = 1.0  # the largest variance of a gradient in the metric: above, batches grow, ...
_MANY, _MOST = 4096, 1024  # ... up to all of this many examples, otherwise up to this size
_FAST = 3.0  # standard deviations of a velocity, with which a step climbs
_WALL = 0.25  # of the largest stable step, at the top of such a climb
_NEARER = 20  # times that a point comes nearer to the mode, at most
_NORMAL = 1.3  # the largest curvature up to which a posterior counts as normal
_PRIOR = 20.0  # draws that the last metric is worth
_LEAST_VALUE = 1e-20  # of the covariance of draws times that of gradients, relative to the largest
_LEAST_BEND = 0.05  # of the largest curvature of an example: outputs may move to where it is larger
_SEED = 20


class Tuning(NamedTuple):
    """Where the chains will be."""

    anchor: Vector
    """The mode, or the mean of the last short chains."""
    points: Vector
    """Some draws, or points like them; may be empty."""
    rows: Vector
    """The size of batches if none is given, one number."""


def points_around(problem: Problem, x: Vector, metric: Metric, count: int) -> Vector:
    """Return some draws of the normal law around the mode x with the covariance F F^T.

    If f is steeper on one side, the normal law reaches where the posterior has no mass. A draw is moved towards x until
    f is at most twice as far above f(x) as for a normal posterior.
    """
    moves = np.random.default_rng(_SEED).standard_normal((count, len(x)))
    least = problem.objective(x) if count else 0.0
    for each in moves:
        most = least + each @ each
        for _ in range(_NEARER):
            if problem.objective(x + coloured(metric, each)) <= most:
                break
            each *= 0.7
    return x + coloured(metric, moves)


def expected_norms(problem: Linear, control: str, tuning: Tuning) -> Vector:
    """Approximate the norms of what is drawn: gradients, or with a control variate differences, in the metric.

    That of a difference is by how much a slope changes times the length of the row in the metric, and this length is by
    how much the output changes; both are averaged over the points. O(size of X) for each point.
    """
    if control == "none":
        return problem.loss_norms(tuning.anchor)
    largest = problem.curvature * (problem.model.sample_weight if len(problem.model.sample_weight) else 1.0)
    table = (tuning.points - tuning.anchor).reshape(-1, problem.width)
    squares = (problem.rows(centred=False).outputs(table) ** 2).mean(axis=1)
    known = problem.survey(tuning.anchor).slopes
    here = [((problem.survey(x).slopes - known) ** 2).mean(axis=1) for x in tuning.points]
    return np.asarray(np.sqrt(squares * (np.mean(here, axis=0) + (_LEAST_BEND * largest) ** 2 * squares)))


def tune(plan: Any, *, moves: bool, scales: bool) -> None:
    """Set the step size of a plan and first iterates; also its anchor and its metric, if they may change."""
    friction = plan.friction
    plan.friction = friction or 1.0
    steps, noise, curved, steep = _explore(plan, moves, scales)
    plan.friction = friction
    plan.size = _size(steps, noise, curved, friction)
    _shorten_at_walls(plan, steep)


def _explore(plan: Any, moves: bool, scales: bool) -> tuple[Any, float, float, Vector]:
    """Run rounds of short chains; return the last steps, noise and largest curvature, and the steepest draws."""
    problem, generator = plan.problem, np.random.default_rng(_SEED)
    first = plan.tuning.points
    plan.starts, steep = first[:_CHAINS], first[:0]
    for k in range(_ROUNDS):
        steps, noise = _probe(plan, generator)
        most = problem.n if problem.n <= _MANY else _MOST
        if plan.batch_size is None and noise > _NOISY and plan.tuning.rows[0] < most:
            rows = min(most, int(plan.tuning.rows[0] * noise / _NOISY))
            plan.tuning.rows[0] = most if 4 * rows > most else rows
            steps, noise = _probe(plan, generator)
        curved = _largest_curvature(problem, plan.metric, plan.tuning.points)
        plan.size = _size(steps, noise, curved or 1.0, plan.friction)
        found = max(curved or 1.0, _shorten_at_walls(plan, steep))
        if curved is None or k == _ROUNDS - 1 or (k > 0 and found < _NORMAL):
            break
        draws = np.stack([_short_chain(plan, steps.sampler, x, generator) for x in plan.starts])
        if not np.isfinite(draws).all():
            break
        kept = int(np.clip(_ROWS // (_CHAINS * problem.n), *_KEPT))
        late = draws[:, _STEPS // 2 :: _STEPS // (2 * kept)].reshape(-1, problem.dim)
        mean, plan.starts = late.mean(axis=0), draws[:, -1]
        points = late[:: len(late) // POINTS][:POINTS]
        plan.tuning = Tuning(mean if moves else plan.tuning.anchor, points, plan.tuning.rows)
        if len(plan.metric.factor) and len(late) * problem.n <= _ROWS:
            gradients = _gradients(problem, late)
            if scales:
                plan.metric = _rescaled(plan.metric, late - mean, gradients)
            late = np.concatenate([first, late])  # short chains may miss a wall that is next to the mode
            gradients = np.concatenate([_gradients(problem, first), gradients])
            steep = late[np.argsort(-np.linalg.norm(whitened(plan.metric, gradients), axis=1))[:POINTS]]
    return steps, noise, curved or 1.0, steep


def _probe(plan: Any, generator: np.random.Generator) -> tuple[Any, float]:
    """Return steps from one of the points, where a table of SAGA is filled, with a copy of the sampler; and noise."""
    sampler = plan.build_sampler(_SEED).copy_with_seed(generator)
    steps = plan.chain_steps("", sampler, plan.tuning.points[-1], generator)
    return steps, _noise(steps, plan.metric, plan.tuning.points)


def _short_chain(plan: Any, sampler: Sampler, start: Vector, generator: np.random.Generator) -> Vector:
    """Return the draws of a short chain; the sampler learns."""
    dim = len(start)
    chain = plan.chain_steps("", sampler, start, generator, record_of(dim, _STEPS, burn_in=0))
    chain.advance(0, np.full(_STEPS, plan.size), generator.standard_normal((_STEPS, dim)))
    return np.asarray(chain.record.draws)


def _rescaled(metric: Metric, away: Vector, gradients: Vector) -> Metric:
    """Return the metric in which draws and gradients have the same covariance, with some draws of the old one added."""
    slopes, places = whitened(metric, gradients), np.asarray(np.linalg.solve(metric.factor, away.T).T, np.float64)
    slopes -= slopes.mean(axis=0)
    prior = _PRIOR * np.eye(away.shape[1])
    root = inverse_root(slopes.T @ slopes + prior)
    inner = np.linalg.solve(root, np.linalg.solve(root, places.T @ places + prior).T)
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
    values = np.maximum(values, _LEAST_VALUE * values[-1])  # otherwise the factor would be singular
    return metric._replace(factor=metric.factor @ root @ vectors * values**0.25)


def _shorten_at_walls(plan: Any, steep: Vector) -> float:
    """Shorten the steps until a fast one that climbs from any of these draws stays stable; return the curvature there.

    The shorter the step, the less far it climbs.
    """
    hamiltonian = plan.friction > 0.0
    if not len(steep):
        return 1.0
    slopes = whitened(plan.metric, _gradients(plan.problem, steep))
    climbs = slopes / np.maximum(np.linalg.norm(slopes, axis=1), 1e-300)[:, None]
    while True:
        reach = _FAST * (plan.size if hamiltonian else math.sqrt(2.0 * plan.size))
        ends = steep + reach * coloured(plan.metric, climbs)
        changes = whitened(plan.metric, _gradients(plan.problem, ends)) - slopes
        secants = np.linalg.norm(changes, axis=1) / reach  # beyond a wall, f is straight
        found = max(float(secants.max()), _largest_curvature(plan.problem, plan.metric, ends) or 1.0)
        if (plan.size**2 / 4.0 if hamiltonian else plan.size / 2.0) * found <= _WALL:
            return found
        plan.size *= 0.8


def _gradients(problem: Linear, points: Vector) -> Vector:
    return np.stack([problem.gradient(x) for x in points])


def _largest_curvature(problem: Linear, metric: Metric, points: Vector) -> float | None:
    """Return the largest second derivative of f at some points along any direction of the metric, at least 1.

    None if there are too many examples or coordinates: then the posterior counts as normal.
    """
    count = min(len(points), int(_WORK / (problem.n * float(problem.dim) ** 2)))
    if not len(metric.factor) or count == 0:
        return None
    found = [np.linalg.eigvalsh(metric.factor.T @ problem.hessian(x) @ metric.factor)[-1] for x in points[:count]]
    return max(1.0, *map(float, found))


def _noise(steps: Any, metric: Metric, points: Vector) -> float:
    """Return the largest variance of the estimate of the gradient along any direction of the metric."""
    found = [covariance(metric, batch_gradients(steps.estimator, steps.sampler, x, _BATCHES)) for x in points]
    mean = np.mean(found, axis=0)
    return float(np.linalg.eigvalsh(mean)[-1] if mean.ndim == 2 else mean.max())


def _size(steps: Any, noise: float, curved: float, friction: float) -> float:
    """Return the step size."""
    if friction == 0.0:
        return _WIDER * 2.0 / (noise + (1.0 + _WIDER) * curved)
    most = _SUBTRACTED if steps.sampler.independent else _ADDED
    size = _STABLE / math.sqrt(curved)
    while (size * math.exp(-friction * size)) ** 2 * noise > most * -math.expm1(-2.0 * friction * size):
        size *= 0.95
    return size
