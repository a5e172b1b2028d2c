"""A dataset whose parts fail now and then, and a consumer that catches the errors."""

from collections.abc import Iterator
from typing import Any

import torch

VALUES = torch.tensor([1.0, 5.0, 0.5, 2.0, 9.0, 0.1, 3.0])
PLACES = ("dataset", "collate", "score", "second collate")


class BrokenError(Exception):
    """What fails now and then."""


class Faults:
    """A dataset, a collate function and a score that fail at some examples, once in ``every`` calls.

    The dataset fails at the example ``at``, or at any if that is None.
    """

    def __init__(
        self,
        place: str,
        every: int = 5,
        error: type[Exception] = BrokenError,
        *,
        values: torch.Tensor = VALUES,
        at: int | None = 1,
        batch_size: int = 2,
    ) -> None:
        self.place, self.every, self.error = place, every, error
        self.values, self.at, self.batch_size, self.calls = values, at, batch_size, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.fail("dataset", self.at is None or index == self.at)
        return self.values[index], index

    def collate(self, items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        first = len(items) > self.batch_size or self.place == "collate"
        self.fail("collate" if first else "second collate")
        return torch.stack([value for value, _ in items]), torch.tensor([index for _, index in items])

    def score(self, batch: Any) -> torch.Tensor:
        self.fail("score")
        found: torch.Tensor = batch[0]
        return found

    def fail(self, place: str, counts: bool = True) -> None:
        if place == self.place and counts:
            self.calls += 1
            if self.calls % self.every == 0:
                raise self.error(place)


def received(batches: Iterator[Any], error: type[Exception] = BrokenError) -> Iterator[Any]:
    """The batches that arrive, for a consumer that catches every error and asks again."""
    while True:
        try:
            yield next(batches)
        except error:
            continue
        except StopIteration:
            return
