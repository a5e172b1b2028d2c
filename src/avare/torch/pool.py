"""The second stage: score a pool with the model as it is now, and draw the batch from the pool.

Memory says cheaply where to look; a forward pass says what is there now. With batches of m and pools of
M = ceil(kappa m):

1. The sampler draws the pool, with weights w for the sum over all examples.
2. The model scores the pool: s is a norm, or a bound. All scores go to the sampler's memory.
3. m of the pool are drawn, each at most once, with probabilities pi in proportion to w s where that is possible, and
   at least ``floor`` m / M (`avare.structures.systematic`). The weight of an example in the batch is w / pi.

This is unbiased for any scores: the batch given the pool, the pool given the past. Weights are at most kappa / floor
times the weights in the pool.

*How large a pool* is, `avare.torch.pool_sizes` decides, from what is measured here. While a pool does not pay, a small
one is drawn now and then, for at most one per cent of the time, to notice when it pays again. The batches between are
shuffled passes, since nothing keeps the remembered norms fresh; if the consumer reports norms, they are fresh, and
batches come straight from the sampler.
"""

import functools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.module import register_module_forward_pre_hook

from avare import _validation as validation
from avare._compilation import kernel, lean
from avare._randomness import uniform_source
from avare.batch import Batch
from avare.samplers.pending import Drawn
from avare.state import Field, State, generator_to_text
from avare.structures.systematic import choose
from avare.torch.checkpoint import as_array
from avare.torch.pool_sizes import FIRST_POOLS, PoolSize

Floats: TypeAlias = NDArray[np.float64]
ScoreMode: TypeAlias = Literal["eval"] | None
ACCELERATOR: Any = getattr(torch, "accelerator", torch.cuda)
"""PyTorch's functions for the device of this machine, of any kind; before version 2.6, of CUDA only."""
_DECAY = 0.8  # of the moments, per observation
_DECAY_APART = 0.5  # ... that was made many batches after the one before
_RARELY = 8  # pools between two looks at the measured times, after the first ones
_RECENT = 32  # measured times, of which the least counts: other processes make the others longer, by any factor
_SMALLEST, _LARGEST = 1e-140, 1e140  # other scores count as these in the moments: their squares stay in range


class Pool:
    """Scores pools and draws batches from them; measures what that costs and saves.

    Cost per pool, beyond the call of ``score``: O(M log M).

    Parameters
    ----------
    score
        A function of a collated pool that returns a score for each example.
    size
        How large the next pool is.
    cost_ratio
        c, if it is not to be measured.
    mode
        "eval": modules score in evaluation mode. None: in the mode that they are in.
    """

    def __init__(
        self, score: Callable[[Any], Any], size: PoolSize, cost_ratio: float | None, mode: ScoreMode = None
    ) -> None:
        if not callable(score):
            raise TypeError(f"score is of type {type(score).__name__}: must be a function of a batch")
        if mode not in ("eval", None):
            raise ValueError(f"score_mode = {mode!r}: must be 'eval' or None")
        self.score, self.size = score if mode is None else functools.partial(in_evaluation_mode, score), size
        self._given = None if cost_ratio is None else validation.number("cost_ratio", cost_ratio, above=0.0)
        self.scored = 0
        """How many pools have been scored."""
        self.is_reported = False
        """Whether the consumer has reported norms."""
        self.weights: NDArray[np.float32] | None = None
        """The weights of the last batch, if it was drawn from a pool."""
        self._since = 0  # batches that were drawn since a pool was, or norms were reported
        self._moments = np.zeros(4)  # decaying sums: of 1, the second moments of uniform's and our draws, and the norms
        self._measured = self._costs = np.full(3, np.nan)  # see `costs`: of this rank, and the mean over the ranks
        self._loads: deque[float] = deque(maxlen=_RECENT)  # seconds, as measured by this rank
        self._pools: deque[tuple[float, int]] = deque(maxlen=_RECENT)  # to load, score and draw; and their sizes
        self._steps: deque[float] = deque(maxlen=_RECENT)
        self._asked = math.nan
        self._scored = 0  # the size of the pool that this batch comes from

    def __repr__(self) -> str:
        given = "" if self._given is None else f", cost ratio {self._given:g}"
        return f"{self.size}{given}"

    def join(
        self, n: int, batch_size: int, most: float, generator: np.random.Generator, *, whole: bool = False
    ) -> None:
        """Learn what the loader draws from: n examples, batches of this size, pools of at most ``most``.

        If ``whole``, pools are whole numbers of batches, rounded down.
        """
        self.batch_size, self._whole = batch_size, whole
        self.resize(n, most)
        self._seed_with(generator)

    def resize(self, n: int, most: float) -> None:
        """Learn what the loader draws from: n examples, pools of at most ``most``."""
        self.n, self._most = n, most
        self.largest_ratio = most / self.batch_size
        """The most batches that a pool can have."""

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
        elif self._since >= self.size.interval(self):
            self._since, ratio = 0, self.size.probe
        return int(min(math.ceil(ratio * self.batch_size - 1e-9), self._most))

    @property
    def relative_error(self) -> float:
        """The relative error of the sampler's distribution, from recent scores; NaN until there are any."""
        count, _, own, norm = self._moments.tolist()  # faster than numbers of NumPy
        return max(own / norm * (count / norm) - 1.0, 0.0) if norm > 0.0 else math.nan

    @property
    def possible_gain(self) -> float:
        """Uniform's second moment over the least, from recent scores; NaN until there are any."""
        count, uniform, _, norm = self._moments.tolist()
        return uniform / norm * (count / norm) if norm > 0.0 else math.nan

    @property
    def draws_passes(self) -> bool:
        """Whether batches are shuffled passes while there is no pool: nothing keeps the memory fresh."""
        return self.size.shuffles and not self.is_reported

    @property
    def gain(self) -> float:
        """Uniform's second moment over the next batch's; NaN until there are scores."""
        if self.scored and self.ratio == 1.0 and self.draws_passes:
            return 1.0
        return self.possible_gain / (1.0 + self.relative_error / self.ratio)

    @property
    def cost_ratio(self) -> float:
        """The time to train on an example over the time that a pool takes for one; NaN until it is known."""
        if self._given is not None:
            return self._given
        load, more, train = self._costs
        return float((train + load) / self.batch_size / max(more, 1e-12))

    def begins(self, now: float, step: float) -> None:
        """Note that the consumer asks for a batch, and the seconds since its last one; NaN if there was none."""
        self._asked, self._scored = now, 0
        if not math.isnan(step):
            self._steps.append(step)

    def ends(self, now: float) -> None:
        """Note that the consumer gets its batch."""
        if self._scored == 0:
            self._loads.append(now - self._asked)
        else:
            self._pools.append((now - self._asked, self._scored))

    def scores(self, batch: Any, size: int) -> NDArray[np.float64]:
        """Call ``score``, and check what it returns."""
        if ACCELERATOR.is_available():
            began = time.perf_counter()
            ACCELERATOR.synchronize()  # what is still running belongs to the last step
            self._asked += time.perf_counter() - began
        with torch.no_grad():
            found = self.score(batch)
        values, scores = as_array("score(batch)", found), np.empty(size)
        is_plain = type(values) is np.ndarray and values.dtype.char in "fd" and values.shape == scores.shape
        if is_plain and _copy_valid(values, scores):
            return scores  # the common case, in one loop
        scores = validation.nonnegative("score(batch)", values)
        if len(scores) != size:
            raise ValueError(f"score(batch) has length {len(scores)}: must have {size}, one for each example")
        return scores

    def costs(self) -> NDArray[np.float64]:
        """Return what this rank has measured, a few pools ago at most.

        The seconds to load a batch without a pool; those that a pool takes in addition, for each of its examples; and
        those that the consumer takes for a batch.
        """
        if self.scored <= FIRST_POOLS or self.scored % _RARELY == 0:
            load = min(self._loads, default=0.0)  # the least of all, for each: one slow load must not make pools free
            more = min((max(seconds - load, 0.0) / size for seconds, size in self._pools), default=math.nan)
            self._measured = np.array([load, more, min(self._steps, default=math.nan)])
        return self._measured

    def take_costs(self, of_ranks: NDArray[np.float64]) -> None:
        """Use the mean of the ranks' costs."""
        self._costs = of_ranks[0] if len(of_ranks) == 1 else of_ranks.mean(axis=0)
        self.scored += 1

    def observe(self, batch: Batch | Drawn, norms: NDArray[np.float64]) -> None:
        """Learn from a pool or a batch of all ranks whose norms are known."""
        apart = self.ratio == 1.0 and self._since == 0
        if self.scored >= FIRST_POOLS:  # before that, pools are drawn to measure what they cost
            self._since = 0
        decay = _DECAY_APART if apart else _DECAY
        own, total = _add_moments(self._moments, decay, self.n, batch.weights, batch.probabilities, norms)
        self.size.observe(self, own / total**2 - 1.0 if total > 0.0 else 0.0)

    def draw(self, weights: Floats, scores: Floats, own: slice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the places of the batch in this rank's part of the pool, and their weights.

        Parameters
        ----------
        weights, scores
            All examples of the pool.
        own
            The part of this rank, of which the batch is drawn: all ranks use the same generator, and each its own
            numbers.
        """
        places, drawn = np.empty(self.batch_size, dtype=np.int64), np.empty(self.batch_size, dtype=np.float32)
        before, after, self._scored = own.start, len(weights) - own.stop, own.stop - own.start
        choose(weights[own], scores[own], self.size.floor, self._source, before, after, places, drawn)
        self.weights = drawn
        return places, drawn

    def measures(self) -> dict[str, float]:
        """Return what loaders log of the second stage, by name."""
        return {"pool_ratio": self.ratio, "relative_error": self.relative_error, "cost_ratio": self.cost_ratio}

    def state(self) -> State:
        """Return all that must be saved, by the names of `fields`."""
        return {
            "pool_moments": self._moments,
            "pool_counts": np.array([self.scored, self._since, self.is_reported], dtype=np.int64),
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
        self._moments = state["pool_moments"]
        self.scored, self._since, is_reported = state["pool_counts"].tolist()
        self.is_reported = bool(is_reported)
        self.size.load(state["pool_size"].tolist())
        self._seed_with(state["pool_generator"])
        self._measured = self._costs = np.full(3, np.nan)  # measured again: the machine may be another one
        for times in (self._loads, self._pools, self._steps):
            times.clear()
        self.weights = None

    def _seed_with(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._source = uniform_source(generator)


class Timed(Iterator[Any]):
    """The batches of an iteration; it measures how long they take, and the steps of the consumer between them."""

    def __init__(self, pool: Pool, batches: Iterator[Any]) -> None:
        self._pool = pool
        self._batches = batches
        self._returned = math.nan

    def __next__(self) -> Any:
        asked = time.perf_counter()
        self._pool.begins(asked, asked - self._returned)
        batch = next(self._batches)
        self._returned = time.perf_counter()
        self._pool.ends(self._returned)
        return batch


def in_evaluation_mode(score: Callable[[Any], Any], batch: Any) -> Any:
    """Score with every module in evaluation mode when it is called, and restore its mode at the end."""
    switched: list[torch.nn.Module] = []

    def switch(module: torch.nn.Module, _: Any) -> None:
        for each in module.modules() if module.training else ():
            if each.training:
                switched.append(each)
                each.training = False

    handle = register_module_forward_pre_hook(switch)
    try:
        return score(batch)
    finally:
        handle.remove()
        for each in switched:
            each.training = True


# --- kernels -------------------------------------------------------------------------------


@kernel
def _copy_valid(values, scores):
    """Copy scores; return whether all of them are finite and not negative."""
    wrong = 0
    for j in range(len(values)):
        scores[j] = values[j]
        wrong += not 0.0 <= scores[j] < np.inf
    return wrong == 0


@lean
def _add_moments(moments, decay, n, weights, probabilities, norms):
    """Add a unit to the decaying sums; return its second moment, and its estimate of the sum of the norms."""
    uniform, own, total = 0.0, 0.0, 0.0
    for j in range(len(norms)):
        norm = min(max(norms[j], _SMALLEST), _LARGEST) if norms[j] > 0.0 else 0.0
        square = weights[j] * norm * norm
        uniform += n * square
        own += square / probabilities[j]
        total += weights[j] * norm
    for j, value in enumerate((1.0, uniform, own, total)):
        moments[j] = decay * moments[j] + value
    return own, total
