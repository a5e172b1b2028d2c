"""The objective of a linear model, as the sum of losses and penalty by the coefficients for centred rows.

With the design matrix A, linear predictors z = A x and the diagonal (for softmax: block) matrix C of the second
derivatives of the losses, the Hessian is H = A^T C A + l2. It is never formed here: `curve` multiplies it by a vector.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import quick
from avare.linear.design import OF_SUM, Design
from avare.linear.losses import terms_at
from avare.problems.linear import Linear, Terms
from avare.problems.rows import Array

_LEAST_CURVED = 1e-12  # times the largest possible diagonal of H: a smaller entry is raised to it, not divided by
TINY = float(np.finfo(np.float64).tiny)


class Point(NamedTuple):
    """Coefficients for centred rows, and all losses there."""

    table: Array
    """A row per output; the intercept last."""
    outputs: Array
    """The linear predictors."""
    terms: Terms
    objective: float


class Step(NamedTuple):
    """A direction from a point."""

    table: Array
    outputs: Array
    """The linear predictors along the direction."""
    residual: Array
    """The gradient of the quadratic model at its end, g + H v."""


class Objective:
    """The losses of some rows and the penalty, by the coefficients for centred rows; of all columns, or of some."""

    def __init__(self, problem: Linear, rows: Design | None = None, columns: NDArray[np.int64] | None = None) -> None:
        self.problem, self.rows = problem, Design.of(problem) if rows is None else rows
        shape = (problem.outputs, problem.width)
        self.l2, self.l1 = problem.penalty.l2.reshape(shape), problem.penalty.l1.reshape(shape)
        if columns is not None:
            self.l2, self.l1 = self.l2[:, columns], self.l1[:, columns]
        self.has_l1 = problem.l1 > 0.0
        self.has_free_bias = problem.has_free_bias
        self.reach = 0.0
        """The largest coefficient of all points."""
        self._lengths: Array | None = None
        self._gradient: tuple[Point, Array] | None = None
        self._shift: tuple[Point, Array] | None = None

    # --- the penalty ----------------------------------------------------------------------

    @cached_property
    def _of_columns(self) -> Array:
        """The l2 strengths of all coefficients but a free bias."""
        return self.l2[:, :-1] if self.has_free_bias else self.l2

    @cached_property
    def is_strongly_convex(self) -> bool:
        """Whether all coefficients but a free bias have an l2 term, and none an l1 term."""
        return not self.has_l1 and bool(self._of_columns.all())

    @cached_property
    def has_even_l2(self) -> bool:
        """Whether these l2 terms are all the same, and there is no l1 term: the penalty of a rotation is then known."""
        first = float(self._of_columns[0, 0])
        return self.is_strongly_convex and bool((self._of_columns == first).all())

    @cached_property
    def is_penalised(self) -> bool:
        """Whether all coefficients but a free bias have a penalty of some kind."""
        if self.is_strongly_convex:
            return True
        both = self.l2 + self.l1
        return bool((both[:, :-1] if self.has_free_bias else both).all())

    def penalty(self, table: Array) -> float:
        """Return the penalty of a table of coefficients."""
        if not self.has_l1:
            return 0.5 * float(np.vdot(self.l2 * table, table))
        return float(_penalty(self.l2.ravel(), self.l1.ravel(), table.ravel()))

    def residual_bound(self, residual: Array) -> float:
        """Return |r|^2 / (2 l2): what the residual of a Newton step adds to the gap that the step certifies."""
        return 0.5 * float(np.vdot(residual * self._over_l2, residual))

    @cached_property
    def _over_l2(self) -> Array:
        return np.divide(1.0, self.l2, out=np.zeros_like(self.l2), where=self.l2 > 0.0)

    # --- values and derivatives -----------------------------------------------------------

    def at(self, table: Array, outputs: Array | None = None) -> Point:
        """Evaluate the losses at coefficients, whose linear predictors may be known."""
        outputs = self.rows.outputs(table) if outputs is None else outputs
        self.reach = max(self.reach, float(np.abs(table).max()))
        terms = terms_at(self.problem, outputs)
        return Point(table, outputs, terms, terms.loss + self.penalty(table))

    def at_constant(self, table: Array) -> Point:
        """Evaluate a model whose only coefficients are intercepts, without a product with X."""
        return self.at(table, np.zeros((self.rows.n, 1)) + table[:, -1] * self.rows.matrix.bias)

    def refreshed(self, point: Point, most: float) -> Point:
        """Compute the linear predictors again if points far away may have left more rounding in the objective."""
        drift = OF_SUM * self.reach * math.sqrt(self.problem.square * point.table.size)
        error = drift * float(np.abs(point.terms.slopes).max()) + 0.5 * drift**2 * largest_curvature(self.problem)
        return point if error <= most else self.at(point.table)

    def gradient(self, point: Point) -> Array:
        """Return the gradient of the losses and the l2 term."""
        if self._gradient is None or self._gradient[0] is not point:
            self._gradient = (point, self.rows.sums(point.terms.slopes) + self.l2 * point.table)
        return self._gradient[1]

    def predicted_decrease(self, point: Point, gradient: Array, step: Step) -> float:
        """Return the decrease of the linearised objective along a step, with the l1 term."""
        if not self.has_l1:
            return -float(np.vdot(gradient, step.table))
        return float(_linear_decrease(gradient.ravel(), self.l1.ravel(), point.table.ravel(), step.table.ravel()))

    def curve(self, point: Point, direction: Array) -> tuple[Array, Array]:
        """Return the linear predictors along a direction, and H times the direction."""
        outputs, curved = self.rows.curve(direction, lambda part, z: self.problem.curve(point.terms, z, part))
        curved += self.l2 * direction
        if self.problem.outputs > 1:
            curved += self.shift_curvature(point) * direction.sum(axis=0)
        return outputs, curved

    def diagonal(self, point: Point) -> Array:
        """Return the diagonal of H, but almost no number that is 0 where losses can be curved."""
        diagonal = self.rows.squares(self.problem.mean_curvatures(point.terms)) + self.l2
        if diagonal.min() > _LEAST_CURVED * diagonal.max():
            return diagonal
        return np.maximum(diagonal, _LEAST_CURVED * self.largest_diagonal + TINY)

    @cached_property
    def largest_diagonal(self) -> Array:
        """The diagonal of H if all losses had their largest curvature."""
        weights = self.problem.model.sample_weight
        return self.rows.squares(self.problem.curvature * (weights if len(weights) else np.ones(self.rows.n))) + self.l2

    def lengths(self, point: Point) -> Array:
        """Return the squared length of each row in the metric of the diagonal, at the first point asked for."""
        if self._lengths is None:
            self._lengths = self.rows.lengths(1.0 / self.diagonal(point).max(axis=0))
        return self._lengths

    def shift_curvature(self, point: Point) -> Array:
        """Return what to add to H along the sum of several outputs, by which softmax does not change.

        There the penalty alone curves the objective: coefficients without one get their own curvature, one number per
        column. With an l1 term nothing is added.
        """
        if self.l1.any() or self.l2.all():
            return np.zeros(self.rows.width)
        if self._shift is None or self._shift[0] is not point:
            curvatures = self.problem.mean_curvatures(point.terms)
            only_bias = self.has_free_bias and self.l2[:, :-1].all()
            squares = np.full(self.rows.width, curvatures.sum()) if only_bias else self.rows.squares(curvatures)
            self._shift = (point, np.where(self.l2[0] > 0.0, 0.0, squares))
        return self._shift[1]


def largest_curvature(problem: Linear) -> float:
    """Return the largest second derivative that a loss can have, times its weight."""
    weights = problem.model.sample_weight
    return problem.curvature * (float(weights.max()) if len(weights) else 1.0)


# --- kernels -------------------------------------------------------------------------------


@quick
def _penalty(l2, l1, x):
    total = 0.0
    for a in range(len(x)):
        total += (0.5 * l2[a] * abs(x[a]) + l1[a]) * abs(x[a])
    return total


@quick
def _linear_decrease(gradient, l1, x, step):
    total = 0.0
    for a in range(len(x)):
        total -= gradient[a] * step[a] + l1[a] * (abs(x[a] + step[a]) - abs(x[a]))
    return total
