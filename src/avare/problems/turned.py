"""Several outputs and fewer rows than columns: the same problem with as many columns as rows.

With A = L Q and orthonormal rows of Q, the rows of L and coefficients u have the same outputs as A and Q^T u, and the same
norm, hence the same penalty. L is a Cholesky factor of A A^T. Coefficients that no row touches are 0 at the minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from avare.problems.matrix import Matrix
from avare.problems.newton_steps import Objective, Point
from avare.problems.rows import Rows, Table, factor_cost, several_cost

_PRODUCTS = 24.0  # that are expected; nobody knows
_COEFFICIENT = 10.0  # nanoseconds of a coefficient that come with a product: it is in some twenty sums of a step
_ROUNDING = 1e-15  # relative error of a kernel, per row


def turned(total: Objective, constant: Table) -> tuple[Objective, Point, Callable[[Point, float], tuple[Point, float]]]:
    """Return the objective with fewer columns, a constant model there, and what turns a point and its gap back."""
    from scipy.linalg.lapack import dpstrf, dtrtrs

    rows, problem, free = total.rows, total.problem, bool(total.free_bias)
    kernel = rows.kernel() + float(rows.matrix.bias and not free)  # a bias with a penalty is one more column
    size, strength = float(np.max(kernel.diagonal())), float(total.l2[0, 0])
    factor, places, rank, _ = dpstrf(kernel, lower=1)
    lower, dense, pivots = np.tril(factor[:, :rank]), np.empty((rows.n, rank)), places[:rank] - 1
    dense[places - 1] = lower
    few = Rows(Matrix(dense, None, free), rows.n, rank + int(free), np.empty(0), centred=False)
    part = Objective(problem, few, np.arange(rows.columns - rank, rows.width)[-few.width :])
    first = np.column_stack([np.zeros((problem.outputs, rank)), constant[:, rows.width - int(free) :]])

    def back(point: Point, gap: float) -> tuple[Point, float]:
        factors = np.zeros((rows.n, problem.outputs))
        factors[pivots] = dtrtrs(lower[:rank], point.table[:, :rank].T, lower=1, trans=1)[0]
        table = total.sums(factors)
        if free:
            table[:, -1] = point.table[:, -1]
        reached, slopes = total.at(table, total.outputs(table)), point.terms.slopes
        rounding = 0.5 * rows.n * _ROUNDING * size * float(np.vdot(slopes, slopes)) / strength
        total.passes += 1.0 + part.passes * few.entries / max(rows.entries, 1)
        return reached, max(gap + rounding + reached.objective - point.objective, 0.0)

    return part, part.at(first, part.outputs(first)), back


def is_worth_turning(total: Objective) -> bool:
    """Whether products with fewer columns save more than a kernel and its factor cost."""
    rows, outputs = total.rows, total.problem.outputs
    if outputs == 1 or not total.by_rows or total.l1.any():
        return False
    saved = rows.curve_cost(outputs) - several_cost(rows.n, rows.n**2, outputs)
    saved += _COEFFICIENT * outputs * (rows.columns - rows.n)
    return rows.kernel_cost() + factor_cost(rows.n) <= _PRODUCTS * saved
