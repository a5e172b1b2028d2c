"""The paper's Algorithm 1, corrected: the slow reference that `avare.structures.Buckets` is tested and timed against.

`PaperAvare` is `avare.Avare` on this structure. It uses nothing but what any other package may use.

As in the paper, three things are kept: the norms ``H`` by example; the order ``T`` of the examples, largest norm first;
and the cumulative sums ``CS`` of the norms in that order. This is what differs from the printed pseudo-code, and why:

- ``Sample`` looks up ``u * CS[rho]``, not ``lambda * u``, in the cumulative sums: those of the first rho
  norms end at CS[rho].
- ``Search`` tests its condition at the last rank, too. It halves the ranks instead of asking for successors: O(log N),
  not O(log^2 N).
- Equal norms need an order: it is by norm, then by index.
- The paper keeps the order in a tree. But an update changes the cumulative sums of all later ranks, O(N), and adding
  and subtracting would accumulate errors (1e30 + 1 - 1e30 = 0). So here the order is an array. An update takes the
  examples of a batch out, merges them in again, and sums: O(N) per step, as in the paper.

*Example.* Norms 1.0, 1.5, 6.0, 0.0: the order is 2, 1, 0, 3 and CS = 6, 7.5, 8.5, 8.5. For the
floor 0.1, rank 3 passes, because 1.0 * (1 - 0.1) >= 0.1 * 8.5, and rank 4 does not: rho = 3,
lambda = 8.5 / 0.9 = 9.444, p = (0.106, 0.159, 0.635, 0.1).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import avare
from avare import _validation as validation
from avare._compilation import kernel
from avare._randomness import next_uniform
from avare.batch import batch_weights
from avare.samplers.base import one_per_example
from avare.state import Field, Fields, Nested, State
from avare.structures.base import Solution, Structure
from avare.structures.uniform_draws import draw_below

_SMALLEST, _LARGEST = 2.0**-960, 2.0**960  # no sum overflows or underflows


class _Arrays(NamedTuple):
    """Everything the kernels read and write."""

    norms: NDArray[np.float64]  # H
    order: NDArray[np.int64]  # T
    sums: NDArray[np.float64]  # CS: sums[r - 1] is that of the r largest norms


class SortedNorms(Structure):
    """Norms of n examples, from which to draw as the paper does: O(N) per step.

    Positive norms outside [2^-960, 2^960] count as the nearer end. Memory: 24 bytes per example.

    >>> sorted_norms = SortedNorms([1.0, 1.5, 6.0, 0.0])
    >>> sorted_norms.probabilities(floor=0.1).round(3)
    array([0.106, 0.159, 0.635, 0.1  ])
    >>> sorted_norms.update([3, 0], [6.0, 0.0])
    >>> sorted_norms.probabilities(floor=0.0).round(3)
    array([0.   , 0.111, 0.444, 0.444])
    """

    _arrays: _Arrays

    def __init__(self, norms: ArrayLike) -> None:
        """Build from given norms, finite and not negative. O(N log N)."""
        values = validation.nonnegative("norms", norms)
        values = np.where(values > 0.0, np.clip(values, _SMALLEST, _LARGEST), 0.0)
        self.n = validation.integer("n", len(values), at_least=1)
        order = _in_order(values)
        self._arrays = _Arrays(values, order, np.cumsum(values[order]))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> "SortedNorms":
        """Build from what `state` returned for n examples; a damaged state raises a ``ValueError``. O(N log N)."""
        return cls(Field(np.float64, (n,), at_least=0.0).read(state, "norms"))

    def state(self) -> State:
        """Return the norms. O(N)."""
        return {"norms": self.norms()}

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the norms: of some examples, or by index. O(1) each."""
        return self._arrays.norms.copy() if indices is None else self._arrays.norms[indices]

    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Replace norms without any checks. O(N)."""
        _update(self._arrays, indices, values)

    def solve(self, floor: float) -> Solution:
        """Return the solution of Lemma 1 for a floor. O(log N)."""
        threshold, scale, above = _solve(self._arrays, self._checked(floor))
        return Solution(floor=threshold / scale, threshold=threshold, scale=scale, above=above)

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        solution = self.solve(floor)
        return np.asarray(np.maximum(self._arrays.norms, solution.threshold) / solution.scale)

    def _draw(self, floor: float, *arguments: Any) -> bool:
        return bool(_draw(self._arrays, floor, *arguments))

    def check(self) -> None:
        """Assert every invariant. O(N log N)."""
        a = self._arrays
        assert np.array_equal(a.order, _in_order(a.norms)), "the examples are out of order"
        assert np.array_equal(a.sums, np.cumsum(a.norms[a.order])), "the cumulative sums are wrong"


def _in_order(norms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the examples: larger norms first, then smaller indices."""
    return np.argsort(-norms, kind="stable")


class PaperAvare(avare.Sampler):
    """`avare.Avare` with the paper's own structure: O(N) per step."""

    hyperparameters = ("delta", "c", "p_min")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        delta: float = 1.0,
        c: float | None = None,
        p_min: float = 0.0,
        initial_norms: ArrayLike | None = None,
        seed: Any = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._schedule = avare.schedules.floor(self.n, self.batch_size, delta, c, p_min)
        _, self._c, self._delta, self._p_min = self._schedule.constants
        start = np.zeros(self.n) if initial_norms is None else initial_norms
        self._structure = SortedNorms(one_per_example("initial_norms", start, self.n))

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw."""
        return self._schedule(self.steps + 1)

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self._structure.probabilities(self.floor)

    def draw(self, size: int) -> avare.Batch:
        left = np.empty(size)
        indices, probabilities = self._structure.draw(
            size, replacement=self.replacement, generator=self.generator, floor=self.floor, left=left
        )
        weights = batch_weights(probabilities, self.replacement, None if self.replacement else left)
        return avare.Batch(indices, weights, probabilities)

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._structure.replace(indices, norms)

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return self._structure.norms(indices)

    def fields(self) -> Fields:
        return {"structure": Nested(partial(SortedNorms.from_state, n=self.n))}


# --- kernels -------------------------------------------------------------------------------


@kernel
def _update(arrays, indices, norms):
    """Take some examples out of the order, and merge them in again by their new norms."""
    is_moved = np.zeros(len(arrays.norms), dtype=np.bool_)
    for j in range(len(indices)):
        is_moved[indices[j]] = True
        arrays.norms[indices[j]] = min(max(norms[j], _SMALLEST), _LARGEST) if norms[j] > 0.0 else 0.0
    moved, kept = np.flatnonzero(is_moved), arrays.order[~is_moved[arrays.order]]
    moved = moved[np.argsort(-arrays.norms[moved], kind="mergesort")]  # which is stable
    j, k, total = 0, 0, 0.0
    for place in range(len(arrays.order)):
        if j == len(moved) or (k < len(kept) and _before(arrays.norms, kept[k], moved[j])):
            arrays.order[place] = kept[k]
            k += 1
        else:
            arrays.order[place] = moved[j]
            j += 1
        total += arrays.norms[arrays.order[place]]
        arrays.sums[place] = total


@kernel
def _before(norms, one, other):
    """Return whether an example comes before another."""
    return norms[one] > norms[other] or (norms[one] == norms[other] and one < other)


@kernel
def _solve(arrays, floor):
    """Return the threshold floor * lambda, lambda and rho; uniform if Lemma 1 has more than one solution."""
    n = len(arrays.norms)
    largest = arrays.norms[arrays.order[0]]
    if floor * n >= 1.0 or largest == 0.0:
        threshold = largest if largest > 0.0 else 1.0
        return threshold, n * threshold, 0
    rho, end = 0, n + 1  # the last rank that passes is from rho to end - 1
    while end - rho > 1:
        rank = (rho + end) // 2
        if arrays.norms[arrays.order[rank - 1]] * (1.0 - (n - rank) * floor) >= floor * arrays.sums[rank - 1]:
            rho = rank
        else:
            end = rank
    scale = arrays.sums[rho - 1] / (1.0 - (n - rho) * floor)
    return floor * scale, scale, rho


@kernel
def _draw_one(arrays, threshold, scale, rho, source):
    n = len(arrays.norms)
    if next_uniform(source) * scale < (n - rho) * threshold:
        rank = rho + 1 + draw_below(n - rho, source)
    else:
        x = next_uniform(source) * arrays.sums[rho - 1]
        rank = min(np.searchsorted(arrays.sums[:rho], x, side="right") + 1, rho)
    return arrays.order[rank - 1]


@kernel
def _draw(arrays, floor, replacement, source, indices, probabilities, left):
    """Draw indices, without replacement also what is left before each; return whether there are enough."""
    threshold, scale, rho = _solve(arrays, floor)
    if not replacement:
        return _draw_distinct(arrays, threshold, scale, rho, source, indices, probabilities, left)
    for j in range(len(indices)):
        indices[j] = _draw_one(arrays, threshold, scale, rho, source)
        probabilities[j] = max(arrays.norms[indices[j]], threshold) / scale
    return True


@kernel
def _draw_distinct(arrays, threshold, scale, rho, source, indices, probabilities, left):
    """Drop repeated draws while at least half of the mass is left; then go through all that are left, one by one."""
    masses, mass = np.maximum(arrays.norms, threshold) / scale, 1.0
    if len(indices) > np.count_nonzero(masses):
        return False
    for j in range(len(indices)):
        left[j] = mass
        if mass >= 0.5:
            drawn = _draw_one(arrays, threshold, scale, rho, source)
            while masses[drawn] == 0.0:
                drawn = _draw_one(arrays, threshold, scale, rho, source)
        else:
            sums = np.cumsum(masses)
            left[j] = sums[-1]
            drawn = np.searchsorted(sums, next_uniform(source) * left[j], side="right")
        indices[j], probabilities[j] = drawn, masses[drawn]
        mass -= masses[drawn]
        masses[drawn] = 0.0
    return True
