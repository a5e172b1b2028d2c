"""Where results are kept: one file per finished run, written whole or not at all."""

import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

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
