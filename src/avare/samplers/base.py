"""What all samplers are, and what they share.

A sampler draws a batch of indices with weights, and learns from the norms it is told. A new
one derives from `Sampler` and fills in a few methods: `_draw`, `_learn`, `_probabilities`, and,
where it has more to save, `_arguments`, `_state` and `_restore`.
"""

import copy
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import lean
from avare._randomness import Seed, uniform_source
from avare._state import State, checksum, generator_from_text, generator_to_text, plain
from avare.batch import Batch
from avare.structures.cells import MAX_EXAMPLES

_FORMAT = 1  # of the state; to be raised when its meaning changes
_PENDING = ("pending_indices", "pending_weights", "pending_probabilities")
_SHARED_FIELDS = ("fields", "steps", "generator", "moments", *_PENDING)
_MOST_PENDING = 64  # batches that wait for their norms, unless told otherwise; older ones are forgotten
_GAIN_DECAY = 0.99  # a batch: the running gain looks back about a hundred batches


class Drawing(NamedTuple):
    """How a sampler draws, for a loop that is compiled as a whole."""

    memory: Any
    """The arrays of `Buckets`; None: every example alike."""
    c: float
    """The floor's; see `schedules.floor`."""
    delta: float
    p_min: float


class Sampler(ABC):
    """Draws batches of indices, with weights that make any sum over the examples unbiased.

    Several threads may use one sampler, say one that draws ahead and one that tells the norms:
    its methods wait for each other.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        Draws a step.
    replacement
        Whether an index may come twice in a batch.
    seed
        An integer, a ``SeedSequence``, a ``BitGenerator``, a ``Generator`` (which is then
        used, and advanced, until a state is loaded), or None for a seed from the system.
    """

    with_replacement_only: ClassVar[bool] = False
    """Whether the rule has no meaning without replacement."""
    without_replacement_only: ClassVar[bool] = False
    """Whether its draws are distinct by construction."""
    follows_path: ClassVar[bool] = False
    """Whether it wants to be told by ``move(distance)`` how far each step goes."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Arguments that the constructor must have and a problem can give: "smoothness", "components"."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Optional arguments that `samplers.build` and experiments set: "horizon", "bound", "keep_limits", "p_min"."""
    _most_pending: int = _MOST_PENDING

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        self._n = validation.integer("n", n, at_least=1, at_most=MAX_EXAMPLES)
        self._batch_size = validation.integer("batch_size", batch_size, at_least=1)
        self._replacement = validation.boolean("replacement", replacement)
        if self.with_replacement_only and not self.replacement:
            raise ValueError(f"replacement = False: {type(self).__name__} draws with replacement only")
        if self.without_replacement_only and self.replacement:
            raise ValueError(f"replacement = True: {type(self).__name__} draws without replacement only")
        if not self.replacement and self.batch_size > self.n:
            raise ValueError(f"batch_size = {batch_size}: must be at most n = {self.n} without replacement")
        self._generator = np.random.default_rng(seed)
        self._source = uniform_source(self._generator)
        self._steps = 0
        self._moments = np.zeros(2)  # uniform's second moment and ours, smoothed
        self._pending: dict[bytes, Batch] = {}  # drawn, and not yet told the norms of, by their indices
        self._lock = threading.RLock()

    # --- the protocol -----------------------------------------------------------------

    def sample(self) -> Batch:
        """Draw the next batch, and count the step."""
        with self._lock:
            batch = self._draw()
            self._steps += 1
            # A copy, for the caller may write to the batch.
            self._pending[batch.indices.tobytes()] = Batch(
                batch.indices, batch.weights.copy(), batch.probabilities.copy()
            )
            while len(self._pending) > self._most_pending:
                del self._pending[next(iter(self._pending))]
            return batch

    def update(self, indices: ArrayLike, norms: ArrayLike) -> None:
        """Learn the gradient norms of some examples.

        Of a repeated index, rules that remember norms keep the last; rules that count draws count each.

        Parameters
        ----------
        indices
            Integers in [0, n): most often ``batch.indices``, at once or later.
        norms
            As many finite numbers, none negative. Otherwise nothing has changed.
        """
        checked = validation.indices("indices", indices, self.n)
        values = validation.nonnegative("norms", norms)
        validation.same_length("norms", len(values), "indices", len(checked))
        self._take_in(checked, values)
        self._notify()

    def probabilities(self) -> NDArray[np.float64]:
        """The probability of each example at the next draw. O(N)."""
        with self._lock:
            return self._probabilities()

    @property
    def gain(self) -> float:
        """Uniform's second moment over ours, estimated from the draws alone and smoothed.

        Above 1 where this sampler saves something; nan until the norms of a batch, all as it
        was drawn, have been told.
        """
        uniform, own = self._moments
        return float(uniform / own) if own > 0.0 else math.nan

    def keep(self, batches: int) -> None:
        """Remember so many batches that wait for their norms, for `gain`: 64 unless told.

        For those who draw far ahead. Older batches are forgotten at the next draw; their norms
        are learned all the same, but the gain takes no notice of them.
        """
        self._most_pending = validation.integer("batches", batches, at_least=1)

    @property
    def n(self) -> int:
        """Number of examples."""
        return self._n

    @property
    def batch_size(self) -> int:
        """Draws a step."""
        return self._batch_size

    @property
    def replacement(self) -> bool:
        """Whether an index may come twice in a batch."""
        return self._replacement

    @property
    def steps(self) -> int:
        """How many batches have been drawn."""
        return self._steps

    def state_dict(self) -> State:
        """All it takes to go on with the very same draws: numbers, text and arrays.

        May be pickled, or kept with ``numpy.savez(file, **state)``.
        """
        with self._lock:
            keys, batches = self._pending.keys(), self._pending.values()
            shape = (len(batches), self.batch_size)
            state = {
                "format": _FORMAT,
                "sampler": type(self).__name__,
                **self._arguments(),
                "steps": self._steps,
                "generator": generator_to_text(self._generator),
                "moments": self._moments.copy(),
                "pending_indices": np.frombuffer(b"".join(keys), dtype=np.int64).reshape(shape),
                "pending_weights": np.array([batch.weights for batch in batches]).reshape(shape),
                "pending_probabilities": np.array([batch.probabilities for batch in batches]).reshape(shape),
                **self._state(),
            }
        state["fields"] = " ".join(sorted(state))
        return {**state, "checksum": checksum(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, of a sampler with the same arguments.

        A state of another version, of other arguments, or a damaged one is a ``ValueError``,
        and nothing has changed. Other things that were saved beside the state are passed over.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state is of type {type(state).__name__}: must be a mapping, as state_dict() gives")
        known = str(plain(state["fields"])).split() if "fields" in state else []
        fields = {key: plain(state[key]) for key in (*known, "fields", "checksum") if key in state}
        expected = self._arguments()
        for key in ("format", "sampler", *expected, "checksum", *_SHARED_FIELDS):
            if key not in fields:
                raise ValueError(f"state lacks {key!r}: it is damaged, or not a sampler's state")
        if fields["format"] != _FORMAT:
            raise ValueError(f"state['format'] = {fields['format']!r}: this version of avare reads {_FORMAT}")
        for key, own in {"sampler": type(self).__name__, **expected}.items():
            if fields[key] != own:
                raise ValueError(f"state[{key!r}] = {fields[key]!r}: this sampler has {own!r}")
        stated, found = fields.pop("checksum"), checksum(fields)
        if stated != found:
            raise ValueError(f"state['checksum'] = {stated!r}, but its contents give {found}: it is damaged")
        generator = generator_from_text(fields["generator"])
        batches = [Batch(*arrays) for arrays in zip(*(fields[key].copy() for key in _PENDING), strict=True)]
        with self._lock:
            self._restore(fields)
            self._generator = generator
            self._source = uniform_source(generator)
            self._steps = fields["steps"]
            self._moments = fields["moments"].copy()
            self._pending = {batch.indices.tobytes(): batch for batch in batches}

    def reseed(self, seed: Seed) -> None:
        """Go on with the draws of another seed, and with all that was learned."""
        generator = np.random.default_rng(seed)
        with self._lock:
            self._generator = generator
            self._source = uniform_source(generator)

    def _take_in(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """`update` with what has been checked; `_notify` is to follow."""
        with self._lock:
            self._learn(indices, norms)
            batch = self._pending.pop(indices.tobytes(), None)
            if batch is not None:
                smooth(self._moments, self.n, batch.weights, batch.probabilities, norms)

    # --- what a sampler fills in ------------------------------------------------------

    @abstractmethod
    def _draw(self) -> Batch:
        """The next batch; `steps` has not been counted up yet."""

    @abstractmethod
    def _probabilities(self) -> NDArray[np.float64]:
        """The probability of each example at the next draw."""

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """Take in norms, which have been checked."""

    def _notify(self) -> None:
        """Say what has to be said of an update, when all is done."""

    def _compiled(self) -> Drawing | None:
        """How to draw and learn inside a compiled loop; None: only by `sample` and `update`."""
        return None

    def _follow(self, norms: Callable[[], NDArray[np.float64]] | None) -> None:
        """Take note of a way to ask for all true norms, as a solver offers it; None: it ends here."""

    def _arguments(self) -> State:
        """The arguments that must be the same for a state to be loaded."""
        return {"n": self.n, "batch_size": self.batch_size, "replacement": self.replacement}

    def _state(self) -> State:
        """What else there is to save."""
        return {}

    def _restore(self, state: State) -> None:
        """Take over what `_state` gave, or raise a ``ValueError`` before anything has changed."""

    # --- Python's own -----------------------------------------------------------------

    def __getstate__(self) -> State:
        # The source holds addresses in this process, and a lock belongs to it too. A copy, for
        # another thread may draw while this is being written.
        with self._lock:
            return copy.deepcopy(
                {key: value for key, value in self.__dict__.items() if key not in ("_source", "_lock")}
            )

    def __setstate__(self, state: State) -> None:
        self.__dict__.update(state)
        self._source = uniform_source(self._generator)
        self._lock = threading.RLock()

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two samplers on one memory would disturb each other

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self._arguments().items())
        return f"{type(self).__name__}({arguments})"


# --- kernels -------------------------------------------------------------------------------


@lean
def smooth(moments, n, weights, probabilities, norms):
    """Mix in unbiased estimates of uniform's second moment, N sum n^2, and of ours, sum n^2 / p."""
    uniform, own = 0.0, 0.0
    for j in range(len(norms)):
        norm = min(norms[j], 1e140)  # so that no sum overflows
        uniform += n * weights[j] * norm * norm
        own += weights[j] * norm * norm / probabilities[j]
    moments[0] = _GAIN_DECAY * moments[0] + uniform
    moments[1] = _GAIN_DECAY * moments[1] + own
