"""Certificates: how far an objective is above its minimum, by a duality gap.

For any dual variables s, one for each loss and with a sum of 0 over a free bias, the dual objective is a lower bound on
the minimum. With a step v from x, the dual variables s + C A v that its quadratic model predicts, C with the second
derivatives of the losses, are far better than the derivatives of the losses at x: the lower bound is then as good as
x + v. Predicted ones may be outside of the domain of a conjugate loss, most often those of long rows. Near the goal
they are clipped, and another step, for which the clipped losses have no curvature, moves the others so that they stay
dual feasible. In any case, with the bias minimised exactly, the derivatives at x give the bound |g|^2 / (2 l2).

A gap is a *bound* if each coefficient but a free bias has a penalty. It is an *estimate* if some have none, as it then
assumes how far the minimum can be, or if the rounding of sums counts, whose errors are taken to be independent.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from avare.linear.design import OF_SUM, Design
from avare.linear.intercept import with_best_intercept
from avare.linear.losses import clip, fenchel_young, summed_curvature
from avare.linear.newton_system import CERTIFIED, LOOSE, NewtonSystem, accuracy_of
from avare.linear.objective import TINY, Objective, Point, Step, largest_curvature
from avare.problems.linear import Linear, Terms
from avare.problems.rows import Array

NEGLIGIBLE = 1e-12
"""Gap, relative to the scale: less is not to be had where rounding is the limit."""
_HIDDEN = 10.0  # times the rounding that is expected: a smaller derivative counts as an error
_CLIPS = 3  # times that dual variables are clipped
_FEW_PRODUCTS = 10  # with which the others may be moved anyway
_BALANCED = 1e-6  # of the size of a sum that must be 0: with a larger one, the minimum may be anywhere
_FARTHER = 2.0  # a minimum without a penalty is assumed to be at most this much farther from 0 than the iterate

Kind = Literal["bound", "estimate"]


class Gap(NamedTuple):
    """How far an objective is above its minimum, at most.

    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 0.0], l2=0.0)
    >>> gap_at(problem, problem.minimize()[None]).kind
    'estimate'
    """

    value: float
    kind: Kind


def kind_of(total: Objective, gap: float, objective: float, *, rounding_is_bounded: bool = True) -> Kind:
    """Return whether a gap is a bound, or an estimate.

    A gap that is all of an objective of losses that are not negative is a bound in any case.
    """
    is_all = total.problem.is_positive and gap >= objective
    return "bound" if is_all or (total.is_penalised and rounding_is_bounded) else "estimate"


def gap_at(problem: Linear, table: Array) -> Gap:
    """Return how far the objective at a table of coefficients is above the minimum. Some passes over the data.

    By the derivatives of the losses there, after a free bias was minimised; without an l1 term also by the dual
    variables that a step predicts.

    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 0.0], l2=1.0)
    >>> gap = gap_at(problem, np.array([[1.0]]))
    >>> gap.kind, round(gap.value, 6), round(problem.objective([1.0]) - problem.objective(problem.minimize()), 6)
    ('bound', 2.083333, 2.083333)
    """
    total = Objective(problem)
    here = total.at(total.rows.centre(table))
    point = with_best_intercept(total, here)
    gap = duality_gap(total, point, point.terms.slopes, total.rows.sums(point.terms.slopes), point.table)
    if not total.has_l1:
        system = NewtonSystem(total)
        step = system.solve(point, total.gradient(point), accuracy_of(total), 0.0)
        gap = min(gap, gap_after_step(total, point, step, system, 0.0, clips=True))
    gap = max(here.objective - point.objective, 0.0) + gap
    negligible = NEGLIGIBLE * abs(here.objective)
    rounding, is_bounded = rounding_at(problem, table, here.terms, negligible)
    value = gap + rounding if rounding > negligible else gap
    return Gap(value, kind_of(total, value, here.objective, rounding_is_bounded=is_bounded))


# --- lower bounds ---------------------------------------------------------------------------


def gap_of_gradient(total: Objective, point: Point, gradient: Array, goal: float, *, has_best_intercept: bool) -> float:
    """Bound how far the objective is above the minimum, by the derivatives at the point itself; at least up to a goal.

    Infinite if a free bias is not at its minimum.
    """
    if total.has_free_bias and not has_best_intercept:
        return math.inf
    if total.is_strongly_convex:
        return total.residual_bound(gradient)
    if not total.has_l1:
        return math.inf
    return duality_gap(total, point, point.terms.slopes, gradient - total.l2 * point.table, point.table, goal)


def gap_after_step(
    total: Objective, point: Point, step: Step, system: NewtonSystem | None, goal: float, *, clips: bool
) -> float:
    """Bound how far the objective is above the minimum, by the dual variables that a step predicts.

    Those that are not feasible are clipped, some times. The others are then moved by another step, for which the
    clipped losses have no curvature, with no more products than the step had. Nothing is clipped without a system to
    solve, or without a penalty: the minimum may be infinitely far.
    """
    problem, terms, end = total.problem, point.terms, point.table + step.table
    can_clip = clips and system is not None and total.l2.any() and not total.has_l1
    allowed = 0 if system is None else max(system.products, _FEW_PRODUCTS)
    for left in reversed(range(_CLIPS + 1 if can_clip else 1)):
        residual, outputs = _balanced(total, terms, step)
        if residual is None:
            return math.inf
        duals = terms.slopes + problem.curve(terms, outputs)
        gap = duality_gap(total, point, duals, residual - total.l2 * end, end)
        inside = duals if left == 0 or gap < math.inf else clip(problem, duals)
        clipped = np.unique(np.flatnonzero(inside != duals) // problem.outputs)
        if not len(clipped):
            return gap
        terms = terms._replace(slopes=inside, curvature=terms.curvature.copy())
        terms.curvature[clipped] = 0.0
        residual = residual + total.rows.subset(clipped).sums((inside - duals)[clipped])
        if total.residual_bound(residual) <= CERTIFIED * goal:
            step = Step(np.zeros_like(residual), np.zeros_like(duals), residual)
        else:
            assert system is not None
            step = system.solve(point._replace(terms=terms), residual, LOOSE, goal, allowed)
            allowed -= system.products
        end = end + step.table
    return math.inf


def _balanced(total: Objective, terms: Terms, step: Step) -> tuple[Array | None, Array]:
    """Return the residual and the linear predictors of a step, with a sum of the dual variables of 0 over a free bias.

    The residual is None if no loss is curved: the sum cannot be changed.
    """
    problem, residual, outputs = total.problem, step.residual, step.outputs
    rounding = NEGLIGIBLE * float(np.abs(terms.slopes).sum())
    if total.has_free_bias and np.abs(residual[:, -1]).max() > rounding:
        shift = -np.linalg.lstsq(summed_curvature(problem, terms), residual[:, -1], rcond=1e-14)[0]
        residual = residual + total.rows.sums(problem.curve(terms, np.tile(shift, (problem.n, 1))))
        outputs = outputs + shift
        if np.abs(residual[:, -1]).max() > rounding:
            return None, outputs
    return residual, outputs


def duality_gap(total: Objective, point: Point, duals: Array, sums: Array, end: Array, most: float = math.inf) -> float:
    """Return the duality gap at a point, for any dual variables whose sum over a free bias is 0.

    `sums` are A^T s, those of the rows times the dual variables. An l1 term alone allows sums up to l1: larger ones are
    scaled. Without any penalty sums must be 0. If they almost are, the minimum is assumed to be near `end`, or as far
    as a step along one coordinate leads; otherwise nothing is known. A gap that is certain to be more than `most` is
    returned as infinite, which saves the sum over the rows.
    """
    l2, l1, x = total.l2, total.l1, point.table
    if total.is_strongly_convex:
        bound = total.residual_bound(sums + l2 * x)
        return max(bound + fenchel_young(total.problem, point.outputs, point.terms, duals), 0.0)
    has_l2, only_l1 = l2 > 0.0, (l2 == 0.0) & (l1 > 0.0)
    scale = min(1.0, float(np.min(l1[only_l1] / np.maximum(np.abs(sums[only_l1]), TINY)))) if only_l1.any() else 1.0
    sums = scale * sums
    gap = float(np.sum((l1 * np.abs(x) + x * sums)[has_l2 | only_l1]))
    beyond = np.maximum(np.abs(sums) - l1, 0.0)[has_l2]
    gap += float(np.sum(beyond**2 / (2.0 * l2[has_l2]) + 0.5 * l2[has_l2] * x[has_l2] ** 2))
    if gap > most:
        return math.inf
    gap += fenchel_young(total.problem, point.outputs, point.terms, duals if scale == 1.0 else scale * duals)
    unpenalised = ~(has_l2 | only_l1)
    if total.has_free_bias:
        unpenalised[:, -1] = False
    if not unpenalised.any():
        return max(gap, 0.0)
    return max(gap, 0.0) + _gap_without_penalty(total, point, duals, sums, end, unpenalised)


def _gap_without_penalty(
    total: Objective, point: Point, duals: Array, sums: Array, end: Array, unpenalised: Array
) -> float:
    """Estimate what coefficients without a penalty add to the gap: their gradients times how far the minimum may be."""
    sizes = np.sqrt(total.rows.squares(np.square(duals).sum(axis=1)))
    if (np.abs(sums) > _BALANCED * sizes)[unpenalised].any():
        return math.inf
    curvatures = np.broadcast_to(total.rows.squares(total.problem.mean_curvatures(point.terms)), sums.shape)
    newton = np.divide(np.abs(sums), curvatures, out=np.zeros_like(sums), where=curvatures > 0.0)
    far = np.maximum(np.abs(end), newton)
    return _FARTHER * float(np.abs(sums[unpenalised]) @ far[unpenalised])


# --- rounding -------------------------------------------------------------------------------


def rounding_at(problem: Linear, table: Array, terms: Terms, most: float) -> tuple[float, bool]:
    """Return the rounding of f and of its gap at a table of coefficients, and whether that is a bound.

    It is one if the bound is at most `most`, otherwise an estimate. The linear predictor of a row is rounded by a small
    share of its parts, entries times coefficients, and the loss by this times its derivative, and half of its square
    times the curvature. The derivative by a coefficient is rounded by a small share of its parts, entries times
    derivatives of the losses. The errors of the rows are taken to be independent. That of a free bias counts by its
    square, as it is minimised.
    """
    l2 = problem.penalty.l2[: problem.width]
    loose = float(np.divide(0.5, l2, out=np.zeros(problem.width), where=(l2 > 0.0) & (problem.l1 == 0.0)).max())
    steep = OF_SUM * math.sqrt(problem.square) * float(np.abs(terms.slopes).max())
    size = math.sqrt(float(np.vdot(table, table)))
    bound = size * steep + loose * steep**2 + 0.5 * largest_curvature(problem) * (OF_SUM * size) ** 2 * problem.square
    if bound <= most:
        return bound, True
    rows, curvatures = Design.of(problem), problem.mean_curvatures(terms)
    centred, errors = rows.centre(table), rows.rounding_of_sums(terms.slopes)
    second = 0.5 * OF_SUM**2 * rows.squares(curvatures, centred=False)
    rounding = float((np.abs(centred) * errors + centred**2 * second).sum())
    if problem.has_free_bias:
        rounding += 0.5 * float(curvatures.sum() * np.square(rows.rounding_of_bias(centred)).sum())
    return rounding + gap_by_rounding(problem, centred, terms, errors), False


def gap_within_rounding(total: Objective, point: Point) -> float:
    """Estimate how far the objective is above the minimum, at a point where rounding ends all steps.

    Its intercept is at its minimum. Derivatives that are no larger than their rounding count as errors.
    """
    problem, gradient = total.problem, np.abs(total.gradient(point))
    hidden = gradient <= _HIDDEN * total.rows.rounding_of_sums(point.terms.slopes)
    rest = total.residual_bound(np.where(hidden, 0.0, gradient))
    return rest + gap_by_rounding(problem, point.table, point.terms, np.where(hidden, gradient, 0.0))


def gap_by_rounding(problem: Linear, table: Array, terms: Terms, errors: Array) -> float:
    """Estimate what errors of the gradient add to the gap: at most their squares over 2 l2.

    If the penalty is too weak to tell, the minimum is assumed to be as near as without one: see `duality_gap`.
    """
    l2 = np.broadcast_to(problem.penalty.l2.reshape(problem.outputs, -1), table.shape)
    has_l2 = (l2 > 0.0) & (problem.l1 == 0.0)
    curvatures, unknown = Design.of(problem).squares(problem.mean_curvatures(terms)) + l2, np.full(l2.shape, math.inf)
    far = np.maximum(np.abs(table), np.divide(errors, curvatures, out=unknown.copy(), where=curvatures > 0.0))
    far = np.minimum(_FARTHER * far, np.divide(0.5 * errors, l2, out=unknown, where=has_l2))
    return float(np.multiply(errors, far, out=np.zeros(l2.shape), where=has_l2).sum())
