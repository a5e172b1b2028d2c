"""Files in the formats of the named sets, and a place in the catalogue for them, small enough to be made by a test."""

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from avare.experiments.datasets import DatasetError, catalogue

Bytes = NDArray[np.uint8]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": lambda content: gzip.compress(content, mtime=0),  # names of tests must be the same in all processes
    ".bz2": bz2.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),  # several times faster
}


def damaged(content: bytes, changes: Sequence[tuple[float, int]], end: float) -> bytes:
    """Change bytes at some parts of the whole, and cut the end."""
    altered = bytearray(content)
    for where, value in changes:
        altered[int(where * len(altered))] = value
    return bytes(altered[: round(end * len(altered))])


def idx(values: Bytes) -> bytes:
    """An idx file of bytes."""
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.tobytes()


def mnist(n: int = 7, seed: int = 0) -> tuple[dict[str, bytes], Bytes, Bytes]:
    """The four files, the training images and their labels."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (n + 2, 4, 3), dtype=np.uint8)
    labels = generator.integers(0, 10, n + 2, dtype=np.uint8)
    files = {
        "train-images-idx3-ubyte": idx(images[:n]),
        "train-labels-idx1-ubyte": idx(labels[:n]),
        "t10k-images-idx3-ubyte": idx(images[n:]),
        "t10k-labels-idx1-ubyte": idx(labels[n:]),
    }
    return files, images[:n], labels[:n]


def cifar10(n: int = 3, seed: int = 0) -> tuple[dict[str, bytes], Bytes]:
    """The six files, each of n rows, and all rows, the test's last."""
    rows = np.random.default_rng(seed).integers(0, 256, (6 * n, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    return {name: rows[k * n : (k + 1) * n].tobytes() for k, name in enumerate(names)}, rows


IJCNN1 = {"ijcnn1": b"-1 1:0.5 22:-2\n1 3:1e-3\n", "ijcnn1.t": b"1 2:7\n-1 2:8\n1 1:9 2:1\n"}


def archive(
    files: dict[str, bytes],
    folder: str = "cifar-10-batches-bin",
    others: Sequence[str] = (),
    links: Mapping[str, Path] | None = None,
) -> bytes:
    """A .tar.gz with files in a folder, and with links and other files, which come first."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as members:
        top = tarfile.TarInfo(folder)
        top.type = tarfile.DIRTYPE
        members.addfile(top)
        for name, place in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, str(place)
            members.addfile(link)
        inside = {f"{folder}/{name}": content for name, content in {"readme.html": b"hello", **files}.items()}
        for name, content in {**dict.fromkeys(others, b"evil"), **inside}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def expecting(name: str, files: dict[str, bytes], mirrors: tuple[str, ...] | None = None) -> catalogue.Entry:
    """The entry of the catalogue, with these contents in place of the real ones."""
    entry = catalogue.ENTRIES[name]
    splits = {
        split: {
            file: catalogue.FileContents(len(files[file]), hashlib.sha256(files[file]).hexdigest()) for file in members
        }
        for split, members in entry.splits.items()
    }
    return entry._replace(splits=splits, mirrors=entry.mirrors if mirrors is None else mirrors)


def enter(
    monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes], mirrors: tuple[str, ...] | None = None
) -> None:
    """Let the catalogue expect these contents in place of the real ones."""
    monkeypatch.setitem(catalogue.ENTRIES, name, expecting(name, files, mirrors))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Lets pass only errors that name the file."""
    try:
        yield
    except DatasetError as error:
        if str(path) not in str(error):
            raise AssertionError(f"does not name {path}: {error}") from error
        raise
