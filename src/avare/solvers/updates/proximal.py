"""Proximal steps of SAGA, for a dense X.

Each coefficient moves by its own size alpha D_j, is cut by alpha D_j l1 and divided by 1 + alpha D_j l2. If columns are
centred implicitly, the steps are those for X - mean, and the bias, last, follows.
"""

from typing import TYPE_CHECKING, NamedTuple

from avare._compilation import lean, product
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


def proximal(preconditioner: "Preconditioner", size: float, l1: Vector, l2: Vector) -> Proximal:
    """Return the state for steps of one size."""
    sizes = size * preconditioner.inverse
    return Proximal(sizes, sizes * l1, 1.0 / (1.0 + sizes * l2), preconditioner.shift)


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
