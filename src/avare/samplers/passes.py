"""Passes: shuffled passes over the data that leave out most of the examples with small norms."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel
from avare._randomness import Seed
from avare.samplers.base import LARGEST_NORM, Sampler
from avare.samplers.kernels import register_kernels
from avare.samplers.memory import average, checked_share, current_unit, unit_for
from avare.samplers.registry import register
from avare.state import Field, Fields, State, require_permutation
from avare.structures.systematic import draw_systematically, in_safe_units, inclusion
from avare.structures.uniform_draws import draw_below

_UNSEEN = -1.0  # in place of a norm
_FIRST = 1e20  # the size of an example without a norm: above all others, which sum to n, so it is kept for certain
_ROUNDING = 1e-9  # of sums of probabilities


@register()
class Passes(Sampler):
    r"""Shuffled passes, thinned by remembered norms.

    At the start of a pass, example i is kept with probability :math:`\pi_i`. Up to its bounds, the probability is in
    proportion to the remembered norm :math:`h_i`; roughly, it is

    .. math:: \pi_i = \min(\max(h_i / \bar h, \varphi), 1),

    with the mean norm :math:`\bar h` and :math:`\varphi` = ``least``. Exactly K examples are kept, a multiple of the
    batch size, or all N. They are drawn in random order, each once. An example in the batch has the weight
    :math:`K / (m \pi_i)`. Examples without a norm are kept for certain, so the first pass has all of them. If K is not
    a multiple of the batch size, the last batch is filled up with examples that were drawn earlier in the pass, chosen
    uniformly.

    Each batch is unbiased over the choice and the order of its pass. As in all shuffled passes, batches are not
    independent: an example comes once per pass, apart from those that fill up the last batch. Errors cancel out within
    a pass, and no example is left out for long. `gain` compares single batches: a ratio of whole passes would be 0
    whatever the norms, because the sum over a shuffled pass has no variance at all. The gain is at most 1 / least. It
    is below 1 if norms change so much from visit to visit that the last one says little about the next, and `memory` is
    0. With :math:`\pi` unrelated to the norms it is :math:`N^2 / (\sum \pi_i \sum 1 / \pi_i)`.

    Choose it for nets if the test error counts: it costs next to nothing, and follows shuffled batches closely.
    InfoBatch (Qin et al., 2024) is the same idea with losses in place of norms, and probabilities of one half and one.

    Cost: O(batch_size) per step, and O(N log N) per pass. Memory: 24 bytes per example.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    replacement : bool, default=False
        Must be False: this sampler draws without replacement only.
    least : float, default=0.2
        The smallest probability of being kept in a pass, in [0.001, 1].
    memory : float, default=0.0
        The share of the past in what is remembered, in [0, 0.99]: see `avare.samplers.memory`. 0 is the last norm.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> sampler = Passes(8, batch_size=2, seed=0)
    >>> norms = np.array([0.0, 0.1, 0.1, 0.1, 3.0, 4.0, 4.0, 4.0])
    >>> for _ in range(4):  # the first pass: all examples
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> (sampler.probabilities() * 6).round(2)  # the next one keeps six
    array([0.2, 0.6, 0.6, 0.6, 1. , 1. , 1. , 1. ])

    References
    ----------
    Z. Qin et al. InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning. ICLR 2024.
    """

    without_replacement_only = True
    independent = False
    hyperparameters = ("least", "memory")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        least: float = 0.2,
        memory: float = 0.0,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self.least = validation.number("least", least, at_least=0.001, at_most=1.0)
        """The smallest probability of being kept in a pass."""
        self.memory = checked_share(memory)
        self._norms = np.full(self.n, _UNSEEN)
        self._kept = np.ones(self.n)
        self._order = np.arange(self.n)
        self._progress = np.zeros(2, dtype=np.int64)

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        with self._lock:
            found = self._norms if indices is None else self._norms[indices]
            return np.where(found == _UNSEEN, math.nan, found * current_unit(self._moments, self.memory))

    def compute_probabilities(self) -> NDArray[np.float64]:
        drawn, count = self._progress
        if drawn < count and self.batch_size <= count:
            return self._kept / count
        kept = np.empty(self.n)
        return kept / choose_probabilities(self._norms, self.least, self.batch_size, kept)

    @property
    def kernels(self) -> PassesState:
        return PassesState(self.least, self._norms, self._kept, self._order, self._progress, self._moments, self.memory)

    def fields(self) -> Fields:
        return {
            "norms": Field(np.float64, (self.n,), at_least=0.0, at_most=LARGEST_NORM, also=_UNSEEN),
            "kept": Field(np.float64, (self.n,), at_least=0.001, at_most=1.0),
            "order": Field(np.int64, (self.n,), at_least=0, at_most=self.n - 1),
            "progress": Field(np.int64, (2,), at_least=0, at_most=self.n),
        }

    def check_state(self, values: State) -> None:
        drawn, count = values["progress"]
        if drawn > count:
            raise ValueError(f"state['progress'][0] = {drawn}: must be at most {count}, the examples of the pass")
        require_permutation(values["order"], "state['order']")
        if count > 0 and abs(values["kept"].sum() - count) > _ROUNDING * self.n:
            raise ValueError(f"state['kept'] sums to {values['kept'].sum():g}: must sum to {count}")


# --- kernels -------------------------------------------------------------------------------


class PassesState(NamedTuple):
    """What the kernels of `Passes` read and write."""

    least: float
    norms: NDArray[np.float64]
    kept: NDArray[np.float64]
    """The probabilities with which the examples of this pass were kept."""
    order: NDArray[np.int64]
    """All indices: those drawn in this pass, those still to come, those left out."""
    progress: NDArray[np.int64]
    """How many have been drawn in this pass, and how many it has."""
    moments: NDArray[np.float64]
    memory: float


@kernel
def _draw_kernel(state, step, source, indices, probabilities, weights):
    size = len(indices)
    if state.progress[0] == state.progress[1] or size > state.progress[1]:
        _begin_pass(state, size, source)
    first, count = state.progress
    while first + size > count:  # the last batch is filled up: some examples are drawn again
        first -= 1
        _swap(state.order, first, draw_below(first + 1, source))
    for j in range(size):
        _swap(state.order, first + j, first + j + draw_below(count - first - j, source))
        indices[j] = state.order[first + j]
        probabilities[j] = state.kept[indices[j]] / count
        weights[j] = 1.0 / (size * probabilities[j])
    state.progress[0] = first + size


@inlined
def _swap(order, j, k):
    order[j], order[k] = order[k], order[j]


@kernel
def _begin_pass(state, size, source):
    """Choose the examples of the next pass, at least ``size``."""
    n = len(state.norms)
    count = choose_probabilities(state.norms, state.least, size, state.kept)
    first, last = 0, count
    kept = draw_systematically(state.kept, count, source)
    if len(kept) != count:  # probabilities that no norms give: all are kept, so that no index is out of bounds
        kept, count = np.arange(n), n
        state.kept.fill(1.0)
    for index in range(n):  # both are in increasing order
        if first < count and kept[first] == index:
            state.order[first] = index
            first += 1
        else:
            state.order[last] = index
            last += 1
    state.progress[0], state.progress[1] = 0, count


@kernel
def choose_probabilities(norms, least, size, kept):
    """Fill ``kept`` with the probability of each example to be kept; return how many will be."""
    n, total, seen = len(norms), 0.0, 0
    sizes = in_safe_units(norms)
    for i in range(n):
        if norms[i] != _UNSEEN:
            total += sizes[i]
            seen += 1
    if not total > 0.0:
        kept.fill(1.0)
        return n
    expected = 0.0
    for i in range(n):
        sizes[i] = _FIRST if norms[i] == _UNSEEN else sizes[i] * (seen / total)
        expected += min(max(sizes[i], least), 1.0)
    count = min(math.ceil(expected / size - _ROUNDING) * size, n)
    kept[:] = inclusion(sizes, count, least * n / count)
    return count


@kernel
def _learn_kernel(state, indices, norms):
    if state.memory == 0.0:  # old norms need not be read
        for j in range(len(indices)):
            state.norms[indices[j]] = min(norms[j], LARGEST_NORM)
        return
    unit = unit_for(state.moments, state.memory, norms)
    for j in range(len(indices)):
        norm = average(state.norms[indices[j]], norms[j] / unit, state.memory)
        state.norms[indices[j]] = min(norm, LARGEST_NORM)


register_kernels(PassesState, draw=_draw_kernel, learn=_learn_kernel)
