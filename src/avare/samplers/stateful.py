"""States of samplers: everything needed to resume with exactly the same draws.

A sampler declares the fields that it changes. `Stateful` saves them, along with what all samplers have: the arguments,
the number of steps, the generator, the sums of the gain, and the batches that wait for their norms. A state is checked
against all declarations before anything changes.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from avare import state as states
from avare._locks import make_lock
from avare._randomness import Seed, Source, uniform_source
from avare.samplers.pending import PendingBatches
from avare.state import Field, Fields, Nested, State

_FORMAT = 3  # raise it when the meaning of the state changes
_MOST_DRAWS = 1 << 62  # of all steps together: their number must fit into an integer of 64 bits
_OWNER = "this sampler"  # in messages
_SHARED = {"generator", "source", "pending", "_moments", "_lock"}  # attributes that need no declaration
Kind = TypeVar("Kind", bound="Stateful")


class Stateful:
    """Save, load and copy a sampler."""

    hyperparameters: ClassVar[tuple[str, ...]] = ("n", "batch_size", "replacement")
    """Arguments that a class adds, by the names of attributes (with an underscore or without): numbers or text."""

    n: int
    batch_size: int
    steps: int
    generator: np.random.Generator
    source: Source
    pending: PendingBatches
    _moments: NDArray[np.float64]
    _lock: threading.RLock

    def state_dict(self) -> State:
        """Return everything needed to resume with exactly the same draws: numbers, text and arrays.

        It can be pickled, or saved with ``numpy.savez(file, **state)``.
        """
        with self._lock:
            state = {
                "format": _FORMAT,
                "sampler": type(self).__name__,
                **arguments(self),
                "steps": self.steps,
                "generator": states.generator_to_text(self.generator),
                "moments": self._moments.copy(),
                **self.pending.state(),
                **self._size(),
                **_own_fields(self),
            }
        state["fields"] = " ".join(sorted(state))
        return {**state, "checksum": states.checksum(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that a sampler with the same arguments has saved.

        A damaged state, or one saved by another version or with different arguments, raises a ``ValueError``, and
        nothing has changed. Other entries that were saved in the same mapping are ignored.
        """
        replace_state(self, read_state(self, state))

    def copy_with_seed(self, seed: Seed) -> Self:
        """Return a copy that draws from a new seed."""
        other = copy.deepcopy(self)
        other.reseed(seed)
        return other

    def reseed(self, seed: Seed) -> None:
        """Continue with draws from another seed, and keep everything learned so far."""
        generator = np.random.default_rng(seed)
        with self._lock:
            self.generator, self.source = generator, uniform_source(generator)

    # --- what a sampler defines -------------------------------------------------------

    def fields(self) -> Fields:
        """Declare what else must be saved: for each attribute, its name without the leading underscore.

        An attribute that changes is declared as a `Field`, or as `Nested` if it saves its own fields, as structures do.
        An array or structure that follows from the arguments, or from other fields, is declared as None: it is not
        saved. Undeclared arrays and structures are a ``TypeError`` in `state_dict`.
        """
        return {}

    def check_state(self, values: State) -> None:
        """Raise a ``ValueError`` that names the field if checked fields do not fit each other."""

    def restored(self) -> None:
        """Recompute what follows from the fields, after a state was loaded. It must not fail."""

    def _size(self) -> State:
        """Return what must be saved of a set of examples that has changed."""
        return {}

    def _saved_size(self, state: Mapping[str, Any]) -> State:
        """Return the attributes that `_size` has saved, checked: they are set before `fields` is called."""
        return {}

    # --- copies and text --------------------------------------------------------------

    def __getstate__(self) -> State:
        # The source holds addresses of this process, and a lock belongs to it too. A copy, because another thread may
        # draw while this is being written.
        with self._lock:
            return copy.deepcopy({key: value for key, value in self.__dict__.items() if key not in ("source", "_lock")})

    def __setstate__(self, state: State) -> None:
        # A copy, because joblib passes large arrays to its workers as files that cannot be written to.
        self.__dict__.update(copy.deepcopy(state))
        self.source = uniform_source(self.generator)
        self._lock = make_lock()

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two samplers with the same arrays would disturb each other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in arguments(self).items())})"


def arguments(sampler: Stateful) -> State:
    """Return the arguments that must be the same when a state is loaded: those in ``hyperparameters``.

    >>> import avare
    >>> arguments(avare.Uniform(9, batch_size=3))
    {'n': 9, 'batch_size': 3, 'replacement': False, 'reshuffle': False}
    """
    kinds = reversed(type(sampler).__mro__)
    names = [name for kind in kinds for name in vars(kind).get("hyperparameters", ())]
    return {name: getattr(sampler, _attribute(sampler, name)) for name in names}


def read_state(sampler: Stateful, state: Mapping[str, Any]) -> State:
    """Return the fields of a state for `replace_state`, or raise an error. Nothing changes."""
    states.require_mapping(state)
    names = states.plain(state["fields"]) if "fields" in state else ""
    if not isinstance(names, str):
        raise ValueError(f"state['fields'] is of type {type(names).__name__}: must be text")
    found = {key: states.plain(state[key]) for key in {*names.split(), "fields", "checksum"} if key in state}
    states.require_same(found, {"format": _FORMAT}, "state", "this version of avare")
    states.require_same(found, {"sampler": type(sampler).__name__, **arguments(sampler)}, "state", _OWNER)
    saved = _resized(sampler, sampler._saved_size(found))
    fields: Fields = {
        "steps": Field(int, at_least=0, at_most=_MOST_DRAWS // sampler.batch_size),
        "generator": Field(np.random.Generator),
        "moments": Field(np.float64, (6,), at_most=math.inf),
        "pending": Nested(partial(PendingBatches.from_state, n=saved.n, limit=sampler.pending.limit)),
        **saved.fields(),
    }
    for name in (*(key for key, field in fields.items() if isinstance(field, Field)), "fields", "checksum"):
        if name not in found:
            raise ValueError(f"state lacks {name!r}: it is damaged, or not the state of {_OWNER}")
    states.require_checksum(found, states.checksum({key: value for key, value in found.items() if key != "checksum"}))
    values = {**found, **states.read(found, fields)}
    saved.check_state(values)
    return values


def replace_state(sampler: Stateful, values: State) -> None:
    """Continue from what `read_state` returned."""
    with sampler._lock:
        vars(sampler).update(sampler._saved_size(values))
        for name, field in sampler.fields().items():
            if field is not None:
                setattr(sampler, _attribute(sampler, name), values[name])
        sampler.generator, sampler.source = values["generator"], uniform_source(values["generator"])
        sampler.steps, sampler._moments, sampler.pending = values["steps"], values["moments"], values["pending"]
        sampler.restored()


def _own_fields(sampler: Stateful) -> State:
    """Return the attributes that `Stateful.fields` declares."""
    fields, state = sampler.fields(), {}
    declared = {_attribute(sampler, name) for name in fields} | _SHARED
    for name, value in vars(sampler).items():
        if name not in declared and _holds_arrays(value):
            raise TypeError(
                f"{type(sampler).__name__}.{name} holds arrays, but fields() does not declare it: declare it as a "
                "Field, as Nested, or as None if it follows from the arguments"
            )
    for name, field in fields.items():
        value = getattr(sampler, _attribute(sampler, name))
        if isinstance(field, Nested):
            state.update(value.state())
        elif field is not None:
            state[name] = value.copy() if isinstance(value, np.ndarray) else value
    return state


def _attribute(sampler: Stateful, name: str) -> str:
    """Return the attribute of a field: with an underscore, or without if there is no such attribute."""
    return f"_{name}" if f"_{name}" in vars(sampler) else name


def _resized(sampler: Kind, size: State) -> Kind:
    """Return a shallow copy that has the size of a saved set."""
    other = object.__new__(type(sampler))
    vars(other).update(vars(sampler), **size)
    return other


def _holds_arrays(value: Any) -> bool:
    """Return whether a value is an array, a generator or a structure, or a collection of them."""
    if isinstance(value, Mapping):
        return any(map(_holds_arrays, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_arrays, value))
    return isinstance(value, np.ndarray | np.random.Generator) or callable(getattr(value, "state", None))
