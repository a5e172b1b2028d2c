"""First-order steps: L-BFGS, whose iterations cost little more than one gradient.

A step of Newton's method solves a linear system, which costs many products with X, or a matrix and its factor. Far from
the minimum, or with a rough goal, steps by the changes of the last gradients are often enough. The outputs along a step
are known, so that the search along it evaluates losses only. What the steps have learned also helps to solve the
systems of Newton's method.
"""

from __future__ import annotations

import math

import numpy as np

from avare._compilation import product, quick
from avare.linear.design import CALL
from avare.linear.newton_steps import Diagonal, Solver
from avare.linear.objective import Objective, Point
from avare.problems.rows import Table

_PAIRS = 10  # steps that are remembered
_LATELY = 4  # steps over which progress is measured
_OVERHEAD = 10.0  # operations on almost no rows that a step costs
_NEAR = 3.0  # times the goal: from there a step of Newton's method is enough, which certifies it too
_NEARER = 0.1  # of the last goal: the next, because the minimum could not be certified from there
_FEWEST = 2 * _LATELY  # steps at the price of Newton's method: with fewer, this one is cheap
_KEPT = 0.25  # of the promise, twice the decrease that is expected: if a step falls by less, the next promise is vain
_TRIALS = 30  # points on a line
_FLATTER = 0.5  # of the slope at the beginning of a line: a point with a smaller one is good enough
_REST = 0.1  # of the decrease on a line: a point from where it cannot fall by more is good enough too
_ENOUGH, _ROUNDING, _SHORTEST = 1e-4, 1e-15, 1e-12  # of the promised decrease; error of a number; of a step
_SLOWEST = 0.99  # ratio of two decreases


class Memory:
    """The inverse of H, roughly: by the last steps, and by another solver for what they do not know."""

    exact = False

    def __init__(self, base: Solver, shape: tuple[int, ...]) -> None:
        self._base, self._shape, self._scale, self._count = base, shape, 1.0, 0
        self._steps, self._changes = np.empty((2, _PAIRS, math.prod(shape)))
        self._products, self._parts = np.empty((2, _PAIRS))

    def add(self, step: Table, change: Table) -> None:
        """Take in a step, and how the gradient changed along it."""
        inner = float(np.vdot(step, change))
        if inner > 1e-12 * math.sqrt(float(np.vdot(step, step)) * float(np.vdot(change, change))):
            place = self._count % _PAIRS
            self._steps[place], self._changes[place], self._products[place] = step.ravel(), change.ravel(), inner
            self._count += 1
            self._fit_scale()

    def renew(self, base: Solver) -> None:
        """Replace the other solver."""
        self._base = base
        self._fit_scale()

    def solve(self, right: Table) -> Table:
        """Return v, roughly."""
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


class Descent:
    """L-BFGS, now and again between steps of Newton's method: as long as it is the faster one.

    Parameters
    ----------
    total : Objective
    goal : float
        What is to be left of the objective above its minimum.
    expected : float
        Nanoseconds that Newton's method is expected to take.
    solver : Solver or None
        What solves H v = right, roughly; by default the diagonal of H.
    """

    def __init__(self, total: Objective, goal: float, expected: float, solver: Solver | None) -> None:
        self._total, self._goal, self._base = total, goal, solver
        self._cost = total.rows.curve_cost(total.problem.outputs) + _OVERHEAD * CALL
        self._allowed = expected / self._cost
        self._certain = goal if total.problem.is_positive else -math.inf  # an objective that needs no certificate
        self._rate = -math.inf  # decrease per nanosecond, lately
        self.memory: Memory | None = None
        self.spent = 0.0
        """Nanoseconds of the first steps, if they ended because the minimum is far at their pace."""

    def begin(self, point: Point) -> Point:
        """Make the first steps, if they may be faster than Newton's method; return where they end."""
        if self._total.problem.is_quadratic or (self._base is None and self._allowed < _FEWEST):
            return point  # conjugate gradients are better, or an exact step
        self.memory = Memory(self._base or Diagonal(self._total, point), point.table.shape)
        point = self._run(point)
        if self._base is None:
            self.memory.renew(Diagonal(self._total, point))
        return point

    def resume(self, before: Point, point: Point, nanoseconds: float, solver: Solver | None = None) -> Point:
        """Make more steps if they were faster than the last one of Newton's method; return where they end.

        They begin with the last solver of Newton's method, unless that one is exact, and expensive.
        """
        fall, count = before.objective - point.objective, max(round(nanoseconds / self._cost), _FEWEST)
        if not fall < self._rate * nanoseconds:
            return point
        self._goal *= _NEARER
        if self.memory and solver and solver is not self.memory and not solver.exact:
            self.memory.renew(solver)
        return self._run(point, fall, count)

    def _run(self, point: Point, least_fall: float = 0.0, count: int = 0) -> Point:
        """Make steps until the minimum seems near, or seems far for this pace.

        If the decrease of a step of Newton's method is given, and the number of steps that cost the same, until the
        last ones fall less.
        """
        total, memory, heights = self._total, self.memory, [point.objective]
        assert memory is not None
        gradient, is_kept = total.gradient(point), True
        while not heights[-1] <= self._certain:
            direction = -memory.solve(gradient)
            promise = -float(np.vdot(gradient, direction))
            if (is_kept and not promise > self._goal) or self._is_last(heights, least_fall, count):
                break
            further = search(total, point, direction, total.outputs(direction), promise)
            if further is None:
                break
            change = total.gradient(further) - gradient
            memory.add(further.table - point.table, change)
            is_kept = _KEPT * promise <= point.objective - further.objective <= promise
            point, gradient = further, total.gradient(further)
            heights.append(point.objective)
        lately = heights[-1 - max(count, _LATELY) :]
        self._rate = (lately[0] - lately[-1]) / (max(len(lately) - 1, 1) * self._cost)
        return point

    def _is_last(self, heights: list[float], least_fall: float, count: int) -> bool:
        """Whether the last decreases say that the minimum is near, or far for steps at this pace."""
        rounding = _ROUNDING * abs(heights[-1])
        if count > 0:
            return len(heights) > count and heights[-1 - count] - heights[-1] <= max(least_fall, rounding)
        if len(heights) <= 2 * _LATELY:
            return False
        middle = heights[-1 - _LATELY]
        before, fall, goal = heights[-1 - 2 * _LATELY] - middle, middle - heights[-1], _NEAR * self._goal + rounding
        if fall <= goal * (1.0 - _SLOWEST):
            return True
        ratio = fall / max(before, fall / _SLOWEST)
        left = fall * ratio / (1.0 - ratio)
        if left > goal and _LATELY * math.log(left / goal) > self._allowed * -math.log(ratio):
            self.spent = len(heights) * self._cost
        return left <= goal or self.spent > 0.0


def search(
    total: Objective,
    point: Point,
    direction: Table,
    outputs: Table,
    promise: float,
    effort: float = 1.0,
    *,
    whole: bool = False,
) -> Point | None:
    """Search along a direction with given outputs, by Newton's method for one number; None if nothing is lower.

    It can begin with the whole step, and does with an l1 term. The more a step costs than a point on the line, which is
    its effort, the closer to the minimum the search ends.
    """
    l2, slack, has_l1 = total.l2 * direction, _ROUNDING * abs(point.objective), total.problem.l1 > 0.0
    curve, length, low, high = float(np.vdot(l2, direction)), 0.0, 0.0, math.inf
    slope, here, best, before = -promise, point, None, math.inf
    flatter, enough = _FLATTER / effort**2 * promise, _REST / effort**2
    for trial in range(_TRIALS):
        bend = float(np.vdot(outputs, total.problem.curve(here.terms, outputs))) + curve
        if best is here and 0.5 * slope**2 <= enough * (point.objective - here.objective) * bend:
            break
        length = length - slope / bend if bend > 0.0 else math.inf
        length = 1.0 if (whole or has_l1) and trial == 0 else length
        before, is_slow = high - low, high - low > 0.5 * before  # slopes that jump send it from one end to the other
        if is_slow or not low < length < high:
            length = 0.5 * (low + high) if high < math.inf else max(2.0 * low, 1.0)
        if length < _SHORTEST:
            break
        here = total.at(point.table + length * direction, point.outputs + length * outputs)
        slope = float(np.vdot(here.terms.slopes, outputs)) + float(np.vdot(l2, here.table))
        slope = _with_l1(total.l1.ravel(), here.table.ravel(), direction.ravel(), slope) if has_l1 else slope
        is_lower = here.objective <= point.objective - _ENOUGH * length * promise + slack
        if is_lower and (best is None or here.objective < best.objective):
            best = here
        low, high = (length, high) if slope < 0.0 and is_lower else (low, length)
        rest, fall = abs(slope) * (high - low), point.objective - here.objective
        if is_lower and (abs(slope) <= flatter or rest <= enough * fall):
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
