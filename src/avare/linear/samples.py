"""A better start, from samples of the rows: few rows are enough to come near the minimum.

The first steps use a sixteenth of the rows, a sixteenth of these, and so on, as long as there are several rows for each
coefficient. The preconditioner of the last step on a sample is the first one on all rows.
"""

from __future__ import annotations

import math

import numpy as np

from avare.linear import coordinate_descent, working_sets
from avare.linear.design import CALL, OF_LOSS, Design
from avare.linear.intercept import constant_model
from avare.linear.newton import approach
from avare.linear.newton_system import NewtonSystem, is_direct
from avare.linear.objective import TINY, Objective
from avare.linear.preconditioners import NewtonPreconditioner, systematic
from avare.linear.task import LinearTask, Outcome
from avare.problems.linear import Linear
from avare.problems.rows import Array

_SHARE = 16  # one over the share of rows in the next smaller sample
_FEWEST, _PER_COEFFICIENT = 500, 16  # rows of a sample
_CHEAP = 100.0 * CALL  # nanoseconds of a step that needs no sample
_STEPS, _STEPS_WITH_L1 = 200, 10  # most steps on a sample
_OF_SAMPLE, _ROUGHEST = 0.3, 0.02  # tolerance of a sample: a share of its error, coefficients / rows; and at most


def expected_cost(task: LinearTask) -> float:
    """Return 0 if there are samples of the rows that save work; infinite otherwise."""
    total = task.total
    is_easy = total.problem.is_quadratic and (not total.has_l1 or is_direct(total))
    return 0.0 if task.is_constant and not is_easy and sample_sizes(total.problem, total.rows) else math.inf


def solve(task: LinearTask) -> Outcome:
    """Minimise over samples of the rows, each larger than the one before; return a start for all rows."""
    total, table, preconditioner = task.total, task.table, None
    problem, generator = total.problem, np.random.default_rng(0)
    scores, scale = _sampling_scores(problem), constant_model(problem)[1]
    share = task.goal / max(scale, TINY)
    for number, size in enumerate(reversed(sample_sizes(problem, total.rows))):
        indices = systematic(scores, size, generator)
        weights = problem.model.sample_weight[indices] if len(problem.model.sample_weight) else 1.0
        part = Objective(problem.subset(indices, weights / (size * scores[indices])), total.rows.subset(indices))
        flat, scale = constant_model(part.problem)
        goal = max(share, min(_OF_SAMPLE * problem.dim / size, _ROUGHEST)) * scale
        table, preconditioner = _minimise(part, flat if number == 0 else table, goal, preconditioner)
    point = total.at(table)
    return Outcome(point if point.objective < scale else task.point, preconditioner=preconditioner)


def sample_sizes(problem: Linear, rows: Design) -> list[int]:
    """Return the numbers of rows of samples, from the largest to the smallest.

    A sample of rows with which steps are cheap anyway is not worth its overhead.

    The error of a sample is about (coefficients / rows). If it is small, the next sample is a sixteenth: one step leads
    from the minimum of the one almost to that of the other. Otherwise it is a quarter.
    """
    sizes, size, of_row = list[int](), problem.n, 4.0 * (rows.curve_cost(problem.outputs) - CALL) / problem.n + OF_LOSS
    while size * of_row > _CHEAP:
        size //= _SHARE if size >= _SHARE * _PER_COEFFICIENT * problem.dim else 4
        if size < max(_FEWEST, _PER_COEFFICIENT * problem.dim):
            break
        sizes.append(size)
    return sizes


def _minimise(
    part: Objective, table: Array, goal: float, preconditioner: NewtonPreconditioner | None
) -> tuple[Array, NewtonPreconditioner | None]:
    first = part.at(table)
    if not part.has_l1:
        system = NewtonSystem(part, preconditioner)
        return approach(part, system, first, goal, _STEPS)[0].table, system.ladder.current
    task = LinearTask(part, first, goal, _STEPS_WITH_L1)
    strategy = coordinate_descent if coordinate_descent.expected_cost(task) < math.inf else working_sets
    return strategy.solve(task).point.table, None


def _sampling_scores(problem: Linear) -> Array:
    """Return scores that sum to 1, to draw a sample by: the sample weights, with the same sum for each class."""
    codes, sums = problem.class_weights()
    if not sums.any():
        return np.full(problem.n, 1.0 / problem.n)
    shares = np.divide(1.0, np.count_nonzero(sums) * sums, out=np.zeros(len(sums)), where=sums > 0.0)[codes]
    return shares * problem.model.sample_weight if len(problem.model.sample_weight) else shares
