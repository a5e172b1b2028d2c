"""Srg: remember norms, and refresh them only by uniform draws."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import kernel
from avare._randomness import Seed
from avare.samplers.kernels import register_kernels
from avare.samplers.registry import register
from avare.samplers.rivals.smoothed import SMALLEST_SHARE, Smoothed, draw_smoothed
from avare.state import Field, Fields
from avare.structures.buckets import Buckets, store


@register()
class Srg(Smoothed):
    r"""Stochastic reweighted gradient (El Hanchi, Stephens & Maddison, 2022).

    With :math:`h` the remembered norms, 0 at the start, and a coin :math:`b` for each draw,

    .. math:: p = (1 - \theta)\, h / \textstyle\sum h + \theta / N, \qquad b \sim \mathrm{Bernoulli}(\theta),

    the draw is uniform if b = 1 and from h otherwise. :math:`h_I` is refreshed **only if b = 1**,
    so that every example is refreshed equally often.

    Choose it for constant step sizes; its analysis needs no falling floor.

    Our additions: while all of h is zero, draws are uniform. If norms arrive late, the coin of an example is 1
    if any of its draws since its last update was uniform.

    Cost: O(batch_size) per step. Memory: 22 bytes per example and 8 MB.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    replacement : bool, default=True
        Must be True: this sampler draws with replacement only.
    theta : float, default=0.5
        The share of uniform draws, in [1e-100, 1].
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Srg(4, batch_size=2, seed=0)
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> for _ in range(50):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> sampler.probabilities().round(2)
    array([0.14, 0.15, 0.53, 0.18])

    References
    ----------
    A. El Hanchi, D. A. Stephens, C. J. Maddison. Stochastic Reweighted Gradient Descent. ICML 2022.
    """

    hyperparameters = ("theta",)

    def __init__(
        self, n: int, batch_size: int = 128, *, replacement: bool = True, theta: float = 0.5, seed: Seed = None
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._share = self.theta = validation.number("theta", theta, at_least=SMALLEST_SHARE, at_most=1.0)
        self._structure = Buckets(np.zeros(self.n))
        self._awaited = np.zeros(self.n, dtype=np.bool_)  # drawn uniformly since its last update

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        with self._lock:
            return self._structure.norms(indices)

    @property
    def kernels(self) -> SrgState:
        return SrgState(super().kernels, self._awaited)

    def fields(self) -> Fields:
        return {**super().fields(), "awaited": Field(np.bool_, (self.n,))}


# --- kernels -------------------------------------------------------------------------------


class SrgState(NamedTuple):
    """What the kernels of `Srg` read and write."""

    mixture: Any  # `SmoothedState`
    awaited: NDArray[np.bool_]


@kernel
def _draw_kernel(state, step, source, indices, probabilities, weights):
    uniform = draw_smoothed(state.mixture, source, indices, probabilities, weights)
    for j in range(len(indices)):
        if uniform[j]:
            state.awaited[indices[j]] = True


@kernel
def _learn_kernel(state, indices, norms):
    refreshed, values = np.empty_like(indices), np.empty_like(norms)
    count = 0
    for j in range(len(indices)):
        if state.awaited[indices[j]]:
            refreshed[count], values[count] = indices[j], norms[j]
            count += 1
    store(state.mixture.structure, refreshed[:count], values[:count])
    for j in range(len(indices)):
        state.awaited[indices[j]] = False


register_kernels(SrgState, draw=_draw_kernel, learn=_learn_kernel)
