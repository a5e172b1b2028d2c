"""Calibrated: remember the last norm of each example, and learn which norm to expect from it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import lean
from avare._randomness import Seed
from avare.batch import weigh_into
from avare.samplers.kernels import register_kernels
from avare.samplers.memory import current_unit, unit_for
from avare.samplers.registry import register
from avare.samplers.remembering import Remembering
from avare.schedules import floor_at
from avare.state import Fields, Nested
from avare.structures.calibrated_cells import CalibratedCells, Calibration, draw, learn


@register()
class Calibrated(Remembering):
    r"""Draw in proportion to the norm to be expected, given the remembered norm.

    With :math:`h_i` the last reported norm of example i, the best distribution is
    :math:`p_i \propto \sqrt{E[n_i^2 \mid h_i]}`. `Avare` uses :math:`h_i^2` for the expectation. This sampler
    learns it from the draws. Examples are grouped into cells c by h, within a factor 9/8; examples without a
    reported norm have their own cell. Each cell averages the squared norms that its members turn out to have,

    .. math:: v_c = \Big(\sum n^2 + \kappa h_c^2\Big) \Big/ \Big(\sum 1 + \kappa\Big), \qquad
              p_i = \max(\sqrt{v_c} / \lambda, \varepsilon_t),

    with sums that decay, :math:`h_c` the mean remembered norm in the cell, and the floor
    :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}` of `Avare`.

    Choose it if step sizes stay large, as for neural networks. Remembered norms are then stale, especially the small
    ones, and trusting them can be worse than drawing uniformly. If norms settle, it becomes `Avare`: each p is within
    roughly a factor 9/8 of Avare's, and the variance within 0.4 %. The paper's regret bound is not proved for it.

    A squared norm counts for the cell that its example is in before the update. For examples without a reported
    norm, the expectation comes from the first norms of such examples, with the mean of v over all other examples in
    place of :math:`h_c^2`.

    Cost: O(batch_size) per step, for any n. Memory: 13 bytes per example and 4 MB.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, the number of draws per step.
    replacement : bool, default=False
        Whether an index may occur twice in a batch.
    decay : float or None, default=None
        Decay of past observations, per ``batch_size`` new ones, in (0, 1]; 1 keeps all. The default,
        exp(-m / 10n) but at most 0.999, looks back roughly ten epochs, or a thousand steps if these are fewer.
    prior : float, default=1.0
        kappa, above 0: the number of observations that the remembered norm counts for.
    memory : float, default=0.0
        The share of the past in what is remembered, in [0, 0.99]: see `avare.samplers.memory`. 0 is the last norm.
    delta : float, default=1.0
        In (0, 1]. For step sizes that fall as t^-b, use b for SGD and b/2 for SGLD.
    c : float or None, default=None
        C, at least 1 / (1/n - p_min), which is the default, and at most a million n.
    p_min : float, default=0.0
        The limit of the floor, in [0, 1/n]. Use 0 for decreasing steps; 1 / (5n) costs little if steps stay large.
    initial_norms : array-like or None, default=None
        The norms to start from; by default none is known.
    capacity : int or None, default=None
        At least n. If `append` exceeds it, new examples replace the oldest.
    seed : int, SeedSequence, BitGenerator, Generator or None, default=None
        See `Sampler`.

    Examples
    --------
    >>> import numpy as np
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> sampler = Calibrated(4, batch_size=2, decay=0.999, seed=0)
    >>> for _ in range(200):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> sampler.probabilities().round(2)
    array([0.05, 0.05, 0.79, 0.11])

    If norms do not depend on the past, the same norm is expected for every remembered one.

    >>> generator = np.random.default_rng(1)
    >>> for _ in range(5000):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, generator.choice([1.0, 2.0], size=2))
    >>> sampler.probabilities().round(2)
    array([0.25, 0.25, 0.25, 0.25])
    >>> sampler.calibration().remembered, sampler.calibration().expected.round(1)
    (array([1., 2.]), array([1.6, 1.6]))
    """

    hyperparameters = ("decay", "prior")

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        decay: float | None = None,
        prior: float = 1.0,
        memory: float = 0.0,
        delta: float = 1.0,
        c: float | None = None,
        p_min: float = 0.0,
        initial_norms: ArrayLike | None = None,
        capacity: int | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, memory, delta, c, p_min, replacement=replacement, capacity=capacity, seed=seed)
        self._prior = validation.number("prior", prior, at_least=_SMALLEST_PRIOR, at_most=_LARGEST_PRIOR)
        if initial_norms is None:
            self._structure = CalibratedCells.unseen(self.n, prior=self._prior)
        else:
            self._structure = CalibratedCells(self._initial(initial_norms), prior=self._prior)
        self._default_decay = decay is None
        decay = self._decay_by_default() if decay is None else decay
        self._decay = self._decay_now = validation.number("decay", decay, above=0.0, at_most=1.0)

    def calibration(self) -> Calibration:
        """Return the remembered and the expected norm of each cell, from small norms to large ones. O(1).

        If the two agree, the remembered norms can be trusted.
        """
        with self._lock:
            found, unit = self._structure.calibration(), current_unit(self._moments, self.memory)
            return found._replace(remembered=unit * found.remembered, expected=unit * found.expected)

    @property
    def kernels(self) -> CalibratedState:
        return CalibratedState(
            self._structure.arrays,
            self._prior,
            self._decay_now,
            self.batch_size,
            self._schedule.constants,
            self.replacement,
            self._moments,
            self.memory,
        )

    def fields(self) -> Fields:
        build = partial(CalibratedCells.from_state, n=self.n, present=self.present, prior=self._prior)
        return {"structure": Nested(build)}

    def _resized(self) -> None:
        super()._resized()
        if self._default_decay:
            self._decay_now = self._decay_by_default()

    def _decay_by_default(self) -> float:
        return min(math.exp(-min(self.batch_size / (_EPOCHS * self.present), 1.0)), _SLOWEST)


_EPOCHS, _SLOWEST = 10.0, 0.999  # the default decay: how many epochs it looks back, and its largest value
_SMALLEST_PRIOR, _LARGEST_PRIOR = 1e-9, 1e9  # beyond these, either the prior or the sums would be rounded away


# --- kernels -------------------------------------------------------------------------------


class CalibratedState(NamedTuple):
    """What the kernels of `Calibrated` read and write."""

    structure: Any  # the arrays of `CalibratedCells`
    prior: float
    decay: float
    batch_size: int
    floor: tuple[float, ...]
    replacement: bool
    moments: NDArray[np.float64]
    memory: float


@lean
def _draw_kernel(state, step, source, indices, probabilities, weights):
    floor = floor_at(state.floor, step)
    draw(state.structure, state.prior, floor, state.replacement, source, indices, probabilities, weights)
    weigh_into(weights, probabilities, state.replacement)


@lean
def _learn_kernel(state, indices, norms):
    unit = unit_for(state.moments, state.memory, norms)
    learn(state.structure, state.decay ** (len(indices) / state.batch_size), indices, norms, unit, state.memory)


register_kernels(CalibratedState, draw=_draw_kernel, learn=_learn_kernel)
