"""Fewer rows than columns: the same problem with as many columns as rows.

With A = L Q and orthonormal rows of Q, the rows of L and coefficients u have the same outputs as A and Q^T u, and the
same norm, hence the same penalty. L is a Cholesky factor of A A^T.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from avare.linear.design import Design, curve_cost, factor_cost, rounding_of_kernel
from avare.linear.objective import Objective, Point
from avare.problems.matrix import Matrix
from avare.problems.rows import Table

_PRODUCTS = 24.0  # that are expected; nobody knows
_COEFFICIENT = 10.0  # nanoseconds of a coefficient that come with a product: it is in some twenty sums of a step


def minimise_turned(
    total: Objective, flat: Table, minimise: Callable[[Objective, Point], tuple[Point, float, int, str]]
) -> tuple[Point, float, int, str] | None:
    """Minimise with fewer columns, from a constant model, if that saves more than a kernel and its factor cost.

    Return what `minimise` returns, for all columns.
    """
    from scipy.linalg.lapack import dpstrf, dtrtrs

    if not _is_worth_turning(total):
        return None
    rows, problem, free = total.rows, total.problem, bool(total.free_bias)
    kernel = rows.kernel() + float(rows.matrix.bias and not free)  # a bias with a penalty is one more column
    factor, places, rank, _ = dpstrf(kernel, lower=1)
    if rank == 0 or not kernel.diagonal().max() > 0.0:
        return None  # constant columns
    lower, dense, pivots = np.tril(factor[:, :rank]), np.empty((rows.n, rank)), places[:rank] - 1
    dense[places - 1] = lower
    few = Design(Matrix(dense, None, free), rows.n, rank + int(free), np.empty(0), centred=False)
    part = Objective(problem, few, np.arange(rows.width)[-few.width :])
    table = np.column_stack([np.zeros((problem.outputs, rank)), flat[:, rows.width - int(free) :]])
    found, gap, count, status = minimise(part, part.at(table, part.outputs(table)))
    factors = np.zeros((rows.n, problem.outputs))
    factors[pivots] = dtrtrs(lower[:rank], found.table[:, :rank].T, lower=1, trans=1)[0]
    table = total.sums(factors)
    if free:
        table[:, -1] = found.table[:, -1]
    point = total.at(table, total.outputs(table))
    total.passes += 1.0 + part.passes * few.entries / max(rows.entries, 1)
    rounding = rounding_of_kernel(kernel, found.terms.slopes, float(total.l2[0, 0]))
    return point, max(gap + rounding + point.objective - found.objective, 0.0), count, status


def _is_worth_turning(total: Objective) -> bool:
    """Whether products with fewer columns save more than a kernel and its factor cost."""
    rows, outputs = total.rows, total.problem.outputs
    if not total.by_rows or total.l1.any():
        return False
    if outputs == 1 and (total.problem.is_quadratic or rows.matrix.sparse is not None):
        return False  # `minimise_by_rows` and `dual_ascent` do better
    saved = rows.curve_cost(outputs) - curve_cost(rows.n, rows.n**2, outputs)
    saved += _COEFFICIENT * outputs * (rows.columns - rows.n)
    return rows.kernel_cost() + factor_cost(rows.n) <= _PRODUCTS * saved
