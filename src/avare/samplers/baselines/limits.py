"""Samplers that are tuned by a horizon, the number of draws to come, and by a bound on the norms."""

import warnings
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare.samplers.base import LARGEST_NORM, Sampler
from avare.state import Field, Fields

SMALLEST_BOUND = 1e-140


class LimitWarning(UserWarning):
    """A given horizon or bound turned out to be too small.

    >>> import warnings
    >>> import avare
    >>> sampler = avare.Vrb(10, 2, horizon=100, bound=1.0, seed=0)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     sampler.update(sampler.sample().indices, [3.0, 0.5])
    >>> print(caught[0].message)
    a norm of 3 exceeds bound = 1: Vrb continues with 4
    """


class Limited(Sampler):
    """A sampler with two limits: a horizon T, in draws, and a bound G on the norms.

    A given limit that turns out to be too small is doubled as often as necessary, with one warning. A limit that is not
    given is learned: the horizon starts at ten passes over the data, the bound at the largest norm of the first
    update, and both are doubled without a warning. Bounds are between 1e-140 and 1e140; larger norms count as 1e140.
    """

    takes: ClassVar[tuple[str, ...]] = ("horizon", "bound")
    hyperparameters: ClassVar[tuple[str, ...]] = ("given_horizon", "given_bound")

    def __init__(
        self, n: int, batch_size: int, *, replacement: bool, horizon: int | None, bound: float | None, seed: Seed
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._given_horizon, self._given_bound = 0, 0.0  # not given
        if horizon is not None:
            self._given_horizon = validation.integer("horizon", horizon, at_least=1, at_most=2**62)
        if bound is not None:
            self._given_bound = validation.number("bound", bound, at_least=SMALLEST_BOUND, at_most=LARGEST_NORM)
        self._horizon, self._bound = self._given_horizon or 10 * self.n, self._given_bound
        self._messages: list[str] = []

    def _observe(self, norms: NDArray[np.float64]) -> bool:
        """Compare the number of draws so far, and norms, with the limits; return whether a limit was raised."""
        horizon, bound = self._horizon, self._bound
        while self._steps * self.batch_size > self._horizon:
            self._horizon *= 2
        largest = min(float(norms.max(initial=0.0)), LARGEST_NORM)
        if self._bound == 0.0 < largest:
            self._bound = max(largest, SMALLEST_BOUND)
        while largest > self._bound:
            self._bound *= 2.0
        name = type(self).__name__
        if self._horizon > horizon == self._given_horizon:
            self._messages.append(f"horizon = {horizon} is exceeded: {name} continues with {self._horizon} draws")
        if self._bound > bound == self._given_bound > 0.0:
            self._messages.append(
                f"a norm of {largest:g} exceeds bound = {bound:g}: {name} continues with {self._bound:g}"
            )
        return (self._horizon, self._bound) != (horizon, bound)

    def notify(self) -> None:
        while self._messages:
            warnings.warn(self._messages.pop(0), LimitWarning, stacklevel=3)  # points to the call of `update`

    def fields(self) -> Fields:
        unknown = None if self._given_bound else 0.0
        return {
            **super().fields(),
            "horizon": Field(int, at_least=max(self._given_horizon, 1), at_most=2**64),
            "bound": Field(
                float, at_least=max(self._given_bound, SMALLEST_BOUND), at_most=2.0 * LARGEST_NORM, also=unknown
            ),
        }
