"""Steps with an l1 term: coordinate descent on the quadratic model, and working sets of columns.

With an l1 term most coefficients are 0 at the minimum. A working set has the columns that are not, and those whose
gradients are farthest above the l1 term. The model is minimised over these alone. Then the gradient of all columns
shows which ones are missing, and how far the minimum can be. Within a set, a step of Newton's method minimises the
quadratic model with the l1 term by coordinate descent on the matrix of the second derivatives.
"""

from __future__ import annotations

import math

import numpy as np

from avare._compilation import kernel
from avare.problems.newton_steps import Factor, Objective, Point, Step, whole_matrix
from avare.problems.rows import Rows, Table

_SWEEPS = 4  # of coordinate descent between two solutions for the coefficients that are not 0
_MOST_TURNS = 200
_ACCURACY = 1e-6  # of a step: the largest change in a sweep, relative to the first one
_FEWEST, _PRODUCTS = 10, 0.1  # columns of a working set; products with X that its matrix may cost
_WIDEST = 1000  # coefficients of several outputs that are moved together
_ROUNDS = 3  # over the outputs otherwise


class L1Steps:
    """Solve for one step after another; with many coefficients for one output at a time, in rounds."""

    def __init__(self, total: Objective) -> None:
        self._total = total

    def solve(self, point: Point, gradient: Table, accuracy: float, goal: float) -> Step:
        """Return the minimum of the quadratic model with the l1 term."""
        total = self._total
        if gradient.size <= _WIDEST or len(gradient) == 1:
            matrix = whole_matrix(total, point) if len(gradient) > 1 else self._matrix(point, 0)
            change = _minimise_model(_whole(matrix), gradient.ravel(), point.table.ravel(), total.l1.ravel())
            outputs, curved = total.curve(point, change.reshape(gradient.shape))
            return Step(change.reshape(gradient.shape), outputs, gradient + curved)
        table, outputs, slopes = np.zeros_like(gradient), np.zeros_like(point.outputs), gradient.copy()
        matrices = [_whole(self._matrix(point, k)) for k in range(len(table))]
        for _ in range(_ROUNDS):
            for k, matrix in enumerate(matrices):
                change = np.zeros_like(table)
                change[k] = _minimise_model(matrix, slopes[k], point.table[k] + table[k], total.l1[k])
                along, curved = total.curve(point, change)
                table, outputs, slopes = table + change, outputs + along, slopes + curved
        return Step(table, outputs, slopes)

    def _matrix(self, point: Point, k: int) -> Table:
        """Return the second derivative by the coefficients of one output."""
        matrix = self._total.rows.gram(self._total.problem.curvature_of_pair(point.terms, k, k))
        matrix[np.diag_indices_from(matrix)] += self._total.l2[k]
        return matrix


def _whole(matrix: Table) -> Table:
    """Return a symmetric matrix of its lower triangle."""
    lower = np.tril(matrix)
    return np.ascontiguousarray(lower + np.tril(lower, -1).T)


def _minimise_model(gram: Table, gradient: Table, x: Table, l1: Table) -> Table:
    """Minimise gradient . v + v . gram v / 2 + l1 |x + v| over v.

    Some sweeps of coordinate descent find which coefficients are 0. The others are then moved to their minimum with
    these signs; those that would change their sign become 0.
    """
    step, slopes, first = np.zeros_like(x), gradient.copy(), 0.0
    for _ in range(_MOST_TURNS):
        largest = _descend(gram, slopes, x, l1, step, _SWEEPS)
        first = max(first, largest)
        if largest <= _ACCURACY**2 * first:
            break
        end = x + step
        moving = np.flatnonzero((end != 0.0) | (l1 == 0.0))
        signs = np.sign(end[moving]) * (l1[moving] > 0.0)
        change = -Factor(gram[np.ix_(moving, moving)]).solve(slopes[moving] + l1[moving] * signs)
        crossing = (end[moving] + change) * signs < 0.0
        shares = np.where(crossing, -end[moving] / np.where(crossing, change, 1.0), 1.0)
        best, chosen = _height(gradient, slopes, step, x, l1), step
        for share in (1.0, float(shares.min())):
            there = end[moving] + share * change
            tried = step.copy()
            tried[moving] = np.where(crossing & (shares <= share), 0.0, there) - x[moving]
            of_tried = gradient + gram @ tried
            height = _height(gradient, of_tried, tried, x, l1)
            if height < best:
                best, chosen, slopes = height, tried, of_tried
        step = chosen
    return step


def _height(gradient: Table, slopes: Table, step: Table, x: Table, l1: Table) -> float:
    """The quadratic model with the l1 term, where its slopes are known."""
    return 0.5 * float((gradient + slopes) @ step) + float(l1 @ np.abs(x + step))


def first_set(rows: Rows) -> int:
    """Return how many columns the smallest working set has: its matrix costs as much as some products with X."""
    whole, products = rows.gram_cost(), _PRODUCTS * rows.curve_cost(1)
    return max(_FEWEST, int(rows.columns * math.sqrt(min(products / whole, 1.0))))


# --- kernels -------------------------------------------------------------------------------


@kernel
def _descend(matrix, slopes, x, l1, step, sweeps):
    """Move each coefficient to its minimum, some times; return the largest change in the last sweep, squared."""
    largest = 0.0
    for _ in range(sweeps):
        largest = 0.0
        for j in range(len(x)):
            bend = matrix[j, j]
            if bend <= 0.0:
                continue
            old = x[j] + step[j]
            free = old - slopes[j] / bend
            new = max(free - l1[j] / bend, 0.0) + min(free + l1[j] / bend, 0.0)
            change = new - old
            if change != 0.0:
                step[j] += change
                for k in range(len(x)):
                    slopes[k] += change * matrix[j, k]
                largest = max(largest, change * change * bend)
    return largest
