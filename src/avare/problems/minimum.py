"""The minimum of a problem without second derivatives, by L-BFGS, and the warning if a tolerance was missed."""

import math
import warnings

import numpy as np

from avare._progress import Line
from avare.problems.base import Problem, Vector

_MANY = 10_000  # steps of L-BFGS


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


def minimum_by_gradients(problem: Problem, start: Vector, tolerance: float, *, progress: bool) -> Vector:
    """Return the minimiser of a problem without second derivatives, by L-BFGS, which is less precise."""
    from scipy.optimize import minimize

    with Line(f"minimising {problem!r}", shown=progress) as line:
        result = minimize(
            lambda x: (problem.objective(x), problem.gradient(x)),
            start,
            jac=True,
            method="L-BFGS-B",
            callback=lambda intermediate_result: line.say(f"L-BFGS: objective {intermediate_result.fun:.9g}"),
            options={
                "maxiter": _MANY,
                "maxfun": 2 * _MANY + 1000,
                "gtol": tolerance / math.sqrt(len(start)),
                "ftol": 0.0,
            },
        )
    x = np.asarray(result.x, dtype=np.float64)
    return warn_above(x, float(np.linalg.norm(problem.gradient(x))), tolerance)


def warn_above(x: Vector, left: float, tolerance: float, *, endless: bool = False) -> Vector:
    """Return the best x, with a warning if its gradient is above the tolerance, or if there is no minimum."""
    text = ""
    if endless:
        text = "the classes are linearly separable, so the unpenalised loss has no minimiser; pass l2 > 0"
    elif not left <= tolerance:
        text = (
            f"the norm of the gradient is {left:.3g} at the best x, above tolerance = {tolerance:g}: the limit is "
            "rounding, or the objective has no minimum or is flat there"
        )
    if text:
        warnings.warn(text, ToleranceWarning, stacklevel=5)
    return x
