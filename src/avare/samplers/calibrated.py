"""Calibrated: remember the last norm of each example, and learn what to expect of such a memory."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare import schedules
from avare._randomness import Seed
from avare._state import State
from avare.batch import Batch, weigh
from avare.samplers.base import Sampler
from avare.samplers.registry import register
from avare.structures.expectations import Calibration, Expectations


@register()
class Calibrated(Sampler):
    r"""Draws in proportion to the norm to be expected, given the norm remembered.

    With :math:`h_i` the last norm seen of example i, the best distribution is
    :math:`p_i \propto \sqrt{E[n_i^2 \mid h_i]}`. `Avare` takes :math:`h_i^2` for the expectation. Here
    it is learned from the draws: examples are grouped into cells c by h, within a factor 9/8, those
    never seen in a cell of their own. Each cell averages the squares of the norms that its members
    turn out to have,

    .. math:: v_c = \Big(\sum n^2 + \kappa h_c^2\Big) \Big/ \Big(\sum 1 + \kappa\Big), \qquad
              p_i = \max(\sqrt{v_c} / \lambda, \varepsilon_t),

    with sums that forget, :math:`h_c` the mean norm remembered in the cell, and the floor
    :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}` of `Avare`.

    Choose it where steps stay large, as for neural networks: norms remembered from before are then
    out of date, most of all the small ones, and trusting them can be worse than drawing uniformly.
    Where norms settle, it becomes `Avare`: each p within about a factor 9/8 of its own, the variance
    within 0.4 %. The paper's regret bound is not proved for it.

    A square goes to the cell in which its example stands before the update that tells it. Of those
    never seen, what others of them turned out to have is expected, with the mean of v over all
    examples seen in place of :math:`h_c^2`.

    Cost: O(batch_size) a step, whatever n. Memory: 13 bytes an example and 4 MB.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, draws a step.
    replacement
        Whether an index may come twice in a batch.
    decay
        In (0, 1]: by what the weight of earlier norms falls for each batch_size norms told; 1
        forgets nothing. By default exp(-m / 10n), but at most 0.999: it looks back about ten epochs,
        or a thousand steps if these are fewer.
    prior
        kappa, above 0: how many norms the remembered one counts for.
    delta
        In (0, 1]: for step sizes falling as t^-b, b for SGD and b/2 for SGLD.
    c
        C, at least (and by default) 1 / (1/n - p_min), at most a million n.
    p_min
        In [0, 1/n], what the floor falls to: 0 for decreasing steps; 1 / (5n) costs little for steps
        that stay large.
    initial_norms
        What to remember at the start; by default nothing.
    seed
        See `Sampler`.

    Examples
    --------
    >>> norms = np.array([1.0, 2.0, 30.0, 4.0])
    >>> sampler = Calibrated(4, batch_size=2, decay=0.999, seed=0)
    >>> for _ in range(200):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, norms[batch.indices])
    >>> sampler.probabilities().round(2)
    array([0.05, 0.05, 0.79, 0.11])

    Norms without a memory: whatever is remembered, the same is expected.

    >>> generator = np.random.default_rng(1)
    >>> for _ in range(5000):
    ...     batch = sampler.sample()
    ...     sampler.update(batch.indices, generator.choice([1.0, 2.0], size=2))
    >>> sampler.probabilities().round(2)
    array([0.25, 0.25, 0.25, 0.25])
    >>> sampler.calibration().remembered, sampler.calibration().expected.round(1)
    (array([1., 2.]), array([1.6, 1.6]))
    """

    takes = ("p_min",)

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        decay: float | None = None,
        prior: float = 1.0,
        delta: float = 1.0,
        c: float | None = None,
        p_min: float = 0.0,
        initial_norms: ArrayLike | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        if decay is None:
            decay = min(math.exp(-min(self.batch_size / (_EPOCHS * self.n), 1.0)), _SLOWEST)
        self._decay = validation.number("decay", decay, above=0.0, at_most=1.0)
        self._prior = validation.number("prior", prior, at_least=_SMALLEST_PRIOR, at_most=_LARGEST_PRIOR)
        self._schedule = schedules.floor(self.n, self.batch_size, delta, c, p_min)
        if initial_norms is None:
            self._memory = Expectations.unseen(self.n, prior=self._prior)
        else:
            norms = validation.nonnegative("initial_norms", initial_norms)
            validation.same_length("initial_norms", len(norms), "n", self.n)
            self._memory = Expectations(norms, prior=self._prior)

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self._steps + 1)

    def norms(self) -> NDArray[np.float64]:
        """What is remembered of each example; nan where it was never seen. O(N)."""
        with self._lock:
            return self._memory.norms()

    def calibration(self) -> Calibration:
        """What is remembered and what is expected, cell by cell, from small norms to large ones. O(1).

        Where the two are the same, the memory can be trusted.
        """
        with self._lock:
            return self._memory.calibration()

    def _probabilities(self) -> NDArray[np.float64]:
        return self._memory.probabilities(self.floor)

    def _draw(self) -> Batch:
        indices, probabilities = self._memory.draw(
            self.batch_size, replacement=self.replacement, source=self._source, floor=self.floor
        )
        return Batch(indices, weigh(probabilities, self.replacement), probabilities)

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._memory.replace(indices, norms, keep=self._decay ** (len(indices) / self.batch_size))

    def _arguments(self) -> State:
        return {
            **super()._arguments(),
            "decay": self._decay,
            "prior": self._prior,
            "delta": self._schedule.delta,
            "c": self._schedule.c,
            "p_min": self._schedule.p_min,
        }

    def _state(self) -> State:
        return self._memory.state()

    def _restore(self, state: State) -> None:
        self._memory = Expectations.from_state(state, self.n, prior=self._prior)


_EPOCHS, _SLOWEST = 10.0, 0.999  # how far it looks back, and the decay at most, unless told otherwise
_SMALLEST_PRIOR, _LARGEST_PRIOR = 1e-9, 1e9  # beyond these it would be lost in the sums, or they in it
