"""Uniform: every example alike, as plain minibatches do."""

import numpy as np
from numpy.typing import NDArray

from avare._randomness import Seed
from avare.batch import Batch
from avare.samplers.base import Drawing, Sampler
from avare.samplers.registry import register
from avare.structures.evenly import draw_evenly


@register()
class Uniform(Sampler):
    r"""Each example with :math:`p_i = 1/N` and weight :math:`N/m`.

    Without replacement the weight is the same: it is unbiased, and better than what
    `batch_weights` would give.

    Choose it as the yardstick, or where all gradient norms are about equal.

    Cost: O(batch_size) a step. Memory: none.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, draws a step.
    replacement
        Whether an index may come twice in a batch.
    seed
        See `Sampler`.

    Examples
    --------
    >>> batch = Uniform(1000, batch_size=4, seed=0).sample()
    >>> batch.weights
    array([250., 250., 250., 250.])
    """

    def __init__(self, n: int, batch_size: int = 128, *, replacement: bool = False, seed: Seed = None) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)

    def _probabilities(self) -> NDArray[np.float64]:
        return np.full(self.n, 1.0 / self.n)

    def _draw(self) -> Batch:
        indices = np.empty(self.batch_size, dtype=np.int64)
        draw_evenly(self.n, self._source, indices, self.replacement)
        weights = np.full(self.batch_size, self.n / self.batch_size)
        return Batch(indices, weights, np.full(self.batch_size, 1.0 / self.n))

    def _compiled(self) -> Drawing:
        return Drawing(None, 0.0, 0.0, 0.0)
