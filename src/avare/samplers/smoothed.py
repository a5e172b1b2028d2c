"""What samplers share that draw from changing weights, mixed with the uniform distribution."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel, merged
from avare._randomness import Seed
from avare._state import Field, Fields, Part, State, refuse_unless
from avare.batch import weigh_into
from avare.samplers.base import Sampler
from avare.samplers.kernels import register_kernels
from avare.structures.weights import Weights, draw_smoothed_into

SMALLEST_SHARE = 1e-100
"""Of the uniform distribution: no weight overflows."""


class Smoothed(Sampler):
    r"""Draw from :math:`p = (1 - \theta) w / \sum w + \theta / N`, with replacement.

    A sampler derives from this class, sets `_share` (theta) and `_weights` (w), and learns. It can look up the
    probability with which each example was last drawn, so that norms may arrive late.

    Cost: O(batch_size) per step. Memory: 29 bytes per example and 8 MB.
    """

    with_replacement_only = True

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._share = 1.0
        self._weights = Weights(np.zeros(self.n))
        self._drawn_with = np.zeros(self.n)  # the probability at the last draw; 0: not drawn yet

    def _probabilities(self) -> NDArray[np.float64]:
        return (1.0 - self._share) * self._weights.probabilities() + self._share / self.n

    def _compiled(self) -> Any:
        return SmoothedState(self._weights.arrays, self._share, self._drawn_with)

    def _drawn_probabilities(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability with which each was last drawn, or its present one if it never was."""
        drawn = self._drawn_with[indices]
        if not drawn.all():
            total = self._weights.total
            weights = self._weights.values[indices] / total if total > 0.0 else 1.0 / self.n
            drawn = np.where(drawn > 0.0, drawn, (1.0 - self._share) * weights + self._share / self.n)
        return drawn

    def _fields(self) -> Fields:
        return {
            **super()._fields(),
            "weights": Part(partial(Weights.from_state, n=self.n)),
            "share": Field(float, at_least=SMALLEST_SHARE, at_most=1.0),
            "drawn_with": Field(np.float64, (self.n,), at_least=0.0, at_most=1.0 + 1e-9),
        }

    def _check(self, values: State) -> None:
        super()._check(values)
        refuse_below(values["drawn_with"], values["share"] / self.n)


def refuse_below(drawn_with: NDArray[np.float64], floor: float) -> None:
    """Raise a ``ValueError`` if an example was drawn with a probability below the floor of all; 0 means never drawn."""
    valid = (drawn_with == 0.0) | (drawn_with >= floor * (1.0 - 1e-9))
    refuse_unless(valid, drawn_with, "state['drawn_with']", f"must be at least {floor}, or 0")


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
def _draw(state, step, source, indices, probabilities, weights):
    draw_smoothed(state, source, indices, probabilities, weights)


register_kernels(SmoothedState, draw=_draw)
