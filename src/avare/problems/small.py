"""Newton's method for small linear models with one output: few calls, each of which does a whole step.

A step of `newton` is some forty operations on arrays, which take longer than their work if X is small. Here X is
copied, centred and with a row per column, and one kernel computes the step, its outputs, and what it adds to the gap.
The gap is that of `newton`, by the slopes that a step predicts. What does not converge quickly is left to `newton`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from avare._compilation import lean, product
from avare.problems.rows import CALL, Table

if TYPE_CHECKING:
    from avare.problems.linear import Linear, Terms

_STEPS, _HALVES = 20, 10
_CALLS = 40.0  # operations of a step of `newton`
_ENTRY, _PAIR, _TRIPLE = 0.3, 0.045, 0.02  # nanoseconds per entry of X, pair of entries in a row, entry of a factor
_ENOUGH, _SINGULAR, _ROUNDING = 1e-4, 1e-12, 1e-12  # of a promised decrease; of a diagonal; of the sum of all slopes


class SmallMinimum(NamedTuple):
    """A point with its certificate."""

    table: Table
    objective: float
    gap: float
    steps: int
    slopes: Table


def is_small(problem: Linear) -> bool:
    """Whether a step takes no longer than the calls of `newton` for one."""
    n, width = problem.n, problem.width
    held = problem.penalty.l2[: width - int(problem.has_free_bias)]
    if problem.outputs > 1 or problem.l1 > 0.0 or not (held > 0.0).all():
        return False
    return n * width * (_ENTRY + _PAIR * width) + _TRIPLE * float(width) ** 3 <= _CALLS * CALL


def minimise_small(problem: Linear, constant: Table, height: float, goal: float, steps: int) -> SmallMinimum | None:
    """Minimise from a constant model with a given objective; None if the gap does not fall to the goal quickly."""
    rows, means = _columns(problem)
    l2, width, lower = problem.penalty.l2, problem.width, -math.inf
    x, z = constant[0], np.full(problem.n, constant[0, -1] if problem.model.matrix.bias else 0.0)
    terms, matrix, work = problem.terms_at(z[:, None]), np.empty((width, width)), np.empty((3, problem.n))
    for count in range(min(steps, _STEPS)):
        step = np.empty(width)
        promise, bound = _step(rows, terms.slopes[:, 0], terms.curvature[:, 0], l2, x, matrix, work, step)
        if promise <= math.sqrt(goal * height) or problem.is_quadratic:
            lower = max(lower, height - bound - problem.excess(z[:, None], terms, work[2][:, None]))
        if height - lower > goal:
            moved = _move(problem, x, z, height, step, work[1], promise)
            if moved is None:
                return None
            x, z, terms, height, count = *moved, count + 1
        if height - lower <= goal:
            table = x[None].copy()
            table[0, -1] -= float(means @ x[: len(means)])
            return SmallMinimum(table, height, max(height - lower, 0.0), count, terms.slopes)
    return None


def _move(
    problem: Linear, x: Table, z: Table, height: float, step: Table, outputs: Table, promise: float
) -> tuple[Table, Table, Terms, float] | None:
    """Return the coefficients, outputs, losses and objective after a step that is short enough; None if none is."""
    length = 1.0
    for _ in range(_HALVES if promise > 0.0 else 0):
        there, reached = x + length * step, z + length * outputs
        terms = problem.terms_at(reached[:, None])
        objective = terms.loss + 0.5 * float(there @ (problem.penalty.l2 * there))
        if objective <= height - _ENOUGH * length * promise:
            return there, reached, terms, objective
        length *= 0.5
    return None


def _columns(problem: Linear) -> tuple[Table, Table]:
    """Copy X, with a row per column and last a row of ones if there is a bias; return the means subtracted too."""
    matrix, weights = problem.model.matrix, problem.model.sample_weight
    rows, means = np.zeros((problem.width, problem.n)), np.zeros(problem.width - int(problem.has_free_bias))
    if matrix.dense is not None:
        rows[: matrix.dense.shape[1]] = matrix.dense.T
    else:
        assert matrix.sparse is not None
        _scatter(*matrix.sparse, rows)
    if matrix.bias:
        rows[-1] = 1.0
    if problem.has_free_bias:
        _centre(rows, weights, means)
    return rows, means


# --- kernels -------------------------------------------------------------------------------


@lean
def _scatter(values, columns, starts, rows):
    for i in range(rows.shape[1]):
        for j in range(starts[i], starts[i + 1]):
            rows[columns[j], i] = values[j]


@product
def _centre(rows, weights, means):
    """Subtract the weighted mean of each row but the last; set the means."""
    n, whole = rows.shape[1], 0.0
    for i in range(n):
        whole += weights[i] if len(weights) > 0 else 1.0
    for j in range(len(means)):
        total = 0.0
        for i in range(n):
            total += rows[j, i] * (weights[i] if len(weights) > 0 else 1.0)
        means[j] = total / whole if whole > 0.0 else 0.0
        for i in range(n):
            rows[j, i] -= means[j]


@product
def _step(rows, slopes, curvatures, l2, x, matrix, work, step):
    """Set a step, its outputs (`work[1]`), and the slopes that it predicts (`work[2]`).

    Return the decrease that it promises, and what its predicted slopes add to the gap besides the losses: infinite if
    they do not sum to 0 over a free bias. Both are NaN if the matrix is singular.
    """
    width, n = rows.shape
    for j in range(width):
        total = 0.0
        for i in range(n):
            total += rows[j, i] * slopes[i]
            work[0, i] = curvatures[i] * rows[j, i]
        step[j] = -total - l2[j] * x[j]
        for k in range(j, width):
            matrix[k, j] = _dot(work[0], rows[k])
        matrix[j, j] += l2[j]
    promise = _solve(matrix, step)
    work[1] = 0.0
    for j in range(width):
        for i in range(n):
            work[1, i] += step[j] * rows[j, i]
    size = 0.0
    for i in range(n):
        work[2, i] = slopes[i] + curvatures[i] * work[1, i]
        size += abs(work[2, i])
    bound = 0.0
    for j in range(width):
        total = _dot(rows[j], work[2]) + l2[j] * x[j]
        if l2[j] > 0.0:
            bound += total * total / (2.0 * l2[j])
        elif abs(total) > _ROUNDING * size:
            bound = math.inf
    return promise, bound


@product
def _dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@product
def _solve(matrix, right):
    """Replace the right side by the solution, and the lower triangle by its factor; return their product, or NaN."""
    size, product_ = len(right), 0.0
    for j in range(size):
        whole = matrix[j, j]
        for k in range(j):
            matrix[j, k] = (matrix[j, k] - _dot(matrix[j, :k], matrix[k, :k])) / matrix[k, k]
        rest = whole - _dot(matrix[j, :j], matrix[j, :j])
        if not rest > _SINGULAR * whole:
            return math.nan
        matrix[j, j] = math.sqrt(rest)
        right[j] = (right[j] - _dot(matrix[j, :j], right[:j])) / matrix[j, j]
        product_ += right[j] * right[j]
    for j in range(size - 1, -1, -1):
        right[j] /= matrix[j, j]
        for k in range(j):
            right[k] -= matrix[j, k] * right[j]
    return product_
