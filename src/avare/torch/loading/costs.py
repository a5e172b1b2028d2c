"""What pools cost, measured while the consumer trains: the second stage's clock."""

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avare.torch.loading.pool_sizes import FIRST_POOLS

ACCELERATOR: Any = getattr(torch, "accelerator", torch.cuda)
"""PyTorch's functions for the device of this machine, of any kind; before version 2.6, of CUDA only."""
_RARELY = 8  # pools between two looks at the measured times, after the first ones
_RECENT = 32  # measured times, of which the least counts: other processes make the others longer, by any factor


class Costs:
    """Measures three times: to load a batch, to load, score and draw from a pool, and to train on a batch.

    Parameters
    ----------
    given
        c, if it is not to be measured.
    """

    def __init__(self, given: float | None) -> None:
        self._given = given
        self._asked = math.nan  # when the consumer asked for this batch
        self._pool = 0  # the size of the pool that this batch comes from
        self.clear()

    def clear(self) -> None:
        """Forget what was measured: a resumed run may be on another machine."""
        self._measured = self._of_ranks = np.full(3, np.nan)  # see `measure`: of this rank, and the mean over the ranks
        self._loads: deque[float] = deque(maxlen=_RECENT)  # seconds, as measured by this rank
        self._pools: deque[tuple[float, int]] = deque(maxlen=_RECENT)  # ... and the sizes of the pools
        self._steps: deque[float] = deque(maxlen=_RECENT)

    def ratio(self, batch_size: int) -> float:
        """Return c, the time to train on an example over the time that a pool takes for one; NaN until it is known."""
        if self._given is not None:
            return self._given
        load, more, train = self._of_ranks
        return float((train + load) / batch_size / max(more, 1e-12))

    def begin(self, now: float, step: float) -> None:
        """Note that the consumer asks for a batch, and the seconds since its last one; NaN if there was none."""
        self._asked, self._pool = now, 0
        if not math.isnan(step):
            self._steps.append(step)

    def note_pool(self, size: int) -> None:
        """Note that the batch comes from a pool."""
        self._pool = size

    def end(self, now: float) -> None:
        """Note that the consumer gets its batch."""
        if self._pool == 0:
            self._loads.append(now - self._asked)
        else:
            self._pools.append((now - self._asked, self._pool))

    def wait_for_device(self) -> None:
        """Wait for what is still running, which belongs to the last step, and leave this time out."""
        if ACCELERATOR.is_available():
            began = time.perf_counter()
            ACCELERATOR.synchronize()
            self._asked += time.perf_counter() - began

    def measure(self, scored: int) -> NDArray[np.float64]:
        """Return what this rank has measured, a few pools ago at most; ``scored`` pools were scored.

        The seconds to load a batch without a pool; those that a pool takes in addition, for each of its examples; and
        those that the consumer takes for a batch.
        """
        if scored <= FIRST_POOLS or scored % _RARELY == 0:
            load = min(self._loads, default=0.0)  # the least of all, for each: one slow load must not make pools free
            more = min((max(seconds - load, 0.0) / size for seconds, size in self._pools), default=math.nan)
            self._measured = np.array([load, more, min(self._steps, default=math.nan)])
        return self._measured

    def take(self, of_ranks: NDArray[np.float64]) -> None:
        """Use the mean of what the ranks have measured."""
        self._of_ranks = of_ranks[0] if len(of_ranks) == 1 else of_ranks.mean(axis=0)


class Timed(Iterator[Any]):
    """The batches of an iteration; it measures how long they take, and the steps of the consumer between them."""

    def __init__(self, costs: Costs, batches: Iterator[Any]) -> None:
        self._costs, self._batches = costs, batches
        self._returned = math.nan

    def __next__(self) -> Any:
        asked = time.perf_counter()
        self._costs.begin(asked, asked - self._returned)
        batch = next(self._batches)
        self._returned = time.perf_counter()
        self._costs.end(self._returned)
        return batch
