"""The batch sampler: draws with an avare sampler, and remembers what the consumer has not received yet."""

import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler as TorchSampler

from avare import _validation as validation
from avare import samplers
from avare._randomness import Seed
from avare._state import State, checksum
from avare.samplers import Avare, Calibrated, Sampler
from avare.torch.distributed import Mode, Ranks
from avare.torch.indexed import Pairs
from avare.torch.states import to_array, with_arrays, with_tensors
from avare.torch.visits import Visits

_FORMAT = 1  # of the state; to be raised when its meaning changes
_MOST_AHEAD = 1024  # batches remembered where nobody says what has been received
_LATE = 64  # batches received, and not yet told, that the gain may still count
_MOST_NAMED = 5  # indices in an error message
_FLOOR = 5  # times the number of examples: one over what the floor falls to
_FIELDS = ("epoch", "drawn", "ahead_indices", "ahead_weights", "visits", "waiting", "fingerprint", "sampler")


class AvareBatchSampler(TorchSampler[Pairs]):
    """Draws batches for a ``DataLoader`` over an `Indexed` dataset.

    Each batch is a sequence of pairs ``(index, weight)``. Weights are scaled so that the mean
    over the batch of weight times loss estimates the mean loss over all examples; with several
    processes, the mean over these too, which is what ``DistributedDataParallel`` takes.

    `ImportanceLoader` is this and all that belongs to it; use the parts where you need a
    ``DataLoader`` of your own. A batch then counts as received, for `state_dict`, once it or
    a later one has been told by `update`, so save just after an update; batches beyond the last
    1024 that were not told are forgotten. With several processes, do not let a framework deal out
    the batches again, as Accelerate's ``prepare`` does with a ``DataLoader`` that is not ours: each
    rank has its part of every batch already.

    Cost: that of the sampler, O(batch size) for most. Memory: that of the sampler, and 4 bytes
    an example.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        m, of each process.
    sampler
        The name of one (see ``avare.samplers.names()``), or an object, over as many examples as
        this process draws from and with as many draws a step as it makes: n and m with one process,
        n and m times the number of processes where replicated.
    sampler_options
        What else the sampler's constructor is to be given, by name. `Avare` and `Calibrated` get a
        lasting floor, ``p_min = 1 / (5 n)``, unless it, or ``c``, is given: steps of nets stay large.
    replacement
        Whether an index may come twice in a batch; by default not, if the sampler can do without.
    seed
        See `avare.Sampler`. Where replicated, None becomes one seed for all; where sharded,
        an integer becomes one for each rank.
    batches_per_epoch
        By default as many as it takes to draw n: ceil(n / m), over all processes.
    endless
        Whether the first epoch never ends.
    distributed
        "replicated", "sharded", None, or "auto": replicated where a process group has been
        initialised. See `avare.torch.distributed`.
    process_group
        By default the whole world.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> from avare.torch import Indexed, IndexedCollate
    >>> names = ["ada", "bo", "cy", "dee"]
    >>> batches = AvareBatchSampler(len(names), batch_size=2, seed=0)
    >>> loader = DataLoader(Indexed(names), batch_sampler=batches, collate_fn=IndexedCollate())
    >>> for batch, index, weight in loader:
    ...     batches.update(index, [float(len(name)) for name in batch])
    >>> len(batches), batches.epoch
    (2, 0)
    """

    def __init__(
        self,
        n: int,
        batch_size: int = 128,
        *,
        sampler: str | Sampler = "Calibrated",
        sampler_options: Mapping[str, Any] | None = None,
        replacement: bool | None = None,
        seed: Seed = None,
        batches_per_epoch: int | None = None,
        endless: bool = False,
        distributed: Mode = "auto",
        process_group: Any = None,
    ) -> None:
        self.ranks = Ranks(n, batch_size, distributed, process_group)
        self.endless = validation.boolean("endless", endless)
        if batches_per_epoch is None:
            batches_per_epoch = -(-self.ranks.n // self.ranks.whole_batch)
        elif self.endless:
            raise ValueError(f"batches_per_epoch = {batches_per_epoch}: an endless epoch has no number of batches")
        self._length = validation.integer("batches_per_epoch", batches_per_epoch, at_least=1)
        if not isinstance(sampler, str | Sampler):
            raise TypeError(
                f"sampler is of type {type(sampler).__name__}: must be the name of an avare sampler, or one of them; "
                "a sampler of torch's has no probabilities to weigh by"
            )
        common = self.ranks.agree(self._settings(sampler, seed))  # first, for an error below may be one rank's own
        if seed is None and isinstance(sampler, str) and self.ranks.mode == "replicated":
            seed = common["_entropy"]
        self._sampler = self._make(sampler, dict(sampler_options or {}), replacement, seed)
        self._scale = self.ranks.whole_batch / self.ranks.n
        self._visits = Visits(self.ranks.examples)
        self._fingerprint = 0  # of all batches drawn, one after another
        self._epoch = 0
        self._drawn = 0  # batches, in this epoch
        self._ahead: deque[tuple[NDArray[np.int64], NDArray[np.float64]]] = deque()  # drawn, and not received
        self._received: NDArray[np.float64] | None = None  # the weights of the last batch received
        self._told_of_receipts = False
        self._goes_on = False  # the next iteration continues this epoch
        self._iteration = 0

    @property
    def sampler(self) -> Sampler:
        """The avare sampler: over all examples, or over this rank's part of them."""
        return self._sampler

    @property
    def n(self) -> int:
        """Number of examples, over all processes."""
        return self.ranks.n

    @property
    def epoch(self) -> int:
        """How many epochs came before this one."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many batches of this epoch have been received."""
        return self._drawn - len(self._ahead)

    @property
    def iteration(self) -> int:
        """A number that changes when batches are asked for anew, or a state is loaded."""
        return self._iteration

    @property
    def waiting(self) -> int:
        """How many examples have been drawn, and their norms not told since."""
        return self._visits.waiting

    def __len__(self) -> int:
        if self.endless:
            raise TypeError("an endless epoch has no length")
        return self._length

    def __iter__(self) -> Iterator[Pairs]:
        """The batches of an epoch: those drawn ahead before a state was saved, then new ones.

        A new iteration is a new epoch, and batches that were drawn ahead are dropped, unless a
        state has just been loaded.
        """
        self.ranks.check_unchanged()
        iteration = self._begin()
        for indices, weights in list(self._ahead):
            yield self._pairs(indices, weights)
        while self.endless or self._drawn < self._length:
            if iteration != self._iteration:
                raise RuntimeError("another iteration has begun, or a state was loaded: this one cannot go on")
            yield self._pairs(*self._draw())

    def update(
        self,
        index: ArrayLike | torch.Tensor,
        norms: ArrayLike | torch.Tensor,
        *,
        not_finite: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Tell the gradient norms of examples that have been drawn.

        Where replicated, all ranks must call it, each with its own part of the batch: their
        norms are gathered.

        Parameters
        ----------
        index
            As it came with the batch, at once or later; tensors may be on any device. An
            example that was never drawn is a ``ValueError``.
        norms
            As many finite numbers, none negative; otherwise nothing has changed. No gradient
            is followed through them.
        not_finite
            What to do with norms that are nan or infinite: "raise" an error, on all ranks where
            replicated, or "skip" these examples, whose norms then stay as they were.
        """
        try:
            indices, values = self._checked(index, norms, not_finite)
        except Exception:  # whatever it is, the other ranks must not wait
            self.ranks.refuse()
            raise
        indices, values = self.ranks.gather(indices, values, self._fingerprint)
        self._sampler._take_in(indices, values)
        self._sampler._notify()
        self._visits.tell(indices, self._sampler.steps)
        if not self._told_of_receipts:
            self._receive_until(indices)

    def expect_receipts(self) -> None:
        """From now on, batches count as received by `receive` only, and all that were not are remembered."""
        self._told_of_receipts = True

    def receive(self) -> None:
        """Note that the consumer has received the oldest batch that was drawn ahead.

        From the first call on, nothing else counts as receipt.
        """
        self.expect_receipts()
        self._received = self._ahead.popleft()[1]

    def finish(self) -> None:
        """Note that the epoch is over."""
        self._epoch += 1
        self._drawn = 0
        self._ahead.clear()
        self._goes_on = False

    def go_on(self) -> None:
        """Let the next iteration continue this epoch, batches drawn ahead first."""
        self._goes_on = True

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: draws do not depend on the epoch. For those who call it on every sampler."""

    def measures(self) -> dict[str, float]:
        """What there is to watch, by name: see `ImportanceLoader.log`. O(batch size)."""
        found = {"gain": self._sampler.gain, "age": self._visits.age, "lag": self._visits.lag}
        floor = getattr(self._sampler, "floor", None)
        if floor is not None:
            found["floor"] = float(floor)
        if self._received is not None:
            weights = self._received
            found["effective_sample_size"] = float(weights.sum() ** 2 / (weights**2).sum())
        found["waiting"] = float(self.waiting)
        return found

    def state_dict(self) -> State:
        """All it takes to go on with the very same batches: numbers, text and tensors.

        Where replicated, it is the same on all ranks, and may be loaded by any number of them
        with the same whole batch; where sharded, each rank has its own.
        """
        shape = (len(self._ahead), self.ranks.draws)
        indices = np.array([indices for indices, _ in self._ahead], dtype=np.int64).reshape(shape)
        weights = np.array([weights for _, weights in self._ahead], dtype=np.float64).reshape(shape)
        state = {
            "format": _FORMAT,
            **self._arguments(),
            "epoch": self._epoch,
            "drawn": self._drawn,
            "ahead_indices": torch.from_numpy(indices),
            "ahead_weights": torch.from_numpy(weights),
            "visits": torch.from_numpy(self._visits.last.copy()),
            "waiting": self._visits.waiting,
            "fingerprint": self._fingerprint,
            "sampler": with_tensors(self._sampler.state_dict()),
        }
        return {**state, "checksum": _checksum(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next iteration continues its epoch, batches drawn ahead first.

        A state of other arguments or a damaged one is a ``ValueError``, and nothing has changed.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state is of type {type(state).__name__}: must be a mapping, as state_dict() gives")
        expected = {"format": _FORMAT, **self._arguments()}
        for key in (*expected, *_FIELDS, "checksum"):
            if key not in state:
                raise ValueError(f"state lacks {key!r}: it is damaged, or not a loader's state")
        for key, own in expected.items():
            if state[key] != own:
                hint = "; each sharded rank must save its own state, and load that" if key == "layout" else ""
                raise ValueError(f"state[{key!r}] = {state[key]!r}: this loader has {own!r}{hint}")
        if not isinstance(state["sampler"], Mapping):
            raise ValueError(f"state['sampler'] is of type {type(state['sampler']).__name__}: it is damaged")
        stated, found = state["checksum"], _checksum({key: state[key] for key in (*expected, *_FIELDS)})
        if stated != found:
            raise ValueError(f"state['checksum'] = {stated!r}, but its contents give {found}: it is damaged")
        fields = with_arrays({key: state[key] for key in _FIELDS})
        self._sampler.load_state_dict(with_arrays(state["sampler"]))
        self._visits = Visits(self.ranks.examples)
        self._visits.last[:] = fields["visits"]
        self._visits.waiting = fields["waiting"]
        self._fingerprint = fields["fingerprint"]
        self._epoch, self._drawn = fields["epoch"], fields["drawn"]
        self._ahead = deque(zip(fields["ahead_indices"].copy(), fields["ahead_weights"].copy(), strict=True))
        self._received = None
        self._goes_on = True
        self._iteration += 1

    def _make(self, sampler: str | Sampler, options: dict[str, Any], replacement: bool | None, seed: Seed) -> Sampler:
        """The sampler of a name, or the one given."""
        examples, draws = self.ranks.examples, self.ranks.draws
        if isinstance(sampler, Sampler):
            if options or replacement is not None or seed is not None:
                raise ValueError("sampler_options, replacement and seed are for a sampler given by its name")
            for name, found, wanted in (("n", sampler.n, examples), ("batch_size", sampler.batch_size, draws)):
                if found != wanted:
                    raise ValueError(f"sampler has {name} = {found}: must have {wanted}, what this process draws")
            return sampler
        kind = samplers.get(sampler)
        if issubclass(kind, Avare | Calibrated) and not {"p_min", "c"} & options.keys():
            options["p_min"] = 1.0 / (_FLOOR * examples)
        if replacement is None:
            replacement = kind.with_replacement_only
        if not replacement and draws > self.ranks.fewest:
            raise ValueError(
                f"batch_size = {self.ranks.batch_size}: {draws} of {self.ranks.fewest} examples cannot be drawn "
                "without replacement; give a smaller one, or replacement=True"
            )
        if self.ranks.mode == "sharded" and isinstance(seed, int | np.integer):
            seed = np.random.SeedSequence(int(seed), spawn_key=(self.ranks.rank,))
        return kind(examples, draws, replacement=replacement, seed=seed, **options)

    def _settings(self, sampler: str | Sampler, seed: Seed) -> dict[str, Any]:
        """What ranks must have in common; of what begins with an underscore, rank 0's is for all."""
        settings: dict[str, Any] = {
            "distributed": self.ranks.mode,
            "n": self.ranks.n,
            "batches_per_epoch": None if self.endless else self._length,
        }
        if self.ranks.mode == "sharded":  # where each rank draws by itself, in batches and by a rule of its own
            return settings
        return {
            **settings,
            "batch_size": self.ranks.batch_size,
            "sampler": sampler if isinstance(sampler, str) else repr(sampler),
            "seed": seed if isinstance(seed, int) else type(seed).__name__,
            "_entropy": np.random.SeedSequence().entropy,
        }

    def _arguments(self) -> State:
        """What must be the same for a state to be loaded."""
        return {
            "n": self.ranks.n,
            "layout": self.ranks.layout,
            "whole_batch": self.ranks.whole_batch,
            "batches_per_epoch": 0 if self.endless else self._length,
        }

    def _begin(self) -> int:
        """Start an iteration: of the epoch at hand, if that goes on and is not over, or of the next."""
        is_over = not self.endless and self.position >= self._length
        if self._drawn and (is_over or not self._goes_on):
            self.finish()
        self._goes_on = False
        self._iteration += 1
        return self._iteration

    def _draw(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        self._sampler.keep(len(self._ahead) + _LATE)
        batch = self._sampler.sample()
        self._drawn += 1
        self._visits.draw(batch.indices, self._sampler.steps)
        self._fingerprint = zlib.crc32(batch.indices.data, self._fingerprint)
        drawn = batch.indices, batch.weights * self._scale
        self._ahead.append(drawn)
        if not self._told_of_receipts and len(self._ahead) > _MOST_AHEAD:
            self._ahead.popleft()
        return drawn

    def _pairs(self, indices: NDArray[np.int64], weights: NDArray[np.float64]) -> Pairs:
        """What the loader is given: this rank's part, with the indices of all examples; a copy."""
        own = self.ranks.own
        return Pairs(indices[own] + self.ranks.offset, weights[own].astype(np.float32))

    def _checked(self, index: Any, norms: Any, not_finite: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices within this rank's sampler, and norms, or an error."""
        if not_finite not in ("raise", "skip"):
            raise ValueError(f"not_finite = {not_finite!r}: must be 'raise' or 'skip'")
        index, norms = as_array(index), as_array(norms)
        if self.ranks.mode == "alone" and _are_plain(index, norms) and self._visits.are_sound(index, norms):
            return index, norms.astype(np.float64)  # as nearly always: in one go
        offset, examples = self.ranks.offset, self.ranks.examples
        indices = validation.indices("index", index, self.ranks.n) - offset
        if examples < self.ranks.n:
            outside = np.flatnonzero((indices < 0) | (indices >= examples))
            if outside.size:
                raise ValueError(
                    f"index[{outside[0]}] = {indices[outside[0]] + offset}: this rank draws from "
                    f"[{offset}, {offset + examples})"
                )
        told = validation.real("norms", norms)
        left = np.isfinite(told) if not_finite == "skip" else np.ones(told.shape, dtype=bool)
        values = validation.nonnegative("norms", np.where(left, told, 0.0))
        validation.same_length("norms", len(values), "index", len(indices))
        unknown = self._visits.never_drawn(indices)
        if unknown:
            named = ", ".join(f"index[{place}] = {indices[place] + offset}" for place in unknown[:_MOST_NAMED])
            more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
            raise ValueError(f"{named}{more}: never drawn")
        if self.ranks.mode == "replicated" and len(indices) > self.ranks.batch_size:
            raise ValueError(f"index has length {len(indices)}: must be at most {self.ranks.batch_size}, the batch's")
        return indices[left], values[left]

    def _receive_until(self, indices: NDArray[np.int64]) -> None:
        """Count a batch that was told, and those before it, as received."""
        for place, (ahead, _) in enumerate(self._ahead):
            if np.array_equal(ahead, indices):
                for _ in range(place + 1):
                    self._received = self._ahead.popleft()[1]
                return


def _checksum(state: Mapping[str, Any]) -> int:
    """Of all fields; that of the sampler's part stands for it."""
    return checksum(with_arrays({**state, "sampler": state["sampler"].get("checksum")}))


def _are_plain(index: Any, norms: Any) -> bool:
    """Whether these are arrays as they come of a batch on the processor, one number for each."""
    return (
        isinstance(index, np.ndarray)
        and isinstance(norms, np.ndarray)
        and index.dtype == np.int64
        and norms.dtype in (np.float32, np.float64)
        and index.ndim == 1
        and index.shape == norms.shape
        and index.flags.c_contiguous
        and norms.flags.c_contiguous
    )


def as_array(values: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    return to_array(values) if isinstance(values, torch.Tensor) else values
