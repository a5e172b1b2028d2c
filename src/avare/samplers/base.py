"""The protocol that all samplers share, and what they have in common.

A sampler draws a batch of indices with weights, and learns from the norms that it receives. A new sampler derives
from `Sampler` and defines a few methods: `_draw`, `_learn` and `_probabilities`, and `_arguments` and `_fields` if it
has more to save. With `_compiled` instead of `_draw` and `_learn`, it brings kernels that compiled loops can use: see
`avare.samplers.kernels`.
"""

from __future__ import annotations

import copy
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare._compilation import lean
from avare._randomness import Seed, uniform_source
from avare._state import (
    Field,
    Fields,
    Part,
    State,
    checksum,
    generator_to_text,
    padded,
    plain,
    read,
    refuse_unless,
    require_checksum,
    require_padding,
    require_same,
    without_padding,
)
from avare.batch import Batch
from avare.samplers.kernels import draw_into, learn_from, learns
from avare.structures.cells import MAX_EXAMPLES

_FORMAT = 1  # of the state; raise it when the meaning of the state changes
_PENDING = ("pending_indices", "pending_weights", "pending_probabilities")
_MOST_DRAWS = 1 << 62  # of all steps together: their number must fit into an integer of 64 bits
_LARGEST_BATCH = 1 << 31
_ROUNDED_UP = 1.0 + 1e-9  # a probability of 1 may be rounded up
_MOST_PENDING = 64  # drawn batches to keep until their norms arrive, by default
SMALLEST_PROBABILITY = 1e-300
"""Below it, a weight is not finite."""
_OWNER = "this sampler"  # in messages
_GAIN_DECAY = 0.99  # per batch: the running gain looks back about a hundred batches


class Sampler(ABC):
    """Draw batches of indices, with weights that make any sum over the examples unbiased.

    Several threads may use one sampler, for example one that draws ahead and one that reports the norms:
    its methods wait for each other.

    Parameters
    ----------
    n
        Number of examples.
    batch_size
        Number of draws per step.
    replacement
        Whether an index may occur twice in a batch.
    seed
        An integer, a ``SeedSequence``, a ``BitGenerator``, a ``Generator`` (the sampler uses and
        advances it, until a state is loaded), or None for a seed from the system.

    Examples
    --------
    >>> import avare
    >>> sampler: Sampler = avare.Uniform(10, batch_size=4, replacement=True, seed=0)  # or any other
    >>> batch = sampler.sample()
    >>> sampler.update(batch.indices, [1.0, 3.0, 2.0, 2.0])
    >>> sampler.steps, float(sampler.gain)
    (1, 1.0)
    """

    with_replacement_only: ClassVar[bool] = False
    """Whether it can only draw with replacement."""
    without_replacement_only: ClassVar[bool] = False
    """Whether it can only draw without replacement."""
    learns: ClassVar[bool] = True
    """Whether the reported norms change what it draws."""
    follows_path: ClassVar[bool] = False
    """Whether a solver must call its method ``move(distance)`` with the length of each step."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Required arguments of the constructor that a problem can provide: "smoothness", "components"."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Optional arguments that `samplers.build` and experiments set: "horizon", "bound", "keep_limits", "p_min"."""
    _most_pending: int = _MOST_PENDING

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        self._n = validation.integer("n", n, at_least=1, at_most=MAX_EXAMPLES)
        self._batch_size = validation.integer("batch_size", batch_size, at_least=1, at_most=_LARGEST_BATCH)
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
        self._moments = np.zeros(2)  # running sums: the second moments of uniform sampling and of this sampler
        self._pending: dict[bytes, Batch] = {}  # drawn batches whose norms have not arrived, by their indices
        self._lock = threading.RLock()

    # --- the protocol -----------------------------------------------------------------

    def sample(self, size: int | None = None) -> Batch:
        """Draw a batch and count the step.

        Parameters
        ----------
        size
            The number of draws; by default ``batch_size``. Without replacement it is at most n.
        """
        if size is None:
            size = self._batch_size
        else:
            size = validation.integer("size", size, at_least=1, at_most=None if self._replacement else self._n)
        with self._lock:
            batch = self._draw(size)
            self._steps += 1
            # A copy, because the caller may write to the batch.
            self._pending[batch.indices.tobytes()] = Batch(
                batch.indices, batch.weights.copy(), batch.probabilities.copy()
            )
            while len(self._pending) > self._most_pending:
                del self._pending[next(iter(self._pending))]
            return batch

    def update(self, indices: ArrayLike, norms: ArrayLike) -> None:
        """Receive the gradient norms of some examples, and learn from them.

        If an index is repeated, samplers that remember norms keep the last one; samplers that count draws count each.

        Parameters
        ----------
        indices
            Integers in [0, n): usually ``batch.indices``, immediately or later.
        norms
            The norm of each of them, finite and not negative. Otherwise a ``ValueError`` is raised, and nothing
            has changed.
        """
        checked = validation.indices("indices", indices, self.n)
        values = validation.nonnegative("norms", norms)
        validation.same_length("norms", len(values), "indices", len(checked))
        self._take_in(checked, values)
        self._notify()

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each example at the next draw. O(N)."""
        with self._lock:
            return self._probabilities()

    @property
    def gain(self) -> float:
        """Running estimate of how many times larger the second moment of uniform sampling is than this sampler's.

        It is estimated from the draws alone. Above 1, this sampler reduces the variance. NaN until `update` has
        received one complete batch.
        """
        uniform, own = self._moments
        return float(uniform / own) if own > 0.0 else math.nan

    def keep(self, batches: int) -> None:
        """Set how many drawn batches to keep until their norms arrive (default 64).

        Increase it to draw further ahead. Older batches are dropped at the next draw. The sampler still learns from
        their norms, but they no longer count for `gain`.
        """
        self._most_pending = validation.integer("batches", batches, at_least=1)

    def forget(self, batch: Batch) -> None:
        """Do not wait for the norms of a batch that was drawn."""
        self._pending.pop(batch.indices.tobytes(), None)

    @property
    def independent(self) -> bool:
        """Whether a batch does not depend on those before it, apart from what was learned."""
        return True

    @property
    def n(self) -> int:
        """Number of examples."""
        return self._n

    @property
    def batch_size(self) -> int:
        """Number of draws per step."""
        return self._batch_size

    @property
    def replacement(self) -> bool:
        """Whether an index may occur twice in a batch."""
        return self._replacement

    @property
    def steps(self) -> int:
        """Number of batches drawn so far."""
        return self._steps

    def state_dict(self) -> State:
        """Return everything needed to resume with exactly the same draws: numbers, text and arrays.

        It can be pickled, or saved with ``numpy.savez(file, **state)``.
        """
        with self._lock:
            batches = self._pending.values()
            state = {
                "format": _FORMAT,
                "sampler": type(self).__name__,
                **self._arguments(),
                "steps": self._steps,
                "generator": generator_to_text(self._generator),
                "moments": self._moments.copy(),
                "pending_indices": padded([np.frombuffer(key, dtype=np.int64) for key in self._pending], -1),
                "pending_weights": padded([batch.weights for batch in batches], 0.0),
                "pending_probabilities": padded([batch.probabilities for batch in batches], 0.0),
                **self._state(),
            }
        state["fields"] = " ".join(sorted(state))
        return {**state, "checksum": checksum(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that a sampler with the same arguments has saved.

        A damaged state, or one saved by another version or with different arguments, raises a ``ValueError``, and
        nothing has changed. Other entries that were saved in the same mapping are ignored.
        """
        values = self._read(state)
        with self._lock:
            self._replace(values)

    def _read(self, state: Mapping[str, Any]) -> State:
        """Return the fields of a state for `_replace`, or raise an error. Nothing changes."""
        if not isinstance(state, Mapping):
            raise TypeError(f"state is of type {type(state).__name__}: must be a mapping, as state_dict() returns")
        names = plain(state["fields"]) if "fields" in state else ""
        if not isinstance(names, str):
            raise ValueError(f"state['fields'] is of type {type(names).__name__}: must be text")
        fields = {key: plain(state[key]) for key in {*names.split(), "fields", "checksum"} if key in state}
        own, other = type(self).__name__, fields.get("sampler", type(self).__name__)
        if isinstance(other, str) and other != own:
            raise ValueError(
                f"state['sampler'] = {other!r}: this sampler has {own!r}, so it is another sampler's state"
            )
        require_same(fields, {"format": _FORMAT}, "state", "this version of avare")
        require_same(fields, {"sampler": type(self).__name__, **self._arguments()}, "state", _OWNER)
        declared = {**self._shared_fields(), **self._fields()}
        for name in (*(key for key, field in declared.items() if isinstance(field, Field)), "fields", "checksum"):
            if name not in fields:
                raise ValueError(f"state lacks {name!r}: it is damaged, or not the state of {_OWNER}")
        require_checksum(fields, checksum({key: value for key, value in fields.items() if key != "checksum"}))
        values = {**fields, **read(fields, declared)}
        indices = values["pending_indices"]
        for name in _PENDING[1:]:
            if values[name].shape != indices.shape:
                raise ValueError(f"state[{name!r}] has shape {values[name].shape}: must be that of the indices")
        require_padding(indices, "state['pending_indices']")
        drawn = values["pending_probabilities"]
        refuse_unless((indices < 0) | (drawn > 0.0), drawn, "state['pending_probabilities']", "must be above 0")
        self._check(values)
        return values

    def _replace(self, values: State) -> None:
        """Continue from what `_read` returned."""
        self._restore(values)
        self._generator = values["generator"]
        self._source = uniform_source(self._generator)
        self._steps, self._moments = values["steps"], values["moments"]
        batches = [Batch(*arrays) for arrays in without_padding(*(values[name] for name in _PENDING))]
        self._pending = {batch.indices.tobytes(): batch for batch in batches}

    def _shared_fields(self) -> dict[str, Field]:
        """Declare the fields that all samplers save."""
        batches = (None, None)
        return {
            "steps": Field(int, at_least=0, at_most=_MOST_DRAWS // self.batch_size),
            "generator": Field(np.random.Generator),
            "moments": Field(np.float64, (2,), at_least=0.0, at_most=math.inf),
            "pending_indices": Field(np.int64, batches, at_least=-1, at_most=self.n - 1),
            "pending_weights": Field(np.float64, batches, at_least=0.0),
            "pending_probabilities": Field(np.float64, batches, at_least=0.0, at_most=_ROUNDED_UP),
        }

    def reseed(self, seed: Seed) -> None:
        """Continue with draws from another seed, and keep everything learned so far."""
        generator = np.random.default_rng(seed)
        with self._lock:
            self._generator = generator
            self._source = uniform_source(generator)

    def _take_in(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> Batch | None:
        """Do the work of `update` with checked arguments; the caller calls `_notify` next.

        Return the batch, if these are the indices of one that was drawn and waits for its norms.
        """
        with self._lock:
            self._learn(indices, norms)
            batch = self._pending.pop(indices.tobytes(), None)
            if batch is not None:
                smooth(self._moments, self.n, batch.weights, batch.probabilities, norms)
            return batch

    # --- what a sampler defines -------------------------------------------------------

    def _draw(self, size: int) -> Batch:
        """Return the next batch, by the kernel of `_compiled` by default; `steps` has not been increased yet."""
        state = self._compiled()
        if state is None:
            raise NotImplementedError(f"{type(self).__name__} must define _draw, or _compiled and its kernels")
        indices = np.empty(size, dtype=np.int64)
        probabilities, weights = np.empty(size), np.empty(size)
        draw_into(state, self._steps, self._source, indices, probabilities, weights)
        return Batch(indices, weights, probabilities)

    @abstractmethod
    def _probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each example at the next draw."""

    def _learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """Learn from checked norms, by the kernel of `_compiled` by default; without one, ignore them."""
        state = self._compiled()
        if learns(state):
            learn_from(state, indices, norms)

    def _notify(self) -> None:
        """Give the warnings of an update, after it is complete."""

    def _compiled(self) -> Any:
        """Return the state for the kernels that were declared by `register_kernels`; None if there are none."""
        return None

    def _follow(self, norms: Callable[[], NDArray[np.float64]] | None) -> None:
        """Receive a function that returns the true norms of all examples, from a solver; None when it ends."""

    def _arguments(self) -> State:
        """Return the arguments that must be the same when a state is loaded."""
        return {"n": self.n, "batch_size": self.batch_size, "replacement": self.replacement}

    def _fields(self) -> Fields:
        """Declare what else must be saved: for each name the attribute ``_name``, as a `Field` or a `Part`.

        The fields of a state are checked against it before anything changes.
        """
        return {}

    def _check(self, values: State) -> None:
        """Raise a ``ValueError`` that names the field if checked fields do not fit each other."""

    def _state(self) -> State:
        """Return what else must be saved, by default the attributes that `_fields` declares."""
        state: State = {}
        for name, field in self._fields().items():
            value = getattr(self, f"_{name}")
            if isinstance(field, Part):
                state.update(value.state())
            else:
                state[name] = value.copy() if isinstance(value, np.ndarray) else value
        return state

    def _restore(self, values: State) -> None:
        """Restore what `_state` returned, from checked fields. It must not fail."""
        for name in self._fields():
            setattr(self, f"_{name}", values[name])

    # --- copies and text --------------------------------------------------------------

    def __getstate__(self) -> State:
        # The source holds addresses of this process, and a lock belongs to it too. A copy, because another thread may
        # draw while this is being written.
        with self._lock:
            return copy.deepcopy(
                {key: value for key, value in self.__dict__.items() if key not in ("_source", "_lock")}
            )

    def __setstate__(self, state: State) -> None:
        self.__dict__.update(state)
        self._source = uniform_source(self._generator)
        self._lock = threading.RLock()

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two samplers with the same arrays would disturb each other

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self._arguments().items())
        return f"{type(self).__name__}({arguments})"


def one_per_example(name: str, values: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return an array of n numbers, finite and not negative; otherwise raise an error that names the argument."""
    found = validation.nonnegative(name, values)
    validation.same_length(name, len(found), "n", n)
    return found


# --- kernels -------------------------------------------------------------------------------


@lean
def smooth(moments, n, weights, probabilities, norms):
    """Add unbiased estimates of two second moments: N sum n^2 of uniform sampling, and sum n^2 / p of this sampler."""
    uniform, own = 0.0, 0.0
    for j in range(len(norms)):
        norm = min(norms[j], 1e140)  # so that the sums do not overflow
        uniform += n * weights[j] * norm * norm
        own += weights[j] * norm * norm / probabilities[j]
    moments[0] = _GAIN_DECAY * moments[0] + uniform
    moments[1] = _GAIN_DECAY * moments[1] + own
