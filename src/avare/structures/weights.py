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
from avare._compilation import inlined, kernel, lean, merged
from avare._randomness import next_uniform
from avare.batch import LITTLE
from avare.state import Field, State, refuse_unless
from avare.structures import buckets as proposing
from avare.structures.base import Memory
from avare.structures.buckets import Buckets
from avare.structures.cells import MAX_EXAMPLES, ONE
from avare.structures.uniform_draws import draw_below, draw_evenly, enter, hash_table
from avare.structures.weighted_draws import race

_EXPONENTS = 2048  # of float64, biased
_HALF_BITS = 26
_LOW_MASK = (1 << _HALF_BITS) - 1
_TARGET = 100  # the exponent of the largest proposal: far from both ends of the range
_LARGEST_PROPOSAL = 2.0**127
_LARGEST_SHIFT = _TARGET + 1100  # for the smallest float64
_LARGEST_SUM = 2.0**1023


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
    >>> indices, p = weights.draw(1000, replacement=True, source=uniform_source(generator))
    >>> set(indices.tolist())
    {0, 1, 2}
    """

    _arrays: _Arrays

    def __init__(self, values: ArrayLike) -> None:
        """Build from weights, finite and not negative. O(N)."""
        checked = validation.nonnegative("values", values)
        self.n = validation.integer("n", len(checked), at_least=1, at_most=MAX_EXAMPLES)
        _refuse_overflow("values", checked)
        self.reset(checked)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int) -> "Weights":
        """Build from what `state` returned for n examples; a damaged state raises a ``ValueError``. O(N)."""
        values = Field(np.float64, (n,), at_least=0.0).read(state, "weights_values")
        _refuse_overflow("state['weights_values']", values)
        shift = Field(int, at_least=-_LARGEST_SHIFT, at_most=_LARGEST_SHIFT).read(state, "weights_shift")
        buckets = Buckets.from_state(state, n, "weights_members")
        raised = _raised(values, shift)
        refuse_unless(raised <= _LARGEST_PROPOSAL, values, "state['weights_values']", "too large for its shift")
        fits = buckets.norms() == Buckets(raised).norms()
        refuse_unless(fits, values, "state['weights_values']", "does not fit state['weights_members']")
        self = cls.__new__(cls)
        self.n = n
        self._set_up(values, shift, buckets)
        return self

    def _set_up(self, values: NDArray[np.float64], shift: int, buckets: Buckets) -> None:
        self._buckets = buckets
        self._arrays = _Arrays(
            proposals=buckets.arrays,
            values=values.copy(),
            sums=np.zeros((_EXPONENTS, 2), dtype=np.int64),
            span=np.array([_EXPONENTS, 0], dtype=np.int64),
            shift=np.array([shift], dtype=np.int64),
        )
        _sum_up(self._arrays)

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
        return float(_total(self._arrays.sums, self._arrays.span))

    def reset(self, values: NDArray[np.float64]) -> None:
        """Replace all weights, finite and not negative. O(N)."""
        shift = int(_shift_for(values))
        self._set_up(values, shift, Buckets(_raised(values, shift)))

    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Replace weights without any checks. O(1) each."""
        set_weights(self._arrays, indices, values)

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        total = self.total
        return self.values / total if total > 0.0 else np.full(self.n, 1.0 / self.n)

    def _draw(self, floor: float, *arguments: Any) -> bool:
        return bool(draw(self._arrays, *arguments))

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        assert (self.values >= 0.0).all() and np.isfinite(self.values).all(), "a weight is out of range"
        self._buckets.check()
        proposed = Buckets(_raised(self.values, int(self._arrays.shift[0]))).norms()
        assert np.array_equal(self._buckets.norms(), proposed), "proposals and weights differ"
        assert (proposed >= np.ldexp(self.values, self._arrays.shift[0])).all(), "a proposal is below its weight"
        exact = math.fsum(self.values.tolist())
        assert abs(self.total - exact) <= 1e-14 * exact, "the sum is wrong"


def _refuse_overflow(name: str, values: NDArray[np.float64]) -> None:
    most = _LARGEST_SUM / len(values)
    refuse_unless(values <= most, values, name, f"must be at most {most:g}, so that the sum does not overflow")


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
    """Add all weights to sums that are zero."""
    for i in range(len(arrays.values)):
        _add(arrays.sums, arrays.span, arrays.values[i], ONE)


@inlined
def _total(sums, span):
    """Sum from the smallest exponents up, so that small weights are not lost one by one."""
    total = 0.0
    for exponent in range(span[0], span[1] + 1):
        if sums[exponent, 0] != 0 or sums[exponent, 1] != 0:
            total += math.ldexp(np.float64(sums[exponent, 1]), exponent - 1075)
            total += math.ldexp(np.float64(sums[exponent, 0]), exponent - 1075 + _HALF_BITS)
    return total


@kernel
def set_weights(arrays, indices, values):
    """Replace some weights; the last one of a repeated index counts."""
    raised, highest = np.empty_like(values), 0.0
    for j in range(len(indices)):
        _add(arrays.sums, arrays.span, arrays.values[indices[j]], -ONE)
        arrays.values[indices[j]] = values[j]
        _add(arrays.sums, arrays.span, values[j], ONE)
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
def _raised(values, shift):
    """Return the numbers to propose from."""
    raised = np.empty_like(values)
    for index in range(len(raised)):
        raised[index] = _raise(values[index], shift)
    return raised


@kernel
def _shift_for(values):
    """Return the shift that suits the largest weight."""
    largest = values.max()
    return _TARGET - math.frexp(largest)[1] if largest > 0.0 else 0


@kernel
def _rescale(arrays):
    """Scale the proposals to the largest weight. O(N)."""
    arrays.shift[0] = _shift_for(arrays.values)
    raised = _raised(arrays.values, int(arrays.shift[0]))
    proposing.store(arrays.proposals, np.arange(len(raised)), raised)


# --- draws ---------------------------------------------------------------------------------


@merged
def draw_smoothed_into(arrays, share, source, indices, probabilities, uniform):
    """Draw from the weights mixed with a share of the uniform distribution, with replacement.

    Fills the indices, the probability of each in the mixture, and which came from the uniform part: all of them, if no
    weight is above zero.
    """
    while not _draw_mixed(arrays, share, source, indices, probabilities, uniform):
        _rescale(arrays)  # the largest weights were replaced, and the scale is too large for the others


@lean
def _draw_mixed(arrays, share, source, indices, probabilities, uniform):
    """Fill indices, probabilities and uniform; return False if most proposals were rejected."""
    n, size, proposals, total = len(arrays.values), len(indices), arrays.proposals, _total(arrays.sums, arrays.span)
    start = 0
    for j in range(size):
        uniform[j] = total == 0.0 or (share > 0.0 and next_uniform(source) < share)
        start += uniform[j]
    # Proposals are written to the end of the arrays: at least as many places are left there as draws to come.
    found, masses = indices[start:], probabilities[start:]
    law = proposing.weigh(proposals, proposing.solve(proposals, 0.0))
    stop, k, j, rejected = len(found), 0, 0, 0
    while j < size:
        if k < stop:  # all at first, then one after each rejection
            proposing.propose(proposals, law, source, found[k:stop], found[k:stop], masses[k:stop])
            stop = k
        if uniform[j]:
            indices[j] = draw_below(n, source)
            j += 1
        elif next_uniform(source) * masses[k] < math.ldexp(arrays.values[found[k]], int(arrays.shift[0])):
            indices[j] = found[k]
            j += 1
            k += 1
        else:
            rejected += 1
            if rejected > 2 * size + 64:
                return False
            stop = k + 1
    for j in range(size):
        weight = arrays.values[indices[j]] / total if total > 0.0 else 1.0 / n
        probabilities[j] = (1.0 - share) * weight + share / n
    return True


@kernel
def draw(arrays, replacement, source, indices, probabilities, left):
    """Draw indices, without replacement also what is left before each; return whether there are enough."""
    if not replacement:
        return _draw_distinct(arrays, source, indices, probabilities, left)
    draw_smoothed_into(arrays, 0.0, source, indices, probabilities, np.empty(len(indices), dtype=np.bool_))
    return True


@kernel
def _draw_distinct(arrays, source, indices, probabilities, left):
    """Draw distinct indices; return whether there are enough weights above zero.

    Repeated draws are dropped, in O(size), until half of the mass is drawn. The rest comes from a
    `race` of all that are left, in O(N): unlike proposals, it is exact for weights of any range.
    """
    values, size, total = arrays.values, len(indices), _total(arrays.sums, arrays.span)
    if total == 0.0:
        if size > len(values):
            return False
        draw_evenly(len(values), source, indices, False)
        for j in range(size):
            probabilities[j], left[j] = 1.0 / len(values), 1.0 - j / len(values)
        return True
    table = hash_table(size)
    done, mass = np.int64(0), 0.0
    while done < size and mass <= 0.5 * total:
        drawn = size - done + (size - done) // 4 + 8  # some will be dropped
        found, shares, uniform = np.empty(drawn, np.int64), np.empty(drawn, np.float64), np.empty(drawn, np.bool_)
        draw_smoothed_into(arrays, 0.0, source, found, shares, uniform)
        for j in range(drawn):
            if done < size and enter(table, found[j]):
                indices[done] = found[j]
                mass += values[found[j]]
                done += 1
    if done < size and not _draw_rest(values, source, indices, done):
        return False
    rest = 1.0
    for j in range(size):
        left[j] = rest
        probabilities[j] = values[indices[j]] / total
        rest -= probabilities[j]
    if size > 0 and left[size - 1] < LITTLE:
        _sum_left(arrays, indices, total, left)
    return True


@inlined
def _sum_left(arrays, indices, total, left):
    """Set the mass left before each draw, summed from the last one back."""
    for index in indices:
        _add(arrays.sums, arrays.span, arrays.values[index], -ONE)
    rest = _total(arrays.sums, arrays.span)
    for j in range(len(indices) - 1, -1, -1):
        rest += arrays.values[indices[j]]
        left[j] = rest / total
    for index in indices:
        _add(arrays.sums, arrays.span, arrays.values[index], ONE)


@kernel
def _draw_rest(values, source, indices, done):
    """Draw the indices after the first ``done`` from all others; return whether there are enough."""
    left = values.copy()
    for j in range(done):
        left[indices[j]] = 0.0
    exponentials = np.empty(np.count_nonzero(left), dtype=np.float64)
    for j in range(len(exponentials)):
        exponentials[j] = -math.log1p(-next_uniform(source))
    return race(left, exponentials, indices[done:])
