"""The linear systems of Newton's method, H v = -g: preconditioned conjugate gradients that also certify.

Conjugate gradients (Hestenes & Stiefel 1952) need products with the Hessian H and a preconditioner. The better it is,
the fewer products are needed, and the more it costs: the diagonal of H, a Cholesky factor for a sample of the rows, a
factor of H itself.

Which one is the best for some data is not known beforehand, only what each costs. The first choice is by the cost model
of `design`. A preconditioner is replaced by a better one if the products that seem to be left, by the rate of the last
ones, cost more; at the latest when its steps have cost as much as those of the next better one would. This is at most
roughly twice as expensive as the best choice, whatever the data.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from avare.linear.design import CALL, factor_cost
from avare.linear.losses import fenchel_young
from avare.linear.objective import TINY, Objective, Point, Step
from avare.linear.preconditioners import WIDEST, Jacobi, Make, NewtonPreconditioner, by_classes, by_columns
from avare.problems.rows import Array

LOOSE, TIGHT = 0.1, 1e-8
"""Accuracy of a step, relative to the gradient: with an l2 term, and without, where the residual must certify it."""
CERTIFIED = 0.2
"""Of the goal: what the residual of a last step may add to the gap."""
NEAR, CLOSE = 30.0, 4.0
"""Times the goal: a step with a smaller predicted decrease may be the last, and is to certify it; also if dual
variables must be clipped."""
_DIRECT = 60.0  # products that a factor of H may cost to be made at once, if H is the same everywhere
_MOST_PRODUCTS, _REPEATS = 1000, 3  # for one step; with a factor of H itself, when the rest is rounding
_SHARES = (1.0 / 64.0, 1.0 / 16.0, 1.0 / 4.0)  # of the rows, for factors of samples
_ROWS_PER_COLUMN = 2.0  # of a sample, at least
_BY_JACOBI, _BY_BLOCKS = 8.0, 5.0  # products for a step: guesses (not measured), corrected by the rate of convergence
_OF_PRODUCT = 4.0  # operations on almost no rows that come with a product
_OF_DRAWING, _OF_DRAWN_ROW = 10.0, 16.0  # operations on almost no rows, and nanoseconds per row
_STEPS_AHEAD = 3.0  # expected steps with one preconditioner
_LADDER = 3.0  # times the cost of a preconditioner: what the next better one must cost for both to be tried
_EARLY = 8.0  # times what one has cost so far: a better one that costs less replaces it if that seems to pay
_AT_ONCE = 2.0  # switch at once if the new preconditioner costs less than this times the time spent on L-BFGS
_UNSTEADY = 4  # products after which a residual that has grown says something
_TENTH = 4.6  # logarithm of 100: the residual's square decreases as much if the residual decreases to a tenth
_SLOWEST_RATE = 0.01  # logarithm by which the residual's square decreases with a product, at least
_FLAT = 1e-14  # curvature, relative to that of the preconditioner: less is none


class Level(NamedTuple):
    """A preconditioner that could be made."""

    name: str
    cost: float
    """Nanoseconds to make it."""
    products: float
    """Products that are expected for a step."""
    make: Make
    exact: bool = False
    """Whether a step needs no more products if it is to be accurate."""

    def cost_of_steps(self, product: float) -> float:
        """Estimate the nanoseconds of some steps."""
        return self.cost + _STEPS_AHEAD * self.products * product


def accuracy_of(total: Objective) -> float:
    """Return the accuracy of a step: without an l2 term, the residual must certify it alone."""
    return LOOSE if total.l2.any() else TIGHT


def is_direct(total: Objective) -> bool:
    """Whether one exact step leads to the minimum, and is cheap."""
    cost = total.rows.gram_cost() + factor_cost(total.rows.width)
    return total.problem.is_quadratic and cost <= _DIRECT * total.rows.curve_cost(1)


def all_levels(total: Objective) -> list[Level]:
    """Return all preconditioners that are possible, from the cheapest to the best."""
    rows, outputs = total.rows, total.problem.outputs
    product = _product_cost(total)
    levels = [Level("diagonal", 0.5 * product, _BY_JACOBI, Jacobi)]
    gram, drawing = rows.gram_cost(), _OF_DRAWING * CALL + _OF_DRAWN_ROW * rows.n + product
    kinds = [(by_columns, outputs * gram, outputs * factor_cost(rows.width), outputs == 1)]
    if outputs > 1 and outputs * rows.width <= WIDEST:
        kinds.append((by_classes, 0.5 * outputs * (outputs + 1) * gram, factor_cost(outputs * rows.width), True))
    for share in (*_SHARES, 1.0) if rows.width <= WIDEST else ():
        ratio = rows.width / max(share * rows.n, 1.0)
        if share < 1.0 < ratio * _ROWS_PER_COLUMN:
            continue
        products, cost = (2.0, 0.0) if share == 1.0 else (max(1.0, _TENTH / -math.log(ratio)), drawing)
        for make, grams, factor, is_whole in kinds:
            if is_whole or len(levels) == 1:
                name = f"{make.__name__}, {share:.0%} of the rows".replace("_", " ")
                expected = products if is_whole else _BY_BLOCKS
                exact, solver = share == 1.0 and is_whole, partial(make, share=share)
                levels.append(Level(name, cost + share * grams + factor, expected, solver, exact))
    return levels


class Ladder:
    """The preconditioner in use, and the better ones that could replace it.

    The first one can be given, from a sample of the same rows.
    """

    def __init__(self, total: Objective, first: NewtonPreconditioner | None, levels: list[Level]) -> None:
        self._total, self._levels, self._product = total, levels, _product_cost(total)
        self.current = first
        self._made_at: Point | None = None
        self._spent = 0.0  # on products with the present one
        self._wasted, self._steps = 0.0, 0  # on those of the present level, and steps that were solved with it

    def replace_first(self, other: NewtonPreconditioner | None, spent: float) -> None:
        """Use one that is better than the diagonal, if there is one, and the next did not pay with it so far."""
        if other is not None:
            if len(self._levels) > 1 and self._levels[0].name == "diagonal":
                del self._levels[0]
            self.current = other if _AT_ONCE * spent < self._levels[0].cost else None

    def begin(self, point: Point) -> None:
        """Prepare a step: make a preconditioner if there is none, or if a new one is cheap."""
        self._steps += 1
        is_cheap = self._made_at is not None and self._levels[0].cost <= 2.0 * self._product
        if self.current is None or (is_cheap and self._made_at is not point):
            self._make(point)

    def apply(self, right: Array) -> Array:
        """Return the preconditioner's solution."""
        assert self.current is not None
        return self.current.solve(right)

    def is_exact_at(self, point: Point) -> bool:
        """Whether the preconditioner is a factor of H at this point."""
        return self.current is not None and self.current.exact and self._made_at is point

    def count_product(self) -> None:
        """Note a product with H."""
        self._spent += self._product
        self._wasted += self._product

    def improve(self, point: Point, needed: float, count: int, decrease: float) -> bool:
        """Make a preconditioner for this point, or a better one, if the products that are needed would cost more.

        They are estimated by the rate of those so far, by which the logarithm of the residual's square decreased to its
        least, since residuals also rise between; what is expected counts as one product more. In any case after
        products have cost as much, unless few seem to be left.
        """
        if self.is_exact_at(point) or (not decrease > 0.0 and count < _UNSTEADY):
            return False
        rate = (decrease + _TENTH / self._levels[0].products) / (count + 1)
        left = needed / max(rate, _SLOWEST_RATE) * self._product
        costs = [
            level.cost + level.products * (1.0 if level.exact else max(needed / _TENTH, 1.0)) * self._product
            for level in self._levels
        ]
        if self._made_at is point:
            costs[0] = math.inf
        best = int(np.argmin(costs))
        if not _EARLY * self._wasted >= self._steps * self._levels[best].cost or not costs[best] < left:
            if len(self._levels) > 1 and min(self._wasted / self._steps, _EARLY * left) > self._levels[1].cost:
                best = 1
            elif self._made_at is not point and min(self._spent, _EARLY * left) > self._levels[0].cost:
                best = 0
            else:
                return False
        del self._levels[:best]
        if best > 0:
            self._wasted, self._steps = 0.0, 1
        self._make(point)
        return True

    def _make(self, point: Point) -> None:
        self._wasted += self._levels[0].cost
        self.current, self._made_at, self._spent = self._levels[0].make(self._total, point), point, 0.0


class NewtonSystem:
    """Solve for one step after another, each with the preconditioner that seems cheapest."""

    def __init__(self, total: Objective, first: NewtonPreconditioner | None = None) -> None:
        self._total = total
        levels, product = _worthwhile(all_levels(total)), _product_cost(total)
        expected = [level.cost_of_steps(product) for level in levels]
        start = len(levels) - 1 if is_direct(total) else int(np.argmin(expected))
        self.expected = expected[start]
        """Nanoseconds that some steps are expected to take."""
        self.ladder = Ladder(total, first, levels[start:])
        self.products = 0
        """Products of the last step."""

    def solve(
        self, point: Point, gradient: Array, accuracy: float, goal: float, most_products: int = _MOST_PRODUCTS
    ) -> Step:
        """Return a step with a small residual, relative to the gradient, in the metric of the preconditioner.

        If the predicted decrease is little more than the goal, the residual is also so small that it certifies the
        step.
        """
        total, ladder, self.products = self._total, self.ladder, 0
        ladder.begin(point)
        found, left, outputs = np.zeros_like(gradient), -gradient, np.zeros_like(point.outputs)
        direction, square, first, repeats, count, start, least = None, 1.0, 0.0, 0, 0, 0.0, 0.0
        while self.products < most_products:
            towards = ladder.apply(left)
            before, square = square, float(np.vdot(left, towards))  # of the residual, in the metric
            if direction is None:
                first = float(np.vdot(gradient, ladder.apply(gradient))) if found.any() else square
                count, start, least = 0, square, square
            if not first > 0.0:
                return by_bounds(total, point, gradient)
            step = Step(found, outputs, -left)
            needed = self._needed(point, gradient, step, goal, square / (accuracy**2 * first), first)
            if needed <= 0.0 or not square > 0.0:  # nothing is left
                break
            least = min(least, square)
            if count and ladder.improve(point, needed, count, math.log(start / least)):
                direction = None
                continue
            direction = towards if direction is None else towards + (square / before) * direction
            along, curved = total.curve(point, direction)
            curvature = float(np.vdot(direction, curved))
            if not curvature > _FLAT * square:
                return Step(found, outputs, -left) if found.any() else by_bounds(total, point, gradient)
            size = square / curvature
            found, left, outputs = found + size * direction, left - size * curved, outputs + size * along
            count += 1
            self.products += 1
            ladder.count_product()
            if ladder.is_exact_at(point):
                repeats += 1
                is_small = np.vdot(left, left) <= accuracy**4 * np.vdot(gradient, gradient)
                step = Step(found, outputs, -left)
                if repeats == _REPEATS or (is_small and self._to_certify(point, gradient, step, goal) <= 0.0):
                    break  # the rest is rounding
        return Step(found, outputs, -left)

    def _needed(
        self, point: Point, gradient: Array, step: Step, goal: float, ratio: float, likely_decrease: float
    ) -> float:
        """Return the logarithm of how much smaller the square of the residual must be; not positive if it is enough.

        It must be by a ratio, and if the step is likely to certify the goal, small enough for this.
        """
        needed = math.log(ratio) if ratio > 0.0 else 0.0
        if needed <= 0.0:
            return self._to_certify(point, gradient, step, goal)
        return max(needed, self._by_residual(step.residual, goal)) if likely_decrease <= CLOSE * goal else needed

    def _to_certify(self, point: Point, gradient: Array, step: Step, goal: float) -> float:
        """Return the logarithm of how much smaller the square of the residual must be for a step to certify the goal.

        Not positive if it is enough, or if the step certifies nothing: its predicted decrease is far more than the
        goal, or its predicted dual variables are not feasible, and too many to be clipped.
        """
        problem, decrease = self._total.problem, -float(np.vdot(gradient, step.table))
        if not problem.is_quadratic and decrease > NEAR * goal:
            return 0.0
        needed = self._by_residual(step.residual, goal)
        if needed > 0.0 and not problem.is_quadratic and decrease > CLOSE * goal:
            duals = point.terms.slopes + problem.curve(point.terms, step.outputs)
            return needed if fenchel_young(problem, point.outputs, point.terms, duals) < math.inf else 0.0
        return needed

    def _by_residual(self, residual: Array, goal: float) -> float:
        bound = self._total.residual_bound(residual)
        return math.log(bound / (CERTIFIED * goal)) if goal > 0.0 < bound else bound


def by_bounds(total: Objective, point: Point, gradient: Array) -> Step:
    """Return a step along the gradient by the largest curvatures that the losses may have, if the model is no help."""
    sizes = 1.0 / np.maximum(total.largest_diagonal, TINY)
    there = point.table - sizes * gradient
    table = np.sign(there) * np.maximum(np.abs(there) - sizes * total.l1, 0.0) - point.table
    outputs, curved = total.curve(point, table)
    return Step(table, outputs, gradient + curved)


def _product_cost(total: Objective) -> float:
    return total.rows.curve_cost(total.problem.outputs) + _OF_PRODUCT * CALL


def _worthwhile(levels: list[Level]) -> list[Level]:
    """Return the levels, from the worst to the best, without those that cost as much as a better one."""
    found: list[Level] = []
    for level in reversed(levels):
        if not found or _LADDER * level.cost < found[-1].cost:
            found.append(level)
    return found[::-1]
