"""A tree of weights with its own random numbers: what a weighted sampler and a replay buffer share."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import state as states
from avare._randomness import uniform_source
from avare.state import Field, Fields, Nested, State
from avare.structures.weight_tree import WeightTree, take


class SeededTree:
    """A `WeightTree` and a generator, copied and saved together. One draw takes one random number.

    >>> draws = SeededTree(WeightTree([1.0, 0.0, 3.0]), seed=0)
    >>> indices, p = draws.draw(3, replacement=True)
    >>> draws.rewind(2)
    >>> draws.draw(2, replacement=True)[0].tolist() == indices[1:].tolist()
    True
    """

    def __init__(self, tree: WeightTree, seed: int | None) -> None:
        self.tree = tree
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def draw(self, size: int, replacement: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw indices, and return the probability of each at the first draw. O(size log N)."""
        if self.tree.total == 0.0:
            raise ValueError("there is nothing to draw: no item was added yet, or all weights are 0")
        try:
            return self.tree.draw(size, replacement=replacement, generator=self._generator)
        except ValueError:  # all were drawn, and more were wanted
            self.rewind(int(np.count_nonzero(self.tree.values)))
            raise

    def take(self, size: int, tree: WeightTree) -> NDArray[np.int64]:
        """Draw at most this number of indices from a tree, and set their weights there to zero. O(size log N)."""
        indices, source = np.empty(size, dtype=np.int64), uniform_source(self._generator)
        return indices[: take(tree.arrays, source, indices, np.empty(size), np.empty(size))]

    def rewind(self, count: int) -> None:
        """Take back the random numbers of the last draws. O(1)."""
        self._generator.bit_generator.advance(-count)  # type: ignore[attr-defined]  # PCG64 has it

    def state(self, **more: Any) -> State:
        """Return the weights, the generator and further fields, with a checksum. O(N)."""
        state = {**self.tree.state(), "generator": states.generator_to_text(self._generator), **more}
        return {**state, "checksum": states.checksum(state)}

    def read(self, state: Mapping[str, Any], arguments: State, more: Fields, owner: str) -> State:
        """Return what a state contains, checked, for `restore`; a damaged state raises a ``ValueError``. O(N)."""
        fields: Fields = {
            "weights": Nested(partial(WeightTree.from_state, n=self.tree.n)),
            "generator": Field(np.random.Generator),
            **more,
        }
        return states.read_sealed(state, arguments, fields, owner)

    def restore(self, values: State) -> None:
        """Continue from what `read` returned."""
        self.tree, self._generator = values["weights"], values["generator"]
