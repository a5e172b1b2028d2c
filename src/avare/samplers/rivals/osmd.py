"""Osmd: mirror descent on the cost, estimated from the draws."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.samplers.base import LARGEST_NORM
from avare.samplers.registry import register
from avare.samplers.rivals.smoothed import Limited
from avare.state import Field, Fields
from avare.structures.buckets import Buckets

_LARGEST_EXPONENT = 60.0  # of the scale: beyond it, all values are divided
_LARGEST_VALUE = 1e30


@register(example=lambda n: {"horizon": 1000 * n, "bound": 10.0})
class Osmd(Limited):
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

    Our additions: a step that does not cost O(N), because only what was drawn is multiplied (epsilon may then be up to
    0.1 % larger); norms that arrive late count with the probability of the example's last draw, or of its next draw if
    it was never drawn; limits that turn out to be too small are doubled, with a `LimitWarning`.

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
        self._floor = self.alpha / self.n
        self._values = np.ones(self.n)

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64], *, limits_changed: bool) -> None:
        if self.n == 1 or self._bound == 0.0 or not len(indices):
            return
        drawn = self._drawn_probabilities(indices)
        # eta n^2 / (m^2 p^3) = sqrt(2 ln N / T) (n / G)^2 (epsilon / p)^3: no factor is large, and m cancels.
        largest = math.sqrt(2.0 * math.log(self.n) / self._horizon)
        shares = np.minimum(norms, LARGEST_NORM) / self._bound
        exponents = largest * shares**2 * np.minimum(self._floor / drawn, 1.0) ** 3
        where, places = np.unique(indices, return_inverse=True)
        self._push(where, np.bincount(places, weights=exponents).astype(np.float64))

    def _push(self, indices: NDArray[np.int64], exponents: NDArray[np.float64]) -> None:
        """Multiply the probabilities of different examples by exp(exponent). The next draw projects all of them.

        Probabilities only grow by a push, so the threshold never falls: a value below it stays there until it is pushed
        itself, and then starts from the threshold.
        """
        solution = self._structure.solve(self._floor)
        highest = float(exponents.max())
        values = np.maximum(self._values[indices], solution.threshold)
        if highest + math.log(solution.scale) > _LARGEST_EXPONENT:  # all values become smaller
            self._values *= math.exp(-highest) / solution.scale
            self._values[indices] = values / solution.scale * np.exp(exponents - highest)
            self._values /= self._values.max()
            self._structure = Buckets(self._values)
        else:
            self._values[indices] = values * np.exp(exponents)
            self._structure.replace(indices, self._values[indices])

    def fields(self) -> Fields:
        return {**super().fields(), "values": Field(np.float64, (self.n,), at_least=0.0, at_most=_LARGEST_VALUE)}
