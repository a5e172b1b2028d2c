"""How a chain estimates the gradient from a batch: plainly, or by differences from gradients that are known.

With a control variate the estimate is

    G + sum_j w_j (g_j(x) - c_j),

where c_j is a gradient of example j that is known already, and G the sum of all of them. It is unbiased for any table
of c, and its noise falls with the differences. Control "mode" fixes c to the gradients at a mode; control "saga" takes
the last gradient of each example. For a linear model the gradient of an example is a number times its row, and the
table holds the numbers.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.problems.linear import add_gradients
from avare.problems.losses import slope
from avare.problems.matrix import BLOCK, add, load
from avare.samplers import Sampler
from avare.solvers.saga_kernels import slopes_into
from avare.structures.evenly import enter, hash_table

CONTROLS = ("none", "mode", "saga")


class Table(NamedTuple):
    """The control variate of a linear model, as kernels take it; a row of `held` and `sums` per output."""

    slopes: Vector
    """One row per example; no row if there is no control variate."""
    sums: Vector
    """G, or zeros."""
    held: Vector
    """The estimate of the gradient; if the table moves, below G."""
    factors: Vector
    seen: NDArray[np.int64]
    """The set of examples in the batch; empty if the table stays as it is, and so is ..."""
    fresh: Vector
    """... what to enter into the table."""


class Buffers(NamedTuple):
    """What a step overwrites."""

    indices: NDArray[np.int64]
    probabilities: Vector
    weights: Vector
    norms: Vector
    gradient: Vector
    """The estimate as a vector."""
    coefficients: Vector
    """The iterate as a table, one row per output."""


class Estimator:
    """Estimate the gradient of the losses at an iterate from batches.

    Parameters
    ----------
    control
        One of `CONTROLS`.
    x
        The iterate, which a chain changes in place.
    mode
        Where the gradients of control "mode" are taken.
    """

    def __init__(self, problem: Problem, control: str, x: Vector, batch_size: int, mode: Vector | None = None) -> None:
        if control == "saga" and not isinstance(problem, Linear):
            raise TypeError(
                f'control = "saga": needs a linear model of avare.problems, not {type(problem).__name__}; '
                'control="mode" works for any problem'
            )
        self.problem, self.control, self.x, self.mode = problem, control, x, mode
        outputs, width = (problem.outputs, problem.width) if isinstance(problem, Linear) else (1, problem.dim)
        rows, moves = problem.n if control != "none" else 0, control == "saga"
        is_linear = isinstance(problem, Linear)
        held = np.zeros(((1 + moves) * outputs, width))
        self.table = Table(
            np.zeros((rows if is_linear else 0, outputs)),
            held[:outputs] if moves else np.zeros((outputs, width)),
            held,
            np.empty((BLOCK, len(held))),
            hash_table(batch_size) if moves else np.empty(0, dtype=np.int64),
            np.empty((batch_size if moves else 0, outputs)),
        )
        self.buffers = Buffers(
            np.empty(batch_size, dtype=np.int64),
            np.empty(batch_size),
            np.empty(batch_size),
            np.empty(batch_size),
            held[len(held) - outputs :].reshape(-1),
            x.reshape(outputs, width),
        )
        self.scratch: Any = problem.scratch() if isinstance(problem, Linear) else None
        if control != "none":
            self.anchor(x if mode is None else mode)

    def anchor(self, point: Vector) -> None:
        """Take the gradients at a point for the table. One pass over the data."""
        if isinstance(self.problem, Linear):
            _set_slopes(self.problem, point, self.table.slopes)
        self.table.sums[:] = self.problem._gradient(point).reshape(self.table.sums.shape)

    def gradient(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        """Return the estimate at x from a batch, and the norms of what was drawn; the table stays as it is."""
        problem, table = self.problem, self.table
        if self.control == "none":
            return problem._batch_gradient(x, indices, weights)
        if not isinstance(problem, Linear):
            return self._by_parts(x, indices, weights)
        shape = table.sums.shape
        still = Table(
            table.slopes,
            table.sums,
            np.empty(shape),
            np.empty((BLOCK, shape[0])),
            np.empty(0, dtype=np.int64),
            np.empty((0, shape[0])),
        )
        norms = np.empty(len(indices))
        _add_differences(problem._model, still, problem.coefficients(x), indices, weights, norms, self.scratch)
        return still.held.ravel(), norms

    def take(self, indices: NDArray[np.int64], weights: Vector) -> None:
        """Estimate the gradient at the iterate into the buffers, and let the table move, for a loop in Python."""
        own = self.buffers
        own.indices[:], own.weights[:] = indices, weights
        if isinstance(self.problem, Linear) and len(self.table.slopes):
            estimate(self.problem._model, self.table, own, self.scratch)
        else:
            own.gradient[:], own.norms[:] = self.gradient(self.x, indices, weights)

    def norms(self, x: Vector) -> Vector:
        """Return the norms of what would be drawn at x, of all examples: gradients, or differences. One pass."""
        problem = self.problem
        if self.control == "none":
            return problem._norms(x)
        if isinstance(problem, Linear):
            slopes = np.empty_like(self.table.slopes)
            _set_slopes(problem, x, slopes)
            return np.asarray(np.linalg.norm(slopes - self.table.slopes, axis=1) * problem.lengths)
        every = np.arange(problem.n)
        return self._by_parts(x, every, np.ones(problem.n))[1]

    def _by_parts(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        """The estimate for any problem: one call per example and place, for only so its difference is known."""
        assert self.mode is not None
        one, gradient, norms = np.ones(1), self.table.sums.ravel().copy(), np.empty(len(indices))
        for j in range(len(indices)):
            which = indices[j : j + 1]
            difference = self.problem._batch_gradient(x, which, one)[0]
            difference = difference - self.problem._batch_gradient(self.mode, which, one)[0]
            norms[j] = math.sqrt(float(difference @ difference))
            gradient += weights[j] * difference
        return gradient, norms


def batch_gradients(estimator: Estimator, sampler: Sampler, x: Vector, batches: int) -> Vector:
    """Return estimates at x from some batches of the sampler, which does not learn from them; one per row."""
    found = np.empty((batches, len(x)))
    for each in found:
        batch = sampler.sample()
        sampler.forget(batch)
        each[:] = estimator.gradient(x, batch.indices, batch.weights)[0]
    return found


def _set_slopes(problem: Linear, x: Vector, slopes: Vector) -> None:
    for part, outputs, _ in problem._outputs(problem.coefficients(x)):
        slopes_into(*problem._terms(part), outputs, slopes[part])


# --- kernels -------------------------------------------------------------------------------


@lean
def estimate(model, table, buffers, scratch):
    """Set the gradient and the norms of the batch in the buffers, and let the table move, if it does."""
    if len(table.slopes) == 0:
        add_gradients(model, buffers.coefficients, buffers.indices, buffers.weights, table.held, buffers.norms, scratch)
    else:
        _add_differences(model, table, buffers.coefficients, buffers.indices, buffers.weights, buffers.norms, scratch)


@lean
def _add_differences(model, table, coefficients, indices, weights, norms, scratch):
    held, factors, count = table.held, table.factors, len(coefficients)
    below = len(held) - count  # 0 if the table stays as it is
    for k in range(count):
        for j in range(held.shape[1]):
            held[below + k, j] = table.sums[k, j]
    table.seen[:] = -1
    for first in range(0, len(indices), BLOCK):
        rows = min(BLOCK, len(indices) - first)
        load(model.matrix, indices, first, rows, coefficients, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(rows):
            index = indices[first + r]
            slope(model.loss, model.targets[index], scratch.outputs[r])
            factor = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
            once = below > 0 and enter(table.seen, index)  # an example that is drawn twice changes G once
            square = 0.0
            for k in range(count):
                found = factor * scratch.outputs[r, k]
                difference = found - table.slopes[index, k]
                square += difference * difference
                if below > 0:
                    table.fresh[first + r, k] = found
                    factors[r, k] = difference if once else 0.0
                factors[r, below + k] = weights[first + r] * difference
            norms[first + r] = math.sqrt(square * scratch.squares[r])
        add(model.matrix, indices, first, rows, factors, scratch.rows, held)
    for j in range(len(table.fresh)):
        for k in range(count):
            table.slopes[indices[j], k] = table.fresh[j, k]
