"""How a weight travels with its example: from the batch sampler through dataset and collate function."""

import copy
from collections.abc import Callable, Iterator, MutableMapping, Sequence
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
    """A dataset whose items come with their index and weight.

    Use it in your own ``DataLoader``, with `AvareBatchSampler` and `IndexedCollate`.

    Parameters
    ----------
    dataset : Dataset
        Any map-style dataset: one with ``__getitem__`` and ``__len__``. If it has ``__getitems__``,
        that is used.

    Examples
    --------
    >>> Indexed(["a", "b", "c"])[1, 0.5]
    ('b', 1, 0.5)
    """

    def __init__(self, dataset: Any) -> None:
        check_dataset(dataset)
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, pair: Any) -> tuple[Any, int, float]:
        index, weight = pair
        return self.dataset[index], index, weight

    def __getitems__(self, pairs: "Pairs | Sequence[tuple[int, float]]") -> Sequence[tuple[Any, int, float]]:
        """Return the items of a whole batch."""
        if not isinstance(pairs, Pairs):
            return [self[pair] for pair in pairs]
        return Fetched(self.dataset, pairs)


class IndexedCollate:
    """A collate function that returns ``(batch, index, weight)``.

    Parameters
    ----------
    collate_fn : callable, optional
        Makes a batch of a list of items, without indices and weights; by default ``default_collate``.

    Examples
    --------
    >>> IndexedCollate(" ".join)([("a", 4, 1.5), ("b", 2, 0.5)])
    ('a b', tensor([4, 2]), tensor([1.5000, 0.5000]))
    """

    def __init__(self, collate_fn: Collate | None = None) -> None:
        self.collate_fn = collate_fn

    def __call__(self, items: Sequence[tuple[Any, int, float]]) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Return the batch of the items, their indices and their weights."""
        return as_triple(self.collate_to_arrays(items))

    def collate_to_arrays(
        self, items: Sequence[tuple[Any, int, float]], size: int | None = None
    ) -> "tuple[Any, Pairs]":
        """Collate to a batch and its `Pairs`: arrays pickle faster than small tensors.

        More than ``size`` items are a pool, of which the second stage makes a batch. If the default collate function
        has made the pool, its rows are enough for that. Otherwise the items are sent, too.
        """
        if not isinstance(items, Fetched):
            rows, indices, weights = zip(*items, strict=True)
            pairs = Pairs(np.array(indices, dtype=np.int64), np.array(weights, dtype=np.float32))
            items = Fetched(None, pairs, list(rows))
        batch, pairs = without_end(items.collated, self.collate_fn), items.pairs
        if size is not None and len(pairs) > size:
            pairs.items = None if self.collate_fn is None else Items(items.items)
        return batch, pairs


@dataclass(slots=True, eq=False)
class Pairs:
    """The draws of a batch: pairs of an index and its weight, stored as two arrays.

    Not a ``collections.abc.Sequence``, although it has a length and items: older versions of
    PyTorch pin the memory of a sequence item by item, and make a list of it.
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float32]
    place: int = 0
    """The place of the batch in its epoch."""
    items: "Items | None" = None
    """The items of a pool, if the rows of the collated pool are not enough to make a batch of some of them."""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: Any) -> Any:
        return int(self.indices[place]), float(self.weights[place])

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.indices.tolist(), self.weights.tolist(), strict=True)

    def pin_memory(self) -> "Pairs":
        """Return itself: otherwise ``DataLoader`` pins number by number. Items are for the collate function."""
        return self


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


class Fetched(Sequence[tuple[Any, int, float]]):
    """The items of a batch, with their indices and weights. Items are fetched when they are first used."""

    def __init__(self, dataset: Any, pairs: Pairs, items: list[Any] | None = None) -> None:
        self.dataset, self.pairs = dataset, pairs
        self._items = items

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: Any) -> Any:
        # The weight stays a float32, which every collate function preserves.
        return self.items[place], int(self.pairs.indices[place]), self.pairs.weights[place]

    @property
    def items(self) -> list[Any]:
        """The items alone."""
        if self._items is None:
            indices = self.pairs.indices.tolist()
            fetch = getattr(self.dataset, "__getitems__", None)
            self._items = list(fetch(indices)) if callable(fetch) else [self.dataset[index] for index in indices]
        return self._items

    def collated(self, collate_fn: Collate | None = None) -> Any:
        """Make a batch of the items."""
        if collate_fn is None and type(self.dataset) is TensorDataset:  # without a tensor for each
            index = torch.from_numpy(self.pairs.indices)
            return [tensor.index_select(0, index) for tensor in self.dataset.tensors]
        return (collate_fn or default_collate)(list(self.items))


def take_rows(
    blocks: Sequence[tuple[Any, Pairs]],
    places: NDArray[np.int64] | None,
    collate_fn: Collate | None = None,
    pin: bool = False,
) -> Any:
    """Return the batch of the items at some places of loaded blocks, one after the other; in pinned memory if ``pin``.

    With several blocks, the places must be in order. None: all items.
    """
    batch, pairs = blocks[0]
    if places is None:
        if len(blocks) == 1:
            return batch
        places = np.arange(sum(len(pairs) for _, pairs in blocks))
    if len(blocks) == 1 and collate_fn is None and type(batch) is list and not pin:  # the same as below, in less time
        rows = torch.from_numpy(places)
        if all(_is_tensor_of(each, len(pairs)) for each in batch):
            return [each.index_select(0, rows) for each in batch]
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
        found = first.index_select(0, places[0])
        if len(batches) > 1:
            others = zip(batches[1:], places[1:], strict=True)
            found = torch.cat([found, *(batch.index_select(0, rows) for batch, rows in others)])
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
