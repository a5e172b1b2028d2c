"""Streams: batches from an ``IterableDataset``, by the second stage alone.

Examples of a stream have no index that could be drawn, so nothing is remembered, and nothing is drawn twice. They
arrive in order, in blocks of the batch size m. A pool is k blocks, M examples. The model scores each block; m
examples of the pool are drawn, each at most once, with probabilities pi roughly in proportion to the scores. Their
weights are m / (M pi): the mean over the batch of weight times loss is an unbiased estimate of the mean loss over the
pool, for any scores, and so of the mean over the stream.

Every rank reads its own part of the stream, and draws its batch from its own pool. Ranks exchange two numbers for
each batch: k, of which that of rank 0 counts, and how many blocks they found, so that all end their epoch at the same
batch.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from avare import state as states
from avare._randomness import Seed, derive
from avare.batch import Batch
from avare.state import Field, Fields, State
from avare.torch.loading.cursor import Cursor, without_end
from avare.torch.loading.ranks import Floats, Mode, Ranks
from avare.torch.loading.second_stage import Loaded, Pool, SecondStage, StageOptions, Take
from avare.torch.loading.tensors import with_arrays, with_tensors
from avare.torch.loading.weighted_batches import Collate, Items, Pairs

_FORMAT = 1  # of the state; raise it when the meaning of a field changes


class StreamBatches:
    """The blocks of a stream, and their pools: the `Source` that `AvareBatchSampler` is for a map-style dataset.

    Parameters
    ----------
    dataset : IterableDataset
        If it has ``set_epoch``, that is called before each epoch.
    batch_size : int
        Per process.
    stage : StageOptions
        The second stage.
    seed, distributed
        See `ImportanceLoader`.
    in_workers : bool
        Whether worker processes read the stream. Otherwise a dataset with ``state_dict`` and ``load_state_dict``
        resumes by these, as exactly as they do. Others read again what they have read, which is skipped.
    """

    def __init__(
        self, dataset: Any, batch_size: int, *, stage: StageOptions, seed: Seed, distributed: Mode, in_workers: bool
    ) -> None:
        if not float(stage.size.ratio).is_integer():
            raise ValueError(f"pool = {stage.size.ratio:g}: must be a whole number of batches for a stream")
        if distributed not in ("auto", None):
            raise ValueError(
                f"distributed = {distributed!r}: must be 'auto' or None: ranks read their parts of a stream"
            )
        self.ranks = Ranks(1, batch_size, distributed)
        self.cursor: Cursor[int] = Cursor(sys.maxsize)
        self.cursor.ended = self._begin
        self._dataset, self._options = dataset, stage
        self._has_state = not in_workers and all(hasattr(dataset, name) for name in ("state_dict", "load_state_dict"))
        common_seed = self.ranks.agree({"batch_size": batch_size, "pool": str(stage)})
        generator = np.random.default_rng(common_seed if seed is None else seed)
        own = derive(generator, self.ranks.world)[self.ranks.rank]
        self.stage: SecondStage = SecondStage(stage, self.ranks.batch_size, own, whole=True)
        self._saved: Any = None  # the state of the dataset, until the next iteration
        self._begin()

    @property
    def gain(self) -> float:
        """Uniform's second moment over that of the next batch, from recent scores."""
        return self.stage.gain

    def __len__(self) -> int:
        raise TypeError("the number of batches of a stream is not known")

    def deliver(self, read: Callable[[], Iterator[Any]], take: Take) -> Iterator[Any]:
        """Begin an iteration, and return its batches. ``read`` begins to load units."""
        return self.cursor.deliver(
            partial(self._load, read), partial(self._complete, take), lambda _: self.cursor.position
        )

    def _load(self, read: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Begin an iteration, and return its pools. ``read`` begins to read the blocks."""
        self.ranks.check_unchanged()
        units = self.cursor.units(self._draw)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self.cursor.epoch)
        if self._has_ended:
            return iter(())
        saved, self._saved = self._saved, None
        if saved is not None:
            self._dataset.load_state_dict(saved)
        blocks = read()
        if saved is None and self._blocks > 0:
            next(itertools.islice(blocks, self._blocks - 1, None), None)
        return _Pools(self.ranks, units, blocks)

    def _complete(self, take: Take, unit: int, blocks: list[Loaded]) -> Any:
        """Make the batch of a pool, and count what was read."""
        sizes = [len(pairs) for _, pairs in blocks]
        loaded: Any = blocks
        if sum(sizes) <= self.ranks.batch_size:  # as a batch, without a second draw
            loaded = take(blocks, None), self._pairs(sum(sizes))
        found = self.stage.complete(self, take, unit, loaded)
        self._blocks += len(blocks)
        self._examples += sum(sizes)
        is_short = len(blocks) < unit or sizes[-1] < self.ranks.batch_size
        self._has_ended = self._has_state and is_short
        return found

    def pool_of(self, unit: int, loaded: list[Loaded] | Loaded) -> Pool | None:
        """Return the pool of some blocks, in which all examples have the same weight; None for a batch."""
        if isinstance(loaded, tuple):
            return None
        size = sum(len(pairs) for _, pairs in loaded)
        return Pool(loaded, self._pairs(size), np.full(size, self.ranks.batch_size / size), slice(0, size))

    def share(self, unit: int, score: Callable[[], Floats], costs: Floats) -> tuple[Floats, Floats]:
        """Return the scores and costs of this rank: each draws from its own pool."""
        return score(), costs[None]

    def learn(self, unit: int, scores: Floats) -> None:
        """Learn how large pools should be; no example comes again."""
        size = len(scores)
        self.stage.observe(Batch(np.arange(size), np.full(size, 1.0 / size), np.ones(size)), scores)

    def _pairs(self, size: int) -> Pairs:
        """Return the next places in the stream, with weights of 1."""
        return Pairs(self._examples + np.arange(size), np.ones(size, dtype=np.float32))

    def measures(self) -> dict[str, float]:
        """Return what loaders log, by name."""
        return {name: value for name, value in self.stage.measures().items() if not np.isnan(value)}

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same batches. Each rank has its own."""
        state = {
            **self._arguments(),
            "epoch": self.cursor.epoch,
            "batches": self.cursor.position,
            "blocks": self._blocks,
            "examples": self._examples,
            "has_ended": int(self._has_ended),
            **self.stage.state(),
        }
        own = {"stream": self._dataset.state_dict()} if self._has_state else {}
        return {**with_tensors({**state, "checksum": states.checksum(state)}), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: the next iteration continues its epoch."""
        values = states.read_sealed(with_arrays(state), self._arguments(), self._fields(), "this loader")
        self.cursor.load(values["epoch"], values["batches"])
        self.stage.load(values)
        self._blocks, self._examples = values["blocks"], values["examples"]
        self._has_ended = bool(values["has_ended"])
        self._saved = state.get("stream") if self._has_state else None

    def _arguments(self) -> State:
        """What must be the same for a state to be loaded."""
        ranks = self.ranks
        return {
            "format": _FORMAT,
            "batch_size": ranks.batch_size,
            "rank": ranks.rank,
            "world": ranks.world,
            "pool": str(self._options),
        }

    def _fields(self) -> Fields:
        counts = dict.fromkeys(("epoch", "batches", "blocks", "examples"), Field(int, at_least=0, at_most=1 << 62))
        return {**counts, "has_ended": Field(int, at_least=0, at_most=1), **self.stage.fields()}

    def _begin(self) -> None:
        """Begin an epoch: nothing of it has been read."""
        self._blocks = self._examples = 0
        self._has_ended = False  # whether a stream with a state has read its last example, and begins again

    def _draw(self) -> int:
        """Return how many blocks the next pool has."""
        return int(self.ranks.share(self.stage.next_size() // self.ranks.batch_size)[0])


class _Pools(Iterator[list[Any]]):
    """The pools of an iteration: lists of loaded blocks. After an error, the next attempt continues with the same."""

    def __init__(self, ranks: Ranks, sizes: Iterator[int], blocks: Iterator[Any]) -> None:
        self._ranks, self._sizes, self._blocks = ranks, sizes, blocks
        self._size = 0  # of the pool that is being read
        self._held: list[Any] = []

    def __next__(self) -> list[Any]:
        self._size = self._size or next(self._sizes)
        while len(self._held) < self._size and (block := next(self._blocks, None)) is not None:
            self._held.append(block)
        if not self._ranks.share(len(self._held)).all():
            raise StopIteration
        found, self._held, self._size = self._held, [], 0
        return found


def collate_block(items: list[Any], collate_fn: Collate | None = None) -> tuple[Any, Pairs]:
    """Make a block of items, in a worker or not; with another collate function than the default, keep the items."""
    pairs = Pairs(np.arange(len(items)), np.ones(len(items), dtype=np.float32))
    pairs.items = None if collate_fn is None else Items(items)
    return without_end(collate_fn or default_collate, items), pairs
