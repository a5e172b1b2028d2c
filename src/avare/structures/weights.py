"""Draws in proportion to weights that change, in constant time, and exactly.

`Buckets` keeps 24 significant bits, which is enough for norms that are only remembered. The
rules of other samplers accumulate: here each weight is a float64, by index, and its 24 bits,
rounded **up**, stand in a `Buckets` from which to propose. A proposal is accepted with
probability (weight) / (its rounded value), which is at least 1 - 2^-22, so that accepted draws
are exactly in proportion to the weights.

The sum of the weights is kept by exponent: 53-bit mantissas are split in two halves whose sums
are integers, so that nothing drifts.

*Example.* Of the weights 1/3 and 2/3, the first is rounded up to 0.33333337 and drawn a little
too often, and then rejected once in ten million times.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._compilation import inlined, kernel
from avare._randomness import next_uniform, uniform_source
from avare.structures import buckets as proposals
from avare.structures.buckets import Buckets
from avare.structures.cells import CELL_SHIFT

_EXPONENTS = 2048  # of float64, biased
_HALF_BITS = 26
_LOW_MASK = (1 << _HALF_BITS) - 1
_TARGET = 100  # the exponent that the largest weight is proposed with: far from both ends
_LARGEST_PROPOSAL = 2.0**127


class _Arrays(NamedTuple):
    """Everything the kernels read and write."""

    proposals: Any  # the arrays of a `Buckets` with the scaled weights, rounded up
    values: NDArray[np.float64]
    sums: NDArray[np.int64]  # by exponent: sums of the upper and lower halves of the mantissas
    span: NDArray[np.int64]  # lowest and highest exponent ever used
    shift: NDArray[np.int64]  # one number: weights are proposed times 2^shift


class Weights:
    """n weights, from which to draw in constant time.

    Memory: 21 bytes an example, and about 8 MB.

    >>> import numpy as np
    >>> weights = Weights([1.0, 0.0, 3.0])
    >>> weights.probabilities()
    array([0.25, 0.  , 0.75])
    >>> weights.set([1, 2], [0.5, 0.5])
    >>> weights.total
    2.0
    >>> set(weights.draw(1000, np.random.default_rng(0)).tolist())
    {0, 1, 2}
    """

    def __init__(self, values: ArrayLike) -> None:
        """Build from weights, finite and not negative. O(N)."""
        self.reset(values)

    def reset(self, values: ArrayLike) -> None:
        """Replace all weights. O(N)."""
        self._values = np.array(values, dtype=np.float64)
        self.n = len(self._values)
        self._sums = np.zeros((_EXPONENTS, 2), dtype=np.int64)
        self._span = np.array([_EXPONENTS, 0], dtype=np.int64)
        _sum_up(self._sums, self._span, self._values)
        self._shift = np.array([_shift_for(self._values)], dtype=np.int64)
        self._buckets = Buckets(_raised(self._values, int(self._shift[0])))

    @property
    def arrays(self) -> _Arrays:
        """What `draw_mixed`, `draw_without_replacement` and `store` take, inside other kernels. O(1)."""
        return _Arrays(self._buckets.arrays, self._values, self._sums, self._span, self._shift)

    @property
    def values(self) -> NDArray[np.float64]:
        """The weights, by index; not to be written to. O(1)."""
        return self._values

    @property
    def total(self) -> float:
        """The sum of the weights, to a few units in its last place. O(1)."""
        return float(_total(self._sums, self._span))

    def probabilities(self) -> NDArray[np.float64]:
        """Each weight's share; uniform if all are zero. O(N)."""
        total = self.total
        return self._values / total if total > 0.0 else np.full(self.n, 1.0 / self.n)

    def set(self, indices: ArrayLike, values: ArrayLike) -> None:
        """Replace some weights; of a repeated index, the last counts. O(1) each."""
        where = np.ascontiguousarray(indices, dtype=np.int64)
        what = np.ascontiguousarray(values, dtype=np.float64)
        store(self.arrays, where, what)

    def draw(self, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw indices in proportion to the weights, with replacement. O(size)."""
        return _draw(self.arrays, uniform_source(generator), size)

    def draw_distinct(self, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw distinct indices, one after another, each from what is left. O(size)."""
        indices = np.empty(size, dtype=np.int64)
        if not draw_without_replacement(self.arrays, uniform_source(generator), indices, np.empty(size)):
            raise ValueError(f"size = {size} draws without replacement, but fewer weights are above zero")
        return indices

    def state(self) -> dict[str, Any]:
        """All there is to save, as numbers and arrays. O(N)."""
        return {
            "weights_values": self._values.copy(),
            "weights_shift": int(self._shift[0]),
            "weights_members": self._buckets.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], n: int) -> "Weights":
        """Build from what `state` gave for n examples; anything else is a ``ValueError``. O(N)."""
        values, members, shift = state["weights_values"], state["weights_members"], state["weights_shift"]
        if values.shape != (n,) or values.dtype != np.float64:
            raise ValueError(f"weights have shape {values.shape} and dtype {values.dtype}: must be {n} float64")
        self = cls(values)
        self._shift[0] = shift
        self._buckets = Buckets.from_state(members, n)
        return self

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        self._buckets.check()
        assert (self._values >= 0.0).all() and np.isfinite(self._values).all(), "a weight is out of range"
        proposed = Buckets(_raised(self._values, int(self._shift[0]))).norms()
        assert np.array_equal(self._buckets.norms(), proposed), "proposals and weights differ"
        assert (proposed >= np.ldexp(self._values, self._shift[0])).all(), "a proposal is below its weight"
        exact = math.fsum(self._values.tolist())
        assert abs(self.total - exact) <= 1e-14 * exact, "the sum has drifted"


# --- kernels -------------------------------------------------------------------------------


@inlined
def _add(sums, span, value, sign):
    """Add a weight to the sums of its exponent (sign = 1), or take it out (-1)."""
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
def _sum_up(sums, span, values):
    for i in range(len(values)):
        _add(sums, span, values[i], 1)


@kernel
def _total(sums, span):
    """From the smallest exponents up, so that nothing small is lost before it has added up."""
    total = 0.0
    for exponent in range(span[0], span[1] + 1):
        if sums[exponent, 0] != 0 or sums[exponent, 1] != 0:
            total += math.ldexp(np.float64(sums[exponent, 1]), exponent - 1075)
            total += math.ldexp(np.float64(sums[exponent, 0]), exponent - 1075 + _HALF_BITS)
    return total


@inlined
def _raise(value, shift):
    """A number that `Buckets` keeps as at least the scaled weight."""
    if value == 0.0:
        return 0.0
    if math.frexp(value)[1] + shift > 1000:  # out of scale: anything above all proposals will do
        return np.inf
    return max(math.ldexp(value * (1.0 + 2.0**-23), shift), 5e-324)


@kernel
def _raised(values, shift):
    raised = np.empty_like(values)
    for j in range(len(values)):
        raised[j] = _raise(values[j], shift)
    return raised


@kernel
def _shift_for(values):
    """The shift that brings the largest weight far from both ends."""
    largest = values.max()
    return _TARGET - math.frexp(largest)[1] if largest > 0.0 else 0


@kernel
def _rescale(arrays):
    """Propose all weights at a scale that suits them. O(N)."""
    shift = _shift_for(arrays.values)
    proposals.store(arrays.proposals, np.arange(len(arrays.values)), _raised(arrays.values, shift))
    arrays.shift[0] = shift


@kernel
def store(arrays, indices, news):
    """Replace some weights, one after another. O(1) each; O(N) where all must be scaled anew."""
    raised, shift = np.empty_like(news), int(arrays.shift[0])
    highest = 0.0
    for j in range(len(indices)):
        _add(arrays.sums, arrays.span, arrays.values[indices[j]], -1)
        arrays.values[indices[j]] = news[j]
        _add(arrays.sums, arrays.span, news[j], 1)
        raised[j] = _raise(news[j], shift)
        highest = max(highest, raised[j])
    if highest > _LARGEST_PROPOSAL:
        _rescale(arrays)
    else:
        proposals.store(arrays.proposals, indices, raised)


@kernel
def draw_mixed(arrays, share, source, indices, probabilities, uniform):
    """Draw from the weights mixed with a share of the uniform distribution, with replacement.

    Sets the indices, the probability of each in the mixture, and which came from the uniform
    part: all, if no weight is above zero.
    """
    while not _try_to_draw(arrays, share, source, indices, probabilities, uniform):
        _rescale(arrays)  # the largest weights have gone, and the rest are out of scale


@kernel
def _try_to_draw(arrays, share, source, indices, probabilities, uniform):
    """Fill in draws from the mixture; return False if most proposals were rejected."""
    values, shift = arrays.values, int(arrays.shift[0])
    n, size, total = len(values), len(indices), _total(arrays.sums, arrays.span)
    count = 0
    for j in range(size):
        uniform[j] = total == 0.0 or (share > 0.0 and next_uniform(source) < share)
        if not uniform[j]:
            count += 1
    if count > 0:
        solution = proposals._solve(arrays.proposals, 0.0)
        threshold, _, first, _, part_count, part_sum = solution
        crossing = (first - 1) >> (CELL_SHIFT - proposals._BIN_SHIFT)
        mass = proposals._weigh(arrays.proposals, crossing, threshold, part_count, part_sum)
        slots, found, masses = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.float64)
        proposals._propose(arrays.proposals, solution, mass, source, slots, found, masses)
    rejected, k = 0, 0
    for j in range(size):
        if uniform[j]:
            indices[j] = min(np.int64(next_uniform(source) * n), n - 1)
        else:
            while next_uniform(source) * masses[k] >= math.ldexp(values[found[k]], shift):
                rejected += 1
                if rejected > 2 * size + 64:
                    return False
                proposals._propose(
                    arrays.proposals, solution, mass, source, slots[k : k + 1], found[k : k + 1], masses[k : k + 1]
                )
            indices[j] = found[k]
            k += 1
    for j in range(size):
        weight = values[indices[j]] / total if total > 0.0 else 1.0 / n
        probabilities[j] = (1.0 - share) * weight + share / n
    return True


@kernel
def _draw(arrays, source, size):
    """Draw indices in proportion to the weights, with replacement."""
    indices = np.empty(size, np.int64)
    draw_mixed(arrays, 0.0, source, indices, np.empty(size, np.float64), np.empty(size, np.bool_))
    return indices


@kernel
def draw_without_replacement(arrays, source, indices, probabilities):
    """Draw distinct indices, and set the probability of each before any draw; return whether there are enough.

    Indices that were drawn before are dropped, until half of the mass is drawn. Then their weights are set to
    zero, and the same is done with the rest. At the end all weights are as they were.
    """
    values, size, total = arrays.values, len(indices), _total(arrays.sums, arrays.span)
    done, aside = 0, 0
    while done < size:
        left, mass = _total(arrays.sums, arrays.span), 0.0
        if left == 0.0:
            break
        while done < size and mass <= 0.5 * left:
            some = _draw(arrays, source, size - done + (size - done) // 4 + 8)  # some to drop
            _flip(values, indices[aside:done])
            for index in some:
                if done < size and values[index] > 0.0:
                    indices[done], probabilities[done] = index, values[index]
                    mass += values[index]
                    values[index] *= -1.0
                    done += 1
            _flip(values, indices[aside:done])
        if done < size:
            store(arrays, indices[aside:done], np.zeros(done - aside))
            aside = done
    store(arrays, indices[:aside], probabilities[:aside])
    for j in range(done):
        probabilities[j] /= total
    return done == size


@inlined
def _flip(values, indices):
    """Turn the sign of some weights: it marks them as drawn."""
    for j in range(len(indices)):
        values[indices[j]] *= -1.0
