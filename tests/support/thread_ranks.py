"""A process group of threads."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch


class Threads:
    """A process group whose ranks are threads, which start faster than processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
        self.world = world
        self._local = threading.local()
        self._barrier = threading.Barrier(world, timeout=60)
        self._sent: list[Any] = [None] * world
        self.sizes: list[int] = []  # bytes of each message
        for name, function in {
            "is_initialized": lambda: hasattr(self._local, "rank"),
            "get_rank": lambda group=None: self._local.rank,
            "get_world_size": lambda group=None: world,
            "get_backend_config": lambda group=None: "cpu:gloo",
            "all_gather": self._all_gather,
            "all_gather_object": self._all_gather_object,
        }.items():
            monkeypatch.setattr(f"torch.distributed.{name}", function)

    def run(self, action: Callable[[int], Any]) -> list[Any]:
        """What the action returns on each rank, or its error."""
        found: list[Any] = [None] * self.world

        def on(rank: int) -> None:
            self._local.rank = rank
            try:
                found[rank] = action(rank)
            except (ValueError, RuntimeError) as error:
                found[rank] = error

        threads = [threading.Thread(target=on, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _all_gather_object(self, found: list[Any], value: Any, group: Any = None) -> None:
        self._sent[self._local.rank] = value
        self._barrier.wait()
        found[:] = self._sent
        self._barrier.wait()

    def _all_gather(self, found: list[torch.Tensor], value: torch.Tensor, group: Any = None) -> None:
        self.sizes.append(value.nbytes)
        values: list[Any] = [None] * self.world
        self._all_gather_object(values, value)
        for place, each in zip(found, values, strict=True):
            place.copy_(each)
