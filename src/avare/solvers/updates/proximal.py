"""Proximal steps of SAGA.

Each coefficient moves by its own size alpha D_j, is cut by alpha D_j l1 and divided by 1 + alpha D_j l2. If columns are
centred implicitly, the steps are those for X - mean, and the bias, last, follows.
"""

from typing import Any, NamedTuple

from avare._compilation import lean, product
from avare.problems import Linear
from avare.problems.base import Vector
from avare.solvers.kernels import APPLY, SAVED


class Proximal(NamedTuple):
    """One number per column: what a step of the present size does."""

    size: Vector
    """alpha D_j."""
    cut: Vector
    """alpha D_j l1."""
    shrink: Vector
    """1 / (1 + alpha D_j l2)."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise 0."""
    step_size: float


SAVED[Proximal] = ()


def proximal(problem: Linear, preconditioner: Any, step_size: float) -> Proximal:
    """Return the state for steps of one size, with a `Preconditioner`."""
    sizes, width = step_size * preconditioner.inverse, problem.width
    cut, shrink = sizes * problem.penalty.l1[:width], 1.0 / (1.0 + sizes * problem.penalty.l2[:width])
    return Proximal(sizes, cut, shrink, preconditioner.shift, step_size)


# --- kernels -------------------------------------------------------------------------------


@APPLY.version(Proximal)
@lean
def _apply(rates, work, size, noise, done, at):
    x, gradient = work.coefficients, work.gradient
    width = x.shape[1]
    for k in range(len(x)):
        along = gradient[k * width : (k + 1) * width]
        moved = _move(x[k], along, rates.shift, along[width - 1], rates.size, rates.cut, rates.shrink)
        x[k, width - 1] -= moved
    return True


@product
def _move(x, gradient, shift, along, size, cut, shrink):
    """Move as if the columns were centred; return what the move adds to each output."""
    moved = 0.0
    for j in range(len(x)):
        there = x[j] - size[j] * (gradient[j] - shift[j] * along)
        there = (there - min(max(there, -cut[j]), cut[j])) * shrink[j]
        moved += shift[j] * (there - x[j])
        x[j] = there
    return moved
