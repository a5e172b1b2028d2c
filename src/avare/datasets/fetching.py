"""Download files from their official sources, and check them before they are used."""

import logging
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avare._optional import require
from avare.datasets.dataset import DatasetError
from avare.datasets.files import verify


@dataclass(frozen=True, slots=True)
class File:
    """A file of a named dataset.

    Parameters
    ----------
    name
        File name, without the ending of a compression.
    checksum
        Checksum of the contents, decompressed, as "algorithm:digits".
    remote
        Name of the file at its source, or of the archive that holds it.
    remote_checksum
        Checksum of `remote` as downloaded; None if unknown.
    """

    name: str
    checksum: str
    remote: str
    remote_checksum: str | None = None


def download(files: Sequence[File], mirrors: Sequence[str], folder: Path, progress: bool) -> list[str]:
    """Download files to a folder; return the failures, or an empty list if all files are there.

    Only complete files with the right checksum are put in the folder.
    """
    for remote in dict.fromkeys(file.remote for file in files):
        wanted = [file for file in files if file.remote == remote]
        failures: list[str] = []
        for mirror in mirrors:
            try:
                _retrieve(f"{mirror}{remote}", wanted, folder, progress)
                break
            except (OSError, ValueError, tarfile.TarError) as error:  # no network, no space, wrong checksum
                failures.append(f"{mirror}{remote}: {error}")
        else:
            return failures
    return []


def _retrieve(url: str, files: Sequence[File], folder: Path, progress: bool) -> None:
    """Download one address to the folder; unpack an archive, and delete it."""
    pooch = require("pooch", "downloading datasets")
    remote, checksum = files[0].remote, files[0].remote_checksum
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        with _quiet(pooch.get_logger()), _bar(progress, remote) as bar:
            downloader = pooch.HTTPDownloader(progressbar=bar)
            path = Path(pooch.retrieve(url, checksum, fname=remote, path=work, downloader=downloader))
        parts = _unpack(path, files) if remote.endswith(".tar.gz") else [path]
        for file, part in zip(files, parts, strict=True):
            verify(part, file.checksum)
            os.replace(part, folder / part.name)


def _unpack(archive: Path, files: Sequence[File]) -> list[Path]:
    """Extract some files from an archive to its own folder, whatever their folders in the archive."""
    parts = {file.name: archive.parent / file.name for file in files}
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member)
            if content is not None and (name := Path(member.name).name) in parts:
                with parts[name].open("wb") as output:
                    shutil.copyfileobj(content, output)
    for name, part in parts.items():
        if not part.exists():
            raise DatasetError(f"{archive.name} does not hold {name}")
    return list(parts.values())


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Hide pooch's log messages."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Bar:
    """A progress bar with the interface that pooch expects, shown by rich."""

    def __init__(self, bars: Any, name: str) -> None:
        self._bars, self._task = bars, bars.add_task(name, total=None)
        self._total = 0

    @property
    def total(self) -> int:
        """Number of bytes to download."""
        return self._total

    @total.setter
    def total(self, value: int) -> None:
        self._total = value
        self._bars.update(self._task, total=value)

    def update(self, count: int) -> None:
        """Count some bytes."""
        self._bars.advance(self._task, count)

    def reset(self) -> None:
        """Start again from 0."""
        self._bars.reset(self._task, total=self.total)

    def close(self) -> None:
        """Do nothing: the bar closes with its context."""


@contextmanager
def _bar(progress: bool, name: str) -> Iterator[Any]:
    """Show a bar; False if none is wanted or rich is not installed."""
    if not progress:
        yield False
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield False
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bar(bars, name)
