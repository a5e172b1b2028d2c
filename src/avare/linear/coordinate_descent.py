"""An l1 term and one output: coordinate descent on the columns of X, with extrapolation, over a working set.

Each step minimises a quadratic model of the losses plus the penalty (a proximal Newton method; Friedman et al. 2010,
Yuan et al. 2012). Near a point, the dual variables are s + C u, with the second derivatives C and the change u of the
linear predictors. A coefficient is moved to the minimum of the model by the product of its column with the dual
variables. Then these change where the column has entries. A free bias is always at its minimum: the sum of the dual
variables is 0 if all of them change by a multiple of C, which two sums determine. A sweep over the columns costs little
more than a product with X.

If columns are correlated, many sweeps are needed. So after some sweeps, the next step is extrapolated from the last
ones (Anderson's method, as in celer: Massias et al. 2018; Bertrand & Massias 2021), if the model is lower there. When
sweeps have cost as much as the Gram matrix of the chosen columns, that matrix is computed, and the rest of the step is
solved with it. Far from the minimum a step is solved roughly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean, product
from avare.linear.certificates import NEGLIGIBLE, duality_gap
from avare.linear.design import CALL, OF_LOSS, Design, factor_cost
from avare.linear.intercept import with_best_intercept
from avare.linear.newton import ROUNDING, move
from avare.linear.objective import TINY, Objective, Point, Step
from avare.linear.task import LinearTask, Outcome
from avare.linear.working_sets import minimise_model, symmetric, working_set
from avare.problems.matrix import Sparse, mapping_of, unsigned
from avare.problems.rows import Array

_OF_ENTRY, _OF_DENSE_ENTRY, _OF_COLUMN = 1.2, 0.4, 10.0  # nanoseconds of a sweep
_OVERHEAD, _OF_SQUARE, _FACTORS = 60.0, 10.0, 3.0  # operations on almost no rows, nanoseconds of an entry, and factors
_FEW_SWEEPS = 4.0  # a Gram matrix that costs less is made at once
_FEW_SWEEPS_ONCE = 10.0  # the same, if it is needed once
_MOST_SWEEPS, _WIDEST = 1000.0, 8000  # in a step; columns of a Gram matrix
_ROUGH = 0.1  # of the decrease so far: a round of sweeps that adds less is the last, unless the step may be
_NEAR = 1.0  # of the goal: a step with a smaller decrease may be the last, and leaves only violations that are certain
_CERTAIN = 0.25  # of the KKT violation that the goal allows
_INNER = 0.3  # of the violation that a step may leave: sweeps over the coefficients that are not 0 end with it
_KEPT, _RIDGE = 5, 1e-12  # changes of sweeps that are extrapolated, and what keeps their equations solvable
_FLAT = 1e-13  # of the square of a column: with less variance it has the same number everywhere
_PATIENCE = 3  # steps without progress, after which rounding is taken to be the limit


class _Model(NamedTuple):
    """A quadratic model of the objective, and the step from x so far."""

    curvatures: Array
    """Of the loss of each row."""
    over_curvature: float
    """One over their sum; 0 without a free bias."""
    duals: Array
    """Of each row, at the end of the step; without what a free bias changes."""
    squares: Array
    """Of each column, the curvatures times the squares of its entries; negative where that is not known yet."""
    sums: Array
    """Of each column, the curvatures times its entries."""
    x: Array
    step: Array
    l1: Array
    l2: Array


class _Work(NamedTuple):
    """Space for a descent."""

    moving: NDArray[np.int64]
    """The columns whose coefficients are not 0."""
    kept: Array
    """The steps after the last sweeps, by which the next is extrapolated."""
    equations: Array
    ones: Array
    along: Array
    """The linear predictors of a step."""


def expected_cost(task: LinearTask) -> float:
    """Return 0 if the strategy can do the task; infinite otherwise.

    It needs an l1 term, one output, no penalty of the bias, and losses that are curved: Huber's and the hinge are not
    everywhere.
    """
    total = task.total
    if not total.has_l1 or total.problem.outputs > 1 or total.has_free_bias != total.rows.matrix.bias:
        return math.inf
    weights = total.problem.model.sample_weight
    counted = weights > 0.0 if len(weights) else slice(None)
    return 0.0 if bool((task.point.terms.curvature[counted] > 0.0).all()) else math.inf


def solve(task: LinearTask) -> Outcome:
    """Make steps over the columns that are not 0 or violate the KKT conditions.

    The dual variables that a step predicts certify the point where it ends.
    """
    total, goal, point = task.total, task.goal, task.point
    descent, lower, count, wasted, sums = CoordinateDescent(total), -math.inf, 0, 0, None
    most, is_quadratic = goal if task.callback is None else math.inf, total.problem.is_quadratic
    while count < task.steps and wasted < _PATIENCE:
        if task.callback is not None:
            task.callback(count, point.objective, point.objective - lower)
        sums = total.rows.sums(point.terms.slopes) if sums is None else sums
        chosen, gradient = working_set(total, point, sums, takes_all=descent.takes_all), sums + total.l2 * point.table
        if len(chosen) == 0:  # at the minimum, unless the bias is not
            before, point, wasted, sums = point, with_best_intercept(total, point), wasted + 1, None
            if point is before:
                break
            continue
        step = descent.solve(point, gradient, chosen, goal)
        end, decrease, sums = point.table + step.table, total.predicted_decrease(point, gradient, step), None
        further = move(total, point, gradient, step, decrease, descent.effort, needed=not is_quadratic)
        if further is None:
            break
        wasted = 0 if further.objective < point.objective * (1.0 - ROUNDING) else wasted + 1
        point, count = further, count + 1
        if is_quadratic or decrease <= math.sqrt(goal * abs(point.objective)):
            predicted = total.rows.sums(step.residual)
            gap = _gap(total, point, step.residual, predicted, most)
            lower = max(lower, point.objective - gap)
            if gap <= goal:
                return Outcome(point, gap, count, "converged")
            if is_quadratic and np.array_equal(point.table, end):
                sums = predicted  # the model is exact
    point = with_best_intercept(total, point)
    gap = duality_gap(total, point, point.terms.slopes, total.rows.sums(point.terms.slopes), point.table)
    return Outcome(point, gap, count, "converged" if gap <= goal else "finished" if count == task.steps else "stalled")


def _gap(total: Objective, point: Point, duals: Array, sums: Array, most: float) -> float:
    is_balanced = not total.has_free_bias or abs(sums[0, -1]) <= NEGLIGIBLE * np.abs(duals).sum()
    return duality_gap(total, point, duals, sums, point.table, most) if is_balanced else math.inf


class CoordinateDescent:
    """Solve for one step after another, each over some columns."""

    def __init__(self, total: Objective) -> None:
        self._total, rows = total, total.rows
        self._dense: NDArray[Any] | None = None
        self._sparse: Sparse | None = None
        dense, sparse = rows.matrix.dense, rows.matrix.sparse
        self._sizes = np.full(rows.columns, rows.n)
        """Entries of each column."""
        if sparse is not None:
            self._sizes = np.bincount(sparse.columns, minlength=rows.columns)
        self._has = np.zeros(rows.columns, dtype=bool)  # the dense columns that were copied
        self._needs_gram = dense is not None and mapping_of(dense) is not None  # columns may not fit into memory
        self._squares, self._sums = np.full((2, rows.columns), -1.0)
        self._equations, self._ones = np.empty((_KEPT, _KEPT + 1)), np.ones(rows.n)
        self.effort = 1.0
        """The cost of the last step, in evaluations of all losses."""
        self._unsolved = 0  # columns that sweeps alone did not solve for
        self._gram: tuple[NDArray[np.int64], Array] | None = None
        sweep, gram = self._costs(np.arange(rows.columns))
        self.takes_all = total.problem.is_quadratic and (self._needs_gram or gram <= _FEW_SWEEPS_ONCE * sweep)
        """Whether the Gram matrix of all columns is cheap enough to be made at once."""

    def solve(self, point: Point, gradient: Array, chosen: NDArray[np.int64], goal: float) -> Step:
        """Move the chosen columns towards the minimum of the quadratic model with the l1 term.

        Instead of the residual, the step has the dual variables that the model predicts. With a free bias their sum is
        0, unless no loss is curved.
        """
        total, rows = self._total, self._total.rows
        step = Step(np.zeros_like(point.table), np.zeros_like(point.outputs), point.terms.slopes.copy())
        sweep, gram = self._costs(chosen)
        spent, needs_gram = 0.0, len(chosen) <= _WIDEST
        few = _FEW_SWEEPS_ONCE if total.problem.is_quadratic else _FEW_SWEEPS
        if gram > few * sweep and not self._needs_gram and len(chosen) > self._unsolved:
            most = min(gram / max(sweep, CALL), _MOST_SWEEPS)
            sweeps, is_solved = self._by_sweeps(point, chosen, goal, most, step)
            spent, needs_gram = sweep * sweeps, needs_gram and not is_solved
        spent += needs_gram * gram + rows.curve_cost(1)
        self.effort = max(spent / (CALL + OF_LOSS * rows.n), 1.0)
        if needs_gram:
            self._unsolved = len(chosen)
            return self._finish(point, gradient, chosen, goal, step)
        return step

    def _by_sweeps(
        self, point: Point, chosen: NDArray[np.int64], goal: float, most: float, step: Step
    ) -> tuple[float, bool]:
        """Fill in a step by sweeps over the columns; return their number, and whether violations are small."""
        total, table = self._total, step.table
        if not total.problem.is_quadratic:
            self._squares[:] = -1.0
        self._load(chosen)
        curvatures = point.terms.curvature[:, 0].copy()
        whole = curvatures.sum() if total.has_free_bias else 0.0
        of_rows = (curvatures, 1.0 / whole if whole > 0.0 else 0.0, step.residual[:, 0])
        of_columns = (self._squares, self._sums, point.table[0], table[0], total.l1[0], total.l2[0])
        kept = np.empty((_KEPT + 1, len(chosen)))
        work = _Work(chosen.copy(), kept, self._equations, self._ones, step.outputs[:, 0])
        model = _Model(*of_rows, *of_columns)
        sweeps, shift, is_solved = _descend(self._dense, self._sparse, chosen, model, work, goal, most)
        if total.rows.means is not None:
            table[0, -1] = shift + table[0, : total.rows.columns] @ total.rows.means
        return sweeps, is_solved

    def _finish(self, point: Point, gradient: Array, chosen: NDArray[np.int64], goal: float, step: Step) -> Step:
        """Continue a step to the minimum of the model by its Gram matrix."""
        total, width, table = self._total, self._total.rows.columns, step.table
        part = total.rows if len(chosen) == width else total.rows.restrict(chosen)
        kept = np.append(chosen, width) if total.rows.matrix.bias else chosen
        here, slopes = point.table[0, kept] + table[0, kept], gradient[0, kept]
        if table.any():
            slopes = part.sums(step.residual)[0] + total.l2[0, kept] * here
        change = minimise_model(self._hessian(point, part, kept), slopes, here, total.l1[0, kept], goal)
        table[0, kept] += change
        outputs = step.outputs + part.outputs(change[None])
        predicted = point.terms.slopes + total.problem.curve(point.terms, outputs)
        if total.has_free_bias and (whole := float(point.terms.curvature.sum())) > 0.0:
            shift = -float(predicted.sum()) / whole  # makes the sum of the dual variables 0
            table[0, -1] += shift
            outputs += shift
            predicted += shift * point.terms.curvature
        return Step(table, outputs, predicted)

    def _hessian(self, point: Point, part: Design, kept: NDArray[np.int64]) -> Array:
        """Return the Hessian by some coefficients."""
        if self._gram is not None and self._total.problem.is_quadratic:
            known, matrix = self._gram
            if np.isin(kept, known, assume_unique=True).all():
                places = np.searchsorted(known, kept)
                return matrix if len(kept) == len(known) else matrix[np.ix_(places, places)]
        matrix = symmetric(part.gram(self._total.problem.mean_curvatures(point.terms)))
        matrix[np.diag_indices(len(matrix))] += self._total.l2[0, kept]
        self._gram = (kept, matrix)
        return matrix

    def _costs(self, chosen: NDArray[np.int64]) -> tuple[float, float]:
        """Estimate the cost of a sweep over some columns, and of solving with their Gram matrix."""
        rows, count, entries = self._total.rows, len(chosen), float(self._sizes[chosen].sum())
        gram = rows.gram_cost(count, entries / max(rows.entries, 1))
        gram = _OVERHEAD * CALL + gram + _OF_SQUARE * count**2 + _FACTORS * factor_cost(count)
        of_entry = _OF_DENSE_ENTRY if rows.matrix.sparse is None else _OF_ENTRY
        return of_entry * entries + _OF_COLUMN * count, gram

    def _load(self, chosen: NDArray[np.int64]) -> None:
        """Copy the columns that are needed, once: all of a sparse matrix, the chosen ones of a dense one."""
        rows, new = self._total.rows, chosen[~self._has[chosen]]
        dense, sparse = rows.matrix.dense, rows.matrix.sparse
        if sparse is not None and self._sparse is None:
            starts = np.zeros(rows.columns + 1, dtype=sparse.starts.dtype)
            np.cumsum(self._sizes, out=starts[1:])
            self._sparse = unsigned(Sparse(np.empty_like(sparse.values), np.empty_like(sparse.columns), starts))
            _transpose(unsigned(sparse), starts[:-1].copy(), self._sparse.values, self._sparse.columns)
        if dense is not None and len(new):
            self._dense = np.empty(dense.shape, dtype=dense.dtype, order="F") if self._dense is None else self._dense
            self._dense[:, new] = dense if len(new) == rows.columns else dense[:, new]
            self._has[new] = True


# --- kernels -------------------------------------------------------------------------------


@lean
def _transpose(matrix, places, values, rows):
    """Copy the entries from rows to columns."""
    for i in range(len(matrix.starts) - 1):
        for j in range(matrix.starts[i], matrix.starts[i + 1]):
            place = places[matrix.columns[j]]
            values[place], rows[place] = matrix.values[j], i
            places[matrix.columns[j]] = place + 1


@lean
def _descend(dense, sparse, chosen, model, work, goal, most):
    """Sweep over the chosen columns, and more often over the coefficients that are not 0, until violations are small.

    Far from the minimum, until a round adds little. Return the number of sweeps over all of them, the change of the
    bias, and whether violations are small.
    """
    spent, before, decrease, dual_sum, is_solved = 0.0, 0.0, 0.0, model.duals.sum(), False
    while spent <= most:
        largest, dual_sum, decrease = _sweep(dense, sparse, chosen, model, dual_sum, decrease)
        size, reach = 0, 0.0
        for j in chosen:
            coefficient = model.x[j] + model.step[j]
            reach += abs(coefficient)
            work.moving[size] = j
            size += coefficient != 0.0
        certain = _CERTAIN * goal / max(reach, TINY)
        if largest <= certain or (decrease > _NEAR * goal and decrease - before <= _ROUGH * decrease):
            is_solved = True
            break
        before, moving, count = decrease, work.moving[:size], 0
        while count < len(work.kept) and largest > _INNER * certain:
            for a in range(len(moving)):
                work.kept[count, a] = model.step[moving[a]]
            count += 1
            if count < len(work.kept):
                largest, dual_sum, decrease = _sweep(dense, sparse, moving, model, dual_sum, decrease)
            else:
                _mean_of_steps(moving, model.squares, work.kept, work.equations)
                dual_sum, decrease = _extrapolate(dense, sparse, moving, model, work, dual_sum, decrease)
        spent += 1.0 + count * size / len(chosen)
    shift = -dual_sum * model.over_curvature
    for i in range(len(work.along)):
        model.duals[i] += shift * model.curvatures[i]
        work.along[i] = shift
    for j in chosen:
        if model.step[j] != 0.0:
            _add(dense, sparse, j, model.step[j], work.ones, work.along)
    return spent, shift, is_solved


@inlined
def _extrapolate(dense, sparse, columns, model, work, dual_sum, decrease):
    """Move the coefficients to where the last sweeps lead, by Anderson's method, if the model is lower there.

    Return the sum of the dual variables, and the decrease of the model so far.
    """
    more, change_of_sum, along = 0.0, 0.0, work.along
    for i in range(len(along)):
        along[i] = 0.0
    for a in range(len(columns)):
        j = columns[a]
        old, change = model.x[j] + model.step[j], work.kept[0, a] - model.step[j]
        more -= model.l1[j] * (abs(old + change) - abs(old)) + model.l2[j] * change * (old + 0.5 * change)
        if change != 0.0:
            _add(dense, sparse, j, change, work.ones, along)
    for i in range(len(along)):
        curved = model.curvatures[i] * along[i]
        more -= along[i] * (model.duals[i] + 0.5 * curved)
        change_of_sum += curved
    more += change_of_sum * (dual_sum + 0.5 * change_of_sum) * model.over_curvature
    if not more > 0.0:
        return dual_sum, decrease
    for i in range(len(along)):
        model.duals[i] += model.curvatures[i] * along[i]
    for a in range(len(columns)):
        model.step[columns[a]] = work.kept[0, a]
    return dual_sum + change_of_sum, decrease + more


@inlined
def _mean_of_steps(columns, squares, kept, equations):
    """Set the first of some steps to the mean of the others whose change in a sweep is the smallest."""
    count, whole = len(equations), 0.0
    for r in range(count):
        for c in range(r + 1):
            total = 0.0
            for a in range(len(columns)):
                total += squares[columns[a]] * (kept[r + 1, a] - kept[r, a]) * (kept[c + 1, a] - kept[c, a])
            equations[r, c], equations[c, r] = total, total
        equations[r, count] = 1.0
    _eliminate(equations)
    for r in range(count):
        whole += equations[r, count]
    for a in range(len(columns)):
        mean = 0.0
        for r in range(count):
            mean += equations[r, count] / whole * kept[r + 1, a]
        kept[0, a] = mean


@inlined
def _eliminate(system):
    """Solve some equations; the last column has the right sides, and receives the solution."""
    count, trace = len(system), TINY
    for r in range(count):
        trace += system[r, r]
    for r in range(count):
        system[r, r] += _RIDGE * trace
    for r in range(count):
        for k in range(count):
            share = system[k, r] / system[r, r] if k != r else 0.0
            for c in range(r, count + 1):
                system[k, c] -= share * system[r, c]
    for r in range(count):
        system[r, count] /= system[r, r]


@inlined
def _sweep(dense, sparse, columns, model, dual_sum, decrease):
    """Move some coefficients to their minima, one after another.

    Return the largest KKT violation before, the sum of the dual variables, and the decrease of the model so far.
    """
    squares, sums, step, largest = model.squares, model.sums, model.step, 0.0
    for j in columns:
        if squares[j] < 0.0:
            _measure(dense, sparse, j, model.curvatures, squares, sums)
            centred = squares[j] - sums[j] * sums[j] * model.over_curvature
            squares[j] = centred if centred > _FLAT * squares[j] else 0.0
        if squares[j] > 0.0:
            l1, l2, old = model.l1[j], model.l2[j], model.x[j] + step[j]
            curvature = squares[j] + l2
            slope = _dot(dense, sparse, j, model.duals) - dual_sum * model.over_curvature * sums[j] + l2 * old
            best = old - slope / curvature
            change = max(best - l1 / curvature, 0.0) + min(best + l1 / curvature, 0.0) - old
            if change != 0.0:
                step[j] += change
                dual_sum += change * sums[j]
                _add(dense, sparse, j, change, model.curvatures, model.duals)
                decrease += 0.5 * curvature * change * change
                largest = max(largest, abs(change) * curvature)
    return largest, dual_sum, decrease


@product
def _measure(dense, sparse, j, curvatures, squares, sums):
    """Set the sums of the squares and of the entries of a column, times the curvatures."""
    square, total = 0.0, 0.0
    if dense is not None:
        for i in range(dense.shape[0]):
            entry = np.float64(dense[i, j])
            square += curvatures[i] * entry * entry
            total += curvatures[i] * entry
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            entry, curvature = np.float64(sparse.values[k]), curvatures[sparse.columns[k]]
            square += curvature * entry * entry
            total += curvature * entry
    squares[j], sums[j] = square, total


@lean
def _dot(dense, sparse, j, duals):
    total = 0.0
    if dense is not None:
        total = _dense_dot(dense, j, duals)
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            total += np.float64(sparse.values[k]) * duals[sparse.columns[k]]
    return total


@product
def _dense_dot(dense, j, duals):
    total = 0.0
    for i in range(dense.shape[0]):
        total += np.float64(dense[i, j]) * duals[i]
    return total


@product
def _add(dense, sparse, j, change, factors, totals):
    """Add a column times its change and the factors of the rows."""
    if dense is not None:
        for i in range(dense.shape[0]):
            totals[i] += change * factors[i] * np.float64(dense[i, j])
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            totals[sparse.columns[k]] += change * factors[sparse.columns[k]] * np.float64(sparse.values[k])
