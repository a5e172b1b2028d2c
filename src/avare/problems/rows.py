"""Products with all rows of a linear model: by BLAS if X is dense, by kernels if it is sparse.

If the model has a free bias, columns are centred: row i is a_i - m, with m the weighted mean of the rows. X itself is
not changed. For coefficients w and a bias b, the outputs a_i.w + b are those of the centred rows with the bias
b + m.w, and the penalty is the same. Columns far from 0 then cost no accuracy and no conditioning.

The cost of each operation is estimated in nanoseconds, so that a method can choose between them.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean, product
from avare.problems.matrix import Matrix, mapping_of, parts_of, some_rows, unsigned

Array = NDArray[np.float64]

_CHUNK, _FEWEST = 1 << 16, 64  # entries of X at a time, which stay in the cache; but rows enough for BLAS to be fast
_GRAM_ENTRY = 0.022  # of a product of two rows, by BLAS
_GRAM_ROW, _SCALED_ROW = 1.0, 7.0  # a dense entry that is scaled first, and its row
_SPARSE_GRAM_ENTRY = 0.9
_SCATTERED_ENTRY = 1.5  # a sparse entry that is copied to a dense row
_CLEARED_ENTRY = 0.3
_FAR, _LOOKED_AT = 1e8, 64  # times the variance of a column, and rows that show it
_CONSTANT = 1e-13  # of the square of a column: with less variance it has the same number everywhere


class Rows:
    """The rows of a matrix, with a 1 at their ends if the model has a bias.

    Parameters
    ----------
    matrix : Matrix
    n, width : int
        Rows, and columns with the bias.
    weights : array
        Of the rows, for their mean; empty if all are 1.
    centred : bool
        Whether columns are centred. The matrix must have a bias.
    """

    def __init__(self, matrix: Matrix, n: int, width: int, weights: Array, *, centred: bool) -> None:
        self.matrix, self.n, self.width = matrix, n, width
        self.columns = width - int(matrix.bias)
        self.sparse = None if matrix.sparse is None else unsigned(matrix.sparse)
        """The matrix for kernels, if it is sparse."""
        self.means: Array | None = None
        """What is subtracted from each row."""
        self.shift = np.zeros(self.columns)
        """What was subtracted from a copy of the matrix, before the means."""
        if centred:
            total = float(weights.sum()) if len(weights) else float(n)
            shares = (weights / total if len(weights) and total > 0.0 else np.full(n, 1.0 / n))[:, None]
            self.means = self._sums(shares)[0]
            if matrix.dense is not None and mapping_of(matrix.dense) is None and _is_far(matrix.dense, self.means):
                self.shift, self.matrix = self.means, matrix._replace(dense=matrix.dense - self.means)
                self.means = self._sums(shares)[0]

    def subset(self, indices: NDArray[np.int64]) -> Self:
        """Copy some rows, with the same means subtracted."""
        rows = type(self)(some_rows(self.matrix, indices), len(indices), self.width, np.empty(0), centred=False)
        rows.means, rows.shift = self.means, self.shift
        return rows

    @property
    def entries(self) -> int:
        """Entries that are stored."""
        return self.n * self.columns if self.matrix.sparse is None else len(self.matrix.sparse.values)

    def outputs(self, table: Array) -> Array:
        """Return the product of each row with each row of a table. O(entries)."""
        weights = np.ascontiguousarray(table[:, : self.columns])
        result = np.empty((self.n, len(table)))
        if self.sparse is not None:
            _multiply(*self.sparse, np.ascontiguousarray(weights.T), result)
        else:
            for part, rows in self._chunks():
                np.dot(rows, weights.T, out=result[part])
        result += self._bias(table, weights)
        return result

    def sums(self, factors: Array) -> Array:
        """Return the sum of all rows times their factors, for each column of factors. O(entries)."""
        return self._with_bias(self._sums(factors), column_sums(factors))

    def curve(self, table: Array, middle: Callable[[slice, Array], Array]) -> tuple[Array, Array]:
        """Return the outputs for a table, and the sums of all rows times `middle` of their outputs. O(entries).

        X is read once: a part of the rows at a time stays in the cache for both products. `middle` receives which rows
        they are and their outputs, a column per row of the table.
        """
        if self.matrix.sparse is not None and len(table) > 1:
            outputs = self.outputs(table)
            return outputs, self.sums(middle(slice(None), outputs))
        weights = np.ascontiguousarray(table[:, : self.columns])
        bias = np.zeros(len(table)) + self._bias(table, weights)
        outputs, total, sums = np.empty((self.n, len(table))), np.zeros_like(weights), np.zeros(len(table))
        if self.sparse is not None:
            factors = middle(slice(None), np.ones((self.n, 1)))
            sums[0] = _curve_rows(*self.sparse, factors[:, 0], weights[0], bias[0], outputs[:, 0], total[0])
            return outputs, self._with_bias(total, sums)
        for part, rows in self._chunks():
            np.dot(rows, weights.T, out=outputs[part])
            outputs[part] += bias
            factors = middle(part, outputs[part])
            total += factors.T @ rows
            sums += column_sums(factors)
        return outputs, self._with_bias(total, sums)

    def squares(self, factors: Array, *, centred: bool = True) -> Array:
        """Return the sum of the squares of each column, times the factors of the rows. O(entries)."""
        means = self.means if centred else None
        squares, sums = np.zeros(self.columns), np.zeros(0 if means is None else self.columns)
        if self.sparse is not None:
            _add_squares(*self.sparse, factors, squares, sums)
        else:
            work = self._scratch()
            for part, rows in self._chunks():
                squares += factors[part] @ np.multiply(rows, rows, out=work[: len(rows)])
                sums += factors[part] @ rows if len(sums) else 0.0
        whole = factors.sum()
        if means is not None:
            squares = np.maximum(squares - 2.0 * means * sums + whole * means**2, 1e-14 * squares)
        return np.append(squares, whole) if self.matrix.bias else squares

    def lengths(self, scales: Array) -> Array:
        """Return the squared length of each row, with each column's square times its scale, the bias last. O(entries).

        >>> rows = Rows(Matrix(np.array([[3.0, 1.0], [0.0, 2.0]]), None, False), 2, 2, np.empty(0), centred=False)
        >>> rows.lengths(np.array([1.0, 10.0]))
        array([19., 40.])
        """
        scales, constant = scales[: self.columns], float(scales[-1]) if self.matrix.bias else 0.0
        means = np.zeros(self.columns) if self.means is None else self.means
        inner, constant = -2.0 * scales * means, constant + float(scales @ means**2)
        result = np.empty(self.n)
        if self.sparse is not None:
            _set_lengths(*self.sparse, scales, inner, result)
        else:
            work = self._scratch()
            for part, rows in self._chunks():
                result[part] = np.multiply(rows, rows, out=work[: len(rows)]) @ scales + rows @ inner
        return np.maximum(result + constant, 0.0)

    def gram(self, factors: Array) -> Array:
        """Return the sum of the products of each row with itself, times the factors; only its lower triangle counts."""
        from scipy.linalg.blas import dsyrk

        size, sparse = self.columns, self.sparse
        total, sums = np.zeros((size, size), order="F"), np.zeros(size)
        if sparse is not None and self.sparse_gram_cost(size, 1.0) < self.dense_gram_cost(size, 1.0):
            work = np.zeros((size, size))
            _add_products(*sparse, factors, work, sums)
            total = np.asfortranarray(work)
        else:
            roots, work, is_plain = np.sqrt(factors), self._scratch(), factors.min() == factors.max() == 1.0
            for part, rows in self.dense_chunks():
                scaled = rows if is_plain else np.multiply(rows, roots[part, None], out=work[: len(rows)])
                sums += roots[part] @ scaled
                total = dsyrk(1.0, scaled.T, beta=1.0, c=total, overwrite_c=1, lower=1)
        if not self.matrix.bias:
            return total
        result = np.zeros((size + 1, size + 1), order="F")
        _append_bias(total, sums, factors.sum(), np.zeros(size) if self.means is None else self.means, result)
        return result

    def dense_gram_cost(self, columns: int, share: float) -> float:
        size = float(self.n * columns)
        copying = 0.0 if self.matrix.sparse is None else _CLEARED_ENTRY * size + _SCATTERED_ENTRY * share * self.entries
        return copying + _SCALED_ROW * self.n + _GRAM_ROW * size + _GRAM_ENTRY * size * columns

    def sparse_gram_cost(self, columns: int, share: float) -> float:
        return _SPARSE_GRAM_ENTRY * share**2 * self._pairs + 4.0 * columns**2

    @cached_property
    def _pairs(self) -> float:
        """How many pairs of entries share a row."""
        assert self.matrix.sparse is not None
        counts = np.diff(self.matrix.sparse.starts).astype(np.float64)
        return 0.5 * float(counts @ counts)

    # --- their parts ----------------------------------------------------------------------

    def _bias(self, table: Array, weights: Array) -> Array | float:
        """What to add to the products with the columns alone."""
        if not self.matrix.bias:
            return 0.0
        return table[:, -1] if self.means is None else table[:, -1] - weights @ self.means

    def _with_bias(self, total: Array, sums: Array) -> Array:
        """Centre the sums of the columns, and append the sums of the factors if there is a bias."""
        if not self.matrix.bias:
            return total
        result = np.empty((len(total), self.width))
        result[:, :-1], result[:, -1] = total, sums
        if self.means is not None:
            result[:, :-1] -= sums[:, None] * self.means
        return result

    def _sums(self, factors: Array) -> Array:
        if self.sparse is not None:
            sums = np.zeros((self.columns, factors.shape[1]))
            _add_rows(*self.sparse, factors, sums)
            return np.ascontiguousarray(sums.T)
        total = np.zeros((factors.shape[1], self.columns))
        for part, rows in self._chunks():
            total += factors[part].T @ rows
        return total

    def _chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield dense rows in float64, some at a time; copies share their memory with the next."""
        dense, step = self.matrix.dense, self._rows_at_a_time()
        assert dense is not None
        work = None if dense.dtype == np.float64 else self._scratch()
        for part in parts_of(dense, step) if self.n > step else (slice(0, self.n),):
            yield part, dense[part] if work is None else np.positive(dense[part], out=work[: part.stop - part.start])

    def dense_chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield rows as `_chunks` does, dense and in float64, also if the matrix is sparse."""
        if self.sparse is None:
            yield from self._chunks()
            return
        work, step = self._scratch(), self._rows_at_a_time()
        for first in range(0, self.n, step):
            part = slice(first, min(first + step, self.n))
            rows = work[: part.stop - part.start]
            rows[:] = 0.0
            _scatter(*self.sparse, part.start, part.stop, rows)
            yield part, rows

    def _scratch(self) -> Array:
        """Allocate rows to overwrite: new memory for each part would cost more than what is computed with it."""
        return np.empty((min(self._rows_at_a_time(), self.n), self.columns))

    def _rows_at_a_time(self) -> int:
        return max(_FEWEST, _CHUNK // max(self.columns, 1))


def _is_far(dense: Array, means: Array) -> bool:
    """Whether a column is so far from 0, for its spread in some rows, that products lose digits before centring."""
    if (np.abs(means) <= math.sqrt(_FAR) * np.abs(dense[0] - means)).all():
        return False  # the common case
    spreads = dense[:: max(1, len(dense) // _LOOKED_AT)].var(axis=0, dtype=np.float64)
    return bool(((means**2 > _FAR * spreads) & (spreads > 0.0)).any())


def column_sums(table: Array) -> Array:
    """Return the sum of each column; of several, by a product, which is faster."""
    return table.sum(axis=0) if table.shape[1] == 1 else np.ones(len(table)) @ table


# --- kernels -------------------------------------------------------------------------------


@lean
def _multiply(values, columns, starts, table, result):
    """Set the products of sparse rows with the columns of a table, four at a time."""
    fours = result.shape[1] - result.shape[1] % 4
    for i in range(len(result)):
        for k in range(0, fours, 4):
            z0, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
            for j in range(starts[i], starts[i + 1]):
                entry, row = np.float64(values[j]), table[columns[j], k : k + 4]
                z0 += entry * row[0]
                z1 += entry * row[1]
                z2 += entry * row[2]
                z3 += entry * row[3]
            result[i, k], result[i, k + 1], result[i, k + 2], result[i, k + 3] = z0, z1, z2, z3
        for k in range(fours, result.shape[1]):
            total = 0.0
            for j in range(starts[i], starts[i + 1]):
                total += np.float64(values[j]) * table[columns[j], k]
            result[i, k] = total


@lean
def _add_rows(values, columns, starts, factors, sums):
    for i in range(len(factors)):
        if factors.shape[1] == 1:
            for j in range(starts[i], starts[i + 1]):
                sums[columns[j], 0] += factors[i, 0] * np.float64(values[j])
        else:
            for j in range(starts[i], starts[i + 1]):
                _add_multiple(np.float64(values[j]), factors[i], sums[columns[j]])


@product
def _add_multiple(factor, row, total):
    for k in range(len(total)):
        total[k] += factor * row[k]


@lean
def _curve_rows(values, columns, starts, curvatures, table, bias, outputs, sums):
    """Set the outputs of sparse rows, and add the rows times their curved outputs; return the sum of these."""
    whole = 0.0
    for i in range(len(outputs)):
        total = bias
        for j in range(starts[i], starts[i + 1]):
            total += np.float64(values[j]) * table[columns[j]]
        outputs[i] = total
        total *= curvatures[i]
        whole += total
        for j in range(starts[i], starts[i + 1]):
            sums[columns[j]] += total * np.float64(values[j])
    return whole


@lean
def _add_squares(values, columns, starts, factors, squares, sums):
    for i in range(len(factors)):
        for j in range(starts[i], starts[i + 1]):
            part = factors[i] * np.float64(values[j])
            squares[columns[j]] += part * np.float64(values[j])
            if len(sums) > 0:
                sums[columns[j]] += part


@lean
def _set_lengths(values, columns, starts, scales, inner, result):
    for i in range(len(result)):
        total = 0.0
        for j in range(starts[i], starts[i + 1]):
            entry = np.float64(values[j])
            total += entry * (entry * scales[columns[j]] + inner[columns[j]])
        result[i] = total


@lean
def _add_products(values, columns, starts, factors, products, sums):
    for i in range(len(factors)):
        for a in range(starts[i], starts[i + 1]):
            part = factors[i] * np.float64(values[a])
            sums[columns[a]] += part
            for b in range(starts[i], a + np.uint64(1)):
                products[max(columns[a], columns[b]), min(columns[a], columns[b])] += part * np.float64(values[b])


@lean
def _append_bias(gram, sums, whole, means, result):
    """Centre the products of the columns, and append those with a column of ones; lower triangles only."""
    size = len(sums)
    for j in range(size):
        for i in range(j, size):
            result[i, j] = gram[i, j] - means[i] * sums[j] - means[j] * (sums[i] - whole * means[i])
        result[size, j] = sums[j] - whole * means[j]
    result[size, size] = whole
    for j in range(size):
        if result[j, j] <= _CONSTANT * gram[j, j]:  # the rest is rounding
            result[j, :] = 0.0
            result[:, j] = 0.0


@lean
def _scatter(values, columns, starts, first, last, rows):
    for i in range(first, last):
        for j in range(starts[i], starts[i + 1]):
            rows[i - first, columns[j]] = values[j]
