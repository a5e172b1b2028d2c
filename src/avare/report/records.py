"""Records of finished runs, read from a folder; what cannot be read is passed over, and named."""

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FORMAT = 1
_RUN_COLUMNS = ("epoch", "suboptimality", "relative_error", "regret")
_THEORY_COLUMNS = ("step", "regret")
_NET_COLUMNS = ("epoch", "seconds", "loss", "test_error", "gain", "possible", "calibration_error")
_FACTS = ("n", "dim", "optimum", "gain_at_optimum", "smoothness_ratio")


class RecordError(ValueError):
    """A file that is not the record of a finished run; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What is kept of a run.

    Parameters
    ----------
    spec
        What was asked for.
    trace
        What was measured: columns of one length, nan where there is no number.
    facts
        What is known of a dataset, if that is what the record is of.
    where
        Versions, machine and date.
    seconds
        How long it took, by part.
    status
        "finished", or of a net, which says something then too, "diverged".
    """

    spec: Mapping[str, Any]
    trace: Mapping[str, NDArray[np.float64]]
    facts: Mapping[str, float]
    where: Mapping[str, Any]
    seconds: Mapping[str, float]
    status: str = "finished"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was passed over, and why."""

    name: str
    reason: str


def read(store: str | os.PathLike[str]) -> tuple[list[Record], list[Skipped]]:
    """All records of a folder, in the order of their names, and the files passed over."""
    folder = Path(store)
    if not folder.is_dir():
        raise ValueError(f"store = {str(store)!r}: there is no such folder")
    records, skipped = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(parse(path.read_bytes()))
        except (RecordError, OSError) as error:
            skipped.append(Skipped(path.name, str(error)))
    return records, skipped


def parse(content: bytes) -> Record:
    """The record in a file's content.

    >>> parse(b"[]")
    Traceback (most recent call last):
    avare.report.records.RecordError: holds a list, not a record
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RecordError(f"holds a {type(data).__name__}, not a record")
    if data.get("format") != _FORMAT:
        raise RecordError(f"format = {data.get('format')!r}: this version of avare reads {_FORMAT}")
    spec = _mapping(data, "spec")
    kind = spec.get("experiment")
    status = data.get("status", "finished")
    if status != "finished" and (kind, status) != ("nets", "diverged"):
        raise RecordError(f"status = {status!r}: the run has not finished")
    trace: dict[str, NDArray[np.float64]] = {}
    facts: dict[str, float] = {}
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
        given = _mapping(data, "facts")
        facts = {name: _number(f"facts[{name!r}]", given.get(name)) for name in _FACTS}
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
        facts,
        where if isinstance(where, dict) else {},
        {part: _number(f"seconds[{part!r}]", value) for part, value in seconds.items()}
        if isinstance(seconds, dict)
        else {},
        status,
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
