"""The reference optimum: L-BFGS to come close, then Newton's method with conjugate gradients."""

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

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
    with Line(f"minimising {problem!r}", shown=progress) as line:
        first = float(np.linalg.norm(problem.gradient(start)))
        if problem.l1 > 0.0:
            x = _descend_by_parts(problem, start, tolerance, line)
        elif first > tolerance:
            x = _descend(problem, start, _NEAR * first, _FEW if problem.width <= _WIDEST else 1000, line)
        else:
            x = start
        x, left = _newton(problem, x, tolerance, line)
    return _warn_above(x, left, tolerance, endless=problem.falls_without_end(x))


def minimum_by_gradients(problem: Problem, start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """Return the minimiser of a problem without second derivatives, by L-BFGS alone, which is less precise."""
    with Line(f"minimising {problem!r}", shown=progress) as line:
        x = _descend(problem, start, tolerance, _MANY, line)
    return _warn_above(x, float(np.linalg.norm(problem.gradient(x))), tolerance)


def _descend(problem: Problem, start: Vector, tolerance: float, most: int, line: Line) -> Vector:
    """Return the last x of L-BFGS."""
    return _lbfgs(lambda x: (problem.objective(x), problem.gradient(x)), start, tolerance, most, line)


def _descend_by_parts(problem: Problem, start: Vector, tolerance: float, line: Line) -> Vector:
    """Return the last x of L-BFGS on its positive and negative parts, in which an l1 term is linear."""
    l1 = np.tile(problem.penalty.l1, 2)

    def evaluate(parts: Vector) -> tuple[float, Vector]:
        x = parts[: problem.dim] - parts[problem.dim :]
        gradient = problem.loss_gradient(x) + problem.penalty.l2 * x
        smooth = problem.total_loss(x) + 0.5 * float(x @ (problem.penalty.l2 * x))
        return smooth + float(l1 @ parts), np.concatenate([gradient, -gradient]) + l1

    parts = np.concatenate([np.maximum(start, 0.0), np.maximum(-start, 0.0)])
    found = _lbfgs(evaluate, parts, tolerance * math.sqrt(2.0), _MANY, line, bounds=[(0.0, None)] * len(parts))
    return found[: problem.dim] - found[problem.dim :]


def _lbfgs(evaluate: Any, start: Vector, tolerance: float, most: int, line: Line, bounds: Any = None) -> Vector:
    from scipy.optimize import minimize

    tolerance /= math.sqrt(len(start))
    result = minimize(
        evaluate,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=lambda intermediate_result: line.say(f"L-BFGS: objective {intermediate_result.fun:.9g}"),
        options={"maxiter": most, "maxfun": 2 * most + 1000, "gtol": tolerance, "ftol": 0.0},
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


class _Point(NamedTuple):
    """An x of Newton's method."""

    x: Vector
    objective: float
    gradient: Vector
    left: float
    """The norm of the gradient."""

    @classmethod
    def at(cls, problem: "Linear", x: Vector) -> Self:
        gradient = problem.gradient(x)
        return cls(x, problem.objective(x), gradient, float(np.linalg.norm(gradient)))


def _newton(problem: "Linear", x: Vector, tolerance: float, line: Line) -> tuple[Vector, float]:
    """Return the best x of Newton's method from x, and the norm of its gradient.

    With an l1 term it moves the coefficients that are not 0, and sets those to 0 that would change their sign.
    """
    here, wasted, precondition, made_at = _Point.at(problem, x), 0, None, math.inf
    for step in range(_NEWTON_STEPS):
        if here.left <= tolerance or wasted == _PATIENCE:
            break
        line.say(f"Newton step {step}: objective {here.objective:.9g}, gradient {here.left:.3g}")
        if here.left < 1e-3 * made_at:
            precondition, made_at = _preconditioner(problem, here.x), here.left
        direction = _direction(problem, here, min(0.1, math.sqrt(here.left / made_at)), precondition)
        new = None if direction is None else _search(problem, here, direction)
        if new is None:
            break
        progress = new.left < 0.9 * here.left or new.objective < here.objective - 1e-12 * abs(here.objective)
        wasted = 0 if progress else wasted + 1
        if progress or new.left < here.left:
            here = new
    return here.x, here.left


def _direction(problem: "Linear", here: _Point, rtol: float, precondition: Any) -> Vector | None:
    """Return a Newton step, by conjugate gradients; None if the objective is linear along the gradient."""
    from scipy.sparse.linalg import LinearOperator, cg

    moving = (here.x != 0.0) | (problem.penalty.l1 == 0.0)
    gradient = np.where(moving, here.gradient, 0.0)
    bend = float(here.gradient @ problem.hessian_product(here.x, here.gradient)) / here.left**2
    if bend <= 0.0:
        return None
    # Without an l2 term it may be linear in some directions: a little damping keeps these steps finite.
    damping = 0.0 if problem.strong_convexity > 0.0 else _DAMPING * bend

    def product(v: Vector) -> Vector:
        return np.where(moving, problem.hessian_product(here.x, np.where(moving, v, 0.0)) + damping * v, v)

    hessian = LinearOperator((problem.dim, problem.dim), matvec=product, dtype=np.float64)
    return np.asarray(cg(hessian, -gradient, rtol=max(rtol, 1e-4), maxiter=500, M=precondition)[0])


def _search(problem: "Linear", here: _Point, direction: Vector) -> _Point | None:
    """Return the first point along a direction, from full steps to short ones, that makes progress."""
    size, slope = 1.0, float(here.gradient @ direction)
    while size > _SHORTEST:
        x = here.x + size * direction
        x[(problem.penalty.l1 > 0.0) & (np.sign(x) != np.sign(here.x))] = 0.0
        new = _Point.at(problem, x)
        # Near the end rounding hides differences of f; a smaller gradient shows progress as well.
        falls = new.objective <= here.objective + 1e-4 * size * slope
        if falls or (new.left < here.left and new.objective <= here.objective + 1e-12 * abs(here.objective)):
            return new
        size *= 0.5
    return None


def _preconditioner(problem: "Linear", x: Vector) -> Any:
    """Return the inverse of one matrix for all outputs, from the mean curvatures at x.

    None if the matrix is too wide, or if an l1 term keeps some coefficients from moving.
    """
    if problem.width > _WIDEST or problem.l1 > 0.0:
        return None
    from scipy.linalg import cho_factor, cho_solve
    from scipy.sparse.linalg import LinearOperator

    matrix = problem.gram(x)
    if problem.l2 == matrix.trace() == 0.0:
        return None
    matrix[np.diag_indices_from(matrix)] += np.maximum(problem.penalty.l2[: problem.width], _DAMPING * matrix.trace())
    factor = cho_factor(matrix, overwrite_a=True)

    def apply(v: Vector) -> Vector:
        return np.asarray(cho_solve(factor, v.reshape(problem.outputs, problem.width).T).T.ravel(), dtype=np.float64)

    return LinearOperator((problem.dim, problem.dim), matvec=apply, dtype=np.float64)
