"""The estimate by differences from gradients that are known: a control variate.

    G + sum_j w_j (g_j(x) - c_j),

where c_j is a known gradient of example j and G the sum of all of them. It is unbiased for any c, and its noise falls
with the differences. For a linear model the gradient of an example is a slope s_i l'(a_i.x) times its row a_i, per
output, so a table of slopes holds them all. SAGA enters the slopes of each batch into the table; a fixed point
leaves the table as it is. The norms that the sampler learns are those of the differences,
|slope - table| |a_i|, with lengths in the preconditioner of the steps if there is one.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined
from avare.problems import Linear
from avare.problems.base import Vector
from avare.problems.losses import slope
from avare.problems.matrix import BLOCK, add, load
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.kernels import Work, estimate, estimate_kernel
from avare.structures.uniform_draws import enter, hash_table


class TableState(NamedTuple):
    """The state of the estimate by differences."""

    slopes: Vector
    """One row per example, one column per output."""
    sums: Vector
    """G, one row per output."""
    sums_and_estimate: Vector
    """The estimate of the gradient, one row per output; below G if the table moves."""
    factors: Vector
    """The differences, and the same times the weights: of four draws."""
    seen: NDArray[np.int64]
    """The set of examples in the batch; empty if the table is fixed."""
    fresh: Vector
    """What to enter into the table, one row per draw."""
    lengths: NDArray[np.float32]
    """The length of each row in the preconditioner; empty without one."""


class TableEstimator(PlainEstimator):
    """Estimate the gradient of a linear model by differences from a table; it moves, unless it is fixed at a mode."""

    problem: Linear

    def __init__(
        self,
        problem: Linear,
        x: Vector,
        batch_size: int,
        *,
        fixed: bool = False,
        lengths: NDArray[np.float32] | None = None,
    ) -> None:
        outputs = problem.outputs
        super().__init__(problem, x, rows=0 if fixed else outputs)
        self.control = "mode" if fixed else "saga"
        self.state = TableState(
            np.zeros((problem.n, outputs)),
            np.zeros(self.shape) if fixed else self.sums_and_estimate[:outputs],
            self.sums_and_estimate,
            np.empty((BLOCK, len(self.sums_and_estimate))),
            np.empty(0, dtype=np.int64) if fixed else hash_table(batch_size),
            np.empty((0 if fixed else batch_size, outputs)),
            np.empty(0, dtype=np.float32) if lengths is None else lengths,
        )

    def fill(self, x: Vector) -> None:
        """Take the slopes and the gradient at x for the table. One pass over the data."""
        survey = self.problem.survey(x)
        self.state.slopes[:], self.state.sums[:] = survey.slopes, survey.gradient.reshape(self.shape)

    def at(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        """Return the estimate at x from a batch, and the norms of its terms. Nothing changes."""
        still = self.state._replace(
            sums_and_estimate=np.empty(self.shape),
            factors=np.empty((BLOCK, self.shape[0])),
            seen=np.empty(0, dtype=np.int64),
            fresh=np.empty((0, self.shape[0])),
        )
        norms = np.empty(len(indices))
        work = Work(x, self.problem.coefficients(x), x, x, indices, weights, weights, norms, self.scratch)
        estimate(still, self.problem.model, work)
        return still.sums_and_estimate.ravel(), norms


# --- kernels -------------------------------------------------------------------------------


@estimate_kernel(TableState, saved=("slopes", "sums"))
def _estimate(table, model, work):
    sums_and_estimate, sums, indices, scratch = table.sums_and_estimate, table.sums, work.indices, work.scratch
    count = len(work.coefficients)
    below = len(sums_and_estimate) - count
    for k in range(count):
        for j in range(sums_and_estimate.shape[1]):
            sums_and_estimate[below + k, j] = sums[k, j]
    table.seen[:] = -1
    for first in range(0, len(indices), BLOCK):
        rows = min(BLOCK, len(indices) - first)
        load(model.matrix, indices, first, rows, work.coefficients, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(rows):
            if not _differ(table, model, work, r, first + r, scratch.outputs[r], scratch.squares[r]):
                return False
        add(model.matrix, indices, first, rows, table.factors, scratch.rows, sums_and_estimate)
    slopes = table.slopes
    for j in range(len(table.fresh)):
        for k in range(count):
            slopes[indices[j], k] = table.fresh[j, k]
    return True


@inlined
def _differ(table, model, work, r, j, outputs, square):
    """Turn the outputs of draw j into slopes, set its norm, and put its differences into row r of the factors."""
    index, count, moves = work.indices[j], len(outputs), len(table.seen) > 0
    slope(model.loss, model.targets[index], outputs)
    factor = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
    once = moves and enter(table.seen, index)  # an example that is drawn twice changes G once
    weighted = count if moves else 0
    total = 0.0
    for k in range(count):
        found = factor * outputs[k]
        difference = found - table.slopes[index, k]
        total += difference * difference
        if moves:
            table.fresh[j, k] = found
            table.factors[r, k] = difference if once else 0.0
        table.factors[r, weighted + k] = work.weights[j] * difference
    if len(table.lengths) > 0:
        work.norms[j] = math.sqrt(total) * np.float64(table.lengths[index])
    else:
        work.norms[j] = math.sqrt(total * square)
    return np.isfinite(work.norms[j])
