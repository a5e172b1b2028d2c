"""Dual coordinate ascent, for sparse rows and a penalty that is strong compared with them.

The table holds a slope c_i per example, and G = sum_i c_i a_i. If the l2 term is strong, x need not follow G in small
steps: it can be, at any time, where the penalty balances G, the minimum of G . x + l2/2 |x|^2 + l1 |x|_1. Then only the
table is left to improve. A visit to example i moves its slope towards the one at x,

    c_i <- c_i + t_i (s_i l'(a_i . x) - c_i),    t_i = 1 / (1 + s_i L |a_i|^2 / l2),

with L the largest second derivative of the loss. This is stochastic dual coordinate ascent (Shalev-Shwartz and Zhang,
2013): each visit increases the dual objective, whatever the data. There is no step size, nothing lags, and a visit
reads and writes the entries of one row.

An epoch has n visits, and example i has a share of them in proportion to 1 / t_i (Zhao and Zhang, 2015): one heavy
example does not slow down all others. In place of independent draws, its visits are spread evenly over the epochs, and
shuffled within each: after e epochs it has been visited floor(e r_i + u_i) times, with r_i the visits per epoch and u_i
uniform in [0, 1). The time between two visits is then never long. On the text of `benchmarks/linear.py`, 10^-6 takes 5
epochs, 6 with uneven weights. With the draws of `Calibrated` it takes 8 and 10.

A bias without a penalty gets one that pulls it to its value after the last epoch (a proximal point).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.problems.losses import slope
from avare.solvers.checkpoint import NOT_NEGATIVE, Bounds, Memory
from avare.solvers.linear.preconditioner import bends_of, squared_columns
from avare.solvers.linear.tolerance import Tolerance
from avare.solvers.loop import Method

# The mean smoothness of an example over l2 up to which these steps are used: with more rows than columns, which make
# the objective strongly convex without the penalty as well, and with fewer.
_MANY_ROWS, _FEW_ROWS = 1.0, 100.0
_STIFFNESS = 10.0  # of a free bias: visits move it by a tenth of what they move the outputs by otherwise
_SHARE = 0.01  # of its curvature: the largest stiffness of a free bias, so that few epochs are enough


def is_strong(problem: Linear, start: Vector | None) -> bool:
    """Whether X is sparse, its rows are short compared with l2, and the start is 0 but for a free bias."""
    if problem.model.matrix.sparse is None or problem.l2 == 0.0:
        return False
    if start is not None and start[problem.penalty.l2 > 0.0].any():
        return False
    most = _MANY_ROWS if problem.n > problem.width else _FEW_ROWS
    return float(_ratios(problem, problem.squared_lengths()).mean()) <= most


class Dual(NamedTuple):
    """What visits read and write."""

    pulls: Vector
    """-G / l2, a row per column and a column per output; of a free bias with its own penalty."""
    table: Vector
    """The slope of each example, a column per output."""
    centre: Vector
    """What a free bias is pulled to, one number per output."""
    left: Vector
    """The sum of the squared differences since the last check, each example counted once per epoch."""


@dataclass
class Order:
    """The order of the visits."""

    seed: int


class DualAscent(Method):
    """The visits of one run: a step is an epoch of n visits.

    Parameters
    ----------
    problem : Linear
        With a sparse X and l2 > 0.
    x : ndarray
        The first iterate: 0, but for a free bias.
    seed : int
        Seed of the order of the visits.
    tol : float
        As for `avare.saga`.
    """

    name = "dual_ascent"
    period = 1
    problem: Linear

    def __init__(self, problem: Linear, x: Vector, seed: int, *, tol: float) -> None:
        super().__init__(problem, x)
        width, outputs = problem.width, problem.outputs
        self._free = problem.model.matrix.bias and problem.penalty.l2[-1] == 0.0
        self._stiffness, squares = problem.l2, problem.squared_lengths()
        if self._free:
            squares = squares - 1.0
            least = problem.l2 / max(float(squares.mean()), np.finfo(float).tiny)
            self._stiffness = min(_STIFFNESS * least, max(least, _SHARE * float(bends_of(problem).sum())))
            squares += problem.l2 / self._stiffness
        ratios = 1.0 + _ratios(problem, squares)
        self._damping, self._rates = 1.0 / ratios, ratios / ratios.mean()
        self._shares = squares / (problem.l2 * self._rates)  # what a squared difference counts for
        self._cut = problem.l1 / problem.l2
        self._dual = Dual(np.zeros((width, outputs)), np.zeros((problem.n, outputs)), np.zeros(outputs), np.zeros(1))
        if self._free:
            self._dual.centre[:] = problem.coefficients(x)[:, -1]
        self._order = Order(seed)
        self._tolerance = Tolerance(tol, problem.loss_at_zero())

    def advance(self, step: int, sizes: Vector, noise: Vector) -> int:
        """Make one epoch of visits per size, after `step` epochs; return how many."""
        model, cuts = self.problem.model, (self._cut, 0.0 if self._free else self._cut)
        orders = [self._order_of(epoch) for epoch in range(step, step + len(sizes))]
        for order in orders or [np.empty(0, dtype=np.int32)]:  # which compiles
            _visit(
                model.matrix.sparse,
                model,
                order,
                (self._damping, self._shares),
                (self.problem.l2, self._stiffness, *cuts),
                self._dual,
                np.empty(self.problem.outputs),
            )
        self._set_x()
        return len(sizes)

    def check(self, step: int) -> str | None:
        """Return why the iterates have converged, if they have."""
        dual = self._dual
        estimate = math.sqrt(float(dual.left[0]))
        dual.left[0] = 0.0
        converged = self._tolerance.reached(step, estimate, self._length)
        if self._free and converged is None:
            dual.centre[:] += dual.pulls[-1]
            self._set_x()
        return converged

    def memory(self) -> Memory:
        """Return what to save besides the iterate."""
        return {"dual": self._dual, "order": self._order, "tolerance": self._tolerance}

    def bounds(self, step: int) -> Bounds:
        """Return the bounds of fields in the memory that are not any finite number."""
        return {"order/seed": {"at_least": 0}, "dual/left": NOT_NEGATIVE, "tolerance/margin": NOT_NEGATIVE}

    # --- their parts --------------------------------------------------------------------------

    def _order_of(self, epoch: int) -> NDArray[np.int32]:
        """The visits of an epoch."""
        offsets = np.random.default_rng(self._order.seed).random(self.problem.n)
        counts = np.floor((epoch + 1) * self._rates + offsets) - np.floor(epoch * self._rates + offsets)
        order = np.repeat(np.arange(self.problem.n, dtype=np.int32), counts.astype(np.int64))
        np.random.default_rng([self._order.seed, epoch]).shuffle(order)
        return order

    def _set_x(self) -> None:
        """Set the iterate to where the penalty balances the table."""
        pulls, cut = self._dual.pulls, self._cut
        table = self.x.reshape(self.problem.outputs, self.problem.width)
        table[:] = (pulls - np.clip(pulls, -cut, cut)).T if cut > 0.0 else pulls.T
        if self._free:
            table[:, -1] = self._dual.centre + pulls[-1]

    def _length(self) -> float:
        """The length of the gradient, in one over the curvature of each column."""
        problem = self.problem
        curvature = squared_columns(problem, bends_of(problem)) + problem.penalty.l2[: problem.width]
        whole = problem.coefficients(problem.penalty.subgradient(self.x, problem.loss_gradient(self.x)))
        return math.sqrt(float((whole**2 @ (1.0 / np.maximum(curvature, np.finfo(float).tiny))).sum()))


def _ratios(problem: Linear, squares: Vector) -> Vector:
    """The smoothness constant of each example over l2."""
    return np.asarray(bends_of(problem) * squares / problem.l2)


# --- kernels -------------------------------------------------------------------------------


@lean
def _visit(sparse, model, order, factors, penalty, dual, outputs):
    """Visit examples in order."""
    pulls, table = dual.pulls, dual.table
    damping, shares = factors
    l2, stiffness, cut, cut_of_bias = penalty
    count, last = table.shape[1], len(pulls) - 1
    for place in range(len(order)):
        index = order[place]
        first, end = sparse.starts[index], sparse.starts[index + 1]
        for k in range(count):
            z = 0.0
            for entry in range(first, end):
                pull = pulls[sparse.columns[entry], k]
                z += np.float64(sparse.values[entry]) * (pull - min(max(pull, -cut), cut))
            if model.matrix.bias:
                pull = pulls[last, k]
                z += dual.centre[k] + pull - min(max(pull, -cut_of_bias), cut_of_bias)
            outputs[k] = z
        slope(model.loss, model.targets[index], outputs)
        weight = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
        square = 0.0
        for k in range(count):
            difference = weight * outputs[k] - table[index, k]
            square += difference * difference
            change = damping[index] * difference
            table[index, k] += change
            for entry in range(first, end):
                pulls[sparse.columns[entry], k] -= np.float64(sparse.values[entry]) * (change / l2)
            if model.matrix.bias:
                pulls[last, k] -= change / stiffness
        dual.left[0] += shares[index] * square
