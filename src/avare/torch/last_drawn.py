"""When each example was last drawn, and whether its norm has been reported since."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._compilation import lean

_LAST_STEP = 2**31 - 1


class LastDrawn:
    """One int32 per example: the step of its last draw, negative once its norm is reported, 0 if never drawn.

    All methods take O(batch size), except `are_reported`.

    Examples
    --------
    >>> import numpy as np
    >>> last_drawn = LastDrawn(np.zeros(10, dtype=np.int32))
    >>> last_drawn.draw(np.array([3, 5]), step=1)
    >>> last_drawn.report(np.array([5]), step=2)
    >>> last_drawn.draw(np.array([5, 6]), step=5)
    >>> last_drawn.waiting, last_drawn.age, last_drawn.never_drawn(np.array([3, 4]))
    (3, 4.0, [1])
    """

    def __init__(self, last: NDArray[np.int32]) -> None:
        self.last = last
        self.waiting = int(np.count_nonzero(last > 0))
        """How many examples have been drawn, and their norms not reported since."""
        self.age = float("nan")
        """Mean age in steps of the norms of the last batch drawn, over examples whose last draw was reported."""
        self.lag = float("nan")
        """Mean number of steps between draw and report, over the last batch reported."""

    def draw(self, indices: NDArray[np.int64], step: int) -> None:
        """Record the draw of a batch at a step, counted from 1."""
        added, age = _draw(self.last, indices, min(step, _LAST_STEP))
        self.waiting += int(added)
        self.age = float(age)

    def report(self, indices: NDArray[np.int64], step: int) -> None:
        """Record that norms were reported after ``step`` batches had been drawn."""
        removed, lag = _report(self.last, indices, min(step, _LAST_STEP))
        self.waiting -= int(removed)
        self.lag = float(lag)

    @property
    def are_reported(self) -> bool:
        """Whether any norm was reported. O(n)."""
        return bool(self.lag == self.lag or (self.last < 0).any())

    def accepts(self, indices: NDArray[np.int64], norms: NDArray[Any], values: NDArray[np.float64]) -> bool:
        """Copy norms to values; return whether all are finite, not negative, and of examples that were drawn."""
        return bool(_accept(self.last, indices, norms, values))

    def never_drawn(self, indices: NDArray[np.int64]) -> list[int]:
        """The positions in ``indices`` of examples that were never drawn, or that do not exist."""
        known = (indices >= 0) & (indices < len(self.last))
        known[known] = self.last[indices[known]] != 0
        places: list[int] = np.flatnonzero(~known).tolist()
        return places


# --- kernels -------------------------------------------------------------------------------


@lean
def _draw(last, indices, step):
    added, ages, known = 0, 0.0, 0
    for index in indices:
        previous = last[index]
        added += previous <= 0
        if previous < 0:  # its norm is that of this draw; if the norm is still missing, any known one is older
            ages += step + previous
            known += 1
        last[index] = step
    return added, ages / known if known else np.nan


@lean
def _report(last, indices, step):
    removed, lags = 0, 0.0
    for index in indices:
        lags += step - abs(last[index])
        if last[index] > 0:
            removed += 1
            last[index] = -last[index]
    return removed, lags / len(indices) if len(indices) else np.nan


@lean
def _accept(last, indices, norms, values):
    for j in range(len(indices)):
        index, norm = indices[j], norms[j]
        if not (0 <= index < len(last) and last[index] != 0 and 0.0 <= norm < np.inf):
            return False
        values[j] = norm
    return True
