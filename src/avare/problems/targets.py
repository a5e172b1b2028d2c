"""The targets of a linear model: classes or numbers."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare import _validation as validation

Target = Literal["classes", "two classes", "numbers"]


class Encoded(NamedTuple):
    """Labels in order, and for each example the index of its label."""

    labels: NDArray[Any]
    places: NDArray[np.int64]


def parse_targets(kind: Target, y: ArrayLike | Encoded) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the labels in order (none for numbers), and the targets as float64.

    A target is the number itself, or the index of the class among the labels. With two classes it is -1 for the
    smaller label and +1 for the larger.

    >>> parse_targets("two classes", ["spam", "ham", "spam"])
    (array(['ham', 'spam'], dtype='<U4'), array([ 1., -1.,  1.]))
    """
    if kind == "numbers":
        return np.empty(0), validation.finite("y", y)
    labels, places = encode(y)
    if len(labels) == 1:
        raise ValueError(f"y has 1 class, {labels.tolist()[0]!r}: must have at least 2")
    if kind == "classes":
        return labels, places.astype(np.float64)
    if len(labels) > 2:
        some = ", ".join(repr(label) for label in labels[:3].tolist())
        raise ValueError(f"y has {len(labels)} classes, {some}{', ...' if len(labels) > 3 else ''}: must have 2")
    return labels, places.astype(np.float64) * 2.0 - 1.0


def encode(y: ArrayLike | Encoded) -> Encoded:
    """Return the labels in order, and for each example the index of its label.

    >>> encode([5, -1, 5])
    Encoded(labels=array([-1,  5]), places=array([1, 0, 1]))
    """
    if isinstance(y, Encoded):
        return y
    array = validation.as_array("y", y)
    if array.ndim != 1:
        raise ValueError(f"y has shape {array.shape}: must have 1 dimension")
    if array.dtype.kind == "f":
        validation.finite("y", array)  # NaN is not a label
    least = int(array.min()) if array.dtype.kind in "iu" and len(array) else 0
    if array.dtype.kind in "iu" and len(array) and int(array.max()) - least < len(array):
        wide = array if array.itemsize == 8 else array.astype(np.int64)  # where no difference overflows
        shifted = wide - wide.dtype.type(least)  # counting is several times faster than `unique`
        found = np.bincount(shifted) > 0
        labels = np.flatnonzero(found).astype(array.dtype) + array.dtype.type(least)
        places = shifted.astype(np.int64, copy=False) if found.all() else (np.cumsum(found) - 1)[shifted]
    else:
        labels = _distinct(array)
        places = np.searchsorted(labels, array)  # many times faster than the inverse that `unique` would give
    return Encoded(labels, places)


def _distinct(array: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.unique(array)
    except TypeError as error:
        raise TypeError(f"y holds labels that have no order: {error}") from None
