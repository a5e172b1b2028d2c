"""Files, compressed or not: what they are, their contents, lines and checksums."""

import bz2
import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from avare.datasets.dataset import DamagedError, DatasetError

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSIONS = tuple(_OPENERS)
PACKED = {".gz": (b"\x1f\x8b", "gzip"), ".bz2": (b"BZh", "bzip2"), ".xz": (b"\xfd7zXZ\x00", "xz")}
"""How compressed files begin, and by what they are compressed."""
FAILURES = (OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError)
"""Errors of reading a file."""
_BLOCK = 2**20  # bytes read at once
_FIRST = 4096  # bytes that show what a file is
LIMIT = 4e9
"""The most bytes that a compressed file may unpack to, by default. A line may have a 256th of them."""
_CONTENTS = {  # how files begin, and what they are
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a zip archive",
    b"\x93NUMPY": "one NumPy array",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"%PDF": "PDF",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"<!": "HTML",
    b"<h": "HTML",
    b"{": "JSON",
}
_PAIRS = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?([ \t]+[0-9]+:[^ \t]+)+[ \t]*(#.*)?")  # a line of LIBSVM text


def compression(path: Path | str) -> str:
    """Return the ending of a compressed file, or an empty string.

    >>> compression("ijcnn1.t.bz2"), compression("ijcnn1.t")
    ('.bz2', '')
    """
    ending = Path(path).suffix.lower()
    return ending if ending in _OPENERS else ""


def unpacked(path: Path) -> Path:
    """Return the path without the ending of a compressed file.

    >>> unpacked(Path("a.csv.gz")).name, unpacked(Path("a.csv")).name
    ('a.csv', 'a.csv')
    """
    return path.with_suffix("") if compression(path) else path


def check_file(path: Path, endings: Collection[str]) -> None:
    """Raise an error unless this is a file, and say what it is instead; the endings are of files to pass."""
    if path.is_file():
        return
    if path.is_dir():
        inside = sorted(each for each in path.iterdir() if unpacked(each).suffix.lower() in endings and each.is_file())
        example = f", such as {inside[0]}" if inside else f" ({', '.join(endings)} or LIBSVM text)"
        raise DatasetError(f"{path} is a folder: pass the path of a file{example}")
    if path.exists():
        raise DatasetError(f"{path} is a device, a pipe or a socket: pass a file")
    raise DatasetError(f"{path}{_link(path) or ': there is no such file'}")


def check_folder(name: str, path: Path) -> None:
    """Raise an error unless this is a folder; the name is what the user gave."""
    if path.is_dir():
        return
    if path.exists():
        raise DatasetError(f"{name} is not a folder")
    raise DatasetError(f"{name}{_link(path) or ': there is no such folder'}")


def _link(path: Path) -> str:
    return f" is a link to {path.readlink()}, which does not exist" if path.is_symlink() else ""


def contents(path: Path) -> tuple[str, str]:
    """Return how a file is compressed, as an ending, and what it is, by its first bytes; "" if they do not say."""
    with opened(path, "") as stream:
        first = stream.read(_FIRST)
    packed = next((ending for ending, (start, _) in PACKED.items() if first.startswith(start)), "")
    if packed:
        with opened(path, packed) as stream:
            first = stream.read(_FIRST)
    return packed, next((name for start, name in _CONTENTS.items() if first.startswith(start)), _kind_of_text(first))


def _kind_of_text(first: bytes) -> str:
    """Return which kind of text a file begins with; "" if it is no text.

    >>> _kind_of_text(b"-1 3:0.5 # one"), _kind_of_text(b"age;ill"), _kind_of_text(bytes(3))
    ('LIBSVM text', 'CSV text', '')
    """
    text = first.decode("utf-8-sig", errors="replace").strip()
    line = text.partition("\n")[0].rstrip()
    if not line.replace("\t", " ").isprintable() or "\ufffd" in line:
        return ""
    if _PAIRS.fullmatch(line):
        return "LIBSVM text"
    return "CSV text" if any(sign in line for sign in ",;\t|") else "text" if line else ""


def longest_line(limit: float) -> int:
    """Return how many bytes a line may have.

    >>> longest_line(LIMIT)
    15625000
    """
    return int(min(max(limit / 256.0, 1024.0), 2.0**30))


class Bounded(io.RawIOBase):
    """What a stream gives, until it has given more than a limit; it counts lines.

    Parameters
    ----------
    path, stream
        The file, and its contents.
    limit
        The most bytes, if the file is compressed.
    """

    def __init__(self, path: Path, stream: BufferedIOBase, limit: float) -> None:
        self._path, self._stream = path, stream
        self._limit = limit if compression(path) else float("inf")
        self._given = 0
        self._failure: Exception | None = None
        self.lines = 0
        """How many lines it has given."""

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def read(self, size: int, /) -> bytes:  # type: ignore[override]  # always with a size
        """Read some bytes, fewer at the end or before a failure, which the next call raises."""
        pieces, wanted = [], size
        while wanted and self._failure is None:
            try:
                more = self._stream.read1(wanted)
            except FAILURES as error:
                self._failure = error
                break
            if not more:
                break
            pieces.append(more)
            wanted -= len(more)
            self._given += len(more)
            self.lines += more.count(b"\n")
            if self._given > self._limit:
                raise beyond(self._path, f"unpacks to more than {self._limit:g} bytes")
        if self._failure is not None and not pieces:
            raise self._failure
        return b"".join(pieces)

    def failure(self, error: Exception) -> DatasetError:
        """Return the error for a file that cannot be read to its end."""
        return _unreadable(self._path, error, self.lines + 1)


def beyond(path: Path, words: str) -> DatasetError:
    """Return the error for a file that is larger than the limit."""
    return DatasetError(f"{path} {words}: limit=... (--limit) allows more")


@contextmanager
def opened(path: Path, packed: str | None = None) -> Iterator[BufferedIOBase]:
    """Open a file, and decompress it according to its ending, or to another one."""
    try:
        with _OPENERS.get(compression(path) if packed is None else packed, open)(path, "rb") as stream:
            yield stream
    except FAILURES as error:
        raise _unreadable(path, error) from error


def lines(path: Path, limit: float = LIMIT) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of a file in blocks, each with the number of its first line. O(size), however long a line is."""
    number, pieces, held, ends = 1, [b""], 0, False
    failure: Exception | None = None
    longest = longest_line(limit)
    with opened(path) as source:
        stream = Bounded(path, source, limit)
        while True:
            try:
                more = stream.read(_BLOCK)
            except FAILURES as error:  # raised below, after the complete lines
                failure, more = error, b""
            pieces.append(more)
            held, ends = held + len(more), ends or b"\n" in more
            if held > longest + _BLOCK and not ends:
                raise beyond(path, f"has a line {number} of more than {longest} bytes")
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
