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
from avare.linear.preconditioners import Jacobi, Preconditioner
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

    def __init__(self, base: Preconditioner, shape: tuple[int, ...]) -> None:
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

    def renew(self, base: Preconditioner) -> None:
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


class LbfgsPhase:
    """Steps of L-BFGS before those of Newton's method: as long as they are the faster ones.

    Parameters
    ----------
    total : Objective
    goal : float
        What is to be left of the objective above its minimum.
    system : NewtonSystem or None
        That of Newton's method, whose preconditioner and cost are used; without one, no step is made.
    """

    def __init__(self, total: Objective, goal: float, system: NewtonSystem | None) -> None:
        self._total, self._goal, self._system = total, goal, system
        self._base = None if system is None else system.ladder.current
        self._cost = total.rows.curve_cost(total.problem.outputs) + _OVERHEAD * CALL
        self._allowed = 0.0 if system is None else system.expected / self._cost
        self._certain = goal if total.problem.is_positive else -math.inf  # an objective that needs no certificate
        self.direction: LbfgsDirection | None = None
        self._spent = 0.0  # nanoseconds of the first steps, if they ended because the minimum is far at their pace

    def begin(self, point: Point) -> Point:
        """Make the first steps, if they may be faster than Newton's method; return where they end.

        What they have learned is the first preconditioner of Newton's method.
        """
        is_cheap = self._base is None and self._allowed < _FEWEST
        if self._system is None or self._total.problem.is_quadratic or is_cheap:
            return point  # conjugate gradients are better, or an exact step
        self.direction = LbfgsDirection(self._base or Jacobi(self._total, point), point.table.shape)
        point = self._run(point)
        if self._base is None:
            self.direction.renew(Jacobi(self._total, point))
        self._system.ladder.replace_first(self.direction, self._spent)
        return point

    def _run(self, point: Point) -> Point:
        """Make steps until the minimum seems near, or seems far for this pace."""
        total, memory, objectives = self._total, self.direction, [point.objective]
        assert memory is not None
        gradient, is_trusted = total.gradient(point), True
        while not objectives[-1] <= self._certain:
            direction = -memory.solve(gradient)
            decrease = -float(np.vdot(gradient, direction))
            if (is_trusted and not decrease > self._goal) or self._is_last(objectives):
                break
            further = line_search(total, point, direction, total.rows.outputs(direction), decrease)
            if further is None:
                break
            memory.add(further.table - point.table, total.gradient(further) - gradient)
            is_trusted = _TRUSTED * decrease <= point.objective - further.objective <= decrease
            point, gradient = further, total.gradient(further)
            objectives.append(point.objective)
        return point

    def _is_last(self, objectives: list[float]) -> bool:
        """Whether the last decreases say that the minimum is near, or far for steps at this pace."""
        if len(objectives) <= 2 * _LATELY:
            return False
        middle, goal = objectives[-1 - _LATELY], _NEAR * self._goal + _ROUNDING * abs(objectives[-1])
        before, decrease = objectives[-1 - 2 * _LATELY] - middle, middle - objectives[-1]
        if decrease <= goal * (1.0 - _SLOWEST):
            return True
        ratio = decrease / max(before, decrease / _SLOWEST)
        left = decrease * ratio / (1.0 - ratio)  # if decreases shrink by this ratio
        if left > goal and _LATELY * math.log(left / goal) > self._allowed * -math.log(ratio):
            self._spent = len(objectives) * self._cost
        return left <= goal or self._spent > 0.0


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
