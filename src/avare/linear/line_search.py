"""A line search for linear models: the linear predictors along a direction are known, so that it reads no data.

It ends at a point that satisfies Armijo's condition (a sufficient decrease) and whose slope along the line is small,
or from where little decrease is left. It is Newton's method for one number, kept inside of an interval.
"""

from __future__ import annotations

import math

import numpy as np

from avare._compilation import quick
from avare.linear.objective import Objective, Point
from avare.problems.rows import Array

_TRIALS = 30  # points on a line: twenty halvings and ten doublings, so that a search ends if numbers do not behave
_FLATTER = 0.5  # of the slope at the beginning of a line: a point with a smaller one is good enough (Wolfe)
_REST = 0.1  # of the decrease on a line: a point from where it cannot decrease by more is good enough too
_ENOUGH = 1e-4  # Armijo: share of the predicted decrease (Nocedal & Wright, section 3.1)
_ROUNDING, _SHORTEST = 1e-15, 1e-12  # relative error of a number; shortest step


def line_search(
    total: Objective,
    point: Point,
    direction: Array,
    outputs: Array,
    decrease: float,
    effort: float = 1.0,
    *,
    whole: bool = False,
) -> Point | None:
    """Return a point along a direction with given linear predictors and linear decrease; None if nothing is lower.

    It can begin with the whole step, and does with an l1 term. The more a step costs than a point on the line, which is
    its effort, the closer to the minimum the search ends.
    """
    l2, rounding = total.l2 * direction, _ROUNDING * abs(point.objective)
    penalty_curvature, length, low, high = float(np.vdot(l2, direction)), 0.0, 0.0, math.inf
    slope, here, best, before = -decrease, point, None, math.inf
    flatter, enough = _FLATTER / effort**2 * decrease, _REST / effort**2
    for trial in range(_TRIALS):
        curvature = float(np.vdot(outputs, total.problem.curve(here.terms, outputs))) + penalty_curvature
        if best is here and 0.5 * slope**2 <= enough * (point.objective - here.objective) * curvature:
            break
        length = length - slope / curvature if curvature > 0.0 else math.inf
        length = 1.0 if (whole or total.has_l1) and trial == 0 else length
        before, is_slow = high - low, high - low > 0.5 * before  # slopes that jump send it from one end to the other
        if is_slow or not low < length < high:
            length = 0.5 * (low + high) if high < math.inf else max(2.0 * low, 1.0)
        if length < _SHORTEST:
            break
        here = total.at(point.table + length * direction, point.outputs + length * outputs)
        slope = float(np.vdot(here.terms.slopes, outputs)) + float(np.vdot(l2, here.table))
        slope = _with_l1(total.l1.ravel(), here.table.ravel(), direction.ravel(), slope) if total.has_l1 else slope
        is_lower = here.objective <= point.objective - _ENOUGH * length * decrease + rounding
        if is_lower and (best is None or here.objective < best.objective):
            best = here
        low, high = (length, high) if slope < 0.0 and is_lower else (low, length)
        rest, so_far = abs(slope) * (high - low), point.objective - here.objective
        if is_lower and (abs(slope) <= flatter or rest <= enough * so_far):
            break
    return best


# --- kernels -------------------------------------------------------------------------------


@quick
def _with_l1(l1, x, direction, slope):
    """Add the l1 term to the slope along a direction; of all slopes at a kink, return the one closest to 0."""
    kink = 0.0
    for a in range(len(x)):
        if x[a] == 0.0:
            kink += l1[a] * abs(direction[a])
        else:
            slope += l1[a] * (direction[a] if x[a] > 0.0 else -direction[a])
    return math.copysign(max(abs(slope) - kink, 0.0), slope)
