"""
Prioritised replay: DQN on CartPole
===================================

A replay buffer that draws transitions in proportion to their last TD error, in place of uniformly:
``PrioritizedDQN`` of :mod:`avare.replay.stable_baselines3` in place of Stable-Baselines3's ``DQN``, with the same
arguments.
"""

import time
from typing import Any

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor

from avare.replay.stable_baselines3 import PrioritizedDQN

torch.set_num_threads(1)
STEPS, SEEDS = 15_000, range(4)
ARGUMENTS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 64,
    "gradient_steps": 32,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "buffer_size": 50_000,
}


def train(kind: type[DQN], seed: int) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Return the step at the end of each episode, its return, and the seconds of training."""
    env = Monitor(gymnasium.make("CartPole-v1"))
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **ARGUMENTS)
    started = time.process_time()
    model.learn(STEPS)
    return np.cumsum(env.get_episode_lengths()), np.array(env.get_episode_rewards()), time.process_time() - started


# %%
# Four seeds of each. The arguments are those of the RL Zoo for DQN on CartPole, with a smaller net and more frequent
# training; they were tuned for uniform replay.

kinds = {"uniform": DQN, "prioritised": PrioritizedDQN}
found = {name: [train(kind, seed) for seed in SEEDS] for name, kind in kinds.items()}

figure, axis = plt.subplots(figsize=(7.0, 3.4), layout="constrained")
places = np.linspace(1000, STEPS, 60)
for name, color in zip(kinds, ("#767676", "#0072B2"), strict=True):
    curves = []
    for ends, returns, _ in found[name]:
        last = [returns[(ends > place - 2000) & (ends <= place)] for place in places]
        curves.append([each.mean() if each.size else np.nan for each in last])
        axis.plot(places, curves[-1], color=color, alpha=0.3)
    axis.plot(places, np.nanmean(curves, axis=0), color=color, label=name, linewidth=2)
axis.set(xlabel="steps of the environment", ylabel="mean return of the last 2,000 steps")
axis.legend()

# %%
# Priorities make no significant difference here: the four seeds of either way differ far more than the two means.
# CartPole pays a reward at each step, so that no transition is rare; priorities help most where few transitions carry
# a reward. They took 10 to 20 % more seconds of processor time: the net is tiny, and each batch needs a weighted loss
# and an update of its priorities.

for name, runs in found.items():
    means = [float(returns[ends > STEPS // 2].mean()) for ends, returns, _ in runs]
    seeds = ", ".join(f"{each:.0f}" for each in means)
    seconds = np.mean([each for _, _, each in runs])
    print(f"{name:12} mean return in the second half {np.mean(means):.0f} ({seeds}), {seconds:.1f} seconds")
