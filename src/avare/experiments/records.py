"""Stored records, checked for what a summary needs, and taken together where they differ by their seed alone."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare.experiments.store import canonical

PARTS = ("steps", "evaluation")
"""What the seconds of a run are counted for."""


class RecordError(ValueError):
    """A record that lacks what its experiment needs; the message says what.

    >>> try:
    ...     checked({"spec": {}}, Fields(texts=("dataset",)))
    ... except RecordError as error:
    ...     print(error)
    spec['dataset'] = None: must be text
    """


@dataclass(frozen=True, slots=True)
class Fields:
    """What a stored record must have: keys of its spec by type, and columns of its trace, of which the first rises.

    >>> fields = Fields(texts=("dataset",), integers=("seed",))
    >>> checked({"spec": {"experiment": "own", "dataset": 7}}, fields)
    Traceback (most recent call last):
    avare.experiments.records.RecordError: spec['dataset'] = 7: must be text
    """

    texts: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A stored record that has been checked.

    >>> trace = {"epoch": np.arange(3.0)}
    >>> result = Result({"experiment": "own", "seed": 1}, trace, {}, {"steps": 0.1}, "finished", True, {})
    >>> result.kind, float(result.trace["epoch"][-1])
    ('own', 2.0)
    """

    spec: Mapping[str, Any]  # all that determines the run
    trace: Mapping[str, NDArray[np.float64]]  # the columns that `Fields` names; NaN for null
    where: Mapping[str, Any]  # versions, machine and date
    seconds: Mapping[str, float]  # by part
    status: str  # "finished", or how else the run ended
    shown: bool  # whether a summary shows it: it finished, or its experiment also shows this status
    stored: Mapping[str, Any]  # the whole record

    @property
    def kind(self) -> str:
        """Its ``spec["experiment"]``."""
        return str(self.spec["experiment"])


def checked(data: Mapping[str, Any], fields: Fields, shown: Sequence[str] = ("finished",)) -> Result:
    """Check a stored record; raise a `RecordError` if it lacks something.

    >>> checked({"spec": {"experiment": "own", "seed": "a"}}, Fields(integers=("seed",)))
    Traceback (most recent call last):
    avare.experiments.records.RecordError: spec['seed'] = 'a': must be an integer
    """
    spec = mapping_in(data, "spec")
    for key in fields.texts:
        if not isinstance(spec.get(key), str):
            raise RecordError(f"spec[{key!r}] = {spec.get(key)!r}: must be text")
    for key in fields.integers:
        if isinstance(spec.get(key), bool) or not isinstance(spec.get(key), int):
            raise RecordError(f"spec[{key!r}] = {spec.get(key)!r}: must be an integer")
    for key in fields.numbers:
        if math.isnan(number_in(f"spec[{key!r}]", spec.get(key))):
            raise RecordError(f"spec lacks {key!r}")
    where, seconds = (each if isinstance(each, dict) else {} for each in (data.get("where"), data.get("seconds")))
    return Result(
        spec=spec,
        trace=_columns(mapping_in(data, "trace"), fields.columns) if fields.columns else {},
        where=where,
        seconds={part: number_in(f"seconds[{part!r}]", value) for part, value in seconds.items()},
        status=str(data.get("status", "finished")),
        shown=data.get("status", "finished") in shown,
        stored=data,
    )


def mapping_in(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the mapping under a key of a record."""
    value = data.get(key)
    if not isinstance(value, dict):
        raise RecordError(f"lacks {key!r}")
    return value


def number_in(name: str, value: Any) -> float:
    """Return a number of a record; NaN for null and for what is too large for a float."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"{name} = {value!r}: must be a number")
    return float(value) if abs(value) <= sys.float_info.max else math.nan


def _columns(trace: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    columns = {}
    for name in names:
        values = trace.get(name)
        if not isinstance(values, list) or not values:
            raise RecordError(f"trace lacks {name!r}")
        columns[name] = np.array([number_in(f"trace[{name!r}][{j}]", value) for j, value in enumerate(values)])
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise RecordError(f"trace has columns of different lengths: {lengths}")
    if not np.all(np.diff(columns[names[0]]) > 0):  # also if one is NaN
        raise RecordError(f"trace[{names[0]!r}] does not increase")
    return columns


# --- records of the same settings -----------------------------------------------------------


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


def apart(
    results: Iterable[Result], key: Callable[[Result], dict[str, Any]], name: Callable[[dict[str, Any]], Any]
) -> list[tuple[Any, str, dict[str, Any], list[Result]]]:
    """Group results as `together`; return the name of each group, how it differs from others of this name, and it."""
    by_name: dict[Any, list[tuple[dict[str, Any], list[Result]]]] = {}
    for spec, members in together(results, key):
        by_name.setdefault(name(spec), []).append((spec, members))
    return [
        (each, mark, *group)
        for each, groups in by_name.items()
        for mark, group in zip(differences([spec for spec, _ in groups]), groups, strict=True)
    ]


def but_for_seed(along: str, without: Iterable[str] = ()) -> Callable[[Result], dict[str, Any]]:
    """Return a key of results that differ by their seed alone and were evaluated at the same places."""
    left_out = {"seed", *without}
    return lambda result: {
        **{key: value for key, value in result.spec.items() if key not in left_out},
        "evaluations": result.trace[along].tolist(),
    }


def differences(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in a few words how each spec differs from the others; "" for a single one.

    >>> differences([{"epochs": 3, "c": 1.0}, {"epochs": 4, "c": 1.0}])
    ['3 epochs', '4 epochs']
    """
    flat = [{**spec, **spec["options"]} if isinstance(spec.get("options"), dict) else spec for spec in specs]
    keys = sorted({key for spec in flat for key in spec} - {"options"})
    varied = [key for key in keys if len({canonical(spec.get(key)) for spec in flat}) > 1]
    return [", ".join(_words(key, spec.get(key)) for key in varied) for spec in flat]


def _words(key: str, value: Any) -> str:
    words = {
        "epochs": f"{value} epochs",
        "batch_size": f"batches of {value}",
        "replacement": "with replacement" if value else "without replacement",
        "evaluations": f"{len(value) if isinstance(value, list) else 0} evaluations",
        "data_digest": f"data {str(value)[:6]}",
        "held_out": f"{value} rows held out" if value else "no rows held out",
        "bias": "with an intercept" if value else "without an intercept",
    }
    return words.get(key, f"{key} = {short(value)}")


def short(value: Any, most: int = 24) -> str:
    """Write a value in at most ``most`` characters; four digits of a number."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def count(number: int, noun: str) -> str:
    """Write a count: 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def spent(steps: float, evaluation: float) -> str:
    """Say how many seconds runs took.

    >>> spent(30.0, 10.0), spent(0.06, 0.04)
    ('30 in steps, 10 in evaluation (25 %)', '0.06 in steps, 0.04 in evaluation (40 %)')
    """
    total = steps + evaluation
    if not math.isfinite(total):
        return "not known"
    share = f" ({100.0 * evaluation / total:.0f} %)" if total > 0.0 else ""
    parts = (f"{part:.0f}" if part >= 10.0 else f"{part:.2g}" for part in (steps, evaluation))
    return " in steps, ".join(parts) + f" in evaluation{share}"


# --- numbers for JSON -----------------------------------------------------------------------


def numbers(values: ArrayLike) -> list[float | int | None]:
    """Return values as JSON has them: None for what is not finite."""
    return [number(value) for value in np.asarray(values).tolist()]


def number(value: float) -> float | None:
    """Return a value as JSON has it: None if it is not finite."""
    return value if math.isfinite(value) else None


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join mappings: lists and mappings of the same name become one, counts are added.

    >>> merged([{"rows": [1], "agree": 2}, {"rows": [2], "agree": 3}])
    {'rows': [1, 2], 'agree': 5}
    """
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key not in whole:
                whole[key] = value
            else:
                whole[key] = whole[key] | value if isinstance(value, dict) else whole[key] + value
    return whole
