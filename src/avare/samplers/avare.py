"""Avare: remember the last norm of each example, floor them, draw in proportion."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare import schedules
from avare._randomness import Seed
from avare._state import State
from avare.batch import Batch, weigh
from avare.samplers.base import Drawing, Sampler
from avare.samplers.registry import register
from avare.structures import Buckets, OrderTree


@register()
class Avare(Sampler):
    r"""Adaptive variance minimisation (El Hanchi & Stephens, 2020).

    With :math:`h_i` the last norm seen of example i, each step draws from

    .. math:: p = \arg\min \Big\{ \sum_i h_i^2 / p_i : p_i \ge \varepsilon_t, \textstyle\sum_i p_i = 1 \Big\},
              \qquad p_i = \max(h_i / \lambda, \varepsilon_t),

    with the floor :math:`\varepsilon_t = C^{\delta/3-1} (C + m(t-1))^{-\delta/3} + p_{\min}`.

    Choose it where steps shrink, or stay small. Its dynamic regret is then O(T^(2/3)) for SGD
    and O(T^(5/6)) for SGLD with step sizes falling as 1/t (with replacement, batch 1).

    Cost: O(batch_size) a step, whatever n. Memory: 13 bytes an example and 8 MB.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, draws a step.
    replacement
        Whether an index may come twice in a batch. Without replacement the variance is
        smaller, and so is the age of what is remembered.
    delta
        In (0, 1]: for step sizes falling as t^-b, b for SGD and b/2 for SGLD.
    c
        C, at least (and by default) 1 / (1/n - p_min), at most a million n.
    p_min
        In [0, 1/n], what the floor falls to: 0 for decreasing steps; 1 / (5n) is a safe choice
        for constant steps.
    initial_norms
        What to remember at the start; by default 0 for each, which draws uniformly at first
        and keeps drawing unseen examples with the floor's probability.
    structure
        "buckets", in constant time, or "order_tree", the paper's own, in O(n): the reference.
    seed
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

    takes = ("p_min",)

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        replacement: bool = False,
        delta: float = 1.0,
        c: float | None = None,
        p_min: float = 0.0,
        initial_norms: ArrayLike | None = None,
        structure: Literal["buckets", "order_tree"] = "buckets",
        seed: Seed = None,
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._schedule = schedules.floor(self.n, self.batch_size, delta, c, p_min)
        if structure not in tuple(_STRUCTURES):
            raise ValueError(f"structure = {structure!r}: must be one of {', '.join(map(repr, _STRUCTURES))}")
        self.structure = structure
        kind = _STRUCTURES[structure]
        if initial_norms is None:
            self._memory: Buckets | OrderTree = kind.zeros(self.n)
        else:
            norms = validation.nonnegative("initial_norms", initial_norms)
            validation.same_length("initial_norms", len(norms), "n", self.n)
            self._memory = kind(norms)

    @property
    def floor(self) -> float:
        """The smallest probability at the next draw. O(1)."""
        return self._schedule(self._steps + 1)

    def norms(self) -> NDArray[np.float64]:
        """What is remembered of each example. O(N)."""
        with self._lock:
            return self._memory.norms()

    def _probabilities(self) -> NDArray[np.float64]:
        return self._memory.probabilities(self.floor)

    def _draw(self) -> Batch:
        indices, probabilities = self._memory.draw(
            self.batch_size, replacement=self.replacement, source=self._source, floor=self.floor
        )
        return Batch(indices, weigh(probabilities, self.replacement), probabilities)

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._memory.replace(indices, norms)

    def _compiled(self) -> Drawing | None:
        if not isinstance(self._memory, Buckets):
            return None
        return Drawing(self._memory.arrays, self._schedule.c, self._schedule.delta, self._schedule.p_min)

    def _arguments(self) -> State:
        return {
            **super()._arguments(),
            "delta": self._schedule.delta,
            "c": self._schedule.c,
            "p_min": self._schedule.p_min,
            "structure": self.structure,
        }

    def _state(self) -> State:
        return self._memory.state()

    def _restore(self, state: State) -> None:
        self._memory = _STRUCTURES[self.structure].from_state(state, self.n)


_STRUCTURES: dict[str, type[Buckets] | type[OrderTree]] = {"buckets": Buckets, "order_tree": OrderTree}
