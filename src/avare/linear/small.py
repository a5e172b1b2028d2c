"""Newton's method for small linear models with one output: few calls, each of which does a whole step.

A step of `newton` is some sixty operations on arrays, which take longer than their work if X is small. Here one kernel
computes the step, its linear predictors, and what it adds to the gap, from a copy of X with a row per column. The gap
is that of `newton`, by the dual variables that a step predicts. If many steps do not certify the minimum, `newton`
continues where they end.
"""

from __future__ import annotations

import math

import numpy as np

from avare._compilation import product
from avare.linear.design import CALL
from avare.linear.losses import fenchel_young, terms_at
from avare.linear.objective import Objective, Point
from avare.linear.task import LinearTask, Outcome
from avare.problems.rows import Array

_STEPS, _HALVES = 40, 10  # most steps, and halvings of one: `newton` searches more carefully
_CALLS, _CALLS_IF_WIDE = 60.0, 10.0  # operations of a step of `newton`, and of what other strategies need if n < d
_LOSS, _ENTRY, _PAIR = 3.0, 0.3, 0.045  # nanoseconds per row, entry of X, and pair of entries in a row
_TRIPLE = 0.02  # and per triple of columns in a Cholesky factor
_ENOUGH = 1e-4  # Armijo: share of the predicted decrease
_SINGULAR, _ROUNDING = 1e-12, 1e-12  # of a diagonal; of the sum of all dual variables


def expected_cost(task: LinearTask) -> float:
    """Estimate the nanoseconds of a step; infinite if `newton` needs no more, or if it cannot do the task.

    It needs one output, an l2 term for all coefficients but a free bias, and no callback.
    """
    total, n, width = task.total, task.total.rows.n, task.total.rows.width
    if total.problem.outputs > 1 or not total.is_strongly_convex or task.callback is not None:
        return math.inf
    cost = n * (_LOSS + width * (_ENTRY + _PAIR * width)) + _TRIPLE * float(width) ** 3
    calls = _CALLS_IF_WIDE if n < total.rows.columns and not total.problem.is_quadratic else _CALLS
    return cost if cost <= calls * CALL else math.inf


def solve(task: LinearTask) -> Outcome:
    """Make steps until one certifies the goal; "started" if that takes many, or if none is lower."""
    total, goal, point, taken = task.total, task.goal, task.point, 0
    columns, l2 = total.rows.by_columns(), total.l2[0]
    width, n = columns.shape
    hessian, work, lower = np.empty((width, width)), np.empty((3, n)), 0.0 if total.problem.is_positive else -math.inf
    for _ in range(min(task.steps, _STEPS)):
        step = np.empty((1, width))
        slopes, curvatures = point.terms.slopes[:, 0], point.terms.curvature[:, 0]
        decrease, bound = _step(columns, slopes, curvatures, l2, point.table[0], hessian, work, step[0])
        if decrease <= math.sqrt(abs(goal * point.objective)) or total.problem.is_quadratic:
            bound += fenchel_young(total.problem, point.outputs, point.terms, work[2][:, None])
            lower = max(lower, point.objective - bound)
        if point.objective - lower > goal:
            further = _move(total, point, step, work[1][:, None], decrease)
            if further is None:
                break
            point, taken = further, taken + 1
        if point.objective - lower <= goal:
            return Outcome(point, max(point.objective - lower, 0.0), taken, "converged")
    return Outcome(point, math.inf, taken)


def _move(total: Objective, point: Point, step: Array, outputs: Array, decrease: float) -> Point | None:
    """Return the point after a step that is short enough; None if none is."""
    length = 1.0
    for _ in range(_HALVES if decrease > 0.0 else 0):
        table, there = point.table + length * step, point.outputs + length * outputs
        terms = terms_at(total.problem, there)
        objective = terms.loss + total.penalty(table)
        if objective <= point.objective - _ENOUGH * length * decrease:
            return Point(table, there, terms, objective)
        length *= 0.5
    return None


# --- kernels -------------------------------------------------------------------------------


@product
def _step(columns, slopes, curvatures, l2, x, hessian, work, step):
    """Set a step, its linear predictors (`work[1]`), and the dual variables that it predicts (`work[2]`).

    Return the predicted decrease, and what its dual variables add to the gap besides the losses: infinite if they do
    not sum to 0 over a free bias. Both are NaN if the Hessian is singular.
    """
    width, n = columns.shape
    for j in range(width):
        for i in range(n):
            work[0, i] = curvatures[i] * columns[j, i]
        step[j] = -_dot(columns[j], slopes) - l2[j] * x[j]
        for k in range(j, width):
            hessian[k, j] = _dot(work[0], columns[k])
        hessian[j, j] += l2[j]
    if not _factorise(hessian):
        return math.nan, math.nan
    decrease = _substitute(hessian, step)
    work[1] = 0.0
    for j in range(width):
        for i in range(n):
            work[1, i] += step[j] * columns[j, i]
    for i in range(n):
        work[2, i] = slopes[i] + curvatures[i] * work[1, i]
    return decrease, _bound(columns, work[2], l2, x)


@product
def _bound(columns, duals, l2, x):
    size, bound = 0.0, 0.0
    for i in range(len(duals)):
        size += abs(duals[i])
    for j in range(len(columns)):
        total = _dot(columns[j], duals) + l2[j] * x[j]
        if l2[j] > 0.0:
            bound += total * total / (2.0 * l2[j])
        elif abs(total) > _ROUNDING * size:
            bound = math.inf
    return bound


@product
def _dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@product
def _factorise(matrix):
    """Replace the lower triangle by its Cholesky factor; return whether the matrix is not singular."""
    for j in range(len(matrix)):
        whole = matrix[j, j]
        for k in range(j):
            matrix[j, k] = (matrix[j, k] - _dot(matrix[j, :k], matrix[k, :k])) / matrix[k, k]
        rest = whole - _dot(matrix[j, :j], matrix[j, :j])
        if not rest > _SINGULAR * whole:
            return False
        matrix[j, j] = math.sqrt(rest)
    return True


@product
def _substitute(factor, right):
    """Replace the right side by the solution; return the product of both."""
    total = 0.0
    for j in range(len(right)):
        right[j] = (right[j] - _dot(factor[j, :j], right[:j])) / factor[j, j]
        total += right[j] * right[j]
    for j in range(len(right) - 1, -1, -1):
        right[j] /= factor[j, j]
        for k in range(j):
            right[k] -= factor[j, k] * right[j]
    return total
