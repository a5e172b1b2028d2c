"""What samplers share that remember one norm per example and keep all probabilities above a floor."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import schedules
from avare.samplers.base import one_per_example
from avare.samplers.growing import Growing
from avare.samplers.memory import checked_share, current_unit, start


class Remembering(Growing):
    r"""Draw from remembered norms, with no probability below a floor that falls with the steps.

    The floor is :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}`, see `schedules.floor`.
    A sampler derives from this class, and sets the structure that holds the norms.
    """

    takes = ("p_min",)
    hyperparameters: ClassVar[tuple[str, ...]] = ("delta", "c", "p_min", "memory")

    def __init__(
        self, n: int, batch_size: int, memory: float, delta: float, c: float | None, p_min: float, **others: Any
    ) -> None:
        super().__init__(n, batch_size, **others)
        self.memory = checked_share(memory)
        self._schedule = schedules.floor(self.n, self.batch_size, delta, c, p_min)
        _, self._c, self._delta, self._p_min = self._schedule.constants

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self.steps + 1)

    def norms(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        with self._lock:
            return np.asarray(self._structure.norms(indices)) * current_unit(self._moments, self.memory)

    def _initial(self, norms: ArrayLike) -> NDArray[np.float64]:
        """Return the initial norms, checked, in their unit."""
        values = one_per_example("initial_norms", norms, self.n)
        return values / start(self._moments, values) if self.memory > 0.0 else values

    def _values_of_new(self, norms: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        return None if norms is None else norms / current_unit(self._moments, self.memory)

    def compute_probabilities(self) -> NDArray[np.float64]:
        return np.asarray(self._structure.probabilities(self.floor))

    def _resized(self) -> None:
        ratio = self.present / self._n
        constants = (self.batch_size, self._c * ratio, self._delta, self._p_min / ratio)
        self._schedule = replace(self._schedule, constants=constants)
