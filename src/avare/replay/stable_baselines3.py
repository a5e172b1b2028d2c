"""Prioritised replay for Stable-Baselines3: a replay buffer, and a DQN that uses its weights."""

from collections import namedtuple
from typing import Any

import numpy as np

from avare._optional import require

require("stable_baselines3", "avare.replay.stable_baselines3", "replay")

# isort: split
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch.nn import functional as F

from avare.replay.prioritized import Prioritized

__all__ = ["PrioritizedDQN", "PrioritizedReplayBuffer"]


_FIELDS = (*ReplayBufferSamples._fields, "weights", "indices")
_MAKE: Any = namedtuple  # type checkers want to read the fields here
_Samples = _MAKE("_Samples", _FIELDS, defaults=[None] * len(_FIELDS))


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ``ReplayBuffer`` that draws by priority: `sample` also returns ``weights`` and ``indices``.

    An algorithm must multiply its losses by the weights and call `update_priorities`, as `PrioritizedDQN` does.

    Parameters
    ----------
    *arguments, **others
        Those of ``stable_baselines3.common.buffers.ReplayBuffer``, except ``optimize_memory_usage``.
    alpha, beta, seed
        See `avare.replay.Prioritized`. By default, the seed of the algorithm determines this one too.
    epsilon : float, default=1e-6
        Added to each priority, so that none is 0.

    Examples
    --------
    >>> model = PrioritizedDQN("MlpPolicy", "CartPole-v1", buffer_size=1000, learning_starts=50, seed=0).learn(200)
    >>> batch = model.replay_buffer.sample(32)
    >>> batch.weights.shape, len(batch.indices)
    (torch.Size([32, 1]), 32)
    """

    def __init__(
        self,
        *arguments: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        seed: int | None = None,
        **others: Any,
    ) -> None:
        super().__init__(*arguments, **others)
        if self.optimize_memory_usage:
            raise ValueError("optimize_memory_usage = True: PrioritizedReplayBuffer needs both observations")
        self.beta, self._epsilon = beta, epsilon
        if seed is None:
            seed = int(np.random.randint(2**31))  # noqa: NPY002 - which the seed of the algorithm determines
        self._priorities = Prioritized(self.buffer_size * self.n_envs, alpha=alpha, beta=beta, seed=seed)
        self._waiting = 0  # transitions without a priority: for several at once it takes less time

    @property
    def priorities(self) -> Prioritized:
        """The priorities of all transitions."""
        if self._waiting:
            self._priorities.extend(self._waiting)
            self._waiting = 0
        return self._priorities

    def add(self, *arguments: Any, **others: Any) -> None:
        """Add a transition of each environment, with the highest priority so far."""
        super().add(*arguments, **others)
        self._waiting += self.n_envs
        if self._waiting == self._priorities.capacity:
            _ = self.priorities

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        self._priorities.clear()
        self._waiting = 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions by priority."""
        indices, weights = self.priorities.sample(batch_size)
        at = np.divmod(indices, self.n_envs) if self.n_envs > 1 else (indices, 0)  # row and environment
        return _Samples(
            observations=self.to_torch(self._normalize_obs(self.observations[at], env)),
            actions=self.to_torch(self.actions[at]),
            next_observations=self.to_torch(self._normalize_obs(self.next_observations[at], env)),
            dones=self.to_torch((self.dones[at] * (1 - self.timeouts[at])).reshape(-1, 1)),
            rewards=self.to_torch(self._normalize_reward(self.rewards[at].reshape(-1, 1), env)),
            weights=self.to_torch(weights.astype(np.float32).reshape(-1, 1)),
            indices=indices,
        )

    def update_priorities(self, indices: Any, errors: torch.Tensor) -> None:
        """Set the priorities of some transitions to their absolute TD errors."""
        self.priorities.update(indices, np.abs(errors.detach().cpu().numpy().ravel()) + self._epsilon)


class PrioritizedDQN(DQN):
    """DQN with prioritised replay; ``beta`` grows linearly to 1 until the end of training.

    All arguments are those of ``stable_baselines3.DQN``; those of `PrioritizedReplayBuffer` are in
    ``replay_buffer_kwargs``.

    Examples
    --------
    >>> buffer = {"alpha": 0.5, "beta": 0.6}
    >>> model = PrioritizedDQN("MlpPolicy", "CartPole-v1", buffer_size=1000, replay_buffer_kwargs=buffer, seed=0)
    >>> model.learn(200).replay_buffer.priorities.alpha
    0.5
    """

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **{"replay_buffer_class": PrioritizedReplayBuffer, **others})

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take gradient steps on the weighted loss, and update the priorities of each batch."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses, buffer = [], self.replay_buffer
        buffer.priorities.beta = 1.0 - self._current_progress_remaining * (1.0 - buffer.beta)
        for _ in range(gradient_steps):
            data = buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.no_grad():
                following = self.q_net_target(data.next_observations).amax(dim=1, keepdim=True)
                target = data.rewards + (1 - data.dones) * self.gamma * following
            current = self.q_net(data.observations).gather(1, data.actions.long())
            loss = (data.weights * F.smooth_l1_loss(current, target, reduction="none")).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            buffer.update_priorities(data.indices, target - current.detach())
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
