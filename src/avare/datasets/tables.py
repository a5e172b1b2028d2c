"""Read tables with named columns (CSV and Parquet) and NumPy archives."""

import csv
import lzma
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.datasets.dataset import DatasetError
from avare.datasets.files import lines

_ROWS = 8_192  # checked or read at once
_MOST_NAMES = 20  # in an error message
_DAMAGES = (  # errors of NumPy and zipfile on a damaged archive
    *(OSError, EOFError, ValueError, KeyError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
_PANDAS_INDEX = "__index_level_"  # the name of an index that pandas stored as a column


class Table(NamedTuple):
    """Examples, their labels, and a function that returns the place of a row for an error message."""

    X: Any
    labels: NDArray[np.float64]
    place: Callable[[int], str]


def read_csv(path: Path, target: str | None) -> Table:
    """Read a CSV file of numbers, with a header."""
    rows = csv.reader(_text(path), strict=True)
    values, labels, line_numbers = array("d"), array("d"), array("q")
    header: list[str] = []
    try:
        for row in rows:
            if not row:
                continue
            if not header:
                header = [name.strip() for name in row]
                if all(_is_number(name) for name in header):
                    raise DatasetError(f"{path}, line {rows.line_num}: must be a header, the names of the columns")
                chosen = _chosen(path, header, target)
                continue
            if len(row) != len(header):
                raise DatasetError(
                    f"{path}, line {rows.line_num}: has {len(row)} cells, but the header has {len(header)}"
                )
            try:
                if "_" in "".join(row):  # Python accepts it in a number, CSV does not
                    raise ValueError
                labels.append(float(row[chosen]))
                values.extend(map(float, row[:chosen] + row[chosen + 1 :]))
            except ValueError:
                name, cell = next((n, c) for n, c in zip(header, row, strict=True) if not _is_number(c))
                raise DatasetError(
                    f"{path}, line {rows.line_num}: column {name!r} = {cell[:40]!r}, must be a number"
                ) from None
            line_numbers.append(rows.line_num)
    except csv.Error as error:
        raise DatasetError(f"{path}, line {rows.line_num}: {error}") from error
    if not labels:
        raise DatasetError(f"{path} is empty: it has no rows{' below its header' if header else ''}")
    X = np.frombuffer(values).reshape(len(labels), -1)
    y = np.frombuffer(labels)
    features = header[:chosen] + header[chosen + 1 :]
    _check_finite(X, lambda row, column: f"{path}, line {line_numbers[row]}: column {features[column]!r}")
    _check_finite(y[:, None], lambda row, _: f"{path}, line {line_numbers[row]}: column {target!r}")
    return Table(X, y, lambda row: f"line {line_numbers[row]}")


def read_parquet(path: Path, target: str | None) -> Table:
    """Read a Parquet file of numbers."""
    arrow = require("pyarrow", "reading Parquet")
    parquet = require("pyarrow.parquet", "reading Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            kinds = {field.name: field.type for field in file.schema_arrow if not field.name.startswith(_PANDAS_INDEX)}
            names = [name for name in file.schema_arrow.names if not name.startswith(_PANDAS_INDEX)]
            chosen = _chosen(path, names, target)
            for name, kind in kinds.items():
                if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
                    raise DatasetError(f"{path}: column {name!r} holds {kind}, must hold numbers")
            if not file.metadata.num_rows:
                raise DatasetError(f"{path} is empty: it has no rows")
            every = np.empty((file.metadata.num_rows, len(names) - 1))
            labels = np.empty(len(every))
            features = names[:chosen] + names[chosen + 1 :]
            start = 0
            for batch in file.iter_batches(batch_size=_ROWS, columns=names):
                for name in names:
                    column = batch.column(name)
                    if column.null_count:
                        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                        raise DatasetError(f"{path}, row {row}: column {name!r} is null")
                    place = labels if name == target else every[:, features.index(name)]
                    place[start : start + len(batch)] = column.to_numpy(zero_copy_only=False)
                start += len(batch)
    except DatasetError:
        raise
    except (arrow.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise DatasetError(f"{path} cannot be read as Parquet: {_brief(error)}") from error
    _check_finite(every, lambda row, column: f"{path}, row {row}: column {features[column]!r}")
    _check_finite(labels[:, None], lambda row, _: f"{path}, row {row}: column {target!r}")
    return Table(every, labels, lambda row: f"row {row}")


def read_npz(path: Path) -> Table:
    """Read a NumPy archive that holds X, one row per example, and y."""
    try:
        with path.open("rb") as stream:  # NumPy would leave it open after an error
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DatasetError(f"{path} is one array: must be an archive with X and y, as numpy.savez makes")
            for name in ("X", "y"):
                if name not in archive:
                    raise DatasetError(f"{path} has no {name}: it holds {_listed(archive.files) or 'nothing'}")
            X, y = archive["X"], archive["y"]
    except DatasetError:
        raise
    except _DAMAGES as error:
        raise DatasetError(f"{path} cannot be read as .npz: {_brief(error)}") from error
    for name, values, ndim in (("X", X, 2), ("y", y, 1)):
        if values.dtype.kind not in "iuf":
            raise DatasetError(f"{path}: {name} has dtype {values.dtype}, must hold real numbers")
        if values.ndim != ndim:
            raise DatasetError(f"{path}: {name} has shape {values.shape}, must have {ndim} dimension{'s' * (ndim > 1)}")
    if len(X) != len(y):
        raise DatasetError(f"{path}: X has {len(X)} rows, must match y, which has {len(y)}")
    if not X.size:
        raise DatasetError(f"{path} is empty: X has shape {X.shape}")
    _check_finite(X, lambda row, column: f"{path}: X[{row}, {column}]")
    _check_finite(y[:, None], lambda row, _: f"{path}: y[{row}]")
    kind = X.dtype if X.dtype in (np.float32, np.float64) else np.float64
    return Table(np.ascontiguousarray(X, dtype=kind), y.astype(np.float64), lambda row: f"y[{row}]")


def _text(path: Path) -> Iterator[str]:
    """Yield the lines of a file as text; keep invalid bytes, so that the error can name their line."""
    encoding = "utf-8-sig"
    for _, block in lines(path):
        for line in block:
            yield line.decode(encoding, errors="surrogateescape") + "\n"
            encoding = "utf-8"


def _chosen(path: Path, names: Sequence[str], target: str | None) -> int:
    """Return the index of the target among the columns."""
    twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise DatasetError(f"{path} has two columns {twice[0]!r}: names must differ")
    if target not in names:
        raise DatasetError(f"{path}: target = {target!r}, must be one of its columns: {_listed(names)}")
    if len(names) == 1:
        raise DatasetError(f"{path} has no column besides the target {target!r}")
    return names.index(target)


def _check_finite(X: NDArray[Any], place: Callable[[int, int], str]) -> None:
    """Raise an error for NaN and infinity; check some rows at once, to save memory."""
    for start in range(0, len(X), _ROWS):
        finite = np.isfinite(X[start : start + _ROWS])
        if not finite.all():
            row, column = np.unravel_index(int(np.argmin(finite)), finite.shape)
            found = X[start + row, column]
            raise DatasetError(f"{place(start + int(row), int(column))} = {found}, must be finite")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown}, ... ({len(names)} in all)"


def _brief(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
