"""The second stage: score a pool with the model as it is now, and draw the batch from the pool.

Memory says cheaply where to look; a forward pass says what is there now. With batches of m and pools of
M = ceil(kappa m):

1. The sampler draws the pool, with weights w for the sum over all examples.
2. The model scores the pool: s is a norm, or a bound. All scores go to the sampler's memory.
3. m of the pool are drawn, each at most once, with probabilities pi in proportion to w s where that is possible, and
   at least ``floor`` m / M (`avare.structures.systematic`). The weight of an example in the batch is w / pi.

This is unbiased for any scores: the batch given the pool, the pool given the past. Weights are at most kappa / floor
times those of the pool.

*How large a pool.* With c the time to train on an example over the time that a pool takes for one, and RE the relative
error of the sampler's distribution, a step takes kappa + c, and its noise is proportional to 1 + RE / kappa. The
product is least at kappa = sqrt(c RE), and is less than without a pool if RE > 4c / (c - 1)^2: see `best_ratio`. Both
numbers are measured during training. While a pool does not pay, a small one is drawn now and then, for at most one per
cent of the time, to notice when it pays again. The batches between are shuffled passes, since nothing keeps the memory
fresh; if the consumer reports norms, it is fresh, and they come straight from the sampler. `Automatic` has the rest.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.module import register_module_forward_pre_hook

from avare import _validation as validation
from avare._compilation import lean
from avare._randomness import uniform_source
from avare._state import Field, State, generator_to_text
from avare.batch import Batch
from avare.structures.systematic import choose

ScoreMode = Literal["eval"] | None
STATE_FIELDS = ("pool_moments", "pool_costs", "pool_counts", "pool_rule", "pool_generator")
LARGEST_RATIO = 8.0
"""The largest pool that "auto" draws, in batches."""
LEAST_RATIO = 1.25
"""The smallest pool that "auto" draws, in batches."""
_DECAY = 0.8  # of the moments, per observation
_DECAY_APART = 0.5  # ... that was made many batches after the one before
_FIRST = 10  # pools before the first decision
_WITH_POOLS = 0.5  # the part of uniform's relative error that a sampler is expected to have, until it is measured
_LEARNING = 0.1  # the weight of a new measurement of that part
_PROBE = 2.0  # batches: the size of these pools, and of those that are drawn now and then
_FOR_PROBES = 0.01  # the part of the time that these may take, while the pool is off
_RECENT = 64  # measured times, of which the least counts: other processes make the others longer, by any factor
_RARELY = 8  # pools: the least is found again
_SMALLEST, _LARGEST = 1e-140, 1e140  # other scores count as these in the moments: their squares stay in range


def best_ratio(relative_error: float, cost_ratio: float, most: float = math.inf, without: float | None = None) -> float:
    """Return how many batches a pool should have, at most ``most``; 1 if no pool pays.

    Parameters
    ----------
    relative_error
        That of the sampler's distribution: `avare.diagnostics.relative_error`.
    cost_ratio
        c: the time to train on an example, over the time that a pool takes for one.
    without
        The relative error that the sampler would have without pools; by default the same.

    Examples
    --------
    >>> best_ratio(3.0, 12.0), best_ratio(3.0, 12.0, most=4.0), best_ratio(0.3, 12.0), best_ratio(9.0, 1.0)
    (6.0, 4.0, 1.0, 1.0)
    """
    if not (relative_error >= 0.0 and cost_ratio > 0.0):  # also if one is not known yet
        return 1.0
    without = relative_error if without is None else without
    ratio = min(max(math.sqrt(cost_ratio * relative_error), LEAST_RATIO), most)
    pays = (ratio + cost_ratio) * (1.0 + relative_error / ratio) < cost_ratio * (1.0 + without)
    return ratio if pays and ratio > 1.0 else 1.0


class Rule:
    """How large the next pool is: always the same number of batches."""

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

    def observe(self, pool: "Pool", unit_error: float) -> None:
        """Learn from a pool, or a batch, whose norms are known; ``unit_error`` is its own relative error."""

    def interval(self, pool: "Pool") -> float:
        """Return every how many batches a pool is drawn while there is none, and no norms are reported."""
        return math.inf

    def __repr__(self) -> str:
        return f"{self.ratio:g}"

    def state(self) -> list[float]:
        """Return what must be saved: numbers."""
        return []

    def load(self, numbers: list[float]) -> None:
        """Restore what `state` returned."""


class Automatic(Rule):
    """The ratio of `best_ratio`, with what the pool measures.

    Pools keep the memory fresh, and without them it becomes stale. So the relative error of the sampler is not the same
    with pools and without. Which part of uniform's it is, is measured in both states. At first it is taken to be all of
    it without pools, and half of it with them.
    """

    shuffles = True

    def __init__(self) -> None:
        super().__init__(_PROBE)
        self.load([0.0, 1.0, _WITH_POOLS])

    def observe(self, pool: "Pool", unit_error: float) -> None:
        """Decide again."""
        error, uniform = pool.relative_error, pool.possible_gain - 1.0
        if pool.scored < _FIRST or not uniform > 0.0:  # also if it is not known
            return
        share = min(error / uniform, 1.0)
        if self.ratio == 1.0:
            self._without = share if pool.is_reported else 1.0
        self._with += _LEARNING * ((share if self.ratio > 1.0 else _WITH_POOLS) - self._with)
        most = min(LARGEST_RATIO, pool.most / pool.size)
        self.ratio = best_ratio(self._with * uniform, pool.cost_ratio, most, self._without * uniform)

    def interval(self, pool: "Pool") -> float:
        """Return 2 for the first batches, then twice as many each time, up to what costs one per cent of the time.

        A pool that does not pay yet may soon do so: norms are alike in a net that has not been trained.
        """
        cost = pool.cost_ratio
        most = min(max(self.probe / (_FOR_PROBES * cost), 4.0), 1000.0) if cost > 0.0 else 1000.0  # also if not known
        return min(2.0 ** min(max(pool.scored - _FIRST, 1), 10), most)

    def __repr__(self) -> str:
        return "auto"

    def state(self) -> list[float]:
        """Return by how much the ratio is above 1, exactly, and the parts of uniform's relative error."""
        return [self.ratio - 1.0, self._without, self._with]

    def load(self, numbers: list[float]) -> None:
        """Restore what `state` returned."""
        above, self._without, self._with = numbers
        self.ratio = 1.0 + above


class Pool:
    """Scores pools and draws batches from them; measures what that costs and saves.

    Cost per pool, beyond the call of ``score``: O(M log M).

    Parameters
    ----------
    score
        A function of a collated pool that returns a score for each example.
    mode
        "eval" to score in evaluation mode, None to leave the model as it is.
    rule
        How large the next pool is.
    cost_ratio
        c, if it is not to be measured.
    """

    def __init__(self, score: Callable[[Any], Any], mode: ScoreMode, rule: Rule, cost_ratio: float | None) -> None:
        if not callable(score):
            raise TypeError(f"score is of type {type(score).__name__}: must be a function of a batch")
        if mode not in (None, "eval"):
            raise ValueError(f"score_mode = {mode!r}: must be 'eval' or None")
        self.score, self.rule = score, rule
        self._mode = mode
        self._given = None if cost_ratio is None else validation.number("cost_ratio", cost_ratio, above=0.0)
        self.scored = 0
        """How many pools have been scored."""
        self.is_reported = False
        """Whether the consumer has reported norms."""
        self.weights: NDArray[np.float32] | None = None
        """The weights of the last batch, if it was drawn from a pool."""
        self._since = 0  # batches that were drawn since a pool was, or norms were reported
        self._moments = np.zeros(4)  # decaying sums: 1, and those of `_add`
        self._costs = np.full(3, np.nan)  # see `costs`; the same on all ranks
        self._own = self._costs  # those that this rank has measured
        self._loads: deque[float] = deque(maxlen=_RECENT)  # seconds, as measured by this rank
        self._pools: deque[tuple[float, int]] = deque(maxlen=_RECENT)  # seconds until the batch is returned, and sizes
        self._steps: deque[float] = deque(maxlen=_RECENT)
        self._asked = self._returned = math.nan
        self._scored = 0  # the size of the pool that this batch comes from

    def __repr__(self) -> str:
        given = "" if self._given is None else f", cost ratio {self._given:g}"
        return f"{self.rule}{given}"

    def join(self, n: int, batch_size: int, most: float, generator: np.random.Generator) -> None:
        """Learn what the loader draws from: n examples, batches of this size, pools of at most ``most``."""
        self.n, self.size, self.most = n, batch_size, most
        self._seed_with(generator)
        if self._size_of(self.rule.ratio) > most:
            raise ValueError(
                f"pool = {self.rule}: {self._size_of(self.rule.ratio)} examples per process cannot be drawn without "
                f"replacement; pass at most {most / batch_size:g}, or replacement=True"
            )

    def next_size(self) -> int:
        """Return how many examples this rank draws next, and count the draw."""
        ratio = self.rule.ratio
        self._since += 1
        if ratio > 1.0:
            self._since = 0
        elif self._since >= self.rule.interval(self):
            self._since, ratio = 0, self.rule.probe
        return int(min(self._size_of(ratio), self.most))

    def _size_of(self, ratio: float) -> int:
        return math.ceil(ratio * self.size - 1e-9)

    @property
    def relative_error(self) -> float:
        """The relative error of the sampler's distribution, from recent scores; NaN until there are any."""
        count, _, own, norm = self._moments
        return max(float(own * count / norm**2) - 1.0, 0.0) if norm > 0.0 else math.nan

    @property
    def possible_gain(self) -> float:
        """Uniform's second moment over the least, from recent scores; NaN until there are any."""
        count, uniform, _, norm = self._moments
        return float(uniform * count / norm**2) if norm > 0.0 else math.nan

    @property
    def draws_passes(self) -> bool:
        """Whether batches are shuffled passes while there is no pool: nothing keeps the memory fresh."""
        return self.rule.shuffles and not self.is_reported

    @property
    def gain(self) -> float:
        """Uniform's second moment over that of the next batch; NaN until there are scores."""
        if self.scored and self.rule.ratio == 1.0 and self.draws_passes:
            return 1.0
        return self.possible_gain / (1.0 + self.relative_error / self.rule.ratio)

    @property
    def cost_ratio(self) -> float:
        """The time to train on an example over the time that a pool takes for one; NaN until it is known."""
        if self._given is not None:
            return self._given
        load, more, train = self._costs
        return float((train + load) / self.size / max(more, 1e-12))

    def begins(self) -> None:
        """Note that an iteration begins: what the consumer did before was not a step."""
        self._returned = math.nan

    def is_asked(self) -> None:
        """Note that the consumer asks for its next batch."""
        self._asked, self._scored = time.perf_counter(), 0
        if not math.isnan(self._returned):
            self._steps.append(self._asked - self._returned)

    def returns(self) -> None:
        """Note that the consumer gets its batch now."""
        self._returned = time.perf_counter()
        if self._scored == 0:
            self._loads.append(self._returned - self._asked)
        else:
            self._pools.append((self._returned - self._asked, self._scored))

    def scores(self, batch: Any, size: int) -> NDArray[np.float64]:
        """Call ``score``, and check what it returns."""
        if torch.cuda.is_initialized():
            began = time.perf_counter()
            torch.cuda.synchronize()  # what is still running belongs to the last step
            self._asked += time.perf_counter() - began
        with torch.no_grad():
            found = self.score(batch) if self._mode is None else _in_evaluation_mode(self.score, batch)
        scores = _common(found, size)
        if scores is None:
            scores = validation.nonnegative("score(batch)", found)
            if len(scores) != size:
                raise ValueError(f"score(batch) has length {len(scores)}: must have {size}, one for each example")
        self._scored = size
        return scores

    def costs(self) -> NDArray[np.float64]:
        """Return what this rank has measured, a few pools ago at most.

        The seconds to load a batch without a pool; those that a pool takes in addition, for each of its examples; and
        those that the consumer takes for a batch.
        """
        if self.scored < _FIRST or self.scored % _RARELY == 0:
            load, train = min(self._loads, default=0.0), min(self._steps, default=math.nan)
            more = min((max(seconds - load, 0.0) / size for seconds, size in self._pools), default=math.nan)
            self._own = np.array([load, more, train])
        return self._own

    def take_costs(self, of_ranks: NDArray[np.float64]) -> None:
        """Use the mean of the ranks' costs."""
        self._costs = of_ranks[0] if len(of_ranks) == 1 else of_ranks.mean(axis=0)
        self.scored += 1

    def observe(self, batch: Batch, norms: NDArray[np.float64]) -> None:
        """Learn from a pool or a batch of all ranks whose norms are known."""
        apart = self.rule.ratio == 1.0 and self._since == 0
        if self.scored >= _FIRST:  # before that, pools are drawn to measure what they cost
            self._since = 0
        decay = _DECAY_APART if apart else _DECAY
        error = _add(self._moments, decay, self.n, batch.weights, batch.probabilities, norms)
        self.rule.observe(self, float(error))

    def draw(
        self, weights: NDArray[np.float64], scores: NDArray[np.float64], before: int, after: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the places of the batch in the pool, and their weights.

        ``before`` and ``after`` are the numbers of examples that belong to other ranks: all ranks use the same
        generator, and each its own numbers.
        """
        places, drawn = np.empty(self.size, dtype=np.int64), np.empty(self.size, dtype=np.float32)
        choose(weights, scores, self.rule.floor, self._source, before, after, places, drawn)
        self.weights = drawn
        return places, drawn.copy()

    @contextlib.contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """Take a draw back if an error follows in this context: the next draw is the same."""
        before = self._generator.bit_generator.state
        try:
            yield
        except BaseException:
            self._generator.bit_generator.state = before
            raise

    def state(self) -> State:
        """Return all that must be saved, by the names of `STATE_FIELDS`."""
        return {
            "pool_moments": torch.from_numpy(self._moments.copy()),
            "pool_costs": torch.from_numpy(self._costs.copy()),
            "pool_counts": torch.tensor([self.scored, self._since, self.is_reported]),
            "pool_rule": torch.tensor(self.rule.state(), dtype=torch.float64),
            "pool_generator": generator_to_text(self._generator),
        }

    def fields(self) -> dict[str, Field]:
        """Declare what `state` returns, with arrays in place of tensors."""
        return {
            "pool_moments": Field(np.float64, (4,), at_least=0.0),
            "pool_costs": Field(np.float64, (3,), at_least=0.0, also=math.nan),
            "pool_counts": Field(np.int64, (3,), at_least=0, at_most=1 << 62),
            "pool_rule": Field(np.float64, (len(self.rule.state()),), at_least=0.0, at_most=self.rule.largest),
            "pool_generator": Field(np.random.Generator),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `fields` declares, checked."""
        self._moments, self._costs = state["pool_moments"].copy(), state["pool_costs"].copy()
        self._own = self._costs
        self.scored, self._since, is_reported = state["pool_counts"].tolist()
        self.is_reported = bool(is_reported)
        self.rule.load(state["pool_rule"].tolist())
        self._seed_with(state["pool_generator"])
        load, more, train = self._costs.tolist()
        for times in (self._loads, self._pools, self._steps):
            times.clear()
        if not math.isnan(load + more):
            self._loads.append(load)
            self._pools.append((load + more, 1))
        if not math.isnan(train):
            self._steps.append(train)
        self.weights = None

    def _seed_with(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._source = uniform_source(generator)


class Timed(Iterator[Any]):
    """The loaded units of an iteration; it notes when the consumer asks for each."""

    def __init__(self, pool: Pool, loaded: Iterator[Any]) -> None:
        self._pool = pool
        self._loaded = loaded
        pool.begins()

    def __next__(self) -> Any:
        self._pool.is_asked()
        return next(self._loaded)


def _common(found: Any, size: int) -> NDArray[np.float64] | None:
    """Return scores in the common case: ``size`` valid ones in a vector of float32 on the CPU. Otherwise None."""
    if not (type(found) is torch.Tensor and found.dtype is torch.float32 and found.is_cpu):
        return None
    if found.shape != (size,) or found.requires_grad or not found.is_contiguous():
        return None
    scores = np.empty(size)
    return scores if _are_copied(found.numpy(), scores) else None


def _in_evaluation_mode(score: Callable[[Any], Any], batch: Any) -> Any:
    """Score with every module in evaluation mode when it is called, and put it back at the end."""
    switched: list[torch.nn.Module] = []

    def switch(module: torch.nn.Module, _: Any) -> None:
        if module.training:
            found = [each for each in module.modules() if each.training]
            switched.extend(found)
            for each in found:
                each.training = False

    handle = register_module_forward_pre_hook(switch)
    try:
        return score(batch)
    finally:
        handle.remove()
        for each in switched:
            each.training = True


# --- kernels -------------------------------------------------------------------------------


@lean
def _are_copied(values, copies):
    """Copy numbers, and return whether all are finite and not negative."""
    for j in range(len(values)):
        if not 0.0 <= values[j] < np.inf:
            return False
        copies[j] = values[j]
    return True


@lean
def _add(moments, decay, n, weights, probabilities, norms):
    """Add the second moments of uniform sampling and of the draws, and the sum of norms; return the relative error."""
    uniform, own, total = 0.0, 0.0, 0.0
    for j in range(len(norms)):
        norm = min(max(norms[j], _SMALLEST), _LARGEST) if norms[j] > 0.0 else 0.0
        total += weights[j] * norm
        uniform += n * weights[j] * norm * norm
        own += weights[j] * norm * norm / probabilities[j]
    moments[0] = decay * moments[0] + 1.0
    moments[1] = decay * moments[1] + uniform
    moments[2] = decay * moments[2] + own
    moments[3] = decay * moments[3] + total
    return own / (total * total) - 1.0 if total > 0.0 else 0.0
