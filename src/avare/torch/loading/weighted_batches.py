"""How a weight travels with its example: from the batch sampler through dataset and collate function."""

import copy
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pickle import dumps, loads
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from avare.torch.loading.cursor import without_end

Collate = Callable[[list[Any]], Any]


class Indexed(Dataset[Any]):
    """A dataset that is asked for the draws of a batch; `collate_draws` fetches their items."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, pairs: "Pairs") -> "tuple[Any, Pairs]":
        """Return the dataset and the draws."""
        return self.dataset, pairs


@dataclass(slots=True, eq=False)
class Pairs:
    """The draws of a batch: pairs of an index and its weight, stored as two arrays.

    Not a ``collections.abc.Sequence``, although it has a length: ``DataLoader`` would pin its memory item by item.
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float32]
    place: int = 0
    """The place of the batch in its epoch."""
    items: "Items | None" = None
    """The items of a pool, if the rows of the collated pool are not enough to make a batch of some of them."""

    def __len__(self) -> int:
        return len(self.indices)


class Items:
    """The items of a pool. A worker sends each as bytes, and only those that are chosen are unpickled.

    Tensors would otherwise be sent one by one, each through a file of its own in shared memory.
    """

    def __init__(self, items: list[Any], unpack: Callable[[Any], Any] | None = None) -> None:
        self._items = items
        self._unpack = unpack

    def __getitem__(self, place: int) -> Any:
        return self._items[place] if self._unpack is None else self._unpack(self._items[place])

    def __reduce__(self) -> Any:
        return Items, ([dumps(item) for item in self._items], loads)


def collate_draws(
    drawn: tuple[Any, Pairs], collate_fn: Collate | None = None, size: int | None = None
) -> tuple[Any, Pairs]:
    """Fetch the items of some draws, and make a batch of them.

    More than ``size`` items are a pool, of which the second stage makes a batch. If the default collate function
    has made the pool, its rows are enough for that. Otherwise the items are sent, too.

    >>> batch, pairs = collate_draws((["a", "b", "c"], Pairs(np.array([2, 0]), np.ones(2, np.float32))), " ".join)
    >>> batch, len(pairs)
    ('c a', 2)
    """
    dataset, pairs = drawn
    if collate_fn is None and type(dataset) is TensorDataset:  # without a tensor for each
        index = torch.from_numpy(pairs.indices)
        return [tensor.index_select(0, index) for tensor in dataset.tensors], pairs
    items = without_end(_fetched, dataset, pairs.indices.tolist())
    if collate_fn is not None and size is not None and len(pairs) > size:
        pairs.items = Items(items)
    return without_end(collate_fn or default_collate, list(items)), pairs


def _fetched(dataset: Any, indices: list[int]) -> list[Any]:
    """Return the items of some indices, all at once if the dataset can do that."""
    fetch = getattr(dataset, "__getitems__", None)
    return list(fetch(indices)) if callable(fetch) else [dataset[index] for index in indices]


def take_rows(
    blocks: Sequence[tuple[Any, Pairs]],
    places: NDArray[np.int64] | None,
    collate_fn: Collate | None = None,
    pin: bool = False,
) -> Any:
    """Return the batch of the items at some places of loaded blocks, one after the other; in pinned memory if ``pin``.

    With several blocks, the places must be in order. None: all items.
    """
    if places is None:
        if len(blocks) == 1:
            return blocks[0][0]
        places = np.arange(sum(len(pairs) for _, pairs in blocks))
    parts = [places]
    if len(blocks) > 1:
        ends = np.cumsum([len(pairs) for _, pairs in blocks])
        parts = np.split(places, np.searchsorted(places, ends[:-1]))
        parts = [part - end + len(pairs) for part, end, (_, pairs) in zip(parts, ends, blocks, strict=True)]
    if collate_fn is not None:
        items: list[Any] = [pairs.items for _, pairs in blocks]
        return collate_fn([found[place] for found, part in zip(items, parts, strict=True) for place in part])
    used = [k for k, part in enumerate(parts) if len(part)]
    chosen = [torch.from_numpy(parts[k]) for k in used]
    return _rows([blocks[k][0] for k in used], len(blocks[used[0]][1]), chosen, pin)


def _rows(batches: Sequence[Any], size: int, places: Sequence[torch.Tensor], pin: bool) -> Any:
    """Return some rows of everything in several collated batches as one batch; the first batch has this size."""
    first = batches[0]
    if _is_tensor_of(first, size):
        parts = [batch.index_select(0, rows) for batch, rows in zip(batches, places, strict=True)]
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        return found.pin_memory() if pin else found
    if type(first) is not list and isinstance(first, MutableMapping):
        chosen = copy.copy(first)  # as default_collate does, for mappings of all kinds
        chosen.update({key: _rows([batch[key] for batch in batches], size, places, pin) for key in first})
        return chosen
    if not isinstance(first, list | tuple):
        raise TypeError(f"{type(first).__name__} has no rows")
    if len(first) == size and all(isinstance(value, str | bytes) for value in first):
        return [batch[place] for batch, rows in zip(batches, places, strict=True) for place in rows.tolist()]
    columns = [_rows(values, size, places, pin) for values in zip(*batches, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)


def _is_tensor_of(batch: Any, size: int) -> bool:
    """Whether these are some rows in a tensor."""
    return isinstance(batch, torch.Tensor) and batch.ndim > 0 and batch.shape[0] == size


def as_triple(loaded: tuple[Any, Pairs]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Return a batch with its indices and weights as tensors, which share the memory of the arrays."""
    batch, pairs = loaded
    return batch, torch.from_numpy(pairs.indices), torch.from_numpy(pairs.weights)


def check_dataset(dataset: Any) -> None:
    """Raise an error unless examples can be fetched by their index."""
    is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, IterableDataset) or not is_map:
        raise TypeError(
            f"dataset is of type {type(dataset).__name__}: must have __getitem__ and __len__, as a map-style dataset "
            "has, so that any example can be drawn; ImportanceLoader takes a stream (an IterableDataset) with score="
        )
