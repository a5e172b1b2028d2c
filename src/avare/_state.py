"""States that are saved and loaded: mappings of numbers, text and arrays."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = dict[str, Any]


def plain(value: Any) -> Any:
    """A field as it was before ``numpy.savez`` made an array of it."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def checksum(fields: Mapping[str, Any]) -> int:
    """A number that changes with any bit of any field."""
    result = 0
    for key in sorted(fields):
        value = np.ascontiguousarray(_as_array(fields[key]))
        result = zlib.crc32(f"{key} {value.dtype.str} {value.shape}".encode(), result)
        result = zlib.crc32(value.view(np.uint8).data, result)
    return result


def _as_array(value: Any) -> NDArray[Any]:
    """A field as an array; what no state holds, as its text, for a damaged state may hold anything."""
    if isinstance(value, np.ndarray | np.generic | str | int | float):
        array = np.asarray(value)
        if not array.dtype.hasobject:
            return array
    return np.asarray(repr(value))


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


def without_padding(indices: NDArray[np.int64], *others: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """The rows of `padded` arrays, one after another, as copies; ``indices`` ends with -1, the others with anything."""
    sizes = np.count_nonzero(indices >= 0, axis=1).tolist()
    for size, *rows in zip(sizes, indices, *others, strict=True):
        yield tuple(row[:size].copy() for row in rows)


def generator_to_text(generator: np.random.Generator) -> str:
    """The state of a generator as JSON."""
    return json.dumps(generator.bit_generator.state, default=lambda value: [str(value.dtype), value.tolist()])


def generator_from_text(text: str) -> np.random.Generator:
    """A generator with a given state."""
    state = json.loads(text, object_hook=_with_arrays)
    bit_generator = getattr(np.random, state["bit_generator"])()
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def _with_arrays(state: State) -> State:
    return {
        key: np.array(value[1], dtype=value[0]) if isinstance(value, list) else value for key, value in state.items()
    }
