"""The kernels of SAGA: a table of the last slope of each example, and draws by how much the slopes have changed.

The gradient of example i is s_i l'(a_i.x) a_i. The table holds the last number c_i = s_i l'(a_i.x) of each example (one
per output), and G = sum_i c_i a_i is known. A step draws a batch and estimates the gradient of the sum by

    G + sum_j w_j (c'_j - c_j) a_j,

with c' the slopes at the present x. It is unbiased for any table, and its variance falls with the differences. Each
coefficient has its own step, alpha D_j, with D_j about one over its curvature, so that the scale of a column of X does
not matter. If X is dense and has few columns, D is a whole matrix, about the inverse of the second derivative, so that
correlations do not matter either. With more columns, a whole matrix would cost more than the batch: it is D - B^T B,
with a row of B for each of some directions of large curvature. Steps are then many times as large, and a row of large
smoothness that is drawn rarely would lead far away: the norms that the sampler learns get a share of their sum, in
proportion to the smoothness, so that no probability is far below it.

The penalty is a proximal step in the same metric: x_j is cut by alpha D_j l1 and divided by 1 + alpha D_j l2.

With a dense X and a free bias, columns are centred implicitly: the steps are those for X - mean, and the bias follows.

With a sparse X, a coefficient whose column does not occur in the batch moves by its entry of G and the penalty alone.
These moves are made together when the column occurs next, by a closed form (`glide`): a step costs O(entries of the
batch), not O(columns). All numbers of a column are next to each other in memory (`columns_of`): with one output they
fill one cache line.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean, merged, product
from avare.problems.base import Vector
from avare.problems.losses import slope
from avare.problems.matrix import BLOCK, add, load
from avare.samplers.base import smooth
from avare.samplers.kernels import draw_into, learn_from


class Memory(NamedTuple):
    """What the steps read and write; tables have a row per output."""

    x: Vector
    """The iterate; with a sparse X, each column as it was after `since` steps."""
    sums: Vector
    """G, and below it the estimate of the gradient (with a sparse X only if l1 > 0)."""
    table: Vector
    """The last slopes of each example."""
    since: NDArray[np.int64]
    noise: Vector
    """The sum of the second moments since the last check."""
    level: Vector
    """About the sum of all norms at the last check, the differences times the lengths of the rows."""


class Rates(NamedTuple):
    """One number per column: what a step of the present size does."""

    size: Vector
    """alpha D_j."""
    cut: Vector
    """alpha D_j l1."""
    shrink: Vector
    """1 / (1 + alpha D_j l2)."""
    decay: Vector
    """log(1 + alpha D_j l2)."""
    l1: Vector
    l2: Vector
    whole: Vector
    """alpha."""


class Buffers(NamedTuple):
    """What a step overwrites: one entry per draw."""

    indices: NDArray[np.int64]
    probabilities: Vector
    weights: Vector
    norms: Vector
    slopes: Vector
    factors: Vector
    """The differences, and next to them the same times the weights: of four draws, or of all if X is sparse."""
    outputs: Vector
    seen: NDArray[np.int64]
    """The set of examples in the batch."""
    direction: Vector


_LINE = 64  # bytes of a cache line


def columns_of(width: int, outputs: int) -> Vector:
    """One row of zeros per column, from the beginning of a cache line: x, sums, since, and four of the rates."""
    entries = 3 * outputs + 5
    memory = np.zeros(width * entries + _LINE // 8)
    first = -memory.ctypes.data % _LINE // 8
    return memory[first : first + width * entries].reshape(width, entries)


# --- kernels -------------------------------------------------------------------------------


@lean
def advance(state, model, metric, memory, rates, numbers, source, moments, buffers, scratch):
    """Make steps with the draws of a sampler until one is not finite; return how many were."""
    n, drawn, step, count = numbers
    for done in range(count):
        draw_into(state, drawn + done, source, buffers.indices, buffers.probabilities, buffers.weights)
        if not step_by(
            model.matrix.dense, model.matrix.sparse, model, metric, memory, rates, step + done, buffers, scratch
        ):
            return done
        learn_from(state, buffers.indices, buffers.norms)
        smooth(moments, n, buffers.weights, buffers.probabilities, buffers.norms)
    return count


@lean
def step_by(dense, sparse, model, metric, memory, rates, step, buffers, scratch):
    """Make a step with the batch in the buffers; return whether it was finite. If not, G is wrong, and only G.

    `dense` and `sparse` are those of the model: one of them is None, and what needs it is not compiled.
    """
    finite = False
    if dense is not None:
        finite = _move_dense(model, metric, memory, rates, buffers, scratch)
    if sparse is not None:
        finite = _move_sparse(sparse, model, metric, memory, rates, step, buffers, scratch)
    if finite:
        for j in range(len(buffers.norms)):
            norm = min(buffers.norms[j], 1e140)  # so that the sum does not overflow
            memory.noise[0] += buffers.weights[j] * norm * norm / buffers.probabilities[j]
            if len(metric.shares) > 0:  # about half of the draws follow the smoothness
                buffers.norms[j] += memory.level[0] * np.float64(metric.shares[buffers.indices[j]])
    return finite


@merged
def _differ(model, metric, memory, buffers, r, j, outputs):
    """Turn the outputs of draw j into slopes, set its norm, and put its differences into row r of the factors."""
    index, count = buffers.indices[j], len(memory.x)
    slope(model.loss, model.targets[index], outputs)
    factor = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
    once = 1.0 if _is_first(buffers.seen, index) else 0.0  # an example that is drawn twice changes G once
    square = 0.0
    for k in range(count):
        buffers.slopes[j, k] = factor * outputs[k]
        difference = buffers.slopes[j, k] - memory.table[index, k]
        square += difference * difference
        buffers.factors[r, k] = once * difference
        buffers.factors[r, count + k] = buffers.weights[j] * difference
    buffers.norms[j] = math.sqrt(square) * np.float64(metric.lengths[index])


@inlined
def _is_first(seen, index):
    """Enter an index into a set, a table with open addressing; return whether it was not there."""
    last = len(seen) - 1  # the size is a power of two
    place = (index * 2654435761) & last
    while seen[place] >= 0:
        if seen[place] == index:
            return False
        place = (place + 1) & last
    seen[place] = index
    return True


@inlined
def _enter(memory, buffers):
    """Enter the slopes of the batch into the table."""
    for j in range(len(buffers.indices)):
        for k in range(buffers.slopes.shape[1]):
            memory.table[buffers.indices[j], k] = buffers.slopes[j, k]


@merged
def _move_dense(model, metric, memory, rates, buffers, scratch):
    x, sums, indices, factors = memory.x, memory.sums, buffers.indices, buffers.factors
    count = len(x)
    buffers.seen[:] = -1
    for k in range(count):
        for j in range(x.shape[1]):
            sums[count + k, j] = sums[k, j]
    for first in range(0, len(indices), BLOCK):
        rows = min(BLOCK, len(indices) - first)
        load(model.matrix, indices, first, rows, x, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(rows):
            _differ(model, metric, memory, buffers, r, first + r, scratch.outputs[r])
            if not np.isfinite(buffers.norms[first + r]):
                return False
        add(model.matrix, indices, first, rows, factors, scratch.rows, sums)
    _enter(memory, buffers)
    for k in range(count):
        last = x.shape[1] - 1
        along = sums[count + k, last]
        if len(metric.matrix) > 0 or len(metric.basis) > 0:
            _descend(x[k], sums[count + k], along, metric, rates, buffers.direction)
        elif len(metric.shift) > 0:
            moved = _prox_centred(x[k], sums[count + k], metric.shift, along, rates.size, rates.cut, rates.shrink)
            x[k, last] -= rates.size[last] * along + moved
        else:
            _prox(x[k], sums[count + k], rates.size, rates.cut, rates.shrink)
    return True


@inlined
def _descend(x, gradient, along, metric, rates, direction):
    """Move by the gradient, the l2 term included, times the matrix of the metric, which may be D - B^T B."""
    for j in range(len(x)):
        gradient[j] += rates.l2[j] * x[j]
    if len(metric.shift) > 0:
        for j in range(len(x) - 1):
            gradient[j] -= metric.shift[j] * along
    if len(metric.basis) > 0:
        _flatten(metric.basis, metric.inverse, gradient, direction)
    else:
        _multiply(metric.matrix, gradient, direction)
    size, moved = rates.whole[0], 0.0
    for j in range(len(x)):
        x[j] -= size * direction[j]
    if len(metric.shift) > 0:
        for j in range(len(x) - 1):
            moved += metric.shift[j] * direction[j]
        x[len(x) - 1] += size * moved


@product
def _multiply(matrix, vector, result):
    for i in range(len(result)):
        result[i] = 0.0
    for j in range(len(vector)):  # the matrix is symmetric: columns are rows, and the inner loop adds whole rows
        factor = vector[j]
        for i in range(len(result)):
            result[i] += factor * matrix[j, i]


@product
def _flatten(basis, inverse, vector, result):
    for j in range(len(result)):
        result[j] = inverse[j] * vector[j]
    for k in range(len(basis)):
        along = 0.0
        for j in range(len(vector)):
            along += basis[k, j] * vector[j]
        for j in range(len(result)):
            result[j] -= along * basis[k, j]


@product
def _prox(x, gradient, size, cut, shrink):
    for j in range(len(x)):
        there = x[j] - size[j] * gradient[j]
        x[j] = (there - min(max(there, -cut[j]), cut[j])) * shrink[j]


@product
def _prox_centred(x, gradient, shift, along, size, cut, shrink):
    """Move all but the bias, last, as if the columns were centred; return what the move adds to each output."""
    moved = 0.0
    for j in range(len(x) - 1):
        there = x[j] - size[j] * (gradient[j] - shift[j] * along)
        there = (there - min(max(there, -cut[j]), cut[j])) * shrink[j]
        moved += shift[j] * (there - x[j])
        x[j] = there
    return moved


@merged
def _move_sparse(sparse, model, metric, memory, rates, step, buffers, scratch):
    x, sums, indices, factors, since = memory.x, memory.sums, buffers.indices, buffers.factors, memory.since
    count, last = len(x), x.shape[1] - 1
    bias = model.matrix.bias
    buffers.seen[:] = -1
    for j in range(len(indices)):
        for entry in range(sparse.starts[indices[j]], sparse.starts[indices[j] + 1]):
            column = sparse.columns[entry]
            if since[column] < step:
                for k in range(count):
                    x[k, column] = _glide_along(x[k, column], sums[k, column], rates, column, step - since[column])
                since[column] = step
        outputs = buffers.outputs[j]
        for k in range(count):
            z = x[k, last] if bias else 0.0
            for entry in range(sparse.starts[indices[j]], sparse.starts[indices[j] + 1]):
                z += np.float64(sparse.values[entry]) * x[k, sparse.columns[entry]]
            outputs[k] = z
        _differ(model, metric, memory, buffers, j, j, outputs)
        if not np.isfinite(buffers.norms[j]):
            return False
    _enter(memory, buffers)
    for j in range(len(indices)):
        for entry in range(sparse.starts[indices[j]], sparse.starts[indices[j] + 1]):
            value = np.float64(sparse.values[entry])
            _add_to_column(memory, rates, step, sparse.columns[entry], value, factors[j])
        if bias:
            _add_to_column(memory, rates, step, last, 1.0, factors[j])
    if rates.l1[0] > 0.0:
        for j in range(len(indices)):
            for entry in range(sparse.starts[indices[j]], sparse.starts[indices[j] + 1]):
                column = sparse.columns[entry]
                if since[column] == step:
                    since[column] = step + 1
                    _prox_column(x, sums, rates, column)
        if bias:
            since[last] = step + 1
            _prox_column(x, sums, rates, last)
    return True


@inlined
def _add_to_column(memory, rates, step, column, value, factors):
    """Add what one example contributes to a column.

    With l1 > 0 to its sums only. Otherwise the move is linear: it is made at once, along G by the first of a batch.
    """
    x, sums, count = memory.x, memory.sums, len(memory.x)
    if rates.l1[0] > 0.0:
        for k in range(2 * count):
            sums[k, column] += factors[k] * value
        return
    size, shrink = rates.size[column], rates.shrink[column]
    if memory.since[column] == step:
        memory.since[column] = step + 1
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
    return glide(
        x,
        gradient,
        rates.size[column],
        rates.decay[column],
        rates.l1[0],  # also for a free bias, which never lags
        rates.l2[column],
        steps,
    )


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
def current(memory, rates, step, result):
    """Set the result to the iterate after some steps, with a sparse X as without lagging; it may be the iterate."""
    x, since = memory.x, memory.since
    for k in range(len(x)):
        for column in range(x.shape[1]):
            lag = step - since[column] if len(since) > 0 else 0
            result[k, column] = _glide_along(x[k, column], memory.sums[k, column], rates, column, lag)


@lean
def slopes_into(loss, targets, sample_weight, outputs, table):
    """Set the slopes of some examples from their outputs, which are overwritten."""
    for i in range(len(outputs)):
        slope(loss, targets[i], outputs[i])
        for k in range(outputs.shape[1]):
            table[i, k] = outputs[i, k] * (sample_weight[i] if len(sample_weight) > 0 else 1.0)
