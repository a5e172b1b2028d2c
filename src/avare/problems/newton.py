"""Newton's method for linear models without an l1 term: exact gradients, a certified gap, no settings.

A step is the solution v of H v = -g, with the gradient g and the second derivative H. There are several ways to it, and
which one is cheapest depends on the shape of the data:

- factorise H: O(n width^2), for narrow data hardly more than reading X;
- factorise in the space of the rows, if there are fewer rows than columns;
- conjugate gradients, preconditioned by the diagonal: a few products with X if the penalty is strong or columns are
  nearly orthogonal, as in text;
- conjugate gradients, preconditioned by the factor of an earlier step.

How many products conjugate gradients will need is not known beforehand. They run until they have cost as much as a new
factor; then the factor is made. This costs at most twice as much as the better choice, whatever the data.

Few rows are enough to come near the minimum. The first steps use samples of the rows: a sixteenth of all, a sixteenth
of these, and so on, as long as there are several rows for each coefficient.

The gap. For the slopes s of the losses at x, the dual objective bounds the minimum from below if the sum of s over a
free bias is 0, and then f(x) - min f <= |g|^2 / (2 l2). To make it so, the bias is minimised exactly, for which X is
not needed. Without a penalty, the slopes are corrected by a Newton step v = -H^-1 g: those of s + C A v have the sum 0
over all columns, and the gap is the sum of the losses and of the conjugates of these slopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from avare.problems.rows import CALL, Rows, Table, factor_cost

if TYPE_CHECKING:
    from avare.problems.linear import Linear, Terms

_STEPS = 200
_SHARE = 16  # one over the share of rows in the next smaller sample
_FEWEST, _PER_COEFFICIENT = 500, 16  # rows of a sample
_OF_SAMPLE = 0.3  # tolerance of a sample: this share of its error, coefficients / rows
_LOOSE, _TIGHT = 0.1, 1e-6  # accuracy of a step, relative to the gradient
_ENOUGH, _SHRINK, _SHORTEST = 1e-4, 0.3, 1e-9  # of the promised decrease; factor of a step that is too long; least
_MOST_PRODUCTS = 1000  # for one step
_WIDEST = 8000  # size of a matrix that is factorised
_ROUNDING = 1e-15
_NEGLIGIBLE = 1e-12  # gap, relative to the scale: less is not to be had where rounding is the limit
_PROGRESS = 0.5  # of the gap: with a larger share left, and no lower objective, a step was in vain
_CHEAP = 16.0  # products with X, there and back, that a factor may cost
_NOTHING = 5e7  # nanoseconds of a fit: other methods have fixed costs of this order
_TINY = float(np.finfo(np.float64).tiny)


class Minimum(NamedTuple):
    """Where a minimisation ended."""

    table: Table
    """The coefficients, a row per output."""
    objective: float
    gap: float
    """The objective is at most this far above the minimum; infinite if that is not known."""
    scale: float
    """The objective of the best constant model."""
    passes: float
    """How often the data was read: by a product with all rows and by one with all columns."""
    steps: int
    """Steps on all rows."""
    status: str
    """"converged" if the gap is at most tol times the scale, or 1e-12 times where rounding is the limit; "stalled" if
    rounding does not allow that; "finished" after the last step."""


class _Point(NamedTuple):
    table: Table
    outputs: Table
    terms: Terms
    objective: float


class _Objective:
    """The losses of some rows and the penalty, by the coefficients for centred rows."""

    def __init__(self, problem: Linear, rows: Rows) -> None:
        self.problem, self.rows, self.passes = problem, rows, 0.0
        self.l2 = problem.penalty.l2.reshape(problem.outputs, problem.width)
        self.free_bias = problem.has_free_bias

    def at(self, table: Table, outputs: Table, tolerance: float) -> _Point:
        """Evaluate the losses for given outputs, after a free bias was minimised to a tolerance."""
        terms = self.problem.terms_at(outputs)
        if self.free_bias:
            settle = _settle_one if self.problem.outputs == 1 else _settle_several
            shift, terms = settle(self.problem, outputs, terms, tolerance)
            if shift.any():
                table, outputs = table.copy(), outputs + shift
                table[:, -1] += shift
        return _Point(table, outputs, terms, terms.loss + 0.5 * float(np.vdot(self.l2 * table, table)))

    def outputs(self, table: Table) -> Table:
        self.passes += 0.5
        return self.rows.outputs(table)

    def gradient(self, point: _Point) -> Table:
        self.passes += 0.5
        return self.rows.sums(point.terms.slopes) + self.l2 * point.table

    def curve(self, point: _Point, direction: Table) -> Table:
        """Multiply the second derivative by a direction."""
        self.passes += 0.5
        curved = self.rows.sums(self.curve_outputs(point, direction)) + self.l2 * direction
        curved[:, -1] += self.stiffness(point) * direction[:, -1].sum()
        return curved

    def stiffness(self, point: _Point) -> float:
        """Return what to add to the curvature of free biases along their sum, by which softmax does not change."""
        several = self.free_bias and self.problem.outputs > 1
        return float(self.problem.mean_curvatures(point.terms).sum()) if several else 0.0

    def curve_outputs(self, point: _Point, direction: Table) -> Table:
        """Return how much the slopes change along a direction, to first order."""
        return self.problem.curve(point.terms, self.outputs(direction))


def _settle_one(problem: Linear, outputs: Table, terms: Terms, tolerance: float) -> tuple[Table, Terms]:
    """Find what to add to all outputs: by Newton's method, kept inside of an interval that holds the minimum."""
    shift, low, high, width = 0.0, -math.inf, math.inf, 1.0
    for _ in range(_STEPS):
        slope, curvature = float(terms.slopes.sum()), float(terms.curvature.sum())
        if slope**2 <= 2.0 * tolerance * curvature or abs(slope) <= _ROUNDING * float(np.abs(terms.slopes).sum()):
            break
        low, high = (low, shift) if slope > 0.0 else (shift, high)
        further = shift - slope / curvature if curvature > 0.0 else math.nan
        if not low < further < high:
            width *= 2.0
            is_bracketed = high - low < math.inf
            further = 0.5 * (low + high) if is_bracketed else shift - math.copysign(width, slope)
        if further == shift:
            break
        shift, terms = further, problem.terms_at(outputs + further)
    return np.array([shift]), terms


def _settle_several(problem: Linear, outputs: Table, terms: Terms, tolerance: float) -> tuple[Table, Terms]:
    """Find what to add to the outputs of each class: by Newton's method."""
    shift = np.zeros(problem.outputs)
    for _ in range(_STEPS):
        slopes = terms.slopes.sum(axis=0)
        step = -np.linalg.lstsq(problem.summed_curvature(terms), slopes, rcond=1e-14)[0]
        decrease, length = -0.5 * float(slopes @ step), 1.0
        if not decrease > tolerance:
            break
        further = problem.terms_at(outputs + shift + step)
        while further.loss > terms.loss - _ENOUGH * length * decrease and length > _SHORTEST:
            length *= _SHRINK
            further = problem.terms_at(outputs + shift + length * step)
        if further.loss >= terms.loss:
            break
        shift, terms = shift + length * step, further
    return shift, terms


# --- ways to a step -------------------------------------------------------------------------


class _Solver(Protocol):
    exact: bool

    def solve(self, right: Table) -> Table:
        """Solve H v = right, exactly or about."""


class _Diagonal:
    exact = False

    def __init__(self, total: _Objective, point: _Point) -> None:
        diagonal = total.rows.squares(total.problem.mean_curvatures(point.terms)) + total.l2
        self._diagonal = np.maximum(diagonal, 1e-12 * diagonal.max() + _TINY)

    def solve(self, right: Table) -> Table:
        return right / self._diagonal


class _Factor:
    """A Cholesky factor, after scaling to a unit diagonal; if the matrix is singular, of one a little larger."""

    def __init__(self, matrix: Table, *, exact: bool = True) -> None:
        from scipy.linalg.lapack import dpotrf

        diagonal = np.diag_indices_from(matrix)
        self._scale = 1.0 / np.sqrt(np.maximum(matrix[diagonal], _TINY))
        matrix *= self._scale[:, None]
        matrix *= self._scale
        self.exact, added, fault = exact, 0.0, 1
        while fault and added < 1.0:
            tried = matrix.copy(order="F")
            tried[diagonal] += added
            self._lower, fault = dpotrf(tried, lower=1, overwrite_a=1)
            if fault:
                added, self.exact = max(1e3 * added, 1e-13), False

    def solve(self, right: Table) -> Table:
        from scipy.linalg.lapack import dpotrs

        found, _ = dpotrs(self._lower, (right.reshape(-1, len(self._scale)) * self._scale).T, lower=1)
        return (found.T * self._scale).reshape(right.shape)


def _by_columns(total: _Objective, point: _Point) -> _Factor:
    """Factorise the same matrix for each output: with the mean curvature of the outputs."""
    matrix = total.rows.gram(total.problem.mean_curvatures(point.terms))
    matrix[np.diag_indices_from(matrix)] += total.l2[0]
    return _Factor(matrix, exact=total.problem.outputs == 1)


def _by_outputs_and_columns(total: _Objective, point: _Point) -> _Factor:
    """Factorise the whole second derivative of several outputs."""
    outputs, width = total.l2.shape
    matrix = np.zeros((outputs * width, outputs * width), order="F")
    for k in range(outputs):
        for j in range(k + 1):
            sign = 1.0 if k == j else -1.0  # second derivatives by two outputs are not positive
            part = np.tril(total.rows.gram(sign * total.problem.curvature_of_pair(point.terms, k, j)))
            part += np.tril(part, -1).T
            matrix[k * width : (k + 1) * width, j * width : (j + 1) * width] = sign * part
    matrix[np.diag_indices_from(matrix)] += total.l2.ravel()
    matrix[width - 1 :: width, width - 1 :: width] += total.stiffness(point)
    return _Factor(matrix)


class _ByRows:
    """Solve in the space of the rows, with R^2 = C and K = A A^T.

    (l2 + A^T C A)^-1 = (1 - A^T R (l2 + R K R)^-1 R A) / l2.
    """

    exact = True

    def __init__(self, total: _Objective, point: _Point, kernel: Table) -> None:
        self._rows, self._l2 = total.rows, float(total.l2[0, 0])
        self._free, self._curvatures = total.free_bias, total.problem.mean_curvatures(point.terms)
        self._roots = np.sqrt(self._curvatures)
        matrix = kernel * self._roots[:, None]
        matrix *= self._roots
        matrix[np.diag_indices_from(matrix)] += self._l2
        self._factor = _Factor(matrix)
        self.exact = self._factor.exact

    def solve(self, right: Table) -> Table:
        found = self._without_bias(right)
        if self._free:
            sums = self._rows.sums(self._curvatures[:, None])
            along = self._without_bias(sums)
            bias = (right[0, -1] - sums[0, :-1] @ found[0, :-1]) / (sums[0, -1] - sums[0, :-1] @ along[0, :-1])
            found -= bias * along
            found[0, -1] = bias
        return found

    def _without_bias(self, right: Table) -> Table:
        right = right.copy()
        if self._free:
            right[0, -1] = 0.0
        inner = self._factor.solve((self._roots * self._rows.outputs(right)[:, 0])[None])[0]
        found = (right - self._rows.sums((self._roots * inner)[:, None])) / self._l2
        if self._free:
            found[0, -1] = 0.0
        return found


class _Steps:
    """Solve for steps, each in the way that seems cheapest."""

    def __init__(self, total: _Objective) -> None:
        self._total, rows, outputs = total, total.rows, total.problem.outputs
        self.product = 2.0 * (outputs * rows.product_cost() + CALL)
        """Nanoseconds of a product with H."""
        self._solver: _Solver | None = None
        self._made_at: _Point | None = None
        self._spent = 0.0  # on products since the factor was made
        self._kernel: Table | None = None
        l2 = total.l2[:, : rows.columns]
        by_columns = rows.gram_cost() + factor_cost(rows.width) if rows.width <= _WIDEST else math.inf
        by_rows = by_all = math.inf
        if outputs == 1 and rows.n < rows.columns and rows.n <= _WIDEST and l2.min() > 0.0:
            by_rows = factor_cost(rows.n) + 6.0 * rows.product_cost()
        if outputs > 1 and outputs * rows.width <= _WIDEST:
            by_all = 0.5 * outputs * (outputs + 1) * rows.gram_cost() + factor_cost(outputs * rows.width)
        self._way: Callable[[_Objective, _Point], _Solver] = _by_columns if by_columns <= by_rows else self._by_rows
        self.factor = min(by_columns, by_rows)
        """Nanoseconds of a factor."""
        if by_all < max(2.0 * self.factor, 4.0 * self.product):  # exact, where the others would still need products
            self._way, self.factor = _by_outputs_and_columns, by_all

    def solve(self, point: _Point, gradient: Table, accuracy: float) -> Table:
        """Return v with |H v + g| <= accuracy |g|, or smaller."""
        if self.factor <= 2.0 * self.product:
            self._make(point)
        solver = self._solver or _Diagonal(self._total, point)
        left, found = -gradient, np.zeros_like(gradient)
        goal = accuracy * math.sqrt(float(np.vdot(left, left)))
        direction, height = None, 1.0
        for _ in range(_MOST_PRODUCTS):
            if solver.exact and self._made_at is point:
                return found + solver.solve(left)
            towards = solver.solve(left)
            before, height = height, float(np.vdot(left, towards))
            direction = towards if direction is None else towards + (height / before) * direction
            curved = self._total.curve(point, direction)
            size = height / max(float(np.vdot(direction, curved)), _TINY)
            found, left = found + size * direction, left - size * curved
            self._spent += self.product
            if math.sqrt(float(np.vdot(left, left))) <= goal:
                break
            if self._spent > self.factor and self._made_at is not point:
                self._make(point)
                assert self._solver is not None
                solver, direction = self._solver, None
        return found

    def _make(self, point: _Point) -> None:
        self._solver, self._made_at, self._spent = self._way(self._total, point), point, 0.0

    def _by_rows(self, total: _Objective, point: _Point) -> _ByRows:
        if self._kernel is None:
            self._kernel = total.rows.kernel()
        return _ByRows(total, point, self._kernel)


# --- the method -----------------------------------------------------------------------------


def newton(
    problem: Linear,
    *,
    tol: float,
    start: Table | None = None,
    steps: int = _STEPS,
    callback: Callable[[int, float, float], Any] | None = None,
) -> Minimum:
    """Minimise a linear model without an l1 term.

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
    model = problem.model
    rows = Rows(model.matrix, problem.n, problem.width, model.sample_weight, centred=problem.has_free_bias)
    total = _Objective(problem, rows)
    constant = total.at(*_constant(problem), 0.0)
    scale = constant.objective
    first, table = constant, _from_samples(total, tol) if start is None else rows.centre(start)
    if table is not None:
        tried = total.at(table, total.outputs(table), 1e-3 * tol * scale)
        first = tried if tried.objective < constant.objective else constant
    point, gap, count, status = _minimise(total, first, tol * scale, steps, callback)
    if status == "stalled" and gap <= _NEGLIGIBLE * scale:
        status = "converged"
    return Minimum(rows.centre(point.table, -1.0), point.objective, gap, scale, total.passes, count, status)


def is_cheap(problem: Linear) -> bool:
    """Whether a factor of the second derivative costs no more than some products with X, or next to nothing.

    A step of Newton's method needs a factor, or many products if columns are correlated. Where a factor is dear, as
    with many dense columns, methods that need neither may be better.
    """
    rows = Rows(problem.model.matrix, problem.n, problem.width, np.empty(0), centred=False)
    total = _Objective(problem, rows)
    steps = _Steps(total)
    return steps.factor <= _CHEAP * steps.product or 10.0 * (steps.factor + 4.0 * steps.product) <= _NOTHING


def _constant(problem: Linear) -> tuple[Table, Table]:
    """Return the table of a constant model, nearly the best one, and its outputs."""
    table = np.zeros((problem.outputs, problem.width))
    if problem.has_free_bias:
        table[:, -1] = problem.constant_outputs()
    return table, np.tile(table[:, -1] if problem.has_free_bias else np.zeros(problem.outputs), (problem.n, 1))


def _from_samples(total: _Objective, tol: float) -> Table | None:
    """Minimise over samples of the rows, each larger than the one before; None if there are too few rows."""
    problem, sizes, table = total.problem, [], None
    size = problem.n // _SHARE
    while size >= max(_FEWEST, _PER_COEFFICIENT * problem.dim):
        sizes.append(size)
        size //= _SHARE
    if not sizes:
        return None
    generator, scores = np.random.default_rng(0), problem.sampling_scores()
    for size in reversed(sizes):
        indices = _systematic(scores, size, generator)
        weights = problem.model.sample_weight[indices] if len(problem.model.sample_weight) else 1.0
        part = _Objective(problem.subset(indices, weights / (size * scores[indices])), total.rows.subset(indices))
        first = part.at(*_constant(part.problem), 0.0)
        goal = max(tol, _OF_SAMPLE * problem.dim / size) * first.objective
        if table is not None:
            first = part.at(table, part.outputs(table), 0.1 * goal)
        table = _minimise(part, first, goal, _STEPS, None)[0].table
        total.passes += part.passes * size / problem.n
    return table


def _systematic(scores: Table, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw indices in proportion to scores that sum to 1, evenly spread."""
    ends = np.cumsum(scores)
    places = (np.arange(size) + generator.random(size)) / size * ends[-1]
    return np.minimum(np.searchsorted(ends, places, side="right"), np.flatnonzero(scores)[-1])


def _minimise(
    total: _Objective, point: _Point, goal: float, steps: int, callback: Callable[[int, float, float], Any] | None
) -> tuple[_Point, float, int, str]:
    """Make Newton steps until the gap is at most the goal; return the last point, its gap, and the number of steps."""
    ways, best, least = _Steps(total), point, math.inf
    for count in range(steps + 1):
        point, gradient, gap = _certified(total, point, goal, ways)
        if gap > _PROGRESS * least and not point.objective < best.objective * (1.0 - _ROUNDING):
            return best, least, count, "stalled"  # rounding hides all progress
        best, least = point, gap
        if callback is not None:
            callback(count, point.objective, gap)
        if gap <= goal:
            return point, gap, count, "converged"
        if count == steps:
            break
        accuracy = min(_LOOSE, max(_LOOSE * math.sqrt(goal / gap), _TIGHT))
        step = ways.solve(point, gradient, accuracy)
        further = _line_search(total, point, step, -float(np.vdot(gradient, step)), goal)
        if further is None:
            return point, gap, count, "stalled"
        point = further
    return point, gap, steps, "finished"


def _line_search(total: _Objective, point: _Point, step: Table, decrease: float, goal: float) -> _Point | None:
    """Return the first point along a step that is low enough; None if rounding hides all progress."""
    if not decrease > 0.0:
        return None
    outputs, length = total.outputs(step), 1.0
    slack = _ROUNDING * abs(point.objective)
    while length > _SHORTEST:
        tried = total.at(point.table + length * step, point.outputs + length * outputs, 1e-2 * min(decrease, goal))
        if tried.objective <= point.objective - _ENOUGH * length * decrease + slack:
            return tried
        length *= _SHRINK
    return None


def _certified(total: _Objective, point: _Point, goal: float, ways: _Steps) -> tuple[_Point, Table, float]:
    """Return a point, its gradient and a bound on its gap; a free bias is at its minimum if the goal seems reached."""
    gradient = total.gradient(point)
    gap = _gap(total, point, gradient, ways)
    if gap <= goal and total.free_bias:
        settled = total.at(point.table, point.outputs, 0.0)
        if settled.table is not point.table:
            gradient = total.gradient(settled)
            return settled, gradient, _gap(total, settled, gradient, ways)
    return point, gradient, gap


def _gap(total: _Objective, point: _Point, gradient: Table, ways: _Steps) -> float:
    """Bound how far the objective is above the minimum."""
    held = total.l2 > 0.0
    if (held if not total.free_bias else held[:, :-1]).all():
        return 0.5 * float(np.sum(gradient[held] ** 2 / total.l2[held]))
    correction = total.curve_outputs(point, ways.solve(point, gradient, _TIGHT))
    return max(point.terms.loss + total.problem.conjugate(point.terms.slopes + correction), 0.0)
