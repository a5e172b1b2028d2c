"""How the steps of SAGA scale with the columns of X, so that data need not be scaled."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import inlined, lean
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.problems.matrix import BLOCK, add, load

_ROWS, _ROUNDS = 1024, 10  # of the power method: a rough estimate is enough
_FLAT = 1e-12  # of the largest curvature: columns below it do not move faster
_SHARE = 0.09  # of the batch over the total smoothness: the best step with importance sampling on several problems
_LARGEST = 0.5  # of one over the smoothness of the sum


class Metric(NamedTuple):
    """What steps need to know of the data."""

    inverse: Vector
    """D_j of each column, one over the curvature of f along it."""
    shift: Vector
    """The mean of each column, if columns are centred; otherwise empty."""
    lengths: NDArray[np.float32]
    """The length of each row, sqrt(sum_j D_j a_ij^2)."""

    def norms(self, problem: Linear) -> Vector:
        """A bound on the norms of the gradients, up to a factor: a length times the sample weight."""
        weights = problem._model.sample_weight
        return self.lengths * weights if len(weights) else self.lengths.astype(np.float64)


def metric_of(problem: Linear) -> Metric:
    """Measure the columns of X. O(size of X)."""
    model, width = problem._model, problem.width
    weights = model.sample_weight
    weight = float(weights.sum()) if len(weights) else float(problem.n)
    free = model.matrix.bias and problem._l2[width - 1] == problem._l1[width - 1] == 0.0
    shift, squares = np.zeros(width), np.zeros(width)
    if model.matrix.sparse is None and free and weight > 0.0:
        _add_columns(model.matrix.dense, None, weights, shift, squares, False)
        shift /= weight
    _add_columns(model.matrix.dense, model.matrix.sparse, weights, shift, squares, True)
    if model.matrix.bias:
        squares[-1] = weight
    curvature = problem.curvature * squares + problem._l2[:width]
    inverse = 1.0 / np.maximum(curvature, max(_FLAT * float(curvature.max()), np.finfo(float).tiny))
    lengths = np.empty(problem.n, dtype=np.float32)
    bias = float(inverse[-1]) if model.matrix.bias else 0.0
    _set_lengths(model.matrix.dense, model.matrix.sparse, shift, inverse, bias, lengths)
    centred = model.matrix.sparse is None and free
    return Metric(inverse, shift if centred else np.empty(0), lengths)


def step_size_of(problem: Linear, metric: Metric, batch_size: int) -> float:
    """Choose a step size: 0.09 m / (N mean smoothness), but at most about half of one over the smoothness of f.

    Both in the metric. The second is estimated by the power method on some rows.
    """
    constants = problem.curvature * metric.norms(problem) * metric.lengths
    total = float(constants.sum())
    if total == 0.0:
        return 1.0
    generator = np.random.default_rng(0)
    rows = generator.choice(problem.n, min(_ROWS, 4 * problem.n), p=constants / total)
    weights = problem.curvature * total / (len(rows) * constants[rows])
    if len(problem._model.sample_weight):
        weights *= problem._model.sample_weight[rows]
    root = np.sqrt(metric.inverse)
    direction, largest = generator.standard_normal(problem.width), 0.0
    product, scratch = np.empty((1, problem.width)), problem.scratch()
    for _ in range(_ROUNDS):
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        towards = root * direction
        if len(metric.shift):
            towards[-1] -= metric.shift[:-1] @ towards[:-1]
        _multiply(problem._model.matrix, rows, weights, towards.reshape(1, -1), product, scratch)
        result = product[0].copy()
        if len(metric.shift):
            result[:-1] -= metric.shift[:-1] * result[-1]
        direction = root * result
        largest = float(np.linalg.norm(direction))
    return 1.0 / (total / (_SHARE * batch_size) + largest / _LARGEST)


# --- kernels -------------------------------------------------------------------------------


@lean
def _add_columns(dense, sparse, sample_weight, shift, result, squared):
    """Add up each column, or its squared distances from the shift, weighted."""
    if dense is not None:
        for i in range(dense.shape[0]):
            weight = _weight(sample_weight, i)
            for j in range(dense.shape[1]):
                if squared:
                    result[j] += weight * (dense[i, j] - shift[j]) ** 2
                else:
                    shift[j] += weight * dense[i, j]
    if sparse is not None:
        for i in range(len(sparse.starts) - 1):
            weight = _weight(sample_weight, i)
            for entry in range(sparse.starts[i], sparse.starts[i + 1]):
                result[sparse.columns[entry]] += weight * np.float64(sparse.values[entry]) ** 2


@lean
def _set_lengths(dense, sparse, shift, inverse, bias, lengths):
    if dense is not None:
        for i in range(dense.shape[0]):
            square = bias
            for j in range(dense.shape[1]):
                square += inverse[j] * (dense[i, j] - shift[j]) ** 2
            lengths[i] = np.sqrt(square)
    if sparse is not None:
        for i in range(len(sparse.starts) - 1):
            square = bias
            for entry in range(sparse.starts[i], sparse.starts[i + 1]):
                square += inverse[sparse.columns[entry]] * np.float64(sparse.values[entry]) ** 2
            lengths[i] = np.sqrt(square)


@lean
def _multiply(matrix, indices, weights, direction, product, scratch):
    """Set the product to sum_j w_j a_j (a_j . direction)."""
    product[:, :] = 0.0
    for first in range(0, len(indices), BLOCK):
        rows = min(BLOCK, len(indices) - first)
        load(matrix, indices, first, rows, direction, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(rows):
            scratch.outputs[r, 0] *= weights[first + r]
        add(matrix, indices, first, rows, scratch.outputs, scratch.rows, product)


@inlined
def _weight(sample_weight, i):
    return sample_weight[i] if len(sample_weight) > 0 else 1.0
