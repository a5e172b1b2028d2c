"""Steps of Newton's method: ways to solve H v = -g for the second derivative H of a linear model.

Conjugate gradients need products with H, and a preconditioner. The better it is, the fewer products are needed, and the
more it costs. From the cheapest to the best:

- the diagonal of H;
- a factor of H for a sample of the rows, drawn in proportion to how much each can change H: with n rows per column,
  each product leaves about the root of 1 / n of the error;
- a factor of H itself, by columns or, if there are fewer of these, by rows: the step is exact.

With several outputs, a factor is one block per output, or a factor for all pairs of them, if that is not too large.

Which one is the best for some data is not known beforehand, only what each costs. The first choice is by the cost model
of `rows`. A solver is replaced by a better one if the products that seem to be left, by the rate of the last ones, cost
more; at the latest when its steps have cost as much as those of the next better one would. This is at most roughly
twice as expensive as the best choice, whatever the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare.linear.design import CALL, factor_cost
from avare.linear.losses import fenchel_young
from avare.linear.objective import TINY, WIDEST, Objective, Point, Step
from avare.problems.rows import Table

_MOST_PRODUCTS, _REPEATS = 1000, 3  # for one step; with a factor of H itself
_SHARES = (1.0 / 64.0, 1.0 / 16.0, 1.0 / 4.0)  # of the rows, for factors of samples
_ROWS_PER_COLUMN = 2.0  # of a sample, at least
_BY_DIAGONAL = 8.0  # products that are expected for a step with the diagonal; nobody knows
_BY_BLOCKS = 5.0  # products that are expected for a step with one factor per output
_OF_PRODUCT = 4.0  # operations on almost no rows that come with a product
_OF_DRAWING, _OF_DRAWN_ROW = 10.0, 16.0  # operations on almost no rows, and nanoseconds per row
_STEPS_AHEAD = 3.0  # expected steps with one solver
_LADDER = 3.0  # times the cost of a solver: what the next better one must cost for both to be tried
_EARLY = 8.0  # times what a solver has cost so far: a better one that costs less replaces it if that seems to pay
_AT_ONCE = 2.0  # times what first-order steps have cost in vain: a solver that costs less replaces them at once
_UNSTEADY = 4  # products after which a residual that has grown says something
_TENTH = 4.6  # logarithm of 100: the residual's square falls as much if the residual falls to a tenth
CERTIFIED = 0.2  # of the goal: what the error of a last step may add to the gap
_NO_CURVATURE = 1e-200  # of the largest: columns may have scales that differ by ten to the 100
_NOISE = 1e-13  # of a diagonal of 1: a smaller pivot is rounding
_FLAT = 1e-14  # curvature, relative to that of the preconditioner: less is none
NEAR, CLOSE = 30.0, 4.0
"""Times the goal: a step that promises less may be the last, and is to certify it; also if slopes must be cut."""


# --- preconditioners ------------------------------------------------------------------------


class Solver(Protocol):
    """What solves H v = right, exactly or roughly."""

    exact: bool

    def solve(self, right: Table) -> Table:
        """Return v."""


class Diagonal:
    """One over the diagonal of H."""

    exact = False

    def __init__(self, total: Objective, point: Point) -> None:
        self.values = total.diagonal(point)

    def solve(self, right: Table) -> Table:
        """Return v, roughly."""
        return right / self.values


class Factor:
    """A Cholesky factor, after scaling to a unit diagonal; if the matrix is singular, of one a little larger.

    Coordinates without curvature do not move. If ``drops``, neither do those that others determine: without a penalty,
    rounding would be all that moves them, and far.
    """

    def __init__(self, matrix: Table, *, exact: bool = True, drops: bool = False) -> None:
        from scipy.linalg.lapack import dpotrf, dpstrf

        self._scale, self._kept, added = np.empty(len(matrix)), None, 0.0
        self.exact = bool(_to_unit_diagonal(matrix, self._scale)) and exact
        self._lower, fault = dpotrf(matrix, lower=1)
        if drops and (fault or diagonal_of(self._lower).min(initial=1.0) ** 2 < _NOISE):
            factor, places, rank, fault = dpstrf(matrix, lower=1, tol=_NOISE)
            self._kept, self._lower, self.exact = places[:rank] - 1, np.asfortranarray(factor[:rank, :rank]), False
            return
        while fault and added < 1.0:
            added, self.exact = max(1e3 * added, _NOISE), False
            tried = matrix.copy(order="F")
            diagonal_of(tried)[:] += added
            self._lower, fault = dpotrf(tried, lower=1, overwrite_a=1)

    def solve(self, right: Table) -> Table:
        """Return v; a table is one vector, or one for each of its rows if these have the size of the matrix."""
        from scipy.linalg.blas import dtrsv
        from scipy.linalg.lapack import dpotrs

        found = right.reshape(-1, len(self._scale)) * self._scale
        parts = found if self._kept is None else found[:, self._kept]
        if len(parts) == 1:  # in half of the time
            solved = dtrsv(self._lower, dtrsv(self._lower, parts[0], lower=1), lower=1, trans=1)[None]
        else:
            solved = dpotrs(self._lower, parts.T, lower=1)[0].T
        if self._kept is not None:
            found[:] = 0.0
            found[:, self._kept] = solved
            solved = found
        return (solved * self._scale).reshape(right.shape)


class Blocks:
    """One factor per output, for what differs between the outputs.

    Softmax does not change if all outputs do by the same number: along the mean of the outputs, H is the penalty alone.
    One factor per output does not know this, and would make small steps there.
    """

    exact = False

    def __init__(self, solve: Callable[[Table], Table], l2: Table) -> None:
        self._solve, self._l2 = solve, l2

    def solve(self, right: Table) -> Table:
        """Return v, roughly."""
        mean = right.mean(axis=0)
        found = self._solve(right - mean)
        along = np.divide(mean, self._l2, out=np.zeros_like(mean), where=self._l2 > 0.0)
        return found - found.mean(axis=0) + along


def diagonal_of(matrix: Table) -> Table:
    """Return the diagonal of a matrix, on the same memory."""
    return np.einsum("ii->i", matrix)


def by_columns(total: Objective, point: Point, share: float = 1.0) -> Solver:
    """Factorise H, or its blocks if there are several outputs, of all rows or of a sample."""
    outputs, factors = total.problem.outputs, []
    sample = _draw(total, point, share) if share < 1.0 else None
    for k in range(outputs):
        matrix = _block(total, point, k, k, sample)
        diagonal_of(matrix)[:] += total.l2[k]
        factors.append(Factor(matrix, exact=share == 1.0 and outputs == 1, drops=not total.l2.any()))
    if outputs == 1:
        return factors[0]
    return Blocks(
        lambda right: np.vstack([each.solve(row) for each, row in zip(factors, right, strict=True)]), total.l2[0]
    )


def by_classes(total: Objective, point: Point, share: float = 1.0) -> Solver:
    """Factorise H with all pairs of outputs, of all rows or of a sample."""
    sample = _draw(total, point, share) if share < 1.0 else None
    return Factor(whole_matrix(total, point, sample), exact=share == 1.0, drops=not total.l2.any())


def _block(total: Objective, point: Point, k: int, j: int, sample: tuple[NDArray[np.int64], Table] | None) -> Table:
    """Return the second derivative of the losses by the coefficients of two outputs; by different ones, minus this."""
    if sample is None:
        return total.rows.gram(total.problem.curvature_of_pair(point.terms, k, j))
    chosen, weights = sample
    return total.rows.gram(weights * total.problem.curvature_of_pair(point.terms, k, j, chosen), chosen)


def _draw(total: Objective, point: Point, share: float) -> tuple[NDArray[np.int64], Table]:
    """Draw rows in proportion to how much each can change H, with their weights.

    Half of the draws follow the curvature, half the curvature times the squared length of the row in the metric of the
    diagonal: a bound on what the row can add to H relative to it. The only row of a rare column is then not missed.
    """
    curvatures = total.problem.mean_curvatures(point.terms)
    scores = curvatures * total.lengths(point)
    scores = scores / max(float(scores.sum()), TINY) + curvatures / max(float(curvatures.sum()), TINY)
    scores = scores if scores.any() else np.ones_like(scores)
    indices = systematic(scores, int(share * total.rows.n), np.random.default_rng(0))
    return indices, 1.0 / (len(indices) * scores[indices] / scores.sum())


def systematic(scores: Table, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw indices in proportion to scores, evenly spread."""
    indices = np.empty(size, dtype=np.int64)
    _pick(scores, (np.arange(size) + generator.random(size)) * (float(scores.sum()) / size), indices)
    return indices


def whole_matrix(total: Objective, point: Point, sample: tuple[NDArray[np.int64], Table] | None = None) -> Table:
    """Return the second derivative by all coefficients, of all rows or of a sample; only its lower triangle counts."""
    outputs, width = total.l2.shape
    matrix = np.zeros((outputs * width, outputs * width), order="F")
    for k in range(outputs):
        for j in range(k + 1):
            part = _block(total, point, k, j, sample)
            sign = 1.0 if k == j else -1.0  # second derivatives by two outputs are not positive
            _insert(part, sign, matrix[k * width : (k + 1) * width, j * width : (j + 1) * width])
    diagonal_of(matrix)[:] += total.l2.ravel()
    for column, stiff in enumerate(total.stiffness(point)):
        matrix[column::width, column::width] += stiff
    return matrix


class ByRows:
    """Solve in the space of the rows, with R^2 = C and K = A A^T; for one output.

    (l2 + A^T C A)^-1 = (1 - A^T R (l2 + R K R)^-1 R A) / l2.
    """

    def __init__(self, total: Objective, curvatures: Table, kernel: Table) -> None:
        self._rows, self._l2, self._free = total.rows, float(total.l2[0, 0]), total.free_bias
        self._roots = np.sqrt(curvatures)
        penalised = float(total.rows.matrix.bias and not self._free)  # a bias is then one more column
        matrix = (kernel + penalised) * self._roots
        matrix *= self._roots[:, 0]
        diagonal_of(matrix)[:] += self._l2
        self._factor = Factor(matrix)
        self.exact = self._factor.exact
        if self._free:
            self._sums = total.rows.sums(curvatures)
            self._along = self._without_bias(self._sums)

    def solve(self, right: Table) -> Table:
        """Return v."""
        found = self._without_bias(right)
        if self._free:
            sums, along = self._sums, self._along
            bends = np.maximum(sums[:, -1] - np.sum((sums * along)[:, :-1], axis=1), max(_FLAT * self._rows.n, TINY))
            bias = (right[:, -1] - np.sum((sums * found)[:, :-1], axis=1)) / bends
            found -= bias[:, None] * along
            found[:, -1] = bias
        return found

    def _without_bias(self, right: Table) -> Table:
        right = right.copy()
        if self._free:
            right[:, -1] = 0.0
        outputs = self._roots * self._rows.outputs(right)
        found = (right - self._rows.sums(self._roots * self._factor.solve(outputs))) / self._l2
        if self._free:
            found[:, -1] = 0.0
        return found


def by_bounds(total: Objective, point: Point, gradient: Table) -> Step:
    """Return a step along the gradient by the largest curvatures that the losses may have, if the model is no help."""
    sizes = 1.0 / np.maximum(total.largest_diagonal, TINY)
    there = point.table - sizes * gradient
    table = np.sign(there) * np.maximum(np.abs(there) - sizes * total.l1, 0.0) - point.table
    outputs, curved = total.curve(point, table)
    return Step(table, outputs, gradient + curved)


# --- the choice -----------------------------------------------------------------------------


class Level(NamedTuple):
    """A solver that could be made."""

    name: str
    cost: float
    """Nanoseconds to make the solver."""
    products: float
    """Products that are expected for a step."""
    make: Callable[[Objective, Point], Solver]
    exact: bool = False
    """Whether a step needs no more products if it is to be accurate."""


class Steps:
    """Solve for one step after another, each by the solver that seems cheapest.

    The first solver can be given, from a sample of the same rows.
    """

    def __init__(self, total: Objective, solver: Solver | None = None) -> None:
        self._total = total
        self._product = total.rows.curve_cost(total.problem.outputs) + _OF_PRODUCT * CALL
        self._levels = _worthwhile(self.all_levels())
        expected = [level.cost + _STEPS_AHEAD * level.products * self._product for level in self._levels]
        self._levels = self._levels[-1 if total.is_direct else int(np.argmin(expected)) :]
        self.expected = expected[-1] if total.is_direct else min(expected)
        """Nanoseconds that some steps are expected to take."""
        self.solver = solver
        self._made_at: Point | None = None
        self._spent = 0.0  # on products with the present solver
        self._wasted, self._solved = 0.0, 0  # on solvers of the present level, and steps that were solved with it
        self.spent_on_step = 0.0
        """Nanoseconds of the last step."""
        self.products = 0
        """Products of the last step."""
        self._kernel: Table | None = None

    def use(self, solver: Solver | None, spent: float) -> None:
        """Use a solver that is better than the diagonal, if there is one, and the next did not pay with it so far."""
        if solver is not None:
            if len(self._levels) > 1 and self._levels[0].name == "diagonal":
                del self._levels[0]
            self.solver = solver if _AT_ONCE * spent < self._levels[0].cost else None

    def all_levels(self) -> list[Level]:
        """Return all solvers that are possible, from the cheapest to the best."""
        total, rows, outputs = self._total, self._total.rows, self._total.problem.outputs
        levels = [Level("diagonal", 0.5 * self._product, _BY_DIAGONAL, Diagonal)]
        gram, drawing = rows.gram_cost(), _OF_DRAWING * CALL + _OF_DRAWN_ROW * rows.n + self._product
        ways = [(by_columns, outputs * gram, outputs * factor_cost(rows.width), outputs == 1)]
        if outputs > 1 and outputs * rows.width <= WIDEST:
            ways.append((by_classes, 0.5 * outputs * (outputs + 1) * gram, factor_cost(outputs * rows.width), True))
        for share in (*_SHARES, 1.0) if rows.width <= WIDEST else ():
            ratio = rows.width / max(share * rows.n, 1.0)
            if share < 1.0 < ratio * _ROWS_PER_COLUMN:
                continue
            products, cost = (2.0, 0.0) if share == 1.0 else (max(1.0, 4.6 / -math.log(ratio)), drawing)
            for make, grams, factor, is_whole in ways:
                if is_whole or len(levels) == 1:
                    name = f"{make.__name__}, {share:.0%} of the rows".replace("_", " ")
                    expected = products if is_whole else _BY_BLOCKS
                    exact, solver = share == 1.0 and is_whole, partial(make, share=share)
                    levels.append(Level(name, cost + share * grams + factor, expected, solver, exact))
        if total.by_rows and outputs == 1:
            levels.append(Level("row space", rows.kernel_cost() + factor_cost(rows.n), 2.0, self._by_rows, True))
        return levels

    def solve(
        self, point: Point, gradient: Table, accuracy: float, goal: float, most_products: int = _MOST_PRODUCTS
    ) -> Step:
        """Return a step with a small residual, relative to the gradient, in the metric of the solver.

        If the step promises little more than the goal, the residual is also so small that it certifies the step.
        """
        total, self.spent_on_step, self.products = self._total, self._product, 0
        self._solved += 1
        is_cheap = self._made_at is not None and self._levels[0].cost <= 2.0 * self._product
        if self.solver is None or (is_cheap and self._made_at is not point):
            self._make(point)
        found, left, outputs = np.zeros_like(gradient), -gradient, np.zeros_like(point.outputs)
        direction, height, first, repeats, count, start, least = None, 1.0, 0.0, 0, 0, 0.0, 0.0
        while self.products < most_products:
            assert self.solver is not None
            towards = self.solver.solve(left)
            before, height = height, float(np.vdot(left, towards))
            if direction is None:
                first = float(np.vdot(gradient, self.solver.solve(gradient))) if found.any() else height
                count, start, least = 0, height, height
            if not first > 0.0:
                return by_bounds(total, point, gradient)
            step = Step(found, outputs, -left)
            needed = self._needed(point, gradient, step, goal, height / (accuracy**2 * first), first)
            if needed <= 0.0 or not height > 0.0:  # nothing is left
                break
            least = min(least, height)
            if count and self._improve(point, needed, count, math.log(start / least)):
                direction = None
                continue
            direction = towards if direction is None else towards + (height / before) * direction
            along, curved = total.curve(point, direction)
            bend = float(np.vdot(direction, curved))
            if not bend > _FLAT * height:
                return Step(found, outputs, -left) if found.any() else by_bounds(total, point, gradient)
            size = height / bend
            found, left = found + size * direction, left - size * curved
            outputs += size * along
            count += 1
            self.products += 1
            self._spent += self._product
            self._wasted += self._product
            self.spent_on_step += self._product
            if self.solver.exact and self._made_at is point:
                repeats += 1
                is_small = np.vdot(left, left) <= accuracy**4 * np.vdot(gradient, gradient)
                step = Step(found, outputs, -left)
                if repeats == _REPEATS or (is_small and self._to_certify(point, gradient, step, goal) <= 0.0):
                    break  # the rest is rounding
        return Step(found, outputs, -left)

    def _needed(
        self, point: Point, gradient: Table, step: Step, goal: float, ratio: float, likely_promise: float
    ) -> float:
        """Return the logarithm of how much smaller the square of the residual must be; not positive if it is enough.

        It must be by a ratio, and if the step is likely to certify the goal, small enough for this.
        """
        needed = math.log(ratio) if ratio > 0.0 else 0.0
        if needed <= 0.0:
            return self._to_certify(point, gradient, step, goal)
        return max(needed, self._by_slack(step.residual, goal)) if likely_promise <= CLOSE * goal else needed

    def _to_certify(self, point: Point, gradient: Table, step: Step, goal: float) -> float:
        """Return the logarithm of how much smaller the square of the residual must be for a step to certify the goal.

        Not positive if it is enough, or if the step certifies nothing: it promises far more than the goal, or the
        slopes that it predicts are out of the range of the losses, and too many to be cut.
        """
        problem, promise = self._total.problem, -float(np.vdot(gradient, step.table))
        if not problem.is_quadratic and promise > NEAR * goal:
            return 0.0
        needed = self._by_slack(step.residual, goal)
        if needed > 0.0 and not problem.is_quadratic and promise > CLOSE * goal:
            slopes = point.terms.slopes + problem.curve(point.terms, step.outputs)
            return needed if fenchel_young(problem, point.outputs, point.terms, slopes) < math.inf else 0.0
        return needed

    def _by_slack(self, residual: Table, goal: float) -> float:
        slack = self._total.slack(residual)
        return math.log(slack / (CERTIFIED * goal)) if goal > 0.0 < slack else slack

    def _improve(self, point: Point, needed: float, count: int, fall: float) -> bool:
        """Make a solver for this point, or a better one, if the products that are needed would cost more.

        They are estimated by the rate of those so far, by which the logarithm of the residual's square fell to its
        least, since residuals also rise between; what is expected counts as one product more. In any case after
        products have cost as much, unless few seem to be left.
        """
        if self.solver is not None and self.solver.exact and self._made_at is point:
            return False
        if not fall > 0.0 and count < _UNSTEADY:
            return False
        rate = (fall + _TENTH / self._levels[0].products) / (count + 1)
        left = needed / max(rate, 0.01) * self._product
        costs = [
            level.cost + level.products * (1.0 if level.exact else max(needed / _TENTH, 1.0)) * self._product
            for level in self._levels
        ]
        if self._made_at is point:
            costs[0] = math.inf
        best = int(np.argmin(costs))
        if not _EARLY * self._wasted >= self._solved * self._levels[best].cost or not costs[best] < left:
            if len(self._levels) > 1 and min(self._wasted / self._solved, _EARLY * left) > self._levels[1].cost:
                best = 1
            elif self._made_at is not point and min(self._spent, _EARLY * left) > self._levels[0].cost:
                best = 0
            else:
                return False
        del self._levels[:best]
        if best > 0:
            self._wasted, self._solved = 0.0, 1
        self._make(point)
        return True

    def _make(self, point: Point) -> None:
        self._wasted += self._levels[0].cost
        self.spent_on_step += self._levels[0].cost
        self.solver, self._made_at, self._spent = self._levels[0].make(self._total, point), point, 0.0

    def _by_rows(self, total: Objective, point: Point) -> Solver:
        if self._kernel is None:
            self._kernel = total.rows.kernel()
        return ByRows(total, total.problem.mean_curvatures(point.terms)[:, None], self._kernel)


def _worthwhile(levels: list[Level]) -> list[Level]:
    """Return the levels, from the worst to the best, without those that cost as much as a better one."""
    found: list[Level] = []
    for level in reversed(levels):
        if not found or _LADDER * level.cost < found[-1].cost:
            found.append(level)
    return found[::-1]


# --- kernels -------------------------------------------------------------------------------


@lean
def _pick(scores, places, indices):
    """Set the index at each place of the sum of the scores."""
    k, end = 0, 0.0
    for i in range(len(scores)):
        if scores[i] > 0.0:
            end += scores[i]
            while k < len(places) and places[k] < end:
                indices[k] = i
                k += 1
            last = i
    indices[k:] = last


@lean
def _insert(lower, sign, block):
    """Set a block of a matrix to a symmetric one, of which the lower triangle is given."""
    for j in range(len(lower)):
        for i in range(j, len(lower)):
            block[i, j] = sign * lower[i, j]
            block[j, i] = sign * lower[i, j]


@lean
def _to_unit_diagonal(matrix, scale):
    """Scale the lower triangle of a matrix so that its diagonal is 1; return whether no number there is 0."""
    largest, curved = 0.0, True
    for j in range(len(scale)):
        largest = max(largest, matrix[j, j])
    for j in range(len(scale)):
        is_curved = matrix[j, j] > _NO_CURVATURE * largest
        scale[j] = 1.0 / math.sqrt(matrix[j, j]) if is_curved else 0.0
        curved = curved and is_curved
    for j in range(len(scale)):
        for i in range(j, len(scale)):
            matrix[i, j] *= scale[i] * scale[j]
        matrix[j, j] = 1.0
    return curved
