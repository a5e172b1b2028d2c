"""Steps with an l1 term and one output: coordinate descent on the columns of X.

Near a point, the slopes of the losses are s + C u, with the second derivatives C and the change u of the outputs. A
coefficient is moved to the minimum of this model by the product of its column with the slopes. Then the slopes change
where the column has entries. A free bias is always at its minimum: the sum of the slopes is 0 if all of them change by
a multiple of C, which two sums determine. A sweep over the columns costs little more than a product with X.

If columns are correlated, many sweeps are needed. When they have cost as much as the matrix of the second derivatives
of the chosen columns, that matrix is computed, and the rest of the step is solved with it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean, product
from avare.problems.l1_steps import minimise_model, mirrored
from avare.problems.matrix import Sparse
from avare.problems.newton_steps import TINY, Objective, Point, Step
from avare.problems.rows import CALL, Rows, Table, factor_cost

_OF_ENTRY, _OF_DENSE_ENTRY, _OF_COLUMN = 2.5, 0.4, 10.0  # nanoseconds of a sweep
_OVERHEAD, _OF_SQUARE, _FACTORS = 60.0, 10.0, 3.0  # operations on almost no rows, nanoseconds of an entry, and factors
_FEW_SWEEPS = 4.0  # a matrix that costs less is made at once
_FEW_SWEEPS_ONCE = 10.0  # the same, if it is needed once
_ROUGH = 0.1  # of the violation at first: what a step leaves
_CERTAIN = 0.25  # of the violation that the goal allows
_INNER = 0.3  # of the violation that a step may leave: sweeps over the coefficients that are not 0 end with it
_FLAT = 1e-13  # of the square of a column: with less variance it has the same number everywhere


class ColumnSteps:
    """Solve for one step after another, each over some columns."""

    def __init__(self, total: Objective) -> None:
        self._total, rows = total, total.rows
        self._dense: NDArray[np.floating] | None = None
        self._sparse = None if rows.matrix.sparse is None else _by_columns(rows.matrix.sparse, rows.columns)
        if self._sparse is None:
            assert rows.matrix.dense is not None
            self._dense = np.empty(rows.matrix.dense.shape, dtype=rows.matrix.dense.dtype, order="F")
            self._copied = np.zeros(rows.columns, dtype=bool)
        self._bends, self._pulls = np.full((2, rows.columns), -1.0)
        self._matrix: tuple[NDArray[np.int64], Table] | None = None

    def solve(self, point: Point, chosen: NDArray[np.int64], goal: float) -> Step:
        """Move the chosen columns towards the minimum of the quadratic model with the l1 term.

        The residual of the step is not that of the columns, but has the slopes that the model predicts.
        """
        total, count = self._total, self._total.rows.columns
        sweep, matrix = self._costs(chosen)
        least = _FEW_SWEEPS_ONCE if total.problem.is_quadratic else _FEW_SWEEPS
        sums = np.array([point.terms.slopes.sum(), point.terms.curvature.sum(), 0.0, 0.0])
        slopes, along = point.terms.slopes.copy(), np.zeros((total.rows.n, 1))
        table = np.zeros_like(point.table)
        if matrix > least * sweep:
            if not total.problem.is_quadratic:
                self._bends[:] = -1.0
            arrays = (point.terms.curvature[:, 0], slopes[:, 0], along[:, 0], self._bends, self._pulls, sums)
            penalty = (point.table[0, :count], table[0, :count], total.l1[0], total.l2[0])
            limits = (_CERTAIN * goal, matrix / sweep, _ROUGH)
            _descend(
                self._columns(chosen), self._sparse, chosen, chosen.copy(), *arrays, *penalty, total.free_bias, *limits
            )
            if total.free_bias:
                table[0, -1] = sums[2] + table[0, :count] @ total.rows.means
        if sums[3] == 0.0:
            self._finish(point, chosen, goal, table, slopes, along)
        return Step(table, along, slopes)

    def _finish(
        self, point: Point, chosen: NDArray[np.int64], goal: float, table: Table, slopes: Table, along: Table
    ) -> None:
        """Move on to the minimum of the model by the matrix of its second derivatives."""
        total, width = self._total, self._total.rows.columns
        part = total.rows if len(chosen) == width else total.rows.restrict(chosen)
        kept = np.append(chosen, width) if total.rows.matrix.bias else chosen
        here = point.table[0, kept] + table[0, kept]
        gradient = part.sums(slopes)[0] + total.l2[0, kept] * here
        change = minimise_model(self._curvature(point, part, kept), gradient, here, total.l1[0, kept], goal)
        outputs = part.outputs(change[None])
        table[0, kept] += change
        along += outputs
        slopes += total.problem.curve(point.terms, outputs)

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
        rows, count = self._total.rows, len(chosen)
        if self._sparse is None:
            entries, sweep = float(rows.n * count), rows.n * count * _OF_DENSE_ENTRY
        else:
            entries = float((self._sparse.starts[chosen + 1] - self._sparse.starts[chosen]).sum())
            sweep = entries * _OF_ENTRY
        share = entries / max(rows.entries, 1)
        matrix = share**2 * rows.gram_cost() + _OF_SQUARE * count**2 + _FACTORS * factor_cost(count)
        return sweep + _OF_COLUMN * count, matrix + _OVERHEAD * CALL

    def _columns(self, chosen: NDArray[np.int64]) -> NDArray[np.floating] | None:
        """Return X in column order, if it is dense, with at least the chosen columns set."""
        if self._dense is not None:
            new = chosen[~self._copied[chosen]]
            dense = self._total.rows.matrix.dense
            assert dense is not None
            if len(new) == dense.shape[1]:
                self._dense[:] = dense
            elif len(new):
                self._dense[:, new] = dense[:, new]
            self._copied[new] = True
        return self._dense


def _by_columns(rows: Sparse, columns: int) -> Sparse:
    """Return a sparse matrix by its columns."""
    ends = np.zeros(columns + 1, dtype=rows.starts.dtype)
    np.cumsum(np.bincount(rows.columns, minlength=columns), out=ends[1:])
    result = Sparse(np.empty_like(rows.values), np.empty_like(rows.columns), ends)
    _transpose(rows, ends[:-1].copy(), result.values, result.columns)
    return result


# --- kernels -------------------------------------------------------------------------------


@lean
def _transpose(matrix, places, values, rows):
    for i in range(len(matrix.starts) - 1):
        for j in range(matrix.starts[i], matrix.starts[i + 1]):
            place = places[matrix.columns[j]]
            values[place], rows[place] = matrix.values[j], i
            places[matrix.columns[j]] = place + 1


@lean
def _descend(
    dense,
    sparse,
    chosen,
    moving,
    curvatures,
    slopes,
    along,
    bends,
    pulls,
    sums,
    x,
    step,
    l1,
    l2,
    free,
    goal,
    most,
    rough,
):
    """Sweep over the chosen columns, and more often over the coefficients that are not 0, until violations are small.

    `sums` has the sums of the slopes and of the curvatures; the change of a free bias is set, and whether all
    violations are small.
    """
    whole, inverse = sums[0], 1.0 / sums[1] if free and sums[1] > 0.0 else 0.0
    count, is_whole, first, tolerance, spent = len(chosen), True, -1.0, 0.0, 0.0
    while spent <= most:
        largest, reach = 0.0, 0.0
        for a in range(count):
            j = chosen[a] if is_whole else moving[a]
            if bends[j] < 0.0:
                _measure(dense, sparse, j, curvatures, bends, pulls)
                centred = bends[j] - pulls[j] * pulls[j] * inverse
                bends[j] = centred if centred > _FLAT * bends[j] else 0.0
            bend, old = bends[j] + l2[j], x[j] + step[j]
            if bends[j] > 0.0:
                slope = _dot(dense, sparse, j, slopes) - whole * inverse * pulls[j] + l2[j] * old
                best = old - slope / bend
                change = max(best - l1[j] / bend, 0.0) + min(best + l1[j] / bend, 0.0) - old
                if change != 0.0:
                    step[j] += change
                    whole += change * pulls[j]
                    _add(dense, sparse, j, change, curvatures, slopes)
                    largest = max(largest, abs(change) * bend)
            reach += abs(x[j] + step[j])
        spent += count / len(chosen)
        if is_whole:
            first = largest if first < 0.0 else first
            tolerance = max(rough * first, goal / max(reach, TINY))
            if largest <= tolerance:
                sums[3] = 1.0
                break
            count = 0
            for j in chosen:
                if x[j] + step[j] != 0.0:
                    moving[count] = j
                    count += 1
            is_whole = count == 0
        elif largest <= _INNER * tolerance:
            is_whole = True
        if is_whole:
            count = len(chosen)
    sums[2] = -whole * inverse
    for i in range(len(along)):
        along[i] = sums[2]
        slopes[i] += sums[2] * curvatures[i]
    for j in chosen:
        if step[j] != 0.0:
            _add_outputs(dense, sparse, j, step[j], along)


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


@product
def _dot(dense, sparse, j, slopes):
    total = 0.0
    if dense is not None:
        for i in range(dense.shape[0]):
            total += np.float64(dense[i, j]) * slopes[i]
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            total += np.float64(sparse.values[k]) * slopes[sparse.columns[k]]
    return total


@product
def _add(dense, sparse, j, change, curvatures, slopes):
    if dense is not None:
        for i in range(dense.shape[0]):
            slopes[i] += change * curvatures[i] * np.float64(dense[i, j])
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            slopes[sparse.columns[k]] += change * curvatures[sparse.columns[k]] * np.float64(sparse.values[k])


@product
def _add_outputs(dense, sparse, j, change, outputs):
    if dense is not None:
        for i in range(dense.shape[0]):
            outputs[i] += change * np.float64(dense[i, j])
    if sparse is not None:
        for k in range(sparse.starts[j], sparse.starts[j + 1]):
            outputs[sparse.columns[k]] += change * np.float64(sparse.values[k])
