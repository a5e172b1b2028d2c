"""What the linear models share: data, dense or sparse, and sums over it by compiled kernels."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, lean
from avare.problems.base import Problem, Vector, cost_of, strengths_of
from avare.problems.losses import slope, terms_into, value
from avare.problems.matrix import (
    BLOCK,
    Matrix,
    add,
    check_size,
    load,
    read_matrix,
    some_rows,
    writable,
)
from avare.problems.rows import Rows
from avare.problems.targets import Target, parse_targets


class Common(TypedDict, total=False):
    """The arguments that all linear models have in common, besides X and y."""

    l2: ArrayLike
    l1: float
    sample_weight: ArrayLike | None
    bias: bool | Literal["free"]


class LinearModel(NamedTuple):
    """A linear model as kernels take it."""

    matrix: Matrix
    targets: NDArray[np.float64]
    sample_weight: NDArray[np.float64]
    """Empty if all are 1."""
    loss: Any


class Survey(NamedTuple):
    """All examples at one x."""

    slopes: NDArray[np.float64]
    """The derivatives of each loss by its outputs, times the sample weight."""
    curvatures: NDArray[np.float64]
    """The mean second derivative of each loss over its outputs, times the sample weight."""
    gradient: NDArray[np.float64]
    """The gradient of the sum, without the penalty."""
    loss: float
    """The sum of the losses."""


class Terms(NamedTuple):
    """The losses of all examples at given outputs, times the sample weights."""

    loss: float
    """Their sum."""
    slopes: NDArray[np.float64]
    """The derivatives of each by its outputs."""
    curvature: NDArray[np.float64]
    """The second derivatives by a single output; with several, what `Linear.curve` needs."""


class Scratch(NamedTuple):
    """Arrays that kernels overwrite."""

    rows: NDArray[np.float64]
    outputs: NDArray[np.float64]
    squares: NDArray[np.float64]


class Linear(Problem):
    """A linear model, ``f(x) = sum_i s_i loss(y_i, a_i.x) + l2/2 |x|^2 + l1 |x|_1``, with the rows a_i of X.

    X is read in place and not copied: a float32 or float64 array in any order, or a SciPy sparse matrix in CSR format
    with indices of 32 bits (others are converted once). All sums are made in float64.

    To add a loss, derive a class with `target`, `curvature` and `loss`, and register its kernels by
    `register_kernels`.

    >>> import avare
    >>> problem: Linear = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 0.0], l2=2.0)
    >>> problem.n, problem.width, problem.curvature
    (2, 1, 1.0)
    >>> problem.objective(np.array([1.0]))  # 0 + 4 / 2 + 2 / 2
    3.0
    """

    target: ClassVar[Target]
    """What y holds: "classes" (one output per class), "two classes" or "numbers" (one output)."""
    curvature: float
    """The largest second derivative of the loss."""
    separable_loss: ClassVar[float] = 0.0
    """A loss below this says that x is on the right side: without a penalty it decreases for ever as x grows.

    0 if there is no such value.
    """
    is_positive: ClassVar[bool] = False
    """Whether no loss is below 0, so that the minimum is not either."""
    is_quadratic: ClassVar[bool] = False
    """Whether the loss has the same second derivative everywhere."""
    flattens: ClassVar[bool] = False
    """Whether the loss has no curvature in parts, so that few examples may determine the minimum."""
    slope_range: tuple[float, float] | None = None
    """Of the slopes of examples of weight 1, times their targets if there are two classes; None if it is not known."""
    classes: NDArray[Any]
    """The labels in order; empty if the targets are numbers."""
    outputs: int
    """Numbers per example, a_i.x: one, or one per class."""
    width: int
    """Coefficients per output: columns of X, and one for the bias."""
    square: float
    """The sum of the squares of all entries of X, with the bias; of a subset of the examples, at most this."""

    def __init__(
        self,
        X: Any,
        y: ArrayLike,
        *,
        l2: ArrayLike = 1.0,
        l1: float = 0.0,
        sample_weight: ArrayLike | None = None,
        bias: bool | Literal["free"] = False,
    ) -> None:
        free = isinstance(bias, str) and bias == "free"
        if isinstance(bias, str) and not free:
            raise ValueError(f'bias = {bias!r}: must be True, False or "free"')
        matrix, n, self.width, self.square = read_matrix(X, free or validation.boolean("bias", bias))
        columns = list(getattr(X, "columns", ()))  # of a data frame
        self._columns = columns if all(isinstance(name, str) for name in columns) else []
        self.classes, targets = parse_targets(self.target, y)
        self.outputs = len(self.classes) if self.target == "classes" else 1
        validation.same_length("y", len(targets), "X", n)
        weights = np.empty(0)
        if sample_weight is not None:
            weights = validation.nonnegative("sample_weight", sample_weight)
            validation.same_length("sample_weight", len(weights), "X", n)
        check_size("y", targets)
        check_size("sample_weight", weights)
        what = "column of X, and the last for the bias" if matrix.bias and not free else "column of X"
        strengths = strengths_of(l2, self.width - free, what)
        super().__init__(n, self.outputs * self.width, np.tile(np.append(strengths, [0.0] * free), self.outputs), l1)
        if free:
            self.penalty.l1.reshape(self.outputs, self.width)[:, -1] = 0.0
        targets, weights = (writable(np.ascontiguousarray(each)) for each in (targets, weights))
        self.model = LinearModel(matrix, targets, weights, self.loss())
        self._classes: tuple[LinearModel, tuple[NDArray[np.int64], Vector]] | None = None

    @property
    def names(self) -> list[str]:
        """The names of the coefficients: those of the columns if X is a data frame, otherwise x[0], x[1], ...

        The intercept is "bias". With an output per class, its label comes first, as in "setosa: width".
        """
        if not self._columns:
            return super().names
        columns = [*self._columns, *["bias"] * self.model.matrix.bias]
        return columns if self.outputs == 1 else [f"{label}: {name}" for label in self.classes for name in columns]

    @property
    def smoothness(self) -> Vector:
        """The smoothness constant of each example, its share l2 / n included. O(size of X)."""
        constants = self.curvature * self.squared_lengths()
        if len(self.model.sample_weight):
            constants *= self.model.sample_weight
        return constants + self.l2 / self.n

    @property
    def lengths(self) -> Vector:
        """The length of each row, the bias's 1 included. O(size of X)."""
        return np.sqrt(self.squared_lengths())

    def coefficients(self, x: ArrayLike) -> Vector:
        """Return x as a table: a row per output, a column per column of X, and the bias last."""
        return self.vector("x", x).reshape(self.outputs, self.width)

    def subset(self, indices: NDArray[np.int64], weights: Vector) -> Self:
        """Return the same problem with some of the examples only, with other sample weights. O(their size)."""
        part, model = copy.copy(self), self.model
        part.model = LinearModel(some_rows(model.matrix, indices), model.targets[indices], weights, model.loss)
        part.n, part._optimum = len(indices), None
        return part

    @property
    def has_free_bias(self) -> bool:
        """Whether there is a bias without a penalty."""
        return self.model.matrix.bias and self.penalty.l2[-1] == self.penalty.l1[-1] == 0.0

    def rows(self, *, centred: bool = True) -> Rows:
        """Return the rows for products with all of them, centred if there is a free bias unless that is not wanted."""
        centred = centred and self.has_free_bias
        return Rows(self.model.matrix, self.n, self.width, self.model.sample_weight, centred=centred)

    def gap(self, x: ArrayLike) -> float:
        """Return how far f(x) is above the minimum, at most: a duality gap. Infinite if nothing is known. Some passes.

        It is a bound if each coefficient but a free bias has a penalty and rounding is negligible, otherwise an
        estimate: see `avare.linear.gap_at`.
        """
        from avare.linear import gap_at

        return gap_at(self, self.coefficients(x)).value

    def best_constant(self) -> float:
        """Return the objective of the best model without X: 0, or the best free bias. O(n)."""
        from avare.linear import constant_model

        return constant_model(self)[1]

    # --- all examples, by their outputs ---------------------------------------------------

    def terms_at(self, outputs: Vector) -> Terms:
        """Return the losses, slopes and second derivatives of all examples, for a row of outputs each. O(n)."""
        slopes, curvatures = np.empty(outputs.shape), np.empty(outputs.shape)
        loss = terms_into(self.model.loss, self.model.targets, self.model.sample_weight, outputs, slopes, curvatures)
        return Terms(float(loss), slopes, curvatures)

    def curve(self, terms: Terms, directions: Vector, part: slice = slice(None)) -> Vector:
        """Return the second derivative of some losses times a direction of their outputs."""
        return terms.curvature[part] * directions

    def mean_curvatures(self, terms: Terms) -> Vector:
        """Return the mean second derivative of each loss over its outputs."""
        return terms.curvature[:, 0]

    def weighted_sum(self, values: NDArray[Any]) -> float:
        """Return the sum of a number per example, times the sample weights."""
        return float(values @ self.model.sample_weight if len(self.model.sample_weight) else values.sum())

    def class_weights(self) -> tuple[NDArray[np.int64], Vector]:
        """Return the class of each example, and the sum of the sample weights of each; numbers are of one class."""
        if self._classes is not None and self._classes[0] is self.model:
            return self._classes[1]
        targets, count = self.model.targets, 2 if self.target == "two classes" else self.outputs
        codes = (targets > 0.0 if self.target == "two classes" else targets * (count > 1)).astype(np.int64)
        weights = self.model.sample_weight if len(self.model.sample_weight) else None
        self._classes = (self.model, (codes, np.bincount(codes, weights, count).astype(np.float64)))
        return self._classes[1]

    # --- sums over the examples -----------------------------------------------------------

    def scratch(self) -> Scratch:
        """Allocate the arrays that kernels overwrite."""
        width = self.width if self.model.matrix.sparse is None else 0
        return Scratch(np.empty((BLOCK, width)), np.empty((BLOCK, self.outputs)), np.empty(BLOCK))

    def losses_and_norms(self, x: Vector) -> tuple[Vector, Vector]:
        """Return the losses of all examples, and the norms of their gradients."""
        outputs = self.rows(centred=False).outputs(self.coefficients(x))
        losses, norms = np.empty(self.n), self.squared_lengths()
        _evaluate(self.model.loss, self.model.targets, self.model.sample_weight, outputs, losses, norms)
        return losses, norms

    def _minimum(self, start: Vector, tolerance: float, progress: bool) -> Vector:
        from avare.linear import minimize

        return minimize(self, start, tolerance, progress=progress)

    def total_loss(self, x: Vector) -> float:
        return self._evaluate(x, None)[0]

    def _evaluate(self, x: Vector, p: Vector | None) -> tuple[float, float, float]:
        losses, norms = self.losses_and_norms(x)
        return float(losses.sum()), float(norms.sum()), math.nan if p is None else cost_of(norms, p)

    def why_improper(self, mode: Vector) -> str:
        """Return why :math:`e^{-f}` has no finite integral; "" if it has one, or if that is not known."""
        from avare.linear import why_improper

        return why_improper(self, mode)

    def loss_norms(self, x: Vector) -> Vector:
        return self.losses_and_norms(x)[1]

    def loss_gradient(self, x: Vector) -> Vector:
        return self.survey(x).gradient

    def loss_batch_gradient(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        gradient, norms = np.empty((self.outputs, self.width)), np.empty(len(indices))
        add_gradients(self.model, self.coefficients(x), indices, weights, gradient, norms, self.scratch())
        return gradient.ravel(), norms

    def hessian(self, x: Vector) -> Vector:
        """Return the Hessian of f at x."""
        if self.outputs == 1:
            return np.asarray(self.gram(x) + np.diag(self.penalty.l2))
        return np.stack([self.hessian_product(x, row) for row in np.eye(self.dim)])

    def hessian_product(self, x: ArrayLike, direction: ArrayLike) -> Vector:
        """Return the Hessian of f at x times a direction, the l2 term included. O(size of X)."""
        towards, rows = self.vector("direction", direction), self.rows(centred=False)
        terms = self.terms_at(rows.outputs(self.coefficients(x)))
        curved = rows.curve(self.coefficients(towards), lambda part, z: self.curve(terms, z, part))[1]
        return curved.ravel() + self.penalty.l2 * towards

    def gram(self, x: ArrayLike) -> Vector:
        """Return sum_i c_i a_i a_i^T, with c_i the mean curvature of example i over its outputs. O(n width^2)."""
        lower = np.tril(self.rows(centred=False).gram(self.survey(self.vector("x", x)).curvatures))
        return lower + np.tril(lower, -1).T

    def survey(self, x: Vector) -> Survey:
        """Compute slopes, curvatures, the gradient and the loss."""
        rows = self.rows(centred=False)
        terms = self.terms_at(rows.outputs(self.coefficients(x)))
        return Survey(terms.slopes, self.mean_curvatures(terms), rows.sums(terms.slopes).ravel(), terms.loss)

    def squared_lengths(self) -> Vector:
        return self.rows(centred=False).lengths(np.ones(self.width))

    def _more(self) -> str:
        return "".join(f", {name}={number:g}" for name, number in self.model.loss._asdict().items())

    # --- what a loss fills in --------------------------------------------------------------

    @abstractmethod
    def loss(self) -> Any:
        """Return the parameters of the loss: a ``NamedTuple`` whose kernels are registered."""


# --- kernels -------------------------------------------------------------------------------


@lean
def add_gradients(model, coefficients, indices, weights, gradient, norms, scratch):
    """Set the gradient to a weighted sum over some examples, and set the norms of their gradients."""
    gradient[:, :] = 0.0
    for first in range(0, len(indices), BLOCK):
        count = min(BLOCK, len(indices) - first)
        load(model.matrix, indices, first, count, coefficients, scratch.rows, scratch.outputs, scratch.squares)
        for r in range(count):
            index = indices[first + r]
            factor = _factor(model.sample_weight, index)
            length = slope(model.loss, model.targets[index], scratch.outputs[r])
            norms[first + r] = factor * length * np.sqrt(scratch.squares[r])
            for k in range(len(coefficients)):
                scratch.outputs[r, k] *= factor * weights[first + r]
        add(model.matrix, indices, first, count, scratch.outputs, scratch.rows, gradient)


@lean
def _evaluate(loss, targets, sample_weight, outputs, losses, norms):
    """Set the losses, and turn squared lengths into the norms of the gradients; overwrites the outputs."""
    for i in range(len(outputs)):
        factor = _factor(sample_weight, i)
        losses[i] = factor * value(loss, targets[i], outputs[i])
        norms[i] = factor * slope(loss, targets[i], outputs[i]) * np.sqrt(norms[i])


@inlined
def _factor(sample_weight, index):
    return sample_weight[index] if len(sample_weight) > 0 else 1.0
