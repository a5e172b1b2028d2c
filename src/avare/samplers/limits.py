"""What the theory of some rules wants to know beforehand: how long, and how large."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation

SMALLEST_BOUND = 1e-140
LARGEST_NORM = 1e140  # norms above count as this, so that no square overflows
_MOST_PASSED = 1e3  # how far norms may pass a bound that is kept


class LimitWarning(UserWarning):
    """A stated horizon or bound was passed."""


class Limits:
    """A horizon T, in draws, and a bound G on the norms.

    What was stated and turns out too small is doubled as often as it takes, with one warning
    each. What was not stated is learned: the horizon starts at ten passes over the data, the
    bound at the largest norm of the first update, and both are doubled without a warning.
    With ``kept``, what was stated stays, as in published experiments whose bound was none: the rules
    are unbiased all the same. Only a bound passed a thousandfold is raised, or weights would overflow.
    Bounds are between 1e-140 and 1e140, and larger norms count as the latter.
    """

    def __init__(self, name: str, n: int, horizon: int | None, bound: float | None, kept: bool = False) -> None:
        self._name = name
        self._kept = validation.boolean("keep_limits", kept)
        self._horizon_stated, self._bound_stated = horizon is not None, bound is not None  # and not yet passed
        self._messages: list[str] = []
        self.horizon = 10 * n if horizon is None else validation.integer("horizon", horizon, at_least=1, at_most=2**62)
        self.bound = (
            0.0 if bound is None else validation.number("bound", bound, at_least=SMALLEST_BOUND, at_most=LARGEST_NORM)
        )
        self._stated = (0 if horizon is None else self.horizon, self.bound)

    def observe(self, draws: int, norms: NDArray[np.float64]) -> bool:
        """Take note of how many draws there were, and of norms; return whether a limit had to be raised."""
        before = (self.horizon, self.bound)
        while draws > self.horizon and not (self._kept and self._horizon_stated):
            self.horizon *= 2
        largest = min(float(norms.max(initial=0.0)), LARGEST_NORM)
        if self.bound == 0.0 < largest:
            self.bound = max(largest, SMALLEST_BOUND)
        room = _MOST_PASSED if self._kept and self._bound_stated else 1.0
        while largest > room * self.bound:
            self.bound *= 2.0
        if self.horizon != before[0] and self._horizon_stated:
            self._horizon_stated = False
            self._messages.append(f"horizon = {before[0]} draws have passed: {self._name} goes on with {self.horizon}")
        if self.bound != before[1] and self._bound_stated:
            self._bound_stated = False
            self._messages.append(
                f"a norm of {largest:g} exceeds bound = {before[1]:g}: {self._name} goes on with {self.bound:g}"
            )
        return (self.horizon, self.bound) != before

    def notify(self) -> None:
        """Give the warnings there are; to be called from `Sampler._notify`."""
        while self._messages:
            warnings.warn(self._messages.pop(0), LimitWarning, stacklevel=4)  # where `update` was called

    def arguments(self) -> dict[str, Any]:
        """What was stated, or 0, and whether it stays."""
        return {"stated_horizon": self._stated[0], "stated_bound": self._stated[1], "keep_limits": self._kept}

    def state(self) -> dict[str, Any]:
        """What there is to save."""
        return {
            "horizon": self.horizon,
            "bound": self.bound,
            "horizon_stated": self._horizon_stated,
            "bound_stated": self._bound_stated,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self.horizon, self.bound = state["horizon"], state["bound"]
        self._horizon_stated, self._bound_stated = state["horizon_stated"], state["bound_stated"]
