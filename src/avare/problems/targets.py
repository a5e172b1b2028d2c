"""The targets of a linear model: classes or numbers."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation

Target = Literal["classes", "two classes", "numbers"]


def parse_targets(kind: Target, y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the labels in order (none for numbers), and the targets as float64.

    A target is the number itself, or the index of the class among the labels. With two classes it is -1 for the
    smaller label and +1 for the larger.

    >>> parse_targets("two classes", ["spam", "ham", "spam"])
    (array(['ham', 'spam'], dtype='<U4'), array([ 1., -1.,  1.]))
    """
    if kind == "numbers":
        return np.empty(0), validation.finite("y", y)
    labels, places = _labels(y)
    if kind == "classes":
        return labels, places.astype(np.float64)
    if len(labels) > 2:
        some = ", ".join(repr(label) for label in labels[:3].tolist())
        raise ValueError(f"y has {len(labels)} classes, {some}{', ...' if len(labels) > 3 else ''}: must have 2")
    return labels, np.where(places == 0, -1.0, 1.0)


def _labels(y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The labels in order, and for each example the index of its label."""
    array = validation.as_array("y", y)
    if array.ndim != 1:
        raise ValueError(f"y has shape {array.shape}: must have 1 dimension")
    if array.dtype.kind == "f":
        validation.finite("y", array)  # NaN is not a label
    if array.dtype.kind in "iu" and len(array) and array.min() >= 0 and array.max() < len(array):
        labels = np.flatnonzero(np.bincount(array)).astype(array.dtype)  # several times faster than `unique`
    else:
        labels = _distinct(array)
    if len(labels) == 1:
        raise ValueError(f"y has 1 class, {labels.tolist()[0]!r}: must have at least 2")
    return labels, np.searchsorted(labels, array)  # many times faster than the inverse that `unique` would give


def _distinct(array: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.unique(array)
    except TypeError as error:
        raise TypeError(f"y holds labels that have no order: {error}") from None
