"""Read tables with named columns: CSV, Parquet and data frames. Apache Arrow reads; `columns` makes numbers of them."""

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from avare._optional import require
from avare.datasets.columns import MISSING, Source, Table, Wanted, brief, convert, shown
from avare.datasets.dataset import DatasetError
from avare.datasets.files import FAILURES, Bounded, beyond, lines, longest_line, opened

_SEPARATORS = (",", ";", "\t", "|")  # the first wins a tie
_PANDAS_INDEX = "__index_level_"  # the name of an index that pandas stored as a column


def read_csv(path: Path, wanted: Wanted) -> Table:
    """Read a CSV file with a header; the sign that separates most names of the header separates all cells."""
    arrow, reader = require("pyarrow", "reading CSV"), require("pyarrow.csv", "reading CSV")
    header, separator = _header(path, wanted.limit)
    with opened(path) as stream:
        bounded = Bounded(path, stream, wanted.limit)
        try:
            found = reader.read_csv(
                arrow.PythonFile(bounded, mode="r"),
                # Threads would read rows without their numbers. A line must fit in a block.
                read_options=reader.ReadOptions(use_threads=False, block_size=longest_line(wanted.limit)),
                parse_options=reader.ParseOptions(delimiter=separator, newlines_in_values=True),
                convert_options=reader.ConvertOptions(strings_can_be_null=True, null_values=MISSING),
            )
        except DatasetError:
            raise
        except FAILURES as error:
            raise bounded.failure(error) from error
        except arrow.ArrowException as error:
            raise _unparsed(path, error, separator, wanted.limit) from error
    names = [name or f"column {place + 1}" for place, name in enumerate(header)]
    if found.num_columns != len(names):
        raise DatasetError(f"{path} cannot be read as CSV: the quotes of its header do not match")
    places = {name: place for place, name in enumerate(names)}
    source = Source(
        str(path),
        tuple(names),
        found.num_rows,
        lambda name: found.column(places[name]),
        lambda row: _line(path, separator, row + 2, wanted.limit),
        decimal_comma=separator != ",",
        row_numbers=tuple(
            names[place]
            for place, name in enumerate(header)
            if (not name or name.startswith("Unnamed:")) and _counts(found.column(place))
        ),
    )
    return convert(source, wanted)


def read_parquet(path: Path, wanted: Wanted) -> Table:
    """Read a Parquet file, one column at a time."""
    arrow, parquet = require("pyarrow", "reading Parquet"), require("pyarrow.parquet", "reading Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            rows, schema = file.metadata.num_rows, file.schema_arrow
            if rows * len(schema.names) * 8.0 > wanted.limit:
                raise beyond(
                    path, f"unpacks to {rows} rows of {len(schema.names)} columns, more than {wanted.limit:g} bytes"
                )

            def column(name: str) -> Any:
                return file.read(columns=[name]).column(name)

            names = _without_index(schema.names, schema.pandas_metadata)
            return convert(Source(str(path), names, rows, column, lambda row: f"row {row}"), wanted)
    except DatasetError:
        raise
    except (arrow.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        raise DatasetError(f"{path} cannot be read as Parquet: {brief(error)}") from error


def read_frame(frame: Any, wanted: Wanted) -> Table:
    """Read a data frame of pandas or polars, or an Arrow table; its index is left out."""
    arrow = require("pyarrow", "reading data frames")
    name = type(frame).__name__
    try:
        if hasattr(frame, "index") and hasattr(frame, "columns"):  # pandas: also without its Arrow interface
            table = arrow.Table.from_pandas(frame, preserve_index=False)
        else:
            table = arrow.table(frame)
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise DatasetError(f"{name} cannot be read: {brief(error)}") from error
    places = {str(each): place for place, each in enumerate(table.column_names)}
    names = tuple(map(str, table.column_names))
    return convert(
        Source(name, names, table.num_rows, lambda each: table.column(places[each]), lambda row: f"row {row}"), wanted
    )


def is_frame(source: Any) -> bool:
    """Return whether this is a data frame or an Arrow table."""
    return hasattr(source, "__arrow_c_stream__") or (hasattr(source, "columns") and hasattr(source, "index"))


# --- CSV ------------------------------------------------------------------------------------


def _header(path: Path, limit: float) -> tuple[list[str], str]:
    """Return the names of the columns, and the sign that separates cells."""
    try:
        first = {sign: next(_rows(path, sign, limit), (0, [])) for sign in _SEPARATORS}
    except csv.Error as error:
        raise DatasetError(f"{path}, line 1: {error}") from error
    separator = max(_SEPARATORS, key=lambda sign: len(first[sign][1]))
    line, cells = first[separator]
    header = [name.strip() for name in cells]
    if not header:
        raise DatasetError(f"{path} is empty: it has no rows")
    if all(_is_number(name) for name in header):
        raise DatasetError(f"{path}, line {line}: must be a header, the names of the columns")
    wrong = next((name for name in header if any("\ud800" <= sign <= "\udfff" for sign in name)), None)
    if wrong is not None:
        raise DatasetError(f"{path}, line {line}: {shown(wrong)} is not text in UTF-8; save the file as UTF-8")
    return header, separator


def _rows(path: Path, separator: str, limit: float) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of each row that is not blank, for headers and messages only."""
    rows = csv.reader(_text(path, limit), delimiter=separator)
    return ((rows.line_num, cells) for cells in rows if cells)


def _text(path: Path, limit: float) -> Iterator[str]:
    """Yield the lines of a file as text; keep invalid bytes."""
    encoding = "utf-8-sig"
    for _, block in lines(path, limit):
        for line in block:
            yield line.decode(encoding, errors="surrogateescape") + "\n"
            encoding = "utf-8"


def _line(path: Path, separator: str, number: int, limit: float) -> str:
    """Return where a row is, the header being row 1: Arrow counts rows, people count lines."""
    try:
        line, _ = next(itertools.islice(_rows(path, separator, limit), number - 1, None))
    except (csv.Error, StopIteration):
        return f"row {number}"
    return f"line {line}"


def _unparsed(path: Path, error: Exception, separator: str, limit: float) -> DatasetError:
    """Return the error for a file that Arrow cannot parse."""
    ragged = re.search(r"Row #([0-9]+): Expected ([0-9]+) columns, got ([0-9]+)", str(error))
    if ragged is not None:
        row, expected, actual = map(int, ragged.groups())
        place = _line(path, separator, row, limit)
        return DatasetError(f"{path}, {place}: has {actual} cells, but the header has {expected}")
    if "straddling" in str(error):
        return beyond(path, f"has a line of more than {longest_line(limit)} bytes")
    return DatasetError(f"{path} cannot be read as CSV: {brief(error)}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _counts(column: Any) -> bool:
    """Return whether a column is 0, 1, 2, ..., as the index that pandas writes."""
    if str(column.type) != "int64" or column.null_count:
        return False
    return bool(np.array_equal(column.to_numpy(), np.arange(len(column))))


def _without_index(names: list[str], metadata: Any) -> tuple[str, ...]:
    """Return the columns that are not an index that pandas stored."""
    index = [name for name in (metadata or {}).get("index_columns", []) if isinstance(name, str)]
    return tuple(name for name in names if not name.startswith(_PANDAS_INDEX) and name not in index)
