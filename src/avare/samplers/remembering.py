"""What samplers share that remember one norm per example and keep all probabilities above a floor."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import schedules
from avare._randomness import Seed
from avare._state import State
from avare.samplers.base import Sampler, one_per_example


class Remembering(Sampler):
    r"""Draw from remembered norms, with no probability below a floor that falls with the steps.

    The floor is :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}`, see `schedules.floor`.
    A sampler derives from this class and defines `_remember`.
    """

    takes = ("p_min",)

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        replacement: bool,
        delta: float,
        c: float | None,
        p_min: float,
        initial_norms: ArrayLike | None,
        seed: Seed,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._schedule = schedules.floor(self.n, self.batch_size, delta, c, p_min)
        norms = None if initial_norms is None else one_per_example("initial_norms", initial_norms, self.n)
        self._memory = self._remember(norms)

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self._steps + 1)

    def norms(self) -> NDArray[np.float64]:
        """Return the remembered norm of each example. O(N)."""
        with self._lock:
            norms: NDArray[np.float64] = self._memory.norms()
            return norms

    def _remember(self, norms: NDArray[np.float64] | None) -> Any:
        """Build the structure that holds the norms; None if there are none yet."""
        raise NotImplementedError

    def _probabilities(self) -> NDArray[np.float64]:
        probabilities: NDArray[np.float64] = self._memory.probabilities(self.floor)
        return probabilities

    def _arguments(self) -> State:
        c, delta, p_min = self._schedule.constants
        return {**super()._arguments(), "delta": delta, "c": c, "p_min": p_min}
