"""The same net under Hugging Face Accelerate: `accelerate launch examples/torch_accelerate.py`.

`prepare` takes the loader as any other: batches arrive on the device, `save_state` and `load_state` include it. The
loader shares its draws between processes itself.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

import avare.torch as avt
from torch_plain import make_dataset


def main() -> None:
    """Train, from the checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, help="folder to save to at the end, and to resume from")
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = avt.ImportanceLoader(make_dataset(), batch_size=64 // accelerator.num_processes, seed=0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if arguments.checkpoint is not None and arguments.checkpoint.exists():
        accelerator.load_state(str(arguments.checkpoint))
    while loader.epoch < arguments.epochs:
        for (rows, labels), index, weight in loader:
            logits = model(rows)
            loader.update(index, avt.output_norms(logits, labels))
            accelerator.backward(avt.weighted_mean(F.cross_entropy(logits, labels, reduction="none"), weight))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"draws {loader.importance_sampler.steps}, gain {loader.gain:.2f}")
    if arguments.checkpoint is not None:
        accelerator.save_state(str(arguments.checkpoint))
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)  # they hold the process group
    accelerator.end_training()


if __name__ == "__main__":
    main()
