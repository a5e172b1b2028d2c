"""How large a pool is, in batches: always the same, as large as pays, or by a rule of your own.

Let c be the time to train on an example over the time that a pool takes for one, and RE the relative error of the
sampler's distribution. A step with a pool of kappa batches takes a time of kappa + c, and its noise is proportional to
1 + RE / kappa. The product is least at kappa = sqrt(c RE), and is less than without a pool if RE > 4c / (c - 1)^2: see
`best_ratio`. `avare.torch.loading.measures` has both numbers during training.
"""

import math

from avare import _validation as validation
from avare.torch.loading.measures import FIRST_POOLS, PoolMeasures

LARGEST_RATIO = 5.0
"""The largest pool that "auto" draws, in batches."""
LEAST_RATIO = 1.25
"""The smallest pool that "auto" draws, in batches."""
_MOST_EXTRA = 0.5  # of the time of a step without a pool, which "auto" may spend on pools
_MARGIN = 0.9  # of the time and noise without a pool: a pool that takes more is not switched on
_WITH_POOLS = 0.5  # the part of uniform's relative error that a sampler is expected to have, until it is measured
_LEARNING = 0.1  # the weight of a new measurement of that part
_PROBE = 2.0  # batches: the size of the first pools, and of the pools that are drawn now and then
_FOR_PROBES = 0.01  # the part of the time that these may take, while the pool is off


def best_ratio(
    relative_error: float,
    cost_ratio: float,
    most: float = math.inf,
    without: float | None = None,
    margin: float = 1.0,
) -> float:
    """Return how many batches a pool should have, at most ``most``; 1 if no pool pays.

    Parameters
    ----------
    relative_error : float
        That of the sampler's distribution: `avare.diagnostics.relative_error`.
    cost_ratio : float
        c: the time to train on an example, over the time that a pool takes for one.
    without : float, optional
        The relative error that the sampler would have without pools; by default the same.
    margin : float, default=1.0
        A pool pays if its product of time and noise is below this part of the product without a pool.

    Examples
    --------
    >>> best_ratio(3.0, 12.0), best_ratio(3.0, 12.0, most=4.0), best_ratio(0.3, 12.0), best_ratio(9.0, 1.0)
    (6.0, 4.0, 1.0, 1.0)
    """
    if not (relative_error >= 0.0 and cost_ratio > 0.0):  # also if one is not known yet
        return 1.0
    without = relative_error if without is None else without
    ratio = min(max(math.sqrt(cost_ratio * relative_error), LEAST_RATIO), most)
    pays = (ratio + cost_ratio) * (1.0 + relative_error / ratio) < margin * cost_ratio * (1.0 + without)
    return ratio if pays and ratio > 1.0 else 1.0


class PoolSize:
    """How large the next pool is: always the same number of batches.

    Derive from it for a rule of your own, and pass an object as ``pool=``. ``benchmarks/nets/upper_bound.py`` does so.
    """

    floor = 0.1
    """The smallest probability of the second draw, in units of m / M."""
    largest = LARGEST_RATIO
    """The largest number that `state` returns."""
    shuffles = False
    """Whether batches are shuffled passes while there is no pool, and no norms are reported."""

    def __init__(self, ratio: float) -> None:
        self.ratio = validation.number("pool", ratio, at_least=1.0)
        """The size of the next pool, in batches; 1 while there is none."""
        self.probe = self.ratio
        """The size of the pools that are drawn now and then while there is none."""

    def observe(self, pool: PoolMeasures, unit_error: float) -> None:
        """Learn from a pool, or a batch, whose norms are known; ``unit_error`` is its own relative error."""

    def interval(self, pool: PoolMeasures) -> float:
        """Return every how many batches a pool is drawn while there is none, and no norms are reported."""
        return math.inf

    def __repr__(self) -> str:
        return f"{self.ratio:g}"

    def state(self) -> list[float]:
        """Return what must be saved: numbers."""
        return []

    def load(self, numbers: list[float]) -> None:
        """Restore what `state` returned."""


class AutomaticSize(PoolSize):
    """The ratio of `best_ratio`, with what the pool measures.

    Pools keep the remembered norms fresh; without pools the norms become stale. So the relative error of the sampler
    differs. We measure it, as a fraction of uniform's error, with pools and without. At first we take it to be half of
    uniform's with pools, and all of it without.

    A step with a pool takes at most 1.5 times as long as one without: kappa is at most c / 2.
    """

    shuffles = True

    def __init__(self) -> None:
        super().__init__(_PROBE)
        self.load([0.0, 1.0, _WITH_POOLS])

    def observe(self, pool: PoolMeasures, unit_error: float) -> None:
        """Decide again."""
        uniform, cost = pool.possible_gain - 1.0, pool.cost_ratio
        if pool.scored < FIRST_POOLS or not (uniform > 0.0 and cost > 0.0):  # also if one is not known
            return
        share = min(pool.relative_error / uniform, 1.0)
        if self.ratio == 1.0:
            self._without = share if pool.is_reported else 1.0
        self._with += _LEARNING * ((share if self.ratio > 1.0 else _WITH_POOLS) - self._with)
        most = min(LARGEST_RATIO, pool.largest_ratio, _MOST_EXTRA * cost)
        margin = 1.0 if self.ratio > 1.0 else _MARGIN  # so that a pool is not switched on and off again
        self.ratio = best_ratio(self._with * uniform, cost, most, self._without * uniform, margin)

    def interval(self, pool: PoolMeasures) -> float:
        """Return 2 for the first batches, then twice as many each time, up to what costs one per cent of the time.

        A pool that does not pay yet may soon do so: norms are alike in a net that has not been trained.
        """
        cost = pool.cost_ratio
        most = min(max(self.probe / (_FOR_PROBES * cost), 4.0), 1000.0) if cost > 0.0 else 1000.0  # also if not known
        return min(2.0 ** min(max(pool.scored - FIRST_POOLS, 1), 10), most)

    def __repr__(self) -> str:
        return "auto"

    def state(self) -> list[float]:
        """Return by how much the ratio is above 1, exactly, and the parts of uniform's relative error."""
        return [self.ratio - 1.0, self._without, self._with]

    def load(self, numbers: list[float]) -> None:
        """Restore what `state` returned."""
        above, self._without, self._with = numbers
        self.ratio = 1.0 + above
