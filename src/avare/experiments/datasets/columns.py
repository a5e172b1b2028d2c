"""From the columns of a table to numbers, and a sentence about what was done to each.

Numbers stay as they are; true and false become 1 and 0. A column of text becomes categories: one column of 0 and 1 per
text, or a single one for two texts. A missing number becomes the mean of its column, with a further column of 0 and 1
that says where. Dates and times cannot be used as numbers directly, and are refused.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.datasets.dataset import NUMBER, DatasetError, shown

_MOST_CATEGORIES = 50  # different texts of a column, unless it is chosen by name
MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""The texts that pandas reads as missing values."""
TRUTH = ("false", "true")
"""The classes of labels that are true or false."""
_DATE = r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([ T].*)?"
_NUMBER_AND_SIGNS = r"\W{0,2}[0-9][0-9., ]*\W{0,2}[A-Za-z]{0,3}"  # such as $12, 12%, 1,234 and 5 kg
_NOTHING = "left out: it has no values"
Features = list[tuple[str, NDArray[Any]]]


class Origin(NamedTuple):
    """Where rows come from: a name and the places of rows, for errors; and whether "1,5" is a number there."""

    name: str
    place: Callable[[int], str] = "row {}".format
    decimal_comma: bool = False

    def fault(self, words: str, row: int | None = None) -> DatasetError:
        """Return an error that names the place."""
        return DatasetError(f"{self.name}{'' if row is None else f', {self.place(int(row))}'}: {words}")


class Wanted(NamedTuple):
    """The columns that the user chose, the most bytes that categories may take, and the number of LIBSVM's columns."""

    target: str | None
    drop: Sequence[str]
    categories: Sequence[str]
    limit: float
    features: int | None = None


Examples = tuple[Any, NDArray[np.float64], Origin, dict[str, Any]]
"""X, labels, where they come from, and fields of `Data` that describe the columns."""


def convert(table: Any, origin: Origin, wanted: Wanted) -> Examples:
    """Return the rows of an Arrow table that have a label, as numbers. O(size)."""
    given = [str(name).strip() for name in table.column_names]
    names = [name or f"column {place + 1}" for place, name in enumerate(given)]
    target, drop, categories = _chosen(origin, names, wanted)
    labels, classes = _labels(origin, target, table.column(names.index(target)), target in categories)
    kept = np.flatnonzero(~np.isnan(labels))
    if not len(kept):
        raise origin.fault(f"column {target!r}, the target, has no values")
    rows = origin._replace(place=lambda row: origin.place(int(kept[row])))
    if len(kept) < len(labels):
        table = table.take(kept)
    features = Features()
    filled: list[int] = []
    said: list[tuple[str, str]] = []
    for name, title, column in zip(names, given, table.columns, strict=True):
        if name == target:
            continue
        if name in drop:
            found, note = Features(), "left out, as chosen"
        elif (not title or title.startswith("Unnamed:")) and np.array_equal(column, kept):
            found, note = Features(), "left out, it only numbers the rows"
        else:
            room = wanted.limit - 8.0 * len(kept) * (len(features) - len(said))
            found, note = _features(rows, name, column, name in categories, room)
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
        raise rows.fault(f"column {columns[place]!r} = {X[row, place]}, must be finite", row)
    about = {"columns": columns, "notes": notes, "classes": tuple(classes), "filled": tuple(filled)}
    return X, labels[kept], rows, about


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


def _labels(origin: Origin, name: str, column: Any, as_classes: bool) -> tuple[NDArray[np.float64], Sequence[str]]:
    """Return the labels, NaN where they are missing; and the texts of the classes, if they are text."""
    if not len(column):
        raise DatasetError(f"{origin.name} has no rows")
    cells, classes = _parsed(origin, name, column, as_classes)
    if classes is not None:
        return np.where(cells < 0, np.nan, cells), classes
    for row in np.flatnonzero(np.isinf(cells))[:1]:
        raise origin.fault(f"column {name!r} = {cells[row]}, must be finite", row)
    return cells, TRUTH if str(column.type) == "bool" else ()


def _features(origin: Origin, name: str, column: Any, chosen: bool, room: float) -> tuple[Features, str]:
    """Return the columns of numbers that a column becomes, and what was done; "" if nothing."""
    chosen = chosen or hasattr(column.type, "index_type")  # which columns of categories have
    cells, texts = _parsed(origin, name, column, chosen)
    if texts is not None:
        return _categories(origin, name, cells, texts, chosen, room)
    note = "true and false, as 1 and 0" if str(column.type) == "bool" else ""
    absent = np.isnan(cells)
    if not absent.any():
        return [(name, cells)], note
    present = cells[~absent]
    if not len(present):
        return [], _NOTHING
    further = f"{name} is missing"
    words = f"{int(absent.sum())} missing, filled with the mean; 1 in the new column '{further}'"
    cells[absent] = np.sum(present / len(present))  # the sum of large numbers would overflow
    return [(name, cells), (further, absent)], f"{note}; {words}" if note else words


def _categories(
    origin: Origin, name: str, codes: NDArray[Any], texts: Sequence[str], chosen: bool, room: float
) -> tuple[Features, str]:
    """Return one column of 0 and 1 per category, a single one for two; none if there are many, and not by choice."""
    if not texts:
        return [], _NOTHING
    hint = f"; numbers must have no other signs: {shown(texts[0])}"
    hint = hint if all(re.fullmatch(_NUMBER_AND_SIGNS, text) for text in texts) else ""
    if len(texts) > min(_MOST_CATEGORIES, max(2, len(codes) // 2)) and not chosen:
        return [], f"text, {len(texts)} different in {len(codes)} rows: left out (--categories keeps it){hint}"
    if (codes < 0).any():
        codes, texts = np.where(codes < 0, len(texts), codes), (*texts, "(missing)")
    if len(texts) * len(codes) * 8.0 > room:
        words = f"has {len(texts)} categories in {len(codes)} rows, which take more than {max(room, 0.0):g} bytes"
        raise origin.fault(f"column {name!r} {words}: drop it, or limit=... (--limit) allows more")
    if len(texts) <= 2:
        words = f"text, 1 for {shown(texts[-1])}, 0 for {shown(texts[0])}"
        return [(f"{name} = {texts[-1]}", codes == len(texts) - 1)], words
    words = f"{len(texts)} categories: {listed([shown(text) for text in texts])}{'' if chosen else hint}"
    return [(f"{name} = {text}", codes == k) for k, text in enumerate(texts)], words


def _parsed(origin: Origin, name: str, column: Any, chosen: bool) -> tuple[NDArray[Any], Sequence[str] | None]:
    """Return numbers, NaN where they are missing, and None; or codes, -1 where they are missing, and their texts."""
    types = require("pyarrow.types", "reading tables")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_temporal(kind):
        raise _date(origin, name)
    if "string" in str(kind):
        return _parsed_text(origin, name, column, chosen)
    if not (types.is_integer(kind) or types.is_floating(kind) or str(kind).startswith(("bool", "decimal", "null"))):
        raise origin.fault(f"column {name!r} holds {kind} values, must hold numbers or text in UTF-8; or drop it")
    numbers = np.array(column.cast(kind).to_numpy(), dtype=np.float64)
    if not chosen:
        return numbers, None
    values, codes = np.unique(numbers, return_inverse=True)
    codes[np.isnan(numbers)] = -1
    return codes, [f"{value:.17g}" for value in values if value == value]


def _parsed_text(origin: Origin, name: str, column: Any, chosen: bool) -> tuple[NDArray[Any], Sequence[str] | None]:
    """Parse a column of text: return numbers if all its cells are numbers, otherwise codes and texts."""
    encoded = column.dictionary_encode().combine_chunks()
    texts = [(text or "").strip() for text in encoded.dictionary.to_pylist()]
    known = sorted(set(texts).difference(MISSING))
    places = {text: place for place, text in enumerate(known)}
    cells = encoded.indices.cast("int64").fill_null(-1).to_numpy()
    codes = np.array([*(places.get(text, -1) for text in texts), -1])[cells]
    if chosen:
        return codes, known
    spelled = [re.sub("^([^,]*),([^,]*)$", r"\1.\2", text) for text in known] if origin.decimal_comma else known
    numbers = np.array([*(float(text) if re.fullmatch(NUMBER, text) else np.nan for text in spelled), np.nan])
    wrong = np.isnan(numbers[codes]) & (codes >= 0)
    if not wrong.any():
        return numbers[codes], None
    if all(re.fullmatch(_DATE, text) for text in known):
        raise _date(origin, name)
    if 2 * wrong.sum() <= (codes >= 0).sum():
        row = int(np.argmax(wrong))
        words = f"column {name!r} = {shown(known[codes[row]])} is not a number, but most cells of this column are"
        raise origin.fault(f"{words}; fix it, or drop the column", row)
    return codes, known


def _date(origin: Origin, name: str) -> DatasetError:
    words = "cannot be used as numbers directly: replace it by numbers (days since ..., month, hour), or drop it"
    return origin.fault(f"column {name!r} holds dates or times, which {words} (--drop, drop=...)")
