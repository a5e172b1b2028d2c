"""The protocol that all samplers share, and what they have in common.

A sampler draws a batch of indices with weights, and learns from the norms that it receives. A new sampler derives
from `Sampler` and defines a few methods: `draw`, `learn` and `compute_probabilities`, and `arguments` and `fields`
if it has more to save. With `kernels` instead of `draw` and `learn`, it brings kernels that compiled loops can use: see
`avare.samplers.kernels`.
"""

from __future__ import annotations

import copy
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation
from avare import state as states
from avare._compilation import lean
from avare._randomness import Seed, uniform_source
from avare.batch import Batch
from avare.samplers.kernels import draw_into, learn_from, learns, step_into
from avare.samplers.pending import PendingBatches
from avare.state import Field, Fields, Nested, State
from avare.structures.cells import MAX_EXAMPLES

_FORMAT = 2  # of the state; raise it when the meaning of the state changes
_MOST_DRAWS = 1 << 62  # of all steps together: their number must fit into an integer of 64 bits
_LARGEST_BATCH = 1 << 31
SMALLEST_PROBABILITY = 1e-300
"""Below it, a weight is not finite."""
LARGEST_NORM = 1e140
"""Samplers that sum up squares take larger norms for this, so that no square overflows."""
_OWNER = "this sampler"  # in messages
_SHARED = {"generator", "source", "_moments", "_pending", "_lock"}  # attributes that need no declaration
_FIXED = {"n", "present", "batch_size", "replacement", "capacity"}  # kernels rely on them
_GROWING = "Avare (on buckets), Calibrated, Static and Uniform"
_GAIN_DECAY = 0.99  # per batch: the running gain looks back roughly a hundred batches, ...
_SCALE_DECAY = 0.9  # ... each in units of the batches just before it
_JUMP = 1000.0  # times that scale: a batch above it has a scale of its own


class Sampler(ABC):
    """Draw batches of indices, with weights that make any sum over the examples unbiased.

    Several threads may use one sampler, for example one that draws ahead and one that reports the norms:
    its methods wait for each other.

    Parameters
    ----------
    n : int
        Number of examples.
    batch_size : int
        Number of draws per step.
    replacement : bool
        Whether an index may occur twice in a batch.
    seed : int, SeedSequence, BitGenerator, Generator or None
        Seed of the draws; None takes one from the system. A ``Generator`` is used and advanced, until a state is
        loaded.

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
    grows: bool = False
    """Whether `append` and `retire` can change the set of examples."""
    needs_all_norms: ClassVar[bool] = False
    """Whether each draw needs the present norms of all examples, not only those of earlier batches."""
    follows_path: ClassVar[bool] = False
    """Whether a solver must call its method ``move(distance)`` with the length of each step."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Required arguments of the constructor that a problem can provide: "smoothness", "components"."""
    hyperparameters: ClassVar[tuple[str, ...]] = ("n", "batch_size", "replacement")
    """Arguments that a class adds, by the names of attributes (with an underscore or without): numbers or text."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Optional arguments that `samplers.build` and experiments set: "horizon", "bound", "p_min"."""

    def __init__(self, n: int, batch_size: int, *, replacement: bool, seed: Seed) -> None:
        self.n = validation.integer("n", n, at_least=1, at_most=MAX_EXAMPLES)
        """Number of examples, with those that were retired."""
        self.present = self.n
        """Number of examples that can be drawn."""
        self.batch_size = validation.integer("batch_size", batch_size, at_least=1, at_most=_LARGEST_BATCH)
        """Number of draws per step."""
        self.replacement = validation.boolean("replacement", replacement)
        """Whether an index may occur twice in a batch."""
        if self.with_replacement_only and not self.replacement:
            raise ValueError(f"replacement = False: {type(self).__name__} draws with replacement only")
        if self.without_replacement_only and self.replacement:
            raise ValueError(f"replacement = True: {type(self).__name__} draws without replacement only")
        if not self.replacement and self.batch_size > self.n:
            raise ValueError(f"batch_size = {batch_size}: must be at most n = {self.n} without replacement")
        self.generator = np.random.default_rng(seed)
        self.source = uniform_source(self.generator)
        self.steps = 0
        """Number of batches drawn so far."""
        self._moments = np.zeros(4)  # running sums: see `smooth`
        self._pending = PendingBatches()
        self._lock = threading.RLock()

    # --- the protocol -----------------------------------------------------------------

    def sample(self, size: int | None = None) -> Batch:
        """Draw a batch and count the step.

        Parameters
        ----------
        size : int or None, default=None
            The number of draws; by default ``batch_size``. Without replacement it is at most `present`.
        """
        with self._lock:
            if size is None:
                count = self.batch_size
                self._require_enough(count)
            else:
                most = None if self.replacement else self.present
                count = validation.integer("size", size, at_least=1, at_most=most)
            batch = self.draw(count)
            if len(batch.indices) != count:
                raise ValueError(
                    f"{type(self).__name__}.draw({count}) returned {len(batch.indices)} indices: must be {count}"
                )
            self.steps += 1
            self._pending.add(batch)
            return batch

    def update(self, indices: ArrayLike, norms: ArrayLike) -> None:
        """Receive the gradient norms of some examples, and learn from them.

        If an index is repeated, samplers that remember norms keep the last one; samplers that count draws count each.

        Parameters
        ----------
        indices : array-like of int
            Integers in [0, n): usually ``batch.indices``, immediately or later. Examples that were retired since are
            ignored.
        norms : array-like of float
            The norm of each of them, finite and not negative. Otherwise a ``ValueError`` is raised, and nothing
            has changed.
        """
        self.receive(*validation.indexed("norms", norms, indices, self.n))
        self.notify()

    def step(self, indices: Any, norms: Any) -> Batch:
        """Call `update` and then `sample`, in less time: for a loop that does one after the other.

        The result is exactly the same. It saves some microseconds if the sampler learns by kernels, as `Calibrated` and
        `Avare` do, and the arrays are of int64 and float64.

        Parameters
        ----------
        indices, norms : array-like
            See `update`.
        """
        with self._lock:
            state = self.kernels
            if learns(state) and self.present == self.n and validation.are_plain(indices, norms):
                self._require_enough(self.batch_size)
                batch = _empty_batch(self.batch_size)
                drawn = (batch.indices, batch.probabilities, batch.weights)
                if step_into(state, self.steps, self.source, self.n, indices, norms, *drawn):
                    self._settle(indices, norms)
                    self.steps += 1
                    self._pending.add(batch)
                    return batch
            self.update(indices, norms)
            return self.sample()

    def append(self, k: int | None = None, *, norms: ArrayLike | None = None) -> NDArray[np.int64]:
        """Add examples to the set, and return their indices: the next draw may have them. O(1) each, amortised.

        Only `Avare`, `Calibrated`, `Static` and `Uniform` can do this; others raise a ``TypeError``. New examples get
        the indices n, n + 1, ... With ``capacity``, indices start again from 0 when the set is full: a new example
        replaces the oldest one, whose norm is forgotten. The arguments ``c`` and ``p_min`` and the default of ``decay``
        are for the first n. They follow `present`, so that the floor remains the same part of 1 / `present`.

        Parameters
        ----------
        k : int or None, default=None
            The number of new examples, at least 1. Nothing is known of them, as at the start.
        norms : array-like or None, default=None
            In place of k: one norm for each. `Static` takes its constants.
        """
        raise TypeError(f"{type(self).__name__} has a fixed set of examples: {_GROWING} can append and retire")

    def retire(self, indices: ArrayLike) -> None:
        """Remove examples from the set: they are never drawn again. O(1) each.

        Batches that were drawn before may still contain them; norms reported for them are ignored. Only samplers that
        can `append` can do this.

        Parameters
        ----------
        indices : array-like of int
            Distinct indices of present examples, not all of them. Otherwise a ``ValueError`` is raised, and nothing
            has changed.
        """
        self.append()

    def contains(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of some examples is present. O(1) each."""
        return np.ones(len(indices), dtype=bool)

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each example at the next draw, 0 for those retired. O(N)."""
        with self._lock:
            return self.compute_probabilities()

    def remembered(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the remembered norms of some examples, NaN for those without one.

        By default all are NaN: `Avare`, `Calibrated` and `Passes` return theirs.
        """
        return np.full(len(indices), np.nan)

    @property
    def gain(self) -> float:
        """Second moment of uniform sampling divided by this sampler's, estimated from the draws.

        It is a running mean over roughly the last hundred batches whose norms were reported in full, each in units of
        the norms just before it. Above 1, a batch has less variance than a uniform one; below 1, the remembered norms
        mislead. It says nothing about errors that cancel out between batches, as in the passes of `Passes`. NaN until
        `update` has received one complete batch.
        """
        with self._lock:
            uniform, own = self._moments[:2]
        return float(uniform / own) if own > 0.0 else math.nan

    @property
    def pending_limit(self) -> int:
        """How many drawn batches are kept until their norms arrive: see `keep`."""
        return self._pending.limit

    def keep(self, batches: int) -> None:
        """Set how many drawn batches to keep until their norms arrive (default 64).

        Increase it to draw further ahead. Older batches are dropped at the next draw. The sampler still learns from
        their norms, but they no longer count for `gain`.

        Parameters
        ----------
        batches : int
            At least 1.
        """
        limit = validation.integer("batches", batches, at_least=1)
        with self._lock:
            self._pending.limit = limit

    @property
    def independent(self) -> bool:
        """Whether a batch does not depend on those before it, apart from what was learned."""
        return True

    def state_dict(self) -> State:
        """Return everything needed to resume with exactly the same draws: numbers, text and arrays.

        It can be pickled, or saved with ``numpy.savez(file, **state)``.
        """
        with self._lock:
            state = {
                "format": _FORMAT,
                "sampler": type(self).__name__,
                **self.arguments(),
                "steps": self.steps,
                "generator": states.generator_to_text(self.generator),
                "moments": self._moments.copy(),
                **self._pending.state(),
                **self.own_state(),
            }
        state["fields"] = " ".join(sorted(state))
        return {**state, "checksum": states.checksum(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that a sampler with the same arguments has saved.

        A damaged state, or one saved by another version or with different arguments, raises a ``ValueError``, and
        nothing has changed. Other entries that were saved in the same mapping are ignored.
        """
        self.replace_state(self.read_state(state))

    def read_state(self, state: Mapping[str, Any]) -> State:
        """Return the fields of a state for `replace_state`, or raise an error. Nothing changes."""
        states.require_mapping(state)
        names = states.plain(state["fields"]) if "fields" in state else ""
        if not isinstance(names, str):
            raise ValueError(f"state['fields'] is of type {type(names).__name__}: must be text")
        found = {key: states.plain(state[key]) for key in {*names.split(), "fields", "checksum"} if key in state}
        states.require_same(found, {"format": _FORMAT}, "state", "this version of avare")
        states.require_same(found, {"sampler": type(self).__name__, **self.arguments()}, "state", _OWNER)
        sizes = self._sizes(found)
        saved = _copy_with(self, sizes) if sizes else self
        fields: Fields = {
            "steps": Field(int, at_least=0, at_most=_MOST_DRAWS // self.batch_size),
            "generator": Field(np.random.Generator),
            "moments": Field(np.float64, (4,), at_least=0.0, at_most=math.inf),
            "pending": Nested(partial(PendingBatches.from_state, n=saved.n, limit=self.pending_limit)),
            **saved.fields(),
        }
        for name in (*(key for key, field in fields.items() if isinstance(field, Field)), "fields", "checksum"):
            if name not in found:
                raise ValueError(f"state lacks {name!r}: it is damaged, or not the state of {_OWNER}")
        states.require_checksum(
            found, states.checksum({key: value for key, value in found.items() if key != "checksum"})
        )
        values = {**found, **states.read(found, fields)}
        saved.check_state(values)
        return values

    def replace_state(self, values: State) -> None:
        """Continue from what `read_state` returned."""
        with self._lock:
            self.restore(values)
            self.generator = values["generator"]
            self.source = uniform_source(self.generator)
            self.steps, self._moments, self._pending = values["steps"], values["moments"], values["pending"]

    def reseed(self, seed: Seed) -> None:
        """Continue with draws from another seed, and keep everything learned so far."""
        generator = np.random.default_rng(seed)
        with self._lock:
            self.generator = generator
            self.source = uniform_source(generator)

    def copy_with_seed(self, seed: Seed) -> Self:
        """Return a copy that draws from a new seed."""
        other = copy.deepcopy(self)
        other.reseed(seed)
        return other

    def receive(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> Batch | None:
        """Do the work of `update` with checked arguments; the caller calls `notify` next.

        Return the batch, if these are the indices of one that was drawn and waits for its norms.
        """
        with self._lock:
            if self.present < self.n:
                kept = self.contains(indices)
                self.learn(indices[kept], norms[kept])
            else:
                self.learn(indices, norms)
            return self._settle(indices, norms)

    def _settle(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> Batch | None:
        """Count a batch that waited for its norms in `gain`, and return it."""
        batch = self._pending.pop(indices)
        if batch is not None:
            smooth(self._moments, self.present, batch.weights, batch.probabilities, norms)
        return batch

    def drive(self, loop: Callable[[Any, int, Any, NDArray[np.float64]], int], count: int) -> int:
        """Let a compiled loop of `count` steps draw and learn; return how many it made. Other threads wait.

        It is called with `kernels`, the batches drawn so far, the source of random numbers, and the sums of `smooth`.
        If it ends early, it has also drawn the batch of the step that failed.
        """
        with self._lock:
            self._require_enough(self.batch_size)
            done = loop(self.kernels, self.steps, self.source, self._moments)
            self.steps += min(done + 1, count)
            return done

    # --- what a sampler defines -------------------------------------------------------

    def draw(self, size: int) -> Batch:
        """Return the next batch, by default with `kernels`; `steps` has not been increased yet."""
        state = self.kernels
        if state is None:
            raise NotImplementedError(f"{type(self).__name__} must define draw, or kernels")
        batch = _empty_batch(size)
        draw_into(state, self.steps, self.source, batch.indices, batch.probabilities, batch.weights)
        return batch

    @abstractmethod
    def compute_probabilities(self) -> NDArray[np.float64]:
        """Return the probability of each example at the next draw."""

    def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """Learn from checked norms, by default with `kernels`; without them, ignore them."""
        state = self.kernels
        if learns(state):
            learn_from(state, indices, norms)

    def notify(self) -> None:
        """Give the warnings of an update, after it is complete."""

    @property
    def kernels(self) -> Any:
        """Return the state for the kernels that were declared by `register_kernels`; None if there are none."""
        return None

    def follow(self, norms: Callable[[], NDArray[np.float64]] | None) -> None:
        """Receive a function that returns the true norms of all examples, from a solver; None when it ends."""

    def arguments(self) -> State:
        """Return the arguments that must be the same when a state is loaded: those in `hyperparameters`."""
        kinds = reversed(type(self).__mro__)
        names = [name for kind in kinds for name in vars(kind).get("hyperparameters", ())]
        return {name: getattr(self, self._attribute(name)) for name in names}

    def fields(self) -> Fields:
        """Declare what else must be saved: for each attribute, its name without the leading underscore.

        An attribute that changes is declared as a `Field`, or as `Nested` if it saves its own fields, as structures do.
        A state is checked against this declaration before anything changes. An array or structure that follows from the
        arguments, or from other fields, is declared as None: it is not saved. Undeclared arrays and structures are a
        ``TypeError`` in `state_dict`.
        """
        return {}

    def _sizes(self, state: Mapping[str, Any]) -> State:
        """Return the attributes that a saved state changes before `fields` is called: the size of a set that grows."""
        return {}

    def check_state(self, values: State) -> None:
        """Raise a ``ValueError`` that names the field if checked fields do not fit each other."""

    def own_state(self) -> State:
        """Return what else must be saved, by default the attributes that `fields` declares."""
        fields, state = self.fields(), {}
        declared = {self._attribute(name) for name in fields} | _SHARED
        for name, value in vars(self).items():
            if name not in declared and _holds_arrays(value):
                raise TypeError(
                    f"{type(self).__name__}.{name} holds arrays, but fields() does not declare it: declare it as a "
                    "Field, as Nested, or as None if it follows from the arguments"
                )
        for name, field in fields.items():
            value = getattr(self, self._attribute(name))
            if isinstance(field, Nested):
                state.update(value.state())
            elif field is not None:
                state[name] = value.copy() if isinstance(value, np.ndarray) else value
        return state

    def restore(self, values: State) -> None:
        """Restore what `own_state` returned, from checked fields. It must not fail."""
        for name, field in self.fields().items():
            if field is not None:
                setattr(self, self._attribute(name), values[name])

    def _require_enough(self, size: int) -> None:
        """Raise an error if there are too few examples for a batch without replacement."""
        if size > self.present and not self.replacement:
            raise ValueError(f"batch_size = {size}: only {self.present} examples are present, and each is drawn once")

    def _attribute(self, name: str) -> str:
        """Return the attribute of a field: with an underscore, or without if there is no such attribute."""
        return f"_{name}" if f"_{name}" in vars(self) else name

    # --- copies and text --------------------------------------------------------------

    if not TYPE_CHECKING:  # otherwise mypy would accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name in _FIXED and name in vars(self):
                raise AttributeError(f"{name} = {value!r}: cannot be changed later; build another sampler")
            object.__setattr__(self, name, value)  # in less time than by super()

    def __getstate__(self) -> State:
        # The source holds addresses of this process, and a lock belongs to it too. A copy, because another thread may
        # draw while this is being written.
        with self._lock:
            return copy.deepcopy({key: value for key, value in self.__dict__.items() if key not in ("source", "_lock")})

    def __setstate__(self, state: State) -> None:
        # A copy, because joblib passes large arrays to its workers as files that cannot be written to.
        self.__dict__.update(copy.deepcopy(state))
        self.source = uniform_source(self.generator)
        self._lock = threading.RLock()

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two samplers with the same arrays would disturb each other

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments().items())
        return f"{type(self).__name__}({arguments})"


def _empty_batch(size: int) -> Batch:
    return Batch(np.empty(size, dtype=np.int64), np.empty(size), np.empty(size))


def _copy_with(sampler: Sampler, attributes: State) -> Sampler:
    """Return a shallow copy with other attributes."""
    other = object.__new__(type(sampler))
    vars(other).update(vars(sampler), **attributes)
    return other


def one_per_example(name: str, values: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return an array of n numbers, finite and not negative; otherwise raise an error that names the argument."""
    found = validation.nonnegative(name, values)
    validation.same_length(name, len(found), "n", n)
    return found


def _holds_arrays(value: Any) -> bool:
    """Return whether a value is an array, a generator or a structure, or a collection of them."""
    if isinstance(value, Mapping):
        return any(map(_holds_arrays, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_arrays, value))
    return isinstance(value, np.ndarray | np.random.Generator) or callable(getattr(value, "state", None))


# --- kernels -------------------------------------------------------------------------------


@lean
def smooth(moments, n, weights, probabilities, norms):
    """Add unbiased estimates of two second moments: N sum n^2 of uniform sampling, and sum n^2 / p of this sampler.

    ``moments`` holds decaying sums of both, then faster ones of uniform's alone and of 1. Each batch counts in units of
    the mean of uniform's over the batches just before it; otherwise old, larger norms would dominate while norms fall.
    A scale from the batch itself would be biased: in a batch of one draw both would be 1.
    """
    uniform, own = 0.0, 0.0
    for j in range(len(norms)):
        norm = min(norms[j], 1e140)  # so that the sums do not overflow
        uniform += n * weights[j] * norm * norm
        own += weights[j] * norm * norm / probabilities[j]
    before = moments[2] / max(moments[3], 1.0)
    scale = before if uniform <= _JUMP * before else uniform  # the first batch, or norms of another size altogether
    if 0.0 < scale < np.inf:
        moments[0] = _GAIN_DECAY * moments[0] + uniform / scale
        moments[1] = _GAIN_DECAY * moments[1] + own / scale
        moments[2] = _SCALE_DECAY * moments[2] + uniform
        moments[3] = _SCALE_DECAY * moments[3] + 1.0
