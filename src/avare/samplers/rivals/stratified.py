"""Stratified: draw one example from each of m groups of roughly equal importance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.batch import Batch
from avare.samplers.base import Sampler
from avare.samplers.registry import register
from avare.simplex.groups import Groups, split
from avare.simplex.variance import minimize_variance
from avare.state import Field, Fields


@register()
class Stratified(Sampler):
    r"""Importance sampling for minibatches, in groups (Csiba & Richtárik, 2018).

    The indices are split into m groups :math:`B_1 \ldots B_m` with nearly equal sums of the scores s,
    and one is drawn from each:

    .. math:: P(i \text{ from } B_k) = s_i / \textstyle\sum_{B_k} s, \qquad w_i = 1 / P(i \text{ from } B_k).

    Draws are distinct and unbiased by construction. `probabilities` returns :math:`P(i) / m`, which sums to 1.

    Choose it for large batches with a few important examples: it never draws one twice and rarely
    misses one. m independent draws with the same `probabilities` never have less variance.

    Our additions: the scores are the last reported norms, with a constant floor p_min (Lemma 1). They are
    renewed, with new groups, every ``period`` steps. To build the groups, each example, largest first, goes to
    the group with the smallest sum so far.

    Cost: O(batch_size log N) per step, and O(N log N) once per period: with the default period
    this is O(batch_size log N) per step too. Memory: 32 bytes per example.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step, and of groups.
    replacement : bool, default=False
        Must be False: draws are distinct by construction.
    p_min : float or None, default=None
        The floor of the scores, in [1e-100, 1/n]; by default 1 / (2n), because scores may be a whole pass old.
    period : int or None, default=None
        Number of steps between two regroupings; by default a pass over the data.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Stratified(6, batch_size=2, period=1, seed=0)
    >>> sampler.update(range(6), [5.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    >>> batch = sampler.sample()  # from the first groups, built before the update
    >>> sampler.probabilities()
    array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])

    References
    ----------
    D. Csiba, P. Richtárik. Importance Sampling for Minibatches. JMLR 2018.
    """

    without_replacement_only = True
    hyperparameters = ("p_min", "period")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        p_min: float | None = None,
        period: int | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self.p_min = 0.5 / self.n if p_min is None else validation.number("p_min", p_min, at_least=1e-100)
        if self.p_min * self.n > 1.0:
            raise ValueError(f"p_min = {p_min}: must be at most 1/n = {1.0 / self.n}")
        passes = -(-self.n // self.batch_size)
        self.period = passes if period is None else validation.integer("period", period, at_least=1)
        self._norms = np.zeros(self.n)
        self._scores = minimize_variance(self._norms, self.p_min)
        self._groups = split(self._scores, self.batch_size)  # for the size that was last needed

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        with self._lock:
            return self._norms.copy() if indices is None else self._norms[indices]

    def compute_probabilities(self) -> NDArray[np.float64]:
        scores, groups = self._next(self.batch_size)
        p = np.empty(self.n)
        p[groups.order] = scores[groups.order] / np.repeat(groups.masses, np.diff(groups.starts)) / self.batch_size
        return p

    def _next(self, size: int) -> tuple[NDArray[np.float64], Groups]:
        """Return the scores and groups of the next draw, new ones if it begins a period; the first draw does not."""
        scores, groups = self._scores, self._groups
        is_due = self.steps > 0 and self.steps % self.period == 0
        if is_due:
            scores = minimize_variance(self._norms, self.p_min)
        return scores, split(scores, size) if is_due or len(groups.masses) != size else groups

    def draw(self, size: int) -> Batch:
        self._scores, self._groups = self._next(size)
        groups = self._groups
        first, end = groups.starts[:-1], groups.starts[1:]
        low, high = groups.sums[first], groups.sums[end]
        places = np.searchsorted(groups.sums, low + self.generator.random(size) * (high - low), "right") - 1
        indices = groups.order[np.clip(places, first, end - 1)]  # clipped because sums are rounded
        weights = groups.masses / self._scores[indices]
        return Batch(indices, weights, 1.0 / (size * weights))

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._norms[indices] = norms

    def fields(self) -> Fields:
        return {
            "groups": None,
            "norms": Field(np.float64, (self.n,), at_least=0.0),
            "scores": Field(np.float64, (self.n,), at_least=self.p_min * (1.0 - 1e-9), at_most=1.0 + 1e-9),
        }

    def restored(self) -> None:
        self._groups = split(self._scores, self.batch_size)
