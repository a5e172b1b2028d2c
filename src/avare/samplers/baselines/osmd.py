"""Osmd: mirror descent on the cost, estimated from the draws."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.batch import Batch
from avare.samplers.base import LARGEST_NORM
from avare.samplers.baselines.limits import Limited
from avare.samplers.baselines.smoothed import RemembersDraws
from avare.samplers.registry import register
from avare.state import Fields, Nested, State
from avare.structures.floored import Floored


@register(example=lambda n: {"horizon": 1000 * n, "bound": 10.0})
class Osmd(Limited, RemembersDraws):
    r"""Online stochastic mirror descent (Namkoong et al., 2017; Zhao et al., 2022).

    After each batch it makes a step of entropic mirror descent on the estimated cost, within
    :math:`p_i \ge \varepsilon = \alpha / N`: with :math:`p = 1/N` at the start,

    .. math:: v_i = p_i \exp\Big( \eta \sum_{j : I_j = i} \frac{n_j^2}{m^2 p_j^3} \Big), \qquad
              p_i \leftarrow \max(v_i / \lambda, \varepsilon), \qquad
              \eta = \sqrt 2\, \frac{m^2 \alpha^3}{N^3 G^2} \sqrt{\frac{\ln N}{T}},

    with :math:`\lambda` such that the sum is 1: the projection in the sense of Kullback and Leibler.

    Choose it as a baseline, or if norms keep changing slowly: the floor never falls, and old norms lose their
    influence. Its regret is sublinear in T against the best fixed distribution, and against changing
    distributions if they change little in total, both within :math:`p_i \ge \varepsilon`, for norms bounded by
    G over a horizon of T draws.

    Our additions: an exact step that does not cost O(N) (see `avare.structures.floored`); norms that arrive late
    count with the probability of the example's last draw, or of its next draw if it was never drawn; limits
    that turn out to be too small are doubled, with a `LimitWarning`.

    Cost: O(batch_size log N) per step, amortised. Memory: 41 bytes per example and 8 MB.

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
    alpha : float, default=0.4
        The smallest probability as a fraction of 1/n, between 1e-100 and 1.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Osmd(4, batch_size=2, horizon=2000, bound=30.0, seed=0)
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> for _ in range(1000):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> int(sampler.probabilities().argmax())
    2

    References
    ----------
    H. Namkoong, A. Sinha, S. Yadlowsky, J. C. Duchi. Adaptive Sampling Probabilities for
    Non-Smooth Optimization. ICML 2017.

    B. Zhao, L. Wang, Z. Liu, Z. Zhang, J. Zhou, C. Chen, M. Kolar. Adaptive Client Sampling in
    Federated Learning via Online Learning with Bandit Feedback. 2022.
    """

    hyperparameters = ("alpha",)

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = True,
        horizon: int | None = None,
        bound: float | None = None,
        alpha: float = 0.4,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, horizon=horizon, bound=bound, seed=seed)
        self.alpha = validation.number("alpha", alpha, at_least=1e-100, at_most=1.0)
        self._distribution = Floored(self.n, self.alpha)

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self._distribution.probabilities()

    def draw(self, size: int) -> Batch:
        indices, probabilities = self._distribution.draw(size, replacement=True, source=self.source)
        return self._remember(indices, probabilities)

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._observe(norms)
        if self.n == 1 or self._bound == 0.0 or not len(indices):
            return
        drawn = self._drawn_probabilities(indices)
        # eta n^2 / (m^2 p^3) = sqrt(2 ln N / T) (n / G)^2 (epsilon / p)^3: no factor is large, and m cancels.
        largest = math.exp(0.5 * (math.log(2.0 * math.log(self.n)) - math.log(self._horizon)))
        floor = self.alpha / self.n
        self._distribution.push(
            indices, largest * (np.minimum(norms, LARGEST_NORM) / self._bound) ** 2 * (floor / drawn) ** 3
        )

    def fields(self) -> Fields:
        distribution = Nested(partial(Floored.from_state, n=self.n, share=self.alpha))
        return {**super().fields(), "distribution": distribution}

    def _probabilities_of(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._distribution.probabilities_of(indices)

    def _smallest_probability(self, values: State) -> float:
        return self.alpha / self.n
