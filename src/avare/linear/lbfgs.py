"""L-BFGS (Nocedal 1980; Liu & Nocedal 1989): first-order steps, whose iterations cost little more than one gradient.

A step of Newton's method solves a linear system, which costs many products with X, or a Hessian and its Cholesky
factor. Far from the minimum, or with a rough goal, directions from the last changes of the gradient are often enough.
The pairs that they remember also precondition the systems of Newton's method.
"""

from __future__ import annotations

import math

import numpy as np

from avare._compilation import product
from avare.linear.design import CALL
from avare.linear.line_search import line_search
from avare.linear.newton_system import NewtonSystem
from avare.linear.objective import Objective, Point
from avare.linear.preconditioners import Jacobi, NewtonPreconditioner
from avare.problems.rows import Array

_PAIRS = 10  # that are remembered, as in SciPy's L-BFGS-B
_LATELY = 4  # steps over which progress is measured
_OVERHEAD = 10.0  # operations on almost no rows that a step costs
_NEAR = 3.0  # times the goal: from there a step of Newton's method is enough, which certifies it too
_FEWEST = 2 * _LATELY  # steps at the price of Newton's method: with fewer, this one is cheap
_TRUSTED = 0.25  # of the linear decrease: if a step of half of it is expected and gives less, the next is not believed
_CURVED = 1e-12  # of a pair's lengths: with a smaller product, it has no curvature, and is not remembered
_ROUNDING = 1e-15  # relative error of a number
_SLOWEST = 0.99  # ratio of two decreases


class LbfgsDirection:
    """The inverse Hessian, roughly: by the last steps, and by a preconditioner for what they do not know."""

    exact = False

    def __init__(self, base: NewtonPreconditioner, shape: tuple[int, ...]) -> None:
        self._base, self._shape, self._scale, self._count = base, shape, 1.0, 0
        self._steps, self._changes = np.empty((2, _PAIRS, math.prod(shape)))
        self._products, self._parts = np.empty((2, _PAIRS))

    def add(self, step: Array, change: Array) -> None:
        """Remember a step, and the change of the gradient along it."""
        inner = float(np.vdot(step, change))
        if inner > _CURVED * math.sqrt(float(np.vdot(step, step)) * float(np.vdot(change, change))):
            place = self._count % _PAIRS
            self._steps[place], self._changes[place], self._products[place] = step.ravel(), change.ravel(), inner
            self._count += 1
            self._fit_scale()

    def renew(self, base: NewtonPreconditioner) -> None:
        """Replace the preconditioner."""
        self._base = base
        self._fit_scale()

    def solve(self, right: Array) -> Array:
        """Return the product with the inverse Hessian, roughly, by the two-loop recursion. O(pairs size)."""
        right = right.copy()
        arrays = (self._steps, self._changes, self._products, self._parts, self._count)
        _project(*arrays, right.ravel())
        found = self._scale * self._base.solve(right)
        _restore(*arrays, found.ravel())
        return found

    def _fit_scale(self) -> None:
        if self._count:
            last = (self._count - 1) % _PAIRS
            change = self._changes[last]
            through = self._base.solve(change.reshape(self._shape))
            self._scale = float(self._products[last]) / float(np.vdot(change, through))


def approach_by_lbfgs(total: Objective, system: NewtonSystem, point: Point, goal: float) -> Point:
    """Make first-order steps as long as they may be faster than Newton's method; return where they end.

    They end near the goal, or if the minimum is far at their pace. What they have learned is the first preconditioner
    of Newton's method.
    """
    base, cost = system.ladder.current, total.rows.curve_cost(total.problem.outputs) + _OVERHEAD * CALL
    allowed = system.expected / cost
    if total.problem.is_quadratic or (base is None and allowed < _FEWEST):
        return point  # conjugate gradients are better, or an exact step
    memory = LbfgsDirection(base or Jacobi(total, point), point.table.shape)
    certain = goal if total.problem.is_positive else -math.inf  # an objective that needs no certificate
    objectives, end, is_trusted = [point.objective], "", True
    while not objectives[-1] <= certain and not end:
        gradient = total.gradient(point)
        direction = -memory.solve(gradient)
        decrease = -float(np.vdot(gradient, direction))
        end = "near" if is_trusted and not decrease > goal else _end_of(objectives, goal, allowed)
        further = None if end else line_search(total, point, direction, total.rows.outputs(direction), decrease)
        if further is None:
            break
        memory.add(further.table - point.table, total.gradient(further) - gradient)
        is_trusted = _TRUSTED * decrease <= point.objective - further.objective <= decrease
        point = further
        objectives.append(point.objective)
    if base is None:
        memory.renew(Jacobi(total, point))
    system.ladder.replace_first(memory, len(objectives) * cost if end == "far" else 0.0)
    return point


def _end_of(objectives: list[float], goal: float, allowed: float) -> str:
    """Return whether the last decreases say that the minimum is "near", or "far" for this pace; "" if neither."""
    if len(objectives) <= 2 * _LATELY:
        return ""
    middle, goal = objectives[-1 - _LATELY], _NEAR * goal + _ROUNDING * abs(objectives[-1])
    before, decrease = objectives[-1 - 2 * _LATELY] - middle, middle - objectives[-1]
    if decrease <= goal * (1.0 - _SLOWEST):
        return "near"
    ratio = decrease / max(before, decrease / _SLOWEST)
    left = decrease * ratio / (1.0 - ratio)  # if decreases shrink by this ratio
    if left <= goal:
        return "near"
    return "far" if _LATELY * math.log(left / goal) > allowed * -math.log(ratio) else ""


# --- kernels -------------------------------------------------------------------------------


@product
def _project(steps, changes, products, parts, count, right):
    for k in range(count - 1, max(count - len(steps), 0) - 1, -1):
        place = k % len(steps)
        total = 0.0
        for a in range(len(right)):
            total += steps[place, a] * right[a]
        parts[place] = total / products[place]
        for a in range(len(right)):
            right[a] -= parts[place] * changes[place, a]


@product
def _restore(steps, changes, products, parts, count, found):
    for k in range(max(count - len(steps), 0), count):
        place = k % len(steps)
        total = 0.0
        for a in range(len(found)):
            total += changes[place, a] * found[a]
        factor = parts[place] - total / products[place]
        for a in range(len(found)):
            found[a] += factor * steps[place, a]
