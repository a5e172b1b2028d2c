"""Uniform: draw every example with the same probability, as plain minibatches do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean
from avare._randomness import Seed
from avare.samplers.base import Sampler
from avare.samplers.kernels import learn_nothing, register_kernels
from avare.samplers.registry import register
from avare.structures.evenly import draw_evenly


@register()
class Uniform(Sampler):
    r"""Draw each example with :math:`p_i = 1/N` and weight :math:`N/m`.

    Without replacement the weights are the same. They are unbiased, and have a smaller variance than those of
    `batch_weights`.

    Choose it as the baseline, or if all gradient norms are about equal.

    Cost: O(batch_size) per step. Memory: none.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, the number of draws per step.
    replacement
        Whether an index may occur twice in a batch.
    seed
        See `Sampler`.

    Examples
    --------
    >>> batch = Uniform(1000, batch_size=4, seed=0).sample()
    >>> batch.weights
    array([250., 250., 250., 250.])
    """

    learns = False

    def __init__(self, n: int, batch_size: int = 128, *, replacement: bool = False, seed: Seed = None) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)

    def _probabilities(self) -> NDArray[np.float64]:
        return np.full(self.n, 1.0 / self.n)

    def _compiled(self) -> UniformState:
        return UniformState(self.n, self.replacement)


# --- kernels -------------------------------------------------------------------------------


class UniformState(NamedTuple):
    """What the kernels of `Uniform` read and write."""

    n: int
    replacement: bool


@lean
def _draw(state, step, source, indices, probabilities, weights):
    draw_evenly(state.n, source, indices, state.replacement)
    for j in range(len(indices)):
        probabilities[j] = 1.0 / state.n
        weights[j] = state.n / len(indices)


register_kernels(UniformState, draw=_draw, learn=learn_nothing)
