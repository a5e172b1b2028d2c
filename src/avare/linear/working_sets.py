"""An l1 term: working sets of columns, and coordinate descent on their Hessian (a proximal Newton method).

With an l1 term most coefficients are 0 at the minimum. A working set has the columns that are not, and those that
violate the KKT conditions most: their gradients are farthest above the l1 term (as in Massias et al. 2018). The
objective is minimised over these alone. Then the gradient of all columns shows which ones are missing, and how far the
minimum can be. If there is one output, `coordinate_descent` needs the Hessian only where sweeps over the columns are
too slow; here it is used throughout: for several outputs, and for losses that are flat in parts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel
from avare.linear.certificates import duality_gap
from avare.linear.intercept import with_best_intercept
from avare.linear.losses import curvature_of_pair
from avare.linear.newton import ROUNDING, descend
from avare.linear.newton_system import NEAR
from avare.linear.objective import Objective, Point, Step
from avare.linear.preconditioners import CholeskyFactor, diagonal_of, hessian_matrix
from avare.linear.task import LinearTask, Outcome, Status
from avare.problems.rows import Array

_SWEEPS = 4  # of coordinate descent between two solutions for the coefficients that are not 0
_MOST_ROUNDS, _FEW_ROUNDS = 100, 5  # near the minimum, and far from it
_ROUGH, _FINE = 0.1, 1e-15  # of the decrease so far: a round that adds less is the last, far from the minimum and near
_ACCURACY = 1e-6  # of a step: the largest change in a sweep, relative to the first one
_WIDEST = 1000  # coefficients of several outputs that are moved together
_ROUNDS_OF_OUTPUTS = 3  # over the outputs otherwise
_OF_SET = 0.2  # of the gap: what minimising over a working set leaves
_FEWEST_COLUMNS = 100  # of a working set, if as many violate the KKT conditions


def expected_cost(task: LinearTask) -> float:
    """Return 0 with an l1 term; infinite otherwise."""
    return 0.0 if task.total.has_l1 else math.inf


def solve(task: LinearTask) -> Outcome:
    """Minimise over one working set after another."""
    total, goal, point = task.total, task.goal, task.point
    count, least, width = 0, math.inf, total.rows.columns
    while True:
        point = with_best_intercept(total, point)
        sums = total.rows.sums(point.terms.slopes)
        gap = duality_gap(total, point, point.terms.slopes, sums, point.table)
        gap = min(gap, point.objective) if total.problem.is_positive else gap
        if task.callback is not None:
            task.callback(count, point.objective, gap)
        if gap <= goal or count >= task.steps or gap >= least:
            status: Status = "converged" if gap <= goal else "finished" if count >= task.steps else "stalled"
            return Outcome(point, gap, count, status)
        chosen = working_set(total, point, sums, takes_all=width <= _FEWEST_COLUMNS)
        chosen = chosen if len(chosen) else np.arange(min(width, _FEWEST_COLUMNS))  # the bias may be far off
        size = len(chosen)
        kept = np.append(chosen, width) if total.rows.matrix.bias else chosen
        part = total if size == width else Objective(total.problem, total.rows.restrict(chosen), kept)
        first = Point(point.table[:, kept], *point[1:])
        of_part = goal if size == width else max(0.3 * goal, _OF_SET * gap)
        found = descend(LinearTask(part, first, of_part, task.steps - count), WorkingSetSystem(part))
        table = np.zeros_like(point.table)
        table[:, kept] = found.point.table
        is_lower = found.point.objective < point.objective * (1.0 - ROUNDING)
        count, least = count + max(found.steps, 1), math.inf if is_lower and size < width else gap
        point = Point(table, *found.point[1:])


def working_set(total: Objective, point: Point, sums: Array, *, takes_all: bool) -> NDArray[np.int64]:
    """Return the columns to move: those whose coefficients are not 0, and as many that violate the KKT conditions most.

    All of them if that is cheap; none at the minimum.
    """
    width = total.rows.columns
    used = point.table[:, :width].any(axis=0)
    scores = np.where(used, math.inf, (np.abs(sums) - total.l1)[:, :width].max(axis=0))
    size, above = max(_FEWEST_COLUMNS, 2 * int(np.count_nonzero(used))), np.flatnonzero(scores > 0.0)
    if takes_all and len(above):
        return np.arange(width)
    if len(above) > size:
        above = np.sort(above[np.argpartition(-scores[above], size - 1)[:size]])
    return above


class WorkingSetSystem:
    """Solve for one step after another; with many coefficients for one output at a time, in rounds."""

    def __init__(self, total: Objective) -> None:
        self._total = total

    def solve(self, point: Point, gradient: Array, accuracy: float, goal: float) -> Step:
        """Return the minimum of the quadratic model with the l1 term."""
        total = self._total
        if gradient.size <= _WIDEST or len(gradient) == 1:
            matrix = hessian_matrix(total, point) if len(gradient) > 1 else self._matrix(point, 0)
            start, l1 = point.table.ravel(), total.l1.ravel()
            change = minimise_model(symmetric(matrix), gradient.ravel(), start, l1, goal).reshape(gradient.shape)
            outputs, curved = total.curve(point, change)
            return Step(change, outputs, gradient + curved)
        table, outputs, slopes = np.zeros_like(gradient), np.zeros_like(point.outputs), gradient.copy()
        matrices = [symmetric(self._matrix(point, k)) for k in range(len(table))]
        for _ in range(_ROUNDS_OF_OUTPUTS):
            for k, matrix in enumerate(matrices):
                change = np.zeros_like(table)
                change[k] = minimise_model(matrix, slopes[k], point.table[k] + table[k], total.l1[k], goal)
                along, curved = total.curve(point, change)
                table, outputs, slopes = table + change, outputs + along, slopes + curved
        return Step(table, outputs, slopes)

    def _matrix(self, point: Point, k: int) -> Array:
        """Return the Hessian by the coefficients of one output."""
        matrix = self._total.rows.gram(curvature_of_pair(self._total.problem, point.terms, k, k))
        diagonal_of(matrix)[:] += self._total.l2[k]
        return matrix


def minimise_model(hessian: Array, gradient: Array, x: Array, l1: Array, goal: float) -> Array:
    """Minimise gradient . v + v . hessian v / 2 + l1 |x + v| over v; roughly if it decreases by far more than the goal.

    Some sweeps of coordinate descent find which coefficients are 0. The others are then moved to their minimum with
    these signs. Those that would change sign become 0, or if this is too far, only the first of them; then the rest is
    moved to its minimum at once.
    """
    step, slopes, first, before, is_blocked = np.zeros_like(x), gradient.copy(), 0.0, 0.0, False
    for round_ in range(_MOST_ROUNDS):
        if not is_blocked:
            largest = _descend(hessian, slopes, x, l1, step, _SWEEPS)
            first = max(first, largest)
        decrease = _model_decrease(gradient, slopes, x, l1, step)
        is_rough = round_ >= _FEW_ROUNDS or decrease - before <= _ROUGH * decrease
        is_done = largest <= _ACCURACY**2 * first or decrease - before <= _FINE * decrease
        if not is_blocked and (is_done or (decrease > NEAR * goal and is_rough)):
            break
        end, before = x + step, decrease
        moving = np.flatnonzero((end != 0.0) | (l1 == 0.0))
        signs = np.sign(end[moving]) * (l1[moving] > 0.0)
        change = -CholeskyFactor(hessian[np.ix_(moving, moving)]).solve(slopes[moving] + l1[moving] * signs)
        crossing = (end[moving] + change) * signs < 0.0
        tried = step.copy()
        tried[moving] = np.where(crossing, -x[moving], step[moving] + change)
        slopes = gradient + hessian @ tried
        is_blocked = bool(crossing.any()) and _model_decrease(gradient, slopes, x, l1, tried) < decrease
        if is_blocked:
            shares = np.where(crossing, -end[moving] / np.where(crossing, change, 1.0), 1.0)
            nearest = int(np.argmin(shares))
            tried[moving] = step[moving] + shares[nearest] * change
            tried[moving[nearest]] = -x[moving[nearest]]
            slopes = gradient + hessian @ tried
        step = tried
    return step


def _model_decrease(gradient: Array, slopes: Array, x: Array, l1: Array, step: Array) -> float:
    """Return the decrease of the model along a step, with the gradient at its end."""
    return -0.5 * float(step @ (gradient + slopes)) - float(l1 @ (np.abs(x + step) - np.abs(x)))


# --- kernels -------------------------------------------------------------------------------


@kernel
def symmetric(matrix):
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
            curvature = matrix[j, j]
            if curvature <= 0.0:
                continue
            old = x[j] + step[j]
            free = old - slopes[j] / curvature
            new = max(free - l1[j] / curvature, 0.0) + min(free + l1[j] / curvature, 0.0)
            change = new - old
            if change != 0.0:
                step[j] += change
                for k in range(len(x)):
                    slopes[k] += change * matrix[j, k]
                largest = max(largest, change * change * curvature)
    return largest
