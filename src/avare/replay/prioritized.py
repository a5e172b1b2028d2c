"""Prioritised experience replay (Schaul et al. 2016), without drift.

An item of priority p is drawn with probability ``P_i = p_i^alpha / sum_j p_j^alpha``. Its weight is
``(n P_i)^-beta``, divided by the largest weight of any item in the buffer, which is ``(P_min / P_i)^beta``. The powers
``p^alpha`` are the weights of a `WeightTree`: the total and the minimum are exact after any number of changes. A
priority above 0 can always be drawn: a power that is rounded to 0 counts as 5e-324, the smallest number above it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare.state import Field, State
from avare.structures.seeded_tree import SeededTree
from avare.structures.weight_tree import WeightTree


class Prioritized:
    """Priorities of a ring of items: add, draw and update them in O(log16 capacity) each.

    It keeps no data: `extend` returns the places of new items, to which you write them in arrays of your own. Memory:
    9 bytes per item of the capacity, taken as the buffer fills.

    Parameters
    ----------
    capacity : int
        Number of items. When the buffer is full, new items replace the oldest.
    alpha : float, default=0.6
        How much priorities count: 0 draws evenly, 1 in proportion to them.
    beta : float, default=0.4
        How much the weights correct for it: 0 not at all, 1 fully. Assign to ``beta`` to change it during training.
    replacement : bool, default=True
        Whether a batch may contain an item twice. Without replacement, each draw is from the items that are not in
        the batch yet, and the weights are the same as with replacement.
    seed : int, optional
        Seed of the random numbers.

    Attributes
    ----------
    capacity, alpha, replacement
        The arguments.

    Examples
    --------
    >>> buffer = Prioritized(capacity=4, alpha=1.0, beta=1.0, seed=0)
    >>> buffer.extend(2), buffer.extend([3.0, 0.0, 4.0])  # five items for four places
    (array([0, 1]), array([2, 3, 0]))
    >>> buffer.total, buffer.minimum
    (8.0, 1.0)
    >>> indices, weights = buffer.sample(3)
    >>> indices, weights.round(3)
    (array([2, 0, 0]), array([0.333, 0.25 , 0.25 ]))
    >>> buffer.update(indices, [0.5, 0.1, 0.2])  # such as absolute TD errors
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        replacement: bool = True,
        seed: int | None = None,
    ) -> None:
        self.capacity = validation.integer("capacity", capacity, at_least=1)
        self.alpha = validation.number("alpha", alpha, at_least=0.0)
        self.beta = beta
        self.replacement = validation.boolean("replacement", replacement)
        self._draws = SeededTree(WeightTree.zeros(self.capacity), seed)
        self.clear()

    def clear(self) -> None:
        """Remove all items; random numbers continue. O(capacity / 15)."""
        self._draws.tree = WeightTree.zeros(self.capacity)
        self._added, self._highest = 0, 0.0

    def __len__(self) -> int:
        """The number of items, also of those with priority 0."""
        return min(self._added, self.capacity)

    @property
    def beta(self) -> float:
        """How much the weights correct for the draws; it may change during training. O(1)."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = validation.number("beta", value, at_least=0.0)

    @property
    def total(self) -> float:
        """The sum of p^alpha over all items. O(1)."""
        return self._draws.tree.total

    @property
    def minimum(self) -> float:
        """The smallest p^alpha above 0 of any item; 0 if there is none. O(1)."""
        return self._draws.tree.minimum

    @property
    def default_priority(self) -> float:
        """The priority of new items without one: the highest so far, or 1. O(1)."""
        return self._highest or 1.0

    def extend(self, items: int | ArrayLike) -> NDArray[np.int64]:
        """Add items, given their number or their priorities, and return their places in the ring."""
        if isinstance(items, int | np.integer):
            priorities = np.full(validation.integer("items", items, at_least=0), self.default_priority)
        else:
            priorities = validation.nonnegative("items", items)
        if len(priorities) > self.capacity:
            raise ValueError(f"items: {len(priorities)} do not fit into a capacity of {self.capacity}")
        places = (self._added + np.arange(len(priorities))) % self.capacity
        self._replace(places, priorities, "items")
        self._added += len(priorities)
        return places

    def sample(self, size: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw a batch; return the places of its items and their weights, at most 1. O(size log capacity).

        Items of priority 0 are never drawn. If there is none, if all are 0, or too few are above 0 for a batch
        without replacement, it is a ``ValueError``.
        """
        indices, _ = self._draws.draw(validation.integer("size", size, at_least=0), self.replacement)
        return indices, (self.minimum / self._draws.tree.values[indices]) ** self.beta

    def update(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Replace the priorities of some items, finite and not negative; the last one of a repeated index counts."""
        self._replace(*validation.indexed("priorities", priorities, indices, len(self)), "priorities")

    def store(self, places: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities at some places of the ring, used or not, for a storage that chooses them itself."""
        self._replace(*validation.indexed("priorities", priorities, places, self.capacity), "priorities")

    def _replace(self, places: NDArray[np.int64], priorities: NDArray[np.float64], name: str) -> None:
        weights = np.where(priorities > 0.0, np.maximum(priorities**self.alpha, 5e-324), 0.0)
        self._draws.tree.require_bounded(f"{name} ** alpha", weights)
        self._draws.tree.replace(places, weights)
        self._highest = float(priorities.max(initial=self._highest))

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same draws, as arrays, numbers and text. O(capacity)."""
        return self._draws.state(**self._arguments(), beta=self.beta, added=self._added, highest=self._highest)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; a damaged one, or one of different arguments, changes nothing. O(capacity)."""
        real, count = Field(float, at_least=0.0), Field(int, at_least=0, at_most=2**62)
        values = self._draws.read(
            state, self._arguments(), {"beta": real, "highest": real, "added": count}, "this buffer"
        )
        self._draws.restore(values)
        self.beta, self._added, self._highest = values["beta"], values["added"], values["highest"]

    def _arguments(self) -> State:
        return {"capacity": self.capacity, "alpha": self.alpha, "replacement": int(self.replacement)}
