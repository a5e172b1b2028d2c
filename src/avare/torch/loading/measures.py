"""What the second stage measures while the consumer trains: what pools cost, and what they can save."""

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avare._compilation import lean
from avare.batch import Batch
from avare.samplers.pending import Drawn

ACCELERATOR: Any = getattr(torch, "accelerator", torch.cuda)
"""PyTorch's functions for the device of this machine, of any kind; before version 2.6, of CUDA only."""
FIRST_POOLS = 5
"""Pools before the first decision of "auto": they are drawn to measure what they cost."""
_DECAY = 0.8  # of the moments, per observation
_DECAY_LATE = 0.5  # ... that was made many batches after the one before
_SMALLEST, _LARGEST = 1e-140, 1e140  # other scores count as these in the moments: their squares stay in range
_RARELY = 8  # pools between two looks at the measured times, after the first ones
_RECENT = 32  # measured times, of which the least counts: other processes make the others longer, by any factor


class PoolMeasures:
    """Three times, and the second moments of the draws; numbers that are not known yet are NaN.

    The times are those to load a batch, to load, score and draw from a pool, and to train on a batch.

    Parameters
    ----------
    batch_size
        m, of this rank.
    given
        The cost ratio, if it is not to be measured.
    """

    def __init__(self, batch_size: int, given: float | None) -> None:
        self._batch_size, self._given = batch_size, given
        self.scored = 0
        """How many pools have been scored."""
        self.is_reported = False
        """Whether the consumer has reported norms."""
        self.largest_ratio = math.inf
        """The most batches that a pool can have."""
        self.moments = np.zeros(4)
        """Decaying sums: of 1, the second moments of uniform's and our draws, and the norms."""
        self.pool = 0
        """The size of the pool that the present batch comes from; 0 if there is none."""
        self.waited = 0.0
        """Seconds for which the present batch waited for the device."""
        self.clear()

    def clear(self) -> None:
        """Forget what was measured: a resumed run may be on another machine."""
        self._measured = self._of_ranks = np.full(3, np.nan)  # see `costs`: of this rank, and the mean over the ranks
        self.loads: deque[float] = deque(maxlen=_RECENT)
        """Seconds to load a batch without a pool, as measured by this rank."""
        self.pools: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        """The same with a pool, and the sizes of the pools."""
        self.steps: deque[float] = deque(maxlen=_RECENT)
        """Seconds that the consumer took for a batch."""

    @property
    def cost_ratio(self) -> float:
        """c: the time to train on an example over the time that a pool takes for one."""
        if self._given is not None:
            return self._given
        load, more, train = self._of_ranks
        return float((train + load) / self._batch_size / max(more, 1e-12))

    @property
    def relative_error(self) -> float:
        """The relative error of the sampler's distribution, from recent scores."""
        count, _, own, norm = self.moments.tolist()  # faster than numbers of NumPy
        return max(own / norm * (count / norm) - 1.0, 0.0) if norm > 0.0 else math.nan

    @property
    def possible_gain(self) -> float:
        """Uniform's second moment over the least, from recent scores."""
        count, uniform, _, norm = self.moments.tolist()
        return uniform / norm * (count / norm) if norm > 0.0 else math.nan

    def observe(self, batch: Batch | Drawn, n: int, norms: NDArray[np.float64], *, is_late: bool) -> float:
        """Add a unit of all ranks, of n examples, to the moments; return its own relative error."""
        decay = _DECAY_LATE if is_late else _DECAY
        own, total = _add_moments(self.moments, decay, n, batch.weights, batch.probabilities, norms)
        return float(own / total**2 - 1.0) if total > 0.0 else 0.0

    def wait_for_device(self) -> None:
        """Wait for what is still running, which belongs to the last step, and leave this time out."""
        if ACCELERATOR.is_available():
            began = time.perf_counter()
            ACCELERATOR.synchronize()
            self.waited += time.perf_counter() - began

    def costs(self) -> NDArray[np.float64]:
        """Return what this rank has measured, a few pools ago at most.

        The seconds to load a batch without a pool; those that a pool takes in addition, for each of its examples; and
        those that the consumer takes for a batch.
        """
        if self.scored <= FIRST_POOLS or self.scored % _RARELY == 0:
            load = min(self.loads, default=0.0)  # the least of all, for each: one slow load must not make pools free
            more = min((max(seconds - load, 0.0) / size for seconds, size in self.pools), default=math.nan)
            self._measured = np.array([load, more, min(self.steps, default=math.nan)])
        return self._measured

    def take_costs(self, of_ranks: NDArray[np.float64]) -> None:
        """Count a pool, and use the mean of what the ranks have measured."""
        self._of_ranks = of_ranks[0] if len(of_ranks) == 1 else of_ranks.mean(axis=0)
        self.scored += 1


class Timed(Iterator[Any]):
    """The batches of an iteration; it measures how long they take, and the steps of the consumer between them."""

    def __init__(self, measured: PoolMeasures, batches: Iterator[Any]) -> None:
        self._measured, self._batches = measured, batches
        self._returned: float | None = None

    def __next__(self) -> Any:
        measured, asked = self._measured, time.perf_counter()
        if self._returned is not None:
            measured.steps.append(asked - self._returned)
        measured.pool, measured.waited = 0, 0.0
        batch = next(self._batches)
        self._returned = time.perf_counter()
        seconds = self._returned - asked - measured.waited
        if measured.pool == 0:
            measured.loads.append(seconds)
        else:
            measured.pools.append((seconds, measured.pool))
        return batch


# --- kernels -------------------------------------------------------------------------------


@lean
def _add_moments(moments, decay, n, weights, probabilities, norms):
    """Add a unit to the decaying sums; return its second moment, and its estimate of the sum of the norms."""
    uniform, own, total = 0.0, 0.0, 0.0
    for j in range(len(norms)):
        norm = min(max(norms[j], _SMALLEST), _LARGEST) if norms[j] > 0.0 else 0.0
        square = weights[j] * norm * norm
        uniform += n * square
        own += square / probabilities[j]
        total += weights[j] * norm
    for j, value in enumerate((1.0, uniform, own, total)):
        moments[j] = decay * moments[j] + value
    return own, total
