"""How far an objective is above its minimum, at most: bounds by duality.

For any slopes s whose sum over a free bias is 0, the dual objective is a lower bound on the minimum. With a
step v from x, the slopes s + C A v that its quadratic model predicts, C with the second derivatives of the losses, are
far better than those at x: the lower bound is then as good as x + v. Predicted slopes may be out of the range of a
loss, most often those of long rows. Near the goal they are cut to their range, and another step, for which the losses
that were cut have no curvature, moves the others. In any case, with the bias minimised exactly, the slopes at x give
the bound |g|^2 / (2 l2).
"""

from __future__ import annotations

import math

import numpy as np

from avare.linear.design import OF_SUM, Design
from avare.linear.free_bias import settled
from avare.linear.l1_steps import L1Steps
from avare.linear.losses import clip, fenchel_young
from avare.linear.newton_steps import CERTIFIED, Steps
from avare.linear.objective import TINY, Objective, Point, Step, largest_curvature
from avare.problems.linear import Linear, Terms
from avare.problems.rows import Table

LOOSE, TIGHT = 0.1, 1e-8
"""Accuracy of a step, relative to the gradient."""
NEGLIGIBLE = 1e-12
"""Gap, relative to the scale: less is not to be had where rounding is the limit."""
_HIDDEN = 10.0  # times the error that is expected
_CUTS = 3  # times that slopes are cut to their range
_FEW_PRODUCTS = 10  # with which cut slopes may be balanced anyway
_BALANCED = 1e-6  # of the size of a sum that must be 0: with a larger one, the minimum may be anywhere
_FARTHER = 2.0  # a minimum without a penalty is taken to be at most this much farther from 0 than the iterate


def gap_at(problem: Linear, table: Table) -> float:
    """Bound how far the objective at a table is above the minimum.

    The bound is by the slopes there, after a free bias was minimised; without an l1 term also by those that a step
    predicts.
    """
    rows = Design.of(problem)
    total, centred = Objective(problem, rows), rows.centre(table)
    here = total.at(centred, total.outputs(centred))
    point = settled(total, here)
    gap = gap_of_slopes(total, point, point.terms.slopes, rows.sums(point.terms.slopes), point.table)
    if problem.l1 == 0.0:
        accuracy = LOOSE if total.l2.any() else TIGHT
        ways = Steps(total)
        step = ways.solve(point, total.gradient(point), accuracy, 0.0)
        gap = min(gap, gap_of_step(total, point, step, ways, 0.0, cuts=True))
    gap = max(here.objective - point.objective, 0.0) + gap
    negligible = NEGLIGIBLE * abs(here.objective)
    rounding = rounding_at(problem, table, here.terms, negligible)
    return gap + rounding if rounding > negligible else gap


def gap_of_gradient(total: Objective, point: Point, gradient: Table, goal: float, is_settled: bool) -> float:
    """Bound how far the objective is above the minimum, by the slopes at the point itself; at least up to a goal."""
    if total.free_bias and not is_settled:
        return math.inf
    if total.is_held:
        return total.slack(gradient)
    if total.problem.l1 == 0.0:
        return math.inf
    return gap_of_slopes(total, point, point.terms.slopes, gradient - total.l2 * point.table, point.table, goal)


def gap_of_errors(problem: Linear, table: Table, terms: Terms, errors: Table) -> float:
    """Bound what errors of the gradient add to the gap, at most: their squares over 2 l2.

    If the penalty is too weak to tell, the minimum is taken to be as near as without one: see `gap_of_slopes`.
    """
    l2 = np.broadcast_to(problem.penalty.l2.reshape(problem.outputs, -1), table.shape)
    held = (l2 > 0.0) & (problem.l1 == 0.0)
    bends = Design.of(problem).squares(problem.mean_curvatures(terms)) + l2
    far = np.maximum(np.abs(table), np.divide(errors, bends, out=np.full(l2.shape, math.inf), where=bends > 0.0))
    far = np.minimum(_FARTHER * far, np.divide(0.5 * errors, l2, out=np.full(l2.shape, math.inf), where=held))
    return float(np.multiply(errors, far, out=np.zeros(l2.shape), where=held).sum())


def rounding_at(problem: Linear, table: Table, terms: Terms, most: float) -> float:
    """Estimate the rounding of f and its gap at a table of coefficients; a bound if that is at most `most`.

    The output of a row is rounded by a small share of its parts, entries times coefficients, and the loss by this
    times its slope, and half of its square times the curvature. The derivative by a coefficient is rounded by a
    small share of its parts, entries times slopes. The errors of the rows are taken to be independent. That of a
    free bias counts by its square, as it is minimised.
    """
    l2 = problem.penalty.l2[: problem.width]
    loose = float(np.divide(0.5, l2, out=np.zeros(problem.width), where=(l2 > 0.0) & (problem.l1 == 0.0)).max())
    steep = OF_SUM * math.sqrt(problem.square) * float(np.abs(terms.slopes).max())
    size = math.sqrt(float(np.vdot(table, table)))
    bound = size * steep + loose * steep**2 + 0.5 * largest_curvature(problem) * (OF_SUM * size) ** 2 * problem.square
    if bound <= most:
        return bound
    rows, curvatures = Design.of(problem), problem.mean_curvatures(terms)
    centred, errors = rows.centre(table), rows.rounding_of_sums(terms.slopes)
    bends = 0.5 * OF_SUM**2 * rows.squares(curvatures, centred=False)
    rounding = float((np.abs(centred) * errors + centred**2 * bends).sum())
    if problem.has_free_bias:
        rounding += 0.5 * float(curvatures.sum() * np.square(rows.rounding_of_bias(centred)).sum())
    return rounding + gap_of_errors(problem, centred, terms, errors)


def gap_within_rounding(total: Objective, point: Point) -> float:
    """Bound how far the objective is above the minimum, by the slopes at a settled point where rounding ends all steps.

    Derivatives that are no larger than their rounding count as errors.
    """
    problem, gradient = total.problem, np.abs(total.gradient(point))
    hidden = gradient <= _HIDDEN * total.rows.rounding_of_sums(point.terms.slopes)
    errors = np.where(hidden, gradient, 0.0)
    rest = total.slack(np.where(hidden, 0.0, gradient))
    return rest + gap_of_errors(problem, point.table, point.terms, errors)


def gap_of_step(total: Objective, point: Point, step: Step, ways: Steps | L1Steps, goal: float, *, cuts: bool) -> float:
    """Bound how far the objective is above the minimum, by the slopes that a step predicts.

    Slopes that are out of range are cut, some times. The others then balance the cut: by another step, for which the
    losses that were cut have no curvature, with no more products than the step had. Nothing is cut with an l1 term,
    whose steps do not balance anything, or without a penalty: the minimum may be infinitely far.
    """
    problem, terms, end = total.problem, point.terms, point.table + step.table
    can_cut = cuts and isinstance(ways, Steps) and total.l2.any() and not total.l1.any()
    allowed = max(ways.products, _FEW_PRODUCTS) if isinstance(ways, Steps) else 0
    for left in reversed(range(_CUTS + 1 if can_cut else 1)):
        residual, outputs = _without_sum(total, terms, step)
        if residual is None:
            return math.inf
        slopes = terms.slopes + problem.curve(terms, outputs)
        gap = gap_of_slopes(total, point, slopes, residual - total.l2 * end, end)
        inside = slopes if left == 0 or gap < math.inf else clip(problem, slopes)
        cut = np.unique(np.flatnonzero(inside != slopes) // problem.outputs)
        if not len(cut):
            return gap
        terms = terms._replace(slopes=inside, curvature=terms.curvature.copy())
        terms.curvature[cut] = 0.0
        total.passes += 0.5 * len(cut) / problem.n
        residual = residual + total.rows.subset(cut).sums((inside - slopes)[cut])
        if total.slack(residual) <= CERTIFIED * goal:
            step = Step(np.zeros_like(residual), np.zeros_like(slopes), residual)
        else:
            assert isinstance(ways, Steps)
            step = ways.solve(point._replace(terms=terms), residual, LOOSE, goal, allowed)
            allowed -= ways.products
        end = end + step.table
    return math.inf


def _without_sum(total: Objective, terms: Terms, step: Step) -> tuple[Table | None, Table]:
    """Return the residual and the outputs of a step, changed so that the sum of the slopes over a free bias is 0."""
    problem, residual, outputs = total.problem, step.residual, step.outputs
    rounding = NEGLIGIBLE * float(np.abs(terms.slopes).sum())
    if total.free_bias and np.abs(residual[:, -1]).max() > rounding:
        shift = -np.linalg.lstsq(problem.summed_curvature(terms), residual[:, -1], rcond=1e-14)[0]
        total.passes += 0.5
        residual = residual + total.rows.sums(problem.curve(terms, np.tile(shift, (problem.n, 1))))
        outputs = outputs + shift
        if np.abs(residual[:, -1]).max() > rounding:  # no loss is curved
            return None, outputs
    return residual, outputs


def gap_of_slopes(
    total: Objective, point: Point, slopes: Table, sums: Table, end: Table, most: float = math.inf
) -> float:
    """Bound how far the objective is above the minimum, by any slopes whose sum over a free bias is 0.

    `sums` are those of the rows times the slopes. An l1 term alone allows sums up to l1: larger slopes are scaled.
    Without any penalty sums must be 0. If they almost are, the minimum is taken to be near `end`, or as far as a step
    along one coordinate leads; otherwise nothing is known. A gap that is certain to be more than `most` is returned as
    infinite, which saves the sum over the rows.
    """
    l2, l1, x = total.l2, total.l1, point.table
    if total.is_held:
        return max(total.slack(sums + l2 * x) + fenchel_young(total.problem, point.outputs, point.terms, slopes), 0.0)
    held, bounded = l2 > 0.0, (l2 == 0.0) & (l1 > 0.0)
    scale = min(1.0, float(np.min(l1[bounded] / np.maximum(np.abs(sums[bounded]), TINY)))) if bounded.any() else 1.0
    sums = scale * sums
    gap = float(np.sum((l1 * np.abs(x) + x * sums)[held | bounded]))
    beyond = np.maximum(np.abs(sums) - l1, 0.0)[held]
    gap += float(np.sum(beyond**2 / (2.0 * l2[held]) + 0.5 * l2[held] * x[held] ** 2))
    if gap > most:
        return math.inf
    gap += fenchel_young(total.problem, point.outputs, point.terms, slopes if scale == 1.0 else scale * slopes)
    open_ones = ~(held | bounded)
    if total.free_bias:
        open_ones[:, -1] = False
    if not open_ones.any():
        return max(gap, 0.0)
    total.passes += 1.0
    sizes = np.sqrt(total.rows.squares(np.square(slopes).sum(axis=1)))
    if (np.abs(sums) > _BALANCED * sizes)[open_ones].any():
        return math.inf
    bends = np.broadcast_to(total.rows.squares(total.problem.mean_curvatures(point.terms)), sums.shape)
    far = np.maximum(np.abs(end), np.divide(np.abs(sums), bends, out=np.zeros_like(sums), where=bends > 0.0))
    return max(gap, 0.0) + _FARTHER * float(np.abs(sums[open_ones]) @ far[open_ones])
