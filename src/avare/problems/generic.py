"""Generic: a finite sum given by Python functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare.problems.base import Problem, Vector, cost_of
from avare.problems.minimum import minimum_by_gradients

_BLOCK = 4096


class Generic(Problem):
    """A problem given by your own Python functions, for the same solvers as the others.

    Parameters
    ----------
    n : int
        Number of examples.
    dim : int
        Length of x.
    batch_gradient : callable
        Function of ``(x, indices, weights)`` that returns the weighted sum of the gradients of these examples, and
        the norm of each gradient, unweighted, both without the l2 term.
    objective : callable or None, default=None
        Function of x that returns sum_i f_i(x), without the l2 term. By default the objective is NaN.
    norms : callable or None, default=None
        Function of x that returns all n norms. By default `batch_gradient` computes them.
    l2 : float or array_like, default=0.0
        Strength of an l2 term, ``l2/2 |x|^2``, which is added to the sum; one number, or one per coefficient.
    smoothness : array-like or None, default=None
        The smoothness constant of each example, if known.

    Examples
    --------
    >>> import numpy as np
    >>> places = np.array([[0.0], [1.0], [5.0]])
    >>> def pull(x, indices, weights):
    ...     differences = x - places[indices]
    ...     return weights @ differences, np.linalg.norm(differences, axis=1)
    >>> problem = Generic(3, 1, batch_gradient=pull)
    >>> problem.gradient(np.array([1.0]))
    array([-3.])
    """

    _precision: ClassVar[float] = 1e-6

    def __init__(
        self,
        n: int,
        dim: int,
        *,
        batch_gradient: Callable[[Vector, NDArray[np.int64], Vector], tuple[ArrayLike, ArrayLike]],
        objective: Callable[[Vector], float] | None = None,
        norms: Callable[[Vector], ArrayLike] | None = None,
        l2: ArrayLike = 0.0,
        smoothness: ArrayLike | None = None,
    ) -> None:
        super().__init__(n, dim, l2)
        given: dict[str, Any] = {"batch_gradient": batch_gradient, "objective": objective, "norms": norms}
        for name, function in given.items():
            if not callable(function) and (function is not None or name == "batch_gradient"):
                raise TypeError(f"{name} = {function!r}: must be a function")
        self._given_batch_gradient = batch_gradient
        self._given_objective = objective
        self._given_norms = norms
        self._smoothness: Vector | None = None
        if smoothness is not None:
            self._smoothness = validation.nonnegative("smoothness", smoothness)
            validation.same_length("smoothness", len(self._smoothness), "n", self.n)

    @property
    def smoothness(self) -> Vector:
        """The smoothness constant of each example."""
        if self._smoothness is None:
            raise ValueError("smoothness was not given: pass smoothness=...")
        return self._smoothness

    def norms(self, x: ArrayLike) -> Vector:
        """Return the norm of each example's gradient at x."""
        return validation.nonnegative("norms(x)", super().norms(x))  # solvers read others as divergence

    def _minimum(self, start: Vector, tolerance: float, progress: bool) -> Vector:
        if self._given_objective is None:
            raise ValueError("objective was not given: pass objective=... to minimise it")
        return minimum_by_gradients(self, start, tolerance, progress=progress)

    def total_loss(self, x: Vector) -> float:
        if self._given_objective is None:
            return math.nan
        found: Any = self._given_objective(x)
        if np.ndim(found) != 0 or np.asarray(found).dtype.kind not in "iuf":
            raise TypeError(f"objective(x) = {found!r}: must be a number")
        return float(found)

    def loss_gradient(self, x: Vector) -> Vector:
        total = np.zeros(self.dim)
        for first in range(0, self.n, _BLOCK):
            total += self._block(x, first)[0]
        return total

    def loss_norms(self, x: Vector) -> Vector:
        if self._given_norms is None:
            return np.concatenate([self._block(x, first)[1] for first in range(0, self.n, _BLOCK)])
        norms = validation.real("norms(x)", self._given_norms(x))
        if norms.shape != (self.n,):
            raise ValueError(f"norms(x) has shape {norms.shape}: must be ({self.n},)")
        return norms

    def _block(self, x: Vector, first: int) -> tuple[Vector, Vector]:
        indices = np.arange(first, min(first + _BLOCK, self.n))
        return self.loss_batch_gradient(x, indices, np.ones(len(indices)))

    def loss_batch_gradient(self, x: Vector, indices: NDArray[np.int64], weights: Vector) -> tuple[Vector, Vector]:
        found: Any = self._given_batch_gradient(x, indices, weights)
        if not isinstance(found, tuple) or len(found) != 2:
            size = f" of {len(found)}" if isinstance(found, tuple) else ""
            raise TypeError(f"batch_gradient returned a {type(found).__name__}{size}: must return a gradient and norms")
        gradient = validation.real("batch_gradient's gradient", found[0])
        norms = validation.real("batch_gradient's norms", found[1])
        if gradient.shape != (self.dim,):
            raise ValueError(f"batch_gradient returned a gradient of shape {gradient.shape}: must be ({self.dim},)")
        if norms.shape != indices.shape:
            raise ValueError(f"batch_gradient returned norms of shape {norms.shape}: must be {indices.shape}")
        return gradient, norms

    def _evaluate(self, x: Vector, p: Vector | None) -> tuple[float, float, float]:
        norms = self.loss_norms(x)
        return self.total_loss(x), float(norms.sum()), math.nan if p is None else cost_of(norms, p)
