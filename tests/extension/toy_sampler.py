"""A sampler from outside the package, with its own kernels."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import avare
from avare.samplers import register
from avare.samplers.kernels import learn_nothing, next_uniform, register_kernels


@register()
class Halves(avare.Sampler):
    """Draw the first half of the examples with probability `share`, the second with the rest, uniformly in each."""

    with_replacement_only = True
    hyperparameters = ("share",)

    def __init__(
        self, n: int, batch_size: int = 128, *, replacement: bool = True, share: float = 0.7, seed: object = None
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)  # type: ignore[arg-type]  # checked there
        self.share = share if n > 1 else 1.0

    def compute_probabilities(self) -> NDArray[np.float64]:
        first = (self.n + 1) // 2
        p = np.full(self.n, self.share / first)
        p[first:] = (1.0 - self.share) / max(self.n - first, 1)
        return p

    @property
    def kernels(self) -> "HalvesState":
        return HalvesState(self.n, self.share)


class HalvesState(NamedTuple):
    n: int
    share: float


def draw(state, step, source, indices, probabilities, weights):  # type: ignore[no-untyped-def]  # compiled
    first = (state.n + 1) // 2
    for j in range(len(indices)):
        if next_uniform(source) < state.share:
            indices[j] = min(int(next_uniform(source) * first), first - 1)
            probabilities[j] = state.share / first
        else:
            indices[j] = min(first + int(next_uniform(source) * (state.n - first)), state.n - 1)
            probabilities[j] = (1.0 - state.share) / (state.n - first)
        weights[j] = 1.0 / (len(indices) * probabilities[j])


register_kernels(HalvesState, draw=draw, learn=learn_nothing)
