"""``loader.update(index, number)`` with one number for the batch: what it loses against a norm of each example.

A net with one hidden layer learns the handwritten digits of scikit-learn, of which one class is rare, from batches of
16 and 64. After each epoch the gain is computed exactly: the second moment of the gradients in the output, drawn
uniformly, over the second moment with the probabilities of the sampler. It is averaged over the second half of the
epochs, and so is `loader.gain`, the estimate. The training loss is that of all examples at the end. Means of the
seeds, with standard errors.
"""

import argparse
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import avare.torch as avt
from avare.diagnostics import cost
from harness import save, table, where

SAMPLERS = ("Uniform", "Calibrated", "Passes")
REPORTS = ("norms", "losses", "one number")
EPOCHS, SIZES, SEEDS = 40, (16, 64), 5


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels; of the digit 8, one in eight."""
    images, labels = load_digits(return_X_y=True)
    kept = (labels != 8) | (np.arange(len(labels)) % 8 == 0)
    return torch.from_numpy(images[kept] / 16.0).float(), torch.from_numpy(labels[kept])


def train(sampler: str, report: str, size: int, seed: int, epochs: int) -> dict[str, Any]:
    """Train once; return the exact gain and the loss."""
    torch.manual_seed(seed)
    X, y = digits()
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = avt.ImportanceLoader(TensorDataset(X, y), batch_size=size, sampler=sampler, seed=seed)
    gains, estimates = [], []
    for _ in range(epochs):
        for (rows, labels), index, weight in loader:
            logits = model(rows)
            losses = F.cross_entropy(logits, labels, reduction="none")
            optimizer.zero_grad()
            avt.weighted_mean(losses, weight).backward()
            optimizer.step()
            found = {"norms": avt.output_norms(logits, labels), "losses": losses, "one number": losses.mean()}
            loader.update(index, found[report])
        with torch.no_grad():
            norms = avt.output_norms(model(X), y).double().numpy()
        n = len(norms)
        gains.append(cost(norms, np.full(n, 1 / n)) / cost(norms, loader.importance_sampler.probabilities()))
        estimates.append(loader.gain)
    with torch.no_grad():
        loss = F.cross_entropy(model(X), y).item()
    row = {"sampler": sampler, "report": report, "size": size, "seed": seed}
    gain, estimate = (float(np.mean(each[epochs // 2 :])) for each in (gains, estimates))
    return {**row, "gain": gain, "estimate": estimate, "loss": loss}


def report(result: dict[str, Any]) -> str:
    """Write the tables."""
    parts = ["# One number for a batch", str(__doc__).split("\n\n", 1)[1].strip().replace("\n", " ")]
    for size in sorted({row["size"] for row in result["runs"]}):
        cells: dict[str, list[tuple[float, ...]]] = {}
        for row in result["runs"]:
            if row["size"] == size:
                name = row["sampler"] if row["sampler"] == "Uniform" else f"{row['sampler']}, {row['report']}"
                cells.setdefault(name, []).append((row["gain"], row["estimate"], row["loss"]))
        rows = []
        for name, pairs in cells.items():
            means, errors = np.mean(pairs, axis=0), np.std(pairs, axis=0, ddof=1) / len(pairs) ** 0.5
            texts = [f"{means[k]:.{digits}f} ± {errors[k]:.{digits}f}" for k, digits in enumerate((2, 2, 4))]
            rows.append([name, *texts])
        parts += [f"## Batches of {size}", table(["", "gain", "`loader.gain`", "training loss"], rows)]
    return "\n\n".join(parts)


def main() -> None:
    """Train with each, in turns, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two epochs and seeds, to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    runs = [
        train(sampler, each, size, seed, 2 if quick else EPOCHS)
        for size in SIZES
        for sampler in SAMPLERS
        for each in (REPORTS if sampler != "Uniform" else REPORTS[:1])
        for seed in range(2 if quick else SEEDS)
    ]
    result = {"where": where(), "epochs": EPOCHS, "runs": runs}
    if not quick:
        save("one_number", result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
