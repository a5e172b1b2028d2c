"""From the columns of a data frame to numbers, and a sentence about what was done to each.

Numbers stay as they are, true and false become 1 and 0. "1,234" is 1234, unless commas are decimal points in the file;
"12%" is 12 if all cells of the column have the sign. A column of text becomes categories: one column of 0 and 1 per
text, or a single one for two texts. Missing numbers become the mean of their column, with a further column of 0 and 1
that says where. Dates cannot be used as numbers directly, and are refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.datasets.dataset import NUMBER, DatasetError, shown

_MOST_CATEGORIES = 50  # different texts of a column, unless it is chosen by name
MISSING = ("", "NA", "N/A", "NaN", "nan", "n/a", "na", "NULL", "Null", "null", "None", "none", "?", ".", "-", "#N/A")
"""Cells of text that are missing values."""
TRUTH = ("false", "true")
"""The classes of labels that are true or false."""
_DATE = r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([ T].*)?"
_THOUSANDS = r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?"
_TEXTS = ("string", "categorical")  # as pandas calls columns
_NOTHING = "left out: it has no values"
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "empty")
_READ_AS = {"boolean": "true and false, as 1 and 0", "comma": "numbers, 1,234 as 1234", "percent": "numbers, 12% as 12"}
Features = list[tuple[str, NDArray[Any]]]


class Origin(NamedTuple):
    """Where rows come from: a name and the places of rows, for errors; and whether "1,5" is a number there."""

    name: str
    place: Callable[[int], str]
    decimal_comma: bool = False

    def fault(self, words: str, row: int | None = None) -> DatasetError:
        """Return an error that names the place."""
        return DatasetError(f"{self.name}{'' if row is None else f', {self.place(int(row))}'}: {words}")


class Wanted(NamedTuple):
    """What the user wants of the columns, the most bytes that columns of categories may take, and how many columns."""

    target: str | None
    drop: Sequence[str]
    categories: Sequence[str]
    limit: float
    features: int | None = None


Examples = tuple[Any, NDArray[np.float64], Origin, dict[str, Any]]
"""X, labels, where they come from, and fields of `Dataset` that describe the columns."""


def convert(frame: Any, origin: Origin, wanted: Wanted) -> Examples:
    """Return the rows of a data frame that have a label, as numbers. O(size)."""
    given = [str(name).strip() for name in frame.columns]
    names = [name or f"column {place + 1}" for place, name in enumerate(given)]
    target, drop, categories = _chosen(origin, names, wanted)
    labels, classes = _labels(origin, target, frame.iloc[:, names.index(target)], target in categories)
    kept = np.flatnonzero(~np.isnan(labels))
    if not len(kept):
        raise origin.fault(f"column {target!r}, the target, has no values")
    features, filled, said = Features(), [], []
    for name, title, (_, column) in zip(names, given, frame.items(), strict=True):
        if name == target:
            continue
        if name in drop:
            found, note = Features(), "left out, as chosen"
        elif (not title or title.startswith("Unnamed:")) and np.array_equal(column, np.arange(len(column))):
            found, note = Features(), "left out, it only numbers the rows"
        else:
            found, note = _features(origin, name, column, kept, name in categories, wanted.limit)
        if len(found) == 2 and found[0][0] == name:  # its second column says where a value was missing
            filled.append(len(features))
        features += found
        said.append((name, note))
    notes = _notes(said, target, classes, len(labels) - len(kept))
    if not features:
        raise DatasetError("; ".join([f"{origin.name} has no column besides the target {target!r}", *notes[:-1]]))
    columns = tuple(name for name, _ in features)
    X = np.stack([cells for _, cells in features], axis=1, dtype=np.float64)
    for row, place in np.argwhere(~np.isfinite(X))[:1]:
        raise origin.fault(f"column {columns[place]!r} = {X[row, place]}, must be finite", kept[row])
    about = {"columns": columns, "notes": notes, "classes": classes, "filled": tuple(filled)}
    return X, labels[kept], origin._replace(place=lambda row: origin.place(int(kept[row]))), about


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return names as a list for people, not longer than a line or two."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def _notes(said: Sequence[tuple[str, str]], target: str, classes: Sequence[str], left_out: int) -> tuple[str, ...]:
    plain = [name for name, note in said if not note]
    notes = [f"{listed(plain)}: numbers, as they are"] if plain else []
    words = f", {len(classes)} classes: " if classes else ""
    words += listed([f"{shown(text)} = {code}" for code, text in enumerate(classes)])
    rows = f"; {left_out} row{'s' * (left_out > 1)} without it left out" if left_out else ""
    return (*notes, *(f"{name}: {note}" for name, note in said if note), f"{target}: the target{words}{rows}")


def _chosen(origin: Origin, names: Sequence[str], wanted: Wanted) -> tuple[str, list[str], list[str]]:
    """Return the target, the columns to drop and those of categories; raise an error for a name that is no column."""
    known = set(names)
    if len(known) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DatasetError(f"{origin.name} has two columns {twice!r}: names must differ")
    if wanted.target is None:
        raise origin.fault(f"which column is the target? Name it by --target (in Python, target=...): {listed(names)}")
    drop, categories = (
        [name for text in texts for name in ([text] if text in known else (part.strip() for part in text.split(",")))]
        for texts in (wanted.drop, wanted.categories)
    )
    for option, chosen in (("target", [wanted.target]), ("drop", drop), ("categories", categories)):
        for name in chosen:
            if name not in known or (option == "drop" and name == wanted.target):
                advice = "is the target" if name in known else f"must be one of its columns: {listed(names)}"
                raise origin.fault(f"{option} = {name!r}, {advice}")
    return wanted.target, drop, categories


# --- one column -----------------------------------------------------------------------------


def _labels(origin: Origin, name: str, column: Any, as_classes: bool) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the labels, NaN where they are missing; and the texts of the classes, if they are text."""
    if not len(column):
        raise DatasetError(f"{origin.name} has no rows")
    kind, cells = _parsed(origin, name, column)
    if kind in _TEXTS or as_classes:
        codes, classes = _coded(cells)
        return np.where(codes < 0, np.nan, codes), classes
    labels = _numbers(cells)
    for row in np.flatnonzero(np.isinf(labels))[:1]:
        raise origin.fault(f"column {name!r} = {labels[row]}, must be finite", row)
    return labels, TRUTH if kind == "boolean" else ()


def _features(origin: Origin, name: str, column: Any, kept: Any, chosen: bool, limit: float) -> tuple[Features, str]:
    """Return the columns of numbers that a column becomes, and what was done; "" if nothing."""
    kind, cells = _parsed(origin, name, column)
    if kind in _TEXTS or chosen:
        return _categories(origin, name, cells.iloc[kept], chosen or kind == "categorical", limit)
    numbers = _numbers(cells)[kept]
    note = _READ_AS.get(kind, "")
    absent = np.isnan(numbers)
    if not absent.any():
        return [(name, numbers)], note
    present = numbers[~absent]
    if not len(present):
        return [], _NOTHING
    numbers[absent] = np.sum(present / len(present))  # the sum of large numbers would overflow
    further = f"{name} is missing"
    words = f"{int(absent.sum())} missing, filled with the mean; 1 in the new column '{further}'"
    return [(name, numbers), (further, absent)], f"{note}; {words}" if note else words


def _categories(origin: Origin, name: str, column: Any, chosen: bool, limit: float) -> tuple[Features, str]:
    """Return one column of 0 and 1 per category, a single one for two; none if there are many, and not by choice."""
    codes, texts = _coded(column)
    if not texts:
        return [], _NOTHING
    if len(texts) > min(_MOST_CATEGORIES, max(2, len(codes) // 2)) and not chosen:
        return [], f"text, {len(texts)} different in {len(codes)} rows: left out (--categories keeps it)"
    if (codes < 0).any():
        codes, texts = np.where(codes < 0, len(texts), codes), (*texts, "(missing)")
    if len(texts) * len(codes) * 8.0 > limit:
        words = f"has {len(texts)} categories in {len(codes)} rows, which take more than {limit:g} bytes"
        raise origin.fault(f"column {name!r} {words}: drop it, or limit=... (--limit) allows more")
    if len(texts) <= 2:
        words = f"text, 1 for {shown(texts[-1])}, 0 for {shown(texts[0])}"
        return [(f"{name} = {texts[-1]}", codes == len(texts) - 1)], words
    words = f"{len(texts)} categories: {listed([shown(text) for text in texts])}"
    return [(f"{name} = {text}", codes == k) for k, text in enumerate(texts)], words


def _parsed(origin: Origin, name: str, column: Any) -> tuple[str, Any]:
    """Return what a column holds, as pandas calls it, and its cells, with missing ones as such."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":  # to look at each cell takes long
        return "floating", column
    kind = require("pandas", "reading tables").api.types.infer_dtype(column, skipna=True)
    if kind == "string":
        kind, column = _parsed_text(origin, name, column)
    if kind in (*_NUMBERS, *_READ_AS, *_TEXTS):
        return kind, column
    if kind.startswith(("date", "time", "period")):
        words = "cannot be used as numbers directly: replace it by numbers (days since ..., month, hour), or drop it"
        raise origin.fault(f"column {name!r} holds dates or times, which {words} (--drop, drop=...)")
    raise origin.fault(f"column {name!r} holds {kind} values, must hold numbers or text in UTF-8; or drop it")


def _parsed_text(origin: Origin, name: str, column: Any) -> tuple[str, Any]:
    """Return a column of text as numbers if that is what it is; otherwise trimmed, with missing cells as such."""
    text = column.astype("string[pyarrow]").str.strip()
    text, kind = text.mask(text.isin(MISSING)), "floating"
    if origin.decimal_comma:
        text = text.str.replace(r"^([+-]?[0-9]+),([0-9]+)$", r"\1.\2", regex=True)
    else:
        grouped = text.str.fullmatch(_THOUSANDS).fillna(False)
        text, kind = text.mask(grouped, text.str.replace(",", "")), "comma" if grouped.any() else kind
    present = int(text.notna().sum())
    if 0 < text.str.endswith("%").sum() == present:
        text, kind = text.str.rstrip("% "), "percent"
    is_number = text.str.fullmatch(NUMBER).fillna(True).to_numpy(bool)
    if is_number.all():
        return kind, text.fillna("nan").astype(object).astype(np.float64)
    if text.str.fullmatch(_DATE).sum() == present:
        return "date", text
    if 2 * int((~is_number).sum()) <= present:
        row = int(np.argmin(is_number))
        raise origin.fault(f"column {name!r} = {shown(text.iloc[row])}, must be a number, as most are; or drop it", row)
    return "string", text


def _numbers(column: Any) -> NDArray[np.float64]:
    """Return float64, NaN for what is missing."""
    return np.array(column.to_numpy(np.float64, na_value=np.nan))


def _coded(column: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the number of each cell among the different values, sorted, -1 where it is missing; and their texts."""
    codes, values = require("pandas", "reading tables").factorize(column.astype(object), sort=True)
    whole = (int(value) if isinstance(value, float) and value.is_integer() else value for value in values)
    return codes, tuple(map(str, whole))
