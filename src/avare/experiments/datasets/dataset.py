"""A loaded dataset, and the errors of loading."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""A number as text."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Examples and their labels.

    Parameters
    ----------
    name
        Name of the dataset, or of the file without its endings.
    X
        One row per example: an array, or a SciPy CSR matrix.
    y
        One label per example: int64 for classes, float64 for regression.
    description
        One sentence about the data.
    source
        Where it comes from: an address, a file, or how it was generated.
    columns
        Names of the columns of X; () if they have none.
    notes
        What was done to the columns of a file or a data frame, one sentence each.
    classes
        The texts of the labels, in the order of the numbers in y; () if they were numbers.
    filled
        Places of the columns of X whose missing values were filled. The next column of each says where.

    Examples
    --------
    >>> import numpy as np
    >>> data = Dataset("mine", np.eye(3), np.array([0, 1, 1]), "Three rows.", "made by hand")
    >>> len(data), data.X.shape
    (3, (3, 3))
    """

    name: str
    X: Any
    y: NDArray[Any]
    description: str
    source: str
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    filled: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        X = f"{self.X.shape} {type(self.X).__name__} of {self.X.dtype}"
        return f"Dataset(name={self.name!r}, X={X}, y={self.y.dtype}, source={self.source!r})"


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
