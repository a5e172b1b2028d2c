"""Save and restore a run: ``NamedTuple``s with arrays, each checked.

A run has groups of arrays, a mapping of names to such tuples. The kernels of a tuple declare which of its arrays to
save (`avare.solvers.kernels`); by default all are. `saved` flattens the groups, ``{"estimator/slopes": array, ...}``.
`read` checks a saved state against the groups of a run that was built with the same arguments: each array must have the
same shape and dtype, and be within its bounds. `restore` then cannot fail, and fills the arrays in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from avare.samplers import Sampler
from avare.solvers.kernels import SAVED
from avare.state import Field, State, checksum, plain

ArrayGroups = Mapping[str, Any]
Bounds = Mapping[str, Mapping[str, float]]

ANY_NUMBER = {"at_least": -np.inf, "at_most": np.inf, "also": np.nan}
_SAMPLER = "sampler/"  # before the names of the sampler's fields


def saved(groups: ArrayGroups) -> State:
    """Return all arrays by their names, without a copy."""
    names = {name: SAVED.get(type(part), part._fields) for name, part in groups.items()}
    return {f"{name}/{key}": getattr(groups[name], key) for name in groups for key in names[name]}


def read(state: Mapping[str, Any], groups: ArrayGroups, bounds: Bounds) -> State:
    """Return the fields for `restore`, or raise a ``ValueError`` that names one. Nothing changes."""
    return {
        name: Field(own.dtype, own.shape, **bounds.get(name, {})).read(state, name, "resume")
        for name, own in saved(groups).items()
    }


def restore(groups: ArrayGroups, values: State) -> None:
    """Continue from what `read` returned."""
    for name, own in saved(groups).items():
        own[...] = values[name]


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


def run_checksum(state: Mapping[str, Any]) -> int:
    """The checksum of a run's own fields; the sampler's state has its own, which is used for it."""
    own = {key: each for key, each in split(state)[0].items() if key != "checksum"}
    return checksum({**own, "sampler": plain(state.get(_SAMPLER + "checksum"))})
