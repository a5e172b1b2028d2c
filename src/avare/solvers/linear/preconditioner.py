"""How the steps of SAGA scale with the columns of X, so that data need not be scaled."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.problems.base import Vector
from avare.problems.linear import Linear

_WIDEST = 256  # columns, up to which the preconditioner is a whole matrix
_ROWS_PER_COLUMN = 40  # to estimate it
_CHUNK, _SPARSE_CHUNK = 4096, 1 << 16  # rows to copy at a time
_ROWS, _ROUNDS = 1024, 10  # of the power method: a rough estimate is enough
_RANK = 128  # directions of large curvature that are flattened if there are more columns
_BASIS_ROWS, _BASIS_ROUNDS = 4096, 3  # to find them
_ENTRIES = 1 << 24  # to copy at a time
_FLATTEST = 1e-6  # of the largest curvature: the least to which others are flattened
_FLAT = 1e-12  # of the largest curvature: columns below it do not move faster
_LEAST_BEND = 0.01  # of the largest curvature: the iterate still moves
_SHARE = 0.2  # of the batch over the total smoothness, and ...
_LARGEST = 0.1  # ... of one over the smoothness of the sum: good on several problems, with and without weights
_MOST = 0.5  # of one over the smoothness of the sum: steps may grow up to it
_NOTHING = np.empty(0)


class Preconditioner(NamedTuple):
    """What steps need to know of the data."""

    inverse: Vector
    """D_j of each column, one over the curvature of f along it."""
    matrix: Vector
    """The inverse of the whole matrix of curvatures, if X is dense and has few columns; otherwise empty."""
    basis: Vector
    """With many columns of a dense X: B of D - B^T B, which is D flattened along directions of large curvature."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise empty."""
    lengths: NDArray[np.float32]
    """The length of each row in the preconditioner: sqrt(a_i . M a_i), with M the matrix, D - B^T B, or D."""
    shares: NDArray[np.float32]
    """With a basis, the smoothness constant of each row as a share of the sum of all; otherwise empty."""


def bends_of(problem: Linear, curvatures: Vector | None = None) -> Vector:
    """The curvature of each example: the largest, or twice that given, and not below a hundredth of the largest.

    With several outputs, the sum of their curvatures bounds that along any direction.
    """
    largest = np.full(problem.n, problem.curvature)
    if len(problem.model.sample_weight):
        largest *= problem.model.sample_weight
    if curvatures is None:
        return largest
    return np.minimum(largest, 2.0 * problem.outputs * curvatures + _LEAST_BEND * largest)


def is_narrow(problem: Linear) -> bool:
    """Whether a whole matrix of curvatures serves the problem: if X has few columns, and without an l1 term."""
    return problem.width <= _WIDEST and problem.l1 == 0.0


def preconditioner_of(problem: Linear, bends: Vector) -> Preconditioner:
    """Measure the columns of X, with the curvature of each example. O(size of X)."""
    model, width = problem.model, problem.width
    weight = float(bends.sum())
    free = model.matrix.bias and problem.penalty.l2[width - 1] == problem.penalty.l1[width - 1] == 0.0
    shift = np.zeros(width)
    if model.matrix.sparse is None and free and weight > 0.0:
        for part in _parts(problem):
            shift += bends[part] @ _rows(problem, part, _NOTHING)
        shift /= weight
        shift[-1] = 0.0  # the bias
    curvature = squared_columns(problem, bends, shift) + problem.penalty.l2[:width]
    inverse = 1.0 / np.maximum(curvature, max(_FLAT * float(curvature.max()), np.finfo(float).tiny))
    centred = shift if model.matrix.sparse is None and free else np.empty(0)
    none = np.empty((0, 0))
    if model.matrix.dense is not None and is_narrow(problem):
        factor = _factor_of(problem, bends, centred, np.sqrt(inverse))
        lengths = np.sqrt(_squares_along(problem, centred, factor)).astype(np.float32)
        return Preconditioner(inverse, factor @ factor.T, none, centred, lengths, lengths[:0])
    lengths = lengths_of(problem, inverse, shift)
    wide = model.matrix.dense is not None and problem.l1 == 0.0
    basis = _basis_of(problem, bends, centred, np.sqrt(inverse), lengths) if wide else none
    if not len(basis):
        return Preconditioner(inverse, none, none, centred, lengths, lengths[:0])
    squares = lengths.astype(np.float64) ** 2
    left = np.maximum(squares - _squares_along(problem, centred, basis.T), _FLATTEST * squares)  # in spite of rounding
    shares = bends * left / float(bends @ left)
    return Preconditioner(inverse, none, basis, centred, np.sqrt(left).astype(np.float32), shares.astype(np.float32))


def _squares_along(problem: Linear, shift: Vector, directions: Vector) -> Vector:
    """Return the squared length of each row after a product with a matrix."""
    found = np.empty(problem.n)
    for part in _parts(problem):
        turned = _rows(problem, part, shift) @ directions
        found[part] = np.einsum("ij,ij->i", turned, turned)  # `norm` would take several times as long
    return found


def squared_columns(problem: Linear, weights: Vector, shift: Vector = _NOTHING) -> Vector:
    """Add up the squared entries of each column, or their distances from a shift, weighted. O(size of X)."""
    total = np.zeros(problem.width)
    for part in _parts(problem):
        rows, factors = _rows(problem, part, shift), weights[part]
        dense = isinstance(rows, np.ndarray)
        total += np.einsum("i,ij,ij->j", factors, rows, rows) if dense else rows.power(2).T @ factors
    return total


def lengths_of(problem: Linear, inverse: Vector, shift: Vector = _NOTHING) -> NDArray[np.float32]:
    """Return the length of each row, sqrt(sum_j D_j a_ij^2), or of its distance from a shift. O(size of X)."""
    lengths = np.empty(problem.n, dtype=np.float32)
    for part in _parts(problem):
        rows = _rows(problem, part, shift)
        dense = isinstance(rows, np.ndarray)
        lengths[part] = np.sqrt(np.einsum("ij,ij,j->i", rows, rows, inverse) if dense else rows.power(2) @ inverse)
    return lengths


def _factor_of(problem: Linear, bends: Vector, shift: Vector, root: Vector) -> Vector:
    """Return F with F F^T about the inverse of sum_i bend_i a_i a_i^T + l2, from all rows, or from some."""
    width = problem.width
    rows, weights = np.arange(problem.n), bends
    if problem.n > 2 * _ROWS_PER_COLUMN * width and bends.any():
        size = _ROWS_PER_COLUMN * width
        # In proportion to their squared lengths, so that each column gets its share: some may have few entries.
        scores = bends * lengths_of(problem, root**2, shift).astype(np.float64) ** 2
        rows = np.random.default_rng(0).choice(problem.n, size, p=scores / scores.sum())
        weights = bends[rows] * scores.sum() / (size * scores[rows])
    total = np.diag(problem.penalty.l2[:width] * root**2)
    for first in range(0, len(rows), _CHUNK):
        part = rows[first : first + _CHUNK]
        scaled = _rows(problem, part, shift) * root * np.sqrt(weights[first : first + _CHUNK, None])
        total += scaled.T @ scaled
    values, vectors = np.linalg.eigh(total)
    return np.asarray(root[:, None] * vectors / np.sqrt(np.maximum(values, _FLAT * max(float(values[-1]), 1e-300))))


def _basis_of(problem: Linear, bends: Vector, shift: Vector, root: Vector, lengths: NDArray[np.float32]) -> Vector:
    """Return B with D - B^T B flat: along the directions of largest curvature it has the curvature of the next one.

    The directions are those of some rows, drawn in proportion to their smoothness, by the power method.
    """
    scores, generator = bends * lengths.astype(np.float64) ** 2, np.random.default_rng(1)
    rank, total = min(_RANK, problem.n // 4, problem.width // 4), float(scores.sum())
    if rank == 0 or total == 0.0:
        return np.empty((0, 0))
    count = min(problem.n, max(4 * rank, min(_BASIS_ROWS, _ENTRIES // problem.width)))
    rows = generator.choice(problem.n, count, p=scores / total)
    scaled = _rows(problem, rows, shift) * root
    scaled *= np.sqrt(bends[rows] * total / (count * scores[rows]))[:, None]
    found = generator.standard_normal((problem.width, rank + rank // 4 + 1))
    for _ in range(_BASIS_ROUNDS):
        found = np.linalg.qr(scaled.T @ (scaled @ found))[0]
    turned = scaled @ found
    values, vectors = np.linalg.eigh(turned.T @ turned)
    # Along all other directions there is at least the curvature of the penalty.
    level = max(values[-rank - 1], float((problem.penalty.l2[: problem.width] * root**2).max()), _FLATTEST * values[-1])
    above = values > level
    return np.ascontiguousarray((found @ vectors[:, above] * np.sqrt(1.0 - level / values[above])).T * root)


def _parts(problem: Linear) -> Iterator[slice]:
    """Yield the rows in parts that are small enough to copy."""
    dense = problem.model.matrix.sparse is None
    count = max(1, min(_CHUNK, _ENTRIES // problem.width)) if dense else _SPARSE_CHUNK
    return (slice(first, min(first + count, problem.n)) for first in range(0, problem.n, count))


def _rows(problem: Linear, part: Any, shift: Vector) -> Any:
    """Copy some rows with the bias to float64: minus a shift if X is dense, as a matrix of SciPy if it is sparse."""
    matrix = problem.model.matrix
    columns = problem.width - int(matrix.bias)
    if matrix.dense is not None:
        found = np.ones((len(matrix.dense[part]), problem.width))
        found[:, :columns] = matrix.dense[part]
        if len(shift):
            found[:, :columns] -= shift[:columns]
        return found
    assert matrix.sparse is not None
    from scipy import sparse

    values, places, starts = matrix.sparse
    rows = sparse.csr_matrix((values, places, starts), shape=(problem.n, columns))[part].astype(np.float64)
    return sparse.hstack([rows, np.ones((rows.shape[0], 1))], format="csr") if matrix.bias else rows


def length_of(preconditioner: Preconditioner, problem: Linear, x: Vector, gradient: Vector) -> float:
    """Return the length of a gradient of the losses at x in the preconditioner, with the penalty's added."""
    whole = problem.penalty.subgradient(x, gradient).reshape(problem.outputs, problem.width)
    if len(preconditioner.shift):
        whole = whole - whole[:, -1:] * preconditioner.shift
    if len(preconditioner.matrix):
        square = float((whole * (whole @ preconditioner.matrix)).sum())
    else:
        square = float((whole**2 @ preconditioner.inverse).sum())
        if len(preconditioner.basis):
            square -= float(((whole @ preconditioner.basis.T) ** 2).sum())
    return math.sqrt(max(square, 0.0))


def step_size_of(
    problem: Linear, preconditioner: Preconditioner, bends: Vector, batch_size: int
) -> tuple[float, float]:
    """Choose a step size, 1 / (5 S / m + 10 L), and the largest that it may grow to, 1 / 2L.

    S is the sum of the smoothness constants and L the constant of the sum, both in the preconditioner. The power method
    on some rows estimates L. With a basis L is small, and noise is a limit too: steps grow to 1 / (S / m + 2L).
    """
    constants = bends * preconditioner.lengths.astype(np.float64) ** 2
    total = float(constants.sum())
    if total == 0.0:
        return 1.0, 1.0
    largest = 1.0 if len(preconditioner.matrix) else _largest_of(problem, preconditioner, bends, constants)
    size = 1.0 / (total / (_SHARE * batch_size) + largest / _LARGEST)
    return size, size * _MOST / _LARGEST if len(preconditioner.basis) else _MOST / max(largest, 1e-300)


def _largest_of(problem: Linear, preconditioner: Preconditioner, bends: Vector, constants: Vector) -> float:
    """Estimate the smoothness constant of the sum, unless the preconditioner is a whole matrix: then it is near 1."""
    total = float(constants.sum())
    generator = np.random.default_rng(0)
    rows = generator.choice(problem.n, min(_ROWS, 4 * problem.n), p=constants / total)
    weights = bends[rows] * total / (len(rows) * constants[rows])
    some = _rows(problem, rows, preconditioner.shift)
    root = np.sqrt(preconditioner.inverse)
    direction, largest = generator.standard_normal(problem.width), 0.0
    flattened = preconditioner.basis / root if len(preconditioner.basis) else preconditioner.basis
    for _ in range(_ROUNDS):
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        towards = root * direction
        result = some.T @ (weights * (some @ towards))
        if len(preconditioner.basis):
            result += problem.penalty.l2[: problem.width] * towards  # no part of a proximal step
        direction = root * result
        if len(preconditioner.basis):
            direction -= flattened.T @ (flattened @ direction)
        largest = float(np.linalg.norm(direction))
    return largest
