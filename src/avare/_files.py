"""Files that are written whole or not at all."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LEFT_OVER = 3600.0  # seconds after which a temporary file is removed


def write_whole(place: Path, content: bytes) -> None:
    """Write a file whole or not at all: write a temporary file, call ``fsync``, then rename it."""
    beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
        _to_disk(place.parent)
    except BaseException:
        with suppress(OSError):  # the first error is the one to raise
            beside.unlink(missing_ok=True)
        raise


@contextmanager
def failing_as(kind: type[OSError], words: str) -> Iterator[None]:
    """Raise an error of the system as another kind of ``OSError``, with words before its message."""
    try:
        yield
    except OSError as error:
        raise kind(f"{words}: {error.strerror or error}") from error


def remove_left_overs(folder: Path) -> None:
    """Remove old temporary files, which killed processes left."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_OVER:
                path.unlink()


def _to_disk(folder: Path) -> None:
    """Call ``fsync`` on a folder, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
