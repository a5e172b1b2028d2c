"""What samplers share that remember one norm per example and keep all probabilities above a floor."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from avare import schedules
from avare.samplers.growing import Growing


class Remembering(Growing):
    r"""Draw from remembered norms, with no probability below a floor that falls with the steps.

    The floor is :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}`, see `schedules.floor`.
    A sampler derives from this class, and sets the structure that holds the norms.
    """

    takes = ("p_min",)
    hyperparameters: ClassVar[tuple[str, ...]] = ("delta", "c", "p_min")

    def __init__(self, n: int, batch_size: int, delta: float, c: float | None, p_min: float, **others: Any) -> None:
        super().__init__(n, batch_size, **others)
        self._schedule = schedules.floor(self.n, self.batch_size, delta, c, p_min)
        _, self._c, self._delta, self._p_min = self._schedule.constants

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self.steps + 1)

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        with self._lock:
            return np.asarray(self._memory.norms(indices))

    def compute_probabilities(self) -> NDArray[np.float64]:
        return np.asarray(self._memory.probabilities(self.floor))

    def _resized(self) -> None:
        ratio = self.present / self._n
        constants = (self.batch_size, self._c * ratio, self._delta, self._p_min / ratio)
        self._schedule = replace(self._schedule, constants=constants)
