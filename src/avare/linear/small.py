"""Newton's method for small linear models with one output: few calls, each of which does a whole step.

A step of `newton` is some sixty operations on arrays, which take longer than their work if X is small. Here one kernel
computes the step, its outputs, and what it adds to the gap: from a copy of X, centred and with a row per column, or, if
there are fewer rows than columns, from the products K of all pairs of rows. The gap is that of `newton`, by the slopes
that a step predicts. If many steps do not certify the minimum, `newton` continues where they end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from avare._compilation import lean, product
from avare.linear.design import CALL, Design, rounding_of_kernel
from avare.linear.gap import rounding_at
from avare.linear.losses import fenchel_young, terms_at
from avare.linear.objective import Objective
from avare.problems.linear import Linear, Terms
from avare.problems.matrix import unsigned
from avare.problems.rows import Table

_STEPS, _HALVES = 40, 10
_CALLS, _CALLS_OF_ASCENT = 60.0, 5.0  # operations of a step of `newton`, and of the dual ascent that replaces it
_LOSS, _ENTRY, _PAIR = 3.0, 0.3, 0.045  # nanoseconds per row, entry of X, and pair of entries in a row
_PRODUCT, _TRIPLE = 1.5, 0.02  # and per entry of K, and triple of columns or rows in a factor
_AHEAD = 6.0  # expected steps, among which the cost of K is divided
_ENOUGH, _SINGULAR, _ROUNDING = 1e-4, 1e-12, 1e-12  # of a promised decrease; of a diagonal; of the sum of all slopes


class SmallMinimum(NamedTuple):
    """A point with its certificate."""

    table: Table
    objective: float
    gap: float
    """At most this far above the minimum; infinite if that is not known, and `newton` is to continue."""
    steps: int


class _ByColumns:
    """Steps from the columns of X; x are the coefficients for centred rows."""

    def __init__(self, problem: Linear) -> None:
        matrix, self._l2, width = problem.model.matrix, problem.penalty.l2, problem.width
        self._columns, self._means = np.zeros((width, problem.n)), np.zeros(width - int(problem.has_free_bias))
        if matrix.sparse is not None:
            _scatter(*unsigned(matrix.sparse), self._columns)
        else:
            self._columns[: width - int(matrix.bias)] = matrix.dense.T  # type: ignore[union-attr]  # one is not None
        if matrix.bias:
            self._columns[-1] = 1.0
        if problem.has_free_bias:
            _centre(self._columns, problem.model.sample_weight, self._means)
        self._matrix, self.size = np.empty((width, width)), width

    def solve(self, terms: Terms, x: Table, step: Table, work: Table) -> tuple[float, float]:
        slopes, curvatures = terms.slopes[:, 0], terms.curvature[:, 0]
        found: tuple[float, float] = _step(self._columns, slopes, curvatures, self._l2, x, self._matrix, work, step)
        return found

    def penalty(self, x: Table, outputs: Table) -> float:
        return 0.5 * float(x @ (self._l2 * x))

    def result(self, x: Table, terms: Terms, height: float) -> tuple[Table, float, float]:
        """Return the coefficients, the objective there, and the rounding of its certificate."""
        table = x[None].copy()
        table[0, -1] -= float(self._means @ x[: len(self._means)])
        return table, height, 0.0

    @staticmethod
    def cost(problem: Linear, most: float) -> float:
        width = problem.width
        return problem.n * (_LOSS + width * (_ENTRY + _PAIR * width)) + _TRIPLE * float(width) ** 3


class _ByRows:
    """Steps from the products of all pairs of rows; coefficients are the rows times x, whose last entry is a bias."""

    def __init__(self, problem: Linear) -> None:
        self._rows, self._l2, self._free = Design.of(problem), float(problem.penalty.l2[0]), problem.has_free_bias
        self._problem = problem
        self._kernel = self._rows.kernel() + float(problem.model.matrix.bias and not self._free)
        self._matrix, self.size = np.empty_like(self._kernel), problem.n + 1

    def solve(self, terms: Terms, x: Table, step: Table, work: Table) -> tuple[float, float]:
        arrays = (terms.slopes[:, 0], terms.curvature[:, 0], self._l2, x, self._free, self._matrix, work, step)
        found: tuple[float, float] = _step_by_rows(self._kernel, *arrays)
        return found

    def penalty(self, x: Table, outputs: Table) -> float:
        return 0.5 * self._l2 * float(x[:-1] @ (outputs - x[-1]))

    def result(self, x: Table, terms: Terms, height: float) -> tuple[Table, float, float]:
        """Return the coefficients, the objective there, and the rounding of its certificate."""
        table = self._rows.sums(x[:-1, None])
        if self._free:
            table[0, -1] = x[-1]
        reached = Objective(self._problem, self._rows).at(table, self._rows.outputs(table))
        return (
            self._rows.centre(table, -1.0),
            reached.objective,
            rounding_of_kernel(self._kernel, terms.slopes, self._l2),
        )

    @staticmethod
    def cost(problem: Linear, most: float) -> float:
        held = problem.penalty.l2[: problem.width - int(problem.has_free_bias)]
        cost = _PRODUCT * problem.n**2 + _TRIPLE * float(problem.n) ** 3
        if problem.n >= problem.width or cost > most or not (held == held[0]).all():
            return math.inf
        return cost + Design.of(problem, centred=False).kernel_cost() / _AHEAD


def way_of(problem: Linear) -> type[_ByColumns | _ByRows] | None:
    """Return the way whose step takes least; None if it takes longer than the calls of `newton` for one."""
    held = problem.penalty.l2[: problem.width - int(problem.has_free_bias)]
    if problem.outputs > 1 or problem.l1 > 0.0 or not (held > 0.0).all():
        return None
    ascends = problem.model.matrix.sparse is not None and problem.n < problem.width
    most = (_CALLS_OF_ASCENT if ascends else _CALLS) * CALL
    by_columns, by_rows = _ByColumns.cost(problem, most), _ByRows.cost(problem, most)
    return None if min(by_columns, by_rows) > most else _ByRows if by_rows < by_columns else _ByColumns


def minimise_small(problem: Linear, constant: Table, height: float, goal: float, steps: int) -> SmallMinimum | None:
    """Minimise from a constant model with a given objective; None if the problem is not small."""
    kind = way_of(problem)
    if kind is None:
        return None
    way = kind(problem)
    x, lower, work = np.zeros(way.size), 0.0 if problem.is_positive else -math.inf, np.empty((3, problem.n))
    x[-1] = constant[0, -1]  # 0 if there is no free bias
    z = np.full(problem.n, x[-1])
    terms, taken = terms_at(problem, z[:, None]), 0
    for _ in range(min(steps, _STEPS)):
        step = np.empty(way.size)
        promise, bound = way.solve(terms, x, step, work)
        if promise <= math.sqrt(abs(goal * height)) or problem.is_quadratic:
            lower = max(lower, height - bound - fenchel_young(problem, z[:, None], terms, work[2][:, None]))
        is_last = height - lower <= goal
        if not is_last:
            moved = _move(problem, way, x, z, height, step, work[1], promise)
            if moved is None:
                break
            x, z, terms, height = moved
            taken += 1
        if height - lower <= goal:
            table, height, rounding = way.result(x, terms, height)
            gap = max(height - lower, 0.0) + rounding
            gap += rounding_at(problem, table, terms, goal - gap) if gap <= goal else 0.0
            return SmallMinimum(table, height, gap if gap <= goal else math.inf, taken)
    return SmallMinimum(way.result(x, terms, height)[0], height, math.inf, taken)


def _move(
    problem: Linear,
    way: _ByColumns | _ByRows,
    x: Table,
    z: Table,
    height: float,
    step: Table,
    outputs: Table,
    promise: float,
) -> tuple[Table, Table, Terms, float] | None:
    """Return x, the outputs, losses and objective after a step that is short enough; None if none is."""
    length = 1.0
    for _ in range(_HALVES if promise > 0.0 else 0):
        there, reached = x + length * step, z + length * outputs
        terms = terms_at(problem, reached[:, None])
        objective = terms.loss + way.penalty(there, reached)
        if objective <= height - _ENOUGH * length * promise:
            return there, reached, terms, objective
        length *= 0.5
    return None


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
def _step(columns, slopes, curvatures, l2, x, matrix, work, step):
    """Set a step, its outputs (`work[1]`), and the slopes that it predicts (`work[2]`).

    Return the decrease that it promises, and what its predicted slopes add to the gap besides the losses: infinite if
    they do not sum to 0 over a free bias. Both are NaN if the matrix is singular.
    """
    width, n = columns.shape
    for j in range(width):
        for i in range(n):
            work[0, i] = curvatures[i] * columns[j, i]
        step[j] = -_dot(columns[j], slopes) - l2[j] * x[j]
        for k in range(j, width):
            matrix[k, j] = _dot(work[0], columns[k])
        matrix[j, j] += l2[j]
    if not _factorise(matrix):
        return math.nan, math.nan
    promise = _substitute(matrix, step)
    work[1] = 0.0
    for j in range(width):
        for i in range(n):
            work[1, i] += step[j] * columns[j, i]
    for i in range(n):
        work[2, i] = slopes[i] + curvatures[i] * work[1, i]
    return promise, _bound(columns, work[2], l2, x)


@product
def _bound(columns, slopes, l2, x):
    size, bound = 0.0, 0.0
    for i in range(len(slopes)):
        size += abs(slopes[i])
    for j in range(len(columns)):
        total = _dot(columns[j], slopes) + l2[j] * x[j]
        if l2[j] > 0.0:
            bound += total * total / (2.0 * l2[j])
        elif abs(total) > _ROUNDING * size:
            bound = math.inf
    return bound


@product
def _step_by_rows(kernel, slopes, curvatures, l2, x, is_free, matrix, work, step):
    """Do the same by the products K of all pairs of rows, with x in the space of the rows and a bias.

    With C = R^2 and the residual r = s + l2 x, the outputs y = K v + b of a step v with a change b of the bias solve
    (l2 + R K R) R y = R (l2 b - K r). The slopes s + C y are then -l2 (x + v).
    """
    n, bias = len(slopes), 0.0
    roots, right, along = work[0], work[1], work[2]
    for i in range(n):
        roots[i] = math.sqrt(curvatures[i])
        step[i] = slopes[i] + l2 * x[i]
    for i in range(n):
        right[i] = -roots[i] * _dot(kernel[i], step[:n])
        along[i] = l2 * roots[i]
        for k in range(i + 1):
            matrix[i, k] = roots[i] * roots[k] * kernel[i, k]
        matrix[i, i] += l2
    if not _factorise(matrix):
        return math.nan, math.nan
    _substitute(matrix, right)
    if is_free:
        _substitute(matrix, along)
        bend = _dot(roots, along)
        bias = -(slopes.sum() + _dot(roots, right)) / bend if bend > 0.0 else math.nan
    promise, bound, total, size = -bias * slopes.sum(), 0.0, 0.0, 0.0
    for i in range(n):
        along[i] = slopes[i] + roots[i] * (right[i] + (bias * along[i] if is_free else 0.0))
        step[i] = -along[i] / l2 - x[i]
        total += along[i]
        size += abs(along[i])
    for i in range(n):
        work[1, i] = _dot(kernel[i], step[:n])
        promise -= (slopes[i] + l2 * x[i]) * work[1, i]
        bound += 0.5 * l2 * step[i] * work[1, i]
        work[1, i] += bias
    step[n] = bias
    if is_free and not abs(total) <= _ROUNDING * size:
        bound = math.inf
    return promise, bound


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
