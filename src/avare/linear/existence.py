"""Whether a linear model has a minimum, and whether its posterior is proper."""

from __future__ import annotations

import numpy as np

from avare.problems.base import Vector
from avare.problems.linear import Linear

_FEW, _WORK = 256, 1e11  # coefficients, and products, up to which a flat direction is looked for
_SINGULAR = 1e-11  # of the largest second derivative that losses can have: a direction below it counts as flat
_MOSTLY = 0.1  # of the largest coefficient of a flat direction: larger ones are named


def has_no_minimum(problem: Linear, x: Vector) -> bool:
    """Return whether f has no minimum: the classes are linearly separable by x, and there is no penalty.

    Also if some class has no weight and the bias is free, whatever x is.
    """
    if problem.separable_loss == 0.0:
        return False
    sums = problem.class_weights()[1]
    if problem.has_free_bias and sums.any() and not sums.all():
        return True
    if problem.l2 > 0.0 or problem.l1 > 0.0:
        return False
    weights = problem.model.sample_weight if len(problem.model.sample_weight) else np.ones(problem.n)
    counted, losses = weights > 0.0, problem.losses_and_norms(x)[0]
    return bool(counted.any() and (losses < problem.separable_loss * weights)[counted].all())


def why_improper(problem: Linear, mode: Vector) -> str:
    """Return why :math:`e^{-f}` has no finite integral; "" if it has one, or if that is not known.

    It has none if f is flat along some direction: without a prior, and with columns that determine each other, or that
    separate the classes, so that the mode is at infinity. The Hessian at the mode by the coefficients without a prior,
    in units of the columns, is then singular. It is computed if that costs no more than 1e11 products, or if there are
    at most 256 coefficients.
    """
    if has_no_minimum(problem, mode):
        return "the columns separate the classes, so that f has no minimum"
    free = np.flatnonzero(problem.penalty.l2 == 0.0)
    if len(free) > problem.n * problem.outputs:
        return f"{len(free)} coefficients have no prior, more than there are examples"
    if not len(free) or (problem.dim > _FEW and problem.n * float(problem.dim) ** 2 > _WORK):
        return ""
    from scipy.linalg import eigh

    squares = np.tile(problem.rows(centred=False).squares(np.ones(problem.n)), problem.outputs)[free]
    scale = 1.0 / np.sqrt(np.maximum(squares, 1e-300))
    curvature = scale[:, None] * problem.hessian(mode)[np.ix_(free, free)] * scale
    (least,), vectors = eigh(curvature, subset_by_index=[0, 0])
    largest = problem.model.sample_weight.max() if len(problem.model.sample_weight) else 1.0
    if least > _SINGULAR * problem.curvature * largest:
        return ""
    along, names = np.abs(vectors[:, 0]), problem.names
    places = ", ".join(names[free[j]] for j in np.flatnonzero(along > _MOSTLY * along.max())[:4])
    return f"f does not rise along {places}: these columns determine each other, or occur with one class only"
