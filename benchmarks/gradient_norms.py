"""Measure what the norms of all examples add to a training step: `python benchmarks/gradient_norms.py`.

A step is the forward pass, the weighted loss, the backward pass and plain SGD, on one random batch of 128; the
norms come from the same pass. `torch_loader.py` measures whole training steps, with draws and updates, against
uniform training.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from avare.torch import GradientNorms, last_layer_norms, output_norms
from harness import duration, interleave, save, table, where

BATCH_SIZE = 128
MODELS = ("MLP 784-512-256-10", "CNN, 2 convolutions and 2 linear layers on 28 × 28")
MEANING = f"Median time of a training step with batches of {BATCH_SIZE}, and the ratio to it of a step with norms."
CAUTION = "if other processes are running, threads wait for them, and rows for several threads mean little."
Step = Callable[[], object]


def mlp() -> tuple[nn.Module, Tensor]:
    """Return a multi-layer perceptron, and a batch."""
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), torch.randn(BATCH_SIZE, 784)


def cnn() -> tuple[nn.Module, Tensor]:
    """Return a small convolutional net, and a batch."""
    layers = [
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
    ]
    return nn.Sequential(*layers), torch.randn(BATCH_SIZE, 1, 28, 28)


def steps_of(make: Callable[[], tuple[nn.Module, Tensor]]) -> dict[str, Step]:
    """Return a training step without norms, and one with each kind."""
    torch.manual_seed(0)
    target = torch.randint(0, 10, (BATCH_SIZE,))
    weight = torch.rand(BATCH_SIZE) + 0.5

    def step_of(kind: str) -> Step:
        model, x = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        norms = GradientNorms(model).attach() if kind == "GradientNorms" else None

        def step() -> None:
            features = model[:-1](x) if kind == "last_layer_norms" else x
            output = model[-1](features) if kind == "last_layer_norms" else model(x)
            loss = functional.cross_entropy(output, target, reduction="none")
            optimizer.zero_grad()
            (weight * loss).mean().backward()
            if norms is not None:
                norms(weight)
            elif kind == "output_norms":
                output_norms(output, target)
            elif kind == "last_layer_norms":
                last_layer_norms(features, output, target)
            optimizer.step()

        return step

    return {kind: step_of(kind) for kind in ("plain", "output_norms", "last_layer_norms", "GradientNorms")}


def report(result: dict[str, Any]) -> str:
    """Return the tables."""
    rows = []
    for name, by_threads in result["seconds"].items():
        for threads, each in by_threads.items():
            place = f"{name}, {threads} thread{'s' if threads != '1' else ''}"
            ratios = {kind: seconds / each["plain"] for kind, seconds in each.items()}
            rows.append([place, duration(each["plain"]), *(f"{ratios[kind]:.2f} ×" for kind in list(each)[1:])])
    return "\n\n".join(
        [
            "# Norms of each example's gradient",
            f"{MEANING} Load average of the machine before: {result['load']:.1f}; {CAUTION}",
            table(["model", "plain step", "output_norms", "last_layer_norms", "GradientNorms"], rows),
        ]
    )


def main() -> None:
    """Measure, then write JSON and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")
    parser.add_argument("--seconds", type=float, default=30.0, help="time per model and number of threads")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"where": where(), "load": os.getloadavg()[0], "seconds": {name: {} for name in MODELS}}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name, make in zip(MODELS, (mlp, cnn), strict=True):
            print(f"Measuring {name}, {threads} threads ...", flush=True)
            result["seconds"][name][str(threads)] = interleave(steps_of(make), seconds=arguments.seconds)
    text = report(result)
    save("gradient_norms", result, text)
    print(text)


if __name__ == "__main__":
    main()
