"""Steps with an l1 term and one output: coordinate descent on the columns of X.

Near a point, the slopes of the losses are s + C u, with the second derivatives C and the change u of the outputs. A
coefficient is moved to the minimum of this model by the product of its column with the slopes. Then the slopes change
where the column has entries. A free bias is always at its minimum: the sum of the slopes is 0 if all of them change by
a multiple of C, which two sums determine. A sweep over the columns costs little more than a product with X.

If columns are correlated, many sweeps are needed. So after some sweeps, the next step is extrapolated from the last
ones (Anderson's method), if the model is lower there. When sweeps have cost as much as the matrix of the second
derivatives of the chosen columns, that matrix is computed, and the rest of the step is solved with it. Far from the
minimum a step is solved roughly.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean, product
from avare.linear.design import CALL, OF_LOSS, Design, factor_cost
from avare.linear.l1_steps import minimise_model, mirrored
from avare.linear.objective import TINY, Objective, Point, Step
from avare.problems.matrix import Sparse, mapping_of, unsigned
from avare.problems.rows import Table

_OF_ENTRY, _OF_DENSE_ENTRY, _OF_COLUMN = 1.2, 0.4, 10.0  # nanoseconds of a sweep
_OVERHEAD, _OF_SQUARE, _FACTORS = 60.0, 10.0, 3.0  # operations on almost no rows, nanoseconds of an entry, and factors
_FEW_SWEEPS = 4.0  # a matrix that costs less is made at once
_FEW_SWEEPS_ONCE = 10.0  # the same, if it is needed once
_MOST_SWEEPS, _WIDEST = 1000.0, 8000  # in a step; columns of a matrix
_MOST_COPIED = 0.3  # of the entries: with more, all columns are copied
_ROUGH = 0.1  # of the decrease so far: a round of sweeps that adds less is the last, unless the step may be
_NEAR = 1.0  # of the goal: a step that falls by less may be the last, and leaves only what is certain
_CERTAIN = 0.25  # of the violation that the goal allows
_INNER = 0.3  # of the violation that a step may leave: sweeps over the coefficients that are not 0 end with it
_KEPT, _RIDGE = 5, 1e-12  # changes of sweeps that are extrapolated, and what keeps their equations solvable
_FLAT = 1e-13  # of the square of a column: with less variance it has the same number everywhere


class _Model(NamedTuple):
    """A quadratic model of the objective, and the step from x so far."""

    curvatures: Table
    """Of each row."""
    slopes: Table
    """Of each row, at the end of the step; without what a free bias changes."""
    bends: Table
    """Second derivatives by the coefficients, without the l2 term; negative where they are not known."""
    pulls: Table
    """The sum of the curvatures times the entries of each column."""
    sums: Table
    """Of the slopes; one over that of the curvatures, or 0 if there is no free bias; the change of the bias; 1 if all
    violations are small; the decrease of the model."""
    x: Table
    step: Table
    l1: Table
    l2: Table


class _Work(NamedTuple):
    """Space for a descent."""

    moving: NDArray[np.int64]
    """The columns whose coefficients are not 0."""
    kept: Table
    """The steps after the last sweeps, by which the next is extrapolated."""
    equations: Table
    ones: Table
    along: Table
    """The outputs of a step."""


class ColumnSteps:
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
        self._has = np.zeros(rows.columns, dtype=bool)  # the columns that were copied
        self._needs_matrix = dense is not None and mapping_of(dense) is not None  # columns may not fit into memory
        self._bends, self._pulls = np.full((2, rows.columns), -1.0)
        self._fixed = (np.empty((_KEPT, _KEPT + 1)), np.ones(rows.n))
        self.effort = 1.0
        """The cost of the last step, in evaluations of all losses."""
        self._unsolved = 0  # columns that sweeps alone did not solve for
        self._matrix: tuple[NDArray[np.int64], Table] | None = None
        sweep, matrix = self._costs(np.arange(rows.columns))
        self.takes_all = total.problem.is_quadratic and (self._needs_matrix or matrix <= _FEW_SWEEPS_ONCE * sweep)
        """Whether the matrix of all columns is cheap enough to be made at once."""

    def solve(self, point: Point, gradient: Table, chosen: NDArray[np.int64], goal: float) -> Step:
        """Move the chosen columns towards the minimum of the quadratic model with the l1 term.

        Instead of the residual, the step has the slopes that the model predicts. With a free bias their sum is 0,
        unless no loss is curved.
        """
        total, count, table = self._total, self._total.rows.columns, np.zeros_like(point.table)
        slopes, along = point.terms.slopes.copy(), np.zeros_like(point.outputs)
        curvatures, sums = point.terms.curvature[:, 0].copy(), np.zeros(5)
        sweep, matrix = self._costs(chosen)
        spent = 0.0
        few = _FEW_SWEEPS_ONCE if total.problem.is_quadratic else _FEW_SWEEPS
        if matrix > few * sweep and not self._needs_matrix and len(chosen) > self._unsolved:
            if not total.problem.is_quadratic:
                self._bends[:] = -1.0
            self._load(chosen)
            whole = curvatures.sum() if total.free_bias else 0.0
            sums[:2] = slopes.sum(), 1.0 / whole if whole > 0.0 else 0.0
            of_columns = (self._bends, self._pulls, sums, point.table[0], table[0], total.l1[0], total.l2[0])
            work = _Work(chosen.copy(), np.empty((_KEPT + 1, len(chosen))), *self._fixed, along[:, 0])
            most = min(matrix / max(sweep, CALL), _MOST_SWEEPS)
            model = _Model(curvatures, slopes[:, 0], *of_columns)
            spent = sweep * _descend(self._dense, self._sparse, chosen, model, work, goal, most)
            if total.rows.means is not None:
                table[0, -1] = sums[2] + table[0, :count] @ total.rows.means
        by_matrix = sums[3] == 0.0 and len(chosen) <= _WIDEST
        spent += by_matrix * matrix + 2.0 * total.rows.product_cost()
        self.effort = max(spent / (CALL + OF_LOSS * total.rows.n), 1.0)
        if by_matrix:
            self._unsolved = len(chosen)
            return self._finish(point, gradient, chosen, goal, Step(table, along, slopes))
        return Step(table, along, slopes)

    def _finish(self, point: Point, gradient: Table, chosen: NDArray[np.int64], goal: float, step: Step) -> Step:
        """Continue a step to the minimum of the model by the matrix of its second derivatives."""
        total, width, table = self._total, self._total.rows.columns, step.table
        part = total.rows if len(chosen) == width else total.rows.restrict(chosen)
        kept = np.append(chosen, width) if total.rows.matrix.bias else chosen
        here, slopes = point.table[0, kept] + table[0, kept], gradient[0, kept]
        if table.any():
            slopes = part.sums(step.residual)[0] + total.l2[0, kept] * here
        change = minimise_model(self._curvature(point, part, kept), slopes, here, total.l1[0, kept], goal)
        table[0, kept] += change
        outputs = step.outputs + part.outputs(change[None])
        predicted = point.terms.slopes + total.problem.curve(point.terms, outputs)
        if total.free_bias and (whole := float(point.terms.curvature.sum())) > 0.0:
            shift = -float(predicted.sum()) / whole  # makes the sum of the slopes 0
            table[0, -1] += shift
            outputs += shift
            predicted += shift * point.terms.curvature
        return Step(table, outputs, predicted)

    def _curvature(self, point: Point, part: Design, kept: NDArray[np.int64]) -> Table:
        """Return the matrix of the second derivatives by some coefficients."""
        if self._matrix is not None and self._total.problem.is_quadratic:
            known, matrix = self._matrix
            if np.isin(kept, known, assume_unique=True).all():
                places = np.searchsorted(known, kept)
                return matrix if len(kept) == len(known) else matrix[np.ix_(places, places)]
        matrix = mirrored(part.gram(self._total.problem.mean_curvatures(point.terms)))
        matrix[np.diag_indices(len(matrix))] += self._total.l2[0, kept]
        self._matrix = (kept, matrix)
        return matrix

    def _costs(self, chosen: NDArray[np.int64]) -> tuple[float, float]:
        """Estimate the cost of a sweep over some columns, and of solving with the matrix."""
        rows, count, entries = self._total.rows, len(chosen), float(self._sizes[chosen].sum())
        gram = rows.gram_cost(count, entries / max(rows.entries, 1))
        matrix = _OVERHEAD * CALL + gram + _OF_SQUARE * count**2 + _FACTORS * factor_cost(count)
        of_entry = _OF_DENSE_ENTRY if rows.matrix.sparse is None else _OF_ENTRY
        return of_entry * entries + _OF_COLUMN * count, matrix

    def _load(self, chosen: NDArray[np.int64]) -> None:
        """Copy the chosen columns, unless that was done before."""
        new, rows = chosen[~self._has[chosen]], self._total.rows
        dense, sparse = rows.matrix.dense, rows.matrix.sparse
        if len(new) == 0:
            return
        if dense is not None:
            self._dense = np.empty(dense.shape, dtype=dense.dtype, order="F") if self._dense is None else self._dense
            self._dense[:, new] = dense if len(new) == rows.columns else dense[:, new]
            self._has[new] = True
        if sparse is not None:
            self._has[new] = True
            if float(self._sizes[self._has].sum()) > _MOST_COPIED * rows.entries:
                self._has[:] = True
            starts = np.zeros(rows.columns + 1, dtype=sparse.starts.dtype)
            np.cumsum(np.where(self._has, self._sizes, 0), out=starts[1:])
            values = np.empty(starts[-1], dtype=sparse.values.dtype)
            self._sparse = unsigned(Sparse(values, np.empty(starts[-1], dtype=sparse.columns.dtype), starts))
            _transpose(unsigned(sparse), self._has, starts[:-1].copy(), values, self._sparse.columns)


# --- kernels -------------------------------------------------------------------------------


@lean
def _transpose(matrix, wanted, places, values, rows):
    """Copy the entries of some columns from rows to columns."""
    for i in range(len(matrix.starts) - 1):
        for j in range(matrix.starts[i], matrix.starts[i + 1]):
            if wanted[matrix.columns[j]]:
                place = places[matrix.columns[j]]
                values[place], rows[place] = matrix.values[j], i
                places[matrix.columns[j]] = place + 1


@lean
def _descend(dense, sparse, chosen, model, work, goal, most):
    """Sweep over the chosen columns, and more often over the coefficients that are not 0, until violations are small.

    Far from the minimum, until a round adds little. Return the number of sweeps over all of them.
    """
    spent, before, sums = 0.0, 0.0, model.sums
    while spent <= most:
        largest = _sweep(dense, sparse, chosen, model)
        size, reach, fall = 0, 0.0, sums[4]
        for j in chosen:
            coefficient = model.x[j] + model.step[j]
            reach += abs(coefficient)
            work.moving[size] = j
            size += coefficient != 0.0
        certain = _CERTAIN * goal / max(reach, TINY)
        if largest <= certain or (fall > _NEAR * goal and fall - before <= _ROUGH * fall):
            sums[3] = 1.0
            break
        before, count = fall, _sweep_often(dense, sparse, work.moving[:size], model, work, largest, _INNER * certain)
        spent += 1.0 + count * size / len(chosen)
    sums[2] = -sums[0] * sums[1]
    for i in range(len(work.along)):
        model.slopes[i] += sums[2] * model.curvatures[i]
        work.along[i] = sums[2]
    for j in chosen:
        if model.step[j] != 0.0:
            _add(dense, sparse, j, model.step[j], work.ones, work.along)
    return spent


@inlined
def _sweep_often(dense, sparse, columns, model, work, largest, enough):
    """Sweep over some columns until the largest violation is small enough, or extrapolate; return how many sweeps."""
    count, kept = 0, work.kept
    while count < len(kept) and largest > enough:
        for a in range(len(columns)):
            kept[count, a] = model.step[columns[a]]
        count += 1
        if count < len(kept):
            largest = _sweep(dense, sparse, columns, model)
        else:
            _mean_of_steps(columns, model.bends, kept, work.equations)
            _extrapolate(dense, sparse, columns, model, work)
    return count


@inlined
def _extrapolate(dense, sparse, columns, model, work):
    """Move the coefficients to where the last sweeps lead, by Anderson's method, if the model is lower there."""
    fall, pull, along, sums = 0.0, 0.0, work.along, model.sums
    for i in range(len(along)):
        along[i] = 0.0
    for a in range(len(columns)):
        j = columns[a]
        old, change = model.x[j] + model.step[j], work.kept[0, a] - model.step[j]
        fall -= model.l1[j] * (abs(old + change) - abs(old)) + model.l2[j] * change * (old + 0.5 * change)
        if change != 0.0:
            _add(dense, sparse, j, change, work.ones, along)
    for i in range(len(along)):
        bent = model.curvatures[i] * along[i]
        fall -= along[i] * (model.slopes[i] + 0.5 * bent)
        pull += bent
    fall += pull * (sums[0] + 0.5 * pull) * sums[1]
    if fall > 0.0:
        sums[0] += pull
        sums[4] += fall
        for i in range(len(along)):
            model.slopes[i] += model.curvatures[i] * along[i]
        for a in range(len(columns)):
            model.step[columns[a]] = work.kept[0, a]


@inlined
def _mean_of_steps(columns, bends, kept, equations):
    """Set the first of some steps to the mean of the others whose change in a sweep is the smallest."""
    count, whole = len(equations), 0.0
    for r in range(count):
        for c in range(r + 1):
            total = 0.0
            for a in range(len(columns)):
                total += bends[columns[a]] * (kept[r + 1, a] - kept[r, a]) * (kept[c + 1, a] - kept[c, a])
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
def _sweep(dense, sparse, columns, model):
    """Move some coefficients to their minima, one after another; return the largest violation before."""
    bends, pulls, sums, step, largest = model.bends, model.pulls, model.sums, model.step, 0.0
    for j in columns:
        if bends[j] < 0.0:
            _measure(dense, sparse, j, model.curvatures, bends, pulls)
            centred = bends[j] - pulls[j] * pulls[j] * sums[1]
            bends[j] = centred if centred > _FLAT * bends[j] else 0.0
        if bends[j] > 0.0:
            l1, l2, old = model.l1[j], model.l2[j], model.x[j] + step[j]
            bend = bends[j] + l2
            best = old - (_dot(dense, sparse, j, model.slopes) - sums[0] * sums[1] * pulls[j] + l2 * old) / bend
            change = max(best - l1 / bend, 0.0) + min(best + l1 / bend, 0.0) - old
            if change != 0.0:
                step[j] += change
                sums[0] += change * pulls[j]
                _add(dense, sparse, j, change, model.curvatures, model.slopes)
                sums[4] += 0.5 * bend * change * change
                largest = max(largest, abs(change) * bend)
    return largest


@product
def _measure(dense, sparse, j, curvatures, bends, pulls):
    """Set the sums of the squares and of the entries of a column, times the curvatures."""
    square, pull = 0.0, 0.0
    if dense is not None:
        for i in range(dense.shape[0]):
            entry = np.float64(dense[i, j])
            square += curvatures[i] * entry * entry
            pull += curvatures[i] * entry
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            entry, curvature = np.float64(sparse.values[k]), curvatures[sparse.columns[k]]
            square += curvature * entry * entry
            pull += curvature * entry
    bends[j], pulls[j] = square, pull


@lean
def _dot(dense, sparse, j, slopes):
    total = 0.0
    if dense is not None:
        total = _dense_dot(dense, j, slopes)
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            total += np.float64(sparse.values[k]) * slopes[sparse.columns[k]]
    return total


@product
def _dense_dot(dense, j, slopes):
    total = 0.0
    for i in range(dense.shape[0]):
        total += np.float64(dense[i, j]) * slopes[i]
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
