"""The batch sampler: units of a dataset, drawn with an avare sampler, and what the consumer has not received yet.

The state, besides that of the cursor, the sampler and the second stage (all are saved, except what follows from the
arguments):

================  =====================================================================================
attribute         what it is
================  =====================================================================================
``_known``        of each example: never drawn (0), drawn and not reported since, or reported
``_steps``        units drawn so far; it follows from the steps of the samplers
``_fingerprint``  checksum of all units drawn, in order: ranks compare it before they exchange norms
``_samplers``     "sampler", and "passes" if shuffled passes take its place while no pool pays
``_follows_n``    whether the length of an epoch follows the number of examples; from the arguments
``_build``        builds the sampler again, for another number of examples; from the arguments
================  =====================================================================================

A call of `update` goes to the ranks first, and they call back to check the norms. So an error on one rank reaches all
ranks before anything has changed on any.
"""

import itertools
import math
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler as TorchSampler

from avare import _validation as validation
from avare import state as states
from avare._randomness import Seed, derive
from avare.batch import Batch
from avare.samplers import Sampler, Uniform
from avare.samplers.stateful import arguments, read_state, replace_state
from avare.state import Field, Fields, Nested, State
from avare.torch.loading.cursor import Cursor
from avare.torch.loading.ranks import Floats, Mode, Ranks
from avare.torch.loading.sampler_choice import build_sampler, default_sampler
from avare.torch.loading.second_stage import Loaded, Pool, SecondStage, StageOptions, Take
from avare.torch.loading.tensors import as_array, with_arrays, with_tensors
from avare.torch.loading.weighted_batches import Pairs, as_triple

Values: TypeAlias = ArrayLike | torch.Tensor
InUpdate = Literal["raise", "skip"]
_FORMAT = 2  # of the state; raise it when the meaning of a field changes
_WAITING, _REPORTED = 1, 2  # what is known of an example that was drawn
_LATE = 64  # received batches that the gain may still count when their norms arrive


class Draw(NamedTuple):
    """A batch or a pool of all ranks: what the cursor stores."""

    indices: NDArray[np.int64]
    weights: NDArray[np.float64]


class AvareBatchSampler(TorchSampler[Pairs]):
    """Draw the batches of an `ImportanceLoader` over a dataset of which any example can be fetched: a `Source`.

    Each batch has indices and weights. The mean over the batch of weight times loss estimates the mean loss over
    all examples. With several processes, so does the mean over the processes, which ``DistributedDataParallel`` takes.

    Cost: as the sampler's, O(batch size) for most. Memory: as the sampler's, and a byte per example.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int, default=128
        m, per process.
    sampler, sampler_options, replacement, seed, batches_per_epoch, distributed
        See `ImportanceLoader`.
    stage : StageOptions, optional
        The second stage.

    Attributes
    ----------
    sampler
        The avare sampler.
    ranks
        Which part of each batch belongs to this process.
    cursor
        Where the epoch is: how many batches were drawn, and which of them were not received yet.
    stage
        The second stage; None if there is none.

    Examples
    --------
    >>> batches = AvareBatchSampler(4, batch_size=2, seed=0)
    >>> for pairs in batches:
    ...     batches.update(pairs.indices, pairs.indices + 1.0)
    >>> len(batches), batches.cursor.drawn
    (2, 2)
    """

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        sampler: str | Sampler | None = None,
        sampler_options: Mapping[str, Any] | None = None,
        replacement: bool | None = None,
        seed: Seed = None,
        batches_per_epoch: int | None = None,
        distributed: Mode = "auto",
        stage: StageOptions | None = None,
    ) -> None:
        self._options = stage
        self.ranks = Ranks(n, batch_size, distributed)
        options = dict(sampler_options or {})
        if sampler is None:
            sampler = default_sampler(replacement, options, has_pool=stage is not None)
        self._follows_n = batches_per_epoch is None  # the length of an epoch
        length = self.ranks.batches(self.ranks.total) if batches_per_epoch is None else batches_per_epoch
        length = validation.integer("batches_per_epoch", length, at_least=1)
        if not isinstance(sampler, str | Sampler):
            raise TypeError(f"sampler is of type {type(sampler).__name__}: must be an avare sampler, or its name")
        self.cursor: Cursor[Draw] = Cursor(length)
        common_seed = self.ranks.agree(self._settings(sampler, seed))  # first, because one rank alone may fail below
        if seed is None and isinstance(sampler, str) and not self.ranks.is_alone:
            seed = common_seed
        self._build = partial(build_sampler, self.ranks, sampler, options, replacement)
        self._is_by_name = isinstance(sampler, str)
        self.sampler = self._build(self.ranks.n, seed)
        if self.sampler.needs_all_norms:  # norms that nobody has reported would count as 0
            raise ValueError(
                f"sampler = {type(self.sampler).__name__}: needs the norms of all examples before each draw, and a "
                "loader receives those of batches; use Calibrated, or Static if you know the norms"
            )
        self._known = np.zeros(self.ranks.n, dtype=np.int8)
        self._steps = self._fingerprint = 0
        self._samplers = {"sampler": self.sampler}
        self.stage: SecondStage | None = None
        if stage is not None:
            # From the state of the sampler's generator: the same on all ranks.
            of_pool, of_passes = derive(self.sampler.generator, 2)
            self.stage = SecondStage(stage, self.ranks.batch_size, of_pool)
            self._resize_pool()
            if stage.size.shuffles and self.ranks.draws <= self.ranks.n:
                passes = Uniform(self.ranks.n, self.ranks.draws, reshuffle=True, seed=of_passes)
                self._samplers["passes"] = passes
        self.cursor.ended = self._warn_of_silence

    @property
    def gain(self) -> float:
        """Uniform's second moment over ours, for the sampler's draws or for both stages."""
        return self.sampler.gain if self.stage is None else self.stage.gain

    def __len__(self) -> int:
        if self.cursor.length == sys.maxsize:
            raise TypeError("an endless epoch has no length")
        return self.cursor.length

    def __iter__(self) -> Iterator[Pairs]:
        """Return the batches of a new epoch or, if a state has just been loaded, the rest of its epoch."""
        self.ranks.check_unchanged()
        units = self.cursor.units(self._draw)
        if self.cursor.drawn == 0:
            self._grow()
        return map(self._pairs, units, itertools.count(self.cursor.position))

    def update(self, index: Values, norms: Values, *, not_finite: InUpdate = "raise") -> None:
        """Learn from the norms of this rank's part of a batch: see `ImportanceLoader.update`."""
        find = partial(self._checked, index, norms, not_finite)
        indices, values, _ = self.ranks.gather(find, self._fingerprint, self._received)
        if self.stage is not None:
            self.stage.measured.is_reported = True
        self._take_in(indices, values)

    def extend(self, n: int) -> NDArray[np.int64]:
        """Add examples to the set, which then has n with those that were retired: see `ImportanceLoader.extend`."""
        self._refuse_parts()
        self.ranks.agree({"n": n, "batches drawn": self._steps})  # first, because one rank alone may fail below
        n = validation.integer("n", n, at_least=self.ranks.n)
        if not self.sampler.grows or self.sampler.needs or getattr(self.sampler, "capacity", None):
            name = type(self.sampler).__name__
            raise TypeError(f"sampler = {name}: extend needs Avare, Calibrated or Uniform, without a capacity")
        new = np.arange(self.ranks.n, n)
        self.ranks.n = self.ranks.total = n
        self._known = np.append(self._known, np.zeros(len(new), dtype=np.int8))
        if self.cursor.drawn == 0:
            self._grow()
        return new

    def retire(self, index: Values) -> None:
        """Never draw some examples again: see `ImportanceLoader.retire`."""
        self._refuse_parts()
        found = np.asarray(as_array("index", index))
        self.ranks.agree({"checksum of index": zlib.crc32(found.tobytes()), "batches drawn": self._steps})
        indices = validation.indices("index", found, self.sampler.n)
        for sampler in self._samplers.values():
            sampler.retire(indices)
        self._resize_pool()

    def deliver(self, read: Callable[[], Iterator[Any]], take: Take) -> Iterator[Any]:
        """Begin an iteration, and return its batches. ``read`` begins to load units."""
        stage = self.stage
        complete = (lambda _, loaded: as_triple(loaded)) if stage is None else partial(stage.complete, self, take)
        return self.cursor.deliver(read, complete, lambda loaded: loaded[1].place)

    def pool_of(self, unit: Draw, loaded: Loaded) -> Pool | None:
        """Return the pool of a unit that was loaded; None if it is a batch, on all ranks."""
        size = len(unit.indices)
        return None if size == self.ranks.draws else Pool([loaded], loaded[1], unit.weights, self.ranks.own(size))

    def share(self, unit: Draw, score: Callable[[], Floats], costs: Floats) -> tuple[Floats, Floats]:
        """Call ``score``, for this rank's examples; return the scores of all ranks, and their costs as rows."""
        size = len(unit.indices)
        own, most = self.ranks.own(size), -(-size // self.ranks.copies)
        _, scores, of_ranks = self.ranks.gather(
            lambda: (unit.indices[own], score()), self._fingerprint, self._received + 1, most, costs
        )
        return scores, of_ranks

    def learn(self, unit: Draw, scores: Floats) -> None:
        """Learn from the scores of a pool, which are valid."""
        self._take_in(unit.indices, scores)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: draws do not depend on the epoch. For code that calls it on every sampler."""

    def measures(self) -> dict[str, float]:
        """Return what loaders log, by name. O(n), some microseconds for a million examples."""
        is_expected = self.stage is None or not self.stage.draws_passes  # otherwise nobody reports norms
        waiting = np.count_nonzero(self._known == _WAITING) if is_expected else math.nan
        found = {"gain": self.gain, "floor": getattr(self.sampler, "floor", math.nan), "waiting": waiting}
        weights: Any = None if self.cursor.latest is None else self.cursor.latest.weights
        if self.stage is not None:
            found |= self.stage.measures()
            weights = weights if self.stage.weights is None else self.stage.weights.astype(np.float64)
        if weights is not None:
            found["effective_sample_size"] = weights.sum() ** 2 / (weights**2).sum()
        return {name: float(value) for name, value in found.items() if not math.isnan(value)}

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same batches: see `ImportanceLoader.state_dict`."""
        epoch, drawn, ahead = self.cursor.state()
        state = {
            **self._arguments(),
            "epoch": epoch,
            "drawn": drawn,
            "ahead_indices": states.padded([unit.indices for unit in ahead], -1),
            "ahead_weights": states.padded([unit.weights for unit in ahead], 0.0),
            "known": self._known,
            "fingerprint": self._fingerprint,
            **{name: sampler.state_dict() for name, sampler in self._samplers.items()},
            **({} if self.stage is None else self.stage.state()),
        }
        return with_tensors({**state, "checksum": states.checksum(state)})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: the next iteration continues its epoch, prefetched batches first.

        A state saved with different arguments, or a damaged one, is a ``ValueError``, and nothing changes.
        """
        state, expected = with_arrays(state), self._arguments()
        del expected["batches_per_epoch"]
        states.require_same(state, expected, "state", "this loader")
        samplers, length = self._for_state(state)
        expected["batches_per_epoch"] = length
        values = states.read_sealed(state, expected, self._fields(samplers, length), "this loader")
        indices, weights = values["ahead_indices"], values["ahead_weights"]
        if indices.shape != weights.shape or len(indices) > values["drawn"]:
            raise ValueError(
                f"state['ahead_weights'] has shape {weights.shape}: must be that of ahead_indices, {indices.shape}, "
                f"and have at most drawn = {values['drawn']} rows"
            )
        states.require_padding(indices, "state['ahead_indices']")
        ahead = [Draw(*arrays) for arrays in states.without_padding(indices, weights)]
        for name, sampler in samplers.items():
            replace_state(sampler, values[name])
        self._samplers, self.sampler, self.cursor.length = samplers, samplers["sampler"], length
        self._resize_pool()
        self._steps = sum(values[name]["steps"] for name in self._samplers)
        self._known, self._fingerprint = values["known"], values["fingerprint"]
        if self.stage is not None:
            self.stage.load(values)
        self.cursor.load(values["epoch"], values["drawn"], ahead)

    def _for_state(self, state: State) -> tuple[dict[str, Sampler], int]:
        """Return the samplers that can load a state, and the length of its epoch.

        If the set has changed since the loader of the state was made, these samplers have the n that it had then.
        """
        samplers, n, saved = self._samplers, self.ranks.n, state.get("sampler")
        length = self.ranks.batches(self.ranks.total) if self._follows_n else self.cursor.length
        if isinstance(saved, Mapping) and ("added" in saved or saved.get("n") != n):
            first = Field(int, at_least=1, at_most=n).read(saved, "n", "state['sampler']")
            if self._follows_n:
                length = Field(int, at_least=1, at_most=length).read(state, "batches_per_epoch")
            if self._is_by_name and first != arguments(self.sampler)["n"]:
                samplers = {"sampler": self._build(first, None)}
                if "passes" in self._samplers:
                    samplers["passes"] = Uniform(first, self.ranks.draws, reshuffle=True)
        return samplers, length

    def _fields(self, samplers: Mapping[str, Sampler], length: int) -> Fields:
        """Declare what a state holds, without the arguments."""
        batches, n, most = (None, None), self.ranks.n, 1 << 62
        return {
            "epoch": Field(int, at_least=0, at_most=most),
            "drawn": Field(int, at_least=0, at_most=length),
            "ahead_indices": Field(np.int64, batches, at_least=-1, at_most=n - 1),
            "ahead_weights": Field(np.float64, batches, at_least=0.0),
            "known": Field(np.int8, (n,), at_least=0, at_most=_REPORTED),
            "fingerprint": Field(int, at_least=0, at_most=2**32 - 1),
            **({} if self.stage is None else self.stage.fields()),
            **{name: Nested(partial(_read_sampler, sampler, name)) for name, sampler in samplers.items()},
        }

    def _warn_of_silence(self) -> None:
        """Give a warning, once, if batches have been drawn and no norm was ever reported."""
        is_silent = self._known.any() and not (self._known == _REPORTED).any()
        if self.stage is None and self.sampler.learns and is_silent:
            self.cursor.ended = None
            warnings.warn(
                f"no gradient norms have been reported (batches drawn: {self.sampler.steps}), so draws are still "
                "uniform: call update(index, norms) after each step",
                stacklevel=2,
            )

    def _settings(self, sampler: str | Sampler, seed: Seed) -> State:
        """What all ranks must have in common."""
        shared = {"n": self.ranks.total, "batches_per_epoch": self.cursor.length, "pool": str(self._options)}
        if self.ranks.is_sharded:  # each rank draws alone, and may have its own sampler
            return {**shared, "distributed": "sharded"}
        return {
            **shared,
            "distributed": "replicated",
            "batch_size": self.ranks.batch_size,
            "sampler": sampler if isinstance(sampler, str) else repr(sampler),
            "seed": seed if isinstance(seed, int) else type(seed).__name__,
        }

    def _arguments(self) -> State:
        """What must be the same for a state to be loaded."""
        return {
            "format": _FORMAT,
            "whole_batch": self.ranks.whole_batch,
            "n": self.ranks.n,
            "part": f"{self.ranks.rank} of {self.ranks.world}" if self.ranks.is_sharded else "whole",
            "batches_per_epoch": self.cursor.length,
            "pool": str(self._options),
        }

    def _draw(self) -> Draw:
        self.sampler.pending.limit = len(self.cursor.ahead) + _LATE
        batch = self.sampler.sample() if self.stage is None else self._draw_unit(self.stage)
        self._steps += 1
        self._known[batch.indices] = _WAITING
        self._fingerprint = zlib.crc32(batch.indices.data, self._fingerprint)
        examples = self.ranks.total if self.ranks.is_sharded else self.sampler.present
        return Draw(batch.indices, self.ranks.whole_batch / examples * batch.weights)

    def _grow(self) -> None:
        """Begin an epoch with all examples that there are."""
        more = self.ranks.n - self.sampler.n
        if more > 0:
            for sampler in self._samplers.values():
                sampler.append(more)
            self._resize_pool()
        if self._follows_n and not self.ranks.is_sharded:
            self.cursor.length = self.ranks.batches(self.sampler.present)

    def _refuse_parts(self) -> None:
        if self.ranks.is_sharded:
            raise TypeError("distributed = 'sharded': the parts of the ranks cannot change")

    def _resize_pool(self) -> None:
        present = self.sampler.present
        if self.stage is not None:
            self.stage.resize(present, math.inf if self.sampler.replacement else present // self.ranks.copies)

    def _draw_unit(self, stage: SecondStage) -> Batch:
        """Draw a pool, or a batch: of a shuffled pass, if nothing keeps the memory of the sampler fresh."""
        size, passes = stage.next_size() * self.ranks.copies, self._samplers.get("passes")
        if passes is None or size > self.ranks.draws or not stage.draws_passes:
            return self.sampler.sample(size)
        return passes.sample()

    @property
    def _received(self) -> int:
        """How many batches the consumer has received, as far as is known."""
        return self._steps - len(self.cursor.ahead)

    def _take_in(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """Learn from the norms of all ranks, which are valid."""
        drawn = self.sampler.pending.find(indices)
        self._known[indices] = _REPORTED
        if self.stage is not None and drawn is not None:
            self.stage.observe(drawn, norms)
        self.sampler.update(indices, norms)  # its warnings come last

    def _pairs(self, draw: Draw, place: int) -> Pairs:
        """Return a copy of this rank's part of a batch."""
        own = self.ranks.own(len(draw.indices))
        return Pairs(draw.indices[own] + self.ranks.first, draw.weights[own].astype(np.float32), place)

    def _checked(self, index: Any, norms: Any, not_finite: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return indices and norms, or raise an error."""
        validation.choice("not_finite", not_finite, ("raise", "skip"))
        index, reported = self.ranks.local(as_array("index", index)), validation.real("norms", as_array("norms", norms))
        if reported.ndim == 0:
            index = validation.indices("index", index, self.ranks.n)
            reported = spread(reported, self.sampler.norms(index))
        is_plain = self.ranks.is_alone and validation.are_plain(index, reported, self.ranks.n)
        if is_plain and np.count_nonzero(self._known[index]) == len(index):
            return index, reported  # the common case
        indices = validation.indices("index", index, self.ranks.n)
        kept = np.isfinite(reported) if not_finite == "skip" else np.ones(reported.shape, dtype=bool)
        values = validation.nonnegative("norms", np.where(kept, reported, 0.0))
        validation.same_length("norms", len(values), "index", len(indices))
        states.refuse_unless(self._known[indices] > 0, indices + self.ranks.first, "index", "never drawn")
        if len(indices) > self.ranks.batch_size and not self.ranks.is_alone:
            raise ValueError(f"index has length {len(indices)}: must be at most {self.ranks.batch_size}, one batch")
        return indices[kept], values[kept]


def spread(number: NDArray[np.float64], remembered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return new norms of examples whose mean norm is known, and of some also a remembered norm.

    Half of the relative difference between the number and the mean of the remembered norms goes to each of them.

    >>> spread(np.array(4.0), np.array([1.0, 3.0, np.nan]))
    array([1.5, 4.5, 4. ])
    """
    norms, known = np.full(remembered.shape, number), remembered > 0.0
    if known.any() and 0.0 <= number < math.inf:  # otherwise the number itself is refused
        norms[known] = remembered[known] * (1.0 + number / remembered[known].mean()) / 2.0
    return norms


def _read_sampler(sampler: Sampler, name: str, state: State) -> State:
    """Return the fields of a sampler within the state of a loader, checked."""
    if not isinstance(state.get(name), Mapping):
        raise ValueError(f"state lacks {name!r}, or it is not a mapping: it is damaged, or not a loader's state")
    return read_state(sampler, state[name])
