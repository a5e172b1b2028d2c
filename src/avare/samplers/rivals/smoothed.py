"""What samplers share that draw with replacement and learn from the probabilities of their draws."""

import warnings
from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import kernel, merged
from avare._randomness import Seed, next_uniform
from avare.batch import weigh_into
from avare.samplers.base import LARGEST_NORM, Sampler
from avare.samplers.kernels import register_kernels
from avare.state import Field, Fields, Nested
from avare.structures.buckets import Buckets, mass_of, propose, solve, weigh
from avare.structures.uniform_draws import draw_below

SMALLEST_SHARE = 1e-100
"""Of the uniform distribution: no weight overflows."""
_SMALLEST_BOUND = 1e-140
_SMALLEST_DRAWN = 1e-10 * SMALLEST_SHARE  # no sampler has a smaller probability


class RemembersDraws(Sampler):
    """A sampler that remembers the probability with which each example was last drawn, so that norms may arrive late.

    A sampler derives from this class, and sets `_drawn_with` when it draws.
    """

    with_replacement_only = True

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._drawn_with = np.zeros(self.n)  # the probability at the last draw; 0: not drawn yet

    def _drawn_probabilities(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability with which each was last drawn, or its present one if it never was, in O(N)."""
        drawn = self._drawn_with[indices]
        return drawn if drawn.all() else np.where(drawn > 0.0, drawn, self.compute_probabilities()[indices])

    def fields(self) -> Fields:
        drawn_with = Field(np.float64, (self.n,), at_least=_SMALLEST_DRAWN, at_most=1.0 + 1e-9, also=0.0)
        return {**super().fields(), "drawn_with": drawn_with}


class Smoothed(RemembersDraws):
    r"""Draw from :math:`p = (1 - \theta) \max(w / \lambda, \varepsilon) + \theta / N`, with replacement.

    :math:`\lambda` is such that p sums to 1. A sampler derives from this class, sets `_share` (theta) or `_floor`
    (epsilon), and learns: it replaces w in `_structure`. `Buckets` keep 24 significant bits of w, and draw exactly from
    what they keep. A rule that adds up small changes keeps its own sums.

    Cost: O(batch_size) per step. Memory: 21 bytes per example and 8 MB.
    """

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._share = self._floor = 0.0
        self._structure = Buckets(np.ones(self.n))

    def compute_probabilities(self) -> NDArray[np.float64]:
        return (1.0 - self._share) * self._structure.probabilities(self._floor) + self._share / self.n

    @property
    def kernels(self) -> Any:
        return SmoothedState(self._structure.arrays, self._floor, self._share, self._drawn_with)

    def fields(self) -> Fields:
        return {**super().fields(), "structure": Nested(partial(Buckets.from_state, n=self.n))}


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


class Limited(Smoothed):
    """A smoothed sampler with two limits: a horizon T, in draws, and a bound G on the norms.

    A given limit that turns out to be too small is doubled as often as necessary, with one warning. A limit that is not
    given is learned: the horizon starts at ten passes over the data, the bound at the largest norm of the first
    update, and both are doubled without a warning. Bounds are between 1e-140 and 1e140; larger norms count as 1e140.
    """

    takes: ClassVar[tuple[str, ...]] = ("horizon", "bound")
    hyperparameters: ClassVar[tuple[str, ...]] = ("given_horizon", "given_bound")

    def __init__(self, n: int, batch_size: int, *, horizon: int | None, bound: float | None, **others: Any) -> None:
        super().__init__(n, batch_size, **others)
        self._given_horizon, self._given_bound = 0, 0.0  # not given
        if horizon is not None:
            self._given_horizon = validation.integer("horizon", horizon, at_least=1, at_most=2**62)
        if bound is not None:
            self._given_bound = validation.number("bound", bound, at_least=_SMALLEST_BOUND, at_most=LARGEST_NORM)
        self._horizon, self._bound = self._given_horizon or 10 * self.n, self._given_bound

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        horizon, bound, name = self._horizon, self._bound, type(self).__name__
        largest = min(float(norms.max(initial=0.0)), LARGEST_NORM)
        self._raise_limits(largest)
        self._learn(indices, norms, limits_changed=(self._horizon, self._bound) != (horizon, bound))
        # The warnings come last: as errors, they leave nothing half done. They point to the call of `update`.
        if self._horizon > horizon == self._given_horizon:
            text = f"horizon = {horizon} is exceeded: {name} continues with {self._horizon} draws"
            warnings.warn(text, LimitWarning, stacklevel=3)
        if self._bound > bound == self._given_bound > 0.0:
            text = f"a norm of {largest:g} exceeds bound = {bound:g}: {name} continues with {self._bound:g}"
            warnings.warn(text, LimitWarning, stacklevel=3)

    @abstractmethod
    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64], *, limits_changed: bool) -> None:
        """Learn from norms, after the limits were raised if that was necessary."""

    def _raise_limits(self, largest: float) -> None:
        """Double the limits until the number of draws so far and the largest norm are within them."""
        while self.steps * self.batch_size > self._horizon:
            self._horizon *= 2
        if self._bound == 0.0 < largest:
            self._bound = max(largest, _SMALLEST_BOUND)
        while largest > self._bound:
            self._bound *= 2.0

    def fields(self) -> Fields:
        unknown = None if self._given_bound else 0.0
        return {
            **super().fields(),
            "horizon": Field(int, at_least=max(self._given_horizon, 1), at_most=2**64),
            "bound": Field(
                float, at_least=max(self._given_bound, _SMALLEST_BOUND), at_most=2.0 * LARGEST_NORM, also=unknown
            ),
        }


# --- kernels -------------------------------------------------------------------------------


class SmoothedState(NamedTuple):
    """What the kernels of all such samplers read and write."""

    structure: Any  # the arrays of `Buckets`
    floor: float
    share: float
    drawn_with: NDArray[np.float64]


@merged
def draw_smoothed(state, source, indices, probabilities, weights):
    """Draw a batch; return which draws came from the uniform part: all of them, if no weight is above zero."""
    n = len(state.drawn_with)
    uniform = np.empty(len(indices), dtype=np.bool_)
    law = weigh(state.structure, solve(state.structure, state.floor))
    propose(state.structure, law, source, indices, indices, probabilities)
    for j in range(len(indices)):
        uniform[j] = next_uniform(source) < state.share or law.above == 0
        if uniform[j]:
            indices[j] = draw_below(n, source)
            probabilities[j] = mass_of(state.structure, law, indices[j])
        probabilities[j] = (1.0 - state.share) * probabilities[j] / law.scale + state.share / n
        state.drawn_with[indices[j]] = probabilities[j]
    weigh_into(weights, probabilities, True)
    return uniform


@kernel
def _draw_kernel(state, step, source, indices, probabilities, weights):
    draw_smoothed(state, source, indices, probabilities, weights)


register_kernels(SmoothedState, draw=_draw_kernel)
