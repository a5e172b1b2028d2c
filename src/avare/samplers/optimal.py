"""Optimal: draw in proportion to the true norms, as an oracle would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._randomness import Seed
from avare.batch import Batch
from avare.samplers.base import SMALLEST_PROBABILITY, Sampler, one_per_example
from avare.samplers.registry import register
from avare.simplex import minimize_variance
from avare.state import Field, Fields
from avare.structures.weighted_draws import draw_batch

Norms = Callable[[], ArrayLike]


@register(example=lambda n: {"norms": partial(np.arange, 1.0, n + 1.0)})
class Optimal(Sampler):
    r"""Draw with the smallest possible variance: :math:`p_i \propto n_i`, the true norms at this step.

    Choose it to see how large the possible gain is, and to measure regret. It needs the norms
    of all examples at each step. Examples whose norm is zero are not drawn, with two exceptions: if all norms are
    zero, draws are uniform; if a batch without replacement needs such examples, or a norm is 1e300 times smaller than
    the largest, all probabilities are at least 1e-9 times uniform's.

    Cost: O(N) per step, besides the cost of `norms`. Memory: 8 bytes per example.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    norms : callable or None, default=None
        A function that returns the present norms of all examples. It is called before each draw. By default
        `sgd` and `sgld` provide it; without a solver, the last reported norms are used, so report all of them
        (``update(range(n), norms)``).
    replacement : bool, default=False
        Whether an index may occur twice in a batch.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> Optimal(4, batch_size=2, norms=lambda: [1.0, 2.0, 3.0, 4.0]).probabilities()
    array([0.1, 0.2, 0.3, 0.4])

    References
    ----------
    P. Zhao, T. Zhang. Stochastic Optimization with Importance Sampling for Regularized Loss
    Minimization. ICML 2015.
    """

    needs_all_norms = True

    def __init__(
        self, n: int, batch_size: int = 128, *, norms: Norms | None = None, replacement: bool = False, seed: Seed = None
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        if norms is not None and not callable(norms):
            raise TypeError(f"norms = {norms!r}: must be a function without arguments")
        self._ask = norms
        self._offered: Norms | None = None
        self._reported = np.zeros(self.n)

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self._for(self.batch_size)

    def _for(self, size: int) -> NDArray[np.float64]:
        """Return the probabilities for a number of draws: without replacement, that many must be positive."""
        norms, ask = self._reported, self._ask or self._offered
        if ask is not None:
            norms = one_per_example("norms()", ask(), self.n)
        p = minimize_variance(norms)
        lost = p.min() < SMALLEST_PROBABILITY and np.any((p < SMALLEST_PROBABILITY) & (norms > 0.0))
        if lost or (not self.replacement and np.count_nonzero(p) < size):
            p = minimize_variance(norms, 1e-9 / self.n)
        return p

    def draw(self, size: int) -> Batch:
        return draw_batch(self._for(size), size, self.replacement, self.generator)

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._reported[indices] = norms

    def follow(self, norms: Callable[[], NDArray[np.float64]] | None) -> None:
        self._offered = norms

    def fields(self) -> Fields:
        return {"reported": Field(np.float64, (self.n,), at_least=0.0)}
