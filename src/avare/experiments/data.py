"""The data of a run, known by a hash of what is in it."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from avare import datasets
from avare.datasets import DatasetError

Loss = Literal["softmax", "logistic", "least_squares", "huber", "smoothed_hinge"]

LOSSES: tuple[Loss, ...] = get_args(Loss)
REGRESSION = ("least_squares", "huber")
_TWO_CLASSES = ("logistic", "smoothed_hinge")
_MOST_CLASSES = 100  # up to which whole numbers are taken for classes, where nobody says what they are


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Rows and targets, and what they are known by.

    Parameters
    ----------
    name
        Of the set, or of the file.
    X, y
        Rows and targets.
    digest
        A hash of both.
    """

    name: str
    X: Any
    y: NDArray[Any]
    digest: str

    def __len__(self) -> int:
        return len(self.y)


def obtain(
    source: str,
    *,
    loss: Loss | None = None,
    target: str | None = None,
    folder: str | None = None,
    progress: bool = False,
) -> tuple[Data, Loss]:
    """The data of a named set, or of a file, and the loss that fits it.

    Parameters
    ----------
    source
        One of `avare.datasets.names`, or the path of a file.
    loss
        None: softmax for classes (logistic for two), least squares for other targets; whole numbers in a file are
        classes if there are at most 100. A loss for classes wants whole numbers, however many.
    target
        The column of the targets, for a CSV or Parquet file.
    folder
        Where the files of a named set are looked for first.
    progress
        Whether to show how a download gets on.

    Examples
    --------
    >>> data, loss = obtain("synthetic")
    >>> data.name, data.X.shape, loss
    ('synthetic', (100, 10), 'logistic')
    """
    if loss is not None and loss not in LOSSES:
        raise ValueError(f"loss = {loss!r}: must be one of {', '.join(LOSSES)}")
    if source in datasets.names():
        if target is not None:
            raise ValueError(f"target = {target!r}: {source} is a named set, which has its own")
        found = datasets.load(source, folder=folder, progress=progress)
        name, X, y = found.name, found.X, found.y
    else:
        if not Path(source).expanduser().is_file() and not {".", os.sep} & set(source):
            raise DatasetError(f"{source}: neither a file nor one of {', '.join(datasets.names())}")
        certain = loss is not None and loss not in REGRESSION  # that the targets are classes
        found = datasets.read(source, target=target, task="classification" if certain else "regression")
        name, X, y = found.name, found.X, found.y
        if name in datasets.names():  # so that nobody takes it for that
            name = Path(source).name
        if loss is None and _are_classes(y):
            y = y.astype(np.int64)
    return Data(name, X, y, digest(X, y)), _fitting(source, y, loss)


def digest(X: Any, y: NDArray[Any]) -> str:
    """A hash of rows and targets: their numbers, kind and shape.

    >>> digest(np.eye(2), np.array([0, 1]))[:16]
    'ca23a074dc3bddcd'
    """
    total = hashlib.sha256()
    parts = (X.data, X.indices, X.indptr) if hasattr(X, "indptr") else (X,)
    for array in (np.asarray(X.shape), *parts, y):
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).view(np.uint8).data)
    return total.hexdigest()


def _are_classes(y: NDArray[np.float64]) -> bool:
    return bool((y == np.round(y)).all()) and len(np.unique(y)) <= _MOST_CLASSES and float(np.abs(y).max()) < 2.0**53


def _fitting(source: str, y: NDArray[Any], loss: Loss | None) -> Loss:
    """The loss, checked against the targets."""
    classes = len(np.unique(y)) if y.dtype.kind in "iu" else None
    if classes == 1 and loss not in REGRESSION:
        raise DatasetError(f"{source} has one class only, {y[0]}: classification needs two or more")
    if loss is None:
        return "least_squares" if classes is None else "logistic" if classes == 2 else "softmax"
    if classes is not None and classes > 2 and loss in _TWO_CLASSES:
        raise ValueError(f"loss = {loss!r}: {source} has {classes} classes; take softmax")
    return loss
