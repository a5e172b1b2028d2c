"""The objective of a linear model for Newton's method: by the coefficients for centred rows."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import quick
from avare.linear.design import OF_SUM, Design, factor_cost
from avare.linear.losses import terms_at
from avare.problems.linear import Linear, Terms
from avare.problems.rows import Table

_LEAST_CURVED = 1e-12  # times the largest curvature
_DIRECT = 60.0  # products that a factor of H may cost to be made at once, if H is the same everywhere
WIDEST = 8000
"""Size of a matrix that is factorised."""
TINY = float(np.finfo(np.float64).tiny)


def largest_curvature(problem: Linear) -> float:
    """Return the largest second derivative that a loss can have, times its weight."""
    weights = problem.model.sample_weight
    return problem.curvature * (float(weights.max()) if len(weights) else 1.0)


class Point(NamedTuple):
    """Coefficients for centred rows, and all losses there."""

    table: Table
    outputs: Table
    terms: Terms
    objective: float


class Step(NamedTuple):
    """A direction from a point."""

    table: Table
    outputs: Table
    """The outputs along the direction."""
    residual: Table
    """The gradient of the quadratic model at its end, g + H v."""


class Objective:
    """The losses of some rows and the penalty, by the coefficients for centred rows; of all columns, or of some."""

    def __init__(self, problem: Linear, rows: Design | None = None, columns: NDArray[np.int64] | None = None) -> None:
        rows = Design.of(problem) if rows is None else rows
        self.problem, self.rows, self.passes = problem, rows, 0.0
        shape, chosen = (problem.outputs, problem.width), slice(None) if columns is None else columns
        self.l2, self.l1 = (each.reshape(shape)[:, chosen] for each in (problem.penalty.l2, problem.penalty.l1))
        self.free_bias = problem.has_free_bias
        held = self.l2[:, :-1] if self.free_bias else self.l2
        self.by_rows = (
            rows.n < rows.columns and rows.n <= WIDEST and held[0, 0] > 0.0 and bool((held == held[0, 0]).all())
        )
        """Whether steps can be solved in the space of the rows, which are fewer."""
        self.is_direct = problem.is_quadratic and self._factor_cost() <= _DIRECT * rows.curve_cost(1)
        """Whether one exact step leads to the minimum, and is cheap."""
        self.reach = 0.0
        """The largest coefficient of all points."""
        self.method = "newton"
        """What minimised it at last."""
        self._lengths: Table | None = None
        self._gradient: tuple[Point, Table] | None = None
        self._stiff: tuple[Point, Table] | None = None

    def _factor_cost(self) -> float:
        rows = self.rows
        by_columns = rows.gram_cost() + factor_cost(rows.width)
        return min(by_columns, rows.kernel_cost() + factor_cost(rows.n)) if self.by_rows else by_columns

    def at(self, table: Table, outputs: Table) -> Point:
        """Evaluate the losses for given outputs."""
        self.reach = max(self.reach, float(np.abs(table).max()))
        terms = terms_at(self.problem, outputs)
        return Point(table, outputs, terms, terms.loss + self.penalty(table))

    def refreshed(self, point: Point, most: float) -> Point:
        """Compute the outputs again if points far away may have left more rounding in the objective."""
        drift = OF_SUM * self.reach * math.sqrt(self.problem.square * point.table.size)
        error = drift * float(np.abs(point.terms.slopes).max()) + 0.5 * drift**2 * largest_curvature(self.problem)
        return point if error <= most else self.at(point.table, self.outputs(point.table))

    def penalty(self, table: Table) -> float:
        """Return the penalty of a table."""
        if self.problem.l1 == 0.0:
            return 0.5 * float(np.vdot(self.l2 * table, table))
        return float(_penalty(self.l2.ravel(), self.l1.ravel(), table.ravel()))

    def promise(self, point: Point, gradient: Table, step: Step) -> float:
        """Return by how much the linear part of the model falls along a step, with the l1 term."""
        if self.problem.l1 == 0.0:
            return -float(np.vdot(gradient, step.table))
        return float(_promise(gradient.ravel(), self.l1.ravel(), point.table.ravel(), step.table.ravel()))

    def outputs(self, table: Table) -> Table:
        """Multiply all rows by a table."""
        self.passes += 0.5
        return self.rows.outputs(table)

    def sums(self, slopes: Table) -> Table:
        """Sum all rows times their slopes."""
        self.passes += 0.5
        return self.rows.sums(slopes)

    def gradient(self, point: Point) -> Table:
        """Return the gradient of the losses and the l2 term."""
        if self._gradient is None or self._gradient[0] is not point:
            self._gradient = (point, self.sums(point.terms.slopes) + self.l2 * point.table)
        return self._gradient[1]

    def slack(self, residual: Table) -> float:
        """Return what the error of a step adds to the gap that it certifies."""
        return 0.5 * float(np.vdot(residual * self._over_l2, residual))

    @cached_property
    def _over_l2(self) -> Table:
        return np.divide(1.0, self.l2, out=np.zeros_like(self.l2), where=self.l2 > 0.0)

    @cached_property
    def is_held(self) -> bool:
        """Whether all coefficients have an l2 term, except for a free bias, and no l1 term."""
        held = self.l2[:, :-1] if self.free_bias else self.l2
        return self.problem.l1 == 0.0 and bool(held.all())

    def curve(self, point: Point, direction: Table) -> tuple[Table, Table]:
        """Return the outputs along a direction, and the second derivative times it."""
        self.passes += 1.0
        outputs, curved = self.rows.curve(direction, lambda part, z: self.problem.curve(point.terms, z, part))
        curved += self.l2 * direction
        if self.problem.outputs > 1:
            curved += self.stiffness(point) * direction.sum(axis=0)
        return outputs, curved

    def diagonal(self, point: Point) -> Table:
        """Return the diagonal of the second derivative, but almost no number that is 0 where losses can be curved."""
        self.passes += 0.5
        diagonal = self.rows.squares(self.problem.mean_curvatures(point.terms)) + self.l2
        if diagonal.min() > _LEAST_CURVED * diagonal.max():
            return diagonal
        return np.maximum(diagonal, _LEAST_CURVED * self.largest_diagonal + TINY)

    @cached_property
    def largest_diagonal(self) -> Table:
        """The diagonal of the second derivative if all losses had their largest curvature."""
        self.passes += 0.5
        weights = self.problem.model.sample_weight
        return self.rows.squares(self.problem.curvature * (weights if len(weights) else np.ones(self.rows.n))) + self.l2

    def lengths(self, point: Point) -> Table:
        """Return the squared length of each row in the metric of the diagonal, at the first point asked for."""
        if self._lengths is None:
            self.passes += 0.5
            self._lengths = self.rows.lengths(1.0 / self.diagonal(point).max(axis=0))
        return self._lengths

    def stiffness(self, point: Point) -> Table:
        """Return what to add to the curvature along the sum of several outputs, by which softmax does not change.

        There the penalty alone curves the objective: coefficients without one get their own curvature, one number per
        column. With an l1 term nothing is added.
        """
        if self.l1.any() or self.l2.all():
            return np.zeros(self.rows.width)
        if self._stiff is None or self._stiff[0] is not point:
            curvatures = self.problem.mean_curvatures(point.terms)
            only_bias = self.free_bias and self.l2[:, :-1].all()
            squares = np.full(self.rows.width, curvatures.sum()) if only_bias else self.rows.squares(curvatures)
            self._stiff = (point, np.where(self.l2[0] > 0.0, 0.0, squares))
        return self._stiff[1]


# --- kernels -------------------------------------------------------------------------------


@quick
def _penalty(l2, l1, x):
    total = 0.0
    for a in range(len(x)):
        total += (0.5 * l2[a] * abs(x[a]) + l1[a]) * abs(x[a])
    return total


@quick
def _promise(gradient, l1, x, step):
    total = 0.0
    for a in range(len(x)):
        total -= gradient[a] * step[a] + l1[a] * (abs(x[a] + step[a]) - abs(x[a]))
    return total
