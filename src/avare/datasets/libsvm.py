"""Read LIBSVM's text format: a label, then index:value pairs with increasing indices, counted from 1.

A regular expression checks each line, so that NumPy can then read the numbers of many lines at once.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avare.datasets.dataset import DatasetError
from avare.datasets.files import LIMIT, lines

_NUMBER = rb"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_LINE = re.compile(rb"[ \t]*+(?:%b(?:[ \t]++[0-9]++:%b)*+)?[ \t\r]*+" % (_NUMBER, _NUMBER))
_LARGEST_INDEX = 2**31 - 1
_LONGEST = 40  # characters of a line that an error shows


class SparseTable(NamedTuple):
    """A sparse matrix as in SciPy's CSR, with the label and the line number of each row."""

    labels: NDArray[np.float64]
    line_numbers: NDArray[np.int64]
    starts: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float64]
    features: int

    def dense(self) -> NDArray[np.float64]:
        """Return the matrix as an array."""
        X = np.zeros((len(self.labels), self.features))
        X[np.repeat(np.arange(len(X)), np.diff(self.starts)), self.columns] = self.values
        return X


def read_libsvm(path: Path, features: int | None = None, limit: float = LIMIT) -> SparseTable:
    """Read all rows; by default the largest index is the number of columns. O(size), with little extra memory."""
    stores = tuple(bytearray() for _ in range(5))  # these grow in place
    for first, block in lines(path, limit):
        kept = [line.partition(b"#")[0] if b"#" in line else line for line in block]
        for offset, line in enumerate(kept):
            if not _LINE.fullmatch(line):
                raise DatasetError(f"{path}, line {first + offset}: {_fault(line)}")
        places = [offset for offset, line in enumerate(kept) if line and not line.isspace()]
        if places:
            pairs = np.array([kept[place].count(b":") for place in places], dtype=np.int64)
            numbers = np.fromstring(b" ".join(kept).replace(b":", b" "), sep=" ")
            parts = _split(path, first + np.array(places, dtype=np.int64), pairs, numbers, features or _LARGEST_INDEX)
            for store, part in zip(stores, parts, strict=True):
                store += part.tobytes()
    labels, line_numbers, counts, columns, values = (
        np.frombuffer(store, dtype=kind)
        for store, kind in zip(stores, (np.float64, np.int64, np.int64, np.int32, np.float64), strict=True)
    )
    if not len(labels):
        raise DatasetError(f"{path} is empty: it has no rows")
    starts = np.concatenate([[0], np.cumsum(counts)])
    width = features or (int(columns.max()) + 1 if len(columns) else 0)
    return SparseTable(labels, line_numbers, starts, columns, values, width)


def _split(
    path: Path, line_numbers: NDArray[np.int64], pairs: NDArray[np.int64], numbers: NDArray[np.float64], largest: int
) -> tuple[NDArray[Any], ...]:
    """Split the numbers of some rows into labels, line numbers, counts, columns (from 0) and values."""
    places = np.cumsum(1 + 2 * pairs) - (1 + 2 * pairs)  # of the labels
    infinite = np.flatnonzero(~np.isfinite(numbers))
    if len(infinite):
        row = np.searchsorted(places, infinite[0], side="right") - 1
        raise DatasetError(f"{path}, line {line_numbers[row]}: a number is beyond float64, above 1.8e308")
    others = np.ones(len(numbers), dtype=np.bool_)
    others[places] = False
    indices, values = numbers[others].reshape(-1, 2).T
    rows = np.repeat(np.arange(len(pairs)), pairs)
    before = np.concatenate([[0.0], indices[:-1]])[: len(indices)]
    before[np.concatenate([[True], rows[1:] != rows[:-1]])[: len(indices)]] = 0.0
    wrong = np.flatnonzero((indices <= before) | (indices > largest))
    if len(wrong):
        index, last = indices[wrong[0]], before[wrong[0]]
        reason = (
            "must be at least 1: LIBSVM counts from 1"
            if index < 1
            else f"must be at most {largest}"
            if index > largest
            else f"must be above the one before it, {last:.0f}"
        )
        raise DatasetError(f"{path}, line {line_numbers[rows[wrong[0]]]}: index {index:.0f} {reason}")
    return numbers[places], line_numbers, pairs, (indices - 1).astype(np.int32), values


def _fault(line: bytes) -> str:
    """The reason why a line is not in LIBSVM's format."""
    label, *pairs = line.split() or [b""]
    if not re.fullmatch(_NUMBER, label):
        if re.search(rb"[,;\t] *[^ ,;]", line) and b":" not in line:
            return f"{_shown(line)} looks like CSV, not like LIBSVM text; then its name must end in .csv"
        return f"label {_shown(label)} must be a finite number; a line is `label index:value index:value ...`"
    for pair in pairs:
        index, colon, value = pair.partition(b":")
        if not colon:
            return f"{_shown(pair)} must be index:value"
        if index == b"qid":
            return f"{_shown(pair)}: queries (qid) are not supported"
        if not re.fullmatch(rb"[0-9]+", index):
            return f"index {_shown(index)} must be an integer, at least 1"
        if not re.fullmatch(_NUMBER, value):
            return f"value {_shown(value)} of index {_shown(index)} must be a finite number"
    return "has control characters between its numbers"


def _shown(token: bytes) -> str:
    """A part of a line as an error shows it, shortened."""
    text = token.decode(errors="backslashreplace")
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
