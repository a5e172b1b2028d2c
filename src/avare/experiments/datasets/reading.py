"""Read your own files and data frames: Apache Arrow reads tables, NumPy its archives, scikit-learn LIBSVM text."""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare._optional import require
from avare.experiments.datasets.columns import MISSING, TRUTH, Examples, Origin, Wanted, convert
from avare.experiments.datasets.dataset import NUMBER, Data, DatasetError, shown
from avare.experiments.datasets.files import LIMIT, beyond, compression, line_of, opened, read_libsvm

Targets = Literal["classification", "regression", "auto"]

_LARGEST_CLASS = 2.0**53  # up to which float64 holds every integer
_CLASSES = 100  # up to this many different whole numbers are classes, if that is not said
_KINDS = {".csv": "CSV", ".tsv": "CSV", ".parquet": "Parquet", ".pq": "Parquet", ".npz": "zip archive"}
_LIBSVM = "LIBSVM text"
# How files begin that are not text in UTF-8.
_STARTS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ": ".xz", b"PAR1": "Parquet", b"PK": "zip archive"}
_STARTS |= {b"\xff\xfe": "text in UTF-16", b"\xfe\xff": "text in UTF-16"}


def read(
    source: Any,
    *,
    target: str | None = None,
    task: Targets = "classification",
    drop: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    features: int | None = None,
    limit: float = LIMIT,
) -> Data:
    r"""Read examples and labels from a file, whose ending determines the format, or from a data frame.

    ============== ===========================================================================
    .csv, .tsv     a header, then cells separated by comma, semicolon, tab or bar
    .parquet, .pq  columns
    .npz           arrays X, one row per example, and y
    anything else  LIBSVM text: ``label index:value index:value ...``, indices counted from 1; X is a CSR matrix
    ============== ===========================================================================

    Of CSV, Parquet and data frames, X is every column but ``target``, as numbers: see
    `avare.experiments.datasets.columns`. ``notes`` of the result says what was done to each column. Text files may be
    compressed (.gz, .bz2, .xz). An error names the file and the line, or the row counted from 0.

    Parameters
    ----------
    source : path, data frame or Arrow table
        The path of a file; or a data frame of pandas or polars, or an Arrow table.
    target : str, optional
        The column with the labels, for CSV, Parquet and data frames. Rows without a label are left out.
    task : {"classification", "regression", "auto"}, default="classification"
        "classification": labels are integers or text, of two classes or more. "regression": any numbers. "auto":
        classification if labels are text, true and false, or at most 100 different integers.
    drop, categories : str or sequence of str, default=()
        Columns to leave out, and columns whose values are categories although they are numbers or more than 50
        different texts: names, or one text with names separated by commas.
    features : int, optional
        For LIBSVM text: the number of columns, for a test file that must have the columns of a training file. By
        default the largest index.
    limit : float, default=4e9
        The most bytes that a compressed or Parquet file may unpack to, and that categories may take. A line of CSV
        may have a 256th of them.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "two.libsvm"
    ...     _ = file.write_text("-1 1:0.5 3:2\n+1 2:1 # a comment\n")
    ...     data = read(file)
    >>> data.X.toarray()
    array([[0.5, 0. , 2. ],
           [0. , 1. , 0. ]])
    >>> data.y
    array([-1,  1])
    """
    validation.choice("task", task, get_args(Targets))
    drop, categories = ([given] if isinstance(given, str) else list(map(str, given)) for given in (drop, categories))
    features = None if features is None else validation.integer("features", features, at_least=1)
    wanted = Wanted(target, drop, categories, validation.number("limit", limit, above=0.0), features)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "iloc"):
        name = kind = type(source).__name__
        with _format(name, "a table"):
            table = require("pyarrow", "reading tables").table(source)
        examples = convert(_without_index(table), Origin(name), wanted)
    else:
        path = Path(source).expanduser()
        name, kind = _kind(path)
        examples = _examples(path, kind, wanted)
    if features is not None and kind != _LIBSVM:
        raise ValueError(f"features = {features}: is for LIBSVM text only")
    X, labels, origin, about = examples
    y, about["classes"] = _targets(origin, labels, about.get("classes", ()), task)
    return Data(name, X, y, f"{kind}: {len(y)} rows, {X.shape[1]} features", origin.name, **about)


def _kind(path: Path) -> tuple[str, str]:
    """Return the name and the format of a file by its endings; raise an error if its first bytes do not fit them."""
    if not path.is_file():
        raise DatasetError(f"{path}{' is a folder: pass a file' if path.is_dir() else ': there is no such file'}")
    name = path.stem if compression(path) else path.name
    kind = _KINDS.get(Path(name).suffix.lower(), _LIBSVM)
    with path.open("rb") as stream:
        first = stream.read(8)
    if not first:
        raise DatasetError(f"{path} is empty")
    found = next((each for start, each in _STARTS.items() if first.startswith(start)), "text")
    expected = compression(path) or (kind if kind in _STARTS.values() else "text")
    if found != expected:
        raise DatasetError(
            f"{path} is not what its ending says: it looks like {found}, not {expected}; convert or rename it"
        )
    return name.split(".")[0] or name, kind


def _examples(path: Path, kind: str, wanted: Wanted) -> Examples:
    """Return X, labels, the places of rows, and fields of `Data` that describe the columns."""
    if kind == "CSV":
        return convert(*_read_csv(path, wanted.limit), wanted)
    if kind == "Parquet":
        return convert(_without_index(_read_parquet(path, wanted.limit)), Origin(str(path)), wanted)
    if any(wanted[:3]):
        raise ValueError(f"{path} is read as {kind}, which has no named columns for target, drop and categories")
    if kind == "zip archive":
        return *_read_npz(path, wanted.limit), Origin(str(path), "y[{}]".format), {}
    return *read_libsvm(path, wanted.features, wanted.limit), Origin(str(path), lambda row: line_of(path, row)), {}


def _targets(origin: Origin, labels: NDArray[Any], classes: Sequence[str], task: str) -> tuple[Any, Sequence[str]]:
    """Return the labels, checked and converted for the task, and the texts of the classes, if they are text."""
    whole = (labels == np.rint(labels)) & (np.abs(labels) <= _LARGEST_CLASS)
    if task == "auto":
        task = "classification" if classes or (whole.all() and len(np.unique(labels)) <= _CLASSES) else "regression"
    if task == "regression":
        if classes and classes != TRUTH:
            raise origin.fault(f"labels are text, such as {shown(classes[0])}; regression needs numbers")
        return labels, ()
    for row in np.flatnonzero(~whole)[:1]:
        words = "must be an integer for classification (regression: --loss least_squares, in Python task='regression')"
        raise origin.fault(f"label = {labels[row]}, {words}", row)
    y = labels.astype(np.int64)
    if (y == y[0]).all():
        only = classes[y[0]] if classes else y[0]
        raise DatasetError(f"{origin.name} has one class only, {only}: classification needs two or more")
    return y, classes


# --- formats --------------------------------------------------------------------------------


def _read_csv(path: Path, limit: float) -> tuple[Any, Origin]:
    """Read a CSV file with a header; the sign that separates most names of the header separates all cells."""
    arrow, reader = require("pyarrow", "reading CSV"), require("pyarrow.csv", "reading CSV")
    longest = int(min(max(limit / 256.0, 1024.0), 2.0**30))  # bytes of a line, which must fit in a block
    with opened(path, limit) as stream:
        head = re.sub(r'"[^"]*"', '""', stream.read(2**16).decode(errors="replace"))  # without what is quoted
        separator = max(",;\t|", key=head.lstrip("\r\n").partition("\n")[0].count)  # the comma wins a tie
        stream.seek(0)
        if compression(path):
            pieces = iter(lambda: stream.read(2**20), b"")
            cells = sum(piece.count(separator.encode()) + piece.count(b"\n") for piece in pieces)
            if 8.0 * cells > limit:
                raise beyond(path, f"has roughly {cells} cells, which take more than {limit:g} bytes")
            stream.seek(0)
        try:
            table = reader.read_csv(
                stream,
                # Threads would read rows without their numbers.
                read_options=reader.ReadOptions(use_threads=False, block_size=longest),
                parse_options=reader.ParseOptions(delimiter=separator, newlines_in_values=True),
                convert_options=reader.ConvertOptions(strings_can_be_null=True, null_values=MISSING),
            )
            names = [name.strip() for name in table.column_names]
        except (arrow.ArrowException, UnicodeDecodeError) as error:
            raise _unparsed(path, str(error), separator, longest) from error
    if all(re.fullmatch(NUMBER, name) for name in names):
        raise DatasetError(f"{path}, {_line(path, separator, 0)}: must be a header, the names of the columns")
    origin = Origin(str(path), lambda row: _line(path, separator, row + 1), decimal_comma=separator != ",")
    return table, origin


def _read_parquet(path: Path, limit: float) -> Any:
    """Read a Parquet file in pieces, up to the limit. A piece is small enough for cells of text of 1 MB each."""
    arrow, parquet = require("pyarrow", "reading Parquet"), require("pyarrow.parquet", "reading Parquet")
    too_large = beyond(path, f"unpacks to more than {limit:g} bytes")
    with _format(path, "Parquet"), parquet.ParquetFile(path) as file:
        schema, groups = file.schema_arrow, range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(k).total_byte_size for k in groups) > limit:
            raise too_large
        row = sum(8 if arrow.types.is_primitive(field.type) else 2**20 for field in schema)
        pieces, size = [], 0
        for piece in file.iter_batches(int(min(max(limit / max(row, 1), 1.0), 2.0**16))):
            pieces.append(piece)
            size += piece.nbytes
            if size > limit:
                raise too_large
        return arrow.Table.from_batches(pieces, schema)


def _read_npz(path: Path, limit: float) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Read a NumPy archive that holds X, one row per example, and y. Sizes are checked before anything is read."""
    with _format(path, ".npz"), path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        size = sum(archive.zip.getinfo(f"{name}.npy").file_size for name in "Xy")
        if size > max(limit, path.stat().st_size):
            raise beyond(path, f"unpacks to {size:.2g} bytes, more than {limit:g}")
        given = archive["X"]
        X, y = validation.real("X", given), validation.finite("y", archive["y"])
        if X.ndim != 2 or y.shape != X.shape[:1] or not X.size:
            raise ValueError(f"X has shape {X.shape}, y {y.shape}: must be (rows, columns) and (rows,), not empty")
        validation.refuse_unless(np.isfinite(X), X, "X", "must be finite")
    return X.astype(np.float32) if given.dtype == np.float32 else X, y


@contextmanager
def _format(name: Path | str, kind: str) -> Iterator[None]:
    """Raise a `DatasetError` for whatever NumPy, zipfile and Arrow raise if data are damaged."""
    try:
        yield
    except (DatasetError, ImportError):
        raise
    except Exception as error:
        raise DatasetError(f"{name} cannot be read as {kind}: {error!r}") from error


def _without_index(table: Any) -> Any:
    """Return an Arrow table without the index of a data frame of pandas."""
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    names = enumerate(table.column_names)
    return table.select([k for k, name in names if name not in index and not name.startswith("__index_level_")])


def _line(path: Path, separator: str, row: int) -> str:
    """Return where a row is, the header being row 0: Arrow counts rows, people count lines."""
    with opened(path, math.inf) as stream, suppress(csv.Error):  # a cell that is too long for this reader
        rows = csv.reader((line.decode(errors="replace") for line in stream), delimiter=separator)
        return f"line {next(islice((rows.line_num for cells in rows if cells), row, None), '?')}"
    return f"row {row}"


def _unparsed(path: Path, words: str, separator: str, longest: int) -> DatasetError:
    """Return the error for a file that Arrow cannot parse."""
    if ragged := re.search(r"Row #([0-9]+): Expected ([0-9]+) columns, got ([0-9]+)", words):
        place = _line(path, separator, int(ragged[1]) - 1)
        return DatasetError(f"{path}, {place}: has {ragged[3]} cells, but the header has {ragged[2]}")
    if "Empty CSV file" in words:
        return DatasetError(f"{path} is empty")
    if "straddling" in words:
        return beyond(path, f"has a line of more than {longest} bytes")
    return DatasetError(f"{path} cannot be read as CSV in UTF-8: {words[:200]}")
