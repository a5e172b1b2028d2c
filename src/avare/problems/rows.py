"""Products with the rows of a data matrix, dense or sparse, as kernels take them.

A dense matrix, float32 or float64 and in any order, is read in place: four rows at a time are
copied to a small scratch in float64, so that each coefficient is loaded once for all four. A
sparse one is read row by row. Either way nothing of its size is ever copied.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.compilation import inlined, product

BLOCK = 4


class Sparse(NamedTuple):
    """A matrix in compressed sparse rows."""

    values: NDArray[Any]
    columns: NDArray[Any]
    starts: NDArray[Any]


class Rows(NamedTuple):
    """The examples: one of `dense` and `sparse` is None."""

    dense: NDArray[Any] | None
    sparse: Sparse | None
    bias: bool
    """Whether each row is followed by a 1."""


# --- kernels -------------------------------------------------------------------------------


@inlined
def load(rows, indices, first, count, coefficients, scratch, outputs, squares):
    """Up to four examples: their outputs, by each row of coefficients, and their squared lengths."""
    # As arguments: Numba leaves out a branch only where it is for an argument that is not None, and it is.
    _load(rows.dense, rows.sparse, rows.bias, indices, first, count, coefficients, scratch, outputs, squares)


@inlined
def add(rows, indices, first, count, factors, scratch, gradient):
    """Add to the gradient the examples that were loaded last, times their factors."""
    _add(rows.dense, rows.sparse, rows.bias, indices, first, count, factors, scratch, gradient)


@inlined
def _load(dense, sparse, bias, indices, first, count, coefficients, scratch, outputs, squares):
    extra = 1.0 if bias else 0.0
    if dense is not None:
        width = dense.shape[1]
        for r in range(count):
            _copy(dense, indices[first + r], scratch, r)
            if bias:
                scratch[r, width] = 1.0
        if count == BLOCK:
            _outputs_of_four(scratch, coefficients, outputs)
            _squares_of_four(scratch, squares)
        else:
            for r in range(count):
                _outputs_of_one(scratch[r], coefficients, outputs[r])
                squares[r] = _square(scratch[r])
    if sparse is not None:
        width = coefficients.shape[1] - 1
        for r in range(count):
            row = indices[first + r]
            square = extra
            for k in range(len(coefficients)):
                outputs[r, k] = coefficients[k, width] if bias else 0.0
            for j in range(sparse.starts[row], sparse.starts[row + 1]):
                entry, column = np.float64(sparse.values[j]), sparse.columns[j]
                square += entry * entry
                for k in range(len(coefficients)):
                    outputs[r, k] += entry * coefficients[k, column]
            squares[r] = square


@inlined
def _add(dense, sparse, bias, indices, first, count, factors, scratch, gradient):
    if dense is not None:
        if count == BLOCK:
            _add_four(scratch, factors, gradient)
        else:
            for r in range(count):
                _add_one(scratch[r], factors[r], gradient)
    if sparse is not None:
        width = gradient.shape[1] - 1
        for r in range(count):
            row = indices[first + r]
            for j in range(sparse.starts[row], sparse.starts[row + 1]):
                entry, column = np.float64(sparse.values[j]), sparse.columns[j]
                for k in range(len(gradient)):
                    gradient[k, column] += factors[r, k] * entry
            if bias:
                for k in range(len(gradient)):
                    gradient[k, width] += factors[r, k]


@product
def _copy(dense, row, scratch, r):
    for a in range(dense.shape[1]):
        scratch[r, a] = dense[row, a]


@product
def _outputs_of_four(scratch, coefficients, outputs):
    for k in range(len(coefficients)):
        z0, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
        for a in range(scratch.shape[1]):
            c = coefficients[k, a]
            z0 += c * scratch[0, a]
            z1 += c * scratch[1, a]
            z2 += c * scratch[2, a]
            z3 += c * scratch[3, a]
        outputs[0, k], outputs[1, k], outputs[2, k], outputs[3, k] = z0, z1, z2, z3


@product
def _squares_of_four(scratch, squares):
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for a in range(scratch.shape[1]):
        s0 += scratch[0, a] * scratch[0, a]
        s1 += scratch[1, a] * scratch[1, a]
        s2 += scratch[2, a] * scratch[2, a]
        s3 += scratch[3, a] * scratch[3, a]
    squares[0], squares[1], squares[2], squares[3] = s0, s1, s2, s3


@product
def _outputs_of_one(row, coefficients, outputs):
    for k in range(len(coefficients)):
        z = 0.0
        for a in range(len(row)):
            z += coefficients[k, a] * row[a]
        outputs[k] = z


@product
def _square(row):
    square = 0.0
    for a in range(len(row)):
        square += row[a] * row[a]
    return square


@product
def _add_four(scratch, factors, gradient):
    for k in range(len(gradient)):
        f0, f1, f2, f3 = factors[0, k], factors[1, k], factors[2, k], factors[3, k]
        for a in range(scratch.shape[1]):
            gradient[k, a] += f0 * scratch[0, a] + f1 * scratch[1, a] + f2 * scratch[2, a] + f3 * scratch[3, a]


@product
def _add_one(row, factors, gradient):
    for k in range(len(gradient)):
        f = factors[k]
        for a in range(len(row)):
            gradient[k, a] += f * row[a]
