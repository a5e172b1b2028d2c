"""Minimise a linear model, by the first of a few strategies that certifies the goal.

A strategy is a module with two functions. ``expected_cost(task)`` is infinite if it cannot do the task, or if another
one is cheaper; ``solve(task)`` returns where it ended. They are tried in the order of `STRATEGIES`, each from where the
one before ended:

- `small`: Newton's method in one kernel, if X is small;
- `dual_ascent`: dual coordinate ascent, if X is sparse and has fewer rows than columns;
- `row_basis`: the same problem in a basis of the rows, if these are fewer than the columns;
- `samples`: only a better start, from samples of many rows;
- `coordinate_descent`, then `working_sets`, with an l1 term;
- `newton` in all other cases.

Then the rounding of the result is added to its gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from avare.linear import coordinate_descent, dual_ascent, newton, row_basis, samples, small, working_sets
from avare.linear.certificates import NEGLIGIBLE, Kind, gap_within_rounding, kind_of, rounding_at
from avare.linear.existence import has_no_minimum
from avare.linear.intercept import constant_model, with_best_intercept
from avare.linear.objective import Objective
from avare.linear.task import Callback, LinearTask, Outcome, Status, Strategy
from avare.problems.linear import Linear
from avare.problems.rows import Array

STEPS = 200
"""Most steps on all rows."""
STRATEGIES: tuple[Strategy, ...] = (
    small,
    dual_ascent,
    row_basis,
    samples,
    coordinate_descent,
    working_sets,
    newton,
)
_REPEATS = 3  # times that rounding is looked at
_OF_GOAL = 0.01  # rounding of linear predictors, above which they are computed again


class Minimum(NamedTuple):
    """Where a minimisation ended.

    >>> import avare
    >>> found: Minimum = solve(avare.problems.LeastSquares([[1.0]], [2.0], l2=1.0), tol=1e-9)
    >>> found.table, round(found.objective, 6), found.gap_kind
    (array([[1.]]), 1.0, 'bound')
    """

    table: Array
    """The coefficients, a row per output."""
    objective: float
    gap: float
    """The objective is at most this far above the minimum; infinite if that is not known, or there is none."""
    gap_kind: Kind
    """"bound", or "estimate" if some coefficients have no penalty, or if rounding is estimated."""
    scale: float
    """The objective of the best constant model."""
    steps: int
    """Steps on all rows, and epochs of dual ascent."""
    status: Status
    """"converged" if the gap is at most tol times the scale, or 1e-12 times where rounding is the limit; "stalled" if
    rounding does not allow that, or there is no minimum; "finished" after the last step."""
    method: str = "newton"
    """What ended there: "newton" or "dual ascent"."""


def solve(
    problem: Linear,
    *,
    tol: float,
    start: Array | None = None,
    steps: int = STEPS,
    callback: Callback = None,
    strategies: Sequence[Strategy] = STRATEGIES,
) -> Minimum:
    """Minimise a linear model.

    Parameters
    ----------
    problem : Linear
    tol : float
        Stop when the gap is at most this share of the objective of the best constant model.
    start : array, default=None
        The first coefficients, a row per output; by default the best constant model.
    steps : int, default=200
        Most steps on all rows.
    callback : callable, default=None
        Called with the number of steps, the objective and the gap, before each step.
    strategies : sequence of modules, default=STRATEGIES
        What may be tried, in this order.

    Examples
    --------
    >>> import avare
    >>> problem = avare.problems.LeastSquares([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0], l2=1.0)
    >>> found = solve(problem, tol=1e-9)
    >>> found.status, found.gap_kind, found.table.round(6)
    ('converged', 'bound', array([[0.5, 1. ]]))
    """
    flat, scale = constant_model(problem)
    total, goal = Objective(problem), tol * scale
    first = flat if start is None else total.at(total.rows.centre(start))
    task = LinearTask(total, first, goal, steps, callback)
    outcome, last = _try(strategies, task)
    outcome, is_bounded = _with_rounding(task, outcome, [each for each in strategies if each is not row_basis])
    gap, status, point = outcome.gap, outcome.status, outcome.point
    if status != "finished" and not gap <= goal:
        status = "converged" if gap <= NEGLIGIBLE * scale else "stalled"
    table = total.rows.centre(point.table, -1.0)
    if has_no_minimum(problem, table.ravel()):
        status, gap = "stalled", math.inf
    kind = kind_of(total, gap, point.objective, rounding_is_bounded=is_bounded)
    method = "dual ascent" if last is dual_ascent else "newton"
    return Minimum(table, point.objective, gap, kind, scale, outcome.steps, status, method)


def _try(strategies: Sequence[Strategy], task: LinearTask) -> tuple[Outcome, Strategy | None]:
    """Try strategies until one ends; return where, and which one."""
    outcome, steps, last = Outcome(task.point, math.inf, 0, "stalled"), 0, None
    for strategy in strategies:
        if strategy.expected_cost(task) < math.inf:
            outcome, last = strategy.solve(task), strategy
            steps += outcome.steps
            if outcome.status in ("converged", "finished"):
                break
            task = task.after(outcome)
    return outcome._replace(steps=steps), last


def _with_rounding(task: LinearTask, outcome: Outcome, strategies: Sequence[Strategy]) -> tuple[Outcome, bool]:
    """Add rounding to a gap; make more steps if the goal is then missed and not yet out of reach.

    Return also whether the rounding is a bound.
    """
    total, goal = task.total, task.goal
    for left in reversed(range(_REPEATS)):
        fresh, is_bounded = total.refreshed(outcome.point, _OF_GOAL * goal), True
        gap, status = outcome.gap + fresh.objective - outcome.point.objective, outcome.status
        if status == "stalled" and total.is_strongly_convex:
            fresh = with_best_intercept(total, fresh)
            gap, is_bounded = gap_within_rounding(total, fresh), False
            status = "converged" if gap <= goal else status
        gap = max(gap, 0.0)
        table = total.rows.centre(fresh.table, -1.0)
        rounding, is_known = (
            rounding_at(total.problem, table, fresh.terms, goal - gap) if fresh.objective != 0.0 else (0.0, True)
        )
        outcome = Outcome(fresh, gap + rounding, outcome.steps, status)
        if left == 0 or status != "converged" or gap + rounding <= goal or 2.0 * rounding >= goal:
            break
        rest = LinearTask(total, fresh, goal - rounding, task.steps - outcome.steps, task.callback)
        more, _ = _try(strategies, rest)
        outcome = more._replace(steps=outcome.steps + more.steps)
    return outcome, is_bounded and is_known
