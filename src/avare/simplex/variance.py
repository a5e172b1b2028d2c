"""Lemma 1 of the paper: the least variance on the restricted simplex."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation


def minimize_variance(a: ArrayLike, floor: float = 0.0) -> NDArray[np.float64]:
    r"""Minimise :math:`\sum_i a_i^2 / p_i` over :math:`p_i \ge` floor, :math:`\sum p = 1`.

    With the norms in decreasing order, the first ``rho`` of them are kept and the others
    floored: ``p_i = max(a_i / lambda, floor)``, where ``rho`` is the last i with
    ``a_i (1 - (N - i) floor) >= floor (a_1 + ... + a_i)`` and
    ``lambda = (a_1 + ... + a_rho) / (1 - (N - rho) floor)``. If all norms are zero, p is
    uniform. O(N log N).

    Parameters
    ----------
    a
        The norms: finite numbers, none negative.
    floor
        The smallest probability allowed, between 0 and 1/N.

    Examples
    --------
    >>> minimize_variance([1.0, 1.5, 6.0, 0.0], floor=0.1).round(3)
    array([0.106, 0.159, 0.635, 0.1  ])

    References
    ----------
    El Hanchi & Stephens (2020), Lemma 1.
    """
    norms = validation.nonnegative("a", a)
    n = len(norms)
    if n == 0:
        raise ValueError("a is empty: must have at least one element")
    floor = validation.number("floor", floor, at_least=0.0)
    if floor * n > 1.0 + 1e-12:
        raise ValueError(f"floor = {floor}: must be at most 1/{n}, because {n} probabilities sum to 1")
    largest = norms.max()
    if largest == 0.0 or floor * n >= 1.0:
        return np.full(n, 1.0 / n)
    scaled = norms / largest  # no sum overflows
    ordered = np.sort(scaled)[::-1]
    sums = np.cumsum(ordered)
    kept = 1.0 - (n - np.arange(1, n + 1)) * floor
    rho = np.flatnonzero(ordered * kept >= floor * sums)[-1]
    scale = sums[rho] / kept[rho]
    return np.asarray(np.maximum(scaled / scale, floor))
