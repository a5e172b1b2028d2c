"""The same net under Lightning, on one device or, with `--devices 2`, on several.

Importance sampling takes two changes: the callback, and a `training_step` that returns a loss for each example, and
norms.
"""

import argparse
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import avare.torch as avt
from avare.torch.lightning import ImportanceCallback
from torch_plain import make_dataset


class Classifier(lightning.LightningModule):
    """A small net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of each example, and the norms."""
        rows, labels = batch
        logits = self.net(rows)
        return {"loss": F.cross_entropy(logits, labels, reduction="none"), "norms": avt.output_norms(logits, labels)}

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
    callback = ImportanceCallback()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    strategy = "ddp" if arguments.devices > 1 else "auto"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        strategy=strategy,
        max_epochs=arguments.epochs,
        callbacks=[callback],
        **quiet,
    )
    trainer.fit(Classifier(), DataLoader(make_dataset(), batch_size=64 // arguments.devices, shuffle=True))
    if trainer.is_global_zero and callback.loader is not None:
        draws = callback.loader.importance_sampler.steps
        print(f"steps {trainer.global_step}, draws {draws}, gain {callback.loader.gain:.2f}")


if __name__ == "__main__":
    main()
