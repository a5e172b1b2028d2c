"""Several processes: which part of each batch belongs to a rank, and what ranks exchange.

Replicated ranks have the whole sampler, draw the whole batch and take their slice of it. The draws are those of one
process with that whole batch, and each update is one ``all_gather``. Sharded ranks have a sampler over a part of the
examples each, and exchange nothing.
"""

import atexit
import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from avare import _validation as validation

Mode: TypeAlias = Literal["auto", "replicated", "sharded"] | None
Floats: TypeAlias = NDArray[np.float64]
Norms: TypeAlias = tuple[NDArray[np.int64], Floats]
"""Indices of examples, and their norms."""

_OF_A_GROUP = ("replicated", "sharded")
_FAILED = -1.0  # in place of a fingerprint
_NO_COSTS = np.empty(0)


class Ranks:
    """Which part of each batch, or of the examples, belongs to this process.

    Parameters
    ----------
    n
        Number of examples, over all ranks.
    batch_size
        Per rank.
    distributed
        "replicated", "sharded", None for this process alone, or "auto": replicated if a process group is initialised.
    """

    def __init__(self, n: int, batch_size: int, distributed: Mode = "auto") -> None:
        self.total = validation.integer("n", n, at_least=1)
        """Number of examples, over all ranks."""
        self.batch_size = validation.integer("batch_size", batch_size, at_least=1)
        if distributed not in ("auto", *_OF_A_GROUP, None):
            raise ValueError(f"distributed = {distributed!r}: must be None, 'auto', 'replicated' or 'sharded'")
        if distributed in _OF_A_GROUP and not _is_initialised():
            words = "there is no process group; call torch.distributed.init_process_group first"
            raise ValueError(f"distributed = {distributed!r}: {words}")
        self.found_none = distributed == "auto" and not _is_initialised()
        """Whether "auto" found no process group."""
        self.is_sharded = distributed == "sharded"
        self.has_group = distributed is not None and not self.found_none
        self.is_alone = self.is_sharded or not self.has_group
        """Whether nothing is exchanged when batches are drawn and norms reported."""
        if self.has_group:
            _leave_at_exit()
        self.rank: int = dist.get_rank() if self.has_group else 0
        self.world: int = dist.get_world_size() if self.has_group else 1
        if self.is_sharded and self.world > self.total:
            raise ValueError(f"distributed = 'sharded': {self.total} examples cannot be shared by {self.world} ranks")
        self.copies = 1 if self.is_sharded else self.world
        """How many ranks share what the sampler of this one draws."""
        examples = _part(self.total, self.rank, self.world) if self.is_sharded else slice(0, self.total)
        self.first, self.n = examples.start, examples.stop - examples.start
        """The first of the examples from which the sampler of this rank draws, and their number."""
        self.whole_batch = self.batch_size * self.world
        """How many examples all ranks together use per step."""
        self.draws = self.batch_size * self.copies
        """How many examples the sampler of this rank draws per step."""

    def batches(self, n: int) -> int:
        """Return how many whole batches a pass over n examples takes."""
        return -(-n // self.whole_batch)

    def own(self, size: int) -> slice:
        """Return this rank's part of a batch or pool of this size that its sampler draws."""
        return _part(size, self.rank % self.copies, self.copies)

    def local(self, index: Any) -> Any:
        """Return the places of some examples among those of this rank."""
        if not self.is_sharded:
            return index
        found = validation.indices("index", index, self.total)
        is_own = (found >= self.first) & (found < self.first + self.n)
        validation.refuse_unless(is_own, found, "index", "belongs to another rank")
        return found - self.first

    def check_unchanged(self) -> None:
        """Raise an error if a process group was initialised later."""
        if self.found_none and _is_initialised() and dist.get_world_size() > 1:
            raise RuntimeError(
                "a process group was initialised after this loader was made, so the loader does not know the other "
                "ranks: make it afterwards (under Lightning, in train_dataloader()), or pass distributed=None"
            )

    def agree(self, settings: dict[str, Any]) -> Any:
        """Raise an error if the settings of a rank differ from those of rank 0; return a random seed for all ranks."""
        found = self.objects((settings, np.random.SeedSequence().entropy))
        first, seed = found[0]
        for rank, (other, _) in enumerate(found):
            for key, value in first.items():
                if other[key] != value:
                    raise ValueError(f"{key} = {other[key]!r} on rank {rank} and {value!r} on rank 0: must be the same")
        return seed

    def objects(self, own: Any) -> list[Any]:
        """Return an object of each rank."""
        found = [own] * self.world
        if self.has_group:
            dist.all_gather_object(found, own)
        return found

    def gather(
        self, find: Callable[[], Norms], fingerprint: int, step: int, most: int = 0, costs: Floats = _NO_COSTS
    ) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Return indices, norms and costs of all ranks, in the order of the ranks; 16 bytes per example, and 32 more.

        The first message has the same size whatever a rank is doing, so that ranks that do different things all raise
        an error. The scores of a pool follow in a second one.

        Parameters
        ----------
        find
            Returns indices and norms of this rank, checked: at most the batch size, or ``most`` of a pool. If it raises
            an error, the other ranks raise one too.
        fingerprint
            32 bits that depend on all draws: if they differ, ranks have drawn different batches.
        step
            How many batches this rank has received; for a pool, with the one that it asks for.
        most
            The largest part of a pool, the same on all ranks; 0 for norms that are reported.
        costs
            Some numbers of this rank; one row per rank is returned.
        """
        try:
            indices, norms = find()
        except Exception:  # whatever it is, the other ranks must not wait
            self.refuse()
            raise
        if self.is_alone:
            return indices, norms, costs[None]
        head = np.array([[fingerprint, step], [len(indices), most]])
        rows = np.column_stack([indices, norms])  # all numbers are exact in float64
        found = self._exchange(np.concatenate([head, rows[: 0 if most else None]]), 2 + self.batch_size)
        self._compare(found[:, :2], head)
        counts, found = found[:, 1, 0].astype(int), found[:, 2:]
        if most:
            found = self._exchange(np.concatenate([rows, np.column_stack([costs, costs])]), most + len(costs))
        rows = np.concatenate([each[:count] for each, count in zip(found, counts, strict=True)])
        of_ranks = [each[count : count + len(costs), 0] for each, count in zip(found, counts, strict=True)]
        return rows[:, 0].astype(np.int64), np.ascontiguousarray(rows[:, 1]), np.array(of_ranks)

    def share(self, number: float) -> Floats:
        """Return a number of each rank."""
        if self.is_alone:
            return np.array([number], dtype=np.float64)
        return self._exchange(np.array([[number, 0.0]]), 1)[:, 0, 0]

    def refuse(self) -> None:
        """Send a failure marker, so that the other ranks raise an error from `gather` instead of hanging."""
        if not self.is_alone:
            self._exchange(np.full((2, 2), _FAILED), 2 + self.batch_size)

    def _compare(self, heads: NDArray[np.float64], own: NDArray[np.float64]) -> None:
        """Raise an error if a rank has failed, or does not do the same as this one."""
        for rank in np.flatnonzero(heads[:, 0, 0] == _FAILED):
            raise ValueError(f"rank {rank} failed, or received invalid norms: nothing has changed on any rank")
        for rank in np.flatnonzero((heads[:, :, 1] != own[:, 1]).any(axis=1)):
            raise RuntimeError(
                f"rank {rank} {_action(heads[rank])}, and rank {self.rank} {_action(own)}: all ranks must "
                "receive the same batches, and call update() for the same ones"
            )
        for rank in np.flatnonzero(heads[:, 0, 0] != own[0, 0]):
            raise RuntimeError(
                f"rank {rank} has drawn different batches from rank {self.rank}: all ranks must use the same "
                "sampler and seed, num_workers and prefetch_factor, and load the same state"
            )

    def _exchange(self, rows: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        """Return the rows of every rank, in messages of ``size`` rows."""
        message = np.full((size, 2), np.nan)
        message[: len(rows)] = rows
        device = exchange_device(dist.get_backend_config())
        own = torch.from_numpy(message).to(device)
        found = torch.empty((self.world, size, 2), dtype=torch.float64, device=device)
        try:
            dist.all_gather(list(found.unbind(0)), own)
        except RuntimeError as error:
            raise RuntimeError(f"another rank did not call update(), or has ended: {error}") from error
        return cast(NDArray[np.float64], found.cpu().numpy())


def exchange_device(backends: str) -> str:
    """Return the kind of device on which a process group can exchange tensors: the CPU, if it can.

    >>> exchange_device("cpu:gloo,cuda:nccl"), exchange_device("cuda:nccl"), exchange_device("xpu:xccl")
    ('cpu', 'cuda', 'xpu')
    """
    return "cpu" if "cpu:" in backends else backends.split(":")[0]


def _part(size: int, rank: int, ranks: int) -> slice:
    """Return the part of a rank, if some ranks share ``size`` things."""
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


def _action(head: NDArray[np.float64]) -> str:
    """Say what a rank does, by the head of its message."""
    (_, step), (_, most) = head.astype(int)
    return f"asks for batch {step}" if most else f"calls update() after batch {step}"


def _is_initialised() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


@functools.cache
def _leave_at_exit() -> None:
    """Leave the process group when the process ends, if the script has not: a thread of gloo may abort it otherwise."""
    atexit.register(lambda: dist.destroy_process_group() if _is_initialised() else None)
