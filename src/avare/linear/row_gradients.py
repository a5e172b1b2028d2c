"""Least squares with fewer rows than columns: conjugate gradients in the space of the rows.

The minimum is x = A^T R u, with R^2 the sample weights and (l2 + R A A^T R) u = R (y - m), m the mean of y if there is
a free bias. The slopes -l2 R u sum to 0 then, and are those of x up to R times the residual e of this equation: they
certify a gap of |e|^2 / 2, without a division by l2. A rough goal needs few steps, however weak the penalty is. If
rows determine each other, u is large, and steps by the columns are better.
"""

from __future__ import annotations

import numpy as np

from avare.linear.design import CALL, factor_cost
from avare.linear.losses import fenchel_young
from avare.linear.objective import TINY, Objective, Point
from avare.problems.rows import Table

_OVERHEAD = 6.0  # operations on almost no rows that come with both products
_MOST_ROWS = 0.75  # per column that is not empty: with more, rows almost determine each other
_SHARE = 0.9  # of the goal, so that rounding does not count


def minimise_by_rows(total: Objective, start: Table, goal: float) -> tuple[Point, float, int, str] | None:
    """Return a point, its gap, the number of steps of Newton's method that this replaces, and its status.

    None if this is not least squares with fewer rows than columns, from a constant model, or if a factor is cheaper.
    """
    problem, rows, l2 = total.problem, total.rows, total.l2
    if not problem.is_quadratic or problem.l1 > 0.0 or problem.outputs > 1 or not total.by_rows:
        return None
    if total.is_direct or rows.n > _MOST_ROWS * rows.used_columns() or start[:, : rows.columns].any():
        return None
    mean = float(start[0, -1]) if total.free_bias else 0.0
    allowed = (rows.kernel_cost() + factor_cost(rows.n)) / (2.0 * rows.product_cost() + _OVERHEAD * CALL)
    weights = problem.model.sample_weight
    roots = np.sqrt(weights) if len(weights) else np.ones(rows.n)
    left, found, table = roots * (problem.model.targets - mean), np.zeros(rows.n), np.zeros((1, rows.width))
    direction, height = left, float(left @ left)
    for _ in range(int(allowed)):
        along = total.sums((roots * direction)[:, None])
        if total.free_bias:
            along[0, -1] = 0.0
        curved = l2[0, 0] * direction + roots * total.outputs(along)[:, 0]
        size = height / max(float(direction @ curved), TINY)
        found, table, left = found + size * direction, table + size * along, left - size * curved
        before, height = height, float(left @ left)
        if 0.5 * height <= _SHARE * goal:
            break
        direction = left + (height / before) * direction
    table[0, -1] += mean
    point, slopes = total.at(table, total.outputs(table)), -l2[0, 0] * (roots * found)[:, None]
    held = l2 > 0.0
    gap = 0.5 * float(np.sum((total.sums(slopes) + l2 * table)[held] ** 2 / l2[held]))
    gap += fenchel_young(problem, point.outputs, point.terms, slopes)
    return (point, gap, 1, "converged") if gap <= goal else None
