"""Optimal: the oracle, in proportion to the true norms."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare._state import State
from avare.batch import Batch, weigh
from avare.samplers.base import Sampler
from avare.samplers.registry import register
from avare.simplex import minimize_variance
from avare.structures.race import draw


def _some_norms(n: int) -> NDArray[np.float64]:
    return 1.0 + np.arange(n, dtype=np.float64) % 5


@register(example=lambda n: {"norms": partial(_some_norms, n)})
class Optimal(Sampler):
    r"""The least variance there is: :math:`p_i \propto n_i`, the true norms of this very step.

    Choose it to see how much there is to gain, and to measure regret against; it needs the norms
    of all examples at each step. Examples whose norm is zero are not drawn, unless all are (then
    uniformly), or unless a batch without replacement needs them (then with 1e-9 of uniform's
    probability at least).

    Cost: O(N) a step, by its own rule, beside that of `norms`. Memory: 8 bytes an example.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, draws a step.
    norms
        A function that gives the norms of all examples now: called before each draw. By default
        `sgd` and `sgld` give them; elsewhere the norms last told are used, and all must have been
        told (``update(range(n), norms)``).
    replacement
        Whether an index may come twice in a batch.
    seed
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

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        norms: Callable[[], ArrayLike] | None = None,
        replacement: bool = False,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        if norms is not None and not callable(norms):
            raise TypeError(f"norms = {norms!r}: must be a function without arguments")
        self._ask: Callable[[], ArrayLike] | None = norms
        self._offered: Callable[[], ArrayLike] | None = None
        self._told = np.zeros(self.n)

    def _probabilities(self) -> NDArray[np.float64]:
        norms, ask = self._told, self._ask or self._offered
        if ask is not None:
            norms = validation.nonnegative("norms()", ask())
            validation.same_length("norms()", len(norms), "n", self.n)
        p = minimize_variance(norms)
        if not self.replacement and np.count_nonzero(p) < self.batch_size:
            p = minimize_variance(norms, 1e-9 / self.n)
        return p

    def _draw(self) -> Batch:
        p = self._probabilities()
        indices = draw(p, self.batch_size, self.replacement, self._generator)
        return Batch(indices, weigh(p[indices], self.replacement), p[indices])

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._told[indices] = norms

    def _follow(self, norms: Callable[[], NDArray[np.float64]] | None) -> None:
        self._offered = norms

    def _state(self) -> State:
        return {"told": self._told.copy()}

    def _restore(self, state: State) -> None:
        self._told = state["told"].copy()
