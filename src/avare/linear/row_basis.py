"""Fewer rows than columns: the same problem with as many columns as rows, in an orthonormal basis of the rows.

With A = L Q and orthonormal rows of Q, the rows of L and coefficients u have the same linear predictors as A and Q^T u,
and the same norm, hence the same penalty. L is a Cholesky factor of the Gram matrix A A^T. (Solving each system with
the Woodbury identity in the space of the rows needs the same matrix, but products with A in each step.)
"""

from __future__ import annotations

import math

import numpy as np

from avare.linear import newton, small
from avare.linear.design import Design, curve_cost, factor_cost, rounding_of_kernel
from avare.linear.objective import Objective
from avare.linear.preconditioners import WIDEST
from avare.linear.task import LinearTask, Outcome, Status
from avare.problems.matrix import Matrix

_PRODUCTS = 24.0  # with X that a fit takes: a guess (not measured)
_DIRECT = 60.0  # products that the basis may cost if one exact step is then enough
_OF_GRAM = 0.5  # of the cost of a factor of the Hessian, which also leads to the minimum in one step
_COEFFICIENT = 10.0  # nanoseconds of a coefficient that come with a product: it is in some twenty sums of a step


def expected_cost(task: LinearTask) -> float:
    """Estimate the nanoseconds of the basis; infinite if it does not save more, or if it cannot do the task.

    It needs the same l2 term for all columns, and no l1 term.
    """
    total, rows, outputs = task.total, task.total.rows, task.total.problem.outputs
    if rows.n >= rows.columns or rows.n > WIDEST or not total.has_even_l2:
        return math.inf
    cost, product = rows.kernel_cost() + factor_cost(rows.n), rows.curve_cost(outputs)
    saved = product - curve_cost(rows.n, rows.n**2, outputs) + _COEFFICIENT * outputs * (rows.columns - rows.n)
    allowed = _PRODUCTS * saved
    if total.problem.is_quadratic:
        allowed = min(_DIRECT * product, _OF_GRAM * (rows.gram_cost() + factor_cost(rows.width)))
    return cost if cost <= allowed else math.inf


def solve(task: LinearTask) -> Outcome:
    """Minimise with fewer columns; "started" if that does not certify the goal for all columns."""
    from scipy.linalg.lapack import dpstrf, dtrtrs

    total, rows, problem, free = task.total, task.total.rows, task.total.problem, task.total.has_free_bias
    kernel = rows.kernel() + float(rows.matrix.bias and not free)  # a bias with a penalty is one more column
    factor, places, rank, _ = dpstrf(kernel, lower=1)
    if rank == 0 or not kernel.diagonal().max() > 0.0:
        return Outcome(task.point)  # constant columns
    lower, pivots, dense = np.tril(factor[:, :rank]), places[:rank] - 1, np.empty((rows.n, rank))
    dense[places - 1] = lower
    few = Design(Matrix(dense, None, free), rows.n, rank + int(free), np.empty(0), centred=False)
    part = Objective(problem, few, np.arange(rows.width)[-few.width :])
    bias = task.point.table[:, rows.width - int(free) :]
    there = task.point.outputs[pivots] - (bias.T if free else 0.0)
    start = np.column_stack([dtrtrs(lower[:rank], there, lower=1)[0].T, bias])
    inner = LinearTask(part, part.at(start), task.goal, task.steps, task.callback)
    found = (small if small.expected_cost(inner) < math.inf else newton).solve(inner)
    if found.status == "started":
        found = newton.solve(inner.after(found))
    factors = np.zeros((rows.n, problem.outputs))
    factors[pivots] = dtrtrs(lower[:rank], found.point.table[:, :rank].T, lower=1, trans=1)[0]
    table = total.rows.sums(factors)
    if free:
        table[:, -1] = found.point.table[:, -1]
    point = total.at(table)
    rounding = rounding_of_kernel(kernel, found.point.terms.slopes, float(total.l2[0, 0]))
    gap = max(found.gap + rounding + point.objective - found.point.objective, 0.0)
    status: Status = "converged" if gap <= task.goal else "finished" if found.status == "finished" else "started"
    return Outcome(point, gap, found.steps, status)
