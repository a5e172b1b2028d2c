"""What chains of linear models find out before their first step: where to anchor, in which metric, with which steps.

Tuning starts at the mode, with the metric of the Hessian there. If the posterior is not normal, the mode is not its
centre, and curvatures differ from place to place. So a few rounds of short chains follow. After each,

- the anchor of the control variate moves to the mean of their draws;
- the metric becomes that in which draws and gradients have the same covariance. For a normal law that is its own
  covariance, wherever the draws are; otherwise it is between that of the draws and the inverse of the mean Hessian.
  It stays positive with fewer draws than coordinates;
- the step size follows from the largest curvature at the draws and from the noise of the gradient, both in the metric.

The short chains move by the `probe` of the dynamics.

Where classes are nearly separable, the curvature grows many times within one step, and a step that is too long throws
the chain far out. Such places are rare among draws. So the step is also short enough for the curvature that it would
meet if it climbed from the steepest of the draws, there or on average on its way. With a level of one class and a weak
prior, the mode itself is next to such a place. So short chains start at points that the posterior may have.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.solvers.dynamics import Dynamics
from avare.solvers.kernels import SAVED
from avare.solvers.metric import Metric, balanced_metric, coloured, covariance, whitened
from avare.solvers.preconditioner import largest_curvatures, largest_eigenvalue
from avare.solvers.steps import Steps

POINTS = 16
"""Draws at which curvatures, norms and noise are measured: a guess."""
_ROUNDS, _CHAINS, STEPS = 6, 4, 500
"""Rounds at most, and the short chains of each and their steps. 500 steps of 0.7 are 56 periods of a coordinate."""
_KEPT = 16, 250
"""Draws of a short chain that set the metric, at least and at most. With 250 it is every step of the second half."""
_ROWS = 4_000_000
"""Rows of all exact gradients of a round, which bound its cost: a guess.

Up to 4,000 examples all draws above count, and for more they are thinned. Above 62,500 examples the metric stays that
of the mode.
"""
_BATCHES = 16
"""Batches that measure the noise at each point: 256 in all, so that a variance has a relative error of 9 %."""
_WORK = 1e9
"""Products for Hessians at draws, n d^2 each: a bound on the cost, and a guess."""
_NOISY = 1.0
"""Variance of a gradient in the metric, above which batches grow: the steps of `sgld` would have to shrink with it."""
_MANY, _MOST = 4096, 1024
"""Batches grow up to all examples if there are at most 4096, otherwise up to 1024: guesses."""
_SPEED = 3.0
"""Standard deviations of the velocity or noise of a step that must be safe: 1 step in 740 climbs faster."""
_SAFE = 0.25
"""Such a step, as a fraction of the largest stable one at its end: a guess."""
_SHORTER = 0.8
"""By this factor a step is shortened until it is safe: it is at most 20 % too short."""
_NEARER, _PULL = 20, 0.7
"""How often a point is moved towards the mode at most, and by which factor: together by 10^-3."""
_NORMAL = 1.3
"""The largest curvature in the metric up to which a posterior counts as normal, with curvature 1: a guess."""
_LEAST_CHANGE = 0.05
"""Change of a loss derivative per unit of the linear predictor, at least, over its largest: a guess.

Where a loss is flat at all points, as Huber's for outliers, its examples would otherwise never be drawn.
"""
_SEED = 20  # any number: the same problem gets the same chains


class Tuned(NamedTuple):
    """What chains start with."""

    mode: Vector
    """The mode, or the point that was given; after resuming, the anchor."""
    anchor: Vector
    """The mode, or the mean of the last short chains."""
    points: Vector
    """Some draws, or points like them, one per row; may be empty."""
    batch_size: int
    """The size of batches if none is given."""
    metric: Metric
    starts: Vector
    """First iterates: one per row, or only one."""
    step_size: Any


SAVED[Tuned] = ("anchor", "points")  # chains save their metrics, and samplers the size of batches


class TuningOptions(NamedTuple):
    """What tuning starts with, and what it may change."""

    first: Tuned
    dynamics: Dynamics
    build_sampler: Callable[[Tuned, int], Sampler]
    """From a seed."""
    build_steps: Callable[[Tuned, Sampler, Vector, np.random.Generator], Steps]
    """Of a short chain: its first iterate, and what it draws from."""
    moves_anchor: bool
    changes_metric: bool
    grows_batches: bool


def tune(problem: Linear, options: TuningOptions) -> Tuned:
    """Find the step size and first iterates; also the anchor and the metric, if they may change."""
    generator, first = np.random.default_rng(_SEED), options.first.points
    now, steep = options.first._replace(starts=first[:_CHAINS]), first[:0]

    def step_size(dynamics: Dynamics) -> tuple[float, float]:
        size = dynamics.choose_step_size(noise, curvature, independent=sampler.independent)
        return _safe_step_size(problem, dynamics, now.metric, size, steep)

    for k in range(_ROUNDS):
        sampler, noise = _measure_noise(options, now, generator)
        larger = _larger_batch(problem.n, now.batch_size, noise) if options.grows_batches else now.batch_size
        if larger > now.batch_size:
            now = now._replace(batch_size=larger)
            sampler, noise = _measure_noise(options, now, generator)
        known = _largest_curvature(problem, now.metric, now.points)
        curvature = known or _curvature_by_products(problem, now.metric, now.anchor)
        size, met = step_size(options.dynamics.probe())
        if known is None or k == _ROUNDS - 1 or (k > 0 and max(curvature, met) < _NORMAL):
            break
        draws = np.stack([_short_chain(options, now, size, x, sampler, generator) for x in now.starts])
        if not np.isfinite(draws).all():
            break
        now, steep = _take_in(problem, options, now, draws, steep)
    return now._replace(step_size=step_size(options.dynamics)[0])


def _larger_batch(n: int, batch_size: int, noise: float) -> int:
    """Return a batch size with which the gradient is not too noisy; all examples if that is not much more."""
    most = n if n <= _MANY else _MOST
    if noise <= _NOISY or batch_size >= most:
        return batch_size
    size = min(most, int(batch_size * noise / _NOISY))
    return most if 4 * size > most else size


def _take_in(problem: Linear, options: TuningOptions, now: Tuned, draws: Vector, steep: Vector) -> tuple[Tuned, Vector]:
    """Return the next state of tuning after a round of short chains, and the draws with the largest gradients."""
    first = options.first.points
    kept = int(np.clip(_ROWS // (_CHAINS * problem.n), *_KEPT))
    late = draws[:, STEPS // 2 :: math.ceil(STEPS / (2 * kept))].reshape(-1, problem.dim)
    mean, points = late.mean(axis=0), late[:: len(late) // POINTS][:POINTS]
    found = now._replace(anchor=mean if options.moves_anchor else now.anchor, points=points, starts=draws[:, -1])
    if not len(now.metric.factor) or len(late) * problem.n > _ROWS:
        return found, steep
    gradients = _gradients(problem, late)
    if options.changes_metric:
        found = found._replace(metric=balanced_metric(now.metric, late - mean, gradients))
    late = np.concatenate([first, late])  # short chains may miss a steep place that is next to the mode
    gradients = np.concatenate([_gradients(problem, first), gradients])
    return found, late[np.argsort(-np.linalg.norm(whitened(found.metric, gradients), axis=1))[:POINTS]]


def _measure_noise(options: TuningOptions, now: Tuned, generator: np.random.Generator) -> tuple[Sampler, float]:
    """Return a copy of the sampler, and the largest variance of its gradient along any direction of the metric.

    The table of SAGA is filled at one of the points.
    """
    sampler = options.build_sampler(now, _SEED).copy_with_seed(generator)
    estimator = options.build_steps(now, sampler, now.points[-1], generator).estimator
    gradients = [estimator.from_batches(x, sampler, _BATCHES) for x in now.points]
    mean = np.mean([covariance(now.metric, each) for each in gradients], axis=0)
    return sampler, float(np.linalg.eigvalsh(mean)[-1] if mean.ndim == 2 else mean.max())


def _short_chain(
    options: TuningOptions, now: Tuned, size: float, start: Vector, sampler: Sampler, generator: np.random.Generator
) -> Vector:
    """Return the draws of a short chain; the sampler learns."""
    chain = options.build_steps(now, sampler, start, generator)
    chain.advance(0, np.full(STEPS, size), generator.standard_normal((STEPS, len(start))))
    return np.asarray(chain.record.draws)


def _safe_step_size(
    problem: Linear, dynamics: Dynamics, metric: Metric, size: float, steep: Vector
) -> tuple[float, float]:
    """Shorten a step until a fast one that climbs from any of these draws stays stable; return the curvature too.

    The shorter the step, the less far it climbs.
    """
    if not len(steep):
        return size, 1.0
    slopes = whitened(metric, _gradients(problem, steep))
    climbs = slopes / np.maximum(np.linalg.norm(slopes, axis=1), 1e-300)[:, None]
    while True:
        distance, stiffness = dynamics.fast_step(size)
        reach = _SPEED * distance
        ends = steep + reach * coloured(metric, climbs)
        changes = whitened(metric, _gradients(problem, ends)) - slopes
        secants = np.linalg.norm(changes, axis=1) / reach  # beyond the steep place, f is straight
        found = max(float(secants.max()), _largest_curvature(problem, metric, ends) or 1.0)
        if stiffness * found <= _SAFE:
            return size, found
        size *= _SHORTER


def _gradients(problem: Linear, points: Vector) -> Vector:
    return np.stack([problem.gradient(x) for x in points])


def _largest_curvature(problem: Linear, metric: Metric, points: Vector) -> float | None:
    """Return the largest curvature of f at some points along any direction of the metric, at least 1.

    None if there are too many examples or coordinates: then the posterior counts as normal.
    """
    count = min(len(points), int(_WORK / (problem.n * float(problem.dim) ** 2)))
    if not len(metric.factor) or count == 0:
        return None
    found = [np.linalg.eigvalsh(metric.factor.T @ problem.hessian(x) @ metric.factor)[-1] for x in points[:count]]
    return max(1.0, *map(float, found))


def _curvature_by_products(problem: Linear, metric: Metric, x: Vector) -> float:
    """Return the largest curvature of f at x along any direction of the metric, at least 1, by the power method.

    It is 1 if the metric is a whole matrix, which is that of the mode.
    """
    if len(metric.factor):
        return 1.0
    start = np.random.default_rng(_SEED).standard_normal((1, problem.dim))
    found = largest_eigenvalue(
        lambda move: whitened(metric, problem.hessian_product(x, coloured(metric, move)[0])[None]), start
    )
    return max(1.0, found)


# --- what is known around a mode -----------------------------------------------------------


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
            each *= _PULL
    return x + coloured(metric, moves)


def expected_norms(problem: Linear, control: str, anchor: Vector, points: Vector) -> Vector:
    """Approximate the norms of the terms drawn near the anchor: gradients, or with a control variate differences.

    The norm of a difference is the change of the loss derivative times the length of the row in the metric. This length
    is the change of the linear predictor. Both are averaged over the points. O(size of X) for each point.
    """
    if control == "none":
        return problem.loss_norms(anchor)
    largest = largest_curvatures(problem)
    table = (points - anchor).reshape(-1, problem.width)
    squares = (problem.rows(centred=False).outputs(table) ** 2).mean(axis=1)
    known = problem.survey(anchor).slopes
    here = [((problem.survey(x).slopes - known) ** 2).mean(axis=1) for x in points]
    return np.asarray(np.sqrt(squares * (np.mean(here, axis=0) + (_LEAST_CHANGE * largest) ** 2 * squares)))
