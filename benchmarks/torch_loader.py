"""PyTorch: what a training step costs with an importance loader, and what a draw costs: `make bench`.

A step is one of SGD on an MLP 784-512-256-10 at batch 128, data in memory, with the norms of the
logits' gradients and their update; its rival the same step on ``DataLoader(shuffle=True)``.
Draws are of 128 without replacement; their rival is ``torch.multinomial``, which also takes only
weights, of which there can be no more than 2^24.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import avare.torch as avt
from harness import duration, interleave, save, table, where

BATCH_SIZE = 128
EXAMPLES = 60_000
DRAWN_FROM = [10**6, 10**7, 5 * 10**7]
Step = Callable[[], object]


class Rows(Dataset[Any]):
    """Any other dataset than torch's own: one item at a time."""

    def __init__(self, dataset: TensorDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def forever(loader: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The net, and plain SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def uniform_step(dataset: Any, workers: int) -> Step:
    """A step on shuffled batches."""
    model, optimizer = make_model()
    batches = forever(DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=workers))

    def step() -> None:
        rows, labels = next(batches)
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def importance_step(dataset: Any, workers: int) -> Step:
    """A step on weighted batches, with the norms told."""
    model, optimizer = make_model()
    loader = avt.ImportanceLoader(dataset, BATCH_SIZE, seed=0, num_workers=workers)
    batches = forever(loader)

    def step() -> None:
        (rows, labels), index, weight = next(batches)
        logits = model(rows)
        loss = F.cross_entropy(logits, labels, reduction="none")
        optimizer.zero_grad()
        (weight * loss).mean().backward()
        optimizer.step()
        loader.update(index, avt.output_norms(logits, labels))

    return step


def training(seconds: float, workers: list[int]) -> dict[str, dict[str, float]]:
    """Seconds a step, by kind of dataset and number of workers."""
    generator = torch.Generator().manual_seed(0)
    tensors = TensorDataset(
        torch.randn(EXAMPLES, 784, generator=generator), torch.randint(10, (EXAMPLES,), generator=generator)
    )
    found = {}
    for name, dataset in {"TensorDataset": tensors, "item by item": Rows(tensors)}.items():
        for number in workers:
            steps = {"uniform": uniform_step(dataset, number), "importance": importance_step(dataset, number)}
            found[f"{name}, {number} workers"] = interleave(steps, seconds=seconds, rounds=500)
    return found


def drawing(n: int, seconds: float) -> dict[str, float]:
    """Seconds a draw of a batch; `torch.multinomial` where it can."""
    norms = np.random.default_rng(1).lognormal(0.0, 2.0, n)
    batches = avt.AvareBatchSampler(n, BATCH_SIZE, sampler_options={"initial_norms": norms}, seed=0, endless=True)
    drawn = iter(batches)
    weights = torch.from_numpy(norms)

    def draw_and_tell() -> None:
        pairs = next(drawn)
        batches.update(pairs.indices, norms[pairs.indices])

    steps: dict[str, Step] = {"importance": lambda: next(drawn), "importance, and update": draw_and_tell}
    if n <= 2**24:
        steps["torch.multinomial"] = lambda: torch.multinomial(weights, BATCH_SIZE, replacement=False)
    return interleave(steps, seconds=seconds)


def report(result: dict[str, Any]) -> str:
    """The tables."""
    steps = [
        [name, duration(each["uniform"]), duration(each["importance"]), f"{each['importance'] / each['uniform']:.3f} ×"]
        for name, each in result["training"].items()
    ]
    draws = [
        [
            f"N = {int(n):.0e}",
            duration(each["importance"]),
            duration(each["importance, and update"]),
            duration(each["torch.multinomial"]) if "torch.multinomial" in each else "more than 2²⁴: refused",
            f"{each['torch.multinomial'] / each['importance']:.0f} ×" if "torch.multinomial" in each else "",
        ]
        for n, each in result["drawing"].items()
    ]
    targets = [
        [f"step, {name}", "≤ 1.05 × uniform", f"{each['importance'] / each['uniform']:.3f} ×", ratio <= 1.05]
        for name, each in result["training"].items()
        for ratio in [each["importance"] / each["uniform"]]
    ]
    targets += [
        ["draw at N = 1e+07", "≥ 1000 × faster than torch.multinomial", f"{ratio:.0f} ×", ratio >= 1000.0]
        for each in [result["drawing"].get(str(10**7))]
        if each
        for ratio in [each["torch.multinomial"] / each["importance"]]
    ]
    return "\n\n".join(
        [
            "# The PyTorch loader",
            f"Median time of a step, MLP 784-512-256-10, batches of {BATCH_SIZE}; threads: {result['threads']}.",
            table(["data", "uniform, shuffled", "importance, norms and update", "ratio"], steps),
            f"Median time of a draw of {BATCH_SIZE} without replacement.",
            table(["", "importance", "and update", "torch.multinomial", "ratio of draws"], draws),
            table(
                ["target", "wanted", "measured", "met"], [[*row[:3], "yes" if row[3] else "**no**"] for row in targets]
            ),
        ]
    )


def main() -> None:
    """Measure, then write JSON and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=DRAWN_FROM, help="numbers of examples to draw from")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1], help="numbers of workers")
    parser.add_argument("--seconds", type=float, default=20.0, help="to spend on each comparison")
    parser.add_argument("--threads", type=int, default=1, help="of torch; more are disturbed by whatever else runs")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {"where": where(), "threads": arguments.threads, "drawing": {}}
    print("Measuring training steps ...", flush=True)
    result["training"] = training(arguments.seconds, arguments.workers)
    for n in map(int, arguments.sizes):
        print(f"Measuring draws at N = {n:.0e} ...", flush=True)
        result["drawing"][str(n)] = drawing(n, arguments.seconds)
    text = report(result)
    save("torch_loader", result, text)
    print(text)


if __name__ == "__main__":
    main()
