"""The named datasets: their files, where to find them, and how to read them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._optional import require
from avare.datasets import fetching
from avare.datasets.dataset import DamagedError, Dataset, DatasetError
from avare.datasets.fetching import File
from avare.datasets.files import COMPRESSIONS, check_folder, verify
from avare.datasets.images import read_cifar, read_idx
from avare.datasets.libsvm import read_libsvm

VARIABLE = "AVARE_DATA"
Arrays = tuple[NDArray[Any], NDArray[Any]]
Folder = str | os.PathLike[str] | None
_ANOTHER = "; remove it to download the official one (in Python, verify=False reads this one)"


@dataclass(frozen=True, slots=True)
class Entry:
    """A named dataset that is read from files.

    Parameters
    ----------
    description
        One sentence about the data.
    splits
        The files of each split.
    parse
        Function that reads X and y from the files of a split.
    folders
        Subfolders that may hold the files; the cache uses the first.
    mirrors
        Addresses of the files.
    """

    description: str
    splits: Mapping[str, tuple[File, ...]]
    parse: Callable[[Sequence[Path]], Arrays]
    folders: tuple[str, ...]
    mirrors: tuple[str, ...]

    @property
    def files(self) -> tuple[File, ...]:
        """The files of all splits."""
        return tuple(file for files in self.splits.values() for file in files)


def names() -> list[str]:
    """List the named datasets.

    >>> names()
    ['cifar10', 'digits', 'ijcnn1', 'mnist', 'synthetic']
    """
    return sorted([*ENTRIES, *_MADE])


def load(
    name: str,
    *,
    split: Literal["train", "test"] = "train",
    folder: Folder = None,
    seed: int | None = None,
    verify: bool = True,
    progress: bool = False,
) -> Dataset:
    """Load a named dataset.

    Its files are searched in ``folder``, by default the value of the environment variable ``AVARE_DATA``, and then in
    the cache. Files found in neither are downloaded from their official source. In a folder they may be compressed
    (.gz, .bz2, .xz) or not, and be in the folder itself or in a subfolder named after the dataset.

    Parameters
    ----------
    name
        "mnist", "ijcnn1", "cifar10", "digits" (part of scikit-learn) or "synthetic" (the paper's, generated).
    split
        "train", or "test" if the dataset has one.
    folder
        Folder to search first.
    seed
        Seed of "synthetic", by default 0.
    verify
        Whether the files must have the official checksums.
    progress
        Whether to show the progress of downloads, if rich is installed.

    Examples
    --------
    >>> load("synthetic", seed=1).X.shape
    (100, 10)
    """
    _check(name)
    if seed is not None and name not in _RANDOM:
        raise ValueError(f"seed = {seed}: only {', '.join(map(repr, _RANDOM))} is generated")
    if name in _MADE:
        if split != "train":
            raise ValueError(f"split = {split!r}: {name} has only 'train'")
        return _MADE[name](validation.integer("seed", 0 if seed is None else seed, at_least=0))
    entry = ENTRIES[name]
    if split not in tuple(entry.splits):
        raise ValueError(f"split = {split!r}: must be one of {', '.join(map(repr, entry.splits))}")
    paths = _obtain(name, entry.splits[split], folder, verify, progress)
    X, y = entry.parse([paths[file.name] for file in entry.splits[split]])
    return Dataset(name, X, y, f"{entry.description} ({split})", entry.mirrors[0])


def fetch(name: str, *, folder: Folder = None, verify: bool = True, progress: bool = False) -> dict[str, Path]:
    """Download the missing files of a named dataset to the cache, and return the paths of all its files.

    The parameters are those of `load`.

    >>> fetch("digits")
    {}
    """
    _check(name)
    return _obtain(name, ENTRIES[name].files, folder, verify, progress) if name in ENTRIES else {}


def where(name: str, *, folder: Folder = None) -> dict[str, Path | None]:
    """Return the paths of the files of a named dataset in the folder or the cache; None for those that are missing.

    >>> where("synthetic")
    {}
    """
    _check(name)
    if name in _MADE:
        return {}
    places = [*_folders(folder), _cache()]
    return {file.name: _find(ENTRIES[name], file, places) for file in ENTRIES[name].files}


def _check(name: str) -> None:
    if name not in names():
        raise ValueError(f"name = {name!r}: must be one of {', '.join(names())}; `read` reads your own files")


def _obtain(name: str, files: Sequence[File], folder: Folder, check: bool, progress: bool) -> dict[str, Path]:
    """Return the path of each file: in the folder, in the cache, or downloaded."""
    check, progress = validation.boolean("verify", check), validation.boolean("progress", progress)
    entry, given = ENTRIES[name], _folders(folder)
    found: dict[str, Path] = {}
    missing: list[File] = []
    for file in files:
        path = _find(entry, file, given)
        if path is None:
            path = _find(entry, file, [_cache()])
            if path is not None and check and not _intact(path, file):
                path.unlink()  # downloaded again below
                path = None
        elif check:
            verify(path, file.checksum, advice=_ANOTHER)
        if path is None:
            missing.append(file)
        else:
            found[file.name] = path
    if missing:
        failures = fetching.download(missing, entry.mirrors, _cache() / entry.folders[0], progress)
        if failures:
            absent = [file for file in missing if _find(entry, file, [_cache()]) is None]
            raise DatasetError(_advice(name, absent, given, failures))
        found |= {file.name: path for file in missing if (path := _find(entry, file, [_cache()])) is not None}
    return found


def _intact(path: Path, file: File) -> bool:
    """Return whether a file has the right contents; raise an error if it cannot be read."""
    try:
        verify(path, file.checksum)
    except DamagedError:
        return False
    return True


def _folders(folder: Folder) -> list[Path]:
    """The folder to search first, if any."""
    given = folder if folder is not None else os.environ.get(VARIABLE) or None
    if given is None:
        return []
    path = Path(given).expanduser()
    check_folder(f"{VARIABLE if folder is None else 'folder (--data)'} = {str(given)!r}", path)
    return [path]


def _cache() -> Path:
    return Path(require("pooch", "downloading and caching datasets").os_cache("avare"))


def _find(entry: Entry, file: File, places: Sequence[Path]) -> Path | None:
    for place in places:
        for folder in ("", *entry.folders):
            for ending in ("", *COMPRESSIONS):
                path = place / folder / f"{file.name}{ending}"
                if path.is_file():
                    return path
    return None


def _advice(name: str, missing: Sequence[File], given: Sequence[Path], failures: Sequence[str]) -> str:
    """The error message if a file is missing and cannot be downloaded."""
    files = ", ".join(file.name for file in missing)
    looked = " or ".join(str(place) for place in (*given, _cache()))
    return (
        f"{name}: {files} not found in {looked}, and the download failed:\n"
        + "".join(f"  {failure}\n" for failure in failures)
        + f"Without a network, put these files, compressed ({', '.join(COMPRESSIONS)}) or not, in a folder or in its "
        f"subfolder {ENTRIES[name].folders[0]}, and pass the folder by --data (in Python, folder=...) or by the "
        f"environment variable {VARIABLE}. They come from {ENTRIES[name].mirrors[0]}{missing[0].remote}."
    )


# --- the datasets --------------------------------------------------------------------------


def _ijcnn1(paths: Sequence[Path]) -> Arrays:
    rows = read_libsvm(paths[0], features=22)
    wrong = np.flatnonzero(np.abs(rows.labels) != 1.0)
    if len(wrong):
        line, label = rows.line_numbers[wrong[0]], rows.labels[wrong[0]]
        raise DatasetError(f"{paths[0]}, line {line}: label = {label}, must be -1 or 1")
    return rows.dense(), rows.labels.astype(np.int64)


def _digits(seed: int) -> Dataset:
    bunch = require("sklearn.datasets", "the digits dataset").load_digits()
    X, y = np.ascontiguousarray(bunch.data), bunch.target.astype(np.int64)
    return Dataset("digits", X, y, "1,797 handwritten digits of 8×8 pixels, 0 to 16", "sklearn.datasets.load_digits")


def _synthetic(seed: int) -> Dataset:
    """Generate the paper's synthetic problem: 100 examples, 10 features."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(100, 10))
    lengths = generator.lognormal(0.0, 1.0, 100)
    X = directions / (directions**2).sum(axis=1, keepdims=True) * lengths[:, None]
    chance = 1.0 / (1.0 + np.exp(-X @ generator.normal(size=10)))
    y = np.where(generator.random(100) < chance, 1, -1).astype(np.int64)
    return Dataset(
        "synthetic", X, y, "100 rows of widely different lengths, labels -1 and 1 from a logistic model", f"seed {seed}"
    )


def _cifar(name: str, digest: str) -> File:
    return File(f"{name}.bin", f"sha256:{digest}", "cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")


_MADE: dict[str, Callable[[int], Dataset]] = {"digits": _digits, "synthetic": _synthetic}
_RANDOM = ("synthetic",)  # those that depend on the seed

ENTRIES: dict[str, Entry] = {
    "mnist": Entry(
        "Handwritten digits of 28×28 pixels, flattened and divided by 255, with labels 0 to 9",
        {
            "train": (
                File(
                    "train-images-idx3-ubyte",
                    "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    "train-images-idx3-ubyte.gz",
                    "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                ),
                File(
                    "train-labels-idx1-ubyte",
                    "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                    "train-labels-idx1-ubyte.gz",
                    "md5:d53e105ee54ea40749a09fcbcd1e9432",
                ),
            ),
            "test": (
                File(
                    "t10k-images-idx3-ubyte",
                    "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    "t10k-images-idx3-ubyte.gz",
                    "md5:9fb629c4189551a2d022fa330f9573f3",
                ),
                File(
                    "t10k-labels-idx1-ubyte",
                    "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                    "t10k-labels-idx1-ubyte.gz",
                    "md5:ec29112dd5afa0611ce80d1b7f02629c",
                ),
            ),
        },
        read_idx,
        ("mnist",),
        ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    ),
    "ijcnn1": Entry(
        "Neural network competition of IJCNN 2001: 22 features, labels -1 and 1, about one in ten positive",
        {
            "train": (File("ijcnn1", "md5:3f95c31e40f84fef90fb8c4fbe4f4201", "ijcnn1.bz2"),),
            "test": (File("ijcnn1.t", "md5:8abe953368ee19cc41e5bb63b5f7abfc", "ijcnn1.t.bz2"),),
        },
        _ijcnn1,
        ("ijcnn1",),
        ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",),
    ),
    "cifar10": Entry(
        "Colour photographs of 32×32 pixels (all red, all green, all blue), divided by 255, in 10 classes",
        {
            "train": (
                _cifar("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                _cifar("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                _cifar("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                _cifar("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                _cifar("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ),
            "test": (_cifar("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
        },
        read_cifar,
        ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10"),
        ("https://www.cs.toronto.edu/~kriz/",),
    ),
}
