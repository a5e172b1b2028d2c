"""Uniform: draw every example with the same probability, as plain minibatches do, or in shuffled passes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import lean
from avare._randomness import Seed
from avare.samplers.base import Sampler
from avare.samplers.kernels import learn_nothing, register_kernels
from avare.samplers.registry import register
from avare.state import Field, Fields, State, require_permutation
from avare.structures.uniform_draws import draw_below, draw_evenly


@register()
class Uniform(Sampler):
    r"""Draw each example with :math:`p_i = 1/N` and weight :math:`N/m`.

    Without replacement the weights are the same. They are unbiased, and have a smaller variance than the
    weights of `batch_weights`.

    Choose it as the baseline, or if all gradient norms are roughly equal.

    Cost: O(batch_size) per step. Memory: none; with `reshuffle`, 8 bytes per example.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    replacement : bool, default=False
        Whether an index may occur twice in a batch.
    reshuffle : bool, default=False
        Whether to draw in shuffled passes: no index occurs again before the pass ends. A pass has ``n // batch_size``
        batches, and each has a new random order; the few indices left over wait for the next pass. The
        errors of the batches of a pass cancel out in part, so that a chain with constant steps has less bias.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> batch = Uniform(1000, batch_size=4, seed=0).sample()
    >>> batch.weights
    array([250., 250., 250., 250.])
    """

    learns = False
    hyperparameters = ("reshuffle",)

    def __init__(
        self, n: int, batch_size: int = 128, *, replacement: bool = False, reshuffle: bool = False, seed: Seed = None
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self.reshuffle = validation.boolean("reshuffle", reshuffle)
        """Whether it draws in shuffled passes."""
        if self.reshuffle and self.replacement:
            raise ValueError("reshuffle = True: shuffled passes need replacement=False")
        self._order = np.arange(self.n if self.reshuffle else 0)
        self._place = np.zeros(1, dtype=np.int64)  # how much of the order has been drawn in this pass

    @property
    def independent(self) -> bool:
        """Whether a batch does not depend on those before it, apart from what was learned."""
        return not self.reshuffle

    def compute_probabilities(self) -> NDArray[np.float64]:
        return np.full(self.n, 1.0 / self.n)

    @property
    def kernels(self) -> UniformState:
        return UniformState(self.n, self.replacement, self._order, self._place)

    def fields(self) -> Fields:
        return {
            "order": Field(np.int64, self._order.shape, at_least=0, at_most=self.n - 1),
            "place": Field(np.int64, (1,), at_least=0, at_most=self.n),
        }

    def check_state(self, values: State) -> None:
        require_permutation(values["order"], "state['order']")


# --- kernels -------------------------------------------------------------------------------


class UniformState(NamedTuple):
    """What the kernels of `Uniform` read and write."""

    n: int
    replacement: bool
    order: NDArray[np.int64]
    """All indices, the drawn ones of this pass first; empty without `reshuffle`."""
    place: NDArray[np.int64]


@lean
def _draw_kernel(state, step, source, indices, probabilities, weights):
    if len(state.order) > 0:
        _continue_pass(state.order, state.place, source, indices)
    else:
        draw_evenly(state.n, source, indices, state.replacement)
    for j in range(len(indices)):
        probabilities[j] = 1.0 / state.n
        weights[j] = state.n / len(indices)


@lean
def _continue_pass(order, place, source, indices):
    """Draw from what is left of a pass, or begin the next one if that is too little for a batch."""
    first = place[0] if place[0] + len(indices) <= len(order) else 0
    for j in range(len(indices)):
        k = first + j + draw_below(len(order) - first - j, source)
        order[first + j], order[k] = order[k], order[first + j]
        indices[j] = order[first + j]
    place[0] = first + len(indices)


register_kernels(UniformState, draw=_draw_kernel, learn=learn_nothing)
