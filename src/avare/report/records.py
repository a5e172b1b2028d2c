"""The records of a store, with what the report wants of them checked; what is unfit is passed over, and named."""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.store import Skipped, Store

_RUN_COLUMNS = ("epoch", "suboptimality", "relative_error", "regret")
_THEORY_COLUMNS = ("step", "regret")
_NET_COLUMNS = ("epoch", "seconds", "loss", "test_error", "gain", "possible", "calibration_error")


class RecordError(ValueError):
    """A record that lacks what the report wants; the message says what."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What is kept of a run.

    Parameters
    ----------
    spec
        What was asked for.
    trace
        What was measured: columns of one length, nan where there is no number.
    where
        Versions, machine and date.
    seconds
        How long it took, by part.
    status
        "finished", or how else it ended.
    stored
        The whole of it, as the store has it.
    """

    spec: Mapping[str, Any]
    trace: Mapping[str, NDArray[np.float64]]
    where: Mapping[str, Any]
    seconds: Mapping[str, float]
    status: str
    stored: Mapping[str, Any]

    @property
    def shown(self) -> bool:
        """Whether it has finished; or has diverged, of a net, which says something then too."""
        return self.status == "finished" or (self.spec["experiment"], self.status) == ("nets", "diverged")


def read(store: str | os.PathLike[str]) -> tuple[list[Record], list[Skipped]]:
    """All records of a store, in order of their keys, and the files passed over; nothing is changed."""
    folder = Store(store)
    if not folder.folder.is_dir():
        raise ValueError(f"store = {str(store)!r}: there is no such folder")
    found, skipped = folder.read()
    records = []
    for data in found:
        try:
            records.append(parse(data))
        except RecordError as error:
            skipped.append(Skipped(f"{data['key']}.json", str(error)))
    return records, sorted(skipped, key=lambda each: each.name)


def parse(data: Mapping[str, Any]) -> Record:
    """What the report wants of a record, checked.

    >>> parse({"spec": {"experiment": "own"}})
    Traceback (most recent call last):
    avare.report.records.RecordError: spec['experiment'] = 'own': must be one of reproduce, compare, theory, table, nets
    """
    spec = _mapping(data, "spec")
    kind = spec.get("experiment")
    trace: dict[str, NDArray[np.float64]] = {}
    if kind in ("reproduce", "compare"):
        _texts(spec, ("dataset", "steps", "sampler"))
        _seed(spec)
        trace = _columns(_mapping(data, "trace"), _RUN_COLUMNS)
    elif kind == "theory":
        _texts(spec, ("method",))
        _seed(spec)
        trace = _columns(_mapping(data, "trace"), _THEORY_COLUMNS)
    elif kind == "table":
        _texts(spec, ("dataset",))
        for name, value in _mapping(data, "facts").items():
            _number(f"facts[{name!r}]", value)
    elif kind == "nets":
        _texts(spec, ("dataset", "model", "part", "sampler", "optimiser", "rule"))
        _seed(spec)
        for name in ("batch_size", "epochs", "examples", "step"):
            if math.isnan(_number(f"spec[{name!r}]", spec.get(name))):
                raise RecordError(f"spec lacks {name!r}")
        trace = _columns(_mapping(data, "trace"), _NET_COLUMNS)
    else:
        raise RecordError(f"spec['experiment'] = {kind!r}: must be one of reproduce, compare, theory, table, nets")
    where = data.get("where")
    seconds = data.get("seconds")
    return Record(
        spec,
        trace,
        where if isinstance(where, dict) else {},
        {part: _number(f"seconds[{part!r}]", value) for part, value in seconds.items()}
        if isinstance(seconds, dict)
        else {},
        str(data.get("status", "finished")),
        data,
    )


def _mapping(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise RecordError(f"lacks {key!r}")
    return value


def _texts(spec: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if not isinstance(spec.get(key), str):
            raise RecordError(f"spec[{key!r}] = {spec.get(key)!r}: must be text")


def _seed(spec: Mapping[str, Any]) -> None:
    if isinstance(spec.get("seed"), bool) or not isinstance(spec.get("seed"), int):
        raise RecordError(f"spec['seed'] = {spec.get('seed')!r}: must be an integer")


def _columns(trace: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """The columns that the report wants: numbers, as many in each."""
    columns = {}
    for name in names:
        values = trace.get(name)
        if not isinstance(values, list) or not values:
            raise RecordError(f"trace lacks {name!r}")
        columns[name] = np.array([_number(f"trace[{name!r}][{j}]", value) for j, value in enumerate(values)])
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise RecordError(f"trace has columns of different lengths: {lengths}")
    along = columns[names[0]]
    if not np.all(np.diff(along) > 0):  # also where one is nan
        raise RecordError(f"trace[{names[0]!r}] does not rise")
    return columns


def _number(name: str, value: Any) -> float:
    """A number; nan for one that is not finite, for which JSON has no word, and for null."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"{name} = {value!r}: must be a number")
    return float(value) if abs(value) <= sys.float_info.max else math.nan
