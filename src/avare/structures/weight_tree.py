"""Draws in proportion to weights that change, from a tree of sums with 16 children per node.

The leaves are the weights, as float64. Each node has the sum of its 16 children, and the smallest weight above
zero below it. A change computes the nodes above it **again from their children**, in a fixed order, and never adds
a difference. So the tree depends only on the present weights: nothing drifts, and the total is the same, to the
last bit, as that of a new tree.

*Draw.* A number below the total goes down from the root: at each node it skips the children whose sums it exceeds.
Rounding may leave it at or above the sum of the child that it reached. It is then set just below that sum, so that
a weight of zero is never drawn. As in inverse-transform sampling, each probability is realised up to an absolute
error of 2^-53. One draw takes one random number. A batch goes down level by level, so that the loads of its
draws from memory overlap. Without replacement, each drawn weight is set to zero until the batch is complete.

The depth is log16(n): 5 for a million weights, 7 for a hundred million. `Buckets` needs O(1) operations, but touches
more memory for each.

A total below 1e-290 has too few bits for that, as in a set of subnormal weights. Then the weights are summed one by
one, in larger units, which takes O(N).

*Example.* Of the weights 1, 2, 0, 1 the total is 4. The number 3.0 skips 1 and 2, and then 0: it draws the last.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel, lean
from avare._randomness import next_uniform
from avare.state import Field, State, refuse_unless
from avare.structures.base import Structure
from avare.structures.cells import MAX_EXAMPLES
from avare.structures.uniform_draws import draw_evenly

_BITS = 4
_CHILDREN = 1 << _BITS
_TOGETHER = 256  # draws that go down together: their scratch stays in the fastest cache
_LARGEST_SUM = 2.0**1023
_SMALL = 1e-290  # a total from which to draw in other units: times a smaller one, a random number loses bits
_UNITS = 2.0**600  # ... in which such a total keeps all of them


class _Arrays(NamedTuple):
    """Everything the kernels read and write."""

    sums: NDArray[np.float64]  # level by level, from the weights to the root; rows of 16, padded with zeros
    least: NDArray[np.float64]  # by node in the same order, without the weights: the smallest weight above 0, or inf
    starts: NDArray[np.int64]  # by level: where it begins in `sums`


class WeightTree(Structure):
    """n weights, from which to draw, with their exact minimum and a total that does not drift.

    Memory: 9.1 bytes per example.

    >>> import numpy as np
    >>> tree = WeightTree([1.0, 0.0, 3.0])
    >>> tree.probabilities()
    array([0.25, 0.  , 0.75])
    >>> tree.update([1, 2], [0.5, 0.5])
    >>> tree.total, tree.minimum
    (2.0, 0.5)
    >>> generator = np.random.default_rng(0)
    >>> indices, p = tree.draw(1000, replacement=True, generator=generator)
    >>> set(indices.tolist())
    {0, 1, 2}
    """

    _arrays: _Arrays

    def __init__(self, weights: ArrayLike) -> None:
        """Build from weights, finite and not negative. O(N)."""
        checked = validation.nonnegative("weights", weights)
        self._allocate(len(checked))
        self._fill("weights", checked)

    @classmethod
    def zeros(cls, n: int) -> "WeightTree":
        """Build with all weights zero; the system gives memory only to what is used. O(N / 15)."""
        self = cls.__new__(cls)
        self._allocate(n)
        return self

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> "WeightTree":
        """Build from what `state` returned for n examples; a damaged state raises a ``ValueError``. O(N)."""
        self = cls.zeros(n)
        self._fill("state['weights']", Field(np.float64, (n,), at_least=0.0).read(state, "weights"))
        return self

    def _fill(self, name: str, weights: NDArray[np.float64]) -> None:
        self.require_bounded(name, weights)
        self._arrays.sums[: self.n] = weights
        _build(self._arrays)

    def _allocate(self, n: int) -> None:
        self.n = validation.integer("n", n, at_least=1, at_most=MAX_EXAMPLES)
        sizes = [-(-n // _CHILDREN) * _CHILDREN]
        while sizes[-1] > _CHILDREN:
            sizes.append(-(-sizes[-1] // _CHILDREN**2) * _CHILDREN)
        starts = np.cumsum([0, *sizes])
        # Each row of 16 begins with a line of the cache: at most two are read for it.
        room = np.zeros(starts[-1] + 1 + _CHILDREN)
        first = -room.ctypes.data // room.itemsize % _CHILDREN
        sums = room[first : first + starts[-1] + 1]
        self._arrays = _Arrays(sums, np.full(starts[-1] + 1 - starts[1], np.inf), starts)

    def state(self) -> State:
        """Return the weights, which determine everything. O(N)."""
        return {"weights": self.values.copy()}

    @property
    def values(self) -> NDArray[np.float64]:
        """The weights, by index; do not write to them. O(1)."""
        return self._arrays.sums[: self.n]

    @property
    def total(self) -> float:
        """The sum of the weights, the same for the same weights, whatever they were before. O(1)."""
        return float(self._arrays.sums[-1])

    @property
    def minimum(self) -> float:
        """The smallest weight above zero, exactly; 0 if all are zero. O(1)."""
        least = float(self._arrays.least[-1])
        return least if least < math.inf else 0.0

    def checked(
        self, indices: ArrayLike, values: ArrayLike, name: str = "values"
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return indices and weights as arrays, or raise an error that names the wrong one. O(size)."""
        where, what = super().checked(indices, values, name)
        self.require_bounded(name, what)
        return where, what

    def require_bounded(self, name: str, values: NDArray[np.float64]) -> None:
        """Raise a ``ValueError`` if the sum of n such weights might overflow. O(size)."""
        most = _LARGEST_SUM / self.n
        refuse_unless(values <= most, values, name, f"must be at most {most:g}, so that the sum does not overflow")

    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Replace weights without any checks. O(log N) each, with base 16."""
        replace(self._arrays, indices, values)

    def _checked(self, floor: float) -> float:
        if super()._checked(floor) > 0.0:
            raise ValueError(f"floor = {floor}: a WeightTree takes none; add a constant to its weights instead")
        return 0.0

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        total = self.total
        return self.values / total if total > 0.0 else np.full(self.n, 1.0 / self.n)

    def _draw(self, floor: float, *arguments: Any) -> bool:
        return bool(draw(self._arrays, self.n, *arguments))

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        assert (self.values >= 0.0).all() and np.isfinite(self.values).all(), "a weight is out of range"
        again = WeightTree(self.values)
        assert np.array_equal(self._arrays.sums, again._arrays.sums), "a sum differs from that of a new tree"
        assert np.array_equal(self._arrays.least, again._arrays.least), "a minimum differs from that of a new tree"
        exact = math.fsum(self.values.tolist())
        assert abs(self.total - exact) <= 1e-13 * exact, "the total is wrong"
        positive = self.values[self.values > 0.0]
        assert self.minimum == (positive.min() if positive.size else 0.0), "the minimum is wrong"


# --- kernels -------------------------------------------------------------------------------


@inlined
def _four(masses, first):
    """Return the sum of four numbers in a row, in their order."""
    row = masses[first : first + 4]
    return row[0] + row[1] + row[2] + row[3]


@inlined
def _sum_up(sums, starts, level, node):
    """Compute the sum of a node again from its children, in the order in which `_go_down` skips them."""
    first = starts[level - 1] + node * _CHILDREN
    total = _four(sums, first) + _four(sums, first + 4) + _four(sums, first + 8) + _four(sums, first + 12)
    sums[starts[level] + node] = total


@inlined
def _smallest(sums, least, starts, level, node):
    """Return the smallest weight above zero below a node, from its children."""
    first, smallest = starts[level - 1] + node * _CHILDREN, np.inf
    for child in range(first, first + _CHILDREN):
        value = _or_infinite(sums[child]) if level == 1 else least[child - starts[1]]
        smallest = min(smallest, value)
    return smallest


@inlined
def _or_infinite(value):
    return value if value > 0.0 else np.inf


@lean
def _build(arrays):
    """Compute all nodes from the weights."""
    sums, least, starts = arrays
    for level in range(1, len(starts)):
        for node in range((starts[level] - starts[level - 1]) // _CHILDREN):
            _sum_up(sums, starts, level, node)
            least[starts[level] - starts[1] + node] = _smallest(sums, least, starts, level, node)


@lean
def replace(arrays, indices, values):
    """Replace some weights; the last one of a repeated index counts."""
    sums, least, starts = arrays
    for j in range(len(indices)):
        old, new = _or_infinite(sums[indices[j]]), _or_infinite(values[j])
        sums[indices[j]] = values[j]
        for level in range(1, len(starts)):  # up to the first node whose minimum stays as it is
            node = indices[j] >> (_BITS * level)
            place = starts[level] - starts[1] + node
            before = least[place]
            if new > before and old == before:
                new = _smallest(sums, least, starts, level, node)
            elif new > before:
                break
            least[place] = new
            if new == before:
                break
            old = before
    for level in range(1, len(starts)):
        for j in range(len(indices)):
            _sum_up(sums, starts, level, indices[j] >> (_BITS * level))


@inlined
def _below(x, mass):
    """Return x, or the largest number below a mass, if x is not below it."""
    return x if x < mass else np.nextafter(mass, 0.0)


@inlined
def _choose(x, first, second, third, fourth):
    """Return which of four masses contains x, and what is left of x there; without branches."""
    chosen, skipped, mass = 0, 0.0, first
    if first <= x:
        chosen, skipped, mass = 1, first, second
    if first + second <= x:
        chosen, skipped, mass = 2, first + second, third
    if first + second + third <= x:
        chosen, skipped, mass = 3, first + second + third, fourth
    return chosen, _below(x - skipped, mass)


@lean
def _go_down(sums, starts, indices, left):
    """Move each draw from the root to a weight: ``left`` is the number to skip, below the sum of its node.

    Returns a number above 0 that depends on every load: a caller that ignores it has the loads removed.
    """
    touched = 0.0
    for level in range(len(starts) - 2, -1, -1):
        for j in range(len(indices)):  # these loads do not wait for each other
            first = starts[level] + indices[j] * _CHILDREN
            touched += sums[first] + sums[first + _CHILDREN // 2]
        for j in range(len(indices)):
            first = starts[level] + indices[j] * _CHILDREN
            four, x = _choose(
                left[j], _four(sums, first), _four(sums, first + 4), _four(sums, first + 8), _four(sums, first + 12)
            )
            row = sums[first + 4 * four : first + 4 * four + 4]
            one, left[j] = _choose(x, row[0], row[1], row[2], row[3])
            indices[j] = indices[j] * _CHILDREN + 4 * four + one
    return touched


@lean
def _scan(sums, n, total, uniform):
    """Draw an index from a total below `_SMALL`, in larger units, in O(N)."""
    x, last = uniform * (total * _UNITS), 0
    for i in range(n):
        mass = sums[i] * _UNITS
        if x < mass:
            return i
        x -= mass
        if mass > 0.0:
            last = i
    return last


@lean
def _draw_together(arrays, source, indices, left):
    """Draw with replacement, some at a time, by `_go_down`."""
    touched, total = 0.0, arrays.sums[-1]
    for first in range(0, len(indices), _TOGETHER):
        last = min(first + _TOGETHER, len(indices))
        for j in range(first, last):
            indices[j], left[j] = 0, _below(next_uniform(source) * total, total)
        touched += _go_down(arrays.sums, arrays.starts, indices[first:last], left[first:last])
    return touched


@kernel
def draw(arrays, n, replacement, source, indices, probabilities, left):
    """Draw indices, without replacement also what is left before each; return whether there are enough."""
    sums, total, size = arrays.sums, arrays.sums[-1], len(indices)
    if total == 0.0:
        if not replacement and size > n:
            return False
        draw_evenly(n, source, indices, replacement)
        for j in range(size):
            probabilities[j], left[j] = 1.0 / n, 1.0 - j / n
        return True
    found, touched = size, 0.0
    if replacement:
        if total < _SMALL:
            for j in range(size):
                indices[j] = _scan(sums, n, total, next_uniform(source))
        else:
            touched = _draw_together(arrays, source, indices, probabilities)
        for j in range(size):
            probabilities[j] = sums[indices[j]] / total
    else:
        found = take(arrays, source, indices, probabilities, left)
        replace(arrays, indices[:found], probabilities[:found])
        for j in range(found):
            probabilities[j] /= total
            left[j] /= total
    return found == size and touched >= 0.0


@lean
def take(arrays, source, indices, values, left):
    """Draw indices and set the weight of each to zero; return how many could be drawn.

    Fills the weights that they had, and the sum of all weights that were left before each draw.
    """
    for j in range(len(indices)):
        left[j] = arrays.sums[-1]
        if left[j] == 0.0:
            return j
        one, rest = indices[j : j + 1], values[j : j + 1]
        if left[j] < _SMALL:
            one[0] = _scan(arrays.sums, arrays.starts[1], left[j], next_uniform(source))
        else:
            one[0], rest[0] = 0, _below(next_uniform(source) * left[j], left[j])
            _go_down(arrays.sums, arrays.starts, one, rest)
        value = arrays.sums[one[0]]
        rest[0] = 0.0
        replace(arrays, one, rest)
        values[j] = value
    return len(indices)
