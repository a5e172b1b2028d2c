"""When each example was last drawn, and whether its norm has been told since."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._compilation import kernel, lean

_LAST_STEP = 2**31 - 1


class Visits:
    """One int32 an example: the step of its last draw, negative once its norm has been told, 0 if never drawn.

    All methods take O(batch size).

    Examples
    --------
    >>> import numpy as np
    >>> visits = Visits(10)
    >>> visits.draw(np.array([3, 5]), step=1)
    >>> visits.tell(np.array([5]), step=2)
    >>> visits.draw(np.array([5, 6]), step=5)
    >>> visits.waiting, visits.age, visits.never_drawn(np.array([3, 4]))
    (3, 4.0, [1])
    """

    def __init__(self, n: int) -> None:
        self.last = np.zeros(n, dtype=np.int32)
        self.waiting = 0
        """How many examples have been drawn, and their norms not told since."""
        self.age = float("nan")
        """Mean steps since the draw that the norm is of, over the last batch's examples whose last draw was told."""
        self.lag = float("nan")
        """Mean steps between draw and telling, over the batch told last."""

    def draw(self, indices: NDArray[np.int64], step: int) -> None:
        """Note the draw of a batch at a step, counted from 1."""
        added, age = _draw(self.last, indices, min(step, _LAST_STEP))
        self.waiting += int(added)
        self.age = float(age)

    def tell(self, indices: NDArray[np.int64], step: int) -> None:
        """Note that norms have been told, when ``step`` batches had been drawn."""
        removed, lag = _tell(self.last, indices, min(step, _LAST_STEP))
        self.waiting -= int(removed)
        self.lag = float(lag)

    def are_sound(self, indices: NDArray[np.int64], norms: NDArray[Any]) -> bool:
        """Whether all have been drawn, and their norms are finite and not negative."""
        return bool(_are_sound(self.last, indices, norms))

    def never_drawn(self, indices: NDArray[np.int64]) -> list[int]:
        """The places in ``indices`` of examples that were never drawn."""
        places: list[int] = np.flatnonzero(self.last[indices] == 0).tolist()
        return places


# --- kernels -------------------------------------------------------------------------------


@kernel
def _draw(last, indices, step):
    added, ages, known = 0, 0.0, 0
    for index in indices:
        previous = last[index]
        added += previous <= 0
        if previous < 0:  # its norm is of that draw; of one that still waits, it is older, or there is none
            ages += step + previous
            known += 1
        last[index] = step
    return added, ages / known if known else np.nan


@lean
def _are_sound(last, indices, norms):
    for j in range(len(indices)):
        if not (0 <= indices[j] < len(last) and last[indices[j]] != 0 and 0.0 <= norms[j] < np.inf):
            return False
    return True


@kernel
def _tell(last, indices, step):
    removed, lags = 0, 0.0
    for index in indices:
        lags += step - abs(last[index])
        if last[index] > 0:
            removed += 1
            last[index] = -last[index]
    return removed, lags / len(indices) if len(indices) else np.nan
