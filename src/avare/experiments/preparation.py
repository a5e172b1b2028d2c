"""What is done to your data before a run: columns on one scale, an intercept, and rows held out for a test."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare import _validation as validation
from avare import problems
from avare.experiments.data import Data, digest


def prepared(data: Data, loss: str, *, raw: bool = False, test: float = 0.0) -> Data:
    """Return the data as runs take them.

    Parameters
    ----------
    data, loss
        As `obtain` returns them.
    raw
        Whether to keep the columns as they are, without an intercept. By default each column gets mean 0 and standard
        deviation 1 over the rows that are trained on; a column of a sparse matrix is only divided, by its root mean
        square, so that zeros stay zeros.
    test
        The share of rows to hold out, drawn with a fixed seed. At least two rows of each class, or all it has, are
        trained on. Missing values of a file are filled again, with the mean of the rows that are trained on.

    Examples
    --------
    >>> from avare.experiments.data import obtain
    >>> data, loss = obtain("synthetic")
    >>> found = prepared(data, loss, test=0.2)
    >>> len(found), found.held_out, found.bias, float(found.X[:80].std().round(3))
    (80, 20, True, 1.0)
    """
    test = validation.number("test", test, at_least=0.0)
    if test >= 1.0:
        raise ValueError(f"test = {test}: must be below 1")
    if raw and not test:
        return data
    X, y, held_out = data.X, data.y, 0
    if test:
        generator = np.random.default_rng(0)
        chosen = np.sort(generator.choice(len(y), size=max(1, round((1.0 - test) * len(y))), replace=False))
        if problems.get(loss).target != "numbers":
            chosen = with_all_classes(chosen, y, generator)
        others = np.setdiff1d(np.arange(len(y)), chosen)
        if not len(others):
            raise ValueError(f"test = {test}: no row of {len(y)} is left for the test")
        order, held_out = np.concatenate([chosen, others]), len(others)
        X, y = X[order], y[order]  # copies
        _fill(X, data.filled, len(chosen))
    if not raw:
        X = _standardised(X, len(y) - held_out)
    return replace(data, X=X, y=y, digest=digest(X, y), held_out=held_out, bias=not raw)


def _fill(X: Any, filled: Sequence[tuple[int, int]], rows: int) -> None:
    """Fill missing values with the mean of the first rows, in place; with 0 if all of those lack a value."""
    for column, says_where in filled:
        absent = X[:, says_where] != 0.0
        present = X[:rows, column][~absent[:rows]]
        X[absent, column] = np.sum(present / max(1, len(present)))


def _standardised(X: Any, rows: int) -> Any:
    """Return all rows with the columns on the scale of the first ones."""
    if hasattr(X, "tocsr"):
        squares = np.asarray(X[:rows].multiply(X[:rows]).mean(axis=0)).ravel()
        scaled = X.tocsr().astype(np.float64)
        scaled.data /= _positive(np.sqrt(squares))[scaled.indices]
        return scaled
    kind = X.dtype if X.dtype in (np.float32, np.float64) else np.float64
    mean, deviation = X[:rows].mean(axis=0, dtype=np.float64), X[:rows].std(axis=0, dtype=np.float64)
    deviation[deviation <= 1e-12 * np.abs(mean)] = 0.0  # constant, up to rounding
    return ((X - mean) / _positive(deviation)).astype(kind)


def _positive(scales: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(scales > 0.0, scales, 1.0)


def with_all_classes(chosen: NDArray[np.int64], y: NDArray[Any], generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows, sorted, with more so that each class has two, or all it has. O(n log n)."""
    others = np.delete(np.arange(len(y)), chosen)
    order = np.concatenate([chosen, generator.permutation(others)])
    first = np.unique(y[order], return_index=True)[1]  # where each class first occurs
    rest = np.delete(order, first)
    second = np.unique(y[rest], return_index=True)[1]
    return np.unique(np.concatenate([chosen, order[first], rest[second]]))
