"""The rule of Katharopoulos & Fleuret for `ImportanceLoader(pool=...)`, for comparisons."""

import math

from avare import _validation as validation
from avare.torch.loading.measures import PoolMeasures
from avare.torch.loading.pool_sizes import PoolSize

_INTERVAL = 100.0  # batches: while it is inactive, one is drawn from a pool, if no norms are reported


class UpperBound(PoolSize):
    r"""A pool of a fixed size while that is worth its forward pass (Katharopoulos & Fleuret, 2018): for comparisons.

    Pass it as ``pool=`` to an `ImportanceLoader` with ``sampler="Uniform"``, which remembers nothing. While inactive, a
    batch of m is drawn uniformly, with weights 1. While active, a pool of B is drawn uniformly and scored, and m of it
    are drawn in proportion to the scores. It is active as long as :math:`\tau` is above a threshold:

    .. math:: \tau \leftarrow a \tau + (1 - a) \sqrt{\textstyle B \sum_i g_i^2}, \qquad g_i = s_i / \sum_k s_k,

    from the scores of the pool, or from the norms of a uniform batch that `update` receives. If there are none, one
    batch in a hundred is drawn from a pool. The paper draws m of B with replacement. Here no example is drawn
    twice: the variance is smaller, and the weights are as unbiased. An example with score 0 is drawn only if fewer than
    m of the pool have a positive one.

    Parameters
    ----------
    ratio : float, default=3.0
        B / m, at least 1.
    smoothing : float, default=0.9
        a, in [0, 1).
    threshold : float, optional
        By default (B + 3m) / (3m), where drawing m of B pays. 0: always active; inf: never.

    Examples
    --------
    >>> import torch
    >>> from avare.torch import ImportanceLoader
    >>> dataset = torch.utils.data.TensorDataset(torch.linspace(0.0, 1.0, 60))
    >>> rule = UpperBound()
    >>> loader = ImportanceLoader(dataset, 6, sampler="Uniform", score=lambda batch: batch[0] ** 99, pool=rule, seed=0)
    >>> for epoch in range(3):
    ...     for (x,), index, weight in loader:
    ...         loader.update(index, x**99)
    >>> rule.tau > 2.0, loader.pool_ratio
    (True, 3.0)

    References
    ----------
    A. Katharopoulos, F. Fleuret. Not All Samples Are Created Equal: Deep Learning with Importance
    Sampling. ICML 2018.
    """

    floor = 0.0
    largest = 1e300

    def __init__(self, ratio: float = 3.0, *, smoothing: float = 0.9, threshold: float | None = None) -> None:
        super().__init__(ratio)
        self.smoothing = validation.number("smoothing", smoothing, at_least=0.0)
        if self.smoothing >= 1.0:
            raise ValueError(f"smoothing = {smoothing}: must be below 1")
        if threshold is None:
            threshold = 1.0 + ratio / 3.0
        elif threshold != math.inf:
            threshold = validation.number("threshold", threshold, at_least=0.0)
        self.threshold = threshold
        """The pool is on while tau is above it."""
        self.tau = 0.0
        """The possible gain within a pool, smoothed: the root of uniform's second moment over the least."""
        self.load([0.0])

    def observe(self, pool: PoolMeasures, unit_error: float) -> None:
        """Move tau towards the value of a pool or batch."""
        found = math.sqrt(max(1.0 + unit_error, 0.0))
        self.load([self.smoothing * self.tau + (1.0 - self.smoothing) * found])

    def interval(self, pool: PoolMeasures) -> float:
        """Return a fixed number; infinity if the pool can never be on."""
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
