"""Measure what a training step with an importance loader costs, and what a draw costs: `make bench`.

A step is one of SGD on an MLP 784-512-256-10, or on a small CNN, with batches of 128 and data in memory. It draws
and fetches the batch, computes the norms (of the logits' gradients, or exact over all parameters) and reports
them. The rival is the same step on ``DataLoader(shuffle=True)``, without weights. A draw is of 128 examples
without replacement; its rival is ``torch.multinomial``, which takes at most 2^24 weights. The second stage is
measured with scores that are known: what is left is all that it costs beyond the forward pass.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import avare.torch as avt
from avare.torch.loading.batch_sampler import AvareBatchSampler
from gradient_norms import cnn, mlp
from harness import duration, interleave, save, table, where

BATCH_SIZE = 128
EXAMPLES = 60_000
DRAWN_FROM = [10**6, 10**7, 5 * 10**7]
SHAPES = {"MLP": (784,), "CNN": (1, 28, 28)}
LIMITS = {("MLP", "output_norms"): 1.05, ("MLP", "GradientNorms"): 1.25, ("CNN", "GradientNorms"): 1.8}
MEANING = (
    f"Median time of a training step on shuffled batches of {BATCH_SIZE}, and the ratio to it of a step on drawn "
    "batches, with norms and update. MLP: 784-512-256-10; CNN: 2 convolutions and 2 linear layers on 28 × 28."
)
POOL_BATCH, POOL_RATIO = 64, 3
POOL_LIMIT, OFF_LIMIT = 60e-6, 1.02
POOL_MEANING = (
    f"Median time of the next batch of {POOL_BATCH} from data in memory, without the forward pass: drawn and updated, "
    f"and drawn from a pool of {POOL_RATIO} batches with known scores. The second stage is the "
    f"difference without the time to load {POOL_RATIO - 1} batches more."
)
Step = Callable[[], object]


class ItemByItem(Dataset[Any]):
    """A dataset that returns one item at a time, unlike torch's own."""

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


def make_model(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the net, and plain SGD."""
    torch.manual_seed(0)
    model, _ = mlp() if name == "MLP" else cnn()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def uniform_step(name: str, dataset: Any, workers: int) -> Step:
    """Return a step on shuffled batches."""
    model, optimizer = make_model(name)
    batches = forever(DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=workers))

    def step() -> None:
        rows, labels = next(batches)
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def importance_step(name: str, dataset: Any, workers: int, kind: str, **options: Any) -> Step:
    """Return a step on weighted batches that reports the norms."""
    model, optimizer = make_model(name)
    loader = avt.ImportanceLoader(dataset, BATCH_SIZE, seed=0, num_workers=workers, **options)
    batches = forever(loader)
    norms = avt.GradientNorms(model).attach() if kind == "GradientNorms" else None

    def step() -> None:
        (rows, labels), index, weight = next(batches)
        logits = model(rows)
        loss = F.cross_entropy(logits, labels, reduction="none")
        optimizer.zero_grad()
        (weight * loss).mean().backward()
        found = avt.output_norms(logits, labels) if norms is None else norms(weight)
        optimizer.step()
        loader.update(index, found)

    return step


def training(seconds: float, workers: list[int]) -> dict[str, dict[str, Any]]:
    """Measure seconds per step, by model, kind of dataset and number of workers."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(EXAMPLES, 784, generator=generator)
    labels = torch.randint(10, (EXAMPLES,), generator=generator)
    found = {}
    for model, shape in SHAPES.items():
        tensors = TensorDataset(rows.view(EXAMPLES, *shape), labels)
        for name, dataset in {"TensorDataset": tensors, "item by item": ItemByItem(tensors)}.items():
            for number in workers:
                place = f"{model}, {name}, {number} workers"
                print(f"Measuring training steps: {place} ...", flush=True)
                steps = {"uniform": uniform_step(model, dataset, number)}
                for kind in ("output_norms", "GradientNorms"):
                    steps[kind] = importance_step(model, dataset, number, kind)
                found[place] = {"model": model, **interleave(steps, seconds=seconds, rounds=500)}
    return found


def drawing(n: int, seconds: float) -> dict[str, float]:
    """Measure seconds per draw of a batch, also by `torch.multinomial` if it takes this number of weights."""
    norms = np.random.default_rng(1).lognormal(0.0, 2.0, n)
    batches = AvareBatchSampler(
        n, BATCH_SIZE, sampler_options={"initial_norms": norms}, seed=0, batches_per_epoch=10**9
    )
    drawn = iter(batches)
    weights = torch.from_numpy(norms)

    def draw() -> Any:
        pairs = next(drawn)
        batches.cursor.receive()
        return pairs

    def draw_and_report() -> None:
        pairs = draw()
        batches.update(pairs.indices, norms[pairs.indices])

    steps: dict[str, Step] = {"importance": draw, "importance, and update": draw_and_report}
    if n <= 2**24:
        steps["torch.multinomial"] = lambda: torch.multinomial(weights, BATCH_SIZE, replacement=False)
    return interleave(steps, seconds=seconds)


def pooling(seconds: float) -> dict[str, Any]:
    """Measure seconds per batch with and without a second stage, and per training step while it is off."""
    generator = torch.Generator().manual_seed(0)
    norms = torch.rand(POOL_BATCH * POOL_RATIO, generator=generator)
    found: dict[str, Any] = {}
    for width in (22, 784):
        dataset = TensorDataset(
            torch.randn(EXAMPLES, width, generator=generator), torch.randint(10, (EXAMPLES,), generator=generator)
        )
        plain = avt.ImportanceLoader(dataset, POOL_BATCH, seed=0)
        pooled = avt.ImportanceLoader(dataset, POOL_BATCH, seed=0, score=lambda batch: norms, pool=POOL_RATIO)
        batches, pools = forever(plain), forever(pooled)

        def update(batches: Any = batches, loader: Any = plain) -> None:
            _, index, _ = next(batches)
            loader.update(index, norms[:POOL_BATCH])

        indices = itertools.cycle(torch.randint(EXAMPLES, (100, POOL_BATCH * (POOL_RATIO - 1)), generator=generator))

        def load(tensors: Any = dataset.tensors, indices: Any = indices) -> None:
            index = next(indices)
            for tensor in tensors:
                tensor.index_select(0, index)

        steps: dict[str, Step] = {
            "batch and update": update,
            "pool": functools.partial(next, pools),
            "loading more": load,
        }
        found[f"rows of {width}"] = interleave(steps, seconds=seconds, rounds=50)
    never = {"score": lambda batch: norms[:1].expand(len(batch[0])), "cost_ratio": 0.5}
    steps = {
        "no second stage": importance_step("MLP", dataset, 0, "output_norms"),
        "off": importance_step("MLP", dataset, 0, "output_norms", **never),
    }
    return {"batches": found, "training": interleave(steps, seconds=seconds, rounds=500)}


def pool_tables(found: dict[str, Any]) -> tuple[list[list[str]], list[list[Any]]]:
    """Return the rows of the table of the second stage, and its targets."""
    rows, targets = [], []
    for name, each in found["batches"].items():
        more = each["pool"] - each["batch and update"] - each["loading more"]
        times = [each["batch and update"], each["pool"], each["loading more"], more]
        rows.append([name, *map(duration, times)])
        wanted = f"≤ {duration(POOL_LIMIT)}"
        targets.append([f"second stage, {name}, beyond the forward pass", wanted, duration(more), more <= POOL_LIMIT])
    ratio = found["training"]["off"] / found["training"]["no second stage"]
    targets.append(["second stage switched off: MLP", f"≤ {OFF_LIMIT} × without", f"{ratio:.3f} ×", ratio <= OFF_LIMIT])
    return rows, targets


def report(result: dict[str, Any]) -> str:
    """Return the tables."""
    steps, targets = [], []
    for name, each in result["training"].items():
        ratios = {kind: each[kind] / each["uniform"] for kind in ("output_norms", "GradientNorms")}
        steps.append([name, duration(each["uniform"]), *(f"{ratio:.3f} ×" for ratio in ratios.values())])
        for kind, ratio in ratios.items():
            limit = LIMITS.get((each["model"], kind))
            if limit is not None:
                targets.append([f"{kind}: {name}", f"≤ {limit} × uniform", f"{ratio:.3f} ×", ratio <= limit])
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
    targets += [
        ["draw at N = 1e+07", "≥ 1000 × faster than torch.multinomial", f"{ratio:.0f} ×", ratio >= 1000.0]
        for each in [result["drawing"].get(str(10**7))]
        if each
        for ratio in [each["torch.multinomial"] / each["importance"]]
    ]
    pools, more_targets = pool_tables(result["pooling"])
    targets += more_targets
    return "\n\n".join(
        [
            "# The PyTorch loader",
            f"{MEANING} Threads: {result['threads']}.",
            table(["model and data", "uniform, shuffled", "output_norms", "GradientNorms"], steps),
            f"Median time of a draw of {BATCH_SIZE} without replacement.",
            table(["", "importance", "and update", "torch.multinomial", "ratio of draws"], draws),
            POOL_MEANING,
            table(["", "batch and update", "batch of a pool", "loading more", "second stage"], pools),
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
    parser.add_argument("--seconds", type=float, default=20.0, help="time per comparison")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch; with more, other processes disturb the measurement"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {"where": where(), "threads": arguments.threads, "drawing": {}}
    result["training"] = training(arguments.seconds, arguments.workers)
    for n in map(int, arguments.sizes):
        print(f"Measuring draws at N = {n:.0e} ...", flush=True)
        result["drawing"][str(n)] = drawing(n, arguments.seconds)
    print("Measuring the second stage ...", flush=True)
    result["pooling"] = pooling(arguments.seconds)
    text = report(result)
    save("torch_loader", result, text)
    print(text)


if __name__ == "__main__":
    main()
