"""Newton's method for linear models: exact gradients, a certified gap, no settings.

The steps are those of `newton_steps`. Few rows are enough to come near the minimum: the first steps use samples of the
rows, a sixteenth of all, a sixteenth of these, and so on, as long as there are several rows for each coefficient. Where
a step of Newton's method is expensive, first-order steps of `quasi_newton` come first, and between its steps. If X is
sparse and has fewer rows than columns, `dual_ascent` may do without any of these; other problems with fewer rows than
columns may be `turned`. Losses that are flat in parts may need stronger penalties first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.linear.column_steps import ColumnSteps
from avare.linear.design import CALL, OF_LOSS, Design
from avare.linear.dual_ascent import Ascent
from avare.linear.free_bias import constant, settled
from avare.linear.gap import (
    LOOSE,
    NEGLIGIBLE,
    TIGHT,
    gap_of_gradient,
    gap_of_slopes,
    gap_of_step,
    gap_within_rounding,
    rounding_at,
)
from avare.linear.l1_steps import L1Steps
from avare.linear.losses import terms_at
from avare.linear.newton_steps import CLOSE, Solver, Steps, by_bounds, systematic
from avare.linear.objective import TINY, Objective, Point, Step
from avare.linear.quasi_newton import Descent, search
from avare.linear.row_gradients import minimise_by_rows
from avare.linear.small import minimise_small
from avare.linear.turned import minimise_turned
from avare.problems.linear import Linear
from avare.problems.rows import Table

_STEPS = 200
_SHARE = 16  # one over the share of rows in the next smaller sample
_FEWEST, _PER_COEFFICIENT = 500, 16  # rows of a sample
_CHEAP = 100.0 * CALL  # nanoseconds of a step that needs no sample
_STEPS_OF_SAMPLE = 10  # with an l1 term
_OF_SAMPLE = 0.3  # tolerance of a sample: this share of its error, coefficients / rows
_ROUNDING = 1e-15  # relative error of a number
_PROGRESS = 0.5  # of the gap: with a larger share left, and no lower objective, a step was in vain
_OF_SET = 0.2  # of the gap: what minimising over a working set leaves
_FEWEST_COLUMNS = 100  # that are moved together, if there are violations
_AT_LEAST = 2.0  # times what is expected: what Newton's method takes if rows disturb each other in the dual
_IN_VAIN = 0.01  # of the goal: a gap that was estimated to be this small, and is not, cannot be certified
_BEFORE_PENALTIES = 30  # steps that losses which are flat in parts have before penalties are added
_PENALTIES = 10.0 ** np.arange(-2, -13, -2)  # times the largest curvatures
_REPEATS = 3  # times that rounding is looked at
_OF_GOAL = 0.01  # rounding of outputs, above which they are computed again
_PATIENCE = 3  # steps without progress, after which rounding is taken to be the limit


Callback = Callable[[int, float, float], Any] | None
Found = tuple[Point, float, int, str]
"""A point, its gap, the number of steps, and a status as that of `Minimum`."""


class Minimum(NamedTuple):
    """Where a minimisation ended."""

    table: Table
    """The coefficients, a row per output."""
    objective: float
    gap: float
    """The objective is at most this far above the minimum; infinite if that is not known, or there is none."""
    scale: float
    """The objective of the best constant model."""
    passes: float
    """How often the data was read: by a product with all rows and by one with all columns."""
    steps: int
    """Steps on all rows, and epochs of dual ascent."""
    status: str
    """"converged" if the gap is at most tol times the scale, or 1e-12 times where rounding is the limit; "stalled" if
    rounding does not allow that, or there is no minimum; "finished" after the last step."""
    method: str = "newton"
    """What ended there: "newton" or "dual ascent"."""


def newton(
    problem: Linear,
    *,
    tol: float,
    start: Table | None = None,
    steps: int = _STEPS,
    callback: Callback = None,
) -> Minimum:
    """Minimise a linear model.

    Parameters
    ----------
    problem : Linear
    tol : float
        Stop when the gap is at most this share of the objective of the best constant model.
    start : array, default=None
        The first coefficients, a row per output; by default the best constant model, or the minimum of a sample.
    steps : int, default=200
        Most steps on all rows.
    callback : callable, default=None
        Called with the number of steps, the objective and the gap, before each step.

    Examples
    --------
    >>> import avare
    >>> problem = avare.problems.LeastSquares(np.eye(3), [1.0, 2.0, 3.0], l2=1.0)
    >>> found = newton(problem, tol=1e-9)
    >>> found.status, found.table.round(6)
    ('converged', array([[0.5, 1. , 1.5]]))
    """
    flat, scale = constant(problem)
    small, taken = None, 0
    if start is None and callback is None:
        small = minimise_small(problem, flat, scale, tol * scale, steps - 1)
    if small:
        taken = small.steps
        if small.gap < math.inf and not problem.falls_without_end(small.table.ravel()):
            return Minimum(small.table, small.objective, small.gap, scale, 2.0 * taken + 1.0, taken, "converged")
        start, steps = (small.table, steps - taken) if taken else (None, steps)
    rows = Design.of(problem)
    total = Objective(problem, rows)
    minimise = partial(_minimise, goal=tol * scale, steps=steps, callback=callback)
    found = minimise_turned(total, flat, lambda part, at: minimise(part, Steps(part), at)) if start is None else None
    if found is None or not found[1] <= tol * scale:
        start = rows.centre(found[0].table, -1.0) if found else start  # rounding
        table, solver = _from_samples(total, tol) if start is None else (rows.centre(start), None)
        first = None if table is None else total.at(table, total.outputs(table))
        if first is None or not first.objective < scale:
            first = total.at(flat, np.zeros((problem.n, 1)) + flat[:, -1] * problem.model.matrix.bias)
        found = _minimise_any(total, first, solver, tol * scale, steps, callback)
    point, gap, count, status = _with_rounding(total, found, tol * scale, steps, callback)
    if status != "finished" and not gap <= tol * scale:
        status = "converged" if gap <= NEGLIGIBLE * scale else "stalled"
    table = rows.centre(point.table, -1.0)
    if problem.falls_without_end(table.ravel()):
        status, gap = "stalled", math.inf
    return Minimum(table, point.objective, gap, scale, total.passes + 2.0 * taken, count + taken, status, total.method)


def _with_rounding(total: Objective, found: Found, goal: float, steps: int, callback: Callback) -> Found:
    """Add rounding to a gap; make more steps if the goal is then missed and not yet out of reach."""
    problem, (point, gap, count, status) = total.problem, found
    for left in reversed(range(_REPEATS)):
        fresh = total.refreshed(point, _OF_GOAL * goal)
        point, gap = fresh, gap + fresh.objective - point.objective
        if status == "stalled" and total.is_held:
            point = settled(total, point)
            gap = gap_within_rounding(total, point)
            status = "converged" if gap <= goal else status
        gap = max(gap, 0.0)
        rounding = rounding_at(problem, total.rows.centre(point.table, -1.0), point.terms, goal - gap)
        rounding = rounding if point.objective != 0.0 else 0.0
        if left == 0 or status != "converged" or gap + rounding <= goal or 2.0 * rounding >= goal:
            break
        point, gap, more, status = _minimise_any(total, point, None, goal - rounding, steps - count, callback)
        count += more
    return point, gap + rounding, count, status


def _from_samples(total: Objective, tol: float) -> tuple[Table | None, Solver | None]:
    """Minimise over samples of the rows, each larger than the one before; None if there are too few rows.

    Return the minimum of the last one, and the solver of its last step.
    """
    problem, table, solver = total.problem, None, None
    sizes = sample_sizes(problem, total.rows)
    if not sizes or (problem.is_quadratic and (problem.l1 == 0.0 or total.is_direct)):
        return None, None
    generator, scores = np.random.default_rng(0), _sampling_scores(problem)
    for size in reversed(sizes):
        indices = systematic(scores, size, generator)
        weights = problem.model.sample_weight[indices] if len(problem.model.sample_weight) else 1.0
        part = Objective(problem.subset(indices, weights / (size * scores[indices])), total.rows.subset(indices))
        flat, scale = constant(part.problem)
        goal = max(tol, min(_OF_SAMPLE * problem.dim / size, 0.02)) * scale
        table = flat if table is None else table
        first = part.at(table, part.outputs(table))
        if problem.l1 > 0.0:
            table = _minimise_l1(part, first, goal, _STEPS_OF_SAMPLE, None)[0].table
        else:
            ways = Steps(part, solver)
            table, solver = _minimise(part, ways, first, goal, _STEPS, None, certify=False)[0].table, ways.solver
        total.passes += part.passes * size / problem.n
    return table, solver


def sample_sizes(problem: Linear, rows: Design) -> list[int]:
    """Return the numbers of rows of samples, from the largest to the smallest.

    A sample of rows with which steps are cheap anyway is not worth its overhead.

    The error of a sample is about (coefficients / rows). If it is small, the next sample is a sixteenth: one step leads
    from the minimum of the one almost to that of the other. Otherwise it is a quarter.
    """
    sizes, size, of_row = list[int](), problem.n, 4.0 * (rows.curve_cost(problem.outputs) - CALL) / problem.n + OF_LOSS
    while size * of_row > _CHEAP:
        size //= _SHARE if size >= _SHARE * _PER_COEFFICIENT * problem.dim else 4
        if size < max(_FEWEST, _PER_COEFFICIENT * problem.dim):
            break
        sizes.append(size)
    return sizes


def _sampling_scores(problem: Linear) -> Table:
    """Return scores that sum to 1, to draw a sample by: the sample weights, with the same sum for each class."""
    codes, sums = problem.class_weights()
    if not sums.any():
        return np.full(problem.n, 1.0 / problem.n)
    shares = np.divide(1.0, np.count_nonzero(sums) * sums, out=np.zeros(len(sums)), where=sums > 0.0)[codes]
    return shares * problem.model.sample_weight if len(problem.model.sample_weight) else shares


def _minimise_any(
    total: Objective, point: Point, solver: Solver | None, goal: float, steps: int, callback: Callback
) -> Found:
    """Minimise, with an l1 term or without; return as `_minimise` does."""
    if total.problem.l1 > 0.0:
        return _minimise_l1(total, point, goal, steps, callback)
    ways, epochs = cache(lambda: Steps(total, solver)), 0
    if steps > 0 and Ascent.serves(total, point, lambda: ways().expected):
        reached, gap, epochs, status = _ascend(total, point, goal, lambda: ways().expected, steps, callback)
        if status:
            total.method = "dual ascent"
            return reached, gap, epochs, status
    quick = minimise_by_rows(total, point.table, goal) if steps > epochs and callback is None else None
    first = min(steps, epochs + _BEFORE_PENALTIES) if total.problem.flattens else steps
    point, gap, count, status = quick or _minimise(total, ways(), point, goal, first - epochs, callback)
    count += epochs
    if status != "converged" and count < steps and total.problem.flattens:
        point, more = _by_penalties(total, point, goal, steps - count)
        point, gap, last, status = _minimise(total, Steps(total), point, goal, steps - count - more, callback)
        count += more + last
    return point, gap, count, status


def _by_penalties(total: Objective, point: Point, goal: float, steps: int) -> tuple[Point, int]:
    """Minimise with a strong l2 term first, then with ever weaker ones: for losses without curvature in parts.

    Where few losses are curved, a step of Newton's method has almost no direction. The minimum for a hundred times the
    penalty is near, and its losses are almost those that are curved at the minimum.
    """
    unit, count = total.largest_diagonal.copy(), 0
    if total.free_bias:
        unit[:, -1] = 0.0
    for strength in _PENALTIES:
        part = Objective(total.problem, total.rows)
        part.l2, part.by_rows = total.l2 + strength * unit, False
        first = part.at(point.table, point.outputs)
        point, _, taken, _ = _minimise(part, Steps(part), first, goal, steps - count, None, certify=False)
        count, total.passes, total.reach = count + taken, total.passes + part.passes, max(total.reach, part.reach)
    return total.at(point.table, point.outputs), count


def _minimise(
    total: Objective,
    ways: Steps | L1Steps,
    point: Point,
    goal: float,
    steps: int,
    callback: Callback,
    *,
    certify: bool = True,
) -> Found:
    """Make Newton steps until the gap is at most the goal; return the last point, its gap, and the number of steps.

    If nothing is to be certified, the steps end with one that promises at most the goal.
    """
    report = callback or (lambda count, objective, gap: None)
    point, more = _first_order(total, ways, point, goal)
    lower, settles, best, least = 0.0 if total.problem.is_positive else -math.inf, False, point, math.inf
    fall = math.inf if certify and lower == 0.0 else 0.0  # of the last step: the objective may itself fall to the goal
    for count in range(steps + 1):
        point = settled(total, point) if settles else point
        gap = point.objective - lower
        if gap < -goal - NEGLIGIBLE * abs(point.objective):
            lower, gap = -math.inf, math.inf  # rounding of points far away
        if not gap <= goal and count < steps + int(certify):
            gradient = total.gradient(point)
            lower = max(lower, point.objective - gap_of_gradient(total, point, gradient, goal, settles))
            gap = point.objective - lower
        if gap > _PROGRESS * least and not point.objective < best.objective * (1.0 - _ROUNDING):
            return best, least, count, "stalled"  # rounding hides all progress
        best, least = point, gap
        report(count, point.objective, gap)
        if gap <= goal or count == steps:
            break
        accuracy = LOOSE if total.l2.any() else TIGHT
        is_close = point.objective - goal <= min(fall, goal)
        step = ways.solve(point, gradient, accuracy, goal if certify and not is_close else 0.0)
        decrease = total.promise(point, gradient, step)
        if not certify:
            steps = count + 1 if decrease <= goal else steps
        elif total.problem.is_quadratic or decrease <= math.sqrt(goal * abs(point.objective)) or count == steps - 1:
            bound = gap_of_step(total, point, step, ways, goal, cuts=decrease <= CLOSE * goal)
            lower, settles = max(lower, point.objective - bound), settles or bound == math.inf
            if bound <= goal and total.problem.l1 == 0.0:
                report(count, point.objective, bound)
                return point, bound, count, "converged"
        further = _move(total, point, gradient, step, decrease, needed=point.objective - lower > goal)
        if further is None:
            return point, point.objective - lower, count, "converged" if point.objective - lower <= goal else "stalled"
        fall = min(fall, point.objective - further.objective) if is_close else fall
        point = more(point, further) if decrease > CLOSE * goal else further
    return point, gap, count, "converged" if gap <= goal else "finished"


def _ascend(
    total: Objective, point: Point, goal: float, expected: Callable[[], float], steps: int, callback: Callback
) -> Found:
    """Make epochs of dual ascent as long as they seem faster than Newton's method, whose nanoseconds are expected.

    Return as `_minimise` does. The status is empty if Newton's method is to begin.
    """
    ascent, best, status = Ascent(total, point), point, ""
    while not status and ((left := ascent.needed(goal)) == 0.0 or left * ascent.cost <= _AT_LEAST * expected()):
        ascent.advance()
        if ascent.left <= goal or ascent.epochs >= steps:
            reached, gap = _of_dual(total, ascent.outputs)
            best, lower = min(point, reached, key=lambda each: each.objective), reached.objective - gap
            if callback is not None:
                callback(ascent.epochs, best.objective, best.objective - lower)
            if gap <= goal or ascent.epochs >= steps:
                gap = best.objective - lower if best is point else gap
                status = "converged" if gap <= goal else "finished"
            elif not (gap < math.inf and ascent.left > _IN_VAIN * goal):
                break
    return best, gap if status else math.inf, ascent.epochs, status


def _of_dual(total: Objective, duals: Table) -> tuple[Point, float]:
    """Return the point at which the penalty balances the slopes that losses have at some outputs, and its gap.

    Over a free bias, slopes are changed by their derivatives so that their sum is 0, and the bias follows from them. If
    no loss is curved they cannot be, and nothing is certified.
    """
    terms, shift = terms_at(total.problem, duals), 0.0
    if total.free_bias:
        bend = max(float(terms.curvature.sum()), TINY)
        shift = -float(terms.slopes.sum()) / bend
    slopes = terms.slopes + shift * terms.curvature if shift else terms.slopes
    sums = total.sums(slopes)
    table = np.divide(-sums, total.l2, out=np.zeros_like(sums), where=total.l2 > 0.0)
    outputs = total.outputs(table)
    if total.free_bias:
        table[0, -1] = np.vdot(terms.curvature, duals + shift - outputs) / bend
        outputs += table[0, -1]
    point = total.at(table, outputs)
    is_balanced = not total.free_bias or abs(sums[0, -1]) <= NEGLIGIBLE * float(np.abs(slopes).sum())
    return point, gap_of_slopes(total, point, slopes, sums, point.table) if is_balanced else math.inf


def _first_order(
    total: Objective, ways: Steps | L1Steps, point: Point, goal: float
) -> tuple[Point, Callable[[Point, Point], Point]]:
    """Make first-order steps, if they may pay; return where they end, and what makes more after a Newton step."""
    if isinstance(ways, L1Steps):
        return point, lambda before, after: after
    descent = Descent(total, goal, ways.expected, ways.solver)
    point = descent.begin(point)
    ways.use(descent.memory, descent.spent)
    return point, lambda before, after: descent.resume(before, after, ways.spent_on_step, ways.solver)


def _minimise_l1(total: Objective, point: Point, goal: float, steps: int, callback: Callback) -> Found:
    """Minimise with an l1 term; return as `_minimise` does.

    Sweeps over columns need one output, no penalty of the bias, and losses that are curved: Huber's and the hinge are
    not everywhere.
    """
    weights, count = total.problem.model.sample_weight, 0
    counted = weights > 0.0 if len(weights) else slice(None)
    is_curved = total.problem.outputs == 1 and bool((point.terms.curvature[counted] > 0.0).all())
    if is_curved and total.free_bias == total.rows.matrix.bias:
        point, gap, count, status = _minimise_by_columns(total, point, goal, steps, callback)
        if status != "stalled":
            return point, gap, count, status
    point, gap, more, status = _minimise_by_sets(total, point, goal, steps - count, callback)
    return point, gap, count + more, status


def _minimise_by_columns(total: Objective, point: Point, goal: float, steps: int, callback: Callback) -> Found:
    """Minimise with an l1 term and one output, by steps over the columns that are not 0 or whose gradients are large.

    The slopes that a step predicts certify the point where it ends.
    """
    ways, lower, count, wasted, sums = ColumnSteps(total), -math.inf, 0, 0, None
    most = goal if callback is None else math.inf
    while count < steps and wasted < _PATIENCE:
        if callback is not None:
            callback(count, point.objective, point.objective - lower)
        if sums is None:
            sums = total.sums(point.terms.slopes)
        chosen, gradient = _column_set(total, point, sums, ways.takes_all), sums + total.l2 * point.table
        if len(chosen) == 0:  # at the minimum, unless the bias is not
            before, point, wasted, sums = point, settled(total, point), wasted + 1, None
            if point is before:
                break
            continue
        step = ways.solve(point, gradient, chosen, goal)
        end, decrease, sums = point.table + step.table, total.promise(point, gradient, step), None
        further = _move(total, point, gradient, step, decrease, ways.effort, needed=not total.problem.is_quadratic)
        if further is None:
            break
        wasted = 0 if further.objective < point.objective * (1.0 - _ROUNDING) else wasted + 1
        point, count = further, count + 1
        if total.problem.is_quadratic or decrease <= math.sqrt(goal * abs(point.objective)):
            predicted = total.sums(step.residual)
            is_usable = not total.free_bias or abs(predicted[0, -1]) <= NEGLIGIBLE * np.abs(step.residual).sum()
            gap = gap_of_slopes(total, point, step.residual, predicted, point.table, most) if is_usable else math.inf
            lower = max(lower, point.objective - gap)
            if gap <= goal:
                return point, gap, count, "converged"
            if total.problem.is_quadratic and np.array_equal(point.table, end):
                sums = predicted  # the model is exact
    status = "finished" if count == steps else "stalled"
    point = settled(total, point)
    gap = gap_of_slopes(total, point, point.terms.slopes, total.sums(point.terms.slopes), point.table)
    return point, gap, count, "converged" if gap <= goal else status


def _column_set(total: Objective, point: Point, sums: Table, takes_all: bool) -> NDArray[np.int64]:
    """Return the columns to move: those whose coefficients are not 0, and as many with the largest violations.

    All of them if that is cheap; none at the minimum.
    """
    width = total.rows.columns
    used = point.table[:, :width].any(axis=0)
    scores = np.where(used, math.inf, (np.abs(sums) - total.l1)[:, :width].max(axis=0))
    size, above = max(_FEWEST_COLUMNS, 2 * int(np.count_nonzero(used))), np.flatnonzero(scores > 0.0)
    if takes_all and len(above):
        return np.arange(width)
    if len(above) > size:
        above = np.sort(above[np.argpartition(-scores[above], size - 1)[:size]])
    return above


def _minimise_by_sets(total: Objective, point: Point, goal: float, steps: int, callback: Callback) -> Found:
    """Minimise with an l1 term, over working sets of columns; return as `_minimise` does."""
    count, least, width = 0, math.inf, total.rows.columns
    while True:
        point = settled(total, point)
        sums = total.sums(point.terms.slopes)
        gap = gap_of_slopes(total, point, point.terms.slopes, sums, point.table)
        gap = min(gap, point.objective) if total.problem.is_positive else gap
        if callback is not None:
            callback(count, point.objective, gap)
        status = "converged" if gap <= goal else "finished" if count >= steps else "stalled" if gap >= least else ""
        if status:
            return point, gap, count, status
        chosen = _column_set(total, point, sums, takes_all=width <= _FEWEST_COLUMNS)
        chosen = chosen if len(chosen) else np.arange(min(width, _FEWEST_COLUMNS))  # the bias may be far off
        size = len(chosen)
        kept = np.append(chosen, width) if total.rows.matrix.bias else chosen
        part = total if size == width else Objective(total.problem, total.rows.restrict(chosen), kept)
        first = Point(point.table[:, kept], *point[1:])
        of_part = goal if size == width else max(0.3 * goal, _OF_SET * gap)
        found, _, taken, _ = _minimise(part, L1Steps(part), first, of_part, steps - count, None)
        if part is not total:
            total.passes += part.passes * part.rows.entries / max(total.rows.entries, 1)
        table = np.zeros_like(point.table)
        table[:, kept] = found.table
        is_lower = found.objective < point.objective * (1.0 - _ROUNDING)
        count, least = count + max(taken, 1), math.inf if is_lower and size < width else gap
        point = Point(table, *found[1:])


def _move(
    total: Objective, point: Point, gradient: Table, step: Step, promise: float, effort: float = 1.0, *, needed: bool
) -> Point | None:
    """Return a point along a step, or along the gradient if a move is needed; None if rounding hides all progress."""
    further = search(total, point, step.table, step.outputs, promise, effort) if promise > 0.0 else None
    if further is None and needed:  # the model may be far from the objective
        step = by_bounds(total, point, gradient)
        promise = total.promise(point, gradient, step)
        further = search(total, point, step.table, step.outputs, promise, whole=True) if promise > 0.0 else None
    return further


def polish(problem: Linear, table: Table, tolerance: float) -> tuple[Table, float]:
    """Make steps until the norm of the gradient is at most a tolerance; return the best table, and its norm.

    They begin near the minimum, where rounding hides what the objective falls by. With an l1 term only the coefficients
    that are not 0 move.
    """
    rows = Design.of(problem)
    columns = np.flatnonzero(table[:, : rows.columns].any(axis=0)) if problem.l1 > 0.0 else np.arange(rows.columns)
    kept = np.append(columns, rows.columns) if problem.model.matrix.bias else columns
    best, least, wasted = table, float(np.linalg.norm(problem.gradient(table.ravel()))), 0
    if len(columns) < rows.columns:
        rows = rows.restrict(columns)
    total = Objective(problem, rows, kept)
    ways = L1Steps(total) if problem.l1 > 0.0 else Steps(total)
    while least > tolerance and wasted < _PATIENCE and len(columns):
        centred = rows.centre(best[:, kept])
        point = total.at(centred, total.outputs(centred))
        step = ways.solve(point, total.gradient(point), TIGHT, 0.0).table
        further = best.copy()
        further[:, kept] = rows.centre(centred + step, -1.0)
        norm = float(np.linalg.norm(problem.gradient(further.ravel()))) if np.isfinite(further).all() else math.inf
        wasted = 0 if norm < 0.5 * least else wasted + 1
        if norm < least:
            best, least = further, norm
    return best, least
