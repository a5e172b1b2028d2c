"""
An image classifier with a pool that is freshly scored
======================================================

Most images soon become easy, and a net that has learned them spends its time on them all the same. With ``score=`` the
loader draws a pool of examples, scores it with the net as it is (a forward pass, no backward pass), and trains on those
that matter. The weights keep the gradient that of all data.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import avare.torch as avt

torch.set_num_threads(1)


def images(source: np.ndarray, labels: np.ndarray, copies: int, seed: int) -> TensorDataset:
    """Place scikit-learn's digits at random on a larger, noisy canvas."""
    rng = np.random.default_rng(seed)
    canvas = rng.normal(0.0, 0.1, (copies * len(source), 1, 10, 10)).astype(np.float32)
    for row in range(len(canvas)):
        top, left = rng.integers(0, 3, 2)
        canvas[row, 0, top : top + 8, left : left + 8] += source[row % len(source)] / 16.0
    return TensorDataset(torch.from_numpy(canvas), torch.from_numpy(np.tile(labels, copies)))


digits, labels = load_digits(return_X_y=True)
digits = digits.reshape(-1, 8, 8)
train = images(digits[:1300], labels[:1300], copies=16, seed=0)
test = images(digits[1300:], labels[1300:], copies=4, seed=1)
SECONDS, BATCH = 12.0, 64


def make_net() -> nn.Module:
    """Return a small net."""
    layers = [nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def run(pooled: bool, seed: int, seconds: float = SECONDS) -> list[tuple[float, float, float]]:
    """Train for some processor seconds; return seconds, training loss and test error after each epoch."""
    torch.manual_seed(seed)
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    plain = DataLoader(train, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed))
    scored = avt.ImportanceLoader(
        train, batch_size=BATCH, seed=seed, score=lambda batch: avt.output_norms(net(batch[0]), batch[1])
    )
    used, points = 0.0, []
    while used < seconds:
        start = time.process_time()
        epoch = scored if pooled else ((batch, None, torch.ones(len(batch[1]))) for batch in plain)
        for (x, y), _, weight in epoch:
            loss = F.cross_entropy(net(x), y, reduction="none")
            optimizer.zero_grad()
            avt.weighted_mean(loss, weight).backward()
            optimizer.step()
        used += time.process_time() - start
        with torch.no_grad():
            loss = F.cross_entropy(net(train.tensors[0]), train.tensors[1])
            error = (net(test.tensors[0]).argmax(1) != test.tensors[1]).float().mean()
        points.append((used, float(loss), float(error)))
    return points


run(pooled=True, seed=9, seconds=0.5)  # compiles kernels, off the clock
runs = {
    name: [run(pooled, seed) for seed in range(2)]
    for name, pooled in {"shuffled": False, "pool, freshly scored": True}.items()
}

# %%
# Training loss and test error against processor seconds, two seeds each.

figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.4), layout="constrained")
for colour, (name, curves) in enumerate(runs.items()):
    for seed, curve in enumerate(curves):
        used, loss, error = np.array(curve).T
        for axis, values in zip(axes, (loss, 100.0 * error), strict=True):
            axis.plot(used, values, color=f"C{colour}", label=name if seed == 0 else None)
axes[0].set(xlabel="processor seconds", title="Training loss", yscale="log")
axes[1].set(xlabel="processor seconds", title="Test error, %", ylim=(0.0, 20.0))
axes[0].legend()

# %%
# The pool needs fewer steps and each step takes longer, since 2 to 4 times as many images are scored as are trained on.
# Here low levels of the training loss are reached in fewer seconds, and more smoothly. The test error is the same:
# 1,300 handwritten digits are soon learned by heart. A convolutional net on the same images was tried first, and stayed
# at a training loss of 0.05 in this time; there the pool saved nothing. `avare.torch.diagnose` tells beforehand how
# much there is to gain.

for level in (0.03, 0.01, 0.003):
    first = {
        name: [next((used for used, loss, _ in curve if loss <= level), np.inf) for curve in curves]
        for name, curves in runs.items()
    }
    print(f"training loss {level}:", ", ".join(f"{name} {min(s):.1f} to {max(s):.1f} s" for name, s in first.items()))
