"""The same net under Lightning, on one device or, with `--devices 2`, on several.

Make the loader in `train_dataloader()`, where the process group exists. Lightning saves its state with every
checkpoint, and resumes in the middle of an epoch.
"""

import argparse
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import avare.torch as avt
from torch_plain import make_dataset


class Classifier(lightning.LightningModule):
    """A small net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))

    def train_dataloader(self) -> avt.ImportanceLoader:
        """Make a loader of batches of 64, over all devices."""
        return avt.ImportanceLoader(make_dataset(), batch_size=64 // self.trainer.world_size, seed=0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the weighted loss, and report the norms."""
        (rows, labels), index, weight = batch
        logits = self.net(rows)
        self.trainer.train_dataloader.update(index, avt.output_norms(logits, labels))
        return (weight * F.cross_entropy(logits, labels, reduction="none")).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train, and print the gain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        strategy="ddp" if arguments.devices > 1 else "auto",
        use_distributed_sampler=False,  # the loader knows the other ranks itself
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier())
    if trainer.is_global_zero:
        loader = trainer.train_dataloader
        print(f"steps {trainer.global_step}, draws {loader.importance_sampler.steps}, gain {loader.gain:.2f}")


if __name__ == "__main__":
    main()
