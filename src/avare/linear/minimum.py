"""The reference optimum of a linear model: the minimum until the gradient is as small as asked for."""

from __future__ import annotations

import math

import numpy as np

from avare._progress import Line
from avare.linear.design import Design
from avare.linear.existence import has_no_minimum
from avare.linear.newton_system import TIGHT, NewtonSystem
from avare.linear.objective import Objective
from avare.linear.solver import solve
from avare.linear.working_sets import WorkingSetSystem
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.problems.minimum import warn_above
from avare.problems.rows import Array

_NEAR = 1e-12  # of the objective of the best constant model: the gap from where the gradient counts
_PATIENCE = 3  # steps that do not halve the gradient, after which rounding is taken to be the limit


def minimize(problem: Linear, start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """Return the minimiser of a linear model's objective."""
    table = problem.coefficients(start)
    with Line(f"minimising {problem!r}", shown=progress) as line:
        if not float(np.linalg.norm(problem.gradient(start))) <= tolerance:
            table = solve(
                problem,
                tol=_NEAR,
                start=table if start.any() else None,
                callback=lambda step, objective, gap: line.say(
                    f"step {step}: objective {objective:.9g}, gap {gap:.3g}"
                ),
            ).table
        table, left = polish(problem, table, tolerance)
    x = table.ravel().copy()
    return warn_above(x, left, tolerance, endless=has_no_minimum(problem, x))


def polish(problem: Linear, table: Array, tolerance: float) -> tuple[Array, float]:
    """Make steps until the norm of the gradient is at most a tolerance; return the best table, and its norm.

    They begin near the minimum, where rounding hides the decrease of the objective. With an l1 term only the
    coefficients that are not 0 move.
    """
    rows, has_l1 = Design.of(problem), problem.l1 > 0.0
    columns = np.flatnonzero(table[:, : rows.columns].any(axis=0)) if has_l1 else np.arange(rows.columns)
    kept = np.append(columns, rows.columns) if problem.model.matrix.bias else columns
    best, least, wasted = table, float(np.linalg.norm(problem.gradient(table.ravel()))), 0
    if len(columns) < rows.columns:
        rows = rows.restrict(columns)
    total = Objective(problem, rows, kept)
    system = WorkingSetSystem(total) if has_l1 else NewtonSystem(total)
    while least > tolerance and wasted < _PATIENCE and len(columns):
        centred = rows.centre(best[:, kept])
        point = total.at(centred)
        step = system.solve(point, total.gradient(point), TIGHT, 0.0).table
        further = best.copy()
        further[:, kept] = rows.centre(centred + step, -1.0)
        norm = float(np.linalg.norm(problem.gradient(further.ravel()))) if np.isfinite(further).all() else math.inf
        wasted = 0 if norm < 0.5 * least else wasted + 1
        if norm < least:
            best, least = further, norm
    return best, least
