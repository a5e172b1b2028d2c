"""Static: draw in proportion to fixed constants."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import kernel
from avare._randomness import Seed
from avare.batch import Batch, weigh_into
from avare.samplers.base import one_per_example
from avare.samplers.growing import Growing
from avare.samplers.kernels import learn_nothing, register_kernels
from avare.samplers.registry import register
from avare.state import Fields, Nested, checksum
from avare.structures.buckets import Buckets, draw


@register(example=lambda n: {"smoothness": 1.0 + np.arange(n) % 5})
class Static(Growing):
    r"""Draw from a fixed distribution, from constants known in advance (Needell et al., 2014; Zhao & Zhang, 2015).

    .. math:: p_i = (1 - u)\, L_i / \textstyle\sum L + u / N,

    with :math:`L_i` the smoothness constants, or Lipschitz constants (for linear models the
    lengths of the rows), and :math:`u = 1/2`, *partially biased* sampling: no example is
    drawn less than half as often as by uniform sampling.

    Choose it if no norms are available during training, and the constants differ widely. SGD then
    converges as if the largest constant were their mean.

    If the set changes, :math:`p_i` is in proportion to :math:`(1 - u) L_i + u \bar L`, where :math:`\bar L` is the mean
    of the first N constants.

    Probabilities are kept with 24 significant bits, and positive ones are at least 2^-149 of the largest.

    Cost: O(batch_size) per step. Memory: 13 bytes per example and 8 MB.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    smoothness : array-like
        L, one number per example, not all zero.
    uniform : float, default=0.5
        u, the share of the uniform distribution, in [0, 1]. With 0, examples whose constant is 0 are never drawn.
    replacement : bool, default=False
        Whether an index may occur twice in a batch.
    capacity : int or None, default=None
        At least n. If `append` exceeds it, new examples replace the oldest.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> Static(4, batch_size=2, smoothness=[1.0, 2.0, 3.0, 4.0]).probabilities().round(6)
    array([0.175, 0.225, 0.275, 0.325])

    References
    ----------
    D. Needell, R. Ward, N. Srebro. Stochastic Gradient Descent, Weighted Sampling, and the
    Randomized Kaczmarz algorithm. NeurIPS 2014. P. Zhao, T. Zhang. Stochastic Optimization with
    Importance Sampling for Regularized Loss Minimization. ICML 2015.
    """

    learns = False
    needs = ("smoothness",)
    hyperparameters = ("uniform", "smoothness_checksum")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        smoothness: ArrayLike,
        uniform: float = 0.5,
        replacement: bool = False,
        capacity: int | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, capacity=capacity, seed=seed)
        constants = one_per_example("smoothness", smoothness, self.n)
        if not constants.any():
            raise ValueError("smoothness is all zero: at least one must be above 0")
        self.uniform = validation.number("uniform", uniform, at_least=0.0, at_most=1.0)
        self._smoothness_checksum = checksum({"smoothness": constants})
        self._largest = float(constants.max())
        self._sum = float((constants / self._largest).sum())
        p = self._mixed(constants)
        self._unit = float(p.max())
        self._structure = Buckets(p / self._unit)
        self._resized()
        if not self.replacement and self._possible < self.batch_size:
            raise ValueError(f"batch_size = {batch_size}: only {self._possible} examples have a probability above 0")

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self._structure.probabilities()

    def draw(self, size: int) -> Batch:
        if not self.replacement and self._possible < size:
            raise ValueError(f"size = {size}: only {self._possible} examples have a probability above 0")
        return super().draw(size)

    def _mixed(self, constants: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities of examples in the first set."""
        return (1.0 - self.uniform) * (constants / self._largest / self._sum) + self.uniform / self._n

    def _values_of_new(self, norms: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        if norms is None:
            raise TypeError("Static needs the constants of new examples: append(norms=...)")
        return self._mixed(norms) / self._unit

    def _resized(self) -> None:
        self._possible = self._structure.solve(0.0).above or self.present  # how many can be drawn

    @property
    def kernels(self) -> StaticState:
        return StaticState(self._structure.arrays, self.replacement)

    def fields(self) -> Fields:
        return {"structure": Nested(partial(Buckets.from_state, n=self.n, present=self.present))}


# --- kernels -------------------------------------------------------------------------------


class StaticState(NamedTuple):
    """What the kernels of `Static` read and write."""

    structure: Any  # the arrays of `Buckets`
    replacement: bool


@kernel
def _draw_kernel(state, step, source, indices, probabilities, weights):
    draw(state.structure, 0.0, state.replacement, source, indices, probabilities, weights)
    weigh_into(weights, probabilities, state.replacement)


register_kernels(StaticState, draw=_draw_kernel, learn=learn_nothing)
