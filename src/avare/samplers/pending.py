"""Drawn batches that wait for their norms."""

from collections import deque
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare.batch import Batch
from avare.state import Field, State, padded, read, refuse_unless, require_padding, without_padding
from avare.structures.cells import MAX_EXAMPLES

_LIMIT = 64  # by default
_ROUNDED_UP = 1.0 + 1e-9  # a probability of 1 may be rounded up


class Drawn(NamedTuple):
    """A batch as it was drawn: copies, because the caller may change the batch."""

    batch: Batch | None
    """The object that the caller has; None after a state was loaded."""
    indices: bytes
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    present: int
    """The number of examples that it was drawn from."""


class PendingBatches:
    """Batches in the order of their draws. Norms find theirs by the batch itself, or by its indices.

    Of batches with equal indices the oldest is found first.

    >>> pending = PendingBatches()
    >>> batches = [Batch(np.array([1]), np.array([weight]), np.array([1.0 / weight])) for weight in (2.0, 4.0)]
    >>> for batch in batches:
    ...     pending.add(batch, present=9)
    >>> pending.pop(batches[1], batches[1].indices).weights, pending.pop(None, np.array([1])).weights
    (array([4.]), array([2.]))
    >>> len(pending), pending.pop(None, np.array([1]))
    (0, None)
    """

    def __init__(self) -> None:
        self._limit = _LIMIT
        self._drawn: deque[Drawn] = deque()  # oldest first

    def __len__(self) -> int:
        return len(self._drawn)

    @property
    def limit(self) -> int:
        """How many drawn batches to keep until their norms arrive (default 64).

        Increase it to draw further ahead. Older batches are dropped at the next draw. The sampler still learns from
        their norms, but they no longer count for `Sampler.gain`.
        """
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = validation.integer("limit", limit, at_least=1)

    def add(self, batch: Batch, present: int) -> None:
        """Keep a batch that was drawn from ``present`` examples, and drop the oldest beyond the limit."""
        drawn = self._drawn
        drawn.append(Drawn(batch, batch.indices.tobytes(), batch.weights.copy(), batch.probabilities.copy(), present))
        while len(drawn) > self._limit:
            drawn.popleft()

    def pop(self, batch: Batch | None, indices: NDArray[np.int64]) -> Drawn | None:
        """Remove and return a batch, or else the oldest one with these indices. O(1) for the oldest of all."""
        drawn = self._drawn
        if drawn and (drawn[0].batch is batch if batch is not None else drawn[0].indices == indices.tobytes()):
            return drawn.popleft()  # in the common case
        place = self._place_of(batch, indices)
        if place is None:
            return None
        found = drawn[place]
        del drawn[place]
        return found

    def find(self, indices: NDArray[np.int64]) -> Drawn | None:
        """Return the oldest batch with these indices."""
        place = self._place_of(None, indices)
        return None if place is None else self._drawn[place]

    def _place_of(self, batch: Batch | None, indices: NDArray[np.int64]) -> int | None:
        if batch is not None:
            for place, each in enumerate(self._drawn):
                if each.batch is batch:
                    return place
        key = indices.tobytes()
        for place, each in enumerate(self._drawn):
            if each.indices == key:
                return place
        return None

    def state(self) -> State:
        """Return what must be saved: one row per batch, oldest first."""
        rows = [np.frombuffer(each.indices, dtype=np.int64) for each in self._drawn]
        return {
            "pending_indices": padded(rows, -1),
            "pending_weights": padded([each.weights for each in self._drawn], 0.0),
            "pending_probabilities": padded([each.probabilities for each in self._drawn], 0.0),
            "pending_present": np.array([each.present for each in self._drawn], dtype=np.int64),
        }

    @classmethod
    def from_state(cls, state: State, *, n: int, limit: int) -> Self:
        """Return the batches that `state` returned; a damaged state raises a ``ValueError``."""
        indices = Field(np.int64, (None, None), at_least=-1, at_most=n - 1).read(state, "pending_indices")
        require_padding(indices, "state['pending_indices']")
        others = {
            "pending_weights": Field(np.float64, indices.shape, at_least=0.0),
            "pending_probabilities": Field(np.float64, indices.shape, at_least=0.0, at_most=_ROUNDED_UP),
            "pending_present": Field(np.int64, indices.shape[:1], at_least=1, at_most=MAX_EXAMPLES),
        }
        weights, drawn, present = read(state, others).values()
        refuse_unless((indices < 0) | (drawn > 0.0), drawn, "state['pending_probabilities']", "must be above 0")
        pending = cls()
        rows = without_padding(indices, weights, drawn)
        for (index, weight, probability), count in zip(rows, present.tolist(), strict=True):
            pending._drawn.append(Drawn(None, index.tobytes(), weight, probability, count))
        pending._limit = limit  # batches beyond it are dropped at the next draw, not here
        return pending

    def __getstate__(self) -> State:
        return {"_limit": self._limit, "_drawn": deque(each._replace(batch=None) for each in self._drawn)}
