"""Files, compressed or not: their contents up to a limit, their checksums, and fixed formats.

The formats are MNIST's idx files, CIFAR10's binary files and LIBSVM text. A line of LIBSVM text is a label, then
index:value pairs with increasing indices, counted from 1. scikit-learn reads it; if it cannot, the text is searched for
the line to blame.
"""

import bz2
import gzip
import io
import lzma
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.datasets.dataset import NUMBER, DatasetError, shown

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSIONS = tuple(_OPENERS)
"""Endings of compressed files."""
_CIFAR_ROW = 1 + 3 * 32 * 32  # bytes: the label, then the pixels
Arrays = tuple[NDArray[Any], NDArray[Any]]
LIMIT = 4e9
"""How many bytes a compressed file may unpack to, by default."""
_ADVICE = ": limit=... (--limit) allows more"


def compression(path: Path | str) -> str:
    """Return the ending of a compressed file, or an empty string.

    >>> compression("ijcnn1.t.bz2"), compression("ijcnn1.t")
    ('.bz2', '')
    """
    ending = Path(path).suffix.lower()
    return ending if ending in _OPENERS else ""


def check_folder(name: str, path: Path) -> None:
    """Raise an error unless this is a folder; the name is what the user gave."""
    if not path.is_dir():
        raise DatasetError(f"{name} is not a folder" if path.exists() else f"{name}: there is no such folder")


@contextmanager
def opened(path: Path, limit: float = LIMIT, advice: str = _ADVICE) -> Iterator[io.BufferedIOBase]:
    """Open a file. A compressed one is unpacked into memory first, unless it has more bytes than the limit."""
    packed = compression(path)
    try:
        with _OPENERS.get(packed, open)(path, "rb") as stream:
            if not packed:
                yield stream
                return
            content = io.BytesIO()
            while more := stream.read1(2**20):
                if content.tell() + content.write(more) > limit:
                    raise DatasetError(f"{path} unpacks to more than {limit:g} bytes{advice}")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DatasetError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    content.seek(0)
    yield content


def beyond(path: Path, words: str) -> DatasetError:
    """Return the error for a file that is larger than the limit."""
    return DatasetError(f"{path} {words}{_ADVICE}")


# --- formats --------------------------------------------------------------------------------


def read_idx(paths: Sequence[Path]) -> Arrays:
    """Read flattened images and their labels from MNIST's two files."""
    images, labels = paths
    y, pixels = _idx(labels, 1), _idx(images, 3)
    if len(pixels) != len(y):
        raise DatasetError(f"{images} has {len(pixels)} images: must match {labels}, which has {len(y)} labels")
    return np.divide(pixels.reshape(len(y), -1), 255, dtype=np.float32), y.astype(np.int64)


def read_cifar(paths: Sequence[Path]) -> Arrays:
    """Read images (1,024 red, 1,024 green, 1,024 blue pixels) and their labels from CIFAR10's files."""
    rows = []
    for path in paths:
        with opened(path) as stream:
            data = np.frombuffer(stream.read(), dtype=np.uint8)
        if not len(data) or len(data) % _CIFAR_ROW:
            raise DatasetError(f"{path} has {len(data)} bytes: must be a multiple of {_CIFAR_ROW}, and not empty")
        rows.append(data.reshape(-1, _CIFAR_ROW))
    every = np.concatenate(rows)
    return np.divide(every[:, 1:], 255, dtype=np.float32), every[:, 0].astype(np.int64)


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file: two zeros, 8 for bytes, the number of dimensions, each in 4 bytes, then the values."""
    with opened(path) as stream:
        data = stream.read()
    start = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) < start:
        raise DatasetError(f"{path} starts with {data[:4].hex()}: an idx file of this kind has 0000080{dimensions}")
    shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4).tolist()
    if not 0 < len(data) - start == math.prod(shape):
        raise DatasetError(f"{path} has {len(data) - start} bytes of values: its header says {tuple(shape)}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def read_libsvm(path: Path, features: int | None = None, limit: float = LIMIT) -> tuple[Any, NDArray[np.float64]]:
    """Read a CSR matrix and labels; by default the largest index is the number of columns. O(size)."""
    reader, sparse = require("sklearn.datasets", "reading LIBSVM text"), require("scipy.sparse", "a sparse matrix")
    with opened(path, limit) as stream:
        try:
            rows, labels = reader.load_svmlight_file(stream, n_features=features, zero_based=False)
        except (ValueError, OverflowError) as error:
            raise _fault(path, features, limit) from error
    if not rows.nnz:
        raise DatasetError(f"{path} is empty: no row has a feature")
    if not (np.isfinite(rows.data).all() and np.isfinite(labels).all()):
        raise _fault(path, features, limit)
    # Made again, so that indices are int32 unless there are too many, whatever the version of scikit-learn.
    return sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=rows.shape), labels


def read_ijcnn1(paths: Sequence[Path]) -> Arrays:
    """Read IJCNN1: LIBSVM text of 22 features, with labels -1 and 1."""
    X, labels = read_libsvm(paths[0], features=22)
    for row in np.flatnonzero(np.abs(labels) != 1.0)[:1]:
        raise DatasetError(f"{paths[0]}, {line_of(paths[0], row)}: label = {labels[row]}, must be -1 or 1")
    return X.toarray(), labels.astype(np.int64)


def line_of(path: Path, row: int) -> str:
    """Return the place of a row, counted from 0, for an error message."""
    with opened(path, math.inf) as stream:
        numbers = (number for number, line in enumerate(stream, 1) if line.partition(b"#")[0].split())
        return f"line {next(islice(numbers, row, None))}"


def _fault(path: Path, features: int | None, limit: float) -> DatasetError:
    """Return the error for the first line that is not in LIBSVM's format."""
    with opened(path, limit) as stream:
        for number, line in enumerate(stream, 1):
            words = line.partition(b"#")[0].decode(errors="backslashreplace").split()
            if words and (reason := _reason(words[0], words[1:], features or 2**31 - 1)):
                return DatasetError(f"{path}, line {number}: {reason}")
    return DatasetError(f"{path} cannot be read as LIBSVM text")


def _reason(label: str, pairs: list[str], largest: int) -> str:
    """Return what is wrong with a line; "" if nothing is."""
    if not _is_finite(label):
        return f"label {shown(label)} must be a finite number; a line is `label index:value index:value ...`"
    last = 0
    for pair in pairs:
        index, _, value = pair.partition(":")
        if not (re.fullmatch("[0-9]{1,99}", index) and _is_finite(value) and last < int(index) <= largest):
            bounds = f"from {last + 1} to {largest}: indices count from 1 and increase"
            return f"{shown(pair)} must be index:value, a finite number with an index {bounds}"
        last = int(index)
    return ""


def _is_finite(word: str) -> bool:
    return re.fullmatch(NUMBER, word) is not None and math.isfinite(float(word))
