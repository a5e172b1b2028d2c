"""States that are saved and loaded: mappings of numbers, text and arrays, each declared as a `Field`.

A checksum notices accidents, but does not stop a file from elsewhere. So every field is also checked against its
declaration before anything changes. No state may make a kernel read out of bounds, run for ever or return a weight that
is not finite. The class that declares two related fields checks the relation. All errors are a ``ValueError`` that
names the field.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._validation import refuse_unless as refuse_unless

__all__ = ["Field", "Nested"]

State = dict[str, Any]

_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Field:
    """What a field may hold: a number, text, a generator, or an array.

    Parameters
    ----------
    kind : type or dtype
        ``int``, ``float``, ``bool``, ``str`` or ``numpy.random.Generator``; for an array, its dtype.
    shape : tuple of int or None, default=None
        Shape of an array, with None for a length that is not known in advance.
    at_least, at_most : float
        Range of a number, or of each element. By default any finite number.
    also : float or None, default=None
        One more allowed value outside the range; it may be NaN.

    Examples
    --------
    >>> Field(np.float64, (2,), at_least=0.0).read({"values": np.zeros(3)}, "values")
    Traceback (most recent call last):
    ValueError: state['values'] has shape (3,) and dtype float64: must have shape (2,) and dtype float64
    >>> Field(np.float64, (2,), at_least=0.0).read({"values": np.array([1.0, -1.0])}, "values")
    Traceback (most recent call last):
    ValueError: state['values'][1] = -1.0: must be finite and not negative
    >>> Field(float, at_least=1.0, at_most=2.0).read({"scale": 0.5}, "scale")
    Traceback (most recent call last):
    ValueError: state['scale'] = 0.5: must be a number from 1.0 to 2.0
    """

    kind: Any
    shape: tuple[int | None, ...] | None = None
    at_least: float = -_LARGEST
    at_most: float = _LARGEST
    also: float | None = None

    def read(self, state: Mapping[str, Any], name: str, within: str = "state") -> Any:
        """Return the field of a state, arrays as copies, or raise a ``ValueError`` that names it."""
        if name not in state:
            raise ValueError(f"{within} lacks {name!r}: it is damaged, or of something else")
        value, label = plain(state[name]), f"{within}[{name!r}]"
        if self.shape is not None:
            return self._array(value, label)
        if self.kind is np.random.Generator:
            return generator_from_text(value, label)
        allowed = int if self.kind is int else int | float
        is_number = isinstance(value, allowed) and not isinstance(value, bool)
        if not is_number or not (self.at_least <= value <= self.at_most or value == self.also):
            noun = "an integer" if self.kind is int else "a number"
            raise ValueError(f"{label} = {_short(value)}: must be {noun} from {self.at_least} to {self.at_most}")
        return self.kind(value)

    def _array(self, value: Any, label: str) -> NDArray[Any]:
        assert self.shape is not None
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{label} is of type {type(value).__name__}: must be an array")
        fits = value.ndim == len(self.shape) and all(
            wanted in (None, found) for found, wanted in zip(value.shape, self.shape, strict=True)
        )
        if not fits or value.dtype != self.kind:
            shape = str(self.shape).replace("None", "any")
            raise ValueError(
                f"{label} has shape {value.shape} and dtype {value.dtype}: "
                f"must have shape {shape} and dtype {np.dtype(self.kind)}"
            )
        array = np.array(value, dtype=self.kind, order="C", subok=False)
        if array.dtype != np.bool_:
            valid = (array >= self.at_least) & (array <= self.at_most)
            if self.also is not None:
                valid |= np.isnan(array) if math.isnan(self.also) else array == self.also
            refuse_unless(valid, array, label, self._rule())
        return array

    def _rule(self) -> str:
        if self.at_most == _LARGEST:
            rules = {-_LARGEST: "must be finite", 0.0: "must be finite and not negative"}
            if self.at_least in rules:
                return rules[self.at_least]
        also = "" if self.also is None else f", or {self.also}"
        return f"must be from {self.at_least} to {self.at_most}{also}"


@dataclass(frozen=True, slots=True)
class Nested:
    """An attribute that saves its own fields, such as a structure: its method ``state`` returns them.

    >>> from functools import partial
    >>> from avare.structures import Buckets
    >>> field = Nested(partial(Buckets.from_state, n=2))
    >>> field.build(Buckets([1.0, 3.0]).state()).probabilities()
    array([0.25, 0.75])

    Parameters
    ----------
    build : callable
        Function that builds a new object from a state, or raises a ``ValueError``.
    """

    build: Callable[[State], Any]


Fields = Mapping[str, Field | Nested | None]


def read(state: Mapping[str, Any], fields: Fields, within: str = "state") -> State:
    """Return all declared fields of a state, checked, and all nested objects built from it."""
    return {
        name: field.build(dict(state)) if isinstance(field, Nested) else field.read(state, name, within)
        for name, field in fields.items()
        if field is not None
    }


def require_mapping(state: Any, within: str = "state") -> None:
    """Raise a ``TypeError`` unless a state is a mapping."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{within} is of type {type(state).__name__}: must be a mapping, as state_dict() returns")


def require_same(state: Mapping[str, Any], expected: Mapping[str, Any], within: str, owner: str) -> None:
    """Raise a ``ValueError`` if a field is missing; or one that names all fields that differ from what they must be."""
    differences: list[str] = []
    for name, own in expected.items():
        if name not in state:
            differences = differences or [f"{within} lacks {name!r}: it is damaged, or not the state of {owner}"]
            break
        value = plain(state[name])
        if not isinstance(value, str | int | float | np.generic) or value != own:
            differences.append(f"{within}[{name!r}] = {_short(value)}: {owner} has {own!r}")
    if differences:
        raise ValueError("; ".join(differences))


def require_checksum(state: Mapping[str, Any], found: int, within: str = "state") -> None:
    """Raise a ``ValueError`` if the checksum of a state does not fit its contents."""
    stated = plain(state["checksum"])
    if not isinstance(stated, int | np.integer) or stated != found:
        raise ValueError(f"{within}['checksum'] = {_short(stated)}, but its contents give {found}: it is damaged")


def read_sealed(state: Mapping[str, Any], expected: Mapping[str, Any], fields: Fields, owner: str) -> State:
    """Return the declared fields of a state, after a check of its arguments, its fields and its checksum."""
    require_mapping(state)
    require_same(state, expected, "state", owner)
    values = read(state, {**fields, "checksum": Field(int, at_least=0, at_most=2**32 - 1)})
    require_checksum(state, checksum({key: state[key] for key in (*expected, *fields)}))
    return values


def require_permutation(order: NDArray[np.int64], label: str) -> None:
    """Raise a ``ValueError`` if an index occurs twice in an array of n indices below n."""
    counts = np.bincount(order, minlength=len(order))[order] if len(order) else order
    refuse_unless(counts == 1, order, label, "occurs twice")


def plain(value: Any) -> Any:
    """Return a scalar array, which ``numpy.savez`` makes of numbers and text, as a number or text; else the value."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def checksum(fields: Mapping[str, Any]) -> int:
    """A number that changes with any bit of any field."""
    result = 0
    for key in sorted(fields):
        value = fields[key].get("checksum") if isinstance(fields[key], Mapping) else fields[key]
        value = np.ascontiguousarray(_as_array(value))
        result = zlib.crc32(f"{key} {value.dtype.str} {value.shape}".encode(errors="replace"), result)
        result = zlib.crc32(value.view(np.uint8).data if value.dtype.itemsize else b"", result)
    return result


def _as_array(value: Any) -> NDArray[Any]:
    """Return a field as an array. A damaged state may hold anything: what no state may hold becomes its text."""
    if isinstance(value, np.ndarray | np.generic | str | int | float):
        array = np.asarray(value)
        if not array.dtype.hasobject:
            return array
    return np.asarray(_short(value))


def _short(value: Any) -> str:
    """A value as text for a message, however large it is."""
    try:
        text = repr(value)
    except Exception:  # a crafted object may fail in any way
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 200


# --- generators ----------------------------------------------------------------------------


def padded(rows: Sequence[NDArray[Any]], fill: float) -> NDArray[Any]:
    """One array of rows of different lengths; the shorter ones end with ``fill``.

    >>> padded([np.array([3, 1]), np.array([2])], -1)
    array([[ 3,  1],
           [ 2, -1]])
    """
    kind = np.int64 if isinstance(fill, int) else np.float64
    array = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=kind)
    for place, row in enumerate(rows):
        array[place, : len(row)] = row
    return array


def require_padding(indices: NDArray[np.int64], label: str) -> None:
    """Raise a ``ValueError`` unless -1 is only at the ends of rows."""
    padding = indices < 0
    refuse_unless(~padding[:, :-1] | padding[:, 1:], indices, label, "only the end of a row may be padded")


def without_padding(indices: NDArray[np.int64], *others: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """The rows of `padded` arrays, one after another, as copies; ``indices`` ends with -1, the others with anything."""
    sizes = np.count_nonzero(indices >= 0, axis=1).tolist()
    for size, *rows in zip(sizes, indices, *others, strict=True):
        yield tuple(row[:size].copy() for row in rows)


def generator_to_text(generator: np.random.Generator) -> str:
    """The state of a generator as JSON."""
    return json.dumps(generator.bit_generator.state, default=lambda value: [str(value.dtype), value.tolist()])


def generator_from_text(text: Any, label: str = "text") -> np.random.Generator:
    """A generator with a given state, of one of NumPy's kinds; anything else raises a ``ValueError``.

    NumPy itself checks little of what it is given: a wrong position makes it read out of bounds.
    """
    try:
        found = json.loads(text)
        bit_generator = _BIT_GENERATORS[found["bit_generator"]]()
        bit_generator.state = _with_arrays(found, bit_generator.state)
    except Exception:  # NumPy raises almost anything
        names = ", ".join(_BIT_GENERATORS)
        raise ValueError(f"{label} is not the state of a generator of NumPy ({names})") from None
    generator, words = np.random.Generator(bit_generator), bit_generator.state["state"]
    if json.loads(generator_to_text(generator)) != found:
        raise ValueError(f"{label} is damaged: NumPy reads it as another state")
    if not (0 <= words.get("pos", 0) <= 624 and 0 <= found.get("buffer_pos", 0) <= 4):
        raise ValueError(f"{label} is damaged: a position is out of range")
    # Either of these would return the same number for ever, and a draw without replacement would not end.
    if words.get("inc", 1) % 2 == 0 or ("pos" in words and not (words["key"][1:].any() or words["key"][0] >> 31)):
        raise ValueError(f"{label} is damaged: such a generator repeats itself")
    return generator


_BIT_GENERATORS: dict[str, Callable[[], Any]] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


def _with_arrays(value: Any, template: Any) -> Any:
    """Return a generator's state as NumPy takes it: with arrays where the template has them."""
    if isinstance(template, dict):
        return {key: _with_arrays(value[key], each) for key, each in template.items()}
    return np.array(value[1], dtype=template.dtype) if isinstance(template, np.ndarray) else value
