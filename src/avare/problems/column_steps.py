"""Steps with an l1 term and one output: coordinate descent on the columns of X.

Near a point, the slopes of the losses are s + C u, with the second derivatives C and the change u of the outputs. A
coefficient is moved to the minimum of this model by the product of its column with the slopes. Then the slopes change
where the column has entries. A free bias is always at its minimum: the sum of the slopes is 0 if all of them change by
a multiple of C, which two sums determine. A sweep over the columns costs little more than a product with X.

If columns are correlated, many sweeps are needed. When they have cost as much as the matrix of the second derivatives
of the chosen columns, that matrix is computed, and the rest of the step is solved with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean, product
from avare.problems.l1_steps import minimise_model, mirrored
from avare.problems.matrix import Sparse, mapping_of, unsigned
from avare.problems.objective import TINY, Objective, Point, Step
from avare.problems.rows import CALL, Rows, Table, factor_cost

_OF_ENTRY, _OF_DENSE_ENTRY, _OF_COLUMN = 1.2, 0.4, 10.0  # nanoseconds of a sweep
_OVERHEAD, _OF_SQUARE, _FACTORS = 60.0, 10.0, 3.0  # operations on almost no rows, nanoseconds of an entry, and factors
_FEW_SWEEPS = 4.0  # a matrix that costs less is made at once
_FEW_SWEEPS_ONCE = 10.0  # the same, if it is needed once
_MOST_SWEEPS, _WIDEST = 1000.0, 8000  # in a step; columns of a matrix
_MOST_COPIED = 0.3  # of the entries: with more, all columns are copied
_ROUGH = 0.1  # of the violation at first: what a step leaves
_CERTAIN = 0.25  # of the violation that the goal allows
_NEAR = 1.0  # of the goal: a step that falls by less may be the last, and leaves only what is certain
_INNER = 0.3  # of the violation that a step may leave: sweeps over the coefficients that are not 0 end with it
_FLAT = 1e-13  # of the square of a column: with less variance it has the same number everywhere


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
        few = _FEW_SWEEPS_ONCE if total.problem.is_quadratic else _FEW_SWEEPS
        if matrix > few * sweep and not self._needs_matrix:
            if not total.problem.is_quadratic:
                self._bends[:] = -1.0
            self._load(chosen)
            whole = curvatures.sum() if total.free_bias else 0.0
            sums[:2] = slopes.sum(), 1.0 / whole if whole > 0.0 else 0.0
            data = (self._dense, self._sparse, chosen, chosen.copy(), curvatures)
            model = (slopes[:, 0], along[:, 0], self._bends, self._pulls, sums, point.table[0], table[0])
            limits = (goal, min(matrix / max(sweep, CALL), _MOST_SWEEPS))
            _descend(*data, *model, total.l1[0], total.l2[0], *limits)
            if total.rows.means is not None:
                table[0, -1] = sums[2] + table[0, :count] @ total.rows.means
        if sums[3] == 0.0 and len(chosen) <= _WIDEST:
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

    def _curvature(self, point: Point, part: Rows, kept: NDArray[np.int64]) -> Table:
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
def _descend(dense, sparse, chosen, moving, curvatures, slopes, along, bends, pulls, sums, x, step, l1, l2, goal, most):
    """Sweep over the chosen columns, and more often over the coefficients that are not 0, until violations are small.

    `sums` has the sum of the slopes, and one over the sum of the curvatures, or 0 if there is no free bias. It receives
    the change of the bias, 1 if all violations are small, and by how much the model fell. The curvatures are
    overwritten at the end.
    """
    columns, first, tolerance, spent = chosen, -1.0, 0.0, 0.0
    while spent <= most and sums[3] == 0.0:
        largest = _sweep(dense, sparse, columns, curvatures, slopes, bends, pulls, sums, x, step, l1, l2)
        spent += len(columns) / max(len(chosen), 1)
        if len(columns) == len(chosen):
            first = largest if first < 0.0 else first
            count, reach = 0, 0.0
            for j in chosen:
                reach += abs(x[j] + step[j])
                moving[count] = j
                count += x[j] + step[j] != 0.0
            rough = _ROUGH * first if sums[4] > _NEAR * goal else 0.0
            tolerance = max(rough, _CERTAIN * goal / max(reach, TINY))
            sums[3] = 1.0 if largest <= tolerance else 0.0
            columns = moving[:count] if count > 0 else chosen
        elif largest <= _INNER * tolerance:
            columns = chosen
    sums[2] = -sums[0] * sums[1]
    for i in range(len(along)):
        slopes[i] += sums[2] * curvatures[i]
        along[i], curvatures[i] = sums[2], 1.0
    for j in chosen:
        if step[j] != 0.0:
            _add(dense, sparse, j, step[j], curvatures, along)


@inlined
def _sweep(dense, sparse, columns, curvatures, slopes, bends, pulls, sums, x, step, l1, l2):
    """Move some coefficients to their minima, one after another; return the largest violation before."""
    largest = 0.0
    for j in columns:
        if bends[j] < 0.0:
            _measure(dense, sparse, j, curvatures, bends, pulls)
            centred = bends[j] - pulls[j] * pulls[j] * sums[1]
            bends[j] = centred if centred > _FLAT * bends[j] else 0.0
        if bends[j] > 0.0:
            bend, old = bends[j] + l2[j], x[j] + step[j]
            best = old - (_dot(dense, sparse, j, slopes) - sums[0] * sums[1] * pulls[j] + l2[j] * old) / bend
            change = max(best - l1[j] / bend, 0.0) + min(best + l1[j] / bend, 0.0) - old
            if change != 0.0:
                step[j] += change
                sums[0] += change * pulls[j]
                _add(dense, sparse, j, change, curvatures, slopes)
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
