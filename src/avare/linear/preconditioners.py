"""Preconditioners of Newton systems: the diagonal of the Hessian H, and Cholesky factors of H or of a sampled H.

A factor for a sample of the rows, drawn in proportion to how much each can change H, needs few products: with m sampled
rows per column, each leaves about the root of 1 / m of the error. Without a sample a factor is exact. With several
outputs, a factor is one block per output, or a factor for all pairs of them, if that is not too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare.linear.losses import curvature_of_pair
from avare.linear.objective import TINY, Objective, Point
from avare.problems.rows import Array

WIDEST = 8000
"""Size of a matrix that is factorised: half a gigabyte."""
_NO_CURVATURE = 1e-200  # of the largest: columns may have scales that differ by ten to the 100
_NOISE = 1e-13  # of a diagonal of 1: a smaller pivot is rounding
_MORE_NOISE = 1e3  # times what was added to a diagonal in vain


class NewtonPreconditioner(Protocol):
    """What solves H v = right, exactly or roughly."""

    exact: bool

    def solve(self, right: Array) -> Array:
        """Return v."""


class Jacobi:
    """One over the diagonal of H."""

    exact = False

    def __init__(self, total: Objective, point: Point) -> None:
        self.values = total.diagonal(point)

    def solve(self, right: Array) -> Array:
        """Return v, roughly."""
        return right / self.values


class CholeskyFactor:
    """A Cholesky factor, after scaling to a unit diagonal; if the matrix is singular, of one a little larger.

    Coordinates without curvature do not move. If ``drops``, neither do those that others determine: without a penalty,
    rounding would be all that moves them, and far.
    """

    def __init__(self, matrix: Array, *, exact: bool = True, drops: bool = False) -> None:
        from scipy.linalg.lapack import dpotrf, dpstrf

        self._scale, self._kept, added = np.empty(len(matrix)), None, 0.0
        self.exact = bool(_to_unit_diagonal(matrix, self._scale)) and exact
        self._lower, fault = dpotrf(matrix, lower=1)
        if drops and (fault or diagonal_of(self._lower).min(initial=1.0) ** 2 < _NOISE):
            factor, places, rank, fault = dpstrf(matrix, lower=1, tol=_NOISE)
            self._kept, self._lower, self.exact = places[:rank] - 1, np.asfortranarray(factor[:rank, :rank]), False
            return
        while fault and added < 1.0:
            added, self.exact = max(_MORE_NOISE * added, _NOISE), False
            tried = matrix.copy(order="F")
            diagonal_of(tried)[:] += added
            self._lower, fault = dpotrf(tried, lower=1, overwrite_a=1)

    def solve(self, right: Array) -> Array:
        """Return v; a table is one vector, or one for each of its rows if these have the size of the matrix."""
        from scipy.linalg.blas import dtrsv
        from scipy.linalg.lapack import dpotrs

        found = right.reshape(-1, len(self._scale)) * self._scale
        parts = found if self._kept is None else found[:, self._kept]
        if len(parts) == 1:  # in half of the time
            solved = dtrsv(self._lower, dtrsv(self._lower, parts[0], lower=1), lower=1, trans=1)[None]
        else:
            solved = dpotrs(self._lower, parts.T, lower=1)[0].T
        if self._kept is not None:
            found[:] = 0.0
            found[:, self._kept] = solved
            solved = found
        return (solved * self._scale).reshape(right.shape)


class BlockJacobi:
    """One factor per output, for what differs between the outputs.

    Softmax does not change if all outputs do by the same number: along the mean of the outputs, H is the penalty alone.
    One factor per output does not know this, and would make small steps there.
    """

    exact = False

    def __init__(self, factors: list[CholeskyFactor], l2: Array) -> None:
        self._factors, self._l2 = factors, l2

    def solve(self, right: Array) -> Array:
        """Return v, roughly."""
        mean = right.mean(axis=0)
        found = np.vstack([each.solve(row) for each, row in zip(self._factors, right - mean, strict=True)])
        along = np.divide(mean, self._l2, out=np.zeros_like(mean), where=self._l2 > 0.0)
        return found - found.mean(axis=0) + along


def by_columns(total: Objective, point: Point, share: float = 1.0) -> NewtonPreconditioner:
    """Factorise H, or its blocks if there are several outputs, of all rows or of a sample."""
    outputs, factors = total.problem.outputs, []
    sample = _draw(total, point, share) if share < 1.0 else None
    for k in range(outputs):
        matrix = _block(total, point, k, k, sample)
        diagonal_of(matrix)[:] += total.l2[k]
        factors.append(CholeskyFactor(matrix, exact=share == 1.0 and outputs == 1, drops=not total.l2.any()))
    return factors[0] if outputs == 1 else BlockJacobi(factors, total.l2[0])


def by_classes(total: Objective, point: Point, share: float = 1.0) -> NewtonPreconditioner:
    """Factorise H with all pairs of outputs, of all rows or of a sample."""
    sample = _draw(total, point, share) if share < 1.0 else None
    return CholeskyFactor(hessian_matrix(total, point, sample), exact=share == 1.0, drops=not total.l2.any())


def hessian_matrix(total: Objective, point: Point, sample: tuple[NDArray[np.int64], Array] | None = None) -> Array:
    """Return H for all coefficients, of all rows or of a sample; only its lower triangle counts."""
    outputs, width = total.l2.shape
    matrix = np.zeros((outputs * width, outputs * width), order="F")
    for k in range(outputs):
        for j in range(k + 1):
            part = _block(total, point, k, j, sample)
            sign = 1.0 if k == j else -1.0  # second derivatives by two outputs are not positive
            _insert(part, sign, matrix[k * width : (k + 1) * width, j * width : (j + 1) * width])
    diagonal_of(matrix)[:] += total.l2.ravel()
    for column, curvature in enumerate(total.shift_curvature(point)):
        matrix[column::width, column::width] += curvature
    return matrix


def diagonal_of(matrix: Array) -> Array:
    """Return the diagonal of a matrix, on the same memory."""
    return np.einsum("ii->i", matrix)


def _block(total: Objective, point: Point, k: int, j: int, sample: tuple[NDArray[np.int64], Array] | None) -> Array:
    """Return the Hessian of the losses by the coefficients of two outputs; by different ones, minus this."""
    if sample is None:
        return total.rows.gram(curvature_of_pair(total.problem, point.terms, k, j))
    chosen, weights = sample
    return total.rows.sampled_gram(weights * curvature_of_pair(total.problem, point.terms, k, j, chosen), chosen)


def _draw(total: Objective, point: Point, share: float) -> tuple[NDArray[np.int64], Array]:
    """Draw rows in proportion to how much each can change H, with their weights.

    Half of the draws follow the curvature, half the curvature times the squared length of the row in the metric of the
    diagonal: a bound on the leverage of the row. The only row of a rare column is then not missed.
    """
    curvatures = total.problem.mean_curvatures(point.terms)
    scores = curvatures * total.lengths(point)
    scores = scores / max(float(scores.sum()), TINY) + curvatures / max(float(curvatures.sum()), TINY)
    scores = scores if scores.any() else np.ones_like(scores)
    indices = systematic(scores, int(share * total.rows.n), np.random.default_rng(0))
    return indices, 1.0 / (len(indices) * scores[indices] / scores.sum())


def systematic(scores: Array, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw indices in proportion to scores, evenly spread (systematic sampling, Madow 1949)."""
    indices = np.empty(size, dtype=np.int64)
    _pick(scores, (np.arange(size) + generator.random(size)) * (float(scores.sum()) / size), indices)
    return indices


Make = Callable[[Objective, Point], NewtonPreconditioner]


# --- kernels -------------------------------------------------------------------------------


@lean
def _pick(scores, places, indices):
    """Set the index at each place of the sum of the scores."""
    k, end = 0, 0.0
    for i in range(len(scores)):
        if scores[i] > 0.0:
            end += scores[i]
            while k < len(places) and places[k] < end:
                indices[k] = i
                k += 1
            last = i
    indices[k:] = last


@lean
def _insert(lower, sign, block):
    """Set a block of a matrix to a symmetric one, of which the lower triangle is given."""
    for j in range(len(lower)):
        for i in range(j, len(lower)):
            block[i, j] = sign * lower[i, j]
            block[j, i] = sign * lower[i, j]


@lean
def _to_unit_diagonal(matrix, scale):
    """Scale the lower triangle of a matrix so that its diagonal is 1; return whether no number there is 0."""
    largest, curved = 0.0, True
    for j in range(len(scale)):
        largest = max(largest, matrix[j, j])
    for j in range(len(scale)):
        is_curved = matrix[j, j] > _NO_CURVATURE * largest
        scale[j] = 1.0 / math.sqrt(matrix[j, j]) if is_curved else 0.0
        curved = curved and is_curved
    for j in range(len(scale)):
        for i in range(j, len(scale)):
            matrix[i, j] *= scale[i] * scale[j]
        matrix[j, j] = 1.0
    return curved
