"""Train with `ImportanceTrainer` under torchrun: draws, losses, a resumed run, a rank that raises an error."""

import gc
import os
import sys
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import avare.torch as avt
from avare.torch.transformers import ImportanceTrainer


class Unlucky(ImportanceTrainer):
    """On rank 1 an error comes before the norms are reported."""

    def example_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> Any:
        if self.args.process_index == 1 and self.state.global_step == 2:
            raise RuntimeError("out of luck")
        return super().example_losses(logits, labels)


def make(kind: type[ImportanceTrainer], folder: str) -> ImportanceTrainer:
    """A tiny model on texts of different lengths, with accumulated gradients."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(11, (24, 6), generator=generator)
    labels = ids.masked_fill(torch.arange(6) > (2 + torch.arange(24) % 4)[:, None], -100)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    args = TrainingArguments(
        output_dir=folder, use_cpu=True, ddp_backend="gloo" if ranks > 1 else None, report_to="none", disable_tqdm=True,
        save_strategy="steps", save_steps=2, logging_steps=1, per_device_train_batch_size=4 // ranks,
        gradient_accumulation_steps=2, num_train_epochs=2, seed=3,
    )  # fmt: skip
    dataset = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    return kind(GPT2LMHeadModel(config), args, train_dataset=dataset, importance=avt.Importance(pool=None))


def main() -> None:
    """Print what rank 0 has seen, then how each rank stops."""
    folder = sys.argv[1]
    for resumed in (None, f"{folder}/checkpoint-4"):  # in the middle of the second epoch
        trainer = make(ImportanceTrainer, folder)
        trainer.train(resume_from_checkpoint=resumed)
        loader = trainer.importance_loader
        assert loader is not None
        if trainer.is_world_process_zero():
            print("drawn", loader.importance_sampler.steps, loader.state_dict()["fingerprint"], flush=True)
            for row in trainer.state.log_history:
                if "loss" in row:
                    print(f"loss {row['loss']:.6f}", flush=True)
    if trainer.args.world_size > 1:
        trainer = make(Unlucky, folder)
        try:
            trainer.train()
        except (RuntimeError, ValueError) as error:
            print(f"rank {trainer.args.process_index} stopped: {type(error).__name__}: {error}", flush=True)
        del trainer, loader
        gc.collect()  # DDP first: if it is the last to hold the group, its destructor may wait for a thread forever
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
