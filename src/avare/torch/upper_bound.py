"""UpperBound: score a uniform pool of examples with the model, and draw the batch from the pool."""

import math
from collections.abc import Callable
from typing import Any

from avare import _validation as validation
from avare.torch.batch_sampler import Values
from avare.torch.indexed import check_dataset
from avare.torch.loader import ImportanceLoader
from avare.torch.pool import Pool, Rule

_INTERVAL = 100.0  # batches: while inactive, one is drawn from a pool nevertheless, if no norms are reported


class UpperBoundLoader(ImportanceLoader):
    r"""Draw batches by importance from a uniform pool that the model scores (Katharopoulos & Fleuret, 2018).

    An `ImportanceLoader` whose first stage is `Uniform`, with a pool of a fixed size B. While inactive, a batch
    of m is drawn uniformly, with weights 1. While active, a pool of B is drawn uniformly and scored, and m of it are
    drawn in proportion to the scores. It is active as long as :math:`\tau` is above (B + 3m) / (3m), where drawing
    m of B is worth the forward pass over B:

    .. math:: \tau \leftarrow a \tau + (1 - a) \sqrt{\textstyle B \sum_i g_i^2}, \qquad g_i = s_i / \sum_k s_k,

    from the scores of the pool, or from the norms of a uniform batch that `update` receives. If there are none, one
    batch in a hundred is drawn from a pool. The paper draws m of B with replacement. Here no example is
    drawn twice: the variance is smaller, and the weights are as unbiased.

    The loader remembers nothing about examples, so nothing becomes stale. `ImportanceLoader` with ``score=``
    remembers the scores, and needs smaller pools.

    Parameters
    ----------
    dataset, score, batch_size, **options
        See `ImportanceLoader`; all of its other arguments but ``sampler`` and ``pool``. An example with score 0 is
        drawn only if fewer than m of the pool have a positive one.
    pool_size
        B, at least m; by default 3 m, or n if that is less.
    smoothing
        a, in [0, 1).
    threshold
        The loader is active while tau is above it; by default (B + 3m) / (3m). 0: always; inf: never.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> dataset = TensorDataset(torch.linspace(0.0, 1.0, 60))
    >>> loader = UpperBoundLoader(dataset, lambda batch: batch[0] ** 99, batch_size=6, seed=0)
    >>> for epoch in range(3):
    ...     for (x,), index, weight in loader:
    ...         loader.update(index, x**99)
    >>> len(loader), loader.epoch, loader.active, loader.tau > 2.0
    (10, 3, True, True)

    References
    ----------
    A. Katharopoulos, F. Fleuret. Not All Samples Are Created Equal: Deep Learning with Importance
    Sampling. ICML 2018.
    """

    def __init__(
        self,
        dataset: Any,
        score: Callable[[Any], Values],
        batch_size: int = 128,
        *,
        pool_size: int | None = None,
        smoothing: float = 0.9,
        threshold: float | None = None,
        **options: Any,
    ) -> None:
        check_dataset(dataset)
        n = validation.integer("n", len(dataset), at_least=1)
        size = validation.integer("batch_size", batch_size, at_least=1, at_most=n)
        pool_size = min(3 * size, n) if pool_size is None else pool_size
        self.pool_size = validation.integer("pool_size", pool_size, at_least=size, at_most=n)
        smoothing = validation.number("smoothing", smoothing, at_least=0.0)
        if smoothing >= 1.0:
            raise ValueError(f"smoothing = {smoothing}: must be below 1")
        if threshold is None:
            threshold = (self.pool_size + 3 * size) / (3 * size)
        elif threshold != math.inf:
            threshold = validation.number("threshold", threshold, at_least=0.0)
        self._rule = Tau(self.pool_size / size, smoothing, float(threshold))
        super().__init__(dataset, batch_size, sampler="Uniform", score=score, pool=self._rule, **options)

    @property
    def tau(self) -> float:
        """The possible gain within a pool, smoothed: the root of uniform's second moment over the least."""
        return self._rule.tau

    @property
    def threshold(self) -> float:
        """The loader is active while tau is above it."""
        return self._rule.threshold

    @property
    def active(self) -> bool:
        """Whether the next draw is a pool."""
        return self.pool_ratio > 1.0

    def log(self, writer: Any, step: int, prefix: str = "avare") -> None:
        """Write ``tau`` and ``active`` (1 or 0), and what `ImportanceLoader.log` writes."""
        super().log(writer, step, prefix)
        for name, value in (("tau", self.tau), ("active", float(self.active))):
            writer.add_scalar(f"{prefix}/{name}", value, step)


class Tau(Rule):
    """A pool of a fixed size while tau is above a threshold, otherwise none."""

    floor = 0.0
    largest = 1e300

    def __init__(self, ratio: float, smoothing: float, threshold: float) -> None:
        super().__init__(ratio)
        self.smoothing, self.threshold = smoothing, threshold
        self.load([0.0])

    def observe(self, pool: Pool, unit_error: float) -> None:
        """Move tau towards that of a pool or batch."""
        found = math.sqrt(max(1.0 + unit_error, 0.0))
        self.load([self.smoothing * self.tau + (1.0 - self.smoothing) * found])

    def interval(self, pool: Pool) -> float:
        """Return a fixed number; if the loader can never be active, infinity."""
        return _INTERVAL if self.threshold < math.inf else math.inf

    def __repr__(self) -> str:
        return f"{self.probe:g}, smoothing {self.smoothing:g}, threshold {self.threshold:g}"

    def state(self) -> list[float]:
        """Return tau."""
        return [self.tau]

    def load(self, numbers: list[float]) -> None:
        """Restore tau, and decide again."""
        (self.tau,) = numbers
        self.ratio = self.probe if self.tau > self.threshold or self.threshold == 0.0 else 1.0
