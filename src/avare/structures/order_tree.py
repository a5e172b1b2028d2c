"""The paper's Algorithm 1, corrected: the reference that `buckets` is tested against.

As in the paper, three things are kept: the norms ``H`` by example; an order-statistic tree ``T`` of
the examples, largest norm first; and the cumulative sums ``CS`` of the norms in that order. This is what
differs from the printed pseudo-code, and why:

- ``Sample`` looks up ``u * CS[rho]``, not ``lambda * u``, in the cumulative sums: those of the first rho
  norms end at CS[rho].
- ``Search`` tests its condition at the last rank, too. It keeps the last rank that passed on the way down
  instead of asking for successors: O(log N), not O(log^2 N).
- Equal norms need an order: it is by norm, then by index.
- Deleting and inserting must shift the cumulative sums by one place, and repeated additions and
  subtractions would accumulate errors (1e30 + 1 - 1e30 = 0). Here the norms in the order of the tree are
  shifted. The sums are computed again when they are next needed, from the first rank that an update
  changed: O(N) vectorised per step, as in the paper.

The tree is a treap: a binary search tree by (norm, index) that is also a heap by a fixed pseudo-random
priority of each index, which keeps its depth at about 2 log2 N. Its shape depends only on the norms, not
on the order of updates.

*Example.* Norms 1.0, 1.5, 6.0, 0.0: the order of the tree is 2, 1, 0, 3 and CS = 6, 7.5, 8.5, 8.5. For the
floor 0.1, rank 3 passes, because 1.0 * (1 - 0.1) >= 0.1 * 8.5, and rank 4 does not: rho = 3,
lambda = 8.5 / 0.9 = 9.444, p = (0.106, 0.159, 0.635, 0.1).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import kernel
from avare._randomness import next_uniform
from avare.state import Field, State
from avare.structures.base import Solution, Structure
from avare.structures.uniform_draws import draw_below

_ROOT, _STALE = 0, 1  # entries of `registers`
_SMALLEST, _LARGEST = 2.0**-960, 2.0**960  # no sum overflows or underflows


class _Arrays(NamedTuple):
    """Everything the kernels read and write. Node n, the last, means "none"."""

    norms: NDArray[np.float64]  # H
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    sizes: NDArray[np.int64]  # of the subtree at each node
    ordered: NDArray[np.float64]  # the norms in the order of the tree
    sums: NDArray[np.float64]  # CS: sums[r - 1] is that of the r largest norms
    registers: NDArray[np.int64]  # the root, and the first place at which `sums` is stale


class OrderTree(Structure):
    """Norms of n examples, from which to draw as the paper does: O(N) per step.

    Positive norms outside [2^-960, 2^960] count as the nearer end. Memory: 48 bytes per example.

    >>> tree = OrderTree([1.0, 1.5, 6.0, 0.0])
    >>> tree.probabilities(floor=0.1).round(3)
    array([0.106, 0.159, 0.635, 0.1  ])
    >>> tree.update([3, 0], [6.0, 0.0])
    >>> tree.probabilities(floor=0.0).round(3)
    array([0.   , 0.111, 0.444, 0.444])
    """

    _arrays: _Arrays

    def __init__(self, norms: ArrayLike) -> None:
        """Build from given norms, finite and not negative. O(N log N)."""
        values = validation.nonnegative("norms", norms)
        values = np.where(values > 0.0, np.clip(values, _SMALLEST, _LARGEST), 0.0)
        self.n = validation.integer("n", len(values), at_least=1)
        self._arrays = _Arrays(
            norms=values,
            left=np.full(self.n + 1, self.n, dtype=np.int64),
            right=np.full(self.n + 1, self.n, dtype=np.int64),
            sizes=np.zeros(self.n + 1, dtype=np.int64),
            ordered=np.sort(values)[::-1].copy(),
            sums=np.zeros(self.n, dtype=np.float64),
            registers=np.array([self.n, 0], dtype=np.int64),
        )
        _build(self._arrays)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> "OrderTree":
        """Build from what `state` returned for n examples; a damaged state raises a ``ValueError``. O(N log N)."""
        return cls(Field(np.float64, (n,), at_least=0.0).read(state, "memory"))

    def state(self) -> State:
        """Return the norms. O(N)."""
        return {"memory": self.norms()}

    def norms(self) -> NDArray[np.float64]:
        """Return the norms, by index. O(N)."""
        return self._arrays.norms.copy()

    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Replace norms without any checks. O(log N) and a shift, each."""
        _update(self._arrays, indices, values)

    def solve(self, floor: float) -> Solution:
        """Return the solution of Lemma 1 for a floor. O(log N), and O(N) after an update."""
        threshold, scale, above = _solve(self._arrays, self._checked(floor))
        return Solution(floor=threshold / scale, threshold=threshold, scale=scale, above=above)

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        solution = self.solve(floor)
        return np.asarray(np.maximum(self._arrays.norms, solution.threshold) / solution.scale)

    def _draw(self, floor: float, *arguments: Any) -> bool:
        return bool(_draw(self._arrays, floor, *arguments))

    def check(self) -> None:
        """Assert every invariant. O(N log N)."""
        a, empty = self._arrays, self.n
        assert a.sizes[empty] == 0 and a.left[empty] == a.right[empty] == empty, "the empty node was written to"
        children = np.stack([a.left[:empty], a.right[:empty]])
        assert np.array_equal(a.sizes[:empty], a.sizes[children].sum(axis=0) + 1), "a size is wrong"  # so no cycles
        priorities = np.array([*(_priority(node) for node in range(self.n)), -1])
        assert (priorities[children] <= priorities[:empty]).all(), "a node is below its child in the heap"
        order = np.lexsort((np.arange(self.n), -a.norms)).tolist()
        ranks = range(1, self.n + 1)
        assert order == [_select(a, rank) for rank in ranks], "the tree is out of order"
        assert list(ranks) == [_rank(a, node) for node in order], "a rank is wrong"
        assert np.array_equal(a.ordered, a.norms[order]), "the norms in order are wrong"
        _refresh(a)
        assert np.array_equal(a.sums, np.cumsum(a.ordered)), "the cumulative sums are wrong"


# --- the tree ------------------------------------------------------------------------------


@kernel
def _priority(node):
    """Return a fixed pseudo-random number for a node: two rounds of multiply and shift, in 32 bits."""
    x = node * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x45D9F3B & 0xFFFFFFFF
    return x ^ x >> 16


@kernel
def _before(arrays, node, other):
    """Return whether a node comes before another: larger norms first, then smaller indices."""
    if arrays.norms[node] != arrays.norms[other]:
        return arrays.norms[node] > arrays.norms[other]
    return node < other


@kernel
def _split(arrays, tree, node):
    """Split a tree into the nodes before a node that is not in it, and those after."""
    if tree == len(arrays.norms):
        return tree, tree
    if _before(arrays, tree, node):
        before, after = _split(arrays, arrays.right[tree], node)
        arrays.right[tree] = before
        before = tree
    else:
        before, after = _split(arrays, arrays.left[tree], node)
        arrays.left[tree] = after
        after = tree
    arrays.sizes[tree] = arrays.sizes[arrays.left[tree]] + arrays.sizes[arrays.right[tree]] + 1
    return before, after


@kernel
def _join(arrays, before, after):
    """Join two trees; all nodes of the first come before all of the second."""
    empty = len(arrays.norms)
    if before == empty:
        return after
    if after == empty:
        return before
    if _priority(before) >= _priority(after):
        arrays.right[before] = _join(arrays, arrays.right[before], after)
        top = before
    else:
        arrays.left[after] = _join(arrays, before, arrays.left[after])
        top = after
    arrays.sizes[top] = arrays.sizes[arrays.left[top]] + arrays.sizes[arrays.right[top]] + 1
    return top


@kernel
def _insert(arrays, node):
    before, after = _split(arrays, arrays.registers[_ROOT], node)
    arrays.left[node] = arrays.right[node] = len(arrays.norms)
    arrays.sizes[node] = 1
    arrays.registers[_ROOT] = _join(arrays, _join(arrays, before, node), after)


@kernel
def _without(arrays, tree, node):
    """Return a tree without one of its nodes."""
    if tree == node:
        return _join(arrays, arrays.left[node], arrays.right[node])
    arrays.sizes[tree] -= 1
    if _before(arrays, node, tree):
        arrays.left[tree] = _without(arrays, arrays.left[tree], node)
    else:
        arrays.right[tree] = _without(arrays, arrays.right[tree], node)
    return tree


@kernel
def _rank(arrays, node):
    """Return the place of a node in the order, from 1."""
    rank, tree = 1, arrays.registers[_ROOT]
    while tree != node:
        if _before(arrays, node, tree):
            tree = arrays.left[tree]
        else:
            rank += arrays.sizes[arrays.left[tree]] + 1
            tree = arrays.right[tree]
    return rank + arrays.sizes[arrays.left[tree]]


@kernel
def _select(arrays, rank):
    """Return the node at a place in the order, from 1."""
    tree = arrays.registers[_ROOT]
    while True:
        here = arrays.sizes[arrays.left[tree]] + 1
        if rank == here:
            return tree
        if rank < here:
            tree = arrays.left[tree]
        else:
            rank -= here
            tree = arrays.right[tree]


@kernel
def _build(arrays):
    for node in range(len(arrays.norms)):
        _insert(arrays, node)


@kernel
def _update(arrays, indices, norms):
    for j in range(len(indices)):
        node = indices[j]
        before = _rank(arrays, node)
        arrays.registers[_ROOT] = _without(arrays, arrays.registers[_ROOT], node)
        arrays.norms[node] = min(max(norms[j], _SMALLEST), _LARGEST) if norms[j] > 0.0 else 0.0
        _insert(arrays, node)
        after = _rank(arrays, node)
        for rank in range(before, after):
            arrays.ordered[rank - 1] = arrays.ordered[rank]
        for rank in range(before, after, -1):
            arrays.ordered[rank - 1] = arrays.ordered[rank - 2]
        arrays.ordered[after - 1] = arrays.norms[node]
        arrays.registers[_STALE] = min(arrays.registers[_STALE], before - 1, after - 1)


@kernel
def _refresh(arrays):
    """Compute the sums again from the first stale place."""
    first = arrays.registers[_STALE]
    total = arrays.sums[first - 1] if first > 0 else 0.0
    for place in range(first, len(arrays.sums)):
        total += arrays.ordered[place]
        arrays.sums[place] = total
    arrays.registers[_STALE] = len(arrays.sums)


# --- Lemma 1 and draws ---------------------------------------------------------------------


@kernel
def _solve(arrays, floor):
    """Return the threshold floor * lambda, lambda and rho; uniform if Lemma 1 has more than one solution."""
    _refresh(arrays)
    n = len(arrays.norms)
    largest = arrays.norms[_select(arrays, 1)]
    if floor * n >= 1.0 or largest == 0.0:
        threshold = largest if largest > 0.0 else 1.0
        return threshold, n * threshold, 0
    rho, before, tree = 0, 0, arrays.registers[_ROOT]
    while tree != n:
        rank = before + arrays.sizes[arrays.left[tree]] + 1
        if arrays.norms[tree] * (1.0 - (n - rank) * floor) >= floor * arrays.sums[rank - 1]:
            rho, before, tree = rank, rank, arrays.right[tree]
        else:
            tree = arrays.left[tree]
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
    return _select(arrays, rank)


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
    n, size = len(arrays.norms), len(indices)
    masses = np.empty(n, dtype=np.float64)
    for i in range(n):
        masses[i] = max(arrays.norms[i], threshold) / scale
    if size > np.count_nonzero(masses):
        return False
    mass = 1.0
    for j in range(size):
        drawn, left[j] = -1, mass
        if mass >= 0.5:
            drawn = _draw_one(arrays, threshold, scale, rho, source)
            while masses[drawn] == 0.0:
                drawn = _draw_one(arrays, threshold, scale, rho, source)
        else:
            left[j] = masses.sum()
            x = next_uniform(source) * left[j]
            for i in range(n):
                if masses[i] > 0.0:
                    drawn = i
                    x -= masses[i]
                    if x < 0.0:
                        break
        indices[j], probabilities[j] = drawn, masses[drawn]
        mass -= masses[drawn]
        masses[drawn] = 0.0
    return True
