"""The reference optimum of a linear model: the minimum until the gradient is as small as asked for."""

import numpy as np

from avare._progress import Line
from avare.linear.newton import newton, polish
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.problems.minimum import warn_above

_NEAR = 1e-12  # of the objective of the best constant model: the gap from where the gradient counts


def minimize(problem: Linear, start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """Return the minimiser of a linear model's objective."""
    table = problem.coefficients(start)
    with Line(f"minimising {problem!r}", shown=progress) as line:
        if not float(np.linalg.norm(problem.gradient(start))) <= tolerance:
            table = newton(
                problem,
                tol=_NEAR,
                start=table if start.any() else None,
                callback=lambda step, height, gap: line.say(f"step {step}: objective {height:.9g}, gap {gap:.3g}"),
            ).table
        table, left = polish(problem, table, tolerance)
    x = table.ravel().copy()
    return warn_above(x, left, tolerance, endless=problem.falls_without_end(x))
