"""The reference optimum: L-BFGS to come near, Newton's method with conjugate gradients to arrive."""

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from avare._progress import Line
from avare.problems.base import Problem, Vector

if TYPE_CHECKING:
    from avare.problems.linear import Linear

_NEAR = 1e-4  # of the first gradient: where Newton's method takes over
_FEW = 20  # steps of L-BFGS where Newton's method has a preconditioner, which is many times faster from there on
_WIDEST = 4096  # coefficients an output up to which the preconditioner is a factored matrix
_MANY = 10_000  # steps of L-BFGS where there is nothing else
_NEWTON_STEPS = 100
_PATIENCE = 3  # Newton steps that bring nothing before rounding is taken to be the end
_SHORTEST = 1e-10  # of a Newton step
_DAMPING = 1e-12  # of the curvature along the gradient


class ToleranceWarning(UserWarning):
    """Rounding, or the objective itself, ended a minimisation before the tolerance was met."""


def minimum(problem: "Linear", start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """The minimiser of a linear model's objective."""
    with Line(f"minimising {problem!r}", shown=progress) as line:
        first = float(np.linalg.norm(problem.gradient(start)))
        x = start
        if first > tolerance:
            x = _descend(problem, start, _NEAR * first, _FEW if problem.width <= _WIDEST else 1000, line)
        x, left = _newton(problem, x, tolerance, line)
    return _told(x, left, tolerance)


def minimum_by_gradients(problem: Problem, start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """The same for a problem without second derivatives: L-BFGS alone, which arrives less precisely."""
    with Line(f"minimising {problem!r}", shown=progress) as line:
        x = _descend(problem, start, tolerance, _MANY, line)
    return _told(x, float(np.linalg.norm(problem.gradient(x))), tolerance)


def _descend(problem: Problem, start: Vector, tolerance: float, most: int, line: Line) -> Vector:
    """Where L-BFGS comes to."""
    from scipy.optimize import minimize

    result = minimize(
        lambda x: (problem.objective(x), problem.gradient(x)),
        start,
        jac=True,
        method="L-BFGS-B",
        callback=lambda intermediate_result: line.say(f"L-BFGS: objective {intermediate_result.fun:.9g}"),
        options={"maxiter": most, "maxfun": 2 * most + 1000, "gtol": tolerance / math.sqrt(problem.dim), "ftol": 0.0},
    )
    return np.asarray(result.x, dtype=np.float64)


def _told(x: Vector, left: float, tolerance: float) -> Vector:
    """The best x, with a warning where it is not good enough."""
    if not left <= tolerance:
        warnings.warn(
            f"the gradient's length is {left:.3g} at the best x: rounding, or an objective that falls for ever "
            f"or is flat there, ended the search before tolerance = {tolerance:g}",
            ToleranceWarning,
            stacklevel=5,
        )
    return x


def _newton(problem: "Linear", x: Vector, tolerance: float, line: Line) -> tuple[Vector, float]:
    """The best x of Newton's method from here, and the length of its gradient."""
    from scipy.sparse.linalg import LinearOperator, cg

    objective, gradient = problem.objective(x), problem.gradient(x)
    left = float(np.linalg.norm(gradient))
    precondition, made_at = _preconditioner(problem, x) if left > tolerance else None, left
    wasted = 0
    for step in range(_NEWTON_STEPS):
        if left <= tolerance or wasted == _PATIENCE:
            break
        line.say(f"Newton step {step}: objective {objective:.9g}, gradient {left:.3g}")
        if left < 1e-3 * made_at:
            precondition, made_at = _preconditioner(problem, x), left
        bend = float(gradient @ problem.hessian_product(x, gradient)) / left**2
        if bend <= 0.0:
            break  # no Newton step: the objective is linear here
        # Without an l2 term it may be linear in some directions: a little keeps these steps finite.
        damping = 0.0 if problem.l2 > 0.0 else _DAMPING * bend
        shape = (problem.dim, problem.dim)
        hessian = LinearOperator(
            shape, matvec=lambda v, at=x, more=damping: problem.hessian_product(at, v) + more * v, dtype=np.float64
        )
        rtol = min(0.1, math.sqrt(left / made_at))
        direction = cg(hessian, -gradient, rtol=max(rtol, 1e-4), maxiter=500, M=precondition)[0]
        size, slope = 1.0, float(gradient @ direction)
        while size > _SHORTEST:
            candidate = x + size * direction
            there = problem.objective(candidate)
            # Near the end differences of f are rounded away; a shorter gradient then tells as much.
            new = problem.gradient(candidate)
            shorter = float(np.linalg.norm(new)) < left
            if there <= objective + 1e-4 * size * slope or (shorter and there <= objective + 1e-12 * abs(objective)):
                break
            size *= 0.5
        else:
            break
        wasted = (
            0 if float(np.linalg.norm(new)) < 0.9 * left or there < objective - 1e-12 * abs(objective) else wasted + 1
        )
        if wasted == 0 or shorter:
            x, objective, gradient, left = candidate, there, new, float(np.linalg.norm(new))
    return x, left


def _preconditioner(problem: "Linear", x: Vector) -> Any:
    """The inverse of one matrix for all outputs, from the mean curvatures at x; None where it is too wide."""
    if problem.width > _WIDEST:
        return None
    from scipy.linalg import cho_factor, cho_solve
    from scipy.sparse.linalg import LinearOperator

    matrix = problem.gram(x)
    if problem.l2 == matrix.trace() == 0.0:
        return None
    matrix[np.diag_indices_from(matrix)] += max(problem.l2, _DAMPING * matrix.trace())
    factor = cho_factor(matrix, overwrite_a=True)

    def apply(v: Vector) -> Vector:
        return np.asarray(cho_solve(factor, v.reshape(problem.outputs, problem.width).T).T.ravel(), dtype=np.float64)

    return LinearOperator((problem.dim, problem.dim), matvec=apply, dtype=np.float64)
