"""What the linear models share: data, dense or sparse, and sums over it by compiled kernels."""

import copy
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import kernel, lean
from avare.problems.base import Problem, Vector, cost_of
from avare.problems.losses import Loss, curve, mean_curvature, slope, value
from avare.problems.minimum import minimum
from avare.problems.rows import BLOCK, Rows, Sparse, add, load

_CHUNK = 4096  # examples a call: sums over all are made of these, exact to the last digits


class Model(NamedTuple):
    """A linear model as kernels take it."""

    rows: Rows
    targets: NDArray[Any]
    sample_weight: NDArray[np.float64]
    """Empty: all 1."""
    loss: Loss


class Scratch(NamedTuple):
    """What kernels write to on the way."""

    rows: NDArray[np.float64]
    outputs: NDArray[np.float64]
    directions: NDArray[np.float64]
    squares: NDArray[np.float64]


class Linear(Problem):
    """f(x) = sum_i s_i loss(y_i, a_i.x) + l2/2 |x|^2, with rows a_i of X.

    X is read where it stands and not copied: a float32 or float64 array in any order, or a SciPy
    sparse matrix in CSR format (others are converted once). All sums are made in float64.
    """

    outputs: ClassVar[int] = 1
    """How many numbers a_i.x is: the number of classes, for softmax."""
    curvature: float
    """The largest second derivative of the loss."""

    def __init__(self, X: Any, y: ArrayLike, *, l2: float, sample_weight: ArrayLike | None, bias: bool) -> None:
        bias = validation.boolean("bias", bias)
        rows, n, width = _rows(X, bias)
        targets = self._targets(y)
        validation.same_length("y", len(targets), "X", n)
        weights = np.empty(0)
        if sample_weight is not None:
            weights = validation.nonnegative("sample_weight", sample_weight)
            validation.same_length("sample_weight", len(weights), "X", n)
        self.width = width + int(bias)
        """Coefficients for each output: columns of X, and one for the bias."""
        super().__init__(n, self.outputs * self.width, l2)
        self._model = Model(rows, targets, weights, self._loss())

    @property
    def smoothness(self) -> Vector:
        """The smoothness constant of each example, its share l2 / n included. O(size of X)."""
        constants = self.curvature * self._squared_lengths()
        if len(self._model.sample_weight):
            constants *= self._model.sample_weight
        return constants + self.l2 / self.n

    @property
    def lengths(self) -> Vector:
        """The length of each row, the bias's 1 included. O(size of X)."""
        return np.sqrt(self._squared_lengths())

    def coefficients(self, x: ArrayLike) -> Vector:
        """The vector x as a table: a row for each output, a column for each of X, and for the bias the last."""
        return self.vector("x", x).reshape(self.outputs, self.width)

    # --- sums over the examples -----------------------------------------------------------

    def scratch(self, outputs: int | None = None) -> Scratch:
        """What kernels write to on the way."""
        outputs = self.outputs if outputs is None else outputs
        block = (BLOCK, self.width if self._model.rows.sparse is None else 0)
        return Scratch(np.empty(block), np.empty((BLOCK, outputs)), np.empty((BLOCK, outputs)), np.empty(BLOCK))

    def _chunks(self) -> Iterator[NDArray[np.int64]]:
        return (np.arange(first, min(first + _CHUNK, self.n)) for first in range(0, self.n, _CHUNK))

    def _minimum(self, start: Vector, tolerance: float, progress: bool) -> Vector:
        return minimum(self, start, tolerance, progress=progress)

    def _objective(self, x: Vector) -> float:
        return self._evaluate(x, None)[0]

    def _evaluate(self, x: Vector, p: Vector | None) -> tuple[float, float, float]:
        coefficients, scratch = self.coefficients(x), self.scratch()
        losses, norms = np.empty(_CHUNK), np.empty(_CHUNK)
        sums = []
        for indices in self._chunks():
            size = len(indices)
            _evaluate(self._model, coefficients, indices, losses, norms, scratch)
            cost = math.nan if p is None else cost_of(norms[:size], p[indices[0] : indices[0] + size])
            sums.append((losses[:size].sum(), norms[:size].sum(), cost))
        loss, total, cost = (_total(each) for each in zip(*sums, strict=True))
        return loss, total, cost

    def _norms(self, x: Vector) -> Vector:
        coefficients, scratch = self.coefficients(x), self.scratch()
        losses, norms = np.empty(_CHUNK), np.empty(self.n)
        for indices in self._chunks():
            _evaluate(self._model, coefficients, indices, losses, norms[indices[0] :], scratch)
        return norms

    def _gradient(self, x: Vector) -> Vector:
        coefficients, scratch = self.coefficients(x), self.scratch()
        ones, norms = np.ones(_CHUNK), np.empty(_CHUNK)
        part, total = np.empty((self.outputs, self.width)), np.zeros(self.dim)
        for indices in self._chunks():
            add_gradients(self._model, coefficients, indices, ones, part, norms, scratch)
            total += part.ravel()
        return total

    def _batch_gradient(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        gradient, norms = np.empty((self.outputs, self.width)), np.empty(len(indices))
        add_gradients(self._model, self.coefficients(x), indices, weights, gradient, norms, self.scratch())
        return gradient.ravel(), norms

    def hessian_product(self, x: ArrayLike, direction: ArrayLike) -> Vector:
        """The second derivative of f at x times a direction, the l2 term included."""
        coefficients, towards = self.coefficients(x), self.vector("direction", direction)
        directions, scratch = self.coefficients(towards), self.scratch()
        part, total = np.empty((self.outputs, self.width)), self.l2 * towards
        for indices in self._chunks():
            _curve(self._model, coefficients, directions, indices, part, scratch)
            total += part.ravel()
        return total

    def gram(self, x: ArrayLike) -> Vector:
        """sum_i c_i a_i a_i^T, with c_i the mean curvature of example i over its outputs. O(n width^2)."""
        coefficients, scratch = self.coefficients(x), self.scratch()
        curvatures, total = np.empty(_CHUNK), np.zeros((self.width, self.width))
        for indices in self._chunks():
            _mean_curvatures(self._model, coefficients, indices, curvatures, scratch)
            block = self._dense(indices)
            block *= np.sqrt(curvatures[: len(indices), None])
            total += block.T @ block
        return total

    def _dense(self, indices: NDArray[np.int64]) -> Vector:
        """Some rows, one after another, as a table in float64."""
        rows, part = self._model.rows, slice(indices[0], indices[-1] + 1)
        block = np.zeros((len(indices), self.width))
        width = self.width - int(rows.bias)
        if rows.dense is not None:
            block[:, :width] = rows.dense[part]
        elif rows.sparse is not None:
            starts = rows.sparse.starts[indices[0] : indices[-1] + 2]
            entries = slice(starts[0], starts[-1])
            block[np.repeat(indices - indices[0], np.diff(starts)), rows.sparse.columns[entries]] = rows.sparse.values[
                entries
            ]
        block[:, width:] = 1.0
        return block

    def _squared_lengths(self) -> Vector:
        scratch, none = self.scratch(0), np.empty((0, self.width))
        squares = np.empty(self.n)
        for indices in self._chunks():
            _squared_lengths(self._model.rows, none, indices, squares[indices[0] :], scratch)
        return squares

    # --- what a model fills in ------------------------------------------------------------

    @abstractmethod
    def _targets(self, y: ArrayLike) -> NDArray[np.float64]:
        """The targets as kernels take them: of one type for all models, so that kernels are compiled once."""

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss as kernels know it."""


def two_classes(y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The two labels in y, and for each example -1 for the smaller and +1 for the larger."""
    labels, places = _labels(y)
    if len(labels) > 2:
        some = ", ".join(repr(label) for label in labels[:3].tolist())
        raise ValueError(f"y has {len(labels)} classes, {some}{', ...' if len(labels) > 3 else ''}: must have 2")
    return labels, np.where(places == 0, -1.0, 1.0)


def many_classes(y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The labels in y, and for each example which it has."""
    labels, places = _labels(y)
    return labels, places.astype(np.float64)


def _labels(y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    try:
        array = np.asarray(y)
    except ValueError as error:
        raise ValueError(f"y is not an array: {error}") from None
    if array.ndim != 1:
        raise ValueError(f"y has shape {array.shape}: must have 1 dimension")
    if array.dtype.kind == "f":
        real_targets(array)  # nan is no label
    try:
        labels, places = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"y holds labels that have no order: {error}") from None
    if len(labels) == 1:
        raise ValueError(f"y has 1 class, {labels.tolist()[0]!r}: must have at least 2")
    return labels, places


def real_targets(y: ArrayLike) -> NDArray[np.float64]:
    """Targets that are finite numbers."""
    return validation.finite("y", y)


def _rows(X: Any, bias: bool) -> tuple[Rows, int, int]:
    """Checked rows, how many there are, and of how many columns."""
    if hasattr(X, "tocsr"):
        matrix = copy.copy(X.tocsr())  # of the matrix, not of its arrays: what is mended stays here
        if len(matrix.shape) != 2:
            raise ValueError(f"X has shape {matrix.shape}: must have 2 dimensions")
        try:
            matrix.check_format(full_check=True)  # kernels do not look whether a column is there
        except ValueError as error:
            raise ValueError(f"X is no CSR matrix: {error}") from None
        if not matrix.has_canonical_format:  # entries that stand twice would spoil the lengths
            matrix = matrix.copy()
            matrix.sum_duplicates()
        values = _floating("X", matrix.data)
        n, width = matrix.shape
        fault = int(_first_not_finite(values.reshape(1, -1)))
        if fault >= 0:
            row = int(np.searchsorted(matrix.indptr, fault, side="right")) - 1
            raise ValueError(f"X[{row}, {matrix.indices[fault]}] = {values[fault]}: must be finite")
        return _nonempty(Rows(None, Sparse(values, matrix.indices, matrix.indptr), bias), n, width)
    try:
        array = _floating("X", np.asarray(X))
    except ValueError as error:
        raise ValueError(f"X is not an array: {error}") from None
    if array.ndim != 2:
        raise ValueError(f"X has shape {array.shape}: must have 2 dimensions")
    fault = int(_first_not_finite(array))
    if fault >= 0:
        place = divmod(fault, array.shape[1])
        raise ValueError(f"X[{place[0]}, {place[1]}] = {array[place]}: must be finite")
    return _nonempty(Rows(array, None, bias), *array.shape)


def _total(parts: Iterable[float]) -> float:
    """The sum of numbers that are not negative, infinite where it is too large."""
    try:
        return math.fsum(parts)
    except OverflowError:
        return math.inf


def _nonempty(rows: Rows, n: int, width: int) -> tuple[Rows, int, int]:
    if n == 0 or width == 0:
        raise ValueError(f"X has shape ({n}, {width}): must not be empty")
    return rows, n, width


def _floating(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """float32 and float64 as they are, other real numbers as float64."""
    if array.dtype in (np.float32, np.float64):
        return array
    return validation.real(name, array)


# --- kernels -------------------------------------------------------------------------------


@kernel
def _first_not_finite(array):
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            if not np.isfinite(array[i, j]):
                return i * array.shape[1] + j
    return -1


@lean
def add_gradients(model, coefficients, indices, weights, gradient, norms, scratch):
    """Set the gradient to the weighted sum of those of some examples, and set their norms."""
    rows = model.rows
    gradient[:, :] = 0.0
    for first in range(0, len(indices), BLOCK):
        count = min(BLOCK, len(indices) - first)
        load(rows, indices, first, count, coefficients, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(count):
            index = indices[first + r]
            factor = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
            length = slope(model.loss, model.targets[index], scratch.outputs[r])
            norms[first + r] = factor * length * np.sqrt(scratch.squares[r])
            for k in range(len(coefficients)):
                scratch.outputs[r, k] *= factor * weights[first + r]
        add(rows, indices, first, count, scratch.outputs, scratch.rows, gradient)


@lean
def _evaluate(model, coefficients, indices, losses, norms, scratch):
    """Set loss and norm of some examples."""
    rows = model.rows
    for first in range(0, len(indices), BLOCK):
        count = min(BLOCK, len(indices) - first)
        load(rows, indices, first, count, coefficients, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(count):
            index = indices[first + r]
            factor = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
            losses[first + r] = factor * value(model.loss, model.targets[index], scratch.outputs[r])
            length = slope(model.loss, model.targets[index], scratch.outputs[r])
            norms[first + r] = factor * length * np.sqrt(scratch.squares[r])


@lean
def _curve(model, coefficients, directions, indices, product, scratch):
    """Set the product to the second derivative of the sum over some examples times the directions."""
    rows = model.rows
    product[:, :] = 0.0
    for first in range(0, len(indices), BLOCK):
        count = min(BLOCK, len(indices) - first)
        for table, results in ((coefficients, scratch.outputs), (directions, scratch.directions)):
            load(rows, indices, first, count, table, scratch.rows, results, scratch.squares)
        for r in range(count):
            index = indices[first + r]
            factor = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
            curve(model.loss, model.targets[index], scratch.outputs[r], scratch.directions[r])
            for k in range(len(coefficients)):
                scratch.directions[r, k] *= factor
        add(rows, indices, first, count, scratch.directions, scratch.rows, product)


@kernel
def _mean_curvatures(model, coefficients, indices, curvatures, scratch):
    """Set the mean over its outputs of each example's second derivatives."""
    rows = model.rows
    for first in range(0, len(indices), BLOCK):
        count = min(BLOCK, len(indices) - first)
        load(rows, indices, first, count, coefficients, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(count):
            index = indices[first + r]
            factor = model.sample_weight[index] if len(model.sample_weight) > 0 else 1.0
            curvatures[first + r] = factor * mean_curvature(
                model.loss, model.targets[index], scratch.outputs[r], scratch.directions[r]
            )


@kernel
def _squared_lengths(rows, none, indices, squares, scratch):
    for first in range(0, len(indices), BLOCK):
        count = min(BLOCK, len(indices) - first)
        load(rows, indices, first, count, none, scratch.rows, scratch.outputs, squares[first : first + BLOCK])
