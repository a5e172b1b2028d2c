"""Files, compressed or not: their contents, lines and checksums."""

import bz2
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from avare.datasets.dataset import DamagedError, DatasetError

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSIONS = tuple(_OPENERS)
_FAILURES = (OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError)  # of reading a file
_BLOCK = 2**20  # bytes read at once


def compression(path: Path | str) -> str:
    """Return the ending of a compressed file, or an empty string.

    >>> compression("ijcnn1.t.bz2"), compression("ijcnn1.t")
    ('.bz2', '')
    """
    ending = Path(path).suffix.lower()
    return ending if ending in _OPENERS else ""


@contextmanager
def opened(path: Path) -> Iterator[BufferedIOBase]:
    """Open a file, and decompress it according to its ending."""
    try:
        with _OPENERS.get(compression(path), open)(path, "rb") as stream:
            yield stream
    except _FAILURES as error:
        raise _unreadable(path, error) from error


def lines(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of a file in blocks, each with the number of its first line. O(size), however long a line is."""
    number, pieces, held, ends = 1, [b""], 0, False
    failure: Exception | None = None
    with opened(path) as stream:
        while True:
            try:
                more = stream.read1(_BLOCK)
            except _FAILURES as error:  # raised below, after the complete lines
                failure, more = error, b""
            pieces.append(more)
            held, ends = held + len(more), ends or b"\n" in more
            if more and not (ends and held >= _BLOCK):
                continue
            *whole, rest = b"".join(pieces).split(b"\n")
            if rest and not more and failure is None:
                whole.append(rest)
            if whole:
                yield number, whole
                number += len(whole)
            if failure is not None:
                raise _unreadable(path, failure, number) from failure
            if not more:
                return
            pieces, held, ends = [rest], len(rest), False


def exactly(path: Path, stream: BufferedIOBase, count: int) -> bytes:
    """Read `count` bytes, or raise an error that says how many are missing."""
    data = stream.read(count)
    if len(data) != count:
        raise DatasetError(f"{path} is truncated: {count - len(data)} bytes are missing")
    return data


def size(path: Path) -> int:
    """Return the number of bytes in a file, decompressed."""
    if not compression(path):
        return path.stat().st_size
    with opened(path) as stream:
        return sum(len(block) for block in iter(lambda: stream.read(_BLOCK), b""))


def verify(path: Path, checksum: str, advice: str = "") -> None:
    """Compare the contents of a file with a checksum such as "md5:900150983cd24fb0d6963f7d28e17f72"."""
    algorithm, _, expected = checksum.partition(":")
    with opened(path) as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    if found != expected:
        raise DamagedError(
            f"{path} has the {algorithm.upper()} checksum {found} (of its contents, decompressed): "
            f"expected {expected}; the file is damaged, or a different one{advice}"
        )


def _unreadable(path: Path, error: Exception, line: int | None = None) -> DatasetError:
    """The error for a file that cannot be opened, or not be read to its end."""
    place = "" if line is None or line == 1 else f" after line {line - 1}"
    if isinstance(error, EOFError):
        return DamagedError(f"{path} is truncated{place}: {error}")
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    # Decompressors raise OSErrors too, but only those of the operating system have a number.
    foreign = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
    return (DatasetError if foreign else DamagedError)(f"{path} cannot be read{place}: {reason}")
