"""A batch of draws, and the weights that make it unbiased."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel

LITTLE = 2.0**-7
"""If less than this is left of a mass of 1, it must be summed: a difference would lose digits."""
_DIGITS_LOST = 1e-7  # an error of 1e-16 is more than 1e-9 of less than this


@dataclass(slots=True, eq=False)
class Batch:
    """A batch of indices, in the order of the draws, with their weights.

    The sum over the batch of ``weights[j] * g[indices[j]]`` is an unbiased estimate of the
    sum of ``g`` over all examples. For the mean, divide by the number of examples.

    >>> batch = Batch(np.array([3, 0]), np.array([2.0, 4.0]), np.array([0.25, 0.125]))
    >>> values = np.array([1.0, 2.0, 3.0, 4.0])
    >>> float(batch.weights @ values[batch.indices])  # an estimate of values.sum()
    12.0
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    """The probability of each index before the first draw of the batch."""

    def __len__(self) -> int:
        return len(self.indices)


def batch_weights(probabilities: ArrayLike, replacement: bool, left: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return the weights of draws with the given probabilities, in the order of the draws. O(m).

    With replacement ``w_j = 1 / (m p_j)``. Without replacement, each draw is from the remaining
    examples, and ``w_j = ((1 - sum_{k<j} p_k) / p_j + (m - j)) / m`` for ``j = 1 ... m``.

    Parameters
    ----------
    probabilities : array-like
        The probability of each index before the first draw.
    replacement : bool
        Whether an index could occur twice.
    left : array-like or None, default=None
        Without replacement: the sum of the probabilities that are left before each draw. Needed if little is left
        (below 1e-7), because the difference ``1 - sum p`` then loses its digits.

    Examples
    --------
    >>> batch_weights([0.5, 0.25], replacement=True)
    array([1., 2.])
    >>> batch_weights([0.5, 0.25], replacement=False)
    array([1.5, 1. ])
    >>> batch_weights([1.0, 1e-17], replacement=False, left=[1.0, 2e-17])
    array([1., 1.])
    """
    p = validation.nonnegative("probabilities", probabilities)
    replacement = validation.boolean("replacement", replacement)
    validation.refuse_unless((p > 0.0) & (p <= 1.0), p, "probabilities", "must be above 0 and at most 1")
    if not replacement and p.sum() > 1.0 + 1e-9:
        raise ValueError(f"probabilities sum to {p.sum()}: without replacement the sum must be at most 1")
    if left is not None:
        rest = validation.nonnegative("left", left)
        validation.same_length("left", len(rest), "probabilities", len(p))
        return weigh(p, replacement, rest)
    rest = 1.0 - np.cumsum(p) + p
    if not replacement and len(p) and rest[-1] < _DIGITS_LOST:
        raise ValueError(f"probabilities leave {rest[-1]:g} before the last draw: pass left=, summed, not subtracted")
    return weigh(p, replacement, rest)


# --- kernels -------------------------------------------------------------------------------


@kernel
def weigh(probabilities, replacement, left):
    """Return `batch_weights` without checking the arguments."""
    weights = left.copy()
    weigh_into(weights, probabilities, replacement)
    return weights


@inlined
def weigh_into(weights, probabilities, replacement):
    """Replace the mass left before each draw by the weight of the draw.

    With replacement, and while much is left, `weights` is not read: 1 minus the sum of the draws before is exact then.
    """
    size = len(probabilities)
    left = 1.0
    for j in range(size):
        p = probabilities[j]
        if replacement:
            weights[j] = 1.0 / (size * p)
        else:
            weights[j] = (max(left if left >= LITTLE else weights[j], p) / p + (size - 1 - j)) / size
            left -= p
