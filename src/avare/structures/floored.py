"""Probabilities that never fall below a floor, of which a few are pushed up at each step.

A push multiplies some probabilities by exp(x), x >= 0, and projects all onto
``{p >= floor, sum p = 1}`` in the Kullback-Leibler divergence: p becomes ``max(v / scale, floor)``, as in
Lemma 1. Doing that to all of them costs O(N) per step. Instead:

*Values* v are kept without their scale, ``p_i = max(v_i / scale, floor)``, so that a push changes only
the values that it names, and the scale.

*The floor is lazy.* Pushes only go up, so scale and threshold (``floor * scale``) never fall. A value
below the threshold stays below until it is pushed itself, and then starts from the threshold, whatever
it was before. So it is forgotten: it is set to zero.

*A heap* contains those above the threshold, the smallest value at the root. After a push the scale is
the sum of the values above, over ``1 - floor * (number not above)``. All values below the new threshold
leave the heap, and the scale is computed again, until none leaves. Each leaves at most once for each
time it was pushed. A value may be larger than its key in the heap, if it was pushed since; this is
corrected when its key reaches the root.

*Draw.* With probability ``floor * (number not above)`` draw an index that is not above: draw uniformly
until one is found. Otherwise draw in proportion to the values, from `Weights`. If few are not above, the
first case takes many tries, but is rare: ``N * floor``, at most 1, per draw on average.

*Example.* Four examples, the floor 0.1: values 1, 1, 1, 1, scale 4. A push by ln 16 makes the first 16,
the scale 19 and the threshold 1.9. The others fall below it, the scale is 16 / (1 - 0.3), and
p = (0.7, 0.1, 0.1, 0.1). A push of the second by ln 2 starts from the threshold 2.29. The values are
16 and 4.57, the scale is 20.57 / (1 - 0.2) = 25.7, and p = (0.62, 0.18, 0.1, 0.1).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._compilation import kernel
from avare._randomness import next_uniform
from avare.state import State
from avare.structures.base import Solution, Structure
from avare.structures.heap import sift_down, sift_up
from avare.structures.uniform_draws import draw_below
from avare.structures.weights import Weights, draw_smoothed_into

_LARGEST_SCALE = 2.0**100  # beyond it, all values are scaled down
_LARGEST_EXPONENT = 100.0  # beyond it, too


class Floored(Structure):
    """n probabilities of at least share / n each, uniform at first.

    Memory: 33 bytes per example, and about 8 MB.

    >>> import numpy as np
    >>> from avare._randomness import uniform_source
    >>> floored = Floored(4, share=0.4)
    >>> floored.push([0], [np.log(16.0)])
    >>> floored.probabilities()
    array([0.7, 0.1, 0.1, 0.1])
    >>> floored.push([1, 1], [0.5 * np.log(2.0), 0.5 * np.log(2.0)])
    >>> floored.probabilities().round(2)
    array([0.62, 0.18, 0.1 , 0.1 ])
    >>> generator = np.random.default_rng(0)
    >>> indices, p = floored.draw(1000, replacement=True, source=uniform_source(generator))
    >>> np.bincount(indices).round(-2)
    array([600, 200, 100, 100])
    """

    with_replacement_only = True

    def __init__(self, n: int, share: float) -> None:
        """Build, with a share between 1e-100 and 1. O(N)."""
        self._set_up(Weights(np.ones(n)), share)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], n: int, share: float) -> "Floored":
        """Build from what `state` returned for the same n and share; a damaged state raises a ``ValueError``.

        O(N log N).
        """
        weights = Weights.from_state(state, n)
        if not weights.values.any():
            raise ValueError("state['weights_values'] is all zero: at least one must be above 0")
        self = cls.__new__(cls)
        self._set_up(weights, share)
        return self

    def _set_up(self, weights: Weights, share: float) -> None:
        self.n, self._share = weights.n, share
        self._floor = share / self.n
        self._weights = weights  # the values, 0 for those not above the floor
        self._heap = np.empty(self.n, dtype=np.int32)  # those above
        self._keys = np.empty(self.n)  # their values, or less, in heap order
        self._build_heap()
        self._project()

    def _build_heap(self) -> None:
        above = np.flatnonzero(self._weights.values)
        self._above = len(above)
        ordered = above[np.argsort(self._weights.values[above], kind="stable")]
        self._heap[: self._above] = ordered
        self._keys[: self._above] = self._weights.values[ordered]

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of the weights, and the heap with its keys. O(1)."""
        return self._weights.arrays, self._heap, self._keys

    def state(self) -> State:
        """Return the values. O(N)."""
        return self._weights.state()

    @property
    def solution(self) -> Solution:
        """The current floor, threshold, scale and number of values above. O(1)."""
        return self._solution

    def probabilities_of(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of some examples. O(1) each."""
        return np.maximum(self._weights.values[indices] / self._solution.scale, self._floor)

    def push(self, indices: ArrayLike, exponents: ArrayLike) -> None:
        """Multiply some probabilities by exp(exponent), then project all; the exponents of a repeated index add up.

        Exponents must be finite and not negative. O(log N) each, amortised over all pushes. O(N log N) when the
        values are scaled down, which happens once the scale has grown by about 2^40.
        """
        by = np.asarray(exponents, dtype=np.float64)
        rising = by > 0.0
        where, places = np.unique(np.asarray(indices, dtype=np.int64)[rising], return_inverse=True)
        if not len(where):
            return
        added = np.bincount(places, weights=by[rising])
        values = self._weights.values
        highest = float(added.max())
        if highest > _LARGEST_EXPONENT or self._solution.scale > _LARGEST_SCALE:
            # Relative to the highest: values that underflow to zero are far below the floor.
            news = np.maximum(values[where], self._solution.threshold) * np.exp(added - highest)
            values = values * math.exp(-highest)
            values[where] = news
            self._weights.reset(np.ldexp(values, -math.frexp(float(values.max()))[1]))
            self._build_heap()
        else:
            news = np.maximum(values[where], self._solution.threshold) * np.exp(added)
            self._above = int(_enter(self._heap, self._keys, self._above, values, where, news))
            self._weights.replace(where, news)
        self._project()

    def _project(self) -> None:
        """Find the scale, and drop the values below its floor."""
        while True:
            # 1 - floor * (n - above), without a difference of large numbers
            scale = self._weights.total / (1.0 - self._share + self._floor * self._above)
            threshold = self._floor * scale
            above = int(_leave(self._heap, self._keys, self._above, self._weights.values, threshold))
            if above == self._above:
                break
            fallen = np.sort(self._heap[above : self._above]).astype(np.int64)  # independent of the heap's order
            self._weights.replace(fallen, np.zeros(len(fallen)))
            self._above = above
        self._solution = Solution(floor=self._floor, threshold=threshold, scale=scale, above=above)

    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        return np.maximum(self._weights.values / self._solution.scale, self._floor)

    def _draw(self, floor: float, *arguments: Any) -> bool:
        _, source, indices, probabilities, _ = arguments
        _draw(self._weights.arrays, self._floor, self._solution.scale, self._above, source, indices, probabilities)
        return True

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        self._weights.check()
        values, (_, threshold, _, above) = self._weights.values, self._solution
        heap, keys = self._heap[:above], self._keys[:above]
        assert above == self._above and np.array_equal(np.sort(heap), np.flatnonzero(values)), (
            "the heap does not contain those above the floor, once each"
        )
        assert (keys[1:] >= keys[(np.arange(1, above) - 1) // 2]).all(), "the heap is out of order"
        assert (keys <= values[heap]).all(), "a key is above its value"
        assert above == 1 or (values[heap] >= threshold).all(), "a value is below the threshold"
        assert abs(math.fsum(self.probabilities().tolist()) - 1.0) <= 1e-14, "the probabilities do not sum to 1"


# --- kernels -------------------------------------------------------------------------------


@kernel
def _enter(heap, keys, size, values, indices, news):
    """Put indices that were not above into the heap; return its size."""
    for j in range(len(indices)):
        if values[indices[j]] == 0.0:
            sift_up(heap, keys, size, indices[j], news[j])
            size += 1
    return size


@kernel
def _leave(heap, keys, size, values, threshold):
    """Move all indices below the threshold, except the last one, behind the heap; return its size."""
    while size > 1 and keys[0] < threshold:
        index = heap[0]
        if values[index] >= threshold:
            sift_down(heap, keys, size, index, values[index])
        else:
            size -= 1
            last, key = heap[size], keys[size]
            heap[size] = index
            sift_down(heap, keys, size, last, key)
    return size


@kernel
def _draw(weights, floor, scale, above, source, indices, probabilities):
    """Draw indices with replacement."""
    n, size = len(weights.values), len(indices)
    is_low, uniform = np.empty(size, dtype=np.bool_), np.empty(size, dtype=np.bool_)
    found, high = np.empty_like(indices), 0
    for j in range(size):
        is_low[j] = next_uniform(source) < floor * (n - above)
        high += not is_low[j]
    draw_smoothed_into(weights, 0.0, source, found[:high], probabilities[:high], uniform[:high])
    k = 0
    for j in range(size):
        if is_low[j]:
            indices[j] = draw_below(n, source)
            while weights.values[indices[j]] != 0.0:
                indices[j] = draw_below(n, source)
        else:
            indices[j] = found[k]
            k += 1
        probabilities[j] = max(weights.values[indices[j]] / scale, floor)
