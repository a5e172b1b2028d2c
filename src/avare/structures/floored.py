"""Probabilities that never fall below a floor, of which a few are pushed up at each step.

A push multiplies some probabilities by exp(x), x >= 0, and projects all onto
``{p >= floor, sum p = 1}`` in the sense of Kullback and Leibler: p becomes
``max(v / scale, floor)``, the very map of Lemma 1. Done to all, that is O(N) a step. Here

*Values* v are kept without their scale, ``p_i = max(v_i / scale, floor)``, so that a push
changes those it names and the scale, and nothing else.

*The floor is lazy.* Pushes only go up, so scale and threshold (``floor * scale``) never fall:
what is below the threshold stays there until it is pushed itself, and then starts from the
threshold, whatever it was before. So it is forgotten: its value is set to zero.

*A heap* gives those above by their values, lowest first. With each push the scale is the sum of
the values above over ``1 - floor * (how many are not above)``; all below the new threshold leave
the heap, and the scale is found again, until none leaves. Each leaves at most once for each time
it was pushed. A value may have risen since its key was noted in the heap: that is only looked
at where such a key comes to the top.

*Draw.* With probability ``floor * (how many are not above)`` an index that is not above: a uniform
one, again and again until it is such; otherwise one in proportion to its value, from `Weights`.
Where few are not above it takes many trials, but seldom: ``N * floor`` a draw on average, at most 1.

*Example.* Four examples, the floor 0.1: values 1, 1, 1, 1, scale 4. A push by ln 16 makes the
first 16, the scale 19 and the threshold 1.9: the others fall, the scale is 16 / (1 - 0.3), and
p = (0.7, 0.1, 0.1, 0.1). A push of the second by ln 2 starts from the threshold 2.29: the values
are 16 and 4.57, the scale is 20.57 / (1 - 0.2) = 25.7, and p = (0.62, 0.18, 0.1, 0.1).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._compilation import inlined, kernel
from avare._randomness import next_uniform, uniform_source
from avare.structures.base import Solution
from avare.structures.weights import Weights

_LARGEST_SCALE = 2.0**100  # beyond it, all values are scaled down
_LARGEST_EXPONENT = 100.0  # likewise


class Floored:
    """n probabilities, uniform at first, of at least share / n each.

    Memory: 33 bytes an example, and about 8 MB.

    >>> import numpy as np
    >>> floored = Floored(4, share=0.4)
    >>> floored.push([0], [np.log(16.0)])
    >>> floored.probabilities()
    array([0.7, 0.1, 0.1, 0.1])
    >>> floored.push([1, 1], [0.5 * np.log(2.0), 0.5 * np.log(2.0)])
    >>> floored.probabilities().round(2)
    array([0.62, 0.18, 0.1 , 0.1 ])
    >>> indices, p = floored.draw(1000, np.random.default_rng(0))
    >>> np.bincount(indices).round(-2)
    array([600, 200, 100, 100])
    """

    def __init__(self, n: int, share: float) -> None:
        """Build, with a share between 1e-100 and 1. O(N)."""
        self._set_up(n, share, Weights(np.ones(n)))

    @classmethod
    def from_state(cls, state: dict[str, Any], n: int, share: float) -> "Floored":
        """Build from what `state` gave for the same n and share; anything else is a ``ValueError``. O(N log N)."""
        weights = Weights.from_state(state, n)
        if not (weights.values >= 0.0).all() or not 0.0 < weights.values.max() < math.inf:
            raise ValueError("weights must be finite, none negative and some above zero")
        self = cls.__new__(cls)
        self._set_up(n, share, weights)
        return self

    def _set_up(self, n: int, share: float, weights: Weights) -> None:
        self.n, self._share = n, share
        self._floor = share / n
        self._weights = weights  # 0 for what is not above the floor
        self._heap = np.empty(n, dtype=np.int32)  # those above
        self._keys = np.empty(n)  # their values, or less, in heap order
        self._heap_up()
        self._project()

    def _heap_up(self) -> None:
        """Build the heap from the weights."""
        above = np.flatnonzero(self._weights.values)
        self._above = len(above)
        ordered = above[np.argsort(self._weights.values[above], kind="stable")]
        self._heap[: self._above] = ordered
        self._keys[: self._above] = self._weights.values[ordered]

    @property
    def solution(self) -> Solution:
        """Floor, threshold, scale and number of values above, as they are now. O(1)."""
        return self._solution

    def probabilities(self) -> NDArray[np.float64]:
        """The probability of each. O(N)."""
        return np.maximum(self._weights.values / self._solution.scale, self._floor)

    def probabilities_of(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probability of some. O(1) each."""
        return np.maximum(self._weights.values[indices] / self._solution.scale, self._floor)

    def draw(self, size: int, generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw indices with replacement, and the probability of each. O(size)."""
        indices = np.empty(size, dtype=np.int64)
        floored = generator.random(size) < self._floor * (self.n - self._above)
        count = int(np.count_nonzero(floored))
        indices[~floored] = self._weights.draw(size - count, generator)
        if count:
            indices[floored] = _draw_zeros(self._weights.values, count, uniform_source(generator))
        return indices, self.probabilities_of(indices)

    def push(self, indices: ArrayLike, exponents: ArrayLike) -> None:
        """Multiply some probabilities by exp(exponent), and project all; of a repeated index, exponents add up.

        Exponents must be finite and not negative. O(log N) each, amortised over all pushes; O(N log N)
        where values must be scaled down, which takes a rise of the scale by some 2^40.
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
            # Relative to the highest: what comes out as zero is far below the floor.
            news = np.maximum(values[where], self._solution.threshold) * np.exp(added - highest)
            values = values * math.exp(-highest)
            values[where] = news
            self._weights.reset(np.ldexp(values, -math.frexp(float(values.max()))[1]))
            self._heap_up()
        else:
            news = np.maximum(values[where], self._solution.threshold) * np.exp(added)
            self._above = int(_enter(self._heap, self._keys, self._above, values, where, news))
            self._weights.set(where, news)
        self._project()

    def _project(self) -> None:
        """Find the scale, and drop what is below its floor."""
        while True:
            # 1 - floor * (n - above), without a difference of large numbers
            scale = self._weights.total / (1.0 - self._share + self._floor * self._above)
            threshold = self._floor * scale
            above = int(_leave(self._heap, self._keys, self._above, self._weights.values, threshold))
            if above == self._above:
                break
            fallen = np.sort(self._heap[above : self._above])  # so that draws do not depend on the heap's order
            self._weights.set(fallen, np.zeros(len(fallen)))
            self._above = above
        self._solution = Solution(floor=self._floor, threshold=threshold, scale=scale, above=above)

    def state(self) -> dict[str, Any]:
        """All there is to save, as numbers and arrays. O(N)."""
        return self._weights.state()

    def check(self) -> None:
        """Assert every invariant. O(N)."""
        self._weights.check()
        values, (_, threshold, _, above) = self._weights.values, self._solution
        heap, keys = self._heap[:above], self._keys[:above]
        assert above == self._above and np.array_equal(np.sort(heap), np.flatnonzero(values)), (
            "the heap does not hold those above the floor, once each"
        )
        assert (keys[1:] >= keys[(np.arange(1, above) - 1) // 2]).all(), "the heap is out of order"
        assert (keys <= values[heap]).all(), "a key is above its value"
        assert above == 1 or (values[heap] >= threshold).all(), "a value is below the threshold"
        assert abs(math.fsum(self.probabilities().tolist()) - 1.0) <= 1e-14, "the probabilities do not sum to 1"


# --- kernels -------------------------------------------------------------------------------


@inlined
def _sift_down(heap, keys, size, index, key):
    """Put a member into the root's place, and let it sink."""
    place = 0
    while True:
        child = 2 * place + 1
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if child >= size or keys[child] >= key:
            break
        heap[place], keys[place] = heap[child], keys[child]
        place = child
    heap[place], keys[place] = index, key


@inlined
def _sift_up(heap, keys, place, index, key):
    """Put a member into the last place, and let it rise."""
    while place > 0:
        parent = (place - 1) // 2
        if keys[parent] <= key:
            break
        heap[place], keys[place] = heap[parent], keys[parent]
        place = parent
    heap[place], keys[place] = index, key


@kernel
def _enter(heap, keys, size, values, indices, news):
    """Put those that were not above into the heap; return its size."""
    for j in range(len(indices)):
        if values[indices[j]] == 0.0:
            _sift_up(heap, keys, size, indices[j], news[j])
            size += 1
    return size


@kernel
def _leave(heap, keys, size, values, threshold):
    """Take all below the threshold out of the heap, but for the last; return its size. They stand behind it."""
    while size > 1 and keys[0] < threshold:
        index = heap[0]
        value = values[index]
        if value >= threshold:
            _sift_down(heap, keys, size, index, value)
        else:
            size -= 1
            last, key = heap[size], keys[size]
            heap[size] = index
            _sift_down(heap, keys, size, last, key)
    return size


@kernel
def _draw_zeros(values, size, source):
    """Indices of zeros, of which there must be some, each as likely as any other."""
    indices = np.empty(size, dtype=np.int64)
    for j in range(size):
        indices[j] = np.int64(next_uniform(source) * len(values))
        while values[indices[j]] != 0.0:
            indices[j] = np.int64(next_uniform(source) * len(values))
    return indices
