"""A bias without a penalty: its minimum, with all other coefficients fixed."""

from __future__ import annotations

import copy
import math

import numpy as np

from avare.linear.losses import terms_at
from avare.linear.objective import TINY, Objective, Point
from avare.problems.linear import Linear, Terms
from avare.problems.rows import Table, column_sums

_STEPS = 200
_ENOUGH, _SHRINK, _SHORTEST = 1e-4, 0.3, 1e-9  # of the promised decrease; factor of a step that is too long; least
_ROUNDING, _OF_SUM = 1e-15, 1e-14  # relative error of a number, and of a long sum
_RARELY = 1e3  # times the rounding of a sum, from where it is estimated again


def constant(problem: Linear) -> tuple[Table, float]:
    """Return the best constant model, and its objective. Examples of the same class are taken together."""
    table = np.zeros((problem.outputs, problem.width))
    if problem.target == "numbers":
        few, start = problem, np.array([problem.weighted_sum(problem.model.targets)]) / max(_weight(problem), TINY)
    else:
        sums = problem.class_weights()[1]
        few, start = copy.copy(problem), np.log(sums) if sums.min() > 0.0 else np.zeros(len(sums))
        labels = np.array([-1.0, 1.0]) if problem.outputs == 1 else np.arange(len(sums), dtype=np.float64)
        few.model, few.n = problem.model._replace(targets=labels, sample_weight=sums), len(sums)
        start = np.diff(start) if problem.outputs == 1 else start - start.mean()
    outputs = np.zeros((few.n, problem.outputs))
    if not problem.has_free_bias:
        return table, terms_at(few, outputs).loss
    outputs += start
    shift, terms = settle(few, outputs, terms_at(few, outputs))
    table[:, -1] = start + shift
    return table, terms.loss


def _weight(problem: Linear) -> float:
    return problem.weighted_sum(np.ones(problem.n))


def settled(total: Objective, point: Point) -> Point:
    """Return the point after a free bias was minimised."""
    if not total.free_bias:
        return point
    shift, terms = settle(total.problem, point.outputs, point.terms)
    if not shift.any():
        return point
    table = point.table.copy()
    table[:, -1] += shift
    return Point(table, point.outputs + shift, terms, point.objective + terms.loss - point.terms.loss)


def settle(problem: Linear, outputs: Table, terms: Terms) -> tuple[Table, Terms]:
    """Find what to add to all outputs of each column so that the sum of the losses is least, and the losses there."""
    return (_settle_one if problem.outputs == 1 else _settle_several)(problem, outputs, terms)


def _settle_one(problem: Linear, outputs: Table, terms: Terms) -> tuple[Table, Terms]:
    """Find what to add to all outputs: by Newton's method, kept inside of an interval that holds the minimum."""
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


def _settle_several(problem: Linear, outputs: Table, terms: Terms) -> tuple[Table, Terms]:
    """Find what to add to the outputs of each class: by Newton's method."""
    shift = np.zeros(problem.outputs)
    for _ in range(_STEPS):
        slopes = column_sums(terms.slopes)
        step = -np.linalg.lstsq(problem.summed_curvature(terms), slopes, rcond=1e-14)[0]
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
