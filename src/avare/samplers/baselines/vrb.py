"""Vrb: use the best fixed distribution for the costs so far, regularised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel
from avare._randomness import Seed
from avare.samplers.base import LARGEST_NORM
from avare.samplers.baselines.limits import Limited
from avare.samplers.baselines.smoothed import Smoothed
from avare.samplers.registry import register
from avare.state import Field, Fields, State, refuse_unless

_LARGEST_COST = 1e306


@register(example=lambda n: {"horizon": 1000 * n, "bound": 10.0})
class Vrb(Limited, Smoothed):
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

    Cost: O(batch_size) per step, amortised. Memory: 37 bytes per example and 8 MB.

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
        """Set theta and gamma from the limits, and all weights from them."""
        self._share, self._gamma = self._tuned(self._horizon, self._bound)
        self._weights.reset(np.sqrt(self._costs + self._gamma))

    def _tuned(self, horizon: int, bound: float) -> tuple[float, float]:
        """Return theta and gamma."""
        theta = min(1.0, (self.n / horizon) ** (1.0 / 3.0))
        return theta, bound**2 * self.n / theta

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        weights = _add(self._costs, indices, norms, self._drawn_probabilities(indices), self._gamma)
        if self._observe(norms):
            self._tune()
        else:
            self._weights.replace(indices, weights)

    def fields(self) -> Fields:
        costs = Field(np.float64, (self.n,), at_least=0.0, at_most=_LARGEST_COST)
        return {**super().fields(), "costs": costs}

    def check_state(self, values: State) -> None:
        super().check_state(values)
        _, gamma = self._tuned(values["horizon"], values["bound"])
        found, expected = values["weights"].values, np.sqrt(values["costs"] + gamma)
        valid = np.isclose(found, expected, rtol=1e-9, atol=0.0)
        refuse_unless(valid, found, "state['weights_values']", "does not fit the costs")

    def _smallest_probability(self, values: State) -> float:
        return self._tuned(values["horizon"], values["bound"])[0] / self.n

    def restore(self, values: State) -> None:
        super().restore(values)
        self._share, self._gamma = self._tuned(self._horizon, self._bound)


# --- kernels -------------------------------------------------------------------------------


@kernel
def _add(costs, indices, norms, probabilities, gamma):
    """Add n^2 / p for each draw; return the new weights."""
    for j in range(len(indices)):
        costs[indices[j]] += min(norms[j], LARGEST_NORM) ** 2 / probabilities[j]
    return np.sqrt(costs[indices] + gamma)
