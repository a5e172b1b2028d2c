"""The contract of everything that draws, and what the structures share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._randomness import uniform_source
from avare.state import State


class Solution(NamedTuple):
    """The solution of Lemma 1, ``p_i = max(h_i, threshold) / scale``.

    >>> solution = Solution(floor=0.125, threshold=1.0, scale=8.0, above=2)
    >>> max(3.0, solution.threshold) / solution.scale  # the probability of an example of norm 3
    0.375
    """

    floor: float
    """The smallest possible probability: threshold / scale."""
    threshold: float
    """e: smaller norms count as this."""
    scale: float
    """Z, the paper's lambda: the sum of all max(h_i, threshold)."""
    above: int
    """The paper's rho: how many norms are above the threshold."""


class Structure(ABC):
    """n examples, each with a probability, from which to draw indices.

    Each example has a value, which later values replace. Every structure has the same methods: `draw`, `probabilities`,
    `update`, `replace`, `state`, `from_state`, `check`, and the properties `arrays` and `nbytes`.

    A subclass sets `n` and `_arrays`, and implements the abstract methods.

    >>> from avare.structures import Buckets
    >>> structure: Structure = Buckets(np.ones(4))
    >>> structure.update([2], [5.0])
    >>> structure.probabilities()
    array([0.125, 0.125, 0.625, 0.125])
    >>> structure.check()
    """

    n: int
    _arrays: tuple[Any, ...]

    def draw(
        self,
        size: int,
        *,
        replacement: bool,
        generator: np.random.Generator,
        floor: float = 0.0,
        left: NDArray[np.float64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw indices; return them in order, with the probability of each.

        Parameters
        ----------
        size
            How many to draw.
        replacement
            Whether an index may occur twice. If not, each draw is from the examples that are not drawn
            yet, renormalised; the probabilities returned are those before the first draw.
        generator
            Where the random numbers come from.
        floor
            The smallest probability of any example: finite and not negative. Floors above 1/n mean 1/n.
        left
            Without replacement, an array to fill: what is left of the mass before each draw, for
            `avare.batch_weights`. It is summed where 1 minus the probabilities of the draws before would lose digits.
        """
        indices, probabilities = np.empty(size, dtype=np.int64), np.empty(size)
        masses = np.empty(size) if left is None else left
        if not self._draw(self._checked(floor), replacement, uniform_source(generator), indices, probabilities, masses):
            raise ValueError(
                f"size = {size}: fewer examples have a probability above 0, and without replacement each is drawn once"
            )
        return indices, probabilities

    def probabilities(self, floor: float = 0.0) -> NDArray[np.float64]:
        """Return the probability of each example at the next draw. O(N)."""
        return self._probabilities(self._checked(floor))

    def update(self, indices: ArrayLike, values: ArrayLike) -> None:
        """Replace the values of some examples, after checking them; the last one of a repeated index counts."""
        self.replace(*self.checked(indices, values))

    def checked(
        self, indices: ArrayLike, values: ArrayLike, name: str = "values"
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return indices and values as arrays, or raise an error that names the wrong one. O(size)."""
        return validation.indexed(name, values, indices, self.n)

    @abstractmethod
    def replace(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Replace values as `update` does, without any checks: for callers that have checked them."""

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays, as the kernels of the structure's module take them. O(1)."""
        return self._arrays

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes, including unused parts. O(1)."""
        return sum(array.nbytes for array in self.arrays)

    @abstractmethod
    def state(self) -> State:
        """Return everything to save, as numbers and arrays. O(N)."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any], n: int, *args: Any, **kwargs: Any) -> Self:
        """Build from what `state` returned for n examples, to continue with the same draws.

        A damaged state raises a ``ValueError``.
        """

    @abstractmethod
    def check(self) -> None:
        """Assert every invariant. O(N), or O(N log N)."""

    @abstractmethod
    def _probabilities(self, floor: float) -> NDArray[np.float64]:
        """Return the probability of each example for a floor that was checked."""

    @abstractmethod
    def _draw(self, floor: float, *arguments: Any) -> bool:
        """Fill ``indices, probabilities, left``, which follow ``replacement, source``; return whether there are enough.

        With replacement, ``left`` may stay as it is.
        """

    def _checked(self, floor: float) -> float:
        if not 0.0 <= floor < math.inf:
            raise ValueError(f"floor = {floor}: must be finite and not negative")
        return float(floor)
