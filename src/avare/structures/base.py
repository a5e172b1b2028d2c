"""What all structures that solve Lemma 1 are, and what they share."""

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._randomness import Source


class Solution(NamedTuple):
    """Lemma 1's solution ``p_i = max(h_i, threshold) / scale``."""

    floor: float
    """The smallest probability there may be: threshold / scale."""
    threshold: float
    """e: smaller norms count as this."""
    scale: float
    """Z, the paper's lambda: the sum of all max(h_i, threshold)."""
    above: int
    """The paper's rho: how many norms count as they are."""


class Structure(ABC):
    """Norms of n examples, from which to draw with floored probabilities.

    Floors are finite and not negative; above 1/n they mean 1/n.
    """

    n: int

    @classmethod
    @abstractmethod
    def zeros(cls, n: int) -> Self:
        """Build with all norms zero."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: NDArray[Any], n: int) -> Self:
        """Build from what `state` gave for n examples; anything else is a ``ValueError``."""

    @abstractmethod
    def state(self) -> NDArray[Any]:
        """All there is to save."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held by all arrays, used or not."""

    @abstractmethod
    def norms(self) -> NDArray[np.float64]:
        """The norms as they are kept, by index."""

    @abstractmethod
    def total(self) -> float:
        """The sum of all norms."""

    @abstractmethod
    def check(self) -> None:
        """Assert every invariant."""

    def solve(self, floor: float) -> Solution:
        """Lemma 1's solution for a floor, or for the nearest that can be kept."""
        return self._solve(_checked(floor))

    def probabilities(self, floor: float) -> NDArray[np.float64]:
        """The probability of each example. O(N)."""
        return self._probabilities(_checked(floor))

    def draw(
        self, floor: float, size: int, *, replacement: bool, source: Source
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw indices, in order, and the probability of each.

        Without replacement each draw is from the examples not drawn before, renormalised;
        the probabilities returned are those before any draw.
        """
        floor = _checked(floor)
        indices = np.empty(size, dtype=np.int64)
        probabilities = np.empty(size, dtype=np.float64)
        if not self._draw(floor, source, indices, probabilities, replacement):
            raise ValueError(f"size = {size}: fewer examples have a probability above 0, and none comes twice")
        return indices, probabilities

    def update(self, indices: ArrayLike, norms: ArrayLike) -> None:
        """Replace the norms of some examples; of a repeated index, the last counts."""
        checked = validation.indices("indices", indices, self.n)
        values = validation.nonnegative("norms", norms)
        validation.same_length("norms", len(values), "indices", len(checked))
        self.replace(checked, values)

    @abstractmethod
    def replace(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """`update` without its checks, for callers that have made them."""

    @abstractmethod
    def _solve(self, floor: float) -> Solution: ...

    @abstractmethod
    def _probabilities(self, floor: float) -> NDArray[np.float64]: ...

    @abstractmethod
    def _draw(
        self,
        floor: float,
        source: Source,
        indices: NDArray[np.int64],
        probabilities: NDArray[np.float64],
        replacement: bool,
    ) -> bool:
        """Fill indices and probabilities; return whether there were enough to draw."""


def _checked(floor: float) -> float:
    if not 0.0 <= floor < math.inf:
        raise ValueError(f"floor = {floor}: must be finite and not negative")
    return float(floor)
