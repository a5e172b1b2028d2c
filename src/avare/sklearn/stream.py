"""One epoch of SAGA over a part of a stream, with what all parts so far say of the columns.

A part may have one row, or columns with the same number everywhere. Its own means and variances would then say nothing
of how far a coefficient may move.
"""

from typing import NamedTuple

import numpy as np

from avare._randomness import Seed
from avare.problems import Linear
from avare.problems.base import Vector
from avare.solvers.arguments import resolve_sampler, sizes_of
from avare.solvers.estimators.table import TableEstimator
from avare.solvers.loop import Loop, Monitoring
from avare.solvers.preconditioner import DiagonalPreconditioner
from avare.solvers.run import Run, run_of
from avare.solvers.saga import SagaSteps


class Moments(NamedTuple):
    """The columns of all rows so far."""

    weight: float
    means: Vector
    """0 if columns are not centred."""
    squares: Vector
    """The sums of weight times squared distance from the mean."""


def moments_of(problem: Linear, share: float) -> Moments:
    """Return the moments of a part whose weights were divided by its share of all rows."""
    weights = share * problem.model.sample_weight
    rows = problem.rows(centred=problem.model.matrix.sparse is None)
    means = np.zeros(rows.columns) if rows.means is None else rows.means + rows.shift
    return Moments(float(weights.sum()), means, rows.squares(weights)[: rows.columns])


def merge(first: Moments, second: Moments) -> Moments:
    """Return the moments of the rows of both.

    >>> merge(Moments(1.0, np.array([2.0]), np.array([0.0])), Moments(1.0, np.array([4.0]), np.array([0.0])))
    Moments(weight=2.0, means=array([3.]), squares=array([2.]))
    """
    weight, apart = first.weight + second.weight, second.means - first.means
    share = second.weight / weight if weight > 0.0 else 0.0
    squares = first.squares + second.squares + first.weight * share * apart**2
    return Moments(weight, first.means + share * apart, squares)


def one_epoch(
    problem: Linear, moments: Moments, sampler: str, batch_size: int, start: Vector, scale: float, seed: Seed
) -> Run:
    """Make one epoch of steps that are smaller than those of `avare.saga` by a factor."""
    rows, width = problem.rows(centred=False), problem.width
    curvature = problem.penalty.l2[:width].copy()
    curvature[: rows.columns] += problem.curvature * moments.squares
    curvature[rows.columns :] += problem.curvature * moments.weight
    inverse, shift = np.divide(1.0, curvature, out=np.zeros(width), where=curvature > 0.0), np.zeros(width)
    if moments.means.any():
        rows.means = shift[: rows.columns] = moments.means
    metric = DiagonalPreconditioner(inverse, shift, np.sqrt(rows.lengths(inverse)).astype(np.float32))
    size = scale * metric.step_size(problem, batch_size, rows)
    draws = resolve_sampler(problem, sampler, batch_size, seed, **metric.sampler_options(problem))
    steps = SagaSteps(draws, TableEstimator(problem, start, batch_size, lengths=metric.lengths), metric, size, 0.0)
    return run_of(Loop(steps, Monitoring(), sizes_of(size), steps.epoch_steps), size, None)
