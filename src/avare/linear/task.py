"""What a strategy is asked to do, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

from avare.linear.newton_system import NewtonSystem
from avare.linear.objective import Objective, Point
from avare.linear.preconditioners import NewtonPreconditioner
from avare.problems.rows import Array

Callback = Callable[[int, float, float], Any] | None
Status = Literal["converged", "finished", "stalled", "started"]


class Outcome(NamedTuple):
    """Where a strategy ended."""

    point: Point
    gap: float = math.inf
    steps: int = 0
    status: Status = "started"
    """"converged": the gap is at most the goal; "finished" after the last step; "stalled" if rounding or the method
    itself allow no more; "started" if the point is only a better start for the next strategy."""
    preconditioner: NewtonPreconditioner | None = None
    """For the next strategy."""


class LinearTask:
    """Minimise an objective until the gap is at most a goal.

    It begins at a point, or at the coefficients of a constant model, which are evaluated if a strategy needs that.
    """

    def __init__(
        self,
        total: Objective,
        start: Point | Array,
        goal: float,
        steps: int,
        callback: Callback = None,
        preconditioner: NewtonPreconditioner | None = None,
    ) -> None:
        self.total, self._start, self.goal, self.steps = total, start, goal, steps
        self.callback = callback
        """Receives the number of steps, the objective and the gap, before each step."""
        self.preconditioner = preconditioner
        """The first of Newton's method, from a sample of the same rows."""

    def after(self, outcome: Outcome) -> LinearTask:
        """Return what is left to do after another strategy."""
        left = self.steps - outcome.steps
        return LinearTask(self.total, outcome.point, self.goal, left, self.callback, outcome.preconditioner)

    @cached_property
    def point(self) -> Point:
        """Where to begin."""
        return self._start if isinstance(self._start, Point) else self.total.at_constant(self._start)

    @property
    def table(self) -> Array:
        """The coefficients there."""
        return self._start.table if isinstance(self._start, Point) else self._start

    @cached_property
    def system(self) -> NewtonSystem:
        """The linear systems of Newton's method."""
        return NewtonSystem(self.total, self.preconditioner)

    @property
    def is_constant(self) -> bool:
        """Whether the point is a constant model: only intercepts are not 0."""
        return not self.table[:, : self.total.rows.columns].any()


class Strategy(Protocol):
    """A module that minimises some kinds of linear models."""

    def expected_cost(self, task: LinearTask) -> float:
        """Estimate the nanoseconds that it takes to be worth a try; infinite if it cannot do the task."""

    def solve(self, task: LinearTask) -> Outcome:
        """Minimise, or make a better start."""
