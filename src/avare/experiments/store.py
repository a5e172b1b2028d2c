"""Where results are kept: one file per finished run, written whole or not at all; and records as summaries get them."""

import hashlib
import json
import math
import os
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._files import failing_as, remove_left_overs, write_whole

Spec = Mapping[str, Any]
Record = dict[str, Any]

FORMAT = 1  # of a record; raise it when its meaning changes


class StoreError(OSError):
    """A folder that cannot be written or read; the message names it.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     try:
    ...         Store(file.name).put({"spec": {"seed": 0}})
    ...     except StoreError as error:
    ...         print(file.name in str(error))
    True
    """


class Store:
    """A folder of records.

    A record that has been put in stays: a process that is killed loses only its runs under way. Several processes may
    use one store; a run that two of them do at the same time is stored once, by the last.

    Parameters
    ----------
    folder
        Made at the first write.

    Examples
    --------
    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.put({"spec": {"dataset": "digits", "seed": 3}, "optimum": 1.5})
    >>> store.get({"seed": 3, "dataset": "digits"})["optimum"]
    1.5
    >>> store.get({"seed": 4, "dataset": "digits"}) is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()

    def put(self, record: Mapping[str, Any]) -> None:
        """Store a record, which has at least a ``"spec"``; key, format and checksum are added. See `write_whole`."""
        whole = {**record, "format": FORMAT, "key": key_of(record["spec"])}
        whole["checksum"] = checksum_of(whole)
        text = json.dumps(whole, sort_keys=True, indent=1, allow_nan=False)
        self.make()
        with failing_as(StoreError, f"{self.folder}: cannot write a result"):
            write_whole(self._place(whole["key"]), text.encode())

    def get(self, spec: Spec) -> Record | None:
        """Return the record of a run; None if there is none. A damaged file is renamed to ``<key>.json.damaged``."""
        place = self._place(key_of(spec))
        try:
            return _load(place)
        except _DamagedError:
            aside = place.with_name(f"{place.name}.damaged-{uuid.uuid4().hex[:8]}")
            words = f"{place}: is damaged, and cannot be renamed"
            with failing_as(StoreError, words), suppress(FileNotFoundError):  # another process was faster
                os.replace(place, aside)
            return None
        except _UnreadableError as error:
            raise StoreError(f"{place}: {error}") from error

    def read(self) -> tuple[list[Record], list[str]]:
        """Return all sound records by their keys, and the files that are left out, with reasons. It changes nothing."""
        records, skipped = [], []
        for place in sorted(self.folder.glob("*.json")):
            try:
                record = _load(place)
            except _UnreadableError as error:
                skipped.append(f"{place.name}: {error}")
            else:
                if record is not None:
                    records.append(record)
        return records, skipped

    def damaged(self) -> list[Path]:
        """Return the damaged files that were renamed."""
        return sorted(self.folder.glob("*.damaged*"))

    def make(self) -> None:
        """Make the folder, if necessary, and remove temporary files that killed processes left."""
        with failing_as(StoreError, f"{self.folder}: cannot be used as a folder"):
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_left_overs(self.folder)

    def _place(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def canonical(value: Any) -> str:
    """Return JSON in the one form from which keys and checksums are made.

    >>> canonical({"b": 1, "a": [1.5, None]})
    '{"a":[1.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(spec: Spec) -> str:
    """Return the key of a run: a hash of all that determines it."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()


def checksum_of(record: Mapping[str, Any]) -> int:
    """Return the checksum of everything in a record but the checksum itself."""
    return zlib.crc32(canonical({name: value for name, value in record.items() if name != "checksum"}).encode())


class _UnreadableError(Exception):
    """A file that cannot be used."""


class _DamagedError(_UnreadableError):
    """A file that is not as it was written."""


def _load(place: Path) -> Record | None:
    """Return the record in a file, checked; None if there is no file."""
    try:
        if not stat.S_ISREG(place.stat().st_mode):  # to read a pipe would take forever
            raise _UnreadableError("cannot be read: it is not a regular file")
        content = place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _UnreadableError(f"cannot be read: {error.strerror or error}") from error
    try:
        record = json.loads(content)
        fits = record["checksum"] == checksum_of(record) and record["key"] == place.stem == key_of(record["spec"])
        form = record["format"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _DamagedError(f"not a record: {error!r}") from None
    if not fits:
        raise _DamagedError("damaged: checksum or key do not match the contents")
    if form != FORMAT:
        raise _UnreadableError(f"has format {form!r}, and this version of avare reads {FORMAT}")
    return cast(Record, record)


# --- records as summaries get them ----------------------------------------------------------


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
        if len({values.shape for values in trace.values()}) > 1 or any(values.ndim != 1 for values in trace.values()):
            raise RecordError("trace has columns of different lengths, or none")
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
