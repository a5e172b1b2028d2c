"""Drawn batches that wait for their norms."""

from collections import deque
from typing import Self

import numpy as np
from numpy.typing import NDArray

from avare.batch import Batch
from avare.state import Field, State, padded, read, refuse_unless, require_padding, without_padding

_LIMIT = 64  # by default
_ROUNDED_UP = 1.0 + 1e-9  # a probability of 1 may be rounded up


class PendingBatches:
    """Batches in the order of their draws, found by their indices. Of equal batches the oldest is found first.

    >>> pending = PendingBatches()
    >>> for weight in (2.0, 4.0):
    ...     pending.add(Batch(np.array([1]), np.array([weight]), np.array([1.0 / weight])))
    >>> [float(pending.pop(np.array([1])).weights[0]) for _ in range(2)], pending.pop(np.array([1]))
    ([2.0, 4.0], None)
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self.limit = limit
        """How many batches to keep."""
        self._waiting: deque[tuple[bytes, NDArray[np.float64], NDArray[np.float64]]] = deque()
        """Indices, weights and probabilities, oldest first."""

    def add(self, batch: Batch) -> None:
        """Keep a copy of a batch, and drop the oldest batches beyond the limit."""
        self._waiting.append((batch.indices.tobytes(), batch.weights.copy(), batch.probabilities.copy()))
        while len(self._waiting) > self.limit:
            self._waiting.popleft()

    def pop(self, indices: NDArray[np.int64]) -> Batch | None:
        """Remove and return the oldest batch with these indices, if one waits. O(1) for the oldest of all."""
        key = indices.tobytes()
        for place, (waiting, weights, probabilities) in enumerate(self._waiting):
            if waiting == key:
                del self._waiting[place]
                return Batch(indices, weights, probabilities)
        return None

    def state(self) -> State:
        """Return what must be saved: one row per batch, oldest first."""
        return {
            "pending_indices": padded([np.frombuffer(each, dtype=np.int64) for each, _, _ in self._waiting], -1),
            "pending_weights": padded([weights for _, weights, _ in self._waiting], 0.0),
            "pending_probabilities": padded([probabilities for _, _, probabilities in self._waiting], 0.0),
        }

    @classmethod
    def from_state(cls, state: State, *, n: int, limit: int) -> Self:
        """Return the batches that `state` returned; a damaged state raises a ``ValueError``."""
        indices = Field(np.int64, (None, None), at_least=-1, at_most=n - 1).read(state, "pending_indices")
        require_padding(indices, "state['pending_indices']")
        others = {
            "pending_weights": Field(np.float64, indices.shape, at_least=0.0),
            "pending_probabilities": Field(np.float64, indices.shape, at_least=0.0, at_most=_ROUNDED_UP),
        }
        weights, drawn = read(state, others).values()
        refuse_unless((indices < 0) | (drawn > 0.0), drawn, "state['pending_probabilities']", "must be above 0")
        pending = cls(limit=len(indices))  # those beyond the limit are dropped at the next draw, not here
        for arrays in without_padding(indices, weights, drawn):
            pending.add(Batch(*arrays))
        pending.limit = limit
        return pending
