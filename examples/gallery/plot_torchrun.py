"""
Many processes with torchrun
============================

All processes of a job draw from the same probabilities, each its own part of the batch, and remember the norms of all.
`ImportanceLoader` finds the process group by itself: the training loop is that of one process. This page starts itself
in two processes, with the loader and with PyTorch's ``DistributedSampler``.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import avare.torch as avt

EPOCHS = 12


def make_dataset(n: int = 16_000) -> TensorDataset:
    """Make clusters, a few of them close to each other: most examples soon become easy."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 20, generator=generator) * torch.linspace(0.4, 3.0, 10)[:, None]
    labels = torch.randint(10, (n,), generator=generator)
    return TensorDataset(centres[labels] + torch.randn(n, 20, generator=generator), labels)


# %%
# What each process does. It knows from ``torchrun`` that it is one of several.


def train(way: str) -> list[tuple[float, float]]:
    """Return seconds of training and loss on all data after each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = make_dataset()
    rows, labels = data.tensors
    net = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    loader = avt.ImportanceLoader(data, batch_size=32, seed=0)  # 32 in each process
    uniform = DistributedSampler(data, seed=0)
    plain = DataLoader(data, batch_size=32, sampler=uniform)
    used, points = 0.0, []
    for epoch in range(EPOCHS):
        start = time.perf_counter()
        uniform.set_epoch(epoch)
        batches = loader if way == "importance" else ((batch, None, torch.ones(len(batch[1]))) for batch in plain)
        for (x, y), index, weight in batches:
            logits = net(x)
            loss = avt.weighted_mean(F.cross_entropy(logits, y, reduction="none"), weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if way == "importance":
                loader.update(index, avt.output_norms(logits, y))
        used += time.perf_counter() - start
        with torch.no_grad():
            points.append((used, float(F.cross_entropy(net.module(rows), labels))))
    return points


if "RANK" in os.environ:  # set by torchrun
    dist.init_process_group("gloo")
    train("importance")  # compiles kernels, off the clock
    found = {way: train(way) for way in ("DistributedSampler", "importance")}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()
    sys.exit()

# %%
# Start it: ``torchrun --nproc-per-node 2 plot_torchrun.py``.

command = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node=2",
    str(Path(sys.argv[0]).resolve()),
]
printed = subprocess.run(
    command, check=True, text=True, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}
)
found = json.loads(printed.stdout.splitlines()[-1])

figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.4), sharey=True, layout="constrained")
for way, points in found.items():
    axes[0].plot(range(1, EPOCHS + 1), [loss for _, loss in points], "o-", label=way)
    axes[1].plot(*zip(*points, strict=True), "o-", label=way)
axes[0].set(xlabel="epochs", ylabel="loss on all data")
axes[1].set(xlabel="seconds, two processes on two cores")
axes[0].legend()

# %%
# In epochs the loader is ahead, and its loss falls more smoothly. In seconds it is not, with so small a net: two
# processes that exchange norms at each step spend as much time on that as on training. With a larger net the exchange
# stays the same.

for way, points in found.items():
    print(f"{way}: loss {points[-1][1]:.4f} after {EPOCHS} epochs and {points[-1][0]:.1f} s")
