"""Mabs: treat the examples as the arms of a bandit, with exponential weights."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.samplers.base import LARGEST_NORM
from avare.samplers.registry import register
from avare.samplers.rivals.smoothed import SMALLEST_SHARE, Limited
from avare.state import Field, Fields

_ROOM = 40.0  # how large a logarithm may become before all weights are divided
_LARGEST_COST = 400.0  # the logarithm of what is added to one of them
_LARGEST_LOG = 1e200  # of a weight, in a state


@register(example=lambda n: {"horizon": 1000 * n, "bound": 10.0})
class Mabs(Limited):
    r"""Multi-armed bandit sampling (Salehi, Celis & Thiran, 2017).

    Exponential weights on the estimated cost: with :math:`W = 0` at the start,

    .. math:: p = (1 - \eta)\, \mathrm{softmax}(W) + \eta / N, \qquad
              W_I \mathrel{+}= \delta\, n_I^2 / p_I^3 \text{ for each draw,} \qquad
              \delta = \sqrt{\eta^4 \ln N / (T N^5 G^4)}.

    Choose it as a baseline. Its guarantee is against the best fixed distribution, within a
    factor, for norms bounded by G over a horizon of T draws.

    Our additions: weights are kept as differences to a moving reference, so that none overflows; norms that
    arrive late count with the probability of the example's last draw; limits that turn out to be too small
    are doubled, with a `LimitWarning`.

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
    eta : float, default=0.4
        The share of the uniform distribution, in [1e-100, 1].
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Mabs(4, batch_size=2, horizon=2000, bound=30.0, seed=0)
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> for _ in range(1000):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> int(sampler.probabilities().argmax())
    2

    References
    ----------
    F. Salehi, L. E. Celis, P. Thiran. Stochastic Optimization with Bandit Sampling. 2017.
    """

    hyperparameters = ("eta",)

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = True,
        horizon: int | None = None,
        bound: float | None = None,
        eta: float = 0.4,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, horizon=horizon, bound=bound, seed=seed)
        self._share = self.eta = validation.number("eta", eta, at_least=SMALLEST_SHARE, at_most=1.0)
        self._log_weights = np.zeros(self.n)
        self._reference = 0.0  # subtracted from all log-weights

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64], *, limits_changed: bool) -> None:
        if self.n == 1 or self._bound == 0.0 or not len(indices):
            return
        # In logarithms, because N^5 and G^4 exceed float64's range.
        log_n = math.log(self.n)
        log_delta = 2.0 * math.log(self.eta / self._bound) + 0.5 * (math.log(log_n / self._horizon) - 5.0 * log_n)
        with np.errstate(divide="ignore"):  # norms of 0
            costs = 2.0 * np.log(np.minimum(norms, LARGEST_NORM)) - 3.0 * np.log(self._drawn_probabilities(indices))
        np.add.at(self._log_weights, indices, np.exp(np.minimum(log_delta + costs, _LARGEST_COST)))
        highest = float(self._log_weights[indices].max())
        if highest > self._reference + _ROOM:
            self._reference, indices = highest, np.arange(self.n)
        self._structure.replace(indices, np.exp(self._log_weights[indices] - self._reference))

    def fields(self) -> Fields:
        return {
            **super().fields(),
            "log_weights": Field(np.float64, (self.n,), at_least=0.0, at_most=_LARGEST_LOG),
            "reference": Field(float, at_least=0.0, at_most=_LARGEST_LOG),
        }
