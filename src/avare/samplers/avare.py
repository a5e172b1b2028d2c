"""Avare: remember the last norm of each example, and draw in proportion to it, above a floor."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._compilation import lean
from avare._randomness import Seed
from avare.batch import weigh_into
from avare.samplers.kernels import register_kernels
from avare.samplers.memory import unit_for
from avare.samplers.registry import register
from avare.samplers.remembering import Remembering
from avare.schedules import floor_at
from avare.state import Fields, Nested
from avare.structures.buckets import Buckets, draw, store


@register()
class Avare(Remembering):
    r"""Adaptive variance minimisation (El Hanchi & Stephens, 2020).

    With :math:`h_i` the last reported norm of example i, each step draws from

    .. math:: p = \arg\min \Big\{ \sum_i h_i^2 / p_i : p_i \ge \varepsilon_t, \textstyle\sum_i p_i = 1 \Big\},
              \qquad p_i = \max(h_i / \lambda, \varepsilon_t),

    with the floor :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}`.

    Choose it if step sizes decrease, or are small. With step sizes that fall as 1/t, its dynamic regret is
    O(T^(2/3)) for SGD and O(T^(5/6)) for SGLD (with replacement, batch size 1).

    Cost: O(batch_size) per step, for any n. Memory: 13 bytes per example and 8 MB.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    replacement : bool, default=False
        Whether an index may occur twice in a batch. Without replacement the variance is smaller, and the
        remembered norms are more recent.
    memory : float, default=0.0
        The share of the past in what is remembered, in [0, 0.99]: see `avare.samplers.memory`. 0 is the last norm.
    delta : float, default=1.0
        In (0, 1]. For step sizes that fall as t^-b, use b for SGD and b/2 for SGLD.
    c : float or None, default=None
        C, at least 1 / (1/n - p_min), which is the default, and at most a million n.
    p_min : float, default=0.0
        The limit of the floor, in [0, 1/n]. Use 0 for decreasing steps; 1 / (5n) is a safe choice
        for constant steps.
    initial_norms : array-like or None, default=None
        The norms to start from. By default all are 0: the first draws are uniform, and examples without a
        reported norm are drawn with the floor's probability.
    capacity : int or None, default=None
        At least n. If `append` exceeds it, new examples replace the oldest.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> import numpy as np
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> sampler = Avare(4, batch_size=2, seed=0)
    >>> for _ in range(200):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> sampler.probabilities().round(2)
    array([0.05, 0.05, 0.79, 0.11])

    References
    ----------
    A. El Hanchi, D. A. Stephens. Adaptive Importance Sampling for Finite-Sum Optimization and
    Sampling with Decreasing Step-Sizes. NeurIPS 2020.
    """

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        memory: float = 0.0,
        delta: float = 1.0,
        c: float | None = None,
        p_min: float = 0.0,
        initial_norms: ArrayLike | None = None,
        capacity: int | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, memory, delta, c, p_min, replacement=replacement, capacity=capacity, seed=seed)
        self._structure = Buckets(np.zeros(self.n) if initial_norms is None else self._initial(initial_norms))

    @property
    def kernels(self) -> AvareState:
        floor = self._schedule.constants
        return AvareState(self._structure.arrays, floor, self.replacement, self._moments, self.memory)

    def fields(self) -> Fields:
        return {"structure": Nested(partial(Buckets.from_state, n=self.n, present=self.present))}


# --- kernels -------------------------------------------------------------------------------


class AvareState(NamedTuple):
    """What the kernels of `Avare` read and write."""

    structure: Any  # the arrays of `Buckets`
    floor: tuple[float, ...]
    replacement: bool
    moments: NDArray[np.float64]
    memory: float


@lean
def _draw_kernel(state, step, source, indices, probabilities, weights):
    draw(state.structure, floor_at(state.floor, step), state.replacement, source, indices, probabilities, weights)
    weigh_into(weights, probabilities, state.replacement)


@lean
def _learn_kernel(state, indices, norms):
    store(state.structure, indices, norms, unit_for(state.moments, state.memory, norms), state.memory)


register_kernels(AvareState, draw=_draw_kernel, learn=_learn_kernel)
