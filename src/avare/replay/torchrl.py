"""Prioritised replay as a sampler of torchrl's replay buffers, in place of its ``PrioritizedSampler``."""

from pathlib import Path
from typing import Any

import numpy as np

from avare._optional import require

require("torchrl", "avare.replay.torchrl", None)  # no extra has it

# isort: split
import torch
from torchrl.data.replay_buffers import samplers

from avare.replay.prioritized import Prioritized
from avare.state import State

_FILE = "priorities.npz"

__all__ = ["PrioritizedSampler"]


class PrioritizedSampler(samplers.PrioritizedSampler):
    """Sampler for ``torchrl.data.ReplayBuffer``: float64 priorities, no drift, distinct items on request.

    Priorities are on the CPU, and so are the indices; the weights are float32. It derives from torchrl's sampler of the
    same name, by which torchrl recognises samplers with priorities, and uses nothing of it.

    Parameters
    ----------
    max_capacity : int
        Number of items of the storage.
    alpha, beta
        See `avare.replay.Prioritized`.
    eps : float, default=1e-8
        Added to each priority, so that none is 0.
    reduction : {"max", "min", "median", "mean"}, default="max"
        How ``TensorDictReplayBuffer`` reduces the priorities of a trajectory to one.
    distinct : bool, default=False
        Draw without replacement. (torchrl reserves the name ``replacement``.)
    seed : int, optional
        Seed of the random numbers.

    Examples
    --------
    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    >>> sampler = PrioritizedSampler(1000, alpha=0.6, beta=0.4, seed=0)
    >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), sampler=sampler, batch_size=32)
    >>> places = buffer.extend(TensorDict({"reward": torch.zeros(100)}, [100]))
    >>> batch = buffer.sample()
    >>> buffer.update_priority(batch["index"], torch.rand(32))
    >>> batch["priority_weight"].shape
    torch.Size([32])
    """

    _max_priority_within_buffer = False  # so that `add` and `extend` do nothing: the storage calls `mark_update`

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        reduction: str = "max",
        *,
        distinct: bool = False,
        seed: int | None = None,
    ) -> None:
        self.priorities = Prioritized(max_capacity, alpha=alpha, beta=beta, replacement=not distinct, seed=seed)
        self.reduction = reduction
        self._max_capacity, self._eps = max_capacity, eps

    def __repr__(self) -> str:
        return f"PrioritizedSampler(alpha={self.alpha}, beta={self.beta}, eps={self._eps})"

    @property
    def alpha(self) -> float:
        """How much priorities count; it cannot change."""
        return self.priorities.alpha

    @property
    def beta(self) -> float:
        """How much the weights correct for it; it may change during training."""
        return self.priorities.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self.priorities.beta = value

    @property
    def device(self) -> torch.device:
        """Where the priorities are."""
        return torch.device("cpu")

    @property
    def default_priority(self) -> float:
        """The priority of new items: the highest so far, or 1."""
        return self.priorities.default_priority

    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[str, torch.Tensor]]:
        """Draw a batch; return indices and ``priority_weight``."""
        indices, weights = self.priorities.sample(batch_size)
        if storage.ndim > 1:
            places = tuple(map(torch.from_numpy, np.unravel_index(indices, tuple(storage.shape))))
        else:
            places = torch.from_numpy(indices)
        return places, {"priority_weight": torch.from_numpy(weights).float()}

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Replace the priorities of some items; indices of -1 were not stored, and are ignored."""
        places = torch.as_tensor(index).cpu().numpy()
        if places.ndim > 1:
            places = np.ravel_multi_index(tuple(places.T), tuple(storage.shape))
        places = places.reshape(-1)
        found = torch.as_tensor(priority).detach().cpu().double().numpy().reshape(-1) + self._eps
        kept = places >= 0
        self.priorities.store(places[kept], np.broadcast_to(found, places.shape)[kept])

    def mark_update(self, index: Any, *, storage: Any = None) -> None:
        """Give items that were written the default priority."""
        self.update_priority(index, self.default_priority - self._eps, storage=storage)

    def state_dict(self) -> State:
        """Return all that is needed to resume with the same draws."""
        return self.priorities.state_dict()

    def load_state_dict(self, state_dict: State) -> None:
        """Resume from a saved state."""
        self.priorities.load_state_dict(state_dict)

    def dumps(self, path: Any) -> None:
        """Write the state to a folder."""
        Path(path).mkdir(parents=True, exist_ok=True)
        np.savez(Path(path) / _FILE, **self.state_dict())

    def loads(self, path: Any) -> None:
        """Read the state from a folder."""
        with np.load(Path(path) / _FILE) as state:
            self.load_state_dict(dict(state))

    def _empty(self) -> None:
        self.priorities.clear()
