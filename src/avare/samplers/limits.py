"""What the theory of some samplers needs in advance: the number of draws, and a bound on the norms."""

import copy
import warnings
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import Seed
from avare._state import Field, Fields, Part, State
from avare.samplers.base import Sampler

SMALLEST_BOUND = 1e-140
LARGEST_NORM = 1e140  # larger norms count as this, so that no square overflows
_MOST_PASSED = 1e3  # a bound is raised by this factor at the latest, even if it is to be kept


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


class Limits:
    """A horizon T, in draws, and a bound G on the norms.

    A given limit that turns out to be too small is doubled as often as necessary, with one warning.
    A limit that is not given is learned: the horizon starts at ten passes over the data, the
    bound at the largest norm of the first update, and both are doubled without a warning.
    With ``kept``, given limits stay as they are, as in published experiments whose norms exceed the bound: the
    samplers are unbiased either way. Only a bound exceeded a thousandfold is raised, because weights would overflow.
    Bounds are between 1e-140 and 1e140; larger norms count as 1e140.
    """

    def __init__(self, name: str, n: int, horizon: int | None, bound: float | None, kept: bool = False) -> None:
        self._name = name
        self._kept = validation.boolean("keep_limits", kept)
        self._horizon_stated, self._bound_stated = horizon is not None, bound is not None  # and not exceeded yet
        self._messages: list[str] = []
        self.horizon = 10 * n if horizon is None else validation.integer("horizon", horizon, at_least=1, at_most=2**62)
        self.bound = (
            0.0 if bound is None else validation.number("bound", bound, at_least=SMALLEST_BOUND, at_most=LARGEST_NORM)
        )
        self._stated = (0 if horizon is None else self.horizon, self.bound)

    def observe(self, draws: int, norms: NDArray[np.float64]) -> bool:
        """Compare the number of draws so far, and norms, with the limits; return whether a limit was raised."""
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
            self._messages.append(
                f"horizon = {before[0]} is exceeded: {self._name} continues with {self.horizon} draws"
            )
        if self.bound != before[1] and self._bound_stated:
            self._bound_stated = False
            self._messages.append(
                f"a norm of {largest:g} exceeds bound = {before[1]:g}: {self._name} continues with {self.bound:g}"
            )
        return (self.horizon, self.bound) != before

    def notify(self) -> None:
        """Give the pending warnings; to be called from `Sampler._notify`."""
        while self._messages:
            warnings.warn(self._messages.pop(0), LimitWarning, stacklevel=4)  # points to the call of `update`

    def arguments(self) -> dict[str, Any]:
        """Return the given limits, 0 for those not given, and whether they are kept."""
        return {"stated_horizon": self._stated[0], "stated_bound": self._stated[1], "keep_limits": self._kept}

    def state(self) -> dict[str, Any]:
        """Return what must be saved."""
        return {
            "horizon": self.horizon,
            "bound": self.bound,
            "horizon_stated": self._horizon_stated,
            "bound_stated": self._bound_stated,
        }

    def restored(self, state: State) -> "Limits":
        """Return limits with what `state` returned; a damaged state raises a ``ValueError``."""
        other = copy.copy(self)
        other._messages = []
        other.horizon = Field(int, at_least=1, at_most=2**64).read(state, "horizon")
        bound = Field(float, at_least=SMALLEST_BOUND, at_most=2.0 * LARGEST_NORM, also=0.0)
        other.bound = bound.read(state, "bound")
        for name, value, stated in zip(("horizon", "bound"), (other.horizon, other.bound), self._stated, strict=True):
            if value < stated:
                raise ValueError(f"state[{name!r}] = {value}: must be at least {stated}, with which it began")
        other._horizon_stated = Field(bool).read(state, "horizon_stated")
        other._bound_stated = Field(bool).read(state, "bound_stated")
        return other


class Limited(Sampler):
    """A sampler that is tuned by a horizon and a bound on the norms."""

    takes: ClassVar[tuple[str, ...]] = ("horizon", "bound")

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        replacement: bool,
        horizon: int | None,
        bound: float | None,
        keep_limits: bool = False,
        seed: Seed,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._limits = Limits(type(self).__name__, self.n, horizon, bound, keep_limits)

    def _notify(self) -> None:
        self._limits.notify()

    def _arguments(self) -> State:
        return {**super()._arguments(), **self._limits.arguments()}

    def _fields(self) -> Fields:
        return {**super()._fields(), "limits": Part(self._limits.restored)}
