"""Srg: remembered norms, refreshed only by uniform draws."""

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare._state import State
from avare.batch import Batch
from avare.samplers.limits import LARGEST_NORM
from avare.samplers.registry import register
from avare.samplers.smoothed import Smoothed


@register()
class Srg(Smoothed):
    r"""Stochastic reweighted gradient (El Hanchi, Stephens & Maddison, 2022).

    With :math:`h` the norms remembered, 0 at the start, and a coin :math:`b` for each draw,

    .. math:: p = (1 - \theta)\, h / \textstyle\sum h + \theta / N, \qquad b \sim \mathrm{Bernoulli}(\theta),

    the draw is uniform if b = 1 and from h otherwise; :math:`h_I` is refreshed **only if b = 1**,
    so that every example is refreshed equally often.

    Choose it for constant step sizes; its analysis needs no floor that falls.

    Ours: while all of h is zero, draws are uniform. Where norms come late, the coin is that of all
    draws of the example since it was last told of: 1 if one of them was uniform. Norms above 1e140
    count as that.

    Cost: O(batch_size) a step. Memory: 30 bytes an example and 8 MB.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, draws a step.
    replacement
        True: the rule draws with replacement only.
    theta
        In (0, 1]: the uniform part.
    seed
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

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = True,
        theta: float = 0.5,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self.theta = validation.number("theta", theta, above=0.0, at_most=1.0)
        self._share = self.theta
        self._awaited = np.zeros(self.n, dtype=np.bool_)  # drawn uniformly, and not told the norm of since

    def norms(self) -> NDArray[np.float64]:
        """What is remembered of each example. O(N)."""
        with self._lock:
            return self._weights.values.copy()

    def _draw(self) -> Batch:
        batch, uniform = self._draw_mixed()
        self._awaited[batch.indices[uniform]] = True
        return batch

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        refreshed = self._awaited[indices]
        self._weights.replace(indices[refreshed], np.minimum(norms[refreshed], LARGEST_NORM))
        self._awaited[indices] = False

    def _arguments(self) -> State:
        return {**super()._arguments(), "theta": self.theta}

    def _state(self) -> State:
        return {**super()._state(), "awaited": self._awaited.copy()}

    def _restore(self, state: State) -> None:
        super()._restore(state)
        self._awaited = state["awaited"].copy()
