"""The same net under the Trainer of Hugging Face Transformers.

Override two methods, `get_train_dataloader` and `compute_loss`. A callback saves the loader's state with each
checkpoint. `ignore_data_skip` stops the Trainer from skipping batches when it resumes: the loader knows its
position.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import avare.torch as avt
from torch_plain import make_dataset


class ImportanceTrainer(Trainer):
    """A Trainer whose batches come from an importance loader."""

    loader: avt.ImportanceLoader | None = None

    def get_train_dataloader(self) -> avt.ImportanceLoader:
        """Return one loader for the whole training."""
        if self.loader is None:
            self.loader = avt.ImportanceLoader(
                self.train_dataset,
                self.args.per_device_train_batch_size,
                seed=self.args.seed,
                num_workers=self.args.dataloader_num_workers,
                collate_fn=self.data_collator,
            )
            self.add_callback(SaveLoader(self.loader))
        return self.loader

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        """Return the weighted loss in training, the plain one otherwise."""
        if not model.training:
            logits = model(inputs["rows"])
            loss = F.cross_entropy(logits, inputs["labels"])
        else:
            inputs, index, weight = inputs
            logits = model(inputs["rows"])
            loss = (weight * F.cross_entropy(logits, inputs["labels"], reduction="none")).mean()
            self.get_train_dataloader().update(index, avt.output_norms(logits, inputs["labels"]))
        return (loss, {"logits": logits}) if return_outputs else loss


class SaveLoader(TrainerCallback):
    """Save the loader's state with each checkpoint."""

    def __init__(self, loader: avt.ImportanceLoader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        """Save it; the Trainer calls this after its own save."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(self.loader.state_dict(), folder / "loader.pt")


def collate(items: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Make a batch of items, as any collate function does."""
    rows, labels = zip(*items, strict=True)
    return {"rows": torch.stack(rows), "labels": torch.stack(labels)}


def make_trainer(folder: Path, epochs: int, **options: Any) -> ImportanceTrainer:
    """Make a net, its data and its Trainer."""
    torch.manual_seed(0)
    return ImportanceTrainer(
        model=nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)),
        args=TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=64,
            num_train_epochs=epochs,
            learning_rate=0.01,
            seed=0,
            use_cpu=True,
            ignore_data_skip=True,
            remove_unused_columns=False,
            label_names=["labels"],
            report_to="none",
            disable_tqdm=True,
            **options,
        ),
        train_dataset=make_dataset(),
        data_collator=collate,
    )


def main() -> None:
    """Train, and print the gain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(Path(folder), arguments.epochs, save_strategy="no")
        trainer.train()
    loader = trainer.get_train_dataloader()
    print(f"draws {loader.importance_sampler.steps}, gain {loader.gain:.2f}")


if __name__ == "__main__":
    main()
