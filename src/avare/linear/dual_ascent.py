"""Dual coordinate ascent (SDCA, Shalev-Shwartz & Zhang 2013), for sparse rows that are fewer than the columns.

Such rows, as of texts, are nearly orthogonal to each other. With an l2 term, the minimum is where the dual variables
s_i, the derivatives of the losses, balance the penalty, x = -sum_i s_i a_i / l2. A visit to row i sets its dual
variable so that both agree on the linear predictor z = a_i.x that follows from it,

    z + q s_i(z) = a_i.x + q s_i,    q = |a_i|^2 / l2,

which maximises the dual objective by s_i. It reads and writes the entries of one row; there is no step size. If rows
have few columns in common, visits hardly disturb each other, and a few epochs are enough, however weak the penalty is.

For any z, the dual variables s(z) give a lower bound on the minimum. A free bias needs dual variables whose sum is 0:
it gets a weak penalty that draws it to its value after the last epoch (a proximal point), and for the bound all z are
shifted.
"""

from __future__ import annotations

import math

import numpy as np

from avare._compilation import lean
from avare.linear.certificates import NEGLIGIBLE, duality_gap
from avare.linear.design import CALL
from avare.linear.losses import terms_at
from avare.linear.objective import TINY, Objective, Point
from avare.linear.task import LinearTask, Outcome, Status
from avare.problems.losses import curvature_at, slope_at
from avare.problems.rows import Array

_ENTRY, _ROW = 0.9, 50.0  # nanoseconds of a visit: per entry, and for the loss
_OVERHEAD = 1.0  # operations on almost no rows that an epoch costs
_OF_OTHERS = 60.0  # and at least that another method costs
_FEWEST = 3.0  # epochs at the price of another method: with fewer, that one is cheap
_AT_LEAST = 2.0  # times what is expected: what Newton's method takes if rows disturb each other in the dual
_MOST_ROWS = 1.1  # per column
_BLOCK = 16  # rows that are visited one after the other: random access to single rows is several times slower
_TRUSTED, _LATELY = 4, 3  # epochs after which their pace is known; over which it is measured
_QUICKEST, _SLOWEST = 0.1, 0.99  # range of the ratio of the gaps after two epochs
_IN_VAIN = 0.01  # of the goal: a gap that was estimated to be this small, and is not, cannot be certified
_INEXACT = 0.3  # of the change of a linear predictor: error that a visit may leave
_TRIALS = 100  # linear predictors that are tried in a visit


def expected_cost(task: LinearTask) -> float:
    """Estimate the nanoseconds of the fewest epochs; infinite if others seem cheaper, or if it cannot do the task.

    It begins at a constant model, with the same l2 term for all columns, and one output.
    """
    total = task.total
    is_wide = total.rows.matrix.sparse is not None and total.rows.n < _MOST_ROWS * total.rows.columns
    if not is_wide or total.problem.outputs > 1 or not total.has_even_l2 or not task.is_constant or task.steps < 1:
        return math.inf
    nanoseconds = _FEWEST * _cost(total)
    return nanoseconds if nanoseconds <= _OF_OTHERS * CALL or nanoseconds <= task.system.expected else math.inf


def solve(task: LinearTask) -> Outcome:
    """Make epochs as long as they seem faster than Newton's method; otherwise return a better start."""
    total, goal, best = task.total, task.goal, task.point
    ascent = DualAscent(total, best)
    while (left := ascent.needed(goal)) == 0.0 or left * ascent.cost <= _AT_LEAST * task.system.expected:
        ascent.advance()
        if ascent.left > goal and ascent.epochs < task.steps:
            continue
        reached, gap = primal_point(total, ascent.outputs)
        lower, best = reached.objective - gap, min(task.point, reached, key=lambda each: each.objective)
        gap = gap if best is reached else best.objective - lower
        if task.callback is not None:
            task.callback(ascent.epochs, best.objective, gap)
        if reached.objective - lower <= goal or ascent.epochs >= task.steps:
            status: Status = "converged" if gap <= goal else "finished"
            return Outcome(best, gap, ascent.epochs, status)
        if not (gap < math.inf and ascent.left > _IN_VAIN * goal):
            break
    return Outcome(best, math.inf, ascent.epochs)


def primal_point(total: Objective, outputs: Array) -> tuple[Point, float]:
    """Return the point at which the penalty balances the derivatives of the losses at some outputs, and its gap.

    Over a free bias, these dual variables are changed by the second derivatives so that their sum is 0, and the bias
    follows from them. If no loss is curved they cannot be, and nothing is certified.
    """
    terms, shift, curvature = terms_at(total.problem, outputs), 0.0, TINY
    if total.has_free_bias:
        curvature = max(float(terms.curvature.sum()), TINY)
        shift = -float(terms.slopes.sum()) / curvature
    duals = terms.slopes + shift * terms.curvature if shift else terms.slopes
    sums = total.rows.sums(duals)
    table = np.divide(-sums, total.l2, out=np.zeros_like(sums), where=total.l2 > 0.0)
    there = total.rows.outputs(table)
    if total.has_free_bias:
        table[0, -1] = np.vdot(terms.curvature, outputs + shift - there) / curvature
        there += table[0, -1]
    point = total.at(table, there)
    is_balanced = not total.has_free_bias or abs(sums[0, -1]) <= NEGLIGIBLE * float(np.abs(duals).sum())
    return point, duality_gap(total, point, duals, sums, point.table) if is_balanced else math.inf


class DualAscent:
    """Epochs of visits to all rows.

    Parameters
    ----------
    total : Objective
    point : Point
        The best constant model.
    """

    def __init__(self, total: Objective, point: Point) -> None:
        self._total, self._model, rows = total, total.problem.model, total.rows
        self._l2, self._free = float(total.l2[0, 0]), total.has_free_bias
        self._weights = (rows.lengths(np.ones(rows.width)) - float(rows.matrix.bias)) / self._l2
        self._along, self._shifts, self._bias_l2 = np.empty(0), np.empty(0), 0.0
        self._primal = np.zeros(rows.columns + 2)
        if rows.matrix.bias:
            curvature = total.problem.curvature * (self._model.sample_weight if len(self._model.sample_weight) else 1.0)
            of_bias = float(np.sum(curvature / (1.0 + curvature * self._weights)))  # if rows were orthogonal
            self._bias_l2 = max(of_bias, TINY) if self._free else self._l2
            self._weights += 1.0 / self._bias_l2
            self._along, square = _along_mean(total)
            self._shifts = self._l2 / self._bias_l2 - self._along - square
            self._primal[-1] = point.table[0, -1]
        self._duals, self.outputs = np.zeros(rows.n), np.zeros((rows.n, 1))
        """Of each row, the linear predictor to which its dual variable belongs."""
        self._generator, self._gaps = np.random.default_rng(0), list[float]()
        self.epochs, self.cost = 0, _cost(total)
        """How many there have been, and the nanoseconds of one, estimated."""
        self.left = math.inf
        """The gap after the last one, estimated."""

    def advance(self) -> None:
        """Visit all rows once, in blocks in random order."""
        order = self._generator.permutation(-(-len(self._duals) // _BLOCK))
        constants = (self._weights, self._along, self._shifts, self._l2, self.epochs == 0)
        state = (self._primal, self._duals, self.outputs[:, 0])
        gap = float(_visit(self._total.rows.sparse, self._model, order, constants, state))
        if self._free:
            self._primal[-1] -= self._duals.sum() / self._bias_l2
        self._gaps.append(gap if self.epochs > 0 else math.inf)
        self.left = self._gaps[-1] * self._ratio()
        self.epochs += 1

    def needed(self, goal: float) -> float:
        """Return how many epochs seem to be needed until the gap is at most a goal; 0 as long as it is not known."""
        if self.epochs < _TRUSTED or self.left <= goal:
            return 0.0
        is_known = goal > 0.0 and self.left < math.inf
        return math.log(self.left / goal) / -math.log(self._ratio()) if is_known else math.inf

    def _ratio(self) -> float:
        """Return by what factor an epoch has lessened the gap lately."""
        known = self._gaps[1:][-_LATELY:]
        ratio = (known[-1] / known[0]) ** (1.0 / (len(known) - 1)) if len(known) > 1 and known[0] > 0.0 else 0.0
        return min(max(ratio, _QUICKEST), _SLOWEST)


def _along_mean(total: Objective) -> tuple[Array, float]:
    """Return the products of all rows with what is subtracted from each, and its square."""
    means = total.rows.means
    if means is None:
        return np.zeros(total.rows.n), 0.0
    return total.rows.outputs(np.append(means, 0.0)[None])[:, 0], float(means @ means)


def _cost(total: Objective) -> float:
    return _OVERHEAD * CALL + total.rows.entries * _ENTRY + total.rows.n * _ROW


# --- kernels -------------------------------------------------------------------------------


@lean
def _visit(sparse, model, order, constants, state):
    """Visit blocks of rows; return the gap, roughly: the sum of those of each row before its visit.

    Rows may be centred: then coefficients are u - t m and a bias, of which u, t and the bias less m.u are kept.
    """
    values, columns, starts = sparse
    (weights, along, shifts, l2, is_first), (primal, duals, outputs) = constants, state
    gap, shared = 0.0, len(primal) - 2
    for k in range(len(order)):
        for i in range(order[k] * _BLOCK, min((order[k] + 1) * _BLOCK, len(duals))):
            here = _output(values, columns, primal, starts[i], starts[i + 1])
            if len(along) > 0:
                here += primal[shared + 1] - primal[shared] * along[i]
            factor = model.sample_weight[i] if len(model.sample_weight) > 0 else 1.0
            old, before = duals[i], here if is_first else outputs[i]
            gap += 0.5 * abs((factor * slope_at(model.loss, model.targets[i], here) - old) * (here - before))
            outputs[i], duals[i] = _balance(model.loss, model.targets[i], factor, weights[i], here, old, before)
            step = (old - duals[i]) / l2
            for j in range(starts[i], starts[i + 1]):
                primal[columns[j]] += step * np.float64(values[j])
            if len(along) > 0:
                primal[shared] += step
                primal[shared + 1] += step * shifts[i]
    return gap


@lean
def _output(values, columns, primal, first, last):
    total = 0.0
    for j in range(first, last):
        total += np.float64(values[j]) * primal[columns[j]]
    return total


@lean
def _balance(loss, target, factor, weight, here, old, start):
    """Solve z + weight s(z) = here + weight old, roughly: by Newton's method, kept inside of an interval that holds z.

    Return z and s(z).
    """
    z, low, high = start, -math.inf, math.inf
    for trial in range(_TRIALS):
        slope = factor * slope_at(loss, target, z)
        excess = z - here + weight * (slope - old)
        if abs(excess) <= _INEXACT * abs(here - z) or trial == _TRIALS - 1:
            break
        low, high = (low, z) if excess > 0.0 else (z, high)
        z -= excess / (1.0 + weight * factor * curvature_at(loss, target, z))
        if not low < z < high and high - low < math.inf:
            z = 0.5 * (low + high)
    return z, slope
