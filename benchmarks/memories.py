"""What a sampler should remember: the last norm, or an average? ``python benchmarks/memories.py --data FOLDER``.

Each net is trained with shuffled batches, and the norm and the loss of every example are recorded at each visit. Every
memory is then simulated on the records: `Passes` visits what it keeps, one pass an epoch, and `Calibrated` makes as
many draws as there are examples. After each epoch, the gain of the next one is computed: the second moment of uniform
draws over that of the sampler, with the norms that are recorded next. So the net does not react to the memory.
"Possible" is the gain of probabilities from these next norms themselves; for `Passes` it is at most 5.

The rules of InfoBatch and RePB look at losses. InfoBatch keeps half of the examples whose last loss is below the mean.
RePB compares losses within a window of batches only, so that they are of one time; half below the mean of their window
are kept. Both weigh by one over the probability.

The first nets are those on which the rule and its defaults were chosen; the last four were not looked at before.
"""

import argparse
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import avare
import avare.torch as avt
from avare.diagnostics import cost, gain
from avare.experiments import datasets
from harness import save, table, where
from loader_runs.scripts import Script, SmallTransformer, select_rare, select_text, shifted, windows
from nets.training import build

SIZE, EPOCHS, SEEDS = 50, 16, 2
WINDOW = 20  # batches that RePB's rule compares
SHARES = {"Passes": (0.0, 0.1, 0.3, 0.5, 0.7), "Calibrated": (0.0, 0.3, 0.5, 0.7), "Avare": (0.0, 0.3, 0.5)}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recorded:
    """A net and how it is trained."""

    title: str
    data: Callable[[Path | None], tuple[Tensor, Tensor]]
    net: Callable[[], nn.Module]
    rate: float = 1e-3
    schedule: str = "one cycle"
    augment: Callable[[Tensor], Tensor] | None = None
    kind: str = "cross_entropy"
    noisy: bool = True
    """Whether the norm of an example differs between two visits at the same parameters, or its step is large."""
    held_out: bool = False


# --- data and nets --------------------------------------------------------------------------


def digits(folder: Path | None, *, random: float = 0.0, count: int = 10_000) -> tuple[Tensor, Tensor]:
    """Return images of MNIST, some with a random label."""
    found = datasets.load("mnist", folder=folder)
    images = torch.tensor(found.X[:count].reshape(-1, 1, 28, 28), dtype=torch.float32)
    labels, generator = found.y[:count].astype(np.int64), np.random.default_rng(0)
    chosen = np.flatnonzero(generator.random(count) < random)
    labels[chosen] = generator.integers(0, 10, len(chosen))
    return images, torch.from_numpy(labels)


def rare_digit(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Return images of MNIST, of which one in a hundred is positive."""
    sizes = Script("", "mnist", (10_000, 100, 100), 1, 1, digits, nn.Identity, select_rare, 1.0)
    X, y = select_rare(sizes, folder)
    return torch.from_numpy(X[:10_000]), torch.from_numpy(y[:10_000])


def records_of_time(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Return random rows of IJCNN1."""
    found = datasets.load("ijcnn1", folder=folder)
    rows = np.random.default_rng(0).permutation(len(found))[:10_000]
    return torch.tensor(found.X[rows], dtype=torch.float32), torch.tensor(found.y[rows] > 0).long()


def text(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Return pieces of a text; a transformer predicts each next character."""
    X, y = select_text(
        Script("", "shakespeare", (8000, 100, 100), 1, 1, windows, nn.Identity, select_text, 1.0), folder
    )
    return torch.from_numpy(X[:8000]), torch.from_numpy(y[:8000])


def peaked(_: Path | None) -> tuple[Tensor, Tensor]:
    """Return points in six dimensions and a function with narrow peaks."""
    generator = np.random.default_rng(1)
    X = generator.uniform(-1.0, 1.0, (10_000, 6))
    distances = ((X[:, None, :] - generator.uniform(-0.7, 0.7, (5, 6))) ** 2).sum(axis=2)
    y = np.sin(2.0 * X[:, 0]) + 3.0 * np.exp(-4.0 * distances).sum(axis=1)
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y[:, None], dtype=torch.float32)


def unbalanced(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Return rows of IJCNN1 with one positive in fifty, and a tenth of each row unknown."""
    found = datasets.load("ijcnn1", folder=folder)
    generator, positive = np.random.default_rng(2), found.y > 0
    groups = [generator.permutation(np.flatnonzero(positive == kind)) for kind in (True, False)]
    rows = generator.permutation(np.concatenate([groups[0][:200], groups[1][:9800]]))
    return torch.tensor(found.X[rows], dtype=torch.float32), torch.tensor(positive[rows]).long()


def cnn(classes: int = 10, dropout: float = 0.0) -> nn.Module:
    """Return a CNN with two convolutions."""
    net = build({"kind": "cnn", "channels": [8, 16]}, (1, 28, 28), classes)
    return with_dropout(net, dropout)


def mlp(width: int = 22, hidden: tuple[int, ...] = (64, 64), outputs: int = 2, dropout: float = 0.0) -> nn.Module:
    """Return a net with hidden layers."""
    return with_dropout(build({"kind": "mlp", "hidden": list(hidden)}, (width,), outputs), dropout)


def with_dropout(net: nn.Module, part: float) -> nn.Module:
    """Put a dropout before the last layer of a net."""
    layers = list(net.children())
    return nn.Sequential(*layers[:-1], nn.Dropout(part), layers[-1])


class TransformerWithDropout(SmallTransformer):
    """The transformer of the scripts, with a dropout of what the block adds."""

    def forward(self, texts: Tensor) -> Tensor:
        return self.out(F.dropout(self.end(super_block(self, texts)), 0.2, self.training))


def super_block(net: SmallTransformer, texts: Tensor) -> Tensor:
    """Return what the block of the transformer passes to its last norm."""
    kept: list[Tensor] = []
    handle = net.end.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    SmallTransformer.forward(net, texts)
    handle.remove()
    return kept[0]


def hidden(rows: Tensor) -> Tensor:
    """Set a tenth of the features to 0."""
    return rows * (torch.rand_like(rows) > 0.1)


SHIFT = functools.partial(shifted, most=2)
NETS = {
    "augmented": Recorded("CNN, MNIST, augmentation", digits, cnn, augment=SHIFT),
    "dropout": Recorded("… and dropout", digits, functools.partial(cnn, dropout=0.5), augment=SHIFT),
    "labels": Recorded("… and 20 % random labels", functools.partial(digits, random=0.2), cnn, augment=SHIFT),
    "rare": Recorded("… 1 % positives", rare_digit, functools.partial(cnn, 2), augment=SHIFT),
    "plain": Recorded("CNN, MNIST, plain", digits, cnn, noisy=False),
    "constant": Recorded("… constant step", digits, cnn, schedule="constant"),
    "plain labels": Recorded("… 20 % random labels", functools.partial(digits, random=0.2), cnn, noisy=False),
    "mlp": Recorded("MLP, IJCNN1", records_of_time, mlp, noisy=False),
    "mlp dropout": Recorded("… dropout", records_of_time, functools.partial(mlp, dropout=0.3)),
    "logistic": Recorded(
        "logistic, IJCNN1, steps as 1/t", records_of_time, lambda: nn.Linear(22, 2), 0.3, "1/t", noisy=False
    ),
    "transformer": Recorded(
        "transformer, Shakespeare, dropout", text, TransformerWithDropout, augment=windows, kind="text", held_out=True
    ),
    "large steps": Recorded(
        "MLP, MNIST, large steps",
        digits,
        lambda: nn.Sequential(nn.Flatten(), mlp(784, (128,), 10)),
        1e-2,
        "constant",
        held_out=True,
    ),
    "regression": Recorded(
        "regression with peaks, dropout",
        peaked,
        functools.partial(mlp, 6, (64, 64), 1, 0.1),
        kind="squared",
        held_out=True,
    ),
    "unbalanced": Recorded(
        "MLP, IJCNN1, 2 % positives, hidden features", unbalanced, mlp, augment=hidden, held_out=True
    ),
}


# --- records --------------------------------------------------------------------------------


def record(net: Recorded, folder: Path | None, epochs: int, seed: int) -> tuple[Floats, Floats]:
    """Train with shuffled batches; return the norms and the losses of all examples, epoch by epoch."""
    torch.manual_seed(seed)
    inputs, targets = net.data(folder)
    n, model = len(inputs) // SIZE * SIZE, net.net()
    steps = epochs * n // SIZE
    if net.schedule == "1/t":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=net.rate)
        rates: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step / 200.0))
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=net.rate)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3.0 * net.rate, total_steps=steps)
        rates = cycle if net.schedule == "one cycle" else None
        if rates is None:
            for group in optimizer.param_groups:
                group["lr"] = net.rate
    norms, losses = np.zeros((2, epochs, n))
    for epoch in range(epochs):
        for rows in torch.randperm(n).split(SIZE):
            batch = net.augment(inputs[rows]) if net.augment else inputs[rows]
            loss, norm = measured(net.kind, model(batch), batch, targets[rows])
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()
            if rates is not None:
                rates.step()
            norms[epoch, rows], losses[epoch, rows] = norm.double().numpy(), loss.detach().double().numpy()
    return norms, losses


def measured(kind: str, output: Tensor, batch: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and the norm of each example."""
    if kind == "squared":
        return F.mse_loss(output, targets, reduction="none").mean(dim=1), avt.output_norms(output, targets, "squared")
    if kind == "text":
        output, targets = output.movedim(-1, 1), batch[:, 1:]
        norms = avt.output_norms(output, targets, reduction="mean")
        return F.cross_entropy(output, targets, reduction="none").mean(dim=1), norms
    return F.cross_entropy(output, targets, reduction="none"), avt.output_norms(output, targets)


# --- memories -------------------------------------------------------------------------------


def gains_of_passes(norms: Floats, share: float, seed: int) -> list[float]:
    """Return the gain of each pass of `Passes` but the first."""
    sampler, found = avare.Passes(norms.shape[1], SIZE, memory=share, seed=seed), []
    for epoch in range(len(norms) - 1):
        drawn = 0
        while drawn == 0 or drawn < sampler.kernels.progress[1]:
            batch = sampler.sample()
            sampler.update(batch, norms[epoch, batch.indices])
            drawn += SIZE
        found.append(realised(norms[epoch + 1], sampler.probabilities()))
    return found


def gains_of_draws(norms: Floats, kind: str, share: float, seed: int) -> list[float]:
    """Return the gain of each epoch of independent draws but the first."""
    n = norms.shape[1]
    sampler: avare.Sampler = getattr(avare, kind)(n, SIZE, memory=share, p_min=0.2 / n, seed=seed)
    found = []
    for epoch in range(len(norms) - 1):
        for _ in range(n // SIZE):
            batch = sampler.sample()
            sampler.update(batch, norms[epoch, batch.indices])
        found.append(realised(norms[epoch + 1], sampler.probabilities()))
    return found


def gains_of_losses(norms: Floats, losses: Floats, window: int, seed: int) -> list[float]:
    """Return the gain of passes that keep half of the examples whose loss is below the mean, of all or of a window."""
    generator, n = np.random.default_rng(seed), norms.shape[1]
    last, kept, found = losses[0].copy(), np.ones(n), []
    for epoch in range(len(norms) - 1):
        rows = generator.permutation(np.flatnonzero(generator.random(n) < kept))
        last[rows] = losses[epoch, rows]
        for part in np.array_split(rows, max(1, len(rows) // (window * SIZE))) if window else [np.arange(n)]:
            kept[part] = np.where(last[part] < last[part].mean(), 0.5, 1.0)
        found.append(realised(norms[epoch + 1], kept / kept.sum()))
    return found


def possible(norms: Floats) -> tuple[list[float], list[float]]:
    """Return the gain of passes, and of independent draws, if the next norms were known."""
    passes = []
    for each in norms[1:]:
        sampler = avare.Passes(len(each), SIZE, seed=0)
        sampler.update(np.arange(len(each)), each)
        passes.append(realised(each, sampler.probabilities()))
    return passes, [float(gain(each)) for each in norms[1:]]


def realised(norms: Floats, p: Floats) -> float:
    """Return uniform's second moment over that of the probabilities."""
    return float(cost(norms, np.full(len(norms), 1.0 / len(norms))) / cost(norms, p))


def measure(name: str, folder: Path | None, epochs: int, seed: int) -> list[dict[str, Any]]:
    """Train a net once and simulate every memory on it."""
    norms, losses = record(NETS[name], folder, epochs, seed)
    found = {f"Passes {share}": gains_of_passes(norms, share, seed) for share in SHARES["Passes"]}
    for kind in ("Calibrated", "Avare"):
        found |= {f"{kind} {share}": gains_of_draws(norms, kind, share, seed) for share in SHARES[kind]}
    found["InfoBatch"] = gains_of_losses(norms, losses, 0, seed)
    found["RePB"] = gains_of_losses(norms, losses, WINDOW, seed)
    found["possible, passes"], found["possible, draws"] = possible(norms)
    rows = [
        {
            "net": name,
            "seed": seed,
            "memory": memory,
            "median": float(np.median(each)),
            "late": float(np.mean(each[-3:])),
        }
        for memory, each in found.items()
    ]
    print(name, seed, *(f"{row['memory']} {row['median']:.2f}/{row['late']:.2f}" for row in rows), sep="  ", flush=True)
    return rows


# --- the report -----------------------------------------------------------------------------


def report(result: dict[str, Any]) -> str:
    """Write the tables."""
    parts = ["# What a sampler should remember", str(__doc__).split("\n\n", 1)[1].strip()]
    cells: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in result["rows"]:
        cells.setdefault((row["net"], row["memory"]), []).append((row["median"], row["late"]))
    names = list(dict.fromkeys(row["net"] for row in result["rows"]))
    for title, kinds, others in (
        ("Passes", ("Passes",), ("InfoBatch", "RePB", "possible, passes")),
        ("Independent draws", ("Calibrated", "Avare"), ("possible, draws",)),
    ):
        memories = [f"{kind} {share}" for kind in kinds for share in SHARES[kind]] + list(others)
        rows = [
            [NETS[name].title + (" (held out)" if NETS[name].held_out else "")]
            + [" / ".join(f"{value:.2f}" for value in np.mean(cells[name, memory], axis=0)) for memory in memories]
            for name in names
        ]
        parts += [f"## {title}: gain of the next pass, median / mean of the last three", table(["", *memories], rows)]
    parts += ["## Averages over the last norm", table(["", "median", "least"], ratios(cells, names))]
    return "\n\n".join(parts)


def ratios(cells: dict[tuple[str, str], list[tuple[float, float]]], names: list[str]) -> list[list[str]]:
    """Return how much more an average gains than the last norm, over the nets of each group."""
    rows = []
    for kind, shares in SHARES.items():
        for held_out in (False, True):
            for noisy in (True, False):
                group = [each for each in names if (NETS[each].held_out, NETS[each].noisy) == (held_out, noisy)]
                for share in shares[1:] if group else ():
                    found = [
                        np.mean(cells[each, f"{kind} {share}"], axis=0)[0]
                        / np.mean(cells[each, f"{kind} 0.0"], axis=0)[0]
                        for each in group
                    ]
                    words = f"{kind} {share}, {'noisy' if noisy else 'others'}{', held out' if held_out else ''}"
                    rows.append([words, f"{np.median(found):.3f}", f"{min(found):.3f}"])
    return rows


def main() -> None:
    """Record and simulate all nets, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--data", type=Path, help="folder with the datasets")
    parser.add_argument("--quick", action="store_true", help="two epochs of one net, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=NETS, help="some of the nets; nothing is stored")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = ["mlp"] if arguments.quick else arguments.only or list(NETS)
    seeds = range(1 if arguments.quick else SEEDS)
    epochs = 3 if arguments.quick else EPOCHS
    result: dict[str, Any] = {"where": where(), "epochs": epochs, "rows": []}
    for name in names:
        for seed in seeds:
            result["rows"] += measure(name, arguments.data, epochs, seed)
    assert all(math.isfinite(row["median"]) for row in result["rows"])
    if not arguments.quick and not arguments.only:
        save("memories", result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
