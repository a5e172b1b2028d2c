"""Fine-tune a causal language model on text with many easy and some hard documents, with Transformers.

    python examples/torch_language_model.py                        # a small model of random weights, without downloads
    python examples/torch_language_model.py --model path/to/one    # of `save_pretrained`, with its tokenizer

Importance sampling takes two lines: the import, and `ImportanceTrainer(..., importance=...)` in place of
`Trainer(...)`.
"""

import argparse
import random
import tempfile
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import avare.torch as avt
from avare.torch.transformers import ImportanceTrainer

LENGTH = 48  # tokens per document
EASY = ("the cat sat on the mat and looked at the moon.", "in the morning the train leaves from platform two.")


def make_texts(n: int, seed: int) -> list[str]:
    """Nine of ten documents are one of two sentences; the others are sums of two numbers."""
    source = random.Random(seed)

    def text() -> str:
        if source.random() < 0.9:
            return source.choice(EASY)
        pairs = ((source.randrange(100), source.randrange(100)) for _ in range(5))
        return " ".join(f"{a}+{b}={a + b}" for a, b in pairs)

    return [text() for _ in range(n)]


def encode(texts: list[str], tokenizer: Any = None) -> list[dict[str, torch.Tensor]]:
    """Return tokens and labels of equal length; what is padded does not count."""
    items = []
    for text in texts:
        found = list(text.encode()) if tokenizer is None else tokenizer(text)["input_ids"]
        ids = torch.zeros(LENGTH, dtype=torch.long)
        ids[: len(found)] = torch.tensor(found[:LENGTH])
        seen = torch.arange(LENGTH) < len(found)
        items.append({"input_ids": ids, "attention_mask": seen.long(), "labels": ids.masked_fill(~seen, -100)})
    return items


def make_model(path: str | None = None) -> tuple[Any, Any]:
    """Return the model of a folder and its tokenizer, or a small one that reads bytes."""
    if path is not None:
        return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, **heads)
    return LlamaForCausalLM(config), None


def make_trainer(importance: avt.Importance | None, folder: str, path: str | None, **options: Any) -> Trainer:
    """Return the plain Trainer if `importance` is None, and otherwise one that draws by importance."""
    model, tokenizer = make_model(path)
    common: dict[str, Any] = {"per_device_train_batch_size": 16, "learning_rate": 2e-3, "lr_scheduler_type": "constant"}
    common |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 50}
    args = TrainingArguments(output_dir=folder, **{**common, **options})
    train, test = encode(make_texts(2000, 0), tokenizer), encode(make_texts(500, 1), tokenizer)
    if importance is None:
        return Trainer(model, args, train_dataset=train, eval_dataset=test)
    return ImportanceTrainer(model, args, train_dataset=train, eval_dataset=test, importance=importance)


def main() -> None:
    """Train with uniform batches, then by importance, and print the test losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", help="folder of a pretrained model, as save_pretrained writes it")
    arguments = parser.parse_args()
    for name, importance in {"uniform": None, "importance": avt.Importance(pool="auto")}.items():
        with tempfile.TemporaryDirectory() as folder:
            trainer = make_trainer(importance, folder, arguments.model, max_steps=arguments.steps)
            began = time.process_time()
            trainer.train()
            seconds = time.process_time() - began
            print(f"{name}: loss {trainer.evaluate()['eval_loss']:.4f} after {seconds:.0f} processor seconds", end="")
            loader = getattr(trainer, "importance_loader", None)
            print("" if loader is None else f", gain {loader.gain:.2f}, pools of {loader.pool_ratio:.2g} batches")


if __name__ == "__main__":
    main()
