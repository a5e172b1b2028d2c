"""Mixture: learn how to mix given distributions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.batch import Batch
from avare.samplers.registry import register
from avare.samplers.rivals.smoothed import SMALLEST_SHARE, RemembersDraws
from avare.simplex.newton import newton_step
from avare.state import Field, Fields, State, checksum, refuse_unless

_METRIC = 0.1  # times the identity: the metric at the start
_LARGEST_METRIC = 1e15  # each update adds at most 1


@register(example=lambda n: {"components": np.stack([1.0 + np.arange(n) % 5, 1.0 / (1.0 + np.arange(n))])})
class Mixture(RemembersDraws):
    r"""Online variance reduction with mixtures (Borsos, Curi, Levy & Krause, 2019).

    From K given distributions :math:`P_1 \dots P_K` and the uniform one, added as the last, it learns a mixture
    with shares v, by an online Newton step for each update:

    .. math:: p = \textstyle\sum_k v_k P_k, \qquad
              r = -\frac1s \sum_j P_{\cdot I_j} n_j^2 / p_j^3, \qquad A \mathrel{+}= r r^\top, \qquad
              v \leftarrow \Pi_A (v - A^{-1} r / \beta),

    with :math:`\Pi_A` the projection, in the norm of A, onto the shares that sum to 1, are not
    negative, and give the uniform distribution at least 0.01. At the start :math:`A = 0.1 I`, and all shares are
    equal. :math:`p_j` is the probability with which :math:`I_j` was drawn.

    **Each batch comes from one component**, drawn by v. The weights, 1 / (m p), belong to the whole mixture.
    Each single draw follows p, and the estimate is unbiased over the choice of the component. But the draws of a
    batch depend on each other, and the variance does not fall as 1 / m if the components differ much.

    Choose it if you know something about the examples in advance (a class, a cluster, a length),
    but not how much it matters. For bounded norms, and a scale known in advance, it is
    asymptotically as good as the best fixed mixture in hindsight.

    Our additions: the scale s is the largest length of :math:`\sum_j P_{\cdot I_j} n_j^2 / p_j^3` so
    far, so that r is never longer than 1; norms that arrive late count with the probability of the
    example's last draw.

    Cost: O(batch_size (K + log N) + K^3) per step. Memory: 16 bytes per example for each component and the uniform one,
    and 8 bytes per example.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    components : array-like
        P, K rows of n numbers, not negative and not all zero in a row; each row is normalised.
    replacement : bool, default=True
        Must be True: this sampler draws with replacement only.
    beta : float, default=10.0
        At least 1e-9; larger values make smaller steps.
    uniform : float, default=0.01
        The smallest share of the uniform distribution, in [1e-100, 1].
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Mixture(4, batch_size=2, components=[[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], seed=0)
    >>> norms = np.array([1.0, 2.0, 30.0, 40.0])
    >>> for _ in range(300):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> int(sampler.mixture.argmax())
    0

    References
    ----------
    Z. Borsos, S. Curi, K. Y. Levy, A. Krause. Online Variance Reduction with Mixtures. ICML 2019.
    """

    needs = ("components",)
    hyperparameters = ("components_checksum", "beta", "uniform")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        components: ArrayLike,
        replacement: bool = True,
        beta: float = 10.0,
        uniform: float = 0.01,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        rows = validation.nonnegative("components", components, ndim=2)
        if not len(rows):
            raise ValueError(f"components has shape {rows.shape}: must have at least one row")
        validation.same_length("components[0]", rows.shape[1], "n", self.n)
        for k, row in enumerate(rows):
            if not row.any():
                raise ValueError(f"components[{k}] is all zero: at least one must be above 0")
        self.beta = validation.number("beta", beta, at_least=1e-9)
        self.uniform = validation.number("uniform", uniform, at_least=SMALLEST_SHARE, at_most=1.0)
        shares = rows / rows.max(axis=1, keepdims=True)  # so that no sum overflows
        shares = np.vstack([shares / shares.sum(axis=1, keepdims=True), np.full(self.n, 1.0 / self.n)])
        self._components, self._sums = shares, np.cumsum(shares, axis=1)
        self._components_checksum = checksum({"components": rows})
        last = max(self.uniform, 1.0 / (len(rows) + 1))
        self._mixture = np.append(np.full(len(rows), (1.0 - last) / len(rows)), last)
        self._least = np.append(np.zeros(len(rows)), self.uniform)
        self._metric = _METRIC * np.eye(len(rows) + 1)
        self._log_scale = -math.inf

    @property
    def components(self) -> NDArray[np.float64]:
        """P, one row per component, the uniform one last. O(N K)."""
        return self._components.copy()

    @property
    def mixture(self) -> NDArray[np.float64]:
        """v, the share of each component at the next draw, the uniform one last. O(K)."""
        return self._mixture.copy()

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self._mixture @ self._components

    def draw(self, size: int) -> Batch:
        chosen = _place(np.cumsum(self._mixture), self.generator.random(1))[0]
        indices = _place(self._sums[chosen], self.generator.random(size))
        probabilities = self._mixture @ self._components[:, indices]
        self._drawn_with[indices] = probabilities
        return Batch(indices, 1.0 / (size * probabilities), probabilities)

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        indices, norms = indices[norms > 0.0], norms[norms > 0.0]
        if not len(indices):
            return
        chances = self._components[:, indices]
        # In logarithms, because n^2 / p^3 exceeds float64's range.
        costs = 2.0 * np.log(norms) - 3.0 * np.log(self._drawn_probabilities(indices))
        highest = float(costs.max())
        sums = chances @ np.exp(costs - highest)
        self._log_scale = max(self._log_scale, highest + math.log(np.linalg.norm(sums)))
        slope = -math.exp(highest - self._log_scale) * sums
        self._metric += np.outer(slope, slope)
        self._mixture = newton_step(self._mixture, slope / self.beta, self._metric, self._least)

    def fields(self) -> Fields:
        size = len(self._mixture)
        return {
            **super().fields(),
            "components": None,
            "sums": None,
            "least": None,
            "mixture": Field(np.float64, (size,), at_least=0.0, at_most=1.0 + 1e-9),
            "metric": Field(np.float64, (size, size), at_least=-_LARGEST_METRIC, at_most=_LARGEST_METRIC),
            "log_scale": Field(float, at_least=-1e4, at_most=1e4, also=-math.inf),
        }

    def check_state(self, values: State) -> None:
        mixture, metric = values["mixture"], values["metric"]
        refuse_unless(mixture >= self._least * (1.0 - 1e-9), mixture, "state['mixture']", "is below its smallest share")
        if abs(mixture.sum() - 1.0) > 1e-9:
            raise ValueError(f"state['mixture'] sums to {mixture.sum()}: must sum to 1")
        refuse_unless(metric == metric.T, metric, "state['metric']", "must be symmetric")
        least = float(np.linalg.eigvalsh(metric)[0])
        if least < _METRIC * (1.0 - 1e-6) - 1e-12 * metric.max():
            raise ValueError(f"state['metric'] has the eigenvalue {least}: must be at least {_METRIC}")


def _place(sums: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the place of each number of [0, 1) in sums that grow to roughly 1. O(log N) each."""
    return np.searchsorted(sums, uniform * sums[-1], side="right")
