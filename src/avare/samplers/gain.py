"""The running gain: what a sampler saves, estimated from its own draws at no cost.

Each batch whose norms were reported gives unbiased estimates of two second moments: N sum n^2 of uniform sampling, and
sum n^2 / p of this sampler. Their decaying sums give the ratio. Each batch counts in units of the mean of uniform's
over the batches just before it. Otherwise old, larger norms would dominate while norms fall. A scale from the batch
itself would be biased: in a batch of one draw both moments would be 1.
"""

import math

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare.samplers.memory import add_mean

_DECAY = 0.99  # per batch: the sums look back roughly a hundred batches, ...
_SCALE_DECAY = 0.9  # ... and the scale roughly ten
_JUMP = 1000.0  # times that scale: a batch above it gets a scale of its own


def ratio(moments: NDArray[np.float64]) -> float:
    """Return the gain from the sums of `smooth`, NaN before the first batch.

    >>> ratio(np.array([6.0, 2.0, 1.0, 1.0]))
    3.0
    """
    uniform, own = moments[:2]
    return float(uniform / own) if own > 0.0 else math.nan


# --- kernels -------------------------------------------------------------------------------


@lean
def smooth(moments, n, weights, probabilities, norms):
    """Add a batch that was drawn from n examples to the sums.

    ``moments`` has decaying sums of both second moments, then faster ones of uniform's alone and of 1, then those of
    the unit: see `avare.samplers.memory`.
    """
    uniform, own, mean = 0.0, 0.0, 0.0
    for j in range(len(norms)):
        norm = min(norms[j], 1e140)  # so that the sums do not overflow
        mean += weights[j] * norm / n
        uniform += n * weights[j] * norm * norm
        own += weights[j] * norm * norm / probabilities[j]
    before = moments[2] / max(moments[3], 1.0)
    scale = before if uniform <= _JUMP * before else uniform  # the first batch, or norms of another size altogether
    if 0.0 < scale < np.inf:
        moments[0] = _DECAY * moments[0] + uniform / scale
        moments[1] = _DECAY * moments[1] + own / scale
        moments[2] = _SCALE_DECAY * moments[2] + uniform
        moments[3] = _SCALE_DECAY * moments[3] + 1.0
    add_mean(moments, mean)
