"""Draws in proportion to weights that change, in constant time, and exactly.

`Buckets` keeps 24 significant bits, which is enough for norms that are only remembered. The rules of
other samplers accumulate. Here each weight is a float64, by index, and the weight rounded **up** to 24
bits is in the arrays of a `Buckets`, from which to propose. A proposal is accepted with probability
(weight) / (its rounded value), which is at least 1 - 2^-22, so that accepted draws are exactly in
proportion to the weights.

Proposals have a smaller range than float64. They are scaled by a power of two, the **shift**. If a weight
becomes too large for it, or most proposals are rejected, all of them are computed again with another one.

The sum of the weights is kept by exponent. The 53-bit mantissas are split into two halves whose sums are
integers, so that rounding errors do not add up.

*Example.* Of the weights 1/3 and 2/3, the first is rounded up to 0.33333337. It is proposed a little too
often, and then rejected once in ten million times.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import inlined, kernel
from avare._randomness import Source, next_uniform
from avare._state import State
from avare.structures import buckets as proposing
from avare.structures.base import Memory, array_of, number_of, refuse_unless
from avare.structures.buckets import Buckets
from avare.structures.cells import MAX_EXAMPLES, encode_all, members_of
from avare.structures.evenly import draw_below, draw_evenly, enter, hash_table
from avare.structures.race import race

_EXPONENTS = 2048  # of float64, biased
_HALF_BITS = 26
_LOW_MASK = (1 << _HALF_BITS) - 1
_TARGET = 100  # the exponent of the largest proposal: far from both ends of the range
_LARGEST_PROPOSAL = 2.0**127
_LARGEST_SHIFT = _TARGET + 1100  # for the smallest float64


class _Arrays(NamedTuple):
    """Everything the kernels read and write."""

    proposals: Any  # the arrays of `Buckets`: scaled weights, rounded up
    values: NDArray[np.float64]  # the weights, by index
    sums: NDArray[np.int64]  # by exponent: sums of the upper and the lower half of mantissas
    span: NDArray[np.int64]  # the lowest and the highest exponent ever used
    shift: NDArray[np.int64]  # one number: a proposal is its weight times 2^shift


class Weights(Memory):
    """n weights, from which to draw in constant time.

    Memory: 21 bytes per example, and about 8 MB.

    >>> import numpy as np
    >>> from avare._randomness import uniform_source
    >>> weights = Weights([1.0, 0.0, 3.0])
    >>> weights.probabilities()
    array([0.25, 0.  , 0.75])
    >>> weights.update([1, 2], [0.5, 0.5])
    >>> weights.total
    2.0
    >>> generator = np.random.default_rng(0)
    >>> set(weights.draw(1000, replacement=True, source=uniform_source(generator))[0].tolist())
    {0, 1, 2}
    """

    _arrays: _Arrays

    def __init__(self, values: ArrayLike) -> None:
        """Build from weights, finite and not negative. O(N)."""
        checked = validation.nonnegative("values", values)
        self._set_up(Buckets.zeros(validation.integer("n", len(checked), at_least=1, at_most=MAX_EXAMPLES)))
        self.reset(checked)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> "Weights":
        """Build from what `state` returned for n examples; a damaged state raises a ``ValueError``. O(N)."""
        values = array_of(state, "weights_values", (n,), np.float64)
        refuse_unless(np.isfinite(values) & (values >= 0.0), state, "weights_values", "must be finite and not negative")
        shift = number_of(state, "weights_shift", -_LARGEST_SHIFT, _LARGEST_SHIFT)
        self = cls.__new__(cls)
        self._set_up(Buckets.from_state({"memory": members_of(state, "weights_members", n)}, n))
        self._arrays.values[:] = values
        self._arrays.shift[0] = shift
        refuse_unless(self._buckets.norms() == self._proposals(), state, "weights_members", "does not fit the weights")
        _sum_up(self._arrays)
        return self

    def _set_up(self, buckets: Buckets) -> None:
        self.n, self._buckets = buckets.n, buckets
        self._arrays = _Arrays(
            proposals=buckets.arrays,
            values=np.empty(self.n, dtype=np.float64),
            sums=np.empty((_EXPONENTS, 2), dtype=np.int64),
            span=np.empty(2, dtype=np.int64),
            shift=np.zeros(1, dtype=np.int64),
        )

    def state(self) -> State:
        """Return the weights, and the proposals with their scale. O(N)."""
        return {
            "weights_values": self._arrays.values.copy(),
            "weights_shift": int(self._arrays.shift[0]),
            "weights_members": self._buckets.state()["memory"],
        }

    @property
    def values(self) -> NDArray[np.float64]:
        """The weights, by index; do not write to them. O(1)."""
        return self._arrays.values

    @property
    def total(self) -> float:
        """The sum of the weights, up to a few units in its last place. O(1)."""
        return float(_total(self._arrays))

    def reset(self, values: ArrayLike) -> None:
        """Replace all weights, finite and not negative. O(N)."""
        self._arrays.values[:] = values
        _sum_up(self._arrays)
        _rescale(self._arrays)

    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Replace weights without any checks. O(1) each."""
        set_weights(self._arrays, indices, values)

    def draw_smoothed(
        self, size: int, share: float, source: Source
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """Draw from the weights mixed with a share of the uniform distribution, with replacement. O(size).

        Returns the indices, the probability of each in the mixture, and which came from the uniform
        part: all of them, if no weight is above zero.
        """
        indices = np.empty(size, dtype=np.int64)
        probabilities = np.empty(size, dtype=np.float64)
        uniform = np.empty(size, dtype=np.bool_)
        draw_smoothed_into(self._arrays, share, source, indices, probabilities, uniform)
        return indices, probabilities, uniform

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        total = self.total
        return self.values / total if total > 0.0 else np.full(self.n, 1.0 / self.n)

    def _kernel(self, floor: float, replacement: bool) -> tuple[Any, tuple[Any, ...]]:
        return draw_with_replacement if replacement else draw_without_replacement, (self._arrays,)

    def _proposals(self) -> NDArray[np.float64]:
        """Return the proposals that belong to the weights, by index."""
        return Buckets(_raised(self._arrays)).norms()

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        assert (self.values >= 0.0).all() and np.isfinite(self.values).all(), "a weight is out of range"
        self._buckets.check()
        proposed = self._proposals()
        assert np.array_equal(self._buckets.norms(), proposed), "proposals and weights differ"
        assert (proposed >= np.ldexp(self.values, self._arrays.shift[0])).all(), "a proposal is below its weight"
        exact = math.fsum(self.values.tolist())
        assert abs(self.total - exact) <= 1e-14 * exact, "the sum is wrong"


# --- weights -------------------------------------------------------------------------------


@inlined
def _add(sums, span, value, sign):
    """Add a weight to the sums of its exponent (sign = 1), or subtract it (-1)."""
    if value == 0.0:
        return
    bits = np.float64(value).view(np.int64)
    exponent = bits >> 52
    mantissa = bits & ((1 << 52) - 1)
    if exponent == 0:
        exponent = np.int64(1)  # subnormal: the same unit, without the implicit bit
    else:
        mantissa |= 1 << 52
    sums[exponent, 0] += sign * (mantissa >> _HALF_BITS)
    sums[exponent, 1] += sign * (mantissa & _LOW_MASK)
    span[0] = min(span[0], exponent)
    span[1] = max(span[1], exponent)


@kernel
def _sum_up(arrays):
    """Compute all sums again."""
    arrays.sums[:] = 0
    arrays.span[0], arrays.span[1] = _EXPONENTS, 0
    for i in range(len(arrays.values)):
        _add(arrays.sums, arrays.span, arrays.values[i], 1)


@kernel
def _total(arrays):
    """Sum from the smallest exponents up, so that small weights are not lost one by one."""
    sums, span = arrays.sums, arrays.span
    total = 0.0
    for exponent in range(span[0], span[1] + 1):
        if sums[exponent, 0] != 0 or sums[exponent, 1] != 0:
            total += math.ldexp(np.float64(sums[exponent, 1]), exponent - 1075)
            total += math.ldexp(np.float64(sums[exponent, 0]), exponent - 1075 + _HALF_BITS)
    return total


@kernel
def set_weights(arrays, indices, values):
    """Replace some weights; the last one of a repeated index counts."""
    raised = np.empty_like(values)
    highest = 0.0
    for j in range(len(indices)):
        _add(arrays.sums, arrays.span, arrays.values[indices[j]], -1)
        arrays.values[indices[j]] = values[j]
        _add(arrays.sums, arrays.span, values[j], 1)
        raised[j] = _raise(values[j], int(arrays.shift[0]))
        highest = max(highest, raised[j])
    if highest > _LARGEST_PROPOSAL:
        _rescale(arrays)
    else:
        proposing.store(arrays.proposals, indices, raised)


# --- proposals -----------------------------------------------------------------------------


@inlined
def _raise(value, shift):
    """Return a number that `Buckets` keeps as at least the scaled weight."""
    if value == 0.0:
        return 0.0
    if math.frexp(value)[1] + shift > 1000:  # out of range: any number above all proposals
        return np.inf
    return max(math.ldexp(value * (1.0 + 2.0**-23), shift), 5e-324)


@kernel
def _raised(arrays):
    """Return what to propose from, by index."""
    raised = np.empty_like(arrays.values)
    for index in range(len(raised)):
        raised[index] = _raise(arrays.values[index], int(arrays.shift[0]))
    return raised


@kernel
def _rescale(arrays):
    """Scale the proposals to the largest weight, and compute all of them again."""
    largest = arrays.values.max()
    arrays.shift[0] = _TARGET - math.frexp(largest)[1] if largest > 0.0 else 0
    proposing.clear(arrays.proposals)
    proposing.load(arrays.proposals, encode_all(_raised(arrays)))


# --- draws ---------------------------------------------------------------------------------


@kernel
def draw_smoothed_into(arrays, share, source, indices, probabilities, uniform):
    """Draw from the weights mixed with a share of the uniform distribution, with replacement.

    Fills the indices, the probability of each in the mixture, and which came from the uniform part.
    """
    n, total = len(arrays.values), _total(arrays)
    while not _draw_mixed(arrays, total, share, source, indices, uniform):
        _rescale(arrays)  # the largest weights were replaced, and the scale is too large for the others
    for j in range(len(indices)):
        weight = arrays.values[indices[j]] / total if total > 0.0 else 1.0 / n
        probabilities[j] = (1.0 - share) * weight + share / n


@kernel
def _draw_mixed(arrays, total, share, source, indices, uniform):
    """Fill indices and uniform; return False if most proposals were rejected."""
    n, size, proposals = len(arrays.values), len(indices), arrays.proposals
    count = 0
    for j in range(size):
        uniform[j] = total == 0.0 or (share > 0.0 and next_uniform(source) < share)
        if not uniform[j]:
            count += 1
    law = proposing.law_of(proposals, proposing.solve(proposals, 0.0))
    slots, found, masses = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.float64)
    proposing.propose(proposals, law, source, slots, found, masses)
    rejected, k = 0, 0
    for j in range(size):
        if uniform[j]:
            indices[j] = draw_below(n, source)
        else:
            while next_uniform(source) * masses[k] >= math.ldexp(arrays.values[found[k]], int(arrays.shift[0])):
                rejected += 1
                if rejected > 2 * size + 64:
                    return False
                proposing.propose(proposals, law, source, slots[k : k + 1], found[k : k + 1], masses[k : k + 1])
            indices[j] = found[k]
            k += 1
    return True


@kernel
def draw_with_replacement(arrays, source, indices, probabilities):
    """Draw indices, each from all; return True."""
    draw_smoothed_into(arrays, 0.0, source, indices, probabilities, np.empty(len(indices), dtype=np.bool_))
    return True


@kernel
def draw_without_replacement(arrays, source, indices, probabilities):
    """Draw distinct indices; return whether there are enough.

    Repeated draws are dropped, in O(size), until half of the mass is drawn. The rest comes from a
    `race` of all that are left, in O(N): unlike proposals, it is exact for weights of any range.
    """
    n, size, total = len(arrays.values), len(indices), _total(arrays)
    if total == 0.0:
        if size > n:
            return False
        draw_evenly(n, source, indices, False)
    done, mass = 0, 0.0
    table = hash_table(size)
    while total > 0.0 and done < size and mass <= 0.5 * total:
        wanted = size - done
        found = np.empty(wanted + wanted // 4 + 8, dtype=np.int64)  # some will be dropped
        draw_with_replacement(arrays, source, found, np.empty(len(found), dtype=np.float64))
        for j in range(len(found)):
            if done < size and enter(table, found[j]):
                indices[done] = found[j]
                mass += arrays.values[found[j]]
                done += 1
    if total > 0.0 and done < size and not _race(arrays, source, indices, done):
        return False
    for j in range(size):
        probabilities[j] = arrays.values[indices[j]] / total if total > 0.0 else 1.0 / n
    return True


@kernel
def _race(arrays, source, indices, done):
    """Draw the indices after the first ``done`` from all others; return whether there are enough."""
    left = arrays.values.copy()
    for j in range(done):
        left[indices[j]] = 0.0
    exponentials = np.empty(np.count_nonzero(left), dtype=np.float64)
    for j in range(len(exponentials)):
        exponentials[j] = -math.log1p(-next_uniform(source))
    return race(left, exponentials, indices[done:])
