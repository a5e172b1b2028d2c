"""Rows and targets, identified by a hash of their contents; and the errors of loading them."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""A number as text."""


@dataclass(frozen=True, eq=False)
class Data:
    """Rows and their targets: as they were loaded, or prepared for runs.

    Parameters
    ----------
    name
        Name of the dataset, or of the file without its endings.
    X
        One row per example: an array, or a SciPy CSR matrix.
    y
        One target per example: int64 for classes, float64 for regression.
    description
        One sentence about the data.
    source
        Where they come from: an address, a file, or how they were generated.
    columns
        Names of the columns of X; () if they have none.
    notes
        What was done to the columns of a file or a data frame, one sentence each.
    classes
        The texts of the labels, in the order of the numbers in y; () if they were numbers.
    filled
        Places of the columns of X whose missing values were filled. The next column of each says where.
    held_out
        How many of the rows, the last ones, are for a test only.
    bias
        Whether a model of them has an intercept.

    Examples
    --------
    >>> import numpy as np
    >>> data = Data("mine", np.eye(5), np.arange(5.0), held_out=2)
    >>> len(data), data.X.shape
    (3, (5, 5))
    """

    name: str
    X: Any
    y: NDArray[Any]
    description: str = ""
    source: str = ""
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    filled: tuple[int, ...] = ()
    held_out: int = 0
    bias: bool = False

    def __len__(self) -> int:
        return len(self.y) - self.held_out

    def __repr__(self) -> str:
        X = f"{self.X.shape} {type(self.X).__name__} of {self.X.dtype}"
        return f"Data(name={self.name!r}, X={X}, y={self.y.dtype}, source={self.source!r})"

    @cached_property
    def digest(self) -> str:
        """A hash of rows and targets: their values, types and shapes. O(size), once.

        >>> import numpy as np
        >>> Data("mine", np.eye(2), np.array([0, 1])).digest[:16]
        'ca23a074dc3bddcd'
        """
        total, X = hashlib.sha256(), self.X
        parts = (X.data, X.indices, X.indptr) if hasattr(X, "indptr") else (X,)
        for array in (np.asarray(X.shape), *parts, self.y):
            total.update(f"{array.dtype.str}{array.shape}".encode())
            total.update(np.ascontiguousarray(array).view(np.uint8).data)
        return total.hexdigest()


class DatasetError(ValueError):
    """A file is missing, damaged or has the wrong format; the message names it.

    >>> from avare.experiments import datasets
    >>> try:
    ...     datasets.read("nowhere.csv", target="y")
    ... except DatasetError as error:
    ...     print("nowhere.csv" in str(error))
    True
    """


def shown(text: str, longest: int = 40) -> str:
    """Return a cell or a word as an error message shows it, shortened.

    >>> shown("a long story", longest=6)
    "'a long...'"
    """
    return repr(text if len(text) <= longest else f"{text[:longest]}...")
