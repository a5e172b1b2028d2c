"""The data of a run, identified by a hash of its contents, and the loss that fits them."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import datasets, problems
from avare.datasets import DatasetError
from avare.plotting import rank

_DEFAULTS = {"numbers": "least_squares", "two classes": "logistic", "classes": "softmax"}
_MOST_CLASSES = 100  # up to this many different whole numbers are classes by default
_TITLES = {"mnist": "MNIST", "ijcnn1": "IJCNN1", "cifar10": "CIFAR10", "synthetic": "Synthetic", "digits": "Digits"}


def display_name(dataset: str) -> str:
    """Return how tables and figures write a dataset.

    >>> display_name("mnist"), display_name("mine")
    ('MNIST', 'mine')
    """
    return _TITLES.get(dataset, dataset)


def listing_order(dataset: str) -> tuple[int, str]:
    """Return the sort key by which tables and figures list datasets: known ones first."""
    return rank(dataset, _TITLES)


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Rows and targets."""

    name: str  # of the dataset, or of the file
    X: Any
    y: NDArray[Any]
    digest: str  # a hash of both
    held_out: int = 0  # how many of the rows, the last ones, are for a test only
    bias: bool = False  # whether a model of them has an intercept

    def __len__(self) -> int:
        return len(self.y) - self.held_out


def obtain(
    source: str,
    *,
    loss: str | None = None,
    target: str | None = None,
    folder: str | None = None,
    progress: bool = False,
) -> tuple[Data, str]:
    """Load a named dataset or a file, and choose the loss that fits it.

    Parameters
    ----------
    source
        One of `avare.datasets.names`, or the path of a file.
    loss
        The name of a loss. None: softmax for classes (logistic for two), least squares for other targets; whole
        numbers in a file are classes if there are at most 100 different ones. A loss for classes needs whole numbers,
        and takes any number of them.
    target
        The column of the targets, in a CSV or Parquet file.
    folder, progress
        A folder to look into first for the files of a named dataset, and whether a download shows its progress.

    Examples
    --------
    >>> data, loss = obtain("synthetic")
    >>> data.name, data.X.shape, loss
    ('synthetic', (100, 10), 'logistic')
    """
    if loss is not None and loss not in problems.names():
        raise ValueError(f"loss = {loss!r}: must be one of {', '.join(problems.names())}")
    if source in datasets.names():
        if target is not None:
            raise ValueError(f"target = {target!r}: {source} is a named dataset, which has its own targets")
        found = datasets.load(source, folder=folder, progress=progress)
        name, X, y = found.name, found.X, found.y
    else:
        if not Path(source).expanduser().is_file() and not {".", os.sep} & set(source):
            raise DatasetError(f"{source}: neither a file nor one of {', '.join(datasets.names())}")
        classes = loss is not None and problems.get(loss).target != "numbers"
        found = datasets.read(source, target=target, task="classification" if classes else "regression")
        name, X, y = found.name, found.X, found.y
        if name in datasets.names():  # so that it is not mistaken for that dataset
            name = Path(source).name
        if loss is None and _are_classes(y):
            y = y.astype(np.int64)
    return Data(name, X, y, digest(X, y)), _fitting(source, y, loss)


def digest(X: Any, y: NDArray[Any]) -> str:
    """Return a hash of rows and targets: their values, types and shapes. O(size).

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


def _fitting(source: str, y: NDArray[Any], loss: str | None) -> str:
    """Return the loss; raise an error if the targets do not fit it."""
    classes = len(np.unique(y)) if y.dtype.kind in "iu" else None
    kind = "numbers" if classes is None else "two classes" if classes <= 2 else "classes"
    chosen = _DEFAULTS[kind] if loss is None else loss
    if classes == 1 and problems.get(chosen).target != "numbers":
        raise DatasetError(f"{source} has one class only, {y[0]}: classification needs two or more")
    if kind == "classes" and problems.get(chosen).target == "two classes":
        raise ValueError(f"loss = {loss!r}: {source} has {classes} classes; use {_DEFAULTS[kind]}")
    return chosen
