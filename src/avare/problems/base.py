"""The base class of all problems: finite sums, f(x) = sum_i f_i(x) + l2/2 |x|^2 + l1 |x|_1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation

Vector = NDArray[np.float64]


class Penalty(NamedTuple):
    """The penalty l2/2 |x|^2 + l1 |x|_1, with a strength per coefficient.

    >>> penalty = Penalty(l2=np.array([2.0, 0.0]), l1=np.array([1.0, 0.0]))
    >>> penalty.value(np.array([3.0, 5.0]))
    12.0
    """

    l2: Vector
    l1: Vector

    def value(self, x: Vector) -> float:
        """Return the penalty of x."""
        smooth = 0.5 * float(x @ (self.l2 * x)) if self.l2.any() else 0.0  # avoids 0 times infinity
        return smooth + (float(self.l1 @ np.abs(x)) if self.l1.any() else 0.0)

    def subgradient(self, x: Vector, gradient: Vector) -> Vector:
        """Add the gradient of the penalty to a gradient: the shortest subgradient of the sum."""
        smooth = gradient + self.l2 * x
        if not self.l1.any():
            return smooth
        at_zero = np.sign(smooth) * np.maximum(np.abs(smooth) - self.l1, 0.0)
        return np.asarray(np.where(x == 0.0, at_zero, smooth + self.l1 * np.sign(x)))


class Problem(ABC):
    """A sum over n examples, as a function of a vector x of dim numbers.

    The penalty is exact, not sampled: it is part of the objective, the gradient and the steps, but not of the
    gradients of single examples or their norms.

    >>> import avare
    >>> problem: Problem = avare.problems.LeastSquares([[1.0], [2.0]], [1.0, 0.0], l2=0.0)
    >>> x = np.array([1.0])
    >>> problem.gradient(x), problem.norms(x)
    (array([4.]), array([0., 4.]))
    >>> problem.batch_gradient(x, np.array([1]), np.array([0.5]))
    (array([2.]), array([4.]))
    """

    n: int
    """Number of examples."""
    dim: int
    """Length of x."""
    l2: float
    """Strength of the l2 term; the largest if there is one per coefficient."""
    l1: float
    """Strength of the l1 term."""
    penalty: Penalty
    """Both strengths, per coefficient: a free bias has no penalty."""
    _precision: ClassVar[float] = 1e-10

    def __init__(self, n: int, dim: int, l2: ArrayLike, l1: float = 0.0) -> None:
        self.n = validation.integer("n", n, at_least=1)
        self.dim = validation.integer("dim", dim, at_least=1)
        self.l1 = validation.number("l1", l1, at_least=0.0)
        strengths = strengths_of(l2, self.dim, "coefficient")
        self.l2 = float(strengths.max())
        self.penalty = Penalty(strengths, np.full(self.dim, self.l1))
        self._optimum: float | None = None

    @property
    def optimum(self) -> float | None:
        """The smallest value of the objective; None until it is set, or found by `minimize`."""
        return self._optimum

    @optimum.setter
    def optimum(self, value: float | None) -> None:
        self._optimum = None if value is None else validation.number("optimum", value)

    @property
    def strong_convexity(self) -> float:
        """A lower bound on the strong convexity mu of f, from the l2 term."""
        return float(self.penalty.l2.min())

    @property
    def names(self) -> list[str]:
        """The names of the coefficients: x[0], x[1], ..."""
        return [f"x[{j}]" for j in range(self.dim)]

    def objective(self, x: ArrayLike) -> float:
        """Return f(x)."""
        point = self.vector("x", x)
        return self.total_loss(point) + self.penalty.value(point)

    def gradient(self, x: ArrayLike) -> Vector:
        """Return the gradient of f at x, the penalty included.

        With an l1 term it is the shortest subgradient, which is 0 at the minimum.
        """
        point = self.vector("x", x)
        return self.penalty.subgradient(point, self.loss_gradient(point))

    def norms(self, x: ArrayLike) -> Vector:
        """Return the norm of each example's gradient at x."""
        return self.loss_norms(self.vector("x", x))

    def batch_gradient(self, x: ArrayLike, indices: ArrayLike, weights: ArrayLike) -> tuple[Vector, Vector]:
        """Return the weighted sum of the gradients of some examples, and their norms, without the penalty.

        With the weights of a batch, the sum estimates that over all examples.
        """
        point = self.vector("x", x)
        chosen = validation.indices("indices", indices, self.n)
        factors = validation.finite("weights", weights)
        validation.same_length("weights", len(factors), "indices", len(chosen))
        return self.loss_batch_gradient(point, chosen, factors)

    def evaluate(self, x: ArrayLike, p: ArrayLike | None = None) -> tuple[float, float, float]:
        """Return the objective, the sum of all norms and the cost of p, in one pass over the data.

        The cost, sum_i n_i^2 / p_i, is the one of `diagnostics.cost`; NaN without p.
        """
        point = self.vector("x", x)
        chances = None if p is None else validation.nonnegative("p", p)
        if chances is not None:
            validation.same_length("p", len(chances), "n", self.n)
        loss, total, cost = self._evaluate(point, chances)
        return loss + self.penalty.value(point), total, cost

    def minimize(
        self, *, start: ArrayLike | None = None, tolerance: float | None = None, progress: bool = False
    ) -> Vector:
        """Minimise f until the norm of its gradient is at most `tolerance`; set `optimum`, and return the best x.

        Linear models are minimised by `avare.linear`: Newton's method, or working sets with an l1 term. Other problems
        are minimised by SciPy's L-BFGS. If the tolerance cannot be reached, for example because of rounding on large
        data, a `ToleranceWarning` says so; also if the classes are linearly separable and nothing is penalised, so that
        there is no minimum.

        Parameters
        ----------
        start : array-like or None, default=None
            Where to start; 0 by default.
        tolerance : float or None, default=None
            Largest norm of the gradient: by default 1e-10, and 1e-6 for problems without second derivatives.
        progress : bool, default=False
            Whether to show progress on the standard error stream.
        """
        first = np.zeros(self.dim) if start is None else self.vector("start", start).copy()
        tolerance = self._precision if tolerance is None else validation.number("tolerance", tolerance, above=0.0)
        x = self._minimum(first, tolerance, validation.boolean("progress", progress))
        self.optimum = self.objective(x)
        return x

    def vector(self, name: str, values: ArrayLike) -> Vector:
        """Return the values as a vector of dim finite numbers, or raise an error that names the argument."""
        point = validation.real(name, values)
        if point.shape != (self.dim,):
            raise ValueError(f"{name} has shape {point.shape}: must be ({self.dim},)")
        return validation.finite(name, point)

    # --- what a problem fills in: without the penalty; arguments are checked already -----------

    @abstractmethod
    def _minimum(self, start: Vector, tolerance: float, progress: bool) -> Vector: ...

    @abstractmethod
    def total_loss(self, x: Vector) -> float: ...

    @abstractmethod
    def loss_gradient(self, x: Vector) -> Vector: ...

    @abstractmethod
    def loss_norms(self, x: Vector) -> Vector: ...

    @abstractmethod
    def loss_batch_gradient(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]: ...

    @abstractmethod
    def _evaluate(self, x: Vector, p: Vector | None) -> tuple[float, float, float]: ...

    def __repr__(self) -> str:
        least = self.penalty.l2.min()
        l2 = f"{self.l2:g}" if least in (0.0, self.l2) else f"{least:g} to {self.l2:g}"
        return f"{type(self).__name__}(n={self.n}, dim={self.dim}, l2={l2}{self._more()})"

    def _more(self) -> str:
        return ""


def strengths_of(l2: ArrayLike, count: int, what: str) -> Vector:
    """Return the strengths of the l2 term from one number, or from one per coefficient.

    >>> strengths_of([1.0, 2.0], 3, "column")
    Traceback (most recent call last):
    ValueError: l2 has shape (2,): must be a number, or (3,), one number per column
    """
    if np.ndim(l2) == 0:
        return np.full(count, validation.number("l2", l2, at_least=0.0))
    if np.shape(l2) != (count,):
        raise ValueError(f"l2 has shape {np.shape(l2)}: must be a number, or ({count},), one number per {what}")
    return validation.nonnegative("l2", l2).copy()


def cost_of(norms: NDArray[Any], p: NDArray[Any]) -> float:
    """Return the sum of n^2 / p, with 0 / 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(norms > 0.0, norms * (norms / p), 0.0).sum())
