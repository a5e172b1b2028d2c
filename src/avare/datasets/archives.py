"""Read NumPy archives."""

import lzma
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from avare.datasets.columns import Table, brief, check_finite, listed
from avare.datasets.dataset import DatasetError
from avare.datasets.files import beyond

_DAMAGES = (  # errors of NumPy and zipfile on a damaged archive
    *(OSError, EOFError, ValueError, KeyError, MemoryError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def read_npz(path: Path, limit: float) -> Table:
    """Read a NumPy archive that holds X, one row per example, and y. Shapes and sizes are checked before values."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            for name in ("X", "y"):
                if name not in members:
                    raise DatasetError(f"{path} has no {name}: it holds {listed(list(members)) or 'nothing'}")
            shapes = {name: _shape(path, archive, name, members[name], limit) for name in ("X", "y")}
            if shapes["X"][0] != shapes["y"][0]:
                raise DatasetError(f"{path}: X has {shapes['X'][0]} rows, must match y, which has {shapes['y'][0]}")
            if not math.prod(shapes["X"]):
                raise DatasetError(f"{path} is empty: X has shape {shapes['X']}")
            X, y = (_array(archive, members[name]) for name in ("X", "y"))
    except DatasetError:
        raise
    except _DAMAGES as error:
        raise DatasetError(f"{path} cannot be read as .npz: {brief(error)}") from error
    kind = X.dtype if X.dtype in (np.float32, np.float64) else np.float64
    with np.errstate(over="ignore"):  # what is beyond float64 is refused below
        X, labels = np.ascontiguousarray(X, dtype=kind), y.astype(np.float64)
    check_finite(X, lambda row, column: f"{path}: X[{row}, {column}]")
    check_finite(labels[:, None], lambda row, _: f"{path}: y[{row}]")
    return Table(X, labels, lambda row: f"y[{row}]")


def _shape(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo, limit: float) -> tuple[int, ...]:
    """Return the shape in the header of a member, checked against its type, its size and the limit."""
    with archive.open(member) as stream:
        if stream.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
            raise DatasetError(f"{path}: {name} is not an array: must be made by numpy.savez")
    with archive.open(member) as stream:
        shape, kind = _header(stream)
    if kind.hasobject:
        raise DatasetError(f"{path}: {name} holds Python objects, which are not read: they could run code")
    if kind.kind not in "iuf":
        raise DatasetError(f"{path}: {name} has dtype {kind}, must hold real numbers")
    ndim = 2 if name == "X" else 1
    if len(shape) != ndim:
        raise DatasetError(f"{path}: {name} has shape {shape}, must have {ndim} dimension{'s' * (ndim > 1)}")
    needed = math.prod(shape) * kind.itemsize
    if needed > member.file_size:
        raise DatasetError(f"{path}: {name} is truncated: {needed} bytes of numbers are stated, it has fewer")
    if needed > max(limit, path.stat().st_size):
        raise beyond(path, f"unpacks to {needed:.2g} bytes in {name}, more than {limit:g}")
    return shape


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        return array


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, _, kind = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, kind = npy.read_array_header_2_0(stream)
    else:  # which NumPy writes only for arrays of records
        raise ValueError(f"an array in version {version} of the format")
    return shape, kind
