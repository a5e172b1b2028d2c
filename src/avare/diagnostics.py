"""Measures: how good a distribution is for given norms, as in the paper, and how good the draws of a chain are.

The functions of norms take norms and probabilities of shape (N,), or of shape (T, N) for T steps. With norms of T
steps, p may also have shape (N,), for one distribution at all steps. Each distribution must sum to 1.

Stein discrepancies take draws and the gradients of the negative log-density f at them, both draws x dim. They are 0 in
expectation if the draws have the density :math:`e^{-f}`, and need no reference draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation

__all__ = ["cost", "gain", "kernel_stein", "optimal_cost", "polynomial_stein", "relative_error", "smoothness_ratio"]

_COLUMNS = 32  # of draws, at a time
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


def smoothness_ratio(smoothness: ArrayLike) -> np.float64:
    r"""Return the largest smoothness constant over the mean, :math:`N L_{\max} / \sum_i L_i`. O(N).

    Earlier work used this ratio; the paper shows that `gain` at the optimum is more informative.

    >>> float(smoothness_ratio([3.0, 1.0]))
    1.5
    """
    constants = _matrix("smoothness", validation.nonnegative("smoothness", smoothness))
    if not constants.any():
        raise ValueError("smoothness is all zero: the ratio has no meaning")
    return np.float64(constants.max() / constants.mean())


def polynomial_stein(draws: ArrayLike, gradients: ArrayLike) -> np.float64:
    r"""Return the polynomial Stein discrepancy: how wrong the means and covariances of draws are.

    For a function P of the draws, :math:`E[\Delta P(x) - \nabla P(x) \cdot \nabla f(x)] = 0` under the posterior. The
    discrepancy is the length of the vector of these averages over all P that are products of up to two coordinates,
    in units of the draws' standard deviations. It is linear in the gradients, so unbiased gradients of batches serve as
    well as exact ones. O(draws x dim^2): with gradients of batches, no pass over the data.

    Parameters
    ----------
    draws : array-like
        Draws x dim.
    gradients : array-like
        The gradient of f at each draw, exact or an unbiased estimate, for example from one batch.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(10_000, 2))
    >>> bool(polynomial_stein(x, x) < 0.05), bool(polynomial_stein(1.2 * x, 1.2 * x) > 0.4)
    (True, True)
    """
    points, slopes = _standardised(draws, gradients)
    products = points.T @ slopes / len(points)  # E[x_k g_l] = 1 if k = l, otherwise 0
    of_squares = np.eye(len(products)) - 0.5 * (products + products.T)
    return np.float64(np.hypot(np.linalg.norm(slopes.mean(axis=0)), np.linalg.norm(of_squares)))


def kernel_stein(draws: ArrayLike, gradients: ArrayLike) -> np.float64:
    r"""Return the squared kernel Stein discrepancy of draws, with the inverse multiquadric kernel.

    It is the mean over all pairs of different draws of the Stein kernel of
    :math:`k(x, y) = (1 + |x - y|^2 / d)^{-1/2}`, in units of the draws' standard deviations. It
    notices any difference from the posterior, and is 0 in expectation if there is none; then it may be negative. With
    gradients of independent batches it is unbiased too (a stochastic Stein discrepancy). O(draws^2 x dim): thin first.

    Parameters
    ----------
    draws : array-like
        Draws x dim, at least two.
    gradients : array-like
        The gradient of f at each draw, exact or an unbiased estimate from a batch of its own.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> bool(abs(kernel_stein(x, x)) < 0.01), bool(kernel_stein(1.3 * x, 1.3 * x) > 0.02)
    (True, True)
    """
    points, slopes = _standardised(draws, gradients)
    count, dim = points.shape
    if count < 2:
        raise ValueError(f"draws has {count} row: must have at least 2")
    scores = -slopes
    total = -float((scores**2).sum()) - count  # without the pairs of a draw and itself
    for x, score in zip(points, scores, strict=True):
        away = x - points
        squares = (away**2).sum(axis=1)
        base = 1.0 + squares / dim
        k = base**-0.5
        derivative = -k / base / dim  # of k by x is this times x - y
        terms = k * (scores @ score) + derivative * ((scores * away).sum(axis=1) - away @ score - dim)
        total += float((terms - 3.0 * k / (base * dim) ** 2 * squares).sum())
    return np.float64(total / (count * (count - 1)))


def convergence(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R-hat of the halves of chains (chains x draws x dim) and the effective number of draws, two rows.

    Gelman et al., Bayesian Data Analysis, 3rd edition, section 11.4 and 11.5; ArviZ's ``rhat(method="split")`` and
    ``ess(method="mean")``. NaN if there are fewer than 4 draws, or if they are all the same.
    """
    half = draws.shape[1] // 2
    if half < 2:
        return np.full((2, draws.shape[2]), np.nan)
    parts = np.concatenate([draws[:, :half], draws[:, -half:]])
    found = [_of_parts(parts[:, :, k : k + _COLUMNS]) for k in range(0, draws.shape[2], _COLUMNS)]
    return np.concatenate(found, axis=1)


def _of_parts(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    count, length = parts.shape[:2]
    spectrum = np.fft.rfft(parts - parts.mean(axis=1, keepdims=True), 2 * length, axis=1)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length].mean(axis=0) / (length - 1)
    total = products[0] * (length - 1) / length + parts.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlations = 1.0 - (products[0] - products) / total
        pairs = correlations[: length // 2 * 2].reshape(length // 2, 2, -1).sum(axis=1)
        pairs = np.minimum.accumulate(np.where(np.minimum.accumulate(pairs > 0.0), pairs, 0.0))
        time = np.maximum(2.0 * pairs.sum(axis=0) - 1.0, 1.0 / np.log10(count * length))
        return np.stack([np.sqrt(total / products[0]), count * length / time])


def _standardised(draws: ArrayLike, gradients: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return draws with mean 0 and standard deviation 1, and the gradients for them."""
    points, slopes = validation.real("draws", draws), validation.real("gradients", gradients)
    if points.ndim != 2 or points.size == 0:
        raise ValueError(f"draws has shape {points.shape}: must have 2 dimensions, and not be empty")
    if points.shape != slopes.shape:
        raise ValueError(f"gradients has shape {slopes.shape}: must match draws, which have {points.shape}")
    for name, array in (("draws", points), ("gradients", slopes)):
        validation.finite(name, array.ravel())
    spread = points.std(axis=0)
    spread[spread == 0.0] = 1.0
    return (points - points.mean(axis=0)) / spread, slopes * spread


def _matrix(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return a non-empty array with one or two dimensions."""
    found = np.ndim(validation.real(name, values))
    array = validation.nonnegative(name, values, ndim=min(max(found, 1), 2))
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: must not be empty")
    return array
