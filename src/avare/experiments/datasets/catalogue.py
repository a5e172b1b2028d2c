"""The named datasets: their files, where to find them, and how to read them."""

import hashlib
import io
import os
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._optional import require
from avare.experiments.datasets.dataset import Data, DatasetError
from avare.experiments.datasets.files import COMPRESSIONS, check_folder, opened, read_cifar, read_idx, read_ijcnn1

VARIABLE = "AVARE_DATA"
Folder = str | os.PathLike[str] | None


_MARGIN = 2**20  # bytes that a download may have beyond those of its files: headers, and other small members


class FileContents(NamedTuple):
    """What a file of a named dataset contains, uncompressed: how many bytes, and their SHA-256 digest."""

    size: int
    sha256: str

    def check(self, name: Path | str, data: bytes, advice: str = "") -> None:
        """Raise a `DatasetError` if these are not the bytes that are expected."""
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            words = f"has the SHA256 checksum {found} (of its contents, decompressed): expected {self.sha256}"
            raise DatasetError(f"{name} {words}; the file is damaged, or a different one{advice}")


class Entry(NamedTuple):
    """A named dataset that is read from files.

    Parameters
    ----------
    description
        One sentence about the data.
    splits
        The files of each split, without the ending of a compression, and what they contain.
    folders
        Subfolders that may hold the files; the cache uses the first, and so does an archive.
    remote
        Name of a file at its source, or of the archive that holds it.
    mirrors
        Addresses of the files.
    """

    description: str
    splits: Mapping[str, Mapping[str, FileContents]]
    folders: Sequence[str]
    remote: str
    mirrors: Sequence[str]

    @property
    def files(self) -> dict[str, FileContents]:
        """The files of all splits, and what they contain."""
        return {file: contents for files in self.splits.values() for file, contents in files.items()}


def names() -> list[str]:
    """List the named datasets.

    >>> names()
    ['cifar10', 'digits', 'ijcnn1', 'mnist', 'synthetic']
    """
    return sorted(ENTRIES)


def load(
    name: str,
    *,
    split: Literal["train", "test"] = "train",
    folder: Folder = None,
    seed: int | None = None,
    verify: bool = True,
    progress: bool = False,
) -> Data:
    """Load a named dataset.

    Its files are searched in ``folder``, by default the value of the environment variable ``AVARE_DATA``, and then in
    the cache. Files found in neither are downloaded from their official source. In a folder they may be compressed
    (.gz, .bz2, .xz) or not, and be in the folder itself or in a subfolder named after the dataset.

    Parameters
    ----------
    name : str
        "mnist", "ijcnn1", "cifar10", "digits" (part of scikit-learn) or "synthetic" (the paper's, generated).
    split : {"train", "test"}, default="train"
        "train", or "test" if the dataset has one.
    folder : str or path, optional
        Folder to search first.
    seed : int, optional
        Seed of "synthetic", by default 0.
    verify : bool, default=True
        Whether the files must have the official checksums.
    progress : bool, default=False
        Whether to show the progress of downloads.

    Examples
    --------
    >>> load("synthetic", seed=1).X.shape
    (100, 10)
    """
    entry = _entry(name)
    if seed is not None and name != "synthetic":
        raise ValueError(f"seed = {seed}: only 'synthetic' is generated")
    validation.choice("split", split, entry.splits)
    seed = validation.integer("seed", seed or 0, at_least=0)
    paths = _obtain(name, entry.splits[split], folder, verify, progress)
    X, y = _PARSERS[name](list(paths.values())) if name != "synthetic" else _synthetic(seed)
    source = entry.mirrors[0] if name != "synthetic" else f"seed {seed}"
    return Data(name, X, y, f"{entry.description} ({split})", source)


def fetch(name: str, *, folder: Folder = None, verify: bool = True, progress: bool = False) -> dict[str, Path]:
    """Download the missing files of a named dataset to the cache, and return the paths of all its files.

    The parameters are those of `load`.

    >>> fetch("digits")
    {}
    """
    return _obtain(name, _entry(name).files, folder, verify, progress)


def where(name: str, *, folder: Folder = None) -> dict[str, Path | None]:
    """Return the paths of the files of a named dataset in the folder or the cache; None for those that are missing.

    >>> where("synthetic")
    {}
    """
    entry = _entry(name)
    return {file: _find(entry, file, [*_folders(folder), _cache()]) for file in entry.files}


def _entry(name: str) -> Entry:
    if name not in ENTRIES:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(names())}; `read` reads your own files")
    return ENTRIES[name]


def _obtain(
    name: str, files: Mapping[str, FileContents], folder: Folder, check: bool, progress: bool
) -> dict[str, Path]:
    """Return the path of each file: in the folder, in the cache, or downloaded."""
    check, progress = validation.boolean("verify", check), validation.boolean("progress", progress)
    entry, given = ENTRIES[name], _folders(folder)
    found = {}
    for file, contents in files.items():
        path = _find(entry, file, given) or _find(entry, file, [_cache()])
        if path is not None and check:
            _verify(path, contents, "; remove it to download the official one (in Python, verify=False reads it)")
        found[file] = path or _download(name, file, given, progress)
    return found


def _verify(path: Path, contents: FileContents, advice: str = "") -> None:
    """Unpack a file, at most to its known size, and compare the digest."""
    with opened(path, contents.size, f", the known size; the file is damaged, or a different one{advice}") as stream:
        contents.check(path, stream.read(contents.size + 1), advice)


def _download(name: str, file: str, given: Sequence[Path], progress: bool) -> Path:
    """Download a file from the first mirror that has it, or the archive that holds all files of the dataset."""
    entry, failures = ENTRIES[name], []
    remote = entry.remote.format(file=file)
    for mirror in entry.mirrors:
        try:
            return _retrieve(f"{mirror}{remote}", entry, file, progress)
        except Exception as error:  # no network, no space, no archive, wrong contents: try the next
            failures.append(f"  {mirror}{remote}: {error}\n")
    raise DatasetError(
        f"{name}: {file} not found in {' or '.join(map(str, (*given, _cache())))}, and the download failed:\n"
        f"{''.join(failures)}Without a network, put its files, compressed ({', '.join(COMPRESSIONS)}) or not, in a "
        f"folder or in its subfolder {entry.folders[0]}, and pass the folder by --data (in Python, folder=...) or by "
        f"the environment variable {VARIABLE}."
    )


class _BoundedFile(io.FileIO):
    """A file that takes a download, up to a number of bytes."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path, "wb")
        self._most = most

    def write(self, data: Any) -> int:
        """Write if there is room for it; if not, raise a `DatasetError`."""
        if self.tell() + len(data) > self._most:
            raise DatasetError(f"sends more than {self._most} bytes")
        return super().write(data)


def _retrieve(address: str, entry: Entry, file: str, progress: bool) -> Path:
    """Download a file, and move it to the cache if its contents are as expected; of an archive, all files."""
    pooch, folder = require("pooch", "downloading datasets"), _cache() / entry.folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path = Path(work) / address.rpartition("/")[2]
        is_archive = path.name.endswith(".tar.gz")
        expected = entry.files if is_archive else {file: entry.files[file]}
        most = sum(contents.size for contents in expected.values()) + _MARGIN
        with _BoundedFile(path, most) as target:
            pooch.HTTPDownloader(progressbar=progress)(address, target, None)
        if not is_archive:
            _verify(path, entry.files[file])
            return path.rename(folder / path.name)
        with opened(path, most, ", the size of its files") as stream, tarfile.open(fileobj=stream) as archive:
            for name, contents in expected.items():
                part = Path(work) / name
                part.write_bytes(_member(archive, f"{entry.folders[0]}/{name}", contents))
                part.rename(folder / name)
        return folder / file


def _member(archive: tarfile.TarFile, name: str, contents: FileContents) -> bytes:
    """Return the contents of one member of an archive, checked. Other members are not read."""
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise DatasetError(f"{name} is not in the archive")
    data = stream.read(contents.size)
    contents.check(name, data)
    return data


def _folders(folder: Folder) -> list[Path]:
    """The folder to search first, if any."""
    given = folder if folder is not None else os.environ.get(VARIABLE) or None
    if given is None:
        return []
    check_folder(f"{VARIABLE if folder is None else 'folder (--data)'} = {str(given)!r}", Path(given).expanduser())
    return [Path(given).expanduser()]


def _cache() -> Path:
    return Path(require("pooch", "downloading and caching datasets").os_cache("avare"))


def _find(entry: Entry, file: str, places: Sequence[Path]) -> Path | None:
    choices = product(places, ("", *entry.folders), ("", *COMPRESSIONS))
    paths = (place / folder / f"{file}{ending}" for place, folder, ending in choices)
    return next(filter(Path.is_file, paths), None)


# --- the datasets --------------------------------------------------------------------------


def _digits(paths: Sequence[Path]) -> tuple[NDArray[Any], NDArray[Any]]:
    bunch = require("sklearn.datasets", "the digits dataset").load_digits()
    return np.ascontiguousarray(bunch.data), bunch.target.astype(np.int64)


def _synthetic(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Generate the paper's synthetic problem: 100 examples, 10 features."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(100, 10))
    lengths = generator.lognormal(0.0, 1.0, 100)
    X = directions / (directions**2).sum(axis=1, keepdims=True) * lengths[:, None]
    chance = 1.0 / (1.0 + np.exp(-X @ generator.normal(size=10)))
    return X, np.where(generator.random(100) < chance, 1, -1).astype(np.int64)


_PARSERS = {"mnist": read_idx, "ijcnn1": read_ijcnn1, "cifar10": read_cifar, "digits": _digits}
_FIELDS = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
for _each in _FIELDS.values():
    _each["splits"] = {
        split: {file: FileContents(**about) for file, about in files.items()}
        for split, files in _each["splits"].items()
    }
ENTRIES = {name: Entry(**fields) for name, fields in _FIELDS.items()}
