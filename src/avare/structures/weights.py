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
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare.compilation import kernel
from avare.randomness import uniform_source
from avare.structures import buckets as proposals
from avare.structures.buckets import Buckets
from avare.structures.race import race

_EXPONENTS = 2048  # of float64, biased
_HALF_BITS = 26
_LOW_MASK = (1 << _HALF_BITS) - 1
_TARGET = 100  # the exponent that the largest weight is proposed with: far from both ends
_LARGEST_PROPOSAL = 2.0**127


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
        self._span = np.array([_EXPONENTS, 0], dtype=np.int64)  # lowest and highest exponent ever used
        _sum_up(self._sums, self._span, self._values)
        self._propose_anew()

    def _propose_anew(self) -> None:
        largest = float(self._values.max())
        self._shift = _TARGET - math.frexp(largest)[1] if largest > 0.0 else 0
        self._buckets = Buckets(_raised(self._values, self._shift))

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
        _set(self._values, self._sums, self._span, where, what)
        raised = _raised(what, self._shift)
        if len(raised) and raised.max() > _LARGEST_PROPOSAL:
            self._propose_anew()
        else:
            self._buckets.replace(where, raised)

    def draw(self, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw indices in proportion to the weights, with replacement. O(size)."""
        source = uniform_source(generator)
        indices, _ = self._buckets.draw(0.0, size, replacement=True, source=source)
        rejected = _rejected(self._values, self._shift, indices, generator.random(size))
        while len(rejected):
            if 2 * len(rejected) > size:  # the largest weights have gone, and the rest are out of scale
                self._propose_anew()
            again, _ = self._buckets.draw(0.0, len(rejected), replacement=True, source=source)
            indices[rejected] = again
            rejected = rejected[_rejected(self._values, self._shift, again, generator.random(len(again)))]
        return indices

    def draw_distinct(self, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw distinct indices, one after another, each from what is left.

        What was drawn before is dropped, in O(size), until half of the mass is drawn; the rest
        comes from a race of exponential times over all that are left, in O(N).
        """
        drawn: list[int] = []
        seen: set[int] = set()
        mass, half = 0.0, 0.5 * self.total
        while len(drawn) < size and mass <= half:
            for index in self.draw(size - len(drawn), generator).tolist():
                if index not in seen and mass <= half:
                    drawn.append(index)
                    seen.add(index)
                    mass += self._values[index]
        if len(drawn) < size:
            left = self._values.copy()
            left[drawn] = 0.0
            drawn += race(left, size - len(drawn), generator).tolist()
        return np.array(drawn, dtype=np.int64)

    def state(self) -> dict[str, Any]:
        """All there is to save, as numbers and arrays. O(N)."""
        return {
            "weights_values": self._values.copy(),
            "weights_shift": self._shift,
            "weights_members": self._buckets.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], n: int) -> "Weights":
        """Build from what `state` gave for n examples; anything else is a ``ValueError``. O(N)."""
        values, members, shift = state["weights_values"], state["weights_members"], state["weights_shift"]
        if values.shape != (n,) or values.dtype != np.float64:
            raise ValueError(f"weights have shape {values.shape} and dtype {values.dtype}: must be {n} float64")
        self = cls(values)
        self._shift = shift
        self._buckets = Buckets.from_state(members, n)
        return self

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        self._buckets.check()
        assert (self._values >= 0.0).all() and np.isfinite(self._values).all(), "a weight is out of range"
        proposed = Buckets(_raised(self._values, self._shift)).norms()
        assert np.array_equal(self._buckets.norms(), proposed), "proposals and weights differ"
        assert (proposed >= np.ldexp(self._values, self._shift)).all(), "a proposal is below its weight"
        exact = math.fsum(self._values.tolist())
        assert abs(self.total - exact) <= 1e-14 * exact, "the sum has drifted"


# --- kernels -------------------------------------------------------------------------------


@kernel
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


@kernel
def _set(values, sums, span, indices, news):
    for j in range(len(indices)):
        _add(sums, span, values[indices[j]], -1)
        values[indices[j]] = news[j]
        _add(sums, span, news[j], 1)


@kernel
def _raise(value, shift):
    """A number that `Buckets` keeps as at least the scaled weight."""
    raised = math.ldexp(value * (1.0 + 2.0**-23), shift)
    return raised if raised > 0.0 or value == 0.0 else 5e-324


@kernel
def _raised(values, shift):
    raised = np.empty_like(values)
    for j in range(len(values)):
        raised[j] = _raise(values[j], shift)
    return raised


@kernel
def _rejected(values, shift, indices, uniforms):
    """Places of the draws to be made again."""
    rejected = np.empty(len(indices), dtype=np.int64)
    count = 0
    for j in range(len(indices)):
        value = values[indices[j]]
        proposed = proposals._value(proposals._encode(_raise(value, shift)))
        if uniforms[j] * proposed >= math.ldexp(value, shift):
            rejected[count] = j
            count += 1
    return rejected[:count]
