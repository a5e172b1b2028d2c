"""From columns of any kind to numbers, and a sentence about what was done to each.

Numbers stay as they are, true and false become 1 and 0. A column of text becomes categories: one column of 0 and 1 per
text, or a single one for two texts. Missing numbers become the mean of their column, with a further column of 0 and 1
that says where. Dates have no one meaning as numbers, and are refused.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.datasets.dataset import DatasetError

_ROWS = 8_192  # checked at once
_MOST_NAMES = 20  # in an error message or a sentence
_MOST_CATEGORIES = 50  # different texts of a column, unless it is chosen by name
_LONGEST = 40  # characters of a cell that a message shows
_NUMBERED = 10  # rows from which 1, 2, 3, ..., in any order, are hardly a coincidence
MISSING = ("", "NA", "N/A", "NaN", "nan", "n/a", "na", "NULL", "Null", "null", "None", "none", "?", ".", "-", "#N/A")
"""Cells of text that are missing values."""
TRUTH = ("false", "true")
"""The classes of labels that are true or false."""
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DECIMAL_COMMA = r"^[+-]?[0-9]+,[0-9]+$"
_DATE = r"^[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([ T].*)?$"


class Table(NamedTuple):
    """Examples, their labels, and where they come from.

    Parameters
    ----------
    X, labels
        Examples and labels; labels that were text are numbered as in ``classes``.
    place
        A function that returns the place of a row, for an error message.
    columns
        Names of the columns of X; () if they have none.
    notes
        What was done to the columns, one sentence each.
    classes
        The texts of the labels, in the order of their numbers; () if labels are numbers.
    filled
        Columns of X whose missing values were filled, each with the column that says where.
    """

    X: Any
    labels: NDArray[np.float64]
    place: Callable[[int], str]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    filled: tuple[tuple[int, int], ...] = ()


class Part(NamedTuple):
    """A column of numbers, made of a column of a table."""

    name: str
    values: NDArray[Any]
    says_where: bool = False  # the column before it was filled


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user wants of the columns of a table."""

    target: str | None
    drop: tuple[str, ...]
    categories: tuple[str, ...]
    limit: float  # the most bytes that the columns of categories may take


class Source(NamedTuple):
    """A table whose columns are read one at a time.

    Parameters
    ----------
    name
        The file, for error messages.
    names
        Of all columns, in order.
    rows
        Their number.
    column
        Returns the column of a name, as an Arrow ``ChunkedArray``.
    place
        Returns the place of a row, for an error message.
    decimal_comma
        Whether text such as "1,5" is a number.
    row_numbers
        Columns that only number the rows.
    """

    name: str
    names: tuple[str, ...]
    rows: int
    column: Callable[[str], Any]
    place: Callable[[int], str]
    decimal_comma: bool = False
    row_numbers: tuple[str, ...] = ()


def convert(source: Source, wanted: Wanted) -> Table:
    """Return the table as numbers. O(size); rows without a label are left out."""
    wanted = _check(source, wanted)
    target = str(wanted.target)
    labels, classes = _labels(source, target, target in wanted.categories)
    kept = np.flatnonzero(~np.isnan(labels))
    if not len(kept):
        raise DatasetError(f"{source.name}: column {target!r}, the target, has no values")
    parts: list[Part] = []
    notes, plain = [], []
    for name in source.names:
        if name == target:
            continue
        if name in wanted.drop:
            notes.append(f"{name}: left out, as chosen")
            continue
        if name in source.row_numbers:
            notes.append(f"{name}: left out, it only numbers the rows")
            continue
        found, note = _feature(source, name, kept, wanted)
        parts += found
        if note:
            notes.append(f"{name}: {note}")
        elif found:
            plain.append(name)
    if not parts:
        words = f"; {'; '.join(notes)}" if notes else ""
        raise DatasetError(f"{source.name} has no column besides the target {target!r}{words}")
    X = np.empty((len(kept), len(parts)))
    for place, part in enumerate(parts):
        X[:, place] = part.values
    rows = kept.tolist() if len(kept) < len(labels) else range(len(kept))
    names = tuple(part.name for part in parts)
    filled = tuple((place - 1, place) for place, part in enumerate(parts) if part.says_where)
    check_finite(X, lambda row, column: f"{source.name}, {source.place(rows[row])}: column {names[column]!r}")
    left_out = len(labels) - len(kept)
    said = [f"{listed(plain)}: numbers, as they are"] if plain else []
    said += [*notes, f"{target}: the target{_about(classes)}{_about_rows(left_out)}"]
    return Table(X, labels[kept], lambda row: source.place(rows[row]), names, tuple(said), classes, filled)


def check_finite(X: NDArray[Any], place: Callable[[int, int], str]) -> None:
    """Raise an error for NaN and infinity; check some rows at once, to save memory."""
    for start in range(0, len(X), _ROWS):
        finite = np.isfinite(X[start : start + _ROWS])
        if not finite.all():
            row, column = np.unravel_index(int(np.argmin(finite)), finite.shape)
            found = X[start + row, column]
            raise DatasetError(f"{place(start + int(row), int(column))} = {found}, must be finite in {X.dtype}")


def listed(names: Sequence[str]) -> str:
    """Return names as a list for people, not longer than a line or two."""
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown}, ... ({len(names)} in all)"


def brief(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


# --- what is wanted -------------------------------------------------------------------------


def _check(source: Source, wanted: Wanted) -> Wanted:
    """Return what is wanted with lists of names taken apart; raise an error for a name that is no column."""
    names, counts = source.names, _counts(source.names)
    twice = [name for name in names if counts[name] > 1]
    if twice:
        raise DatasetError(f"{source.name} has two columns {twice[0]!r}: names must differ")
    if wanted.target is None:
        raise DatasetError(
            f"{source.name}: which column is the target? Name it by --target (in Python, target=...): {listed(names)}"
        )
    if wanted.target not in counts:
        raise DatasetError(f"{source.name}: target = {wanted.target!r}, must be one of its columns: {listed(names)}")
    chosen = {}
    for option in ("drop", "categories"):
        given = [
            name
            for text in getattr(wanted, option)
            for name in ([text] if text in counts else (part.strip() for part in text.split(",")))
        ]
        unknown = [name for name in given if name not in counts]
        if unknown:
            raise DatasetError(
                f"{source.name}: {option} = {unknown[0]!r}, must be some of its columns: {listed(names)}"
            )
        chosen[option] = tuple(given)
    if wanted.target in chosen["drop"]:
        raise DatasetError(f"{source.name}: drop = {wanted.target!r}, but it is the target")
    if not source.rows:
        raise DatasetError(f"{source.name} is empty: it has no rows below its header")
    return Wanted(wanted.target, chosen["drop"], chosen["categories"], wanted.limit)


def _counts(names: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


# --- one column -----------------------------------------------------------------------------


def _labels(source: Source, name: str, as_classes: bool) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the labels, NaN where they are missing; and the texts of the classes, if they are text."""
    types = require("pyarrow", "reading tables").types
    column, is_chosen = _parsed(source, name)
    as_classes = as_classes or is_chosen
    if not as_classes and not _is_text(column.type):
        if types.is_null(column.type):
            return np.full(source.rows, np.nan), ()
        labels = _numbers(column)
        wrong = np.flatnonzero(np.isinf(labels))
        if len(wrong):
            found = labels[wrong[0]]
            raise DatasetError(
                f"{source.name}, {source.place(int(wrong[0]))}: column {name!r} = {found}, must be finite"
            )
        return labels, TRUTH if types.is_boolean(column.type) else ()
    codes, texts = _coded(column)
    return np.where(codes < 0, np.nan, codes.astype(np.float64)), texts


def _feature(source: Source, name: str, kept: NDArray[np.int64], wanted: Wanted) -> tuple[list[Part], str]:
    """Return the columns of numbers that a column becomes, and what was done; "" if nothing."""
    types = require("pyarrow", "reading tables").types
    column, is_chosen = _parsed(source, name)
    whole = column
    if len(kept) < source.rows:
        column = column.take(kept)
    if types.is_null(column.type) or column.null_count == len(column):
        return [], "left out: it has no values"
    chosen = is_chosen or name in wanted.categories
    if chosen or _is_text(column.type):
        return _categories(source, name, column, chosen, wanted.limit)
    values = _numbers(column)
    note = "true and false, as 1 and 0" if types.is_boolean(column.type) else ""
    absent = np.isnan(values)
    if not absent.any():
        return [Part(name, values)], note or _hint_of_numbering(name, _numbers(whole))
    present = values[~absent]
    if not len(present):
        return [], "left out: it has no values"
    values[absent] = np.sum(present / len(present))
    further = f"{name} is missing"
    words = f"{int(absent.sum())} missing, filled with the mean; 1 in the new column '{further}'"
    return [Part(name, values), Part(further, absent, says_where=True)], f"{note}; {words}" if note else words


def _categories(source: Source, name: str, column: Any, chosen: bool, limit: float) -> tuple[list[Part], str]:
    """Return one column of 0 and 1 per category; a single one for two."""
    codes, texts = _coded(column)
    most = min(_MOST_CATEGORIES, max(2, len(codes) // 2))
    if len(texts) > most and not chosen:
        return [], f"text, {len(texts)} different in {len(codes)} rows: left out (--categories keeps it)"
    without = codes < 0
    if without.any():
        codes, texts = np.where(without, len(texts), codes), (*texts, "(missing)")
    if len(texts) * len(codes) * 8.0 > limit:
        raise DatasetError(
            f"{source.name}: column {name!r} has {len(texts)} categories in {len(codes)} rows, which take more than "
            f"{limit:g} bytes: drop it, or limit=... (--limit) allows more"
        )
    if len(texts) <= 2:
        text = texts[-1]
        words = f"text, 1 for {shown(text)}, 0 for {shown(texts[0])}"
        return [Part(f"{name} = {text}", codes == len(texts) - 1)], words
    words = f"{len(texts)} categories: {listed([shown(text) for text in texts])}"
    return [Part(f"{name} = {text}", codes == k) for k, text in enumerate(texts)], words


def _parsed(source: Source, name: str) -> tuple[Any, bool]:
    """Return a column of numbers, of true and false, or of text; and whether its type says that it has categories."""
    arrow = require("pyarrow", "reading tables")
    column = source.column(name)
    kind, types = column.type, arrow.types
    is_chosen = types.is_dictionary(kind)
    if is_chosen:
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_temporal(kind):
        raise _dates(source, name)
    if _is_text(kind):
        return (column if is_chosen else _read_text(source, name, column)), is_chosen
    if types.is_decimal(kind):
        column = column.cast(arrow.float64())
    elif types.is_binary(kind) or types.is_large_binary(kind):
        raise DatasetError(f"{source.name}: column {name!r} holds bytes that are not text in UTF-8; save it as UTF-8")
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise DatasetError(f"{source.name}: column {name!r} holds {kind}, must hold numbers or text; or drop it")
    return column, is_chosen


def _read_text(source: Source, name: str, column: Any) -> Any:
    """Return a column of text as numbers if that is what it is; otherwise trimmed, with missing cells as nulls."""
    arrow, compute = require("pyarrow", "reading tables"), require("pyarrow.compute", "reading tables")
    text = compute.utf8_trim_whitespace(column.cast(arrow.large_string()))
    absent = compute.is_in(text, value_set=arrow.array(MISSING, arrow.large_string()))
    text = compute.if_else(absent, arrow.scalar(None, arrow.large_string()), text)
    present = len(text) - text.null_count
    if not present:
        return arrow.nulls(len(text))
    if source.decimal_comma and _share(text, _DECIMAL_COMMA) > 0:
        text = compute.replace_substring_regex(text, r"^([+-]?[0-9]+),([0-9]+)$", r"\1.\2")
    numbers = _share(text, _NUMBER)
    if numbers == present:
        return compute.replace_substring_regex(text, r"^\+", "").cast(arrow.float64())
    if _share(text, _DATE) == present:
        raise _dates(source, name)
    if 2 * numbers >= present:
        is_number = compute.match_substring_regex(text, _NUMBER)
        row = int(np.argmin(compute.fill_null(is_number, True).to_numpy()))
        raise DatasetError(
            f"{source.name}, {source.place(row)}: column {name!r} = {shown(text[row].as_py())}, must be a number, as "
            "most of this column; or drop the column"
        )
    return text


def _share(text: Any, pattern: str) -> int:
    """Return how many cells match."""
    compute = require("pyarrow.compute", "reading tables")
    return int(compute.sum(compute.match_substring_regex(text, pattern)).as_py() or 0)


def _coded(column: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the number of each cell among the different values, sorted, -1 where it is missing; and their texts."""
    arrow, compute = require("pyarrow", "reading tables"), require("pyarrow.compute", "reading tables")
    values = sorted(value for value in compute.unique(column).to_pylist() if value is not None and value == value)
    found = compute.index_in(column, value_set=arrow.array(values, column.type))
    codes = compute.fill_null(found, -1).to_numpy().astype(np.int64)
    return codes, tuple(str(value) for value in values)


def _numbers(column: Any) -> NDArray[np.float64]:
    """Return float64, NaN for what is missing."""
    arrow = require("pyarrow", "reading tables")
    integer = column.cast(arrow.uint8()) if arrow.types.is_boolean(column.type) else column
    values = integer.cast(arrow.float64(), safe=False).to_numpy()
    return np.array(values, dtype=np.float64)  # a copy: Arrow's is read-only


def _is_text(kind: Any) -> bool:
    types = require("pyarrow", "reading tables").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _dates(source: Source, name: str) -> DatasetError:
    return DatasetError(
        f"{source.name}: column {name!r} holds dates or times, which have no one meaning as numbers: replace it by "
        "numbers (days since ..., month, hour), or drop it (--drop, drop=...)"
    )


def _hint_of_numbering(name: str, values: NDArray[np.float64]) -> str:
    """Return a hint if a column is 0, 1, 2, ... or 1, 2, 3, ..., in any order; "" if it is not."""
    first, last = values.min(), values.max()
    if len(values) < _NUMBERED or first not in (0.0, 1.0) or last != first + len(values) - 1.0:
        return ""
    if not np.array_equal(np.sort(values), np.arange(first, last + 1.0)):
        return ""
    return f"numbers, as they are; if they only number the rows, --drop {shlex.quote(name)} leaves them out"


def _about(classes: Sequence[str]) -> str:
    words = [f"{shown(text)} = {code}" for code, text in enumerate(classes)]
    return f", {len(classes)} classes: {listed(words)}" if classes else ""


def _about_rows(left_out: int) -> str:
    return f"; {left_out} row{'s' * (left_out > 1)} without it left out" if left_out else ""


def shown(text: str) -> str:
    """Return a cell as a message shows it, shortened."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
