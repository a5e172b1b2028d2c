"""Steps with an l1 term: coordinate descent on the matrix of the second derivatives.

With an l1 term most coefficients are 0 at the minimum. A working set has the columns that are not, and those whose
gradients are farthest above the l1 term. The model is minimised over these alone. Then the gradient of all columns
shows which ones are missing, and how far the minimum can be. If there is one output, `column_steps` needs the matrix
only where sweeps over the columns are too slow.
"""

from __future__ import annotations

import numpy as np

from avare._compilation import kernel
from avare.linear.newton_steps import NEAR, Factor, diagonal_of, whole_matrix
from avare.linear.objective import Objective, Point, Step
from avare.problems.rows import Table

_SWEEPS = 4  # of coordinate descent between two solutions for the coefficients that are not 0
_MOST_TURNS, _FEW_TURNS = 100, 5  # near the minimum, and far from it
_ROUGH, _FINE = 0.1, 1e-15  # of the decrease so far: a turn that adds less is the last, far from the minimum and near
_ACCURACY = 1e-6  # of a step: the largest change in a sweep, relative to the first one
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
            start, l1 = point.table.ravel(), total.l1.ravel()
            change = minimise_model(mirrored(matrix), gradient.ravel(), start, l1, goal).reshape(gradient.shape)
            outputs, curved = total.curve(point, change)
            return Step(change, outputs, gradient + curved)
        table, outputs, slopes = np.zeros_like(gradient), np.zeros_like(point.outputs), gradient.copy()
        matrices = [mirrored(self._matrix(point, k)) for k in range(len(table))]
        for _ in range(_ROUNDS):
            for k, matrix in enumerate(matrices):
                change = np.zeros_like(table)
                change[k] = minimise_model(matrix, slopes[k], point.table[k] + table[k], total.l1[k], goal)
                along, curved = total.curve(point, change)
                table, outputs, slopes = table + change, outputs + along, slopes + curved
        return Step(table, outputs, slopes)

    def _matrix(self, point: Point, k: int) -> Table:
        """Return the second derivative by the coefficients of one output."""
        matrix = self._total.rows.gram(self._total.problem.curvature_of_pair(point.terms, k, k))
        diagonal_of(matrix)[:] += self._total.l2[k]
        return matrix


def minimise_model(gram: Table, gradient: Table, x: Table, l1: Table, goal: float) -> Table:
    """Minimise gradient . v + v . gram v / 2 + l1 |x + v| over v: roughly if it falls by much more than the goal.

    Some sweeps of coordinate descent find which coefficients are 0. The others are then moved to their minimum with
    these signs. Those that would change sign become 0, or if this is too far, only the first of them; then the rest is
    moved to its minimum at once.
    """
    step, slopes, first, before, is_blocked = np.zeros_like(x), gradient.copy(), 0.0, 0.0, False
    for turn in range(_MOST_TURNS):
        if not is_blocked:
            largest = _descend(gram, slopes, x, l1, step, _SWEEPS)
            first = max(first, largest)
        fall = _fall(gradient, slopes, x, l1, step)
        is_rough = turn >= _FEW_TURNS or fall - before <= _ROUGH * fall
        is_done = largest <= _ACCURACY**2 * first or fall - before <= _FINE * fall
        if not is_blocked and (is_done or (fall > NEAR * goal and is_rough)):
            break
        end, before = x + step, fall
        moving = np.flatnonzero((end != 0.0) | (l1 == 0.0))
        signs = np.sign(end[moving]) * (l1[moving] > 0.0)
        change = -Factor(gram[np.ix_(moving, moving)]).solve(slopes[moving] + l1[moving] * signs)
        crossing = (end[moving] + change) * signs < 0.0
        tried = step.copy()
        tried[moving] = np.where(crossing, -x[moving], step[moving] + change)
        slopes = gradient + gram @ tried
        is_blocked = bool(crossing.any()) and _fall(gradient, slopes, x, l1, tried) < fall
        if is_blocked:
            shares = np.where(crossing, -end[moving] / np.where(crossing, change, 1.0), 1.0)
            nearest = int(np.argmin(shares))
            tried[moving] = step[moving] + shares[nearest] * change
            tried[moving[nearest]] = -x[moving[nearest]]
            slopes = gradient + gram @ tried
        step = tried
    return step


def _fall(gradient: Table, slopes: Table, x: Table, l1: Table, step: Table) -> float:
    """Return by how much the model falls along a step, with the slopes at its end."""
    return -0.5 * float(step @ (gradient + slopes)) - float(l1 @ (np.abs(x + step) - np.abs(x)))


# --- kernels -------------------------------------------------------------------------------


@kernel
def mirrored(matrix):
    """Copy the lower triangle of a matrix in column order to the upper one; return the matrix in row order."""
    for j in range(len(matrix)):
        for i in range(j):
            matrix[i, j] = matrix[j, i]
    return matrix.T


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
