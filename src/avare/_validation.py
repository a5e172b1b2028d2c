"""Checks of arguments: each error names the argument, the offending value and its place."""

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from avare._compilation import kernel, lean

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def integer(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> int:
    """An integer within bounds.

    >>> integer("batch_size", 0, at_least=1)
    Traceback (most recent call last):
    ValueError: batch_size = 0: must be at least 1
    """
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} = {value!r}: must be an integer") from None
    if number < at_least:
        raise ValueError(f"{name} = {number}: must be at least {at_least}")
    if at_most is not None and number > at_most:
        raise ValueError(f"{name} = {number}: must be at most {at_most}")
    return number


def number(
    name: str, value: Any, *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> float:
    """A finite number within bounds.

    >>> number("delta", -1, above=0)
    Traceback (most recent call last):
    ValueError: delta = -1.0: must be above 0
    """
    if isinstance(value, str | bytes | bool | np.bool_):
        raise TypeError(f"{name} = {value!r}: must be a number")
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {value!r}: must be a number") from None
    except OverflowError:
        raise ValueError(f"{name}: must be at most 1e308") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} = {result}: must be finite")
    if above is not None and not result > above:
        raise ValueError(f"{name} = {result}: must be above {above}")
    if at_least is not None and not result >= at_least:
        raise ValueError(f"{name} = {result}: must be at least {at_least}")
    if at_most is not None and not result <= at_most:
        raise ValueError(f"{name} = {result}: must be at most {at_most}")
    return result


def boolean(name: str, value: Any) -> bool:
    """Return True or False; numbers and other values that could count as such are refused."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} = {value!r}: must be True or False")
    return bool(value)


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of some words; otherwise the error suggests the closest of them.

    >>> choice("sampler", "passes", ["Avare", "Passes"])
    Traceback (most recent call last):
    ValueError: sampler = 'passes': must be one of Avare, Passes; did you mean 'Passes'?
    """
    words = {word.lower(): word for word in allowed}
    if value in words.values():
        return str(value)
    import difflib

    close = difflib.get_close_matches(str(value).lower(), words, 1)
    meant = f"; did you mean {words[close[0]]!r}?" if close else ""
    raise ValueError(f"{name} = {value!r}: must be one of {', '.join(words.values())}{meant}")


def nonnegative(name: str, values: ArrayLike, *, ndim: int = 1) -> NDArray[np.float64]:
    """A float64 array of finite numbers, none negative.

    >>> nonnegative("norms", [1.0, float("nan")])
    Traceback (most recent call last):
    ValueError: norms[1] = nan: must be finite and not negative
    """
    array = real(name, values, ndim)
    if _first_outside(array.reshape(-1), math.inf) >= 0:
        refuse_unless((array >= 0.0) & (array < math.inf), array, name, "must be finite and not negative")
    return array


def finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """A float64 vector of finite numbers.

    >>> finite("x", [1.0, float("inf")])
    Traceback (most recent call last):
    ValueError: x[1] = inf: must be finite
    """
    array = real(name, values, 1)
    refuse_unless(np.isfinite(array), array, name, "must be finite")
    return array


def refuse_unless(valid: Any, array: NDArray[Any], label: str, rule: str) -> None:
    """Raise a ``ValueError`` that names the first element of an array that is not valid."""
    if not np.all(valid):
        place = tuple(int(each[0]) for each in np.nonzero(~valid))
        raise ValueError(f"{label}[{', '.join(map(str, place))}] = {array[place]}: {rule}")


def real(name: str, values: ArrayLike, ndim: int | None = None) -> NDArray[np.float64]:
    """A contiguous float64 array; booleans, complex numbers and text are refused."""
    array = as_array(name, values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {array.dtype}: must hold real numbers")
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}: must have {ndim} dimension{'s' if ndim != 1 else ''}")
    return np.asarray(array, dtype=np.float64, order="C")


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Convert anything array-like to an array, also a tensor: see `from_tensor`."""
    try:
        return values if type(values) is np.ndarray else np.asarray(from_tensor(name, values))
    except ValueError as error:
        raise ValueError(f"{name} is not an array: {error}") from None


def from_tensor(name: str, values: Any) -> Any:
    """A tensor of PyTorch as an array, detached and on the CPU; anything else unchanged.

    Floats of less than 32 bits (bfloat16, float8) become float32. A tensor without values (on the meta device) or with
    a layout of its own (sparse) is a ``TypeError``. PyTorch is not imported.
    """
    if not (hasattr(values, "detach") and hasattr(values, "layout") and hasattr(values, "numpy")):
        return values
    try:
        tensor = values.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor).numpy()
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"{name} is a tensor that cannot be an array: {error}") from None


def indices(name: str, values: ArrayLike, n: int) -> NDArray[np.int64]:
    """A contiguous int64 vector of indices in [0, n).

    >>> indices("indices", [0, 7], 5)
    Traceback (most recent call last):
    ValueError: indices[1] = 7: must be in [0, 5)
    """
    array = as_array(name, values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}: must hold integers")
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}: must have 1 dimension")
    result = np.ascontiguousarray(array, dtype=np.int64)
    fault = int(_first_outside(result, n))
    if fault >= 0:
        raise ValueError(f"{name}[{fault}] = {array[fault]}: must be in [0, {n})")
    return result


def indexed(name: str, values: Any, at: Any, n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices in [0, n), and the same number of finite numbers, none negative.

    >>> indexed("norms", [2.0], [0, 1], 5)
    Traceback (most recent call last):
    ValueError: norms has length 1: must match indices, which has 2
    """
    if are_plain(at, values, n):
        return at, values  # the common case, in one loop
    places, numbers = indices("indices", at, n), nonnegative(name, values)
    same_length(name, len(numbers), "indices", len(places))
    return places, numbers


def are_plain(at: Any, values: Any, n: int) -> bool:
    """Whether these are vectors of int64 and of float64, of the same length, and what `indexed` would return."""
    if not (type(at) is type(values) is np.ndarray and at.dtype is _INT64 and values.dtype is _FLOAT64):
        return False
    is_plain = at.ndim == 1 and at.shape == values.shape and at.flags.carray and values.flags.carray
    return bool(is_plain and _all_valid(at, values, n))


def same_length(name: str, length: int, other: str, other_length: int) -> None:
    """Two lengths that must agree."""
    if length != other_length:
        raise ValueError(f"{name} has length {length}: must match {other}, which has {other_length}")


# --- kernels -------------------------------------------------------------------------------


@lean
def _all_valid(at, values, n):
    """Return whether all indices are in [0, n), and all values finite and not negative."""
    wrong = 0
    for j in range(len(at)):
        wrong += not (0 <= at[j] < n and 0.0 <= values[j] < np.inf)
    return wrong == 0


@kernel
def _first_outside(values, end):
    """Return the place of the first value that is not in [0, end), or -1."""
    for j in range(len(values)):
        if not 0 <= values[j] < end:
            return j
    return -1
