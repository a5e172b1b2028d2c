"""What samplers share that draw with replacement and learn from the probabilities of their draws."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel, merged
from avare._randomness import Seed
from avare.batch import Batch, weigh, weigh_into
from avare.samplers.base import Sampler
from avare.samplers.kernels import register_kernels
from avare.state import Field, Fields, Nested, State, refuse_unless
from avare.structures.weights import Weights, draw_smoothed_into

SMALLEST_SHARE = 1e-100
"""Of the uniform distribution: no weight overflows."""


class RemembersDraws(Sampler):
    """A sampler that remembers the probability with which each example was last drawn, so that norms may arrive late.

    A sampler derives from this class, sets `_drawn_with` when it draws, and defines the two methods below.
    """

    with_replacement_only = True

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._drawn_with = np.zeros(self.n)  # the probability at the last draw; 0: not drawn yet

    def _probabilities_of(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of some examples at the next draw."""
        raise NotImplementedError

    def _smallest_probability(self, values: State) -> float:
        """Return a lower bound on all probabilities, for a state that is being loaded."""
        raise NotImplementedError

    def _drawn_probabilities(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability with which each was last drawn, or its present one if it never was."""
        drawn = self._drawn_with[indices]
        return drawn if drawn.all() else np.where(drawn > 0.0, drawn, self._probabilities_of(indices))

    def _remember(self, indices: NDArray[np.int64], probabilities: NDArray[np.float64]) -> Batch:
        """Return the batch of some draws, and remember their probabilities."""
        self._drawn_with[indices] = probabilities
        return Batch(indices, weigh(probabilities, True, probabilities), probabilities)

    def fields(self) -> Fields:
        drawn_with = Field(np.float64, (self.n,), at_least=0.0, at_most=1.0 + 1e-9)
        return {**super().fields(), "drawn_with": drawn_with}

    def check_state(self, values: State) -> None:
        drawn, floor = values["drawn_with"], self._smallest_probability(values)
        valid = (drawn == 0.0) | (drawn >= floor * (1.0 - 1e-9))
        refuse_unless(valid, drawn, "state['drawn_with']", f"must be at least {floor}, or 0")


class Smoothed(RemembersDraws):
    r"""Draw from :math:`p = (1 - \theta) w / \sum w + \theta / N`, with replacement.

    A sampler derives from this class, sets `_share` (theta) and `_weights` (w), and learns.

    Cost: O(batch_size) per step. Memory: 29 bytes per example and 8 MB.
    """

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._share = 1.0
        self._weights = Weights(np.zeros(self.n))

    def compute_probabilities(self) -> NDArray[np.float64]:
        return (1.0 - self._share) * self._weights.probabilities() + self._share / self.n

    @property
    def kernels(self) -> Any:
        return SmoothedState(self._weights.arrays, self._share, self._drawn_with)

    def _probabilities_of(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        total = self._weights.total
        weights = self._weights.values[indices] / total if total > 0.0 else 1.0 / self.n
        return np.asarray((1.0 - self._share) * weights + self._share / self.n)

    def _smallest_probability(self, values: State) -> float:
        return self._share / self.n

    def fields(self) -> Fields:
        return {**super().fields(), "weights": Nested(partial(Weights.from_state, n=self.n))}


# --- kernels -------------------------------------------------------------------------------


class SmoothedState(NamedTuple):
    """What the kernels of all such samplers read and write."""

    weights: Any
    share: float
    drawn_with: NDArray[np.float64]


@merged
def draw_smoothed(state, source, indices, probabilities, weights):
    """Draw a batch; return which draws came from the uniform part."""
    uniform = np.empty(len(indices), dtype=np.bool_)
    draw_smoothed_into(state.weights, state.share, source, indices, probabilities, uniform)
    for j in range(len(indices)):
        state.drawn_with[indices[j]] = probabilities[j]
    weigh_into(weights, probabilities, True)
    return uniform


@kernel
def _draw_kernel(state, step, source, indices, probabilities, weights):
    draw_smoothed(state, source, indices, probabilities, weights)


register_kernels(SmoothedState, draw=_draw_kernel)
