"""The reference optimum: L-BFGS to come close, then Newton's method with conjugate gradients."""

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from avare._optional import require
from avare._progress import Line
from avare.problems.base import Problem, Vector

if TYPE_CHECKING:
    from avare.problems.linear import Linear

_NEAR = 1e-4  # of the norm of the first gradient, from where Newton's method continues
_FEW = 20  # steps of L-BFGS if Newton's method has a preconditioner, which makes it many times faster
_WIDEST = 4096  # coefficients per output, up to which the preconditioner is a factored matrix
_MANY = 10_000  # steps of L-BFGS without second derivatives
_NEWTON_STEPS = 100
_PATIENCE = 3  # Newton steps without progress, after which rounding is taken to be the limit
_SHORTEST = 1e-10  # of a Newton step
_DAMPING = 1e-12  # of the curvature along the gradient


class ToleranceWarning(UserWarning):
    """A minimisation ended above the tolerance, because of rounding, or the objective has no minimum.

    >>> import warnings
    >>> import avare
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ToleranceWarning)  # an error instead of a warning
    ...     x = avare.problems.LeastSquares([[1.0]], [2.0], l2=0.0).minimize()
    >>> x.round(6)
    array([2.])
    """


def minimum(problem: "Linear", start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """Return the minimiser of a linear model's objective."""
    require("scipy", "minimize")
    with Line(f"minimising {problem!r}", shown=progress) as line:
        first = float(np.linalg.norm(problem.gradient(start)))
        x = start
        if first > tolerance:
            x = _descend(problem, start, _NEAR * first, _FEW if problem.width <= _WIDEST else 1000, line)
        x, left = _newton(problem, x, tolerance, line)
    return _warn_above(x, left, tolerance, endless=problem._falls_without_end(x))


def minimum_by_gradients(problem: Problem, start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """Return that of a problem without second derivatives, by L-BFGS alone, which is less precise."""
    require("scipy", "minimize")
    with Line(f"minimising {problem!r}", shown=progress) as line:
        x = _descend(problem, start, tolerance, _MANY, line)
    return _warn_above(x, float(np.linalg.norm(problem.gradient(x))), tolerance)


def minimum_by_parts(problem: "Linear", start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """Return that of a problem with an l1 term: L-BFGS on positive and negative parts, then Newton's method.

    Newton's method moves the coefficients that are not 0, as long as none changes its sign.
    """
    require("scipy", "minimize")
    from scipy.optimize import minimize
    from scipy.sparse.linalg import LinearOperator, cg

    def split(parts: Vector) -> tuple[float, Vector]:
        x = parts[: problem.dim] - parts[problem.dim :]
        gradient = problem._gradient(x) + problem._l2 * x
        smooth = problem._objective(x) + 0.5 * float(x @ (problem._l2 * x))
        l1 = np.tile(problem._l1, 2)
        return smooth + float(l1 @ parts), np.concatenate([gradient, -gradient]) + l1

    with Line(f"minimising {problem!r}", shown=progress) as line:
        result = minimize(
            split,
            np.concatenate([np.maximum(start, 0.0), np.maximum(-start, 0.0)]),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (2 * problem.dim),
            callback=lambda intermediate_result: line.say(f"L-BFGS: objective {intermediate_result.fun:.9g}"),
            options={"maxiter": _MANY, "maxfun": 2 * _MANY, "gtol": tolerance / math.sqrt(problem.dim), "ftol": 0.0},
        )
        x = result.x[: problem.dim] - result.x[problem.dim :]
        gradient = problem.gradient(x)
        for step in range(_NEWTON_STEPS):
            left = float(np.linalg.norm(gradient))
            if left <= tolerance:
                break
            line.say(f"Newton step {step}: gradient {left:.3g}")
            moving = (x != 0.0) | (problem._l1 == 0.0)

            def product(v: Vector, at: Vector = x, moving: Vector = moving) -> Vector:
                return np.where(moving, problem.hessian_product(at, np.where(moving, v, 0.0)), v)

            hessian = LinearOperator((problem.dim, problem.dim), matvec=product, dtype=np.float64)
            candidate = x + cg(hessian, np.where(moving, -gradient, 0.0), rtol=1e-6, maxiter=500)[0]
            candidate[(problem._l1 > 0.0) & (np.sign(candidate) != np.sign(x))] = 0.0
            new = problem.gradient(candidate)
            if not float(np.linalg.norm(new)) < left:
                break
            x, gradient = candidate, new
    return _warn_above(x, float(np.linalg.norm(gradient)), tolerance)


def _descend(problem: Problem, start: Vector, tolerance: float, most: int, line: Line) -> Vector:
    """Return the last x of L-BFGS."""
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


def _warn_above(x: Vector, left: float, tolerance: float, *, endless: bool = False) -> Vector:
    """Return the best x, with a warning if its gradient is above the tolerance, or if there is no minimum."""
    text = ""
    if endless:
        text = "the objective has no minimum: x separates the classes, so that it falls without end; pass l2 > 0"
    elif not left <= tolerance:
        text = (
            f"the norm of the gradient is {left:.3g} at the best x, above tolerance = {tolerance:g}: the limit is "
            "rounding, or the objective has no minimum or is flat there"
        )
    if text:
        warnings.warn(text, ToleranceWarning, stacklevel=5)
    return x


def _newton(problem: "Linear", x: Vector, tolerance: float, line: Line) -> tuple[Vector, float]:
    """Return the best x of Newton's method from x, and the norm of its gradient."""
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
            break  # the objective is linear here: there is no Newton step
        # Without an l2 term it may be linear in some directions: a little damping keeps these steps finite.
        damping = 0.0 if problem.strong_convexity > 0.0 else _DAMPING * bend
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
            # Near the end rounding hides differences of f; a smaller gradient shows progress as well.
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
    """Return the inverse of one matrix for all outputs, from the mean curvatures at x; None if it is too wide."""
    if problem.width > _WIDEST:
        return None
    from scipy.linalg import cho_factor, cho_solve
    from scipy.sparse.linalg import LinearOperator

    matrix = problem.gram(x)
    if problem.l2 == matrix.trace() == 0.0:
        return None
    matrix[np.diag_indices_from(matrix)] += np.maximum(problem._l2[: problem.width], _DAMPING * matrix.trace())
    factor = cho_factor(matrix, overwrite_a=True)

    def apply(v: Vector) -> Vector:
        return np.asarray(cho_solve(factor, v.reshape(problem.outputs, problem.width).T).T.ravel(), dtype=np.float64)

    return LinearOperator((problem.dim, problem.dim), matvec=apply, dtype=np.float64)
