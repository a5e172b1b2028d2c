"""The data of a run: loaded with the loss that fits them, and prepared.

Preparation puts columns on one scale, and adds an intercept.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import problems
from avare._optional import require
from avare.experiments import datasets
from avare.experiments.datasets import Data as Data
from avare.experiments.datasets import DatasetError
from avare.experiments.datasets.files import LIMIT
from avare.experiments.datasets.reading import Targets
from avare.experiments.document import printable
from avare.plotting.charts import rank

Place = str | Path | None
_DEFAULTS = {"numbers": "least_squares", "two classes": "logistic", "classes": "softmax"}
_LARGEST = 1e50  # of X and y: products of four such numbers, and sums of them, do not overflow
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


def obtain(
    source: Any,
    *,
    loss: str | None = None,
    target: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    limit: float = LIMIT,
    folder: Place = None,
    progress: bool = False,
) -> tuple[Data, str]:
    """Load a named dataset, a file or a data frame, and choose the loss that fits it.

    Parameters
    ----------
    source
        One of `avare.experiments.datasets.names`, the path of a file, or a data frame.
    loss
        The name of a loss. None: softmax for classes (logistic for two), least squares for other targets. Text, true
        and false, and at most 100 different whole numbers are classes. A loss for classes needs text or whole numbers,
        and takes any number of them.
    target, drop, categories, limit
        The column of the targets, columns to leave out, columns of categories, and the most bytes that a compressed
        file may unpack to: see `avare.experiments.datasets.read`.
    folder, progress
        A folder to look into first for the files of a named dataset, and whether a download shows its progress.

    Examples
    --------
    >>> data, loss = obtain("synthetic")
    >>> data.name, data.X.shape, loss
    ('synthetic', (100, 10), 'logistic')
    """
    if loss is not None:
        validation.choice("loss", loss, problems.names())
    if isinstance(source, str) and source in datasets.names():
        for option, value in (("target", target), ("drop", drop), ("categories", categories)):
            if value:
                raise ValueError(f"{option} = {value!r}: {source} is a named dataset, which has its own columns")
        found = datasets.load(source, folder=folder, progress=progress)
    else:
        if isinstance(source, str) and not ({".", os.sep} & set(source) or os.path.lexists(source)):
            raise DatasetError(f"{source}: neither a file nor one of {', '.join(datasets.names())}")
        kind = None if loss is None else problems.get(loss).target
        task: Targets = "auto" if kind is None else "regression" if kind == "numbers" else "classification"
        found = datasets.read(source, target=target, task=task, drop=drop, categories=categories, limit=limit)
        is_taken = found.name in datasets.names()  # it must not be mistaken for that dataset
        found = replace(found, name=printable(Path(found.source).name if is_taken else found.name))
    return found, _fitting(source if isinstance(source, str) else found.name, found.y, loss)


def _fitting(source: str, y: NDArray[Any], loss: str | None) -> str:
    """Return the loss; raise an error if the targets do not fit it."""
    classes = len(np.unique(y)) if y.dtype.kind in "iu" else None
    kind = "numbers" if classes is None else "two classes" if classes <= 2 else "classes"
    chosen = _DEFAULTS[kind] if loss is None else loss
    if kind == "classes" and problems.get(chosen).target == "two classes":
        raise ValueError(f"loss = {loss!r}: {source} has {classes} classes; use {_DEFAULTS[kind]}")
    return chosen


# --- before a run ---------------------------------------------------------------------------


def prepared(data: Data, *, raw: bool = False, test: float = 0.0) -> Data:
    """Return the data as runs take them.

    Parameters
    ----------
    data
        As `obtain` returns them.
    raw
        Whether to keep the columns as they are, without an intercept. By default each column gets mean 0 and standard
        deviation 1 over the rows that are trained on; a column of a sparse matrix is only divided, so that zeros stay
        zeros.
    test
        The share of rows to hold out, drawn with a fixed seed. Of each class at least two rows, or all it has, are
        trained on. Missing values of a file are filled with the mean of the rows that are trained on.

    Examples
    --------
    >>> data, loss = obtain("synthetic")
    >>> found = prepared(data, test=0.2)
    >>> len(found), found.held_out, found.bias, float(found.X[:80].std().round(3))
    (80, 20, True, 1.0)
    """
    test = validation.number("test", test, at_least=0.0, at_most=0.99)
    for name, values in (("X", data.X.data if hasattr(data.X, "nnz") else data.X), ("y", data.y)):
        checked = values if values.dtype == np.float64 else np.empty(0)  # other types have no such numbers
        rule = f"must be within ±{_LARGEST:g}; scale the column"
        validation.refuse_unless(np.abs(checked) <= _LARGEST, checked, name, rule)
    if test:
        data = _split(data, test)
    if raw:
        return data
    scaler = require("sklearn.preprocessing", "standardising columns").StandardScaler
    X = scaler(with_mean=not hasattr(data.X, "nnz")).fit(data.X[: len(data)]).transform(data.X)
    return replace(data, X=X, bias=True)


def _split(data: Data, test: float) -> Data:
    """Hold out a share of the rows, which come last."""
    size = max(1, round((1.0 - test) * len(data.y)))
    kept = choose_rows(data.y, _fitting(data.name, data.y, None), size, np.random.default_rng(0))
    others = np.setdiff1d(np.arange(len(data.y)), kept)
    if not len(others):
        raise ValueError(f"test = {test}: no row of {len(data.y)} is left for the test")
    order = np.concatenate([kept, others])
    X, y = data.X[order], data.y[order]  # copies
    for column in data.filled:
        absent = X[:, column + 1] != 0.0
        present = X[: len(kept), column][~absent[: len(kept)]]
        X[absent, column] = np.sum(present / max(1, len(present)))
    return replace(data, X=X, y=y, held_out=len(others))


def choose_rows(y: NDArray[Any], loss: str, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw some rows, sorted; of classes more, so that each class has two, or all it has. O(n log n)."""
    order = generator.permutation(len(y))
    if problems.get(loss).target == "numbers":
        return np.sort(order[:size])
    first = np.unique(y[order], return_index=True)[1]  # where each class first occurs
    rest = np.delete(order, first)
    second = np.unique(y[rest], return_index=True)[1]
    return np.unique(np.concatenate([order[:size], order[first], rest[second]]))
