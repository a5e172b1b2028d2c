"""Stable-Baselines3 with prioritised replay."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="it is in the extra replay")
import gymnasium
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from avare.replay.stable_baselines3 import PrioritizedDQN, PrioritizedReplayBuffer
from framework_page import run_snippet

BOX, TWO = spaces.Box(-1e9, 1e9, (1,)), spaces.Discrete(2)


def filled(steps: int, n_envs: int = 1, size: int = 12, **arguments: Any) -> PrioritizedReplayBuffer:
    """A buffer whose observations, actions and rewards say which transition they are of."""
    arguments = {"alpha": 1.0, "beta": 1.0, "seed": 0, **arguments}
    buffer = PrioritizedReplayBuffer(size, BOX, TWO, device="cpu", n_envs=n_envs, **arguments)
    for step in range(steps):
        number = step * n_envs + np.arange(n_envs, dtype=np.float32)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": step % 3 == 0}] * n_envs
        done = np.full(n_envs, step % 2 == 0)
        buffer.add(number[:, None], number[:, None] + 0.5, (number % 2).astype(int), number, done, infos)
    return buffer


@pytest.mark.parametrize("n_envs", [1, 3])
def test_transitions_stay_together(n_envs: int) -> None:
    buffer = filled(steps=30, n_envs=n_envs)
    batch = buffer.sample(200)
    number = batch.rewards.flatten()
    assert torch.equal(batch.observations.flatten(), number)
    assert torch.equal(batch.next_observations.flatten(), number + 0.5)
    assert torch.equal(batch.actions.flatten().float(), number % 2)
    step = torch.div(number, n_envs, rounding_mode="floor")
    assert torch.equal(batch.dones.flatten(), ((step % 2 == 0) & (step % 3 != 0)).float())
    assert set(number.tolist()) == set(range(30 * n_envs - 12, 30 * n_envs))  # the last 12
    assert (batch.weights == 1.0).all() and batch.discounts is None


def test_priorities_are_absolute_errors() -> None:
    buffer = filled(steps=12, n_envs=1)
    batch = buffer.sample(12)
    buffer.update_priorities(np.arange(12), torch.arange(-3.0, 9.0)[:, None].requires_grad_())
    assert buffer.priorities.total == pytest.approx(3 + 2 + 1 + sum(range(9)), rel=1e-5)
    batch = buffer.sample(5000)
    errors = np.abs(np.arange(-3.0, 9.0)) + 1e-6
    assert np.allclose(batch.weights.flatten(), errors.min() / errors[batch.indices], rtol=1e-5)
    counts = np.bincount(batch.indices, minlength=12)
    mean = 5000 * errors / errors.sum()
    assert (np.abs(counts - mean) <= 6 * np.sqrt(mean) + 1).all()  # six standard deviations, at least
    buffer.reset()
    assert len(buffer.priorities) == buffer.size() == 0


def test_a_new_transition_has_the_highest_priority_when_it_was_added() -> None:
    buffer = filled(steps=4)
    buffer.update_priorities(np.arange(2), torch.tensor([5.0, 0.5]))  # after the four were added with 1
    assert buffer.priorities.state_dict()["weights"][:4] == pytest.approx([5.0, 0.5, 1.0, 1.0], rel=1e-5)
    zero = np.zeros((1, 1), dtype=np.float32)
    buffer.add(zero, zero, np.zeros(1, dtype=int), zero[0], zero[0], [{}])
    assert buffer.priorities.state_dict()["weights"][4] == pytest.approx(5.0, rel=1e-5)


def test_refuses_the_layout_without_next_observations() -> None:
    with pytest.raises(ValueError, match="optimize_memory_usage = True"):
        filled(0, optimize_memory_usage=True, handle_timeout_termination=False)


def test_without_priorities_it_is_dqn() -> None:
    # With alpha = 0 and the same transitions in each batch, the losses and gradients are those of DQN.
    model = PrioritizedDQN(
        "MlpPolicy", "CartPole-v1", learning_starts=100, replay_buffer_kwargs={"alpha": 0.0, "seed": 1}, seed=1
    )
    model.learn(101)
    buffer = model.replay_buffer
    plain = DQN("MlpPolicy", "CartPole-v1", seed=1)
    plain._setup_learn(1)
    plain.replay_buffer, plain.policy = buffer, model.policy
    plain._create_aliases()
    start = {name: value.clone() for name, value in model.policy.state_dict().items()}
    moments = model.policy.optimizer.state_dict()
    found = []
    for each in (model, plain):
        each.policy.load_state_dict(start)
        each.policy.optimizer.load_state_dict({**moments, "state": {}})
        state = buffer.priorities.state_dict()
        each.train(gradient_steps=3, batch_size=16)
        buffer.priorities.load_state_dict(state)
        found.append({name: value.clone() for name, value in each.policy.state_dict().items()})
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], rtol=0, atol=1e-7)
        assert "target" in name or not torch.equal(value, start[name])


def test_learns_cart_pole_a_little_and_saves(tmp_path: Any) -> None:
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    model = PrioritizedDQN("MlpPolicy", env, buffer_size=2000, learning_starts=100, train_freq=4, seed=0)
    model.learn(1000)
    priorities = model.replay_buffer.priorities
    assert len(priorities) == 1000 and len(np.unique(priorities.state_dict()["weights"])) > 100
    assert 0.99 < priorities.beta <= 1.0
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = PrioritizedDQN.load(tmp_path / "model", env=env)
    again.load_replay_buffer(tmp_path / "buffer")
    ours, theirs = model.replay_buffer.sample(50).indices, again.replay_buffer.sample(50).indices
    assert ours.tolist() == theirs.tolist()
    assert isinstance(again.env.envs[0], gymnasium.Env)


def test_the_seed_of_the_algorithm_determines_the_draws() -> None:
    found = []
    for _ in range(2):
        model = PrioritizedDQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=50, seed=3).learn(150)
        found.append((model.replay_buffer.sample(30).indices.tolist(), model.replay_buffer.priorities.total))
    assert found[0] == found[1]


def test_the_page_runs() -> None:
    run_snippet("Stable-Baselines3")
