"""Stored records as summaries get them, and how their numbers are written."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare.experiments.store import canonical


class RecordError(ValueError):
    """A record that lacks what its experiment needs; the message says what.

    >>> issubclass(RecordError, ValueError)
    True
    """


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A stored record as a summary gets it.

    >>> trace = {"epoch": [0, 1, 2], "loss": [3.0, 1.0, None]}
    >>> result = Result.of({"spec": {"experiment": "own", "seed": 1}, "trace": trace})
    >>> result.kind, result.shown, result.trace["loss"].tolist()
    ('own', True, [3.0, 1.0, nan])
    """

    spec: Mapping[str, Any]  # all that determines the run
    trace: Mapping[str, NDArray[np.float64]]  # NaN for null
    where: Mapping[str, Any]  # versions, machine and date
    seconds: Mapping[str, float]  # by part
    status: str  # "finished", or how else the run ended
    shown: bool  # whether a summary shows it: it finished, or its experiment also shows this status
    stored: Mapping[str, Any]  # the whole record

    @classmethod
    def of(cls, data: Mapping[str, Any], shown: Sequence[str] = ("finished",)) -> "Result":
        """Read a record; raise a `RecordError` if its trace is not one."""
        columns, status = data.get("trace") or {}, data.get("status", "finished")
        try:
            trace = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            raise RecordError(f"trace: {error}") from None
        if len({len(values) for values in trace.values()}) > 1:
            raise RecordError("trace has columns of different lengths")
        where, seconds = data.get("where") or {}, data.get("seconds") or {}
        return cls(mapping_in(data, "spec"), trace, where, seconds, status, status in shown, data)

    @property
    def kind(self) -> str:
        """Its ``spec["experiment"]``."""
        return str(self.spec["experiment"])


def mapping_in(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the mapping under a key of a record."""
    value = data.get(key)
    if not isinstance(value, dict):
        raise RecordError(f"lacks {key!r}")
    return value


def together(results: Iterable[Result], key: Callable[[Result], Any]) -> list[tuple[Any, list[Result]]]:
    """Group results by a key of JSON values, in the order in which the keys first occur.

    >>> specs = [{"seed": seed, "sampler": name} for seed in (0, 1) for name in "AB"]
    >>> results = [Result(spec, {}, {}, {}, "finished", True, {}) for spec in specs]
    >>> [(name, len(group)) for name, group in together(results, lambda result: result.spec["sampler"])]
    [('A', 2), ('B', 2)]
    """
    found: dict[str, tuple[Any, list[Result]]] = {}
    for result in results:
        value = key(result)
        found.setdefault(canonical(value), (value, []))[1].append(result)
    return list(found.values())


def count(number: int, noun: str) -> str:
    """Write a count: 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- numbers for JSON -----------------------------------------------------------------------


def numbers(values: ArrayLike) -> list[float | int | None]:
    """Return values as JSON has them: None for what is not finite."""
    return [number(value) for value in np.asarray(values).tolist()]


def number(value: float) -> float | None:
    """Return a value as JSON has it: None if it is not finite."""
    return value if math.isfinite(value) else None


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join mappings; lists of the same name become one.

    >>> merged([{"rows": [1]}, {"rows": [2]}])
    {'rows': [1, 2]}
    """
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            whole[key] = [*whole.get(key, []), *value] if isinstance(value, list) else value
    return whole
