"""Save and restore a run: any ``NamedTuple`` of arrays, and any object with arrays and numbers, each field checked.

The memory of a run is a mapping of names to such parts. `saved` flattens it, ``{"table/slopes": array, ...}``. `read`
checks a saved state against the memory of a run that was built with the same arguments: each array must have the same
shape and dtype, each number the same type, all within their bounds. `restore` then cannot fail, and fills the arrays in
place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from avare.samplers import Sampler
from avare.state import Field, State, checksum, plain, require_checksum

Memory = Mapping[str, Any]
Bounds = Mapping[str, dict[str, float]]

ANY_NUMBER = {"at_least": -np.inf, "at_most": np.inf, "also": np.nan}
NOT_NEGATIVE = {"at_least": 0.0, "at_most": np.inf}
_SAMPLER = "sampler/"  # before the names of the sampler's fields
_WITHIN = "resume"  # in messages


def _fields(part: Any) -> dict[str, Any]:
    fields = vars(part) if hasattr(part, "__dict__") else part._asdict()
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def saved(memory: Memory) -> State:
    """Return all fields by their names, arrays without a copy."""
    return {f"{name}/{key}": value for name, part in memory.items() for key, value in _fields(part).items()}


def read(state: Mapping[str, Any], memory: Memory, bounds: Bounds) -> State:
    """Return the fields for `restore`, or raise a ``ValueError`` that names one. Nothing changes."""
    values = {}
    for name, own in saved(memory).items():
        limits: Any = bounds.get(name, {})
        array = isinstance(own, np.ndarray)
        field = Field(own.dtype, own.shape, **limits) if array else Field(type(own), **limits)
        values[name] = field.read(state, name, _WITHIN)
    return values


def restore(memory: Memory, values: State) -> None:
    """Continue from what `read` returned."""
    for name, part in memory.items():
        for key, own in _fields(part).items():
            if isinstance(own, np.ndarray):
                own[...] = values[f"{name}/{key}"]
            else:
                setattr(part, key, values[f"{name}/{key}"])


@dataclass
class Checkpoint:
    """What a run needs to be resumed: its own fields, and its sampler."""

    own: State
    sampler: Sampler
    drawn: int
    """Batches that the sampler had drawn when the run ended."""

    def state_dict(self) -> State:
        """Return numbers, text and copies of the arrays, with a checksum."""
        state = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in self.own.items()}
        if self.sampler.steps != self.drawn:
            raise ValueError(
                f"the sampler has drawn {self.sampler.steps - self.drawn} batches since this run ended: "
                "call state_dict() before it draws again"
            )
        state.update({_SAMPLER + key: value for key, value in self.sampler.state_dict().items()})
        return {**state, "checksum": run_checksum(state)}


def split(state: Mapping[str, Any]) -> tuple[State, State]:
    """Return a run's own fields, and the state of its sampler."""
    own = {key: plain(value) for key, value in state.items() if not key.startswith(_SAMPLER)}
    return own, {key.removeprefix(_SAMPLER): each for key, each in state.items() if key.startswith(_SAMPLER)}


def require_intact(state: Mapping[str, Any]) -> None:
    """Raise a ``ValueError`` if the checksum of a state is missing or wrong."""
    if "checksum" not in state:
        raise ValueError(f"{_WITHIN} lacks 'checksum': it is damaged")
    require_checksum(state, run_checksum(state), _WITHIN)


def run_checksum(state: Mapping[str, Any]) -> int:
    """The checksum of a run's own fields; the sampler's state has its own, which is used for it."""
    own = {key: each for key, each in split(state)[0].items() if key != "checksum"}
    return checksum({**own, "sampler": plain(state.get(_SAMPLER + "checksum"))})
