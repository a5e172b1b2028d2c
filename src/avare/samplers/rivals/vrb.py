"""Vrb: use the best fixed distribution for the costs so far, regularised."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from avare._randomness import Seed
from avare.samplers.base import LARGEST_NORM
from avare.samplers.registry import register
from avare.samplers.rivals.smoothed import Limited
from avare.state import Field, Fields

_LARGEST_COST = 1e306


@register(example=lambda n: {"horizon": 1000 * n, "bound": 10.0})
class Vrb(Limited):
    r"""Variance reducer bandit (Borsos, Krause & Levy, 2018).

    It follows the regularised leader, the best fixed distribution for the costs so far: with :math:`w = 0`
    at the start,

    .. math:: q_i \propto \sqrt{w_i + \gamma}, \qquad p = (1 - \theta) q + \theta / N, \qquad
              w_I \mathrel{+}= n_I^2 / p_I \text{ for each draw,} \qquad
              \theta = (N / T)^{1/3}, \quad \gamma = G^2 N / \theta.

    Choose it if the norms hardly change with time, or as a baseline. Its static regret,
    against the best fixed distribution, is O(N^(1/3) T^(2/3)) up to logarithms, for norms
    bounded by G over a horizon of T draws.

    Our additions: limits that turn out to be too small are doubled, with a `LimitWarning`; theta is at most 1; norms
    that arrive late count with the probability of the example's last draw.

    Cost: O(batch_size) per step, amortised. Memory: 29 bytes per example and 8 MB.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    replacement : bool, default=True
        Must be True: this sampler draws with replacement only.
    horizon : int or None, default=None
        T, the number of draws to come: steps times batch_size.
    bound : float or None, default=None
        G, an upper bound on the norms.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Vrb(4, batch_size=2, horizon=2000, bound=30.0, seed=0)
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> for _ in range(1000):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> int(sampler.probabilities().argmax())
    2

    References
    ----------
    Z. Borsos, A. Krause, K. Y. Levy. Online Variance Reduction for Stochastic Optimization.
    COLT 2018.
    """

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = True,
        horizon: int | None = None,
        bound: float | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, horizon=horizon, bound=bound, seed=seed)
        self._costs = np.zeros(self.n)
        self._tune()

    def _tune(self) -> None:
        """Set theta and gamma from the limits."""
        self._share = min(1.0, (self.n / self._horizon) ** (1.0 / 3.0))
        self._gamma = self._bound**2 * self.n / self._share

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64], *, limits_changed: bool) -> None:
        costs = np.minimum(norms, LARGEST_NORM) ** 2 / self._drawn_probabilities(indices)
        np.add.at(self._costs, indices, costs)
        if limits_changed:
            self._tune()
            indices = np.arange(self.n)
        if self._gamma > 0.0:  # otherwise all norms were zero
            self._structure.replace(indices, np.sqrt(self._costs[indices] + self._gamma) / math.sqrt(self._gamma))

    def fields(self) -> Fields:
        costs = Field(np.float64, (self.n,), at_least=0.0, at_most=_LARGEST_COST)
        return {**super().fields(), "costs": costs}

    def restored(self) -> None:
        self._tune()
