"""Uniform: draw every example with the same probability, as plain minibatches do, or in shuffled passes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._compilation import kernel, lean
from avare._randomness import Seed
from avare.samplers.growing import Growing
from avare.samplers.kernels import learn_nothing, register_kernels
from avare.samplers.registry import register
from avare.state import Field, Fields, State, require_permutation
from avare.structures.uniform_draws import draw_below, draw_evenly


@register()
class Uniform(Growing):
    r"""Draw each example with :math:`p_i = 1/N` and weight :math:`N/m`.

    Without replacement the weights are the same. They are unbiased, and have a smaller variance than the
    weights of `batch_weights`.

    Choose it as the baseline, or if all gradient norms are roughly equal.

    Cost: O(batch_size) per step. Memory: none; with `reshuffle`, 8 bytes per example, and 16 once examples were
    retired.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    replacement : bool, default=False
        Whether an index may occur twice in a batch.
    reshuffle : bool, default=False
        Whether to draw in shuffled passes: no index occurs again before the pass ends. A pass has ``n // batch_size``
        batches, and each has a new random order; the few indices left over wait for the next pass. The
        errors of the batches of a pass cancel out in part, so that a chain with constant steps has less bias.
        `append` and `retire` begin a new pass.
    capacity : int or None, default=None
        At least n. If `append` exceeds it, new examples replace the oldest.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> batch = Uniform(1000, batch_size=4, seed=0).sample()
    >>> batch.weights
    array([250., 250., 250., 250.])
    """

    learns = False
    hyperparameters = ("reshuffle",)

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        reshuffle: bool = False,
        capacity: int | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, capacity=capacity, seed=seed)
        self.reshuffle = validation.boolean("reshuffle", reshuffle)
        """Whether it draws in shuffled passes."""
        if self.reshuffle and self.replacement:
            raise ValueError("reshuffle = True: shuffled passes need replacement=False")
        self.independent = not self.reshuffle
        self._order = np.arange(self.n if self.reshuffle else 0)
        self._place = np.zeros(1, dtype=np.int64)  # how much of the order has been drawn in this pass
        self._places = _NONE

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self.contains(np.arange(self.n)) / self.present

    def _are_listed(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        self._find_places()
        return np.asarray(self._places[indices] > 0)

    def _insert(self, indices: NDArray[np.int64], values: NDArray[np.float64] | None) -> None:
        self._place[0] = 0
        if self._is_listed:
            self._order = _extended(self._order, indices)
        if len(self._places) > 0:
            self._places = _extended(self._places, indices[indices >= len(self._places)])
            self._places[indices] = np.arange(len(self._order) - len(indices), len(self._order)) + 1

    def _remove(self, indices: NDArray[np.int64]) -> None:
        if len(indices) == 0:
            return
        self._place[0] = 0
        if not self._is_listed:
            self._order = np.arange(self.n)
        self._find_places()
        _swap_out(self._order, self._places, indices)
        self._order = self._order[: len(self._order) - len(indices)]

    @property
    def _is_listed(self) -> bool:
        """Whether the order lists the present examples; it is empty if all of them were just removed."""
        return len(self._order) > 0 or len(self._places) > 0

    def _find_places(self) -> None:
        """Make the places of all indices in the order. O(N) the first time, then kernels keep them."""
        if len(self._places) == 0:
            self._places = np.zeros(self.n, dtype=np.int64)
            self._places[self._order] = np.arange(len(self._order)) + 1

    @property
    def kernels(self) -> UniformState:
        return UniformState(self.present, self.replacement, self.reshuffle, self._order, self._places, self._place)

    def fields(self) -> Fields:
        return {
            "order": Field(np.int64, (None,), at_least=0, at_most=self.n - 1),
            "place": Field(np.int64, (1,), at_least=0, at_most=self.n),
            "places": None,
        }

    def check_state(self, values: State) -> None:
        order, is_needed = values["order"], self.reshuffle or self.present < self.n
        if len(order) not in (self.present, self.present if is_needed else 0):
            raise ValueError(f"state['order'] has shape {order.shape}: must have shape ({self.present},)")
        require_permutation(order, "state['order']")

    def restored(self) -> None:
        super().restored()
        self._places = _NONE


_NONE = np.empty(0, dtype=np.int64)


def _extended(array: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an array followed by another one, as a view of a larger array. O(1) for each element, amortised."""
    room, size = array if array.base is None else array.base, len(array) + len(more)
    if len(room) < size:
        room = np.empty(2 * size, dtype=np.int64)
        room[: len(array)] = array
    room[len(array) : size] = more
    return room[:size]


# --- kernels -------------------------------------------------------------------------------


class UniformState(NamedTuple):
    """What the kernels of `Uniform` read and write."""

    n: int  # present examples
    replacement: bool
    reshuffle: bool
    order: NDArray[np.int64]
    """The present indices, with `reshuffle` the drawn ones of this pass first; empty if these are all below n."""
    places: NDArray[np.int64]
    """By index: its place in the order plus 1, or 0 if it was retired; empty until some were."""
    place: NDArray[np.int64]


@lean
def _draw_kernel(state, step, source, indices, probabilities, weights):
    if len(state.order) == 0:
        draw_evenly(state.n, source, indices, state.replacement)
    else:
        _draw_listed(state, source, indices)
    for j in range(len(indices)):
        probabilities[j] = 1.0 / state.n
        weights[j] = state.n / len(indices)


@lean
def _draw_listed(state, source, indices):
    if state.reshuffle:
        _continue_pass(state.order, state.places, state.place, source, indices)
        return
    draw_evenly(state.n, source, indices, state.replacement)
    for j in range(len(indices)):
        indices[j] = state.order[indices[j]]


@lean
def _continue_pass(order, places, place, source, indices):
    """Draw from what is left of a pass, or begin the next one if that is too little for a batch."""
    first = place[0] if place[0] + len(indices) <= len(order) else 0
    for j in range(len(indices)):
        k = first + j + draw_below(len(order) - first - j, source)
        order[first + j], order[k] = order[k], order[first + j]
        indices[j] = order[first + j]
        if len(places) > 0:
            places[order[k]], places[indices[j]] = k + 1, first + j + 1
    place[0] = first + len(indices)


@kernel
def _swap_out(order, places, indices):
    """Remove indices from the order: the last ones take their places."""
    size = len(order)
    for j in range(len(indices)):
        size -= 1
        place, last = places[indices[j]], order[size]
        order[place - 1], places[last] = last, place
        places[indices[j]] = 0


register_kernels(UniformState, draw=_draw_kernel, learn=learn_nothing)
