"""How a weight travels with its example: from the batch sampler through dataset and collate function."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate


class Indexed(Dataset[Any]):
    """A dataset whose items come with their index and weight.

    For those who build their own ``DataLoader``, with `AvareBatchSampler` and `IndexedCollate`.

    Parameters
    ----------
    dataset
        Any map-style dataset: one with ``__getitem__`` and ``__len__``. Its ``__getitems__``
        is used where it has one.

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
        if not isinstance(pair, tuple):
            raise TypeError(
                f"{pair!r} is no pair of an index and a weight: Indexed is for a DataLoader with "
                "batch_sampler=AvareBatchSampler(...)"
            )
        index, weight = pair
        return self.dataset[index], index, weight

    def __getitems__(self, pairs: "Pairs | Sequence[tuple[int, float]]") -> Sequence[tuple[Any, int, float]]:
        """The items of a whole batch."""
        if not isinstance(pairs, Pairs):
            return [self[pair] for pair in pairs]
        return Fetched(self.dataset, pairs)


class IndexedCollate:
    """A collate function that gives ``(batch, index, weight)``.

    Parameters
    ----------
    collate_fn
        Makes a batch of a list of items, and of items only; by default ``default_collate``.

    Examples
    --------
    >>> IndexedCollate(" ".join)([("a", 4, 1.5), ("b", 2, 0.5)])
    ('a b', tensor([4, 2]), tensor([1.5000, 0.5000]))
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.collate_fn = collate_fn

    def __call__(self, items: Sequence[tuple[Any, int, float]]) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """The batch of the items, their indices and their weights."""
        batch, pairs = self.apart(items)
        return batch, *pairs.tensors()

    def apart(self, items: Sequence[tuple[Any, int, float]]) -> "tuple[Any, Pairs]":
        """The same with arrays: from a worker, a tensor comes by way of a file, and they are small."""
        if isinstance(items, Fetched):
            return (items.collated() if self.collate_fn is None else self.collate_fn(items.items())), items.pairs
        rows, indices, weights = zip(*items, strict=True)
        collate = self.collate_fn or default_collate
        return collate(list(rows)), Pairs(np.array(indices, dtype=np.int64), np.array(weights, dtype=np.float32))


class Pairs:
    """The draws of a batch: pairs of an index and its weight, kept as two arrays.

    Not a ``collections.abc.Sequence``, although it has a length and items: older versions of
    PyTorch pin the memory of a sequence item by item, and make a list of it.
    """

    __slots__ = ("indices", "weights")

    def __init__(self, indices: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        self.indices = indices
        self.weights = weights

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: Any) -> Any:
        return int(self.indices[place]), float(self.weights[place])

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.indices.tolist(), self.weights.tolist(), strict=True)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices and weights, on the same memory."""
        return torch.from_numpy(self.indices), torch.from_numpy(self.weights)

    def pin_memory(self) -> "Pairs":
        """Itself: ``DataLoader`` would otherwise pin number by number."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Pairs, (self.indices, self.weights)


class Fetched(Sequence[tuple[Any, int, float]]):
    """The items of a batch, fetched when they are asked for, with their indices and weights."""

    __slots__ = ("_items", "dataset", "pairs")

    def __init__(self, dataset: Any, pairs: Pairs) -> None:
        self.dataset = dataset
        self.pairs = pairs
        self._items: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: Any) -> Any:
        return (
            self.items()[place],
            int(self.pairs.indices[place]),
            self.pairs.weights[place],
        )  # float32, so that any collate function keeps it

    def items(self) -> list[Any]:
        """The items alone."""
        if self._items is None:
            indices = self.pairs.indices.tolist()
            fetch = getattr(self.dataset, "__getitems__", None)
            self._items = list(fetch(indices)) if callable(fetch) else [self.dataset[index] for index in indices]
        return self._items

    def collated(self) -> Any:
        """What ``default_collate`` makes of the items."""
        if type(self.dataset) is TensorDataset:  # the same rows, without a tensor for each
            index = torch.from_numpy(self.pairs.indices)
            return [tensor[index] for tensor in self.dataset.tensors]
        return default_collate(self.items())


def check_dataset(dataset: Any) -> None:
    """Refuse what cannot be asked for its examples by their index."""
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"dataset is of type {type(dataset).__name__}, an IterableDataset: examples that come in a stream cannot "
            "be drawn; give a map-style dataset, with __getitem__ and __len__"
        )
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError(f"dataset is of type {type(dataset).__name__}: must have __getitem__ and __len__")
