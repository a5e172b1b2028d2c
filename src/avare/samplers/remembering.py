"""What samplers share that remember one norm per example and keep all probabilities above a floor."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.samplers.base import Sampler
from avare.schedules import Schedule
from avare.state import State


class Remembering(Sampler):
    r"""Draw from remembered norms, with no probability below a floor that falls with the steps.

    The floor is :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}`, see `schedules.floor`.
    A sampler derives from this class, and sets the schedule of the floor and the structure that holds the norms.
    """

    takes = ("p_min",)
    _schedule: Schedule
    _memory: Any

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self._steps + 1)

    def norms(self) -> NDArray[np.float64]:
        """Return the remembered norm of each example. O(N)."""
        with self._lock:
            norms: NDArray[np.float64] = self._memory.norms()
            return norms

    def compute_probabilities(self) -> NDArray[np.float64]:
        probabilities: NDArray[np.float64] = self._memory.probabilities(self.floor)
        return probabilities

    def arguments(self) -> State:
        _, c, delta, p_min = self._schedule.constants
        return {**super().arguments(), "delta": delta, "c": c, "p_min": p_min}
