"""Read your own files and data frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._optional import require
from avare.datasets.archives import read_npz
from avare.datasets.columns import TRUTH, Table, Wanted, shown
from avare.datasets.dataset import Dataset, DatasetError
from avare.datasets.files import LIMIT, PACKED, check_file, compression, contents, unpacked
from avare.datasets.libsvm import read_libsvm
from avare.datasets.tables import is_frame, read_csv, read_frame, read_parquet

Task = Literal["classification", "regression", "auto"]

_TASKS = ("classification", "regression", "auto")
_LARGEST_CLASS = 2.0**53  # up to which float64 holds every integer
_MOST_CLASSES = 100  # up to this many different whole numbers are classes, if that is not said
_KINDS = {".csv": "CSV", ".tsv": "CSV", ".parquet": "Parquet", ".pq": "Parquet", ".npz": "NumPy archive"}
_CONTENTS = {  # what `contents` may return, by kind; text may be unusual
    "Parquet": ("", "Parquet"),
    "NumPy archive": ("", "a zip archive"),
    "CSV": ("", "text", "CSV text"),
    "LIBSVM text": ("", "text", "CSV text", "LIBSVM text"),  # its reader knows better, and names a line
}
_ENDINGS = {"CSV text": ".csv", "LIBSVM text": ".libsvm", "Parquet": ".parquet"}  # to suggest, by contents
_NOT_READ = {  # endings of files that are not read
    ".xlsx": "an Excel workbook: save it as CSV",
    ".xls": "an Excel workbook: save it as CSV",
    ".json": "JSON: save it as CSV",
    ".feather": "Feather: save it as Parquet",
    ".npy": "one NumPy array: save X and y together by numpy.savez",
    ".pkl": "a pickle, which could run code: save it as CSV, Parquet or .npz",
    ".zip": "a zip archive: unpack it first",
}


def read(
    source: Any,
    *,
    target: str | None = None,
    task: Task = "classification",
    drop: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    dense: bool = False,
    features: int | None = None,
    limit: float = LIMIT,
) -> Dataset:
    r"""Read examples and labels from a file, whose ending determines the format, or from a data frame.

    ============== ===========================================================================
    .csv, .tsv     a header, then cells separated by comma, semicolon, tab or bar
    .parquet, .pq  columns
    .npz           arrays X, one row per example, and y
    anything else  LIBSVM text: ``label index:value index:value ...``, indices counted from 1
    ============== ===========================================================================

    Of CSV, Parquet and data frames, X is every column but ``target``, as numbers: see `avare.datasets.columns`.
    ``notes`` of the result says what was done to each column. Text files may be compressed (.gz, .bz2, .xz). An error
    names the file and the line, or the row counted from 0.

    Parameters
    ----------
    source
        The path of a file; or a data frame of pandas or polars, or an Arrow table.
    target
        The column with the labels, for CSV, Parquet and data frames. Rows without a label are left out.
    task
        "classification": labels are integers or text, of two classes or more. "regression": any numbers. "auto":
        classification if labels are text, true and false, or at most 100 different integers.
    drop, categories
        Columns to leave out, and columns whose values are categories although they are numbers or more than 50
        different texts: names, or one text with names separated by commas.
    dense
        For LIBSVM text, whether X is an array. By default it is a SciPy CSR matrix, whatever its density, so that its
        type never depends on the data.
    features
        For LIBSVM text, the number of columns; by default the largest index. Set it if a test file must have the
        columns of a training file.
    limit
        The most bytes that a compressed or Parquet file may unpack to, and that categories may take. A line of text
        may have a 256th of them.

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
    limit = validation.number("limit", limit, above=0.0)
    wanted = Wanted(target, _names("drop", drop), _names("categories", categories), limit)
    if is_frame(source):
        table = read_frame(source, wanted)
        kind = name = place = type(source).__name__
    else:
        path = Path(source).expanduser()
        place = str(path)
        check_file(path, _KINDS)
        kind, name = _kind(path)
        _check_contents(path, kind)
        _check_options(path, kind, wanted, features)
        table = _table(path, kind, wanted, dense, features)
    y = _labels(place, table, task)
    description = f"{kind}: {len(y)} rows, {table.X.shape[1]} features"
    end = (table.columns, table.notes, table.classes if y.dtype == np.int64 else (), table.filled)
    return Dataset(name, table.X, y, description, place, *end)


def _names(option: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{option} has {name!r}: must be names of columns")
    return names


def _kind(path: Path) -> tuple[str, str]:
    """Return the format of a file by its ending, and the name of the dataset."""
    name = unpacked(path).name
    ending = Path(name).suffix.lower()
    if ending in _NOT_READ:
        raise DatasetError(f"{path} is {_NOT_READ[ending]}")
    kind = _KINDS.get(ending, "LIBSVM text")
    if kind in ("Parquet", "NumPy archive") and compression(path):
        raise DatasetError(f"{path}: only text files may be compressed; decompress it first")
    return kind, name.split(".")[0] or name


def _check_options(path: Path, kind: str, wanted: Wanted, features: int | None) -> None:
    if kind not in ("CSV", "Parquet"):
        for option in ("target", "drop", "categories"):
            value = getattr(wanted, option)
            if value:
                advice = "; if it is a table, let its name end in .csv" if kind == "LIBSVM text" else ""
                raise ValueError(f"{option} = {value!r}: {path} is read as {kind}, which has no named columns{advice}")
    if kind != "LIBSVM text" and features is not None:
        raise ValueError(f"features = {features}: {path} is read as {kind}, which has its own number of columns")


def _check_contents(path: Path, kind: str) -> None:
    """Raise an error if a file is not what its ending says; say what it is, and what to do."""
    packed, found = contents(path)
    as_named = packed == compression(path)
    if found in _CONTENTS[kind] and (as_named or not (packed or found)):  # if nothing is known, its reader may know
        return
    name = unpacked(path)
    advice = "save it as CSV in UTF-8, or name it as what it is"
    if found in _CONTENTS[kind]:
        advice = f"rename it to {name.name}{packed}"
    elif found in _ENDINGS:
        is_text = found in _CONTENTS["LIBSVM text"]
        before, after = ("", packed) if is_text or not packed else ("decompress it, and ", "")
        advice = f"{before}rename it to {name.stem}{_ENDINGS[found]}{after}"
    words = [] if as_named else [f"is compressed by {PACKED[packed][1]}" if packed else "is not compressed"]
    if found:
        words.append(f"{'looks like' if found.endswith('text') else 'is'} {found}")
    raise DatasetError(f"{path} is not what its ending says: it {' and '.join(words)}; {advice}")


def _table(path: Path, kind: str, wanted: Wanted, dense: bool, features: int | None) -> Table:
    if kind == "CSV":
        return read_csv(path, wanted)
    if kind == "Parquet":
        return read_parquet(path, wanted)
    if kind == "NumPy archive":
        return read_npz(path, wanted.limit)
    rows = read_libsvm(path, features, wanted.limit)
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


def _labels(place: str, table: Table, task: str) -> NDArray[Any]:
    """Return the labels, checked and converted for the task."""
    labels, is_text = table.labels, len(table.classes) > 0
    whole = (labels == np.rint(labels)) & (np.abs(labels) <= _LARGEST_CLASS)
    if task == "auto":
        few = whole.all() and len(np.unique(labels)) <= _MOST_CLASSES
        task = "classification" if is_text or few else "regression"
    if task == "regression":
        if is_text and table.classes != TRUTH:
            raise DatasetError(f"{place}: labels are text, such as {shown(table.classes[0])}; regression needs numbers")
        return labels
    wrong = np.flatnonzero(~whole)
    if len(wrong):
        raise DatasetError(
            f"{place}, {table.place(wrong[0])}: label = {labels[wrong[0]]}, must be an integer for classification "
            "(regression takes any number: --loss least_squares or huber; in Python, task='regression')"
        )
    y = labels.astype(np.int64)
    if (y == y[0]).all():
        raise DatasetError(
            f"{place} has one class only, {table.classes[y[0]] if is_text else y[0]}: classification needs two or more"
        )
    return y
