"""SAGA for a sparse X: an estimator and its update in one, because both work on the columns of the batch only.

A coefficient whose column does not occur in a batch moves by its entry of G and the penalty alone. It *lags*: the steps
that it has missed are made when its column occurs next, many at once in constant time (`glide`). So the estimator
brings the columns of the batch up to date, computes the differences, and leaves what they add to G and to x to the
update, which visits the same columns. The rows of `columns_of` keep what belongs to a column in one cache line.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean
from avare.problems import Linear
from avare.problems.base import Vector
from avare.problems.linear import Survey
from avare.problems.matrix import BLOCK, Sparse
from avare.solvers.estimators.table import Table, TableEstimator, differ, enter_slopes
from avare.solvers.kernels import APPLY, ESTIMATE

_LINE = 64  # bytes of a cache line


class LaggedSlopes(NamedTuple):
    """What is remembered: that of a table, and what belongs to the columns, with a row per output."""

    slopes: Vector
    sums: Vector
    """G, and below it the estimate of the gradient, which only steps with l1 > 0 use."""
    x: Vector
    """The iterate, each column as it was after `since` steps."""
    since: NDArray[np.int64]


class Rates(NamedTuple):
    """One number per column: what a step of the present size does."""

    size: Vector
    """alpha D_j."""
    shrink: Vector
    """1 / (1 + alpha D_j l2)."""
    decay: Vector
    """log(1 + alpha D_j l2)."""
    l2: Vector
    cut: Vector
    """alpha D_j l1."""
    l1: float


class Lagged(NamedTuple):
    """The state of the estimator, and of its update."""

    memory: LaggedSlopes
    table: Table
    """The same slopes, and what entering new ones needs: a row of factors for each draw of a batch."""
    rates: Rates
    sparse: Sparse | None
    bias: bool
    outputs: Vector


def columns_of(width: int, outputs: int) -> Vector:
    """Return one row of zeros per column, from the beginning of a cache line: x, sums, since, and four of the rates."""
    entries = 3 * outputs + 5
    memory = np.zeros(width * entries + _LINE // 8)
    first = -memory.ctypes.data % _LINE // 8
    return memory[first : first + width * entries].reshape(width, entries)


class LaggedEstimator(TableEstimator):
    """The table of SAGA for a sparse X; `rates` sets the size of the steps."""

    def __init__(self, problem: Linear, x: Vector, batch_size: int, *, preconditioner: Any) -> None:
        super().__init__(problem, x, batch_size, preconditioner=preconditioner)
        outputs = problem.outputs
        self._rows = rows = columns_of(problem.width, outputs)
        sums, self.moving = rows[:, outputs : 3 * outputs].T, rows[:, :outputs].T
        self.memory = LaggedSlopes(self.memory.slopes, sums, self.moving, rows.view(np.int64)[:, 3 * outputs])
        size, shrink, decay, l2 = rows[:, -4:].T
        self._rates = Rates(size, shrink, decay, l2, np.zeros(problem.width), problem.l1)
        self.table = self.table._replace(factors=np.empty((max(batch_size, BLOCK), 2 * outputs)))
        self._outputs = np.empty((batch_size, outputs))
        self.moving[:] = x.reshape(self.shape)

    @property
    def state(self) -> Any:
        """The state for the kernels."""
        matrix = self.problem.model.matrix
        return Lagged(self.memory, self.table, self._rates, matrix.sparse, matrix.bias, self._outputs)

    def rates(self, inverse: Vector, size: float) -> None:
        """Set the size of the steps, with D_j per column."""
        width, penalty = self.shape[1], self.problem.penalty
        sizes, l2 = size * inverse, penalty.l2[:width]
        self._rows[:, -4:] = np.column_stack([sizes, 1.0 / (1.0 + sizes * l2), np.log1p(sizes * l2), l2])
        self._rates = self._rates._replace(cut=sizes * penalty.l1[:width])

    def sums(self) -> Vector:
        """Return G, one row per output."""
        return np.asarray(self.memory.sums[: self.shape[0]])

    def fill(self, survey: Survey) -> None:
        """Take the slopes and the gradient of a survey for the table."""
        self.memory.slopes[:] = survey.slopes
        self.memory.sums[:] = np.tile(survey.gradient.reshape(self.shape), (2, 1))

    def settle(self, step: int) -> None:
        """Set the iterate to what it is after `step` steps."""
        _settle(self.state, step, self.x.reshape(self.shape))


# --- kernels -------------------------------------------------------------------------------


@ESTIMATE.version(Lagged)
@lean
def _estimate(lagged, model, work, scratch, step):
    _, sums, x, since = lagged.memory
    sparse, indices, count, last = lagged.sparse, work.indices, len(x), x.shape[1] - 1
    lagged.table.seen[:] = -1
    for j in range(len(indices)):
        first, end = sparse.starts[indices[j]], sparse.starts[indices[j] + 1]
        for entry in range(first, end):
            column = sparse.columns[entry]
            if since[column] < step:
                for k in range(count):
                    x[k, column] = _glide_along(
                        x[k, column], sums[k, column], lagged.rates, column, step - since[column]
                    )
                since[column] = step
        outputs = lagged.outputs[j]
        for k in range(count):
            z = x[k, last] if lagged.bias else 0.0
            for entry in range(first, end):
                z += np.float64(sparse.values[entry]) * x[k, sparse.columns[entry]]
            outputs[k] = z
        if not differ(lagged.table, model, work, j, j, outputs, 0.0):
            return False
    enter_slopes(lagged.table, work)
    return True


@APPLY.version(Lagged)
@lean
def _apply(lagged, work, size, noise, done, at):
    _, sums, x, since = lagged.memory
    sparse, indices, last, step = lagged.sparse, work.indices, x.shape[1] - 1, at - 1
    for j in range(len(indices)):
        for entry in range(sparse.starts[indices[j]], sparse.starts[indices[j] + 1]):
            value = np.float64(sparse.values[entry])
            _add_to_column(lagged, step, sparse.columns[entry], value, lagged.table.factors[j])
        if lagged.bias:
            _add_to_column(lagged, step, last, 1.0, lagged.table.factors[j])
    if lagged.rates.l1 > 0.0:
        for j in range(len(indices)):
            for entry in range(sparse.starts[indices[j]], sparse.starts[indices[j] + 1]):
                column = sparse.columns[entry]
                if since[column] == step:
                    since[column] = step + 1
                    _prox_column(x, sums, lagged.rates, column)
        if lagged.bias:
            since[last] = step + 1
            _prox_column(x, sums, lagged.rates, last)
    return True


@inlined
def _add_to_column(lagged, step, column, value, factors):
    """Add what one example contributes to a column.

    With l1 > 0 to its sums only. Otherwise the move is linear: it is made at once, along G by the first of a batch.
    """
    _, sums, x, since = lagged.memory
    count = len(x)
    if lagged.rates.l1 > 0.0:
        for k in range(2 * count):
            sums[k, column] += factors[k] * value
        return
    size, shrink = lagged.rates.size[column], lagged.rates.shrink[column]
    if since[column] == step:
        since[column] = step + 1
        for k in range(count):
            x[k, column] = (x[k, column] - size * sums[k, column]) * shrink
    for k in range(count):
        x[k, column] -= size * shrink * value * factors[count + k]
        sums[k, column] += value * factors[k]


@inlined
def _prox_column(x, sums, rates, column):
    """Move a column, and set the estimate of its gradient to G again, for the next step."""
    cut = rates.cut[column]
    for k in range(len(x)):
        there = x[k, column] - rates.size[column] * sums[len(x) + k, column]
        x[k, column] = (there - min(max(there, -cut), cut)) * rates.shrink[column]
        sums[len(x) + k, column] = sums[k, column]


@inlined
def _glide_along(x, gradient, rates, column, steps):
    # A free bias has no l1 term, but it never lags.
    return glide(x, gradient, rates.size[column], rates.decay[column], rates.l1, rates.l2[column], steps)


@lean
def glide(x, gradient, size, decay, l1, l2, steps):
    """Return a coefficient after some proximal steps with the same gradient, in constant time.

    One step is x <- soft(x - size gradient, size l1) / (1 + size l2). While x keeps its sign, this is linear, and many
    steps have a closed form; x goes one way, and crosses 0 at most once.
    """
    if l1 == 0.0:
        return _glide_straight(x, gradient, size, decay, l2, steps)
    while steps > 0:
        if x == 0.0 and abs(gradient) <= l1:
            return 0.0
        sign = 1.0 if x > 0.0 or (x == 0.0 and gradient < 0.0) else -1.0
        away, pull = sign * x, sign * gradient + l1
        stay = steps  # for how many steps x surely keeps its sign
        if pull > 0.0:
            until = math.log1p(away * l2 / pull) / decay if l2 > 0.0 else away / (size * pull)
            stay = min(steps, max(0, int(min(until, 1e18)) - 1))
        if stay > 0:
            x = sign * _glide_straight(away, pull, size, decay, l2, stay)
            steps -= stay
        if steps > 0:
            there = x - size * gradient
            x = (there - min(max(there, -size * l1), size * l1)) / (1.0 + size * l2)
            steps -= 1
    return x


@inlined
def _glide_straight(x, gradient, size, decay, l2, steps):
    if l2 == 0.0:
        return x - steps * size * gradient
    return x + (x + gradient / l2) * _expm1(-steps * decay)


@inlined
def _expm1(t):
    """exp(t) - 1; by a series if t is small, which takes a fraction of the time. Its error is t^6 / 5040."""
    if abs(t) > 0.01:
        return math.expm1(t)
    return t * (
        1.0 + t * (1 / 2) * (1.0 + t * (1 / 3) * (1.0 + t * (1 / 4) * (1.0 + t * (1 / 5) * (1.0 + t * (1 / 6)))))
    )


@lean
def _settle(lagged, step, result):
    """Set the result to the iterate after `step` steps, as without lagging."""
    _, sums, x, since = lagged.memory
    for k in range(len(x)):
        for column in range(x.shape[1]):
            lag = step - since[column]
            result[k, column] = _glide_along(x[k, column], sums[k, column], lagged.rates, column, lag)
