"""Newton's method with a line search, for linear models without an l1 term; its last step certifies the minimum.

Steps of L-BFGS come first where a step of Newton's method is expensive. Losses that are flat in
parts may need stronger penalties first (a homotopy in l2): where few losses are curved, a step of Newton's method has
almost no direction. The minimum for a hundred times the penalty is near, and its losses are almost those that are
curved at the minimum.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np

from avare.linear.certificates import NEGLIGIBLE, gap_after_step, gap_of_gradient
from avare.linear.intercept import with_best_intercept
from avare.linear.lbfgs import approach_by_lbfgs
from avare.linear.line_search import line_search
from avare.linear.newton_system import CLOSE, NewtonSystem, accuracy_of, by_bounds
from avare.linear.objective import Objective, Point, Step
from avare.linear.task import LinearTask, Outcome
from avare.problems.rows import Array

ROUNDING = 1e-15
"""Relative error of a number: an objective that decreases by less has not decreased."""
_PROGRESS = 0.5  # stall test: a step must at least halve the gap or lower the objective
_BEFORE_PENALTIES = 30  # steps that losses which are flat in parts have before penalties are added
_PENALTIES = 10.0 ** np.arange(-2, -13, -2)  # times the largest curvatures


class System(Protocol):
    """What solves for the steps of Newton's method."""

    def solve(self, point: Point, gradient: Array, accuracy: float, goal: float) -> Step:
        """Return a step that minimises the quadratic model."""


def expected_cost(task: LinearTask) -> float:
    """Estimate the nanoseconds of the first steps; infinite with an l1 term."""
    return math.inf if task.total.has_l1 else task.system.expected


def solve(task: LinearTask) -> Outcome:
    """Minimise by steps on all rows."""
    total = task.total
    if not total.problem.flattens:
        return descend(task, task.system)
    outcome = descend(
        LinearTask(total, task.point, task.goal, min(task.steps, _BEFORE_PENALTIES), task.callback), task.system
    )
    taken = outcome.steps
    if outcome.status == "converged" or taken >= task.steps:
        return outcome
    point, more = _by_penalties(total, outcome.point, task.goal, task.steps - taken)
    taken += more
    rest = LinearTask(total, point, task.goal, task.steps - taken, task.callback)
    outcome = descend(rest, rest.system)
    return outcome._replace(steps=outcome.steps + taken)


def descend(task: LinearTask, system: System) -> Outcome:
    """Make steps until the gap is at most the goal, or until rounding hides all progress."""
    total, goal, point = task.total, task.goal, task.point
    report = task.callback or (lambda count, objective, gap: None)
    solver = system if isinstance(system, NewtonSystem) else None
    certificate = _Certificate(total, goal, solver)
    point = approach_by_lbfgs(total, solver, point, goal) if solver else point
    best, least, gap = point, math.inf, math.inf
    # The smallest decrease of steps so far: an objective so low may itself decrease to the goal.
    smallest = math.inf if total.problem.is_positive else 0.0
    for count in range(task.steps + 1):
        point = certificate.prepare(point)
        gap = certificate.gap(point)
        if gap > _PROGRESS * least and not point.objective < best.objective * (1.0 - ROUNDING):
            return Outcome(best, least, count, "stalled")
        best, least = point, gap
        report(count, point.objective, gap)
        if gap <= goal or count == task.steps:
            break
        gradient, is_close = total.gradient(point), point.objective - goal <= min(smallest, goal)
        step = system.solve(point, gradient, accuracy_of(total), 0.0 if is_close else goal)
        decrease = total.predicted_decrease(point, gradient, step)
        if certificate.can_be(point, decrease) or count == task.steps - 1:
            bound = certificate.by_step(point, step, clips=decrease <= CLOSE * goal)
            if bound <= goal and not total.has_l1:
                report(count, point.objective, bound)
                return Outcome(point, bound, count, "converged")
        further = move(total, point, gradient, step, decrease, needed=not certificate.holds(point))
        if further is None:
            return Outcome(point, point.objective - certificate.lower, count, certificate.status(point))
        smallest = min(smallest, point.objective - further.objective) if is_close else smallest
        point = further
    return Outcome(point, gap, count, "converged" if gap <= goal else "finished")


def approach(total: Objective, system: NewtonSystem, point: Point, goal: float, steps: int) -> tuple[Point, int]:
    """Make steps, without a certificate, until the predicted decrease of one is at most the goal; count them too."""
    point = approach_by_lbfgs(total, system, point, goal)
    certain = goal if total.problem.is_positive else -math.inf
    for count in range(steps):
        if point.objective <= certain:
            return point, count
        gradient = total.gradient(point)
        step = system.solve(point, gradient, accuracy_of(total), 0.0)
        decrease = total.predicted_decrease(point, gradient, step)
        further = move(total, point, gradient, step, decrease, needed=True)
        if further is None or not further.objective < point.objective * (1.0 - ROUNDING):
            return further or point, count + 1
        point = further
        if decrease <= goal:
            return point, count + 1
    return point, steps


def move(
    total: Objective, point: Point, gradient: Array, step: Step, decrease: float, effort: float = 1.0, *, needed: bool
) -> Point | None:
    """Return a point along a step, or along the gradient if a move is needed; None if rounding hides all progress."""
    further = line_search(total, point, step.table, step.outputs, decrease, effort) if decrease > 0.0 else None
    if further is None and needed:  # the model may be far from the objective
        step = by_bounds(total, point, gradient)
        decrease = total.predicted_decrease(point, gradient, step)
        further = line_search(total, point, step.table, step.outputs, decrease, whole=True) if decrease > 0.0 else None
    return further


class _Certificate:
    """The best lower bound on the minimum so far."""

    def __init__(self, total: Objective, goal: float, system: NewtonSystem | None) -> None:
        self._total, self._goal, self._system, self._needs_intercept = total, goal, system, False
        self.lower = 0.0 if total.problem.is_positive else -math.inf

    def prepare(self, point: Point) -> Point:
        """Minimise a free bias, if the dual variables of a step could not be balanced."""
        return with_best_intercept(self._total, point) if self._needs_intercept else point

    def gap(self, point: Point) -> float:
        """Return the gap at a point; if it is above the goal, the bound by the gradient counts too."""
        if point.objective < self.lower - self._goal - NEGLIGIBLE * abs(point.objective):
            self.lower = -math.inf  # rounding of points far away
        if not point.objective - self.lower <= self._goal:
            gradient = self._total.gradient(point)
            known = self._needs_intercept
            bound = gap_of_gradient(self._total, point, gradient, self._goal, has_best_intercept=known)
            self.lower = max(self.lower, point.objective - bound)
        return point.objective - self.lower

    def can_be(self, point: Point, decrease: float) -> bool:
        """Whether a step with this decrease may certify the point: the quadratic model is then accurate."""
        return self._total.problem.is_quadratic or decrease <= math.sqrt(self._goal * abs(point.objective))

    def by_step(self, point: Point, step: Step, *, clips: bool) -> float:
        """Return the gap by the dual variables that a step predicts."""
        bound = gap_after_step(self._total, point, step, self._system, self._goal, clips=clips)
        self.lower = max(self.lower, point.objective - bound)
        self._needs_intercept = self._needs_intercept or bound == math.inf
        return bound

    def holds(self, point: Point) -> bool:
        """Whether the point is certified."""
        return not point.objective - self.lower > self._goal

    def status(self, point: Point) -> Literal["converged", "stalled"]:
        """Return how a minimisation ends here."""
        return "converged" if point.objective - self.lower <= self._goal else "stalled"


# --- losses that are flat in parts ----------------------------------------------------------


def _by_penalties(total: Objective, point: Point, goal: float, steps: int) -> tuple[Point, int]:
    """Minimise with a strong l2 term first, then with ever weaker ones; return where that ends, and the steps."""
    unit, count = total.largest_diagonal.copy(), 0
    if total.has_free_bias:
        unit[:, -1] = 0.0
    for strength in _PENALTIES:
        part = Objective(total.problem, total.rows)
        part.l2 = total.l2 + strength * unit
        first = part.at(point.table, point.outputs)
        point, taken = approach(part, NewtonSystem(part), first, goal, steps - count)
        count, total.reach = count + taken, max(total.reach, part.reach)
    return total.at(point.table, point.outputs), count
