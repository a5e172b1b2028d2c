"""What the tests of all loaders share: a dataset, norms that change, and a run that reports them."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

torch.set_num_threads(1)  # with more, the processes of a parallel test run disturb each other
CLASSES = 3
Drawn = list[tuple[list[int], list[float]]]


def make_dataset(n: int) -> TensorDataset:
    """Rows of widely different lengths, and labels."""
    generator = np.random.default_rng(n)
    rows = generator.normal(size=(n, 4)) * generator.lognormal(0.0, 1.0, (n, 1))
    return TensorDataset(torch.from_numpy(rows), torch.from_numpy(generator.integers(CLASSES, size=n)))


def changing_norms(step: int, index: torch.Tensor) -> torch.Tensor:
    """Norms that change with time, over some octaves."""
    return torch.exp(torch.sin(index * 1.7 + step * 0.3) * 2.0)


def forever(loader: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def run(loader: Any, first: int, last: int) -> Drawn:
    """Steps ``first`` to ``last``, each with an update; what was drawn."""
    drawn = []
    for step, (_, index, weight) in enumerate(forever(loader), start=first):
        drawn.append((index.tolist(), weight.tolist()))
        loader.update(index, changing_norms(step, index))
        if step == last:
            break
    return drawn


def through_a_file(state: dict[str, Any]) -> Any:
    """A state after ``torch.save`` and ``torch.load``."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def snapshot(loader: Any) -> str:
    """All of a loader's state, to compare."""
    return repr(loader.state_dict())


class Counted:
    """Items that differ each time they are fetched."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.asked += 1
        return index, self.asked
