"""Mabs: treat the examples as the arms of a bandit, with exponential weights."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import kernel
from avare._randomness import Seed
from avare._state import Field, Fields, State, refuse_unless
from avare.samplers.limits import LARGEST_NORM, Limited
from avare.samplers.registry import register
from avare.samplers.smoothed import SMALLEST_SHARE, Smoothed

_ROOM = math.exp(40.0)  # how large a weight may become before all are divided
_LARGEST_LOG = 1e200  # of a weight, in a state


@register(example=lambda n: {"horizon": 1000 * n, "bound": 10.0})
class Mabs(Limited, Smoothed):
    r"""Multi-armed bandit sampling (Salehi, Celis & Thiran, 2017).

    Exponential weights on the estimated cost: with :math:`W = 0` at the start,

    .. math:: p = (1 - \eta)\, \mathrm{softmax}(W) + \eta / N, \qquad
              W_I \mathrel{+}= \delta\, n_I^2 / p_I^3 \text{ for each draw,} \qquad
              \delta = \sqrt{\eta^4 \ln N / (T N^5 G^4)}.

    Choose it as a baseline. Its guarantee is against the best fixed distribution, within a
    factor, for norms bounded by G over a horizon of T draws.

    Our additions: weights are kept as differences to a moving reference, so that none overflows; norms that
    arrive late count with the probability of the example's last draw; limits that turn out to be too small
    are doubled (see `Limits`).

    Cost: O(batch_size) per step, amortised. Memory: 37 bytes per example and 8 MB.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, the number of draws per step.
    replacement
        Must be True: this sampler draws with replacement only.
    horizon
        T, the number of draws to come: steps times batch_size.
    bound
        G, an upper bound on the norms.
    keep_limits
        Whether to keep a given horizon or bound that turns out to be too small; otherwise it is doubled.
    eta
        The share of the uniform distribution, in [1e-100, 1].
    seed
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

    takes = ("horizon", "bound", "keep_limits")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = True,
        horizon: int | None = None,
        bound: float | None = None,
        keep_limits: bool = False,
        eta: float = 0.4,
        seed: Seed = None,
    ) -> None:
        super().__init__(
            n, batch_size, replacement=replacement, horizon=horizon, bound=bound, keep_limits=keep_limits, seed=seed
        )
        self.eta = validation.number("eta", eta, at_least=SMALLEST_SHARE, at_most=1.0)
        self._share = self.eta
        self._log_weights = np.zeros(self.n)
        self._reference = 0.0  # subtracted from all log-weights
        self._weights.reset(np.ones(self.n))

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._limits.observe(self._steps * self.batch_size, norms)
        if self.n == 1 or self._limits.bound == 0.0 or not len(indices):
            return
        # In logarithms, because N^5 and G^4 exceed float64's range.
        log_delta = 0.5 * (
            4.0 * math.log(self.eta)
            + math.log(math.log(self.n))
            - math.log(self._limits.horizon)
            - 5.0 * math.log(self.n)
            - 4.0 * math.log(self._limits.bound)
        )
        weights = _add(
            self._log_weights, indices, norms, self._drawn_probabilities(indices), log_delta, self._reference
        )
        if weights.max() > _ROOM:
            self._reference = float(self._log_weights[indices].max())
            self._weights.reset(np.exp(self._log_weights - self._reference))
        else:
            self._weights.replace(indices, weights)

    def _arguments(self) -> State:
        return {**super()._arguments(), "eta": self.eta}

    def _fields(self) -> Fields:
        return {
            **super()._fields(),
            "share": Field(float, at_least=self.eta, at_most=self.eta),
            "log_weights": Field(np.float64, (self.n,), at_least=0.0, at_most=_LARGEST_LOG),
            "reference": Field(float, at_least=0.0, at_most=_LARGEST_LOG),
        }

    def _check(self, values: State) -> None:
        super()._check(values)
        found, expected = (
            values["weights"].values,
            np.exp(np.minimum(values["log_weights"] - values["reference"], 700.0)),
        )
        valid = np.isclose(found, expected, rtol=1e-9, atol=1e-300)
        refuse_unless(valid, found, "state['weights_values']", "does not fit state['log_weights']")


# --- kernels -------------------------------------------------------------------------------


@kernel
def _add(log_weights, indices, norms, probabilities, log_delta, reference):
    """Add delta n^2 / p^3 for each draw; return the new weights."""
    for j in range(len(indices)):
        if norms[j] > 0.0:
            norm = min(norms[j], LARGEST_NORM)
            log_weights[indices[j]] += math.exp(log_delta + 2.0 * math.log(norm) - 3.0 * math.log(probabilities[j]))
    return np.exp(np.minimum(log_weights[indices] - reference, 700.0))  # beyond that all are divided
