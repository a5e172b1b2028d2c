"""First-order steps: L-BFGS, whose iterations cost one product with X each.

A step of Newton's method solves a linear system, which costs many products, or a matrix and its factor. Far from the
minimum, or for a rough goal, steps by the changes of the last gradients are enough. The outputs along a step are known,
so that a search along it evaluates losses only. What the steps have learned also serves to solve Newton's systems.
"""

from __future__ import annotations

import math

import numpy as np

from avare.problems.newton_steps import Objective, Point, Solver
from avare.problems.rows import Table

_PAIRS = 10  # steps that are remembered
_LATELY = 4  # iterations over which progress is measured
_TRIALS = 10  # points on a line
_FLATTER = 0.5  # of the slope at the beginning of a line: a point with a smaller one is good enough
_NEAR = 10.0  # times the goal: from there Newton's method takes one step, which certifies it too
_ENOUGH = 1e-4  # of the promised decrease


class Memory:
    """The inverse of H, roughly: from the last steps, and from another solver that knows less or is older."""

    exact = False

    def __init__(self, base: Solver) -> None:
        self._base = base
        self._pairs: list[tuple[Table, Table, float]] = []
        self._scale = 1.0

    def add(self, step: Table, change: Table) -> None:
        """Take in a step, and how the gradient changed along it."""
        product = float(np.vdot(step, change))
        if product > 1e-12 * math.sqrt(float(np.vdot(step, step)) * float(np.vdot(change, change))):
            self._pairs = [*self._pairs[1 - _PAIRS :], (step, change, product)]
            self._scale = product / float(np.vdot(change, self._base.solve(change)))

    def renew(self, base: Solver) -> None:
        self._base = base
        if self._pairs:
            _, change, product = self._pairs[-1]
            self._scale = product / float(np.vdot(change, base.solve(change)))

    def solve(self, right: Table) -> Table:
        """Return v, roughly."""
        right, parts = right.copy(), []
        for step, change, product in reversed(self._pairs):
            parts.append(float(np.vdot(step, right)) / product)
            right -= parts[-1] * change
        found = self._scale * self._base.solve(right)
        for step, change, product in self._pairs:
            found += (parts.pop() - float(np.vdot(change, found)) / product) * step
        return found


def descend(
    total: Objective, point: Point, gradient: Table, base: Solver, goal: float, allowed: float
) -> tuple[Point, Table, Memory]:
    """Make steps until the objective seems to be near the minimum, or until the rest would take too many steps."""
    memory, heights = Memory(base), [point.objective]
    while True:
        direction = -memory.solve(gradient)
        promise = -float(np.vdot(gradient, direction))
        if not promise > goal or _is_last(heights, _NEAR * goal, allowed):
            return point, gradient, memory
        further = _along(total, point, direction, promise, total.outputs(direction))
        if further is None:
            return point, gradient, memory
        change = total.gradient(further) - gradient
        memory.add(further.table - point.table, change)
        point, gradient = further, gradient + change
        heights.append(point.objective)


def _is_last(heights: list[float], goal: float, allowed: float) -> bool:
    """Whether the height left, by the last decreases, is at most the goal, or too much for the steps allowed."""
    if len(heights) <= 2 * _LATELY:
        return False
    middle = heights[-1 - _LATELY]
    ratio = min((middle - heights[-1]) / (heights[-1 - 2 * _LATELY] - middle), 0.99)
    left = (middle - heights[-1]) * ratio / (1.0 - ratio)
    return left <= goal or _LATELY * math.log(left / goal) > allowed * -math.log(ratio)


def _along(total: Objective, point: Point, direction: Table, promise: float, outputs: Table) -> Point | None:
    """Search along a direction, by Newton's method for one number."""
    length, low, high = 0.0, 0.0, math.inf
    slope, here, best = -promise, point, None
    for _ in range(_TRIALS):
        bend = float(np.vdot(outputs, total.problem.curve(here.terms, outputs))) + float(np.vdot(total.l2 * direction, direction))
        length = length - slope / bend if bend > 0.0 else math.inf
        if not low < length < high:
            length = 0.5 * (low + high) if high < math.inf else max(2.0 * low, 1.0)
        here = total.at(point.table + length * direction, point.outputs + length * outputs)
        slope = float(np.vdot(here.terms.slopes, outputs)) + float(np.vdot(total.l2 * here.table, direction))
        if here.objective <= point.objective - _ENOUGH * length * promise + 1e-15 * abs(point.objective):
            best = here if best is None or here.objective < best.objective else best
            if abs(slope) <= _FLATTER * promise:
                break
        low, high = (low, length) if slope > 0.0 or here.objective > point.objective else (length, high)
    return best
