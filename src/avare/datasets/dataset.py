"""What is loaded, and the error where it cannot be."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Rows and their labels.

    Parameters
    ----------
    name
        Of the set, or of the file without its endings.
    X
        One row an example: an array, or a SciPy CSR matrix.
    y
        One label an example: int64 for classes, float64 for regression.
    description
        What it is, in a sentence.
    source
        Where it comes from: an address, a file, or how it was made.
    """

    name: str
    X: Any
    y: NDArray[Any]
    description: str
    source: str

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kind = f"{type(self.X).__name__} of {self.X.dtype}"
        return f"Dataset(name={self.name!r}, X={self.X.shape} {kind}, y={self.y.dtype}, source={self.source!r})"


class DatasetError(ValueError):
    """A file that is missing, damaged, or not what it should be; the message names it."""


class DamagedError(DatasetError):
    """A file that was read, and whose checksum or compression is wrong."""
