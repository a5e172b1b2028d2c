"""Read your own files."""

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._optional import require
from avare.datasets.dataset import Dataset, DatasetError
from avare.datasets.files import compression
from avare.datasets.libsvm import read_libsvm
from avare.datasets.tables import Table, read_csv, read_npz, read_parquet

_TASKS = ("classification", "regression")
_LARGEST_CLASS = 2.0**53  # up to which float64 holds every integer


def read(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    task: Literal["classification", "regression"] = "classification",
    dense: bool = False,
    features: int | None = None,
) -> Dataset:
    r"""Read examples and labels from a file; its ending determines the format.

    ============== ===========================================================================
    .csv           numbers, with a header; X is every column but ``target``
    .parquet, .pq  the same
    .npz           arrays X, one row per example, and y
    anything else  LIBSVM text: ``label index:value index:value ...``, indices counted from 1
    ============== ===========================================================================

    Text may be compressed (.gz, .bz2, .xz). An error names the file and the line, or the row counted from 0.

    Parameters
    ----------
    path
        The file.
    target
        The column with the labels, for CSV and Parquet.
    task
        "classification": labels are integers, of two classes or more. "regression": any numbers.
    dense
        For LIBSVM text, whether X is an array. By default it is a SciPy CSR matrix, whatever its density, so that its
        type never depends on the data.
    features
        For LIBSVM text, the number of columns; by default the largest index. Set it if a test file must have the
        columns of a training file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "two.libsvm"
    ...     _ = file.write_text("-1 1:0.5 3:2\n+1 2:1 # a comment\n")
    ...     data = read(file, dense=True)
    >>> data.X
    array([[0.5, 0. , 2. ],
           [0. , 1. , 0. ]])
    >>> data.y
    array([-1,  1])
    """
    if task not in _TASKS:
        raise ValueError(f"task = {task!r}: must be one of {', '.join(map(repr, _TASKS))}")
    dense = validation.boolean("dense", dense)
    if features is not None:
        features = validation.integer("features", features, at_least=1, at_most=2**31 - 1)
    place = Path(path).expanduser()
    name = place.stem if compression(place) else place.name
    kind = _KINDS.get(Path(name).suffix.lower(), "LIBSVM text")
    if kind in ("Parquet", "NumPy archive") and compression(place):
        raise DatasetError(f"{place}: only text files may be compressed; decompress it first")
    if kind not in ("CSV", "Parquet") and target is not None:
        raise ValueError(f"target = {target!r}: {place} is read as {kind}, which has no named columns")
    if kind != "LIBSVM text" and features is not None:
        raise ValueError(f"features = {features}: {place} is read as {kind}, which has its own number of columns")
    table = _table(place, kind, target, dense, features)
    y = _labels(place, table, task)
    description = f"{kind}: {len(y)} rows, {table.X.shape[1]} features"
    return Dataset(name.split(".")[0] or name, table.X, y, description, str(place))


def _table(path: Path, kind: str, target: str | None, dense: bool, features: int | None) -> Table:
    if not path.is_file():
        raise DatasetError(f"{path}: there is no such file")
    if kind == "CSV":
        return read_csv(path, target)
    if kind == "Parquet":
        return read_parquet(path, target)
    if kind == "NumPy archive":
        return read_npz(path)
    rows = read_libsvm(path, features)
    if not rows.features:
        raise DatasetError(f"{path} has labels only: no row has a feature")
    if dense:
        try:
            X: Any = rows.dense()
        except MemoryError:
            shape = f"{len(rows.labels)} × {rows.features}"
            raise DatasetError(f"{path}: an array of {shape} does not fit in memory; dense=False may") from None
    else:
        sparse = require("scipy.sparse", "a sparse matrix")
        X = sparse.csr_matrix((rows.values, rows.columns, rows.starts), shape=(len(rows.labels), rows.features))
    return Table(X, rows.labels, lambda row: f"line {rows.line_numbers[row]}")


def _labels(path: Path, table: Table, task: str) -> NDArray[Any]:
    """Return the labels, checked and converted for the task."""
    if task == "regression":
        return table.labels
    wrong = np.flatnonzero((table.labels != np.rint(table.labels)) | (np.abs(table.labels) > _LARGEST_CLASS))
    if len(wrong):
        raise DatasetError(
            f"{path}, {table.place(wrong[0])}: label = {table.labels[wrong[0]]}, must be an integer for classification "
            "(regression takes any number: --loss least_squares or huber; in Python, task='regression')"
        )
    y = table.labels.astype(np.int64)
    if (y == y[0]).all():
        raise DatasetError(f"{path} has one class only, {y[0]}: classification needs two or more")
    return y


_KINDS = {".csv": "CSV", ".parquet": "Parquet", ".pq": "Parquet", ".npz": "NumPy archive"}
