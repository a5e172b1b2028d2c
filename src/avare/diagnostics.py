"""How good a distribution is, given the norms: the measures of the paper.

Each takes norms and probabilities of shape (N,), or of shape (T, N) for T steps.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation

Result = np.float64 | NDArray[np.float64]


def cost(norms: ArrayLike, p: ArrayLike) -> Result:
    r"""The second moment of the estimate, :math:`c(p) = \sum_i n_i^2 / p_i`. O(N).

    An example with a norm and no probability makes it infinite; one with neither adds nothing.

    >>> float(cost([3.0, 1.0], [0.5, 0.5]))
    20.0
    """
    n = _matrix("norms", norms)
    q = _matrix("p", p)
    if n.shape[-1] != q.shape[-1] or n.ndim < q.ndim:
        raise ValueError(f"p has shape {q.shape}: must match norms, which have {n.shape}")
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(n > 0.0, n * (n / q), 0.0)
    return np.float64(terms.sum()) if n.ndim == 1 else terms.sum(axis=-1)


def optimal_cost(norms: ArrayLike) -> Result:
    r"""The least cost there is, :math:`(\sum_i n_i)^2`, at :math:`p_i \propto n_i`. O(N).

    >>> float(optimal_cost([3.0, 1.0]))
    16.0
    """
    n = _matrix("norms", norms)
    return np.float64(n.sum() ** 2) if n.ndim == 1 else n.sum(axis=-1) ** 2


def relative_error(norms: ArrayLike, p: ArrayLike) -> Result:
    """(cost - optimal cost) / optimal cost; 0 where all norms are zero. O(N).

    >>> float(relative_error([3.0, 1.0], [0.5, 0.5]))
    0.25
    """
    n = _matrix("norms", norms)
    exponents = np.frexp(n.max(axis=-1, keepdims=True))[1]
    scaled = np.ldexp(n, -exponents)  # so that no square leaves float64's range
    least = optimal_cost(scaled)
    error = np.where(least > 0.0, cost(scaled, p) / np.where(least > 0.0, least, 1.0) - 1.0, 0.0)
    return np.float64(error) if error.ndim == 0 else error


def gain(norms: ArrayLike) -> Result:
    r"""What there is to gain over uniform: its cost over the least, :math:`N \sum n_i^2 / (\sum n_i)^2`. O(N).

    Between 1 (all norms equal) and N (one norm only); 1 where all norms are zero.

    >>> float(gain([3.0, 1.0]))
    1.25
    """
    n = _matrix("norms", norms)
    return 1.0 + relative_error(n, np.full(n.shape[-1], 1.0 / n.shape[-1]))


def dynamic_regret(norms: ArrayLike, p: ArrayLike) -> np.float64:
    r"""The cost beyond that of the best p of every step, :math:`\sum_t [c_t(p_t) - \min_p c_t(p)]`. O(TN).

    >>> float(dynamic_regret([[3.0, 1.0], [1.0, 3.0]], [[0.5, 0.5], [0.25, 0.75]]))
    4.0
    """
    n = _matrix("norms", norms, ndim=2)
    return np.float64((cost(n, p) - optimal_cost(n)).sum())


def static_regret(norms: ArrayLike, p: ArrayLike) -> np.float64:
    r"""The cost beyond that of the best fixed p in hindsight, :math:`p_i \propto \sqrt{\sum_t n_{i,t}^2}`. O(TN).

    >>> round(float(static_regret([[3.0, 1.0], [1.0, 3.0]], [[0.5, 0.5], [0.25, 0.75]])), 9)
    -4.0
    """
    n = _matrix("norms", norms, ndim=2)
    return np.float64(cost(n, p).sum() - np.sqrt((n**2).sum(axis=0)).sum() ** 2)


def smoothness_ratio(smoothness: ArrayLike) -> np.float64:
    r"""Largest over mean smoothness constant, :math:`N L_{\max} / \sum_i L_i`. O(N).

    What earlier work looked at; the paper shows that `gain` at the optimum tells more.

    >>> float(smoothness_ratio([3.0, 1.0]))
    1.5
    """
    constants = _matrix("smoothness", smoothness, ndim=1)
    if not constants.any():
        raise ValueError("smoothness is all zero: the ratio has no meaning")
    return np.float64(constants.max() / constants.mean())


def _matrix(name: str, values: ArrayLike, ndim: int | None = None) -> NDArray[np.float64]:
    """A non-empty array with one dimension, or two where ``ndim`` allows."""
    found = np.ndim(validation.real(name, values))
    array = validation.nonnegative(name, values, ndim=ndim if ndim is not None else min(max(found, 1), 2))
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: must not be empty")
    return array
