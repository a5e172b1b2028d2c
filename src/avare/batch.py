"""A batch of draws, and the weights that make it unbiased."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel


@dataclass(slots=True, eq=False)
class Batch:
    """Indices drawn, in drawing order.

    The sum over the batch of ``weights[j] * g[indices[j]]`` is an unbiased estimate of the
    sum of ``g`` over all examples; for a mean, divide by their number.
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    """Of each index drawn, before any draw."""

    def __len__(self) -> int:
        return len(self.indices)


def batch_weights(probabilities: ArrayLike, replacement: bool) -> NDArray[np.float64]:
    """Weights for draws with the given probabilities, in drawing order. O(m).

    With replacement ``w_j = 1 / (m p_j)``; without, where each draw is from what is left,
    ``w_j = ((1 - sum_{k<j} p_k) / p_j + (m - j)) / m`` for ``j = 1 ... m``.

    >>> batch_weights([0.5, 0.25], replacement=True)
    array([1., 2.])
    >>> batch_weights([0.5, 0.25], replacement=False)
    array([1.5, 1. ])
    """
    p = validation.nonnegative("probabilities", probabilities)
    replacement = validation.boolean("replacement", replacement)
    wrong = np.flatnonzero((p <= 0.0) | (p > 1.0))
    if wrong.size:
        raise ValueError(f"probabilities[{wrong[0]}] = {p[wrong[0]]}: must be above 0 and at most 1")
    if not replacement and p.sum() > 1.0 + 1e-9:
        raise ValueError(f"probabilities sum to {p.sum()}: without replacement they must not exceed 1")
    return weigh(p, replacement)


# --- kernels -------------------------------------------------------------------------------


@kernel
def weigh(probabilities, replacement):
    """`batch_weights` without its checks."""
    weights = np.empty(len(probabilities), dtype=np.float64)
    weigh_into(weights, probabilities, replacement)
    return weights


@inlined
def weigh_into(weights, probabilities, replacement):
    """The same, into an array that is there."""
    size = len(probabilities)
    left = 1.0
    for j in range(size):
        p = probabilities[j]
        if replacement:
            weights[j] = 1.0 / (size * p)
        else:
            weights[j] = (max(left, p) / p + (size - 1 - j)) / size
            left -= p
