"""The second stage: score a pool with the model as it is now, and draw the batch from the pool.

Memory says cheaply where to look; a forward pass says what is there now. With batches of m and pools of
M = ceil(kappa m):

1. The sampler draws the pool, with weights w for the sum over all examples.
2. The model scores the pool: s is a norm, or a bound. All scores go to the sampler's memory.
3. m of the pool are drawn, each at most once, with probabilities pi in proportion to w s where that is possible, and
   at least ``floor`` m / M (`avare.structures.systematic`). The weight of an example in the batch is w / pi.

This is unbiased for any scores: the batch given the pool, the pool given the past. Weights are at most kappa / floor
times the weights in the pool.

`SecondStage` does all of this. The cursor hands it a unit that was loaded, and gets a batch back. A `Source` is where
units come from: a dataset or a stream. It says which pool a unit is, exchanges the scores of the ranks, and learns
from them.

*How large a pool* is, `avare.torch.loading.pool_sizes` decides, from what is measured here. While a pool does not pay,
a small one is drawn now and then, for at most one per cent of the time, to notice when it pays again. The batches
between are shuffled passes, since nothing keeps the remembered norms fresh. If the consumer reports norms, they are
fresh, and batches come straight from the sampler.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from avare import _validation as validation
from avare._randomness import uniform_source
from avare.batch import Batch
from avare.samplers.pending import Drawn
from avare.state import Field, State, generator_to_text
from avare.structures.systematic import choose
from avare.torch.loading.measures import FIRST_POOLS, PoolMeasures
from avare.torch.loading.pool_sizes import AutomaticSize, PoolSize
from avare.torch.loading.ranks import Floats
from avare.torch.loading.tensors import as_array
from avare.torch.loading.weighted_batches import Pairs, as_triple

Score: TypeAlias = Callable[[Any], Any]
"""A function of a collated pool that returns a score for each example."""
Loaded: TypeAlias = tuple[Any, Pairs]
"""Examples as a worker sends them: collated, and with their indices and weights."""
Take: TypeAlias = Callable[[Sequence[Loaded], NDArray[np.int64] | None], Any]
"""A function that makes a batch of the rows at some places of loaded examples, or of all."""


class Pool(NamedTuple):
    """A pool that was loaded."""

    blocks: Sequence[Loaded]
    """The examples of this rank, in one block or in several."""
    pairs: Pairs
    """Their indices."""
    weights: Floats
    """The weights of the whole pool, of all ranks, for the sum over all examples."""
    own: slice
    """The part of this rank."""


class Source(Protocol):
    """Where units come from: a dataset, of which any example can be drawn, or a stream."""

    def pool_of(self, unit: Any, loaded: Any) -> Pool | None:
        """Return the pool of a unit that was loaded; None if ``loaded`` is a batch, on all ranks."""

    def share(self, unit: Any, score: Callable[[], Floats], costs: Floats) -> tuple[Floats, Floats]:
        """Call ``score``, for this rank's examples; return the scores of all ranks, and their costs as rows."""

    def learn(self, unit: Any, scores: Floats) -> None:
        """Learn from the scores of a pool, which are valid."""


class StageOptions(NamedTuple):
    """The options of a loader for its second stage, checked."""

    score: Score
    size: PoolSize
    cost_ratio: float | None

    @classmethod
    def read(cls, score: Score | None, pool: Any, cost_ratio: float | None) -> "StageOptions | None":
        """Return the options in the arguments of a loader; None without a score."""
        if score is None:
            for name, value, default in (("pool", pool, "auto"), ("cost_ratio", cost_ratio, None)):
                if value != default:
                    raise ValueError(f"{name} = {value!r}: needs score, a function that scores the examples of a pool")
            return None
        if not callable(score):
            raise TypeError(f"score is of type {type(score).__name__}: must be a function of a batch")
        if isinstance(pool, str) and pool != "auto":
            raise ValueError(f"pool = {pool!r}: must be 'auto' or a number of batches")
        size = AutomaticSize() if pool == "auto" else pool
        if not isinstance(size, PoolSize):
            size = PoolSize(validation.number("pool", pool, above=1.0))
        if cost_ratio is not None:
            if not isinstance(size, AutomaticSize):
                raise ValueError(f"cost_ratio = {cost_ratio!r}: is for pool='auto' only")
            cost_ratio = validation.number("cost_ratio", cost_ratio, above=0.0)
        return cls(score, size, cost_ratio)

    def __str__(self) -> str:
        return f"{self.size}" if self.cost_ratio is None else f"{self.size}, cost ratio {self.cost_ratio:g}"


class SecondStage:
    """Scores pools, draws their batches, weighs them, and measures what that costs and saves.

    Cost per pool, beyond the call of the score function: O(M log M).

    Parameters
    ----------
    options
        How to score, and how large pools are.
    batch_size
        m, of this rank.
    generator
        For the second draw: the same on all ranks.
    whole
        Whether pools are whole numbers of batches, rounded down.
    """

    def __init__(
        self, options: StageOptions, batch_size: int, generator: np.random.Generator, *, whole: bool = False
    ) -> None:
        self.size = options.size
        self.measured = PoolMeasures(batch_size, options.cost_ratio)
        """What pools cost, and what they can save."""
        self.weights: NDArray[np.float32] | None = None
        """The weights of the last batch, if it was drawn from a pool."""
        self._score, self._batch_size, self._whole = options.score, batch_size, whole
        self._since = 0  # batches that were drawn since a pool was, or norms were reported
        self._chosen: tuple[Any, NDArray[np.int64], NDArray[np.float32]] | None = None  # of a pool not yet made a batch
        self.resize(1, math.inf)  # as in a stream
        self._seed_with(generator)

    def resize(self, n: int, most: float) -> None:
        """Set the number of examples, and of those that a pool can have."""
        self._n, self._most = n, most
        self.measured.largest_ratio = most / self._batch_size

    @property
    def ratio(self) -> float:
        """The size of the next pool, in batches."""
        return float(math.floor(self.size.ratio)) if self._whole else self.size.ratio

    def next_size(self) -> int:
        """Return how many examples this rank draws next, and count the draw."""
        ratio = self.ratio
        self._since += 1
        if ratio > 1.0:
            self._since = 0
        elif self._since >= self.size.interval(self.measured):
            self._since, ratio = 0, self.size.probe
        return int(min(math.ceil(ratio * self._batch_size - 1e-9), self._most))

    def complete(self, source: Source, take: Take, unit: Any, loaded: Any) -> Any:
        """Make the batch of a unit that was loaded: ``(batch, index, weight)``. All ranks must call it.

        An error of the score function, or in what it returns, changes nothing. The batch is drawn once: if ``take``
        raises an error, the next call takes the same examples.
        """
        pool = source.pool_of(unit, loaded)
        if pool is None:
            self.weights = None
            return as_triple(loaded)
        if self._chosen is None or self._chosen[0] is not loaded:
            scores, costs = source.share(unit, lambda: self._scores(pool.blocks), self.measured.costs())
            self._chosen = loaded, *self._draw(pool, scores)
            self.measured.take_costs(costs)
            source.learn(unit, scores)
        _, places, weights = self._chosen
        batch = take(pool.blocks, places)
        self._chosen = None
        return as_triple((batch, Pairs(pool.pairs.indices[places], weights)))

    def _scores(self, blocks: Sequence[Loaded]) -> Floats:
        """Score block after block, with the model as it is now."""
        found = [self._scores_of(batch, len(pairs)) for batch, pairs in blocks]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _scores_of(self, batch: Any, size: int) -> Floats:
        """Call the score function, and check what it returns."""
        self.measured.wait_for_device()
        with torch.no_grad():
            found = self._score(batch)
        scores = validation.nonnegative("score(batch)", as_array("score(batch)", found))
        if len(scores) != size:
            raise ValueError(f"score(batch) has length {len(scores)}: must have {size}, one for each example")
        return scores.copy()  # the function may use its own array again

    def _draw(self, pool: Pool, scores: Floats) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the places of the batch in this rank's part of a pool, and their weights.

        All ranks use the same generator, and each its own numbers.
        """
        places, drawn = np.empty(self._batch_size, dtype=np.int64), np.empty(self._batch_size, dtype=np.float32)
        weights, own = pool.weights, pool.own
        before, after = own.start, len(weights) - own.stop
        choose(weights[own], scores[own], self.size.floor, self._source, before, after, places, drawn)
        self.measured.pool = own.stop - own.start
        self.weights = drawn
        return places, drawn

    @property
    def draws_passes(self) -> bool:
        """Whether batches are shuffled passes while there is no pool: nothing keeps the memory fresh."""
        return self.size.shuffles and not self.measured.is_reported

    @property
    def gain(self) -> float:
        """Uniform's second moment over the next batch's; NaN until there are scores."""
        found = self.measured
        if found.scored and self.ratio == 1.0 and self.draws_passes:
            return 1.0
        return found.possible_gain / (1.0 + found.relative_error / self.ratio)

    def observe(self, batch: Batch | Drawn, norms: Floats) -> None:
        """Learn from a pool or a batch of all ranks whose norms are known."""
        is_late = self.ratio == 1.0 and self._since == 0
        if self.measured.scored >= FIRST_POOLS:
            self._since = 0
        self.size.observe(self.measured, self.measured.observe(batch, self._n, norms, is_late=is_late))

    def measures(self) -> dict[str, float]:
        """Return what loaders log of the second stage, by name."""
        found = self.measured
        return {"pool_ratio": self.ratio, "relative_error": found.relative_error, "cost_ratio": found.cost_ratio}

    def state(self) -> State:
        """Return all that must be saved, by the names of `fields`."""
        return {
            "pool_moments": self.measured.moments,
            "pool_counts": np.array([self.measured.scored, self._since, self.measured.is_reported], dtype=np.int64),
            "pool_size": np.array(self.size.state(), dtype=np.float64),
            "pool_generator": generator_to_text(self._generator),
        }

    def fields(self) -> dict[str, Field]:
        """Declare what `state` returns."""
        return {
            "pool_moments": Field(np.float64, (4,), at_least=0.0),
            "pool_counts": Field(np.int64, (3,), at_least=0, at_most=1 << 62),
            "pool_size": Field(np.float64, (len(self.size.state()),), at_least=0.0, at_most=self.size.largest),
            "pool_generator": Field(np.random.Generator),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `fields` declares, checked."""
        self.measured.moments = state["pool_moments"]
        self.measured.scored, self._since, is_reported = state["pool_counts"].tolist()
        self.measured.is_reported = bool(is_reported)
        self.size.load(state["pool_size"].tolist())
        self._seed_with(state["pool_generator"])
        self.measured.clear()
        self.weights = self._chosen = None

    def _seed_with(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._source = uniform_source(generator)
