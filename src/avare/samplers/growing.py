"""What samplers share whose set of examples can grow and shrink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.samplers.base import Sampler
from avare.state import Field, State, refuse_unless, require_same
from avare.structures.cells import MAX_EXAMPLES


class Growing(Sampler):
    """Draw from a set to which examples are added and from which they are removed.

    Every draw is from the examples that are present, and its weights estimate the sum over them. A sampler derives from
    this class, and sets `_structure`, a structure with ``contains``, ``insert`` and ``remove``, or replaces the hooks.
    """

    grows = True
    _structure: Any

    def __init__(self, n: int, batch_size: int, *, replacement: bool, capacity: int | None, seed: Seed) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        if capacity is not None:
            capacity = validation.integer("capacity", capacity, at_least=self.n, at_most=MAX_EXAMPLES)
        self.capacity = capacity
        """The number of examples from which on new ones replace the oldest; None: the set grows."""
        self._n = self._added = self.n  # the argument, and how many examples there have ever been

    def append(self, k: int | None = None, *, norms: ArrayLike | None = None) -> NDArray[np.int64]:
        if not self.grows:
            return super().append(k, norms=norms)
        values = None if norms is None else validation.nonnegative("norms", norms)
        if (k is None) == (values is None):
            raise TypeError("append takes either k, a number of examples, or norms, one for each example")
        count = validation.integer("k", k if values is None else len(values), at_least=1)
        with self._lock:
            if self.capacity is None:
                if count > MAX_EXAMPLES - self.n:
                    raise ValueError(f"k = {count}: n = {self.n} cannot exceed {MAX_EXAMPLES}; use capacity=")
                indices = np.arange(self.n, self.n + count)
            else:
                if count > self.capacity:
                    raise ValueError(f"k = {count}: must be at most capacity = {self.capacity}")
                indices = (self._added + np.arange(count)) % self.capacity
            values = self._values_of_new(values)
            old = indices[indices < self.n]
            old = old[self.contains(old)]
            self._remove(old)
            self._insert(indices, values)
            self._set_size(self._added + count, self.present - len(old) + count)
        return indices

    def retire(self, indices: ArrayLike) -> None:
        if not self.grows:
            super().retire(indices)
        with self._lock:
            found = validation.indices("indices", indices, self.n)
            refuse_unless(self.contains(found), found, "indices", "has been retired before")
            first = np.zeros(len(found), dtype=bool)
            first[np.unique(found, return_index=True)[1]] = True
            refuse_unless(first, found, "indices", "occurs twice")
            if len(found) == self.present:
                raise ValueError("indices has all examples that are left: append others first")
            self._remove(found)
            self._set_size(self._added, self.present - len(found))

    def contains(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        with self._lock:
            return super().contains(indices) if self.present == self.n else self._are_listed(indices)

    # --- hooks ------------------------------------------------------------------------

    def _are_listed(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether examples are present, if some are not."""
        return np.asarray(self._structure.contains(indices))

    def _insert(self, indices: NDArray[np.int64], values: NDArray[np.float64] | None) -> None:
        """Add examples that are absent, with values for the memory or None."""
        self._structure.insert(indices, values)

    def _remove(self, indices: NDArray[np.int64]) -> None:
        """Remove examples that are present."""
        self._structure.remove(indices)

    def _values_of_new(self, norms: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Return what to store for new examples with these norms, or raise an error."""
        return norms

    def _resized(self) -> None:
        """Follow a new number of examples."""

    # --- states -----------------------------------------------------------------------

    def _size(self) -> State:
        if self._added == self._n and self.present == self.n and self.capacity is None:
            return {}
        retired = np.flatnonzero(~self.contains(np.arange(self.n)))
        return {"added": self._added, "capacity": self.capacity or 0, "retired": retired}

    def _saved_size(self, state: Mapping[str, Any]) -> State:
        # n is what the state has arrays for: a large number alone must not allocate memory.
        require_same({"capacity": 0, **state}, {"capacity": self.capacity or 0}, "state", "this sampler")
        most = MAX_EXAMPLES if self.capacity is None else 1 << 62
        added = Field(int, at_least=self._n, at_most=most).read({"added": self._n, **state}, "added")
        n = min(added, self.capacity or added)
        saved = {"retired": np.empty(0, dtype=np.int64), **state}
        retired = Field(np.int64, (None,), at_least=0, at_most=n - 1).read(saved, "retired")
        if len(np.unique(retired)) < len(retired) or len(retired) >= n:
            raise ValueError("state['retired'] has an index twice, or all indices")
        return {"n": n, "present": n - len(retired), "_added": added}

    def restored(self) -> None:
        self._resized()

    def _set_size(self, added: int, present: int) -> None:
        vars(self).update(n=min(added, self.capacity or added), present=present, _added=added)
        self._resized()
