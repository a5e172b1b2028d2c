"""The design matrix of a linear model for the solver: what `Rows` has, the Gram matrix of the rows, rounding and costs.

The cost of each operation is estimated in nanoseconds, so that a method can choose between them. The constants were
measured on one core of a server processor with benchmarks/linear_choices.py; their ratios are what counts. Dense
products with a vector wait for memory: relative to products of matrices, they cost up to four times more on another
such processor if no cache holds X. The constants here are between both.
"""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel, lean
from avare.problems.linear import Linear
from avare.problems.matrix import Matrix, Sparse, unsigned
from avare.problems.rows import Array, Rows

_CURVED_ENTRY, _CURVED_ROW = 0.5, 2.0  # nanoseconds of both products with a vector, with one reading of X
_SPARSE_CURVED_ENTRY, _SPARSE_CURVED_ROW = 0.6, 7.0
# Of both products with several vectors, per entry, per entry and vector, and per row and vector: dense, and sparse.
_SEVERAL, _SPARSE_SEVERAL = (0.8, 0.05, 1.5), (1.4, 0.22, 1.0)
_PAIR_OF_ROWS = 0.022  # an entry of the product of two dense rows, by BLAS
_CLEARED_ENTRY = 0.3  # of a dense copy
_SPARSE_KERNEL_ENTRY = 3.0  # a pair of entries in a column
_SPARSE_KERNEL_CALLS = 25.0  # operations on almost no rows
_COPIED = 1 << 22  # entries of sampled rows at a time
_FACTOR_ENTRY = 0.01  # of the cube of the size
_OF_NUMBER = 1.1e-16  # relative error of a number
_OF_KERNEL = 1e-15  # relative error of a sum of products of rows
OF_SUM = 3e-16
"""Relative error of a sum of products."""
CALL = 5e3
"""Nanoseconds of an operation on almost no rows."""
OF_LOSS = 15.0
"""Nanoseconds of a row's loss."""


class Design(Rows):
    """The rows of a linear model, of all columns or of some."""

    @classmethod
    def of(cls, problem: Linear, *, centred: bool = True) -> Self:
        """Return the rows of a model, centred if it has a free bias unless that is not wanted."""
        model, centred = problem.model, centred and problem.has_free_bias
        return cls(model.matrix, problem.n, problem.width, model.sample_weight, centred=centred)

    def centre(self, table: Array, sign: float = 1.0) -> Array:
        """Return coefficients for centred rows, of coefficients for rows as they are; back with ``sign=-1.0``."""
        table = table.copy()
        if self.means is not None:
            table[:, -1] += sign * (table[:, :-1] @ (self.means + self.shift))
        return table

    def restrict(self, columns: NDArray[np.int64]) -> Self:
        """Copy some columns; the bias stays."""
        matrix, width = _some_columns(self.matrix, columns, self.columns), len(columns) + int(self.matrix.bias)
        rows = type(self)(matrix, self.n, width, np.empty(0), centred=False)
        rows.means, rows.shift = None if self.means is None else self.means[columns], self.shift[columns]
        return rows

    def rounding_of_sums(self, slopes: Array) -> Array:
        """Estimate the rounding of the sums of all rows times their slopes, with independent errors. O(entries)."""
        return OF_SUM * np.sqrt(self.squares(np.square(slopes).sum(axis=1), centred=False))

    def rounding_of_bias(self, table: Array) -> Array:
        """Estimate the rounding of the bias for rows as they are, of coefficients for centred rows."""
        means = self.shift if self.means is None else self.means + self.shift
        return _OF_NUMBER * (np.abs(table[:, -1]) + np.abs(table[:, :-1]) @ np.abs(means))

    def by_columns(self) -> Array:
        """Copy the centred rows, dense and transposed, with a last row of ones if there is a bias. O(n columns)."""
        table = np.ones((self.width, self.n))
        inner = table[: self.columns]
        if self.sparse is None:
            inner[:] = self.matrix.dense.T  # type: ignore[union-attr]  # one is not None
        else:
            inner[:] = 0.0
            _scatter_columns(*self.sparse, inner)
        if self.means is not None:
            inner -= self.means[:, None]
        return table

    def sampled_gram(self, factors: Array, chosen: NDArray[np.int64]) -> Array:
        """Return `gram` of some rows, with a factor for each; a part of them is copied at a time."""
        step = max(_COPIED // max(self.columns, 1), self.columns)
        total = self.subset(chosen[:step]).gram(factors[:step])
        for first in range(step, len(chosen), step):
            part = slice(first, first + step)
            total += self.subset(chosen[part]).gram(factors[part])
        return total

    def kernel(self) -> Array:
        """Return the products of all pairs of centred rows, without the bias. O(n entries), and n^2 numbers."""
        if self.matrix.sparse is None or self._dense_kernel_cost() < self._sparse_kernel_cost:
            rows = np.concatenate([rows.copy() for _, rows in self.dense_chunks()])
            if self.means is not None:
                rows -= self.means
            return np.asarray(rows @ rows.T)
        from scipy.sparse import csr_array

        values, columns, starts = self.matrix.sparse
        sparse = csr_array((values.astype(np.float64), columns, starts), shape=(self.n, self.columns))
        products = (sparse @ sparse.T).toarray()
        if self.means is not None:
            along = sparse @ self.means - 0.5 * float(self.means @ self.means)
            products -= along[:, None] + along
        return np.asarray(products)

    # --- costs, in nanoseconds ------------------------------------------------------------

    def curve_cost(self, outputs: int) -> float:
        """Estimate the cost of `curve`."""
        return curve_cost(self.n, self.entries, outputs, is_sparse=self.matrix.sparse is not None)

    def gram_cost(self, columns: int | None = None, share: float = 1.0) -> float:
        """Estimate the cost of `gram`: of all columns, or of some, with a share of the entries."""
        columns = self.columns if columns is None else columns
        dense = self.dense_gram_cost(columns, share)
        return CALL + (dense if self.matrix.sparse is None else min(dense, self.sparse_gram_cost(columns, share)))

    def kernel_cost(self) -> float:
        """Estimate the cost of `kernel`."""
        dense = self._dense_kernel_cost()
        return CALL + (dense if self.matrix.sparse is None else min(dense, self._sparse_kernel_cost))

    def _dense_kernel_cost(self) -> float:
        copying = 0.0 if self.matrix.sparse is None else 2.0 * _CLEARED_ENTRY * self.n * self.columns
        return copying + self.n**2 * self.columns * _PAIR_OF_ROWS

    @cached_property
    def _sparse_kernel_cost(self) -> float:
        assert self.matrix.sparse is not None
        counts = np.bincount(self.matrix.sparse.columns, minlength=self.columns).astype(np.float64)
        return _SPARSE_KERNEL_CALLS * CALL + _SPARSE_KERNEL_ENTRY * float(counts @ counts) + 4.0 * self.n**2


def curve_cost(n: int, entries: int, outputs: int, *, is_sparse: bool = False) -> float:
    """Estimate the cost of `Rows.curve`."""
    if outputs > 1:
        entry, more, row = _SPARSE_SEVERAL if is_sparse else _SEVERAL
        return 2.0 * CALL + entries * (entry + outputs * more) + n * outputs * row
    if is_sparse:
        return CALL + entries * _SPARSE_CURVED_ENTRY + n * _SPARSE_CURVED_ROW
    return CALL + entries * _CURVED_ENTRY + n * _CURVED_ROW


def factor_cost(size: int) -> float:
    """Estimate the cost of a Cholesky factorisation."""
    return CALL + _FACTOR_ENTRY * float(size) ** 3


def rounding_of_kernel(kernel: Array, slopes: Array, l2: float) -> float:
    """Estimate the rounding of |A^T s|^2 / (2 l2) for slopes s, by the products K of all pairs of rows of A."""
    parts = np.sqrt(kernel.diagonal()) @ np.abs(slopes)
    return 0.5 * _OF_KERNEL * float(parts @ parts) / l2


def _some_columns(matrix: Matrix, columns: NDArray[np.int64], width: int) -> Matrix:
    """Copy some columns, of as many as there are."""
    if matrix.sparse is None:
        assert matrix.dense is not None
        return Matrix(np.ascontiguousarray(matrix.dense[:, columns]), None, matrix.bias)
    starts = np.empty_like(matrix.sparse.starts)
    new = np.full(width, -1, dtype=matrix.sparse.columns.dtype)
    new[columns] = np.arange(len(columns))
    values, places = np.empty_like(matrix.sparse.values), np.empty_like(matrix.sparse.columns)
    count = _keep(unsigned(matrix.sparse), new, values, places, starts)
    return Matrix(None, Sparse(values[:count], places[:count], starts), matrix.bias)


# --- kernels -------------------------------------------------------------------------------


@lean
def _scatter_columns(values, columns, starts, table):
    for i in range(table.shape[1]):
        for j in range(starts[i], starts[i + 1]):
            table[columns[j], i] = values[j]


@kernel
def _keep(sparse, new, values, columns, starts):
    """Copy the entries whose columns have a new index; return how many there are."""
    count = np.uint64(0)
    starts[0] = 0
    for i in range(len(starts) - 1):
        for j in range(sparse.starts[i], sparse.starts[i + 1]):
            column = new[sparse.columns[j]]
            values[count], columns[count] = sparse.values[j], max(column, 0)
            count += np.uint64(column >= 0)
        starts[i + 1] = count
    return count
