"""What several rules share: weights that change, mixed with the uniform distribution."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._randomness import Seed
from avare._state import State
from avare.batch import Batch, weigh
from avare.samplers.base import Sampler
from avare.structures.weights import Weights


class Smoothed(Sampler):
    r"""Draws from :math:`p = (1 - \theta) w / \sum w + \theta / N`, with replacement.

    A rule derives from this, sets `_share` (theta) and `_weights` (w), and learns. It can ask
    with which probability each example was last drawn, also where norms come late.

    Cost: O(batch_size) a step. Memory: 29 bytes an example and 8 MB, beside what the rule keeps.
    """

    with_replacement_only = True

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._share = 1.0
        self._weights = Weights(np.zeros(self.n))
        self._drawn_with = np.zeros(self.n)  # 0: not drawn yet

    def _probabilities(self) -> NDArray[np.float64]:
        return (1.0 - self._share) * self._weights.probabilities() + self._share / self.n

    def _draw(self) -> Batch:
        return self._draw_mixed()[0]

    def _draw_mixed(self) -> tuple[Batch, NDArray[np.bool_]]:
        """A batch, and which of it came from the uniform part."""
        indices, probabilities, uniform = self._weights.draw_smoothed(self.batch_size, self._share, self._source)
        self._drawn_with[indices] = probabilities
        return Batch(indices, weigh(probabilities, True), probabilities), uniform

    def _drawn_probabilities(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """With which probability each was last drawn; that of the next draw if it never was."""
        drawn = self._drawn_with[indices]
        if not drawn.all():
            total = self._weights.total
            weights = self._weights.values[indices] / total if total > 0.0 else 1.0 / self.n
            drawn = np.where(drawn > 0.0, drawn, (1.0 - self._share) * weights + self._share / self.n)
        return drawn

    def _state(self) -> State:
        return {**self._weights.state(), "share": self._share, "drawn_with": self._drawn_with.copy()}

    def _restore(self, state: dict[str, Any]) -> None:
        self._weights = Weights.from_state(state, self.n)
        self._share = state["share"]
        self._drawn_with = state["drawn_with"].copy()
