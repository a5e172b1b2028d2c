"""Where results are kept: one file a finished run, written whole or not at all."""

import hashlib
import json
import os
import sys
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

Spec = Mapping[str, Any]
Record = dict[str, Any]

FORMAT = 1  # of a record; to be raised when its meaning changes
_LEFT_OVER = 3600.0  # seconds after which a file that was never put in place is taken away


class StoreError(OSError):
    """A folder that cannot be written to or read from; the message names it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was passed over, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Store:
    """A folder of records.

    What has been put in is there for good: a process that is killed loses the runs that it had under
    way, and nothing else. Several processes may use one store; a run that one of them has claimed is
    left alone by the others for as long as that process lives.

    Parameters
    ----------
    folder
        Made when first written to.

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
        """Keep a record, which has at least a ``"spec"``; key, format and checksum are added.

        It is written beside its place, brought to the disk, and only then put in its place.
        """
        whole = {**record, "format": FORMAT, "key": key_of(record["spec"])}
        whole["checksum"] = checksum_of(whole)
        text = json.dumps(whole, sort_keys=True, indent=1, allow_nan=False)
        self.make()
        try:
            write_whole(self._place(whole["key"]), text.encode())
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot write a result: {error.strerror or error}") from error

    def get(self, spec: Spec) -> Record | None:
        """The record of a run; None where there is none.

        A damaged file is set aside, as ``<key>.json.damaged``, and counts as none.
        """
        return self._read(self._place(key_of(spec)))

    def records(self) -> Iterator[Record]:
        """All records, in order of their keys; damaged files are set aside."""
        for place in sorted(self.folder.glob("*.json")):
            record = self._read(place)
            if record is not None:
                yield record

    def read(self) -> tuple[list[Record], list[Skipped]]:
        """All sound records, in order of their keys, and the files passed over.

        For those who only look: unlike `get` and `records`, it changes nothing, and it stops at no file.
        """
        records, skipped = [], []
        for place in sorted(self.folder.glob("*.json")):
            try:
                record = _load(place)
            except _UnreadableError as error:
                skipped.append(Skipped(place.name, str(error)))
            else:
                if record is not None:
                    records.append(record)
        return records, skipped

    def damaged(self) -> list[Path]:
        """The files that were set aside."""
        return sorted(self.folder.glob("*.damaged*"))

    def claim(self, spec: Spec) -> "Claim | None":
        """The right to make a record; None where another process has it.

        It ends with `Claim.release`, or with the process, however that ends.
        """
        self.make()
        place = self.folder / f"{key_of(spec)}.claim"
        try:
            return Claim.take(place)
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot claim a run: {error.strerror or error}") from error

    def make(self) -> None:
        """Make the folder, if need be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be used as a folder: {error.strerror or error}") from error

    def tidy(self) -> None:
        """Take away what killed processes left: files that were never put in place, and claims on what is stored."""
        take_away_left_overs(self.folder)
        for path in self.folder.glob("*.claim"):
            if path.with_suffix(".json").exists():
                with suppress(OSError):
                    claim = Claim.take(path)
                    if claim is not None:
                        claim.release()

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r})"

    def _place(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _read(self, place: Path) -> Record | None:
        try:
            return _load(place)
        except _DamagedError:
            self._set_aside(place)
            return None
        except _UnreadableError as error:
            raise StoreError(f"{place}: {error}") from error

    def _set_aside(self, place: Path) -> None:
        aside = place.with_name(f"{place.name}.damaged")
        while aside.exists():
            aside = place.with_name(f"{place.name}.damaged-{uuid.uuid4().hex[:8]}")
        try:
            os.replace(place, aside)
        except FileNotFoundError:
            pass  # another process was as quick
        except OSError as error:
            raise StoreError(f"{place}: is damaged, and cannot be set aside: {error.strerror or error}") from error


class Claim:
    """The right to make a record, for as long as this process lives.

    A lock on an open file, which the system gives up with the process: no claim of a dead process
    is left, and none has to be guessed at by its age. The file says who has it, for people.
    """

    def __init__(self, place: Path, file: IO[str]) -> None:
        self._place, self._file = place, file

    @classmethod
    def take(cls, place: Path) -> Self | None:
        """The claim, unless another has it."""
        while True:
            file = open(place, "a+", encoding="utf-8")  # noqa: SIM115  # stays open as long as the claim lasts
            if not _lock(file):
                file.close()
                return None
            # Its last owner may have taken the file away between opening and locking: then the lock is of no file.
            try:
                current = os.stat(place)
            except FileNotFoundError:
                file.close()
                continue
            if os.path.samestat(current, os.fstat(file.fileno())):
                break
            file.close()
        file.truncate(0)
        file.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        return cls(place, file)

    def release(self) -> None:
        """Give it up."""
        if not self._file.closed:
            if sys.platform != "win32":  # which removes no open files
                self._place.unlink(missing_ok=True)  # first, so that whoever locks it later sees that it is gone
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def write_whole(place: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its place, brought to the disk, and only then put in its place."""
    beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
        _to_disk(place.parent)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            beside.unlink(missing_ok=True)
        raise


def take_away_left_overs(folder: Path) -> None:
    """Take away what killed processes left beside its place."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_OVER:
                path.unlink()


def canonical(value: Any) -> str:
    """JSON in the one form of which keys and checksums are made.

    >>> canonical({"b": 1, "a": [1.5, None]})
    '{"a":[1.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(spec: Spec) -> str:
    """What a run is kept under: a hash of all that determines it."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()


def checksum_of(record: Mapping[str, Any]) -> int:
    """Of everything in a record but the checksum itself."""
    return zlib.crc32(canonical({name: value for name, value in record.items() if name != "checksum"}).encode())


class _UnreadableError(Exception):
    """Why a file cannot be used."""


class _DamagedError(_UnreadableError):
    """Why a file is not what was written."""


def _load(place: Path) -> Record | None:
    """The record in a file, checked; None where there is no file."""
    try:
        content = place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _UnreadableError(f"cannot be read: {error.strerror or error}") from error
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"not JSON: {error}") from None
    if not isinstance(record, dict) or not {"key", "spec", "checksum", "format"} <= set(record):
        raise _DamagedError("not a record")
    try:
        key, checksum = key_of(record["spec"]), checksum_of(record)
    except (ValueError, RecursionError) as error:  # of numbers that no record has
        raise _DamagedError(f"not a record: {error}") from None
    if record["checksum"] != checksum:
        raise _DamagedError("damaged: the checksum is that of another content")
    if not record["key"] == place.stem == key:
        raise _DamagedError("the record of another run, by its key")
    if record["format"] != FORMAT:
        raise _UnreadableError(f"has format {record['format']!r}, and this version of avare reads {FORMAT}")
    return record


def _to_disk(folder: Path) -> None:
    """Bring a folder's list of files to the disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(file: IO[str]) -> bool:
    """Lock an open file; False where another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
