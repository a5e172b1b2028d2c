"""The data matrix of a linear model, dense or sparse, and products with its rows.

A dense matrix, float32 or float64 and in any order, is read in place. Four rows at a time are copied to a small
scratch array in float64, so that each coefficient is loaded once for all four, and processed in tiles of columns. A
sparse matrix is read row by row. Neither is ever copied as a whole; only indices of 64 bits are, if 32 are enough.
"""

import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel, product

BLOCK = 4
_MOST = 1e150  # so that squares do not overflow
_PART = 1 << 26  # bytes of a file that is mapped into memory, after which they are released
USABLE = f"finite, and at most {_MOST:g} in size"
_TILE = 512  # columns at a time, so that their part of the four rows stays in the nearest cache


class Sparse(NamedTuple):
    """A matrix in compressed sparse rows."""

    values: NDArray[Any]
    columns: NDArray[Any]
    starts: NDArray[Any]


def unsigned(sparse: Sparse) -> Sparse:
    """Return the same matrix for kernels: unsigned indices take half of the time, as none counts from the end."""
    columns, starts = (each.view(f"u{each.itemsize}") for each in sparse[1:])
    return Sparse(sparse.values, columns, starts)


class Matrix(NamedTuple):
    """One row per example; one of `dense` and `sparse` is None."""

    dense: NDArray[Any] | None
    sparse: Sparse | None
    bias: bool
    """Whether a 1 follows each row."""


def read_matrix(X: Any, bias: bool) -> tuple[Matrix, int, int, float]:
    """Check X without copying it.

    Return the matrix, its number of rows, of columns with the bias, and the sum of the squares of its entries.
    """
    dense = sparse = None
    if hasattr(X, "dtypes") and {getattr(kind, "kind", "O") for kind in X.dtypes} <= set("biuf"):
        X = X.to_numpy(np.float64)  # a data frame, also of true and false
    if hasattr(X, "tocsr"):
        sparse, square = _read_sparse(X)
    else:
        dense, square = _read_dense(X)
    n, width = X.shape if dense is None else dense.shape
    if n == 0 or width == 0:
        raise ValueError(f"X has shape ({n}, {width}): must not be empty")
    return Matrix(dense, sparse, bias), n, width + int(bias), square + n * int(bias)


def _read_sparse(X: Any) -> tuple[Sparse, float]:
    matrix = X.tocsr()
    if len(matrix.shape) != 2:
        raise ValueError(f"X has shape {matrix.shape}: must have 2 dimensions")
    for name, places in (("indices", matrix.indices), ("indptr", matrix.indptr)):
        if places.dtype.kind not in "iu":
            raise TypeError(f"X is no CSR matrix: {name} has dtype {places.dtype}: must hold integers")
    sizes = (len(matrix.data), len(matrix.indptr))
    starts = matrix.indptr.view(f"u{matrix.indptr.itemsize}")
    if sizes != (len(matrix.indices), matrix.shape[0] + 1) or not _is_sound(
        matrix.indices, starts, np.full(matrix.shape[1], -1)
    ):
        matrix = matrix.copy()  # repairs do not change the caller's
        try:
            matrix.check_format(full_check=True)
        except ValueError as error:
            raise ValueError(f"X is no CSR matrix: {error}") from None
        matrix.sum_duplicates()
    values = _floating(matrix.data)
    square, fault = _examine(values.reshape(1, -1))
    if fault >= 0:
        row = int(np.searchsorted(matrix.indptr, fault, side="right")) - 1
        raise ValueError(f"X[{row}, {matrix.indices[fault]}] = {values[fault]}: must be {USABLE}")
    kind = np.int32 if max(len(values), matrix.shape[1]) < 1 << 31 else np.int64
    columns, starts = (places.astype(kind, copy=False) for places in (matrix.indices, matrix.indptr))
    return Sparse(writable(values), writable(columns), writable(starts)), square


def _read_dense(X: Any) -> tuple[NDArray[Any], float]:
    array = _floating(validation.as_array("X", X))
    if array.ndim != 2:
        raise ValueError(f"X has shape {array.shape}: must have 2 dimensions")
    total = 0.0
    for part in parts_of(array):
        square, fault = _examine(array[part])
        total += square
        if fault >= 0:
            row, column = part.start + fault // array.shape[1], fault % array.shape[1]
            raise ValueError(f"X[{row}, {column}] = {array[row, column]}: must be {USABLE}")
    return writable(array), total


def parts_of(array: NDArray[Any], rows: int | None = None) -> Iterator[slice]:
    """Yield parts of the rows; what was read of a file that is mapped into memory is released now and then.

    Without it, all of the file would count as memory of the process.
    """
    size, mapping, seen = array.shape[1] * array.itemsize, mapping_of(array), 0
    step = max(1, _PART // max(size, 1)) if rows is None else rows
    for first in range(0, len(array), step):
        part = slice(first, min(first + step, len(array)))
        yield part
        seen += (part.stop - part.start) * size
        if mapping is not None and seen >= _PART:
            mapping.madvise(mmap.MADV_DONTNEED)
            seen = 0


def mapping_of(array: Any) -> mmap.mmap | None:
    """Return the file that an array is mapped from, if it is; None if changes stay in memory, as with mode "c"."""
    while isinstance(array, np.ndarray | _Writable):
        if getattr(array, "mode", "") == "c":
            return None
        array = array.base
    return array if isinstance(array, mmap.mmap) and hasattr(array, "madvise") else None


def check_size(name: str, values: NDArray[np.float64]) -> None:
    """Raise an error if the square of a number would overflow."""
    fault = _examine(values.reshape(1, -1))[1]
    if fault >= 0:
        raise ValueError(f"{name}[{fault}] = {values[fault]}: must be {USABLE}")


def _examine(array: NDArray[Any]) -> tuple[float, int]:
    """Return the sum of squares, and the place of the first number that is not usable, or -1."""
    square = float(_sum_of_squares(array))
    return square, -1 if square <= _MOST**2 else int(_first_unusable(array))


def some_rows(matrix: Matrix, indices: NDArray[np.int64]) -> Matrix:
    """Copy some rows."""
    dense = None if matrix.dense is None else matrix.dense[indices]
    sparse = matrix.sparse
    if sparse is not None:
        counts = np.diff(sparse.starts)[indices]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(sparse.starts.dtype)
        entries = np.arange(starts[-1]) + np.repeat(sparse.starts[indices] - starts[:-1], counts)
        sparse = Sparse(sparse.values[entries], sparse.columns[entries], starts)
    return Matrix(dense, sparse, matrix.bias)


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array on the same memory that may be written to.

    Kernels never write to data. But Numba would compile all of them again for an array that is read-only.
    """
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    def __init__(self, array: NDArray[Any]) -> None:
        self.base = array  # keeps the memory
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _floating(array: NDArray[Any]) -> NDArray[Any]:
    """Return float32 and float64 unchanged, other real numbers as float64."""
    return array if array.dtype in (np.float32, np.float64) else validation.real("X", array)


# --- kernels -------------------------------------------------------------------------------


@product
def _sum_of_squares(array):
    total = 0.0
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            total += np.float64(array[i, j]) * np.float64(array[i, j])
    return total


@kernel
def _first_unusable(array):
    for i in range(array.shape[0]):
        faults = 0
        for j in range(array.shape[1]):
            faults += 0 if abs(np.float64(array[i, j])) <= _MOST else 1
        for j in range(array.shape[1] if faults > 0 else 0):
            if not abs(np.float64(array[i, j])) <= _MOST:
                return i * array.shape[1] + j
    return -1


@kernel
def _is_sound(columns, starts, seen):
    """Return whether each row has its own entries, in columns that exist and differ: kernels do not check that.

    If columns are in order, that is known without a look at those seen.
    """
    if starts[0] != 0 or starts[-1] != len(columns):
        return False
    for i in range(len(starts) - 1):
        if starts[i] > starts[i + 1]:
            return False
        last, in_order = -1, True
        for j in range(starts[i], starts[i + 1]):
            in_order &= last < columns[j]
            last = columns[j]
        if in_order and last < len(seen):
            continue
        for j in range(starts[i], starts[i + 1]):
            if not 0 <= columns[j] < len(seen) or seen[columns[j]] == i:
                return False
            seen[columns[j]] = i
    return True


@inlined
def load(matrix, indices, first, count, coefficients, scratch, outputs, squares):
    """Set the outputs of up to four examples, one for each row of coefficients, and their squared lengths."""
    # Numba drops a branch at compile time only if it tests one argument for None: hence these as arguments.
    _load(matrix.dense, matrix.sparse, matrix.bias, indices, first, count, coefficients, scratch, outputs, squares)


@inlined
def add(matrix, indices, first, count, factors, scratch, gradient):
    """Add to the gradient the examples that were loaded last, times their factors."""
    _add(matrix.dense, matrix.sparse, matrix.bias, indices, first, count, factors, scratch, gradient)


@inlined
def _load(dense, sparse, bias, indices, first, count, coefficients, scratch, outputs, squares):
    if dense is not None:
        for r in range(count):
            _copy(dense, indices[first + r], scratch, r)
            if bias:
                scratch[r, dense.shape[1]] = 1.0
        if count == BLOCK:
            _outputs_of_four(scratch, coefficients, outputs)
            _squares_of_four(scratch, squares)
        else:
            for r in range(count):
                _outputs_of_one(scratch[r], coefficients, outputs[r])
                squares[r] = _square(scratch[r])
    if sparse is not None:
        for r in range(count):
            squares[r] = _outputs_of_row(sparse, indices[first + r], bias, coefficients, outputs[r])


@inlined
def _outputs_of_row(sparse, row, bias, coefficients, outputs):
    """Set the outputs of one row; return its squared length."""
    square = 1.0 if bias else 0.0
    for k in range(len(coefficients)):
        outputs[k] = coefficients[k, coefficients.shape[1] - 1] if bias else 0.0
    for j in range(sparse.starts[row], sparse.starts[row + 1]):
        entry, column = np.float64(sparse.values[j]), sparse.columns[j]
        square += entry * entry
        for k in range(len(coefficients)):
            outputs[k] += entry * coefficients[k, column]
    return square


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
    outputs[:BLOCK] = 0.0
    for start in range(0, scratch.shape[1], _TILE):
        tile = slice(start, min(start + _TILE, scratch.shape[1]))
        r0, r1, r2, r3 = scratch[0, tile], scratch[1, tile], scratch[2, tile], scratch[3, tile]
        for k in range(len(coefficients)):
            _add_output(r0, r1, r2, r3, coefficients[k, tile], outputs, k)


@product
def _add_output(r0, r1, r2, r3, c, outputs, k):
    z0, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
    for a in range(len(c)):
        z0 += c[a] * r0[a]
        z1 += c[a] * r1[a]
        z2 += c[a] * r2[a]
        z3 += c[a] * r3[a]
    for r, z in ((0, z0), (1, z1), (2, z2), (3, z3)):
        outputs[r, k] += z


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
    for start in range(0, scratch.shape[1], _TILE):
        tile = slice(start, min(start + _TILE, scratch.shape[1]))
        r0, r1, r2, r3 = scratch[0, tile], scratch[1, tile], scratch[2, tile], scratch[3, tile]
        for k in range(len(gradient)):
            _add_rows(r0, r1, r2, r3, factors[:BLOCK, k], gradient[k, tile])


@product
def _add_rows(r0, r1, r2, r3, factors, total):
    f0, f1, f2, f3 = factors[0], factors[1], factors[2], factors[3]
    for a in range(len(total)):
        total[a] += f0 * r0[a] + f1 * r1[a] + f2 * r2[a] + f3 * r3[a]


@product
def _add_one(row, factors, gradient):
    for k in range(len(gradient)):
        f = factors[k]
        for a in range(len(row)):
            gradient[k, a] += f * row[a]
