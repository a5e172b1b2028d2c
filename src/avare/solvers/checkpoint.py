"""Save and restore a run: ``NamedTuple``s with arrays, each checked.

A run has groups of arrays, a mapping of names to such tuples. The kernels of a tuple declare which of its arrays to
save (`avare.solvers.kernels`); by default all are. `saved` flattens the groups, ``{"estimator/slopes": array, ...}``.
A saved state is checked against the `fields_of` a run that was built with the same arguments: each array must have the
same shape and dtype, and be finite. Filling the arrays in place then cannot fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from avare.samplers import Sampler
from avare.solvers.kernels import SAVED
from avare.state import Field, State, checksum, plain

ArrayGroups = Mapping[str, Any]


def saved(groups: ArrayGroups) -> State:
    """Return all arrays by their names, without a copy."""
    names = {name: SAVED.get(type(part), part._fields) for name, part in groups.items()}
    return {f"{name}/{key}": getattr(groups[name], key) for name in groups for key in names[name]}


def fields_of(groups: ArrayGroups) -> dict[str, Field]:
    """Return what a saved state must hold for these groups."""
    return {name: Field(own.dtype, own.shape) for name, own in saved(groups).items()}


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
        state |= {f"sampler/{key}": value for key, value in self.sampler.state_dict().items()}
        return {**state, "checksum": run_checksum(state)}


def part_of(state: Mapping[str, Any], name: str) -> State:
    """Return the part of a state that belongs to a chain, or to the sampler."""
    return {key.removeprefix(f"{name}/"): each for key, each in state.items() if key.startswith(f"{name}/")}


def run_checksum(state: Mapping[str, Any]) -> int:
    """Return the checksum of a run, its sampler included."""
    return checksum({key: plain(each) for key, each in state.items() if key != "checksum"})
