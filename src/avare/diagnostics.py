"""Measures of how good a distribution is for given norms, as in the paper.

Each function takes norms and probabilities of shape (N,), or of shape (T, N) for T steps. With norms of T steps, p may
also have shape (N,), for one distribution at all steps. Each distribution must sum to 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation

__all__ = [
    "cost",
    "dynamic_regret",
    "gain",
    "optimal_cost",
    "relative_error",
    "smoothness_ratio",
    "static_regret",
]

_SUM_TOLERANCE = 1e-6  # float32 probabilities are accepted
Result = np.float64 | NDArray[np.float64]


def cost(norms: ArrayLike, p: ArrayLike) -> Result:
    r"""Return the second moment of the estimate, :math:`c(p) = \sum_i n_i^2 / p_i`. O(N).

    It is infinite if an example with a positive norm has probability 0. Examples whose norm is 0 add nothing.

    >>> float(cost([3.0, 1.0], [0.5, 0.5]))
    20.0
    """
    n = _matrix("norms", norms)
    q = _matrix("p", p)
    if n.shape[-1] != q.shape[-1] or n.ndim < q.ndim:
        raise ValueError(f"p has shape {q.shape}: must match norms, which have {n.shape}")
    sums = np.atleast_1d(q.sum(axis=-1))
    wrong = np.flatnonzero(np.abs(sums - 1.0) > _SUM_TOLERANCE)
    if wrong.size:
        raise ValueError(f"p{f'[{wrong[0]}]' if q.ndim == 2 else ''} sums to {sums[wrong[0]]}: must sum to 1")
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(n > 0.0, n * (n / q), 0.0)
    return np.float64(terms.sum()) if n.ndim == 1 else terms.sum(axis=-1)


def optimal_cost(norms: ArrayLike) -> Result:
    r"""Return the smallest possible cost, :math:`(\sum_i n_i)^2`, of :math:`p_i \propto n_i`. O(N).

    >>> float(optimal_cost([3.0, 1.0]))
    16.0
    """
    n = _matrix("norms", norms)
    return np.float64(n.sum() ** 2) if n.ndim == 1 else n.sum(axis=-1) ** 2


def relative_error(norms: ArrayLike, p: ArrayLike) -> Result:
    """Return (cost - optimal cost) / optimal cost; 0 if all norms are zero. O(N).

    >>> float(relative_error([3.0, 1.0], [0.5, 0.5]))
    0.25
    """
    n = _matrix("norms", norms)
    exponents = np.frexp(n.max(axis=-1, keepdims=True))[1]
    scaled = np.ldexp(n, -exponents)  # so that no square overflows
    least = optimal_cost(scaled)
    error = np.where(least > 0.0, cost(scaled, p) / np.where(least > 0.0, least, 1.0) - 1.0, 0.0)
    return np.float64(error) if error.ndim == 0 else error


def gain(norms: ArrayLike) -> Result:
    r"""Return the possible gain: uniform's cost over the smallest, :math:`N \sum n_i^2 / (\sum n_i)^2`. O(N).

    It is between 1 (all norms are equal) and N (a single norm is not zero), and 1 if all norms are zero.

    >>> float(gain([3.0, 1.0]))
    1.25
    """
    n = _matrix("norms", norms)
    return 1.0 + relative_error(n, np.full(n.shape[-1], 1.0 / n.shape[-1]))


def dynamic_regret(norms: ArrayLike, p: ArrayLike) -> np.float64:
    r"""Return the cost above that of the best p of each step, :math:`\sum_t [c_t(p_t) - \min_p c_t(p)]`. O(TN).

    >>> float(dynamic_regret([[3.0, 1.0], [1.0, 3.0]], [[0.5, 0.5], [0.25, 0.75]]))
    4.0
    """
    n = _matrix("norms", norms, ndim=2)
    return np.float64((cost(n, p) - optimal_cost(n)).sum())


def static_regret(norms: ArrayLike, p: ArrayLike) -> np.float64:
    r"""Return the cost above that of the best fixed p, :math:`p_i \propto \sqrt{\sum_t n_{i,t}^2}`. O(TN).

    >>> round(float(static_regret([[3.0, 1.0], [1.0, 3.0]], [[0.5, 0.5], [0.25, 0.75]])), 9)
    -4.0
    """
    n = _matrix("norms", norms, ndim=2)
    return np.float64(cost(n, p).sum() - np.sqrt((n**2).sum(axis=0)).sum() ** 2)


def smoothness_ratio(smoothness: ArrayLike) -> np.float64:
    r"""Return the largest smoothness constant over the mean, :math:`N L_{\max} / \sum_i L_i`. O(N).

    Earlier work used this ratio; the paper shows that `gain` at the optimum is more informative.

    >>> float(smoothness_ratio([3.0, 1.0]))
    1.5
    """
    constants = _matrix("smoothness", smoothness, ndim=1)
    if not constants.any():
        raise ValueError("smoothness is all zero: the ratio has no meaning")
    return np.float64(constants.max() / constants.mean())


def _matrix(name: str, values: ArrayLike, ndim: int | None = None) -> NDArray[np.float64]:
    """Return a non-empty array with `ndim` dimensions; with one or two if it is None."""
    found = np.ndim(validation.real(name, values))
    array = validation.nonnegative(name, values, ndim=ndim if ndim is not None else min(max(found, 1), 2))
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: must not be empty")
    return array
