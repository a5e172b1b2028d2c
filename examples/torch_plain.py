"""Train a net with an importance loader, in plain PyTorch.

With several processes: `torchrun --nproc-per-node 2 examples/torch_plain.py`.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import avare.torch as avt


def make_dataset(n: int = 4000, classes: int = 10) -> TensorDataset:
    """Make clusters, a few of them close to each other: most examples soon become easy."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, 20, generator=generator) * torch.linspace(0.4, 3.0, classes)[:, None]
    labels = torch.randint(classes, (n,), generator=generator)
    return TensorDataset(centres[labels] + torch.randn(n, 20, generator=generator), labels)


def main() -> None:
    """Train, from the checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="file to save to after each epoch, and to resume from")
    arguments = parser.parse_args()
    if "RANK" in os.environ:  # set by torchrun
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    loader = avt.ImportanceLoader(make_dataset(), batch_size=64, seed=0, num_workers=arguments.workers)
    if arguments.checkpoint is not None and arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    trained = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    while loader.epoch < arguments.epochs:
        total = 0.0
        for (rows, labels), index, weight in loader:
            logits = trained(rows)
            loss = avt.weighted_mean(F.cross_entropy(logits, labels, reduction="none"), weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loader.update(index, avt.output_norms(logits, labels))
            total += loss.item()
        if is_first:
            print(f"epoch {loader.epoch}: loss {total / len(loader):.4f}, gain {loader.gain:.2f}")
            if arguments.checkpoint is not None:
                torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, arguments.checkpoint)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
