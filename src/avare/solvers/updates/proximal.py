"""Proximal and preconditioned steps of SAGA, for a dense X.

A proximal step moves each coefficient by its own size alpha D_j, cuts it by alpha D_j l1 and divides it by
1 + alpha D_j l2. A preconditioned step moves x along the gradient, the l2 term included, times a matrix M: the inverse
of the second derivative, roughly, or D - B^T B. If columns are centred implicitly, the steps are those for X - mean,
and the bias, last, follows.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from avare._compilation import inlined, lean, product
from avare.problems.base import Vector
from avare.solvers.kernels import APPLY

if TYPE_CHECKING:
    from avare.solvers.linear.preconditioner import Preconditioner


class Proximal(NamedTuple):
    """One number per column: what a step of the present size does."""

    size: Vector
    """alpha D_j."""
    cut: Vector
    """alpha D_j l1."""
    shrink: Vector
    """1 / (1 + alpha D_j l2)."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise empty."""


class Preconditioned(NamedTuple):
    """The preconditioner, and the size of a step."""

    matrix: Vector
    """M, or empty."""
    basis: Vector
    """B of M = D - B^T B, or empty."""
    inverse: Vector
    """D."""
    shift: Vector
    size: Vector
    """alpha, one number."""
    direction: Vector
    """What a step overwrites."""


def proximal(preconditioner: "Preconditioner", size: float, l1: Vector, l2: Vector) -> Proximal | Preconditioned:
    """Return the state for steps of one size."""
    own = preconditioner
    if len(own.matrix) or len(own.basis):
        return Preconditioned(
            own.matrix, own.basis, own.inverse, own.shift, np.array([size]), np.empty(len(own.inverse))
        )
    sizes = size * own.inverse
    return Proximal(sizes, sizes * l1, 1.0 / (1.0 + sizes * l2), own.shift)


# --- kernels -------------------------------------------------------------------------------


@APPLY.version(Proximal)
@lean
def _apply_proximal(rates, work, size, noise, done, at):
    x, gradient = work.coefficients, work.gradient
    width = x.shape[1]
    for k in range(len(x)):
        along = gradient[k * width : (k + 1) * width]
        if len(rates.shift) > 0:
            moved = _prox_centred(x[k], along, rates.shift, along[width - 1], rates.size, rates.cut, rates.shrink)
            x[k, width - 1] -= rates.size[width - 1] * along[width - 1] + moved
        else:
            _prox(x[k], along, rates.size, rates.cut, rates.shrink)
    return True


@product
def _prox(x, gradient, size, cut, shrink):
    for j in range(len(x)):
        there = x[j] - size[j] * gradient[j]
        x[j] = (there - min(max(there, -cut[j]), cut[j])) * shrink[j]


@product
def _prox_centred(x, gradient, shift, along, size, cut, shrink):
    """Move all but the bias, last, as if the columns were centred; return what the move adds to each output."""
    moved = 0.0
    for j in range(len(x) - 1):
        there = x[j] - size[j] * (gradient[j] - shift[j] * along)
        there = (there - min(max(there, -cut[j]), cut[j])) * shrink[j]
        moved += shift[j] * (there - x[j])
        x[j] = there
    return moved


@APPLY.version(Preconditioned)
@lean
def _apply_preconditioned(state, work, size, noise, done, at):
    width = work.coefficients.shape[1]
    for k in range(len(work.coefficients)):
        part = slice(k * width, (k + 1) * width)
        _descend(state, work.coefficients[k], work.gradient[part], work.l2[part])
    return True


@inlined
def _descend(state, x, gradient, l2):
    last, direction, size, moved = len(x) - 1, state.direction, state.size[0], 0.0
    along = gradient[last]
    for j in range(len(x)):
        gradient[j] += l2[j] * x[j]
    if len(state.shift) > 0:
        for j in range(last):
            gradient[j] -= state.shift[j] * along
    if len(state.basis) > 0:
        _flatten(state.basis, state.inverse, gradient, direction)
    else:
        _multiply(state.matrix, gradient, direction)
    for j in range(len(x)):
        x[j] -= size * direction[j]
    if len(state.shift) > 0:
        for j in range(last):
            moved += state.shift[j] * direction[j]
        x[last] += size * moved


@product
def _multiply(matrix, vector, result):
    for i in range(len(result)):
        result[i] = 0.0
    for j in range(len(vector)):  # the matrix is symmetric: columns are rows, and the inner loop adds whole rows
        factor = vector[j]
        for i in range(len(result)):
            result[i] += factor * matrix[j, i]


@product
def _flatten(basis, inverse, vector, result):
    for j in range(len(result)):
        result[j] = inverse[j] * vector[j]
    for k in range(len(basis)):
        along = 0.0
        for j in range(len(vector)):
            along += basis[k, j] * vector[j]
        for j in range(len(result)):
            result[j] -= along * basis[k, j]
