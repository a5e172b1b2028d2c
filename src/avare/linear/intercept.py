"""The intercept without a penalty: its minimum with all other coefficients fixed, and the best constant model."""

from __future__ import annotations

import copy
import math

import numpy as np

from avare.linear.losses import summed_curvature, terms_at
from avare.linear.objective import TINY, Objective, Point
from avare.problems.linear import Linear, Terms
from avare.problems.rows import Array, column_sums

_STEPS = 200  # of Newton's method: each at least halves an interval or lowers the losses, so that rounding ends first
_ENOUGH, _SHRINK, _SHORTEST = 1e-4, 0.3, 1e-9  # Armijo: share of the predicted decrease; backtracking; shortest step
_ROUNDING, _OF_SUM = 1e-15, 1e-14  # relative error of a number, and of a long sum
_RARELY = 1e3  # times the rounding of a sum, from where it is estimated again


def with_best_intercept(total: Objective, point: Point) -> Point:
    """Return the point after a free bias was minimised. O(n) a step."""
    if not total.has_free_bias:
        return point
    shift, terms = best_intercept(total.problem, point.outputs, point.terms)
    if not shift.any():
        return point
    table = point.table.copy()
    table[:, -1] += shift
    return Point(table, point.outputs + shift, terms, point.objective + terms.loss - point.terms.loss)


def constant_model(problem: Linear) -> tuple[Array, float]:
    """Return the best constant model, and its objective. Examples of the same class are taken together."""
    table, few = np.zeros((problem.outputs, problem.width)), problem
    if problem.target == "numbers":
        whole = problem.model.sample_weight.sum() if len(problem.model.sample_weight) else problem.n
        start = np.array([problem.weighted_sum(problem.model.targets) / max(whole, TINY)])
    else:
        sums = problem.class_weights()[1]
        labels = np.array([-1.0, 1.0]) if problem.outputs == 1 else np.arange(len(sums), dtype=np.float64)
        few = copy.copy(problem)
        few.model, few.n = problem.model._replace(targets=labels, sample_weight=sums), len(sums)
        start = np.log(sums) if sums.all() else np.zeros(len(sums))
        start = start[1:] - start[0] if problem.outputs == 1 else start - start.mean()
    outputs = np.zeros((few.n, problem.outputs))
    if not problem.has_free_bias:
        return table, terms_at(few, outputs).loss
    outputs += start
    shift, terms = best_intercept(few, outputs, terms_at(few, outputs))
    table[:, -1] = start + shift
    return table, terms.loss


def best_intercept(problem: Linear, outputs: Array, terms: Terms) -> tuple[Array, Terms]:
    """Find what to add to all linear predictors of each output so that the losses are least; return the losses too."""
    return (_best_of_one if problem.outputs == 1 else _best_of_several)(problem, outputs, terms)


def _best_of_one(problem: Linear, outputs: Array, terms: Terms) -> tuple[Array, Terms]:
    """Use Newton's method, kept inside of an interval that holds the minimum."""
    shift, low, high, width, most = 0.0, -math.inf, math.inf, 1.0, math.inf
    for _ in range(_STEPS):
        slope, curvature = float(terms.slopes.sum()), float(terms.curvature.sum())
        if abs(slope) <= most:
            rounding = _OF_SUM * float(np.abs(terms.slopes).sum())
            rounding += _ROUNDING * float(np.abs(terms.curvature[:, 0]) @ np.abs(outputs[:, 0] + shift))
            if abs(slope) <= rounding:
                break
            most = _RARELY * rounding
        low, high = (low, shift) if slope > 0.0 else (shift, high)
        further = shift - slope / curvature if curvature > 0.0 else math.nan
        if not low < further < high:
            width *= 2.0
            is_bracketed = high - low < math.inf
            further = 0.5 * (low + high) if is_bracketed else shift - math.copysign(width, slope)
        if further == shift:
            break
        shift, terms = further, terms_at(problem, outputs + further)
    return np.array([shift]), terms


def _best_of_several(problem: Linear, outputs: Array, terms: Terms) -> tuple[Array, Terms]:
    """Use Newton's method with backtracking."""
    shift = np.zeros(problem.outputs)
    for _ in range(_STEPS):
        slopes = column_sums(terms.slopes)
        step = -np.linalg.lstsq(summed_curvature(problem, terms), slopes, rcond=1e-14)[0]
        decrease, length = -0.5 * float(slopes @ step), 1.0
        if not decrease > _ROUNDING * terms.loss:
            break
        further = terms_at(problem, outputs + shift + step)
        while further.loss > terms.loss - _ENOUGH * length * decrease and length > _SHORTEST:
            length *= _SHRINK
            further = terms_at(problem, outputs + shift + length * step)
        if further.loss >= terms.loss:
            break
        shift, terms = shift + length * step, further
    return shift, terms
