"""Train one net with one loader, and time the steps of all of them. Needs PyTorch."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

import avare.torch as avt
from avare.experiments.store import Record, Spec
from loader_runs.scripts import SCRIPTS, Augmented
from nets.training import InfoBatch, build, one_cycle

BATCH_SIZE = 64
_CHUNK = 2000  # examples per forward pass of an evaluation
_TURN, _ROUNDS = 40, 9  # steps of a turn, and turns, of which the median counts
_WIDTHS = (192, 384, 640, 960)  # of hidden layers: steps of roughly 0.5, 1, 2 and 5 milliseconds
Step = Callable[[], object]


def train(spec: Spec, X: NDArray[Any], y: NDArray[np.int64]) -> Record:
    """Train a net and evaluate it at the end, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            return _follow(spec, X, y)
    finally:
        torch.set_num_threads(threads)


def _follow(spec: Spec, X: NDArray[Any], y: NDArray[np.int64]) -> Record:
    began = time.process_time()
    training = Training(spec, X, y)
    finite = all(training.step() for _ in range(training.total))
    ended = time.process_time()
    found = training.evaluate() if finite else {}
    return {
        "seconds": {"steps": ended - began, "evaluation": time.process_time() - ended},
        "status": "finished" if found else "diverged",
        "trace": {name: [value] for name, value in found.items()},
        "steps": training.steps,
        "pools": training.pools,
        "scored": training.scored,
    }


class Training:
    """A training script: augmentation, AdamW, one cycle, and one of the loaders."""

    def __init__(self, spec: Spec, X: NDArray[Any], y: NDArray[np.int64]) -> None:
        torch.manual_seed(spec["seed"])
        self.script, self.spec = SCRIPTS[spec["script"]], spec
        self.inputs, self.targets = torch.from_numpy(X), torch.from_numpy(y)
        self.model = self.script.net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=spec["rate"], fused=True)
        n = self.script.sizes[0]
        dataset = Augmented(self.inputs[:n], self.targets[:n], self.script.augment)
        self.total = round(spec["epochs"] * -(-n // BATCH_SIZE))
        self.steps = self.pools = self.scored = 0  # steps in all, those with a pool, and examples that were scored
        self.loader, batches = LOADERS[spec["loader"]](self, dataset)
        self._batches = itertools.chain.from_iterable(itertools.repeat(batches))
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: one_cycle(step / self.total))

    def step(self) -> bool:
        """Take a step; return False if the loss is not finite."""
        (inputs, targets), index, weight = next(self._batches)
        output = self.model(inputs)
        loss = self.losses(output, inputs, targets)
        mean = loss.mean() if weight is None else avt.weighted_mean(loss, weight)
        self.optimizer.zero_grad()
        mean.backward()
        self.optimizer.step()
        self._scheduler.step()
        self.steps += 1
        if index is not None:
            with torch.no_grad():
                norms = loss if isinstance(self.loader, InfoBatch) else self.norms(output, inputs, targets)
            self.loader.update(index, norms.detach())
        return math.isfinite(mean.item())

    def losses(self, output: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example; of a text, the mean over its characters."""
        if output.ndim == 2:
            return F.cross_entropy(output, targets, reduction="none")
        return F.cross_entropy(output.mT, inputs[:, 1 : output.shape[1] + 1], reduction="none").mean(dim=1)

    def norms(self, output: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient norm of each example at the output."""
        if output.ndim == 2:
            return avt.output_norms(output, targets)
        following = inputs[:, 1 : output.shape[1] + 1]
        return avt.output_norms(output, following, class_dim=-1) / following.shape[1]

    def score(self, batch: Any) -> Tensor:
        """Score a pool, and count it."""
        inputs, targets = batch
        self.pools += 1
        self.scored += len(inputs)
        was_training = self.model.training
        self.model.train(was_training and not self.script.scores_in_eval)
        found = self.norms(self.model(inputs), inputs, targets)
        self.model.train(was_training)
        return found

    def evaluate(self) -> dict[str, float]:
        """Return the training loss, and loss and error on validation and test examples, without augmentation."""
        first, second, _ = np.cumsum(self.script.sizes)
        self.model.eval()
        found: dict[str, float] = {}
        for name, part in (
            ("train", slice(0, first)),
            ("validation", slice(first, second)),
            ("test", slice(second, None)),
        ):
            with torch.no_grad():
                loss, error, f1 = self._measure(self.inputs[part], self.targets[part])
            found |= {f"{name}_loss": loss, f"{name}_error": error, f"{name}_f1": f1}
        self.model.train()
        return found

    def _measure(self, inputs: Tensor, targets: Tensor) -> tuple[float, float, float]:
        losses, guesses, truths = [], [], []
        for rows, labels in zip(inputs.split(_CHUNK), targets.split(_CHUNK), strict=True):
            output = self.model(rows)
            losses.append(self.losses(output, rows, labels))
            guesses.append(output.argmax(dim=-1).flatten())
            truths.append(labels if output.ndim == 2 else rows[:, 1 : output.shape[1] + 1].flatten())
        guess, truth = torch.cat(guesses), torch.cat(truths)
        hits = float(((guess == 1) & (truth == 1)).sum())
        f1 = 2.0 * hits / max(float((guess == 1).sum() + (truth == 1).sum()), 1.0)
        return torch.cat(losses).mean().item(), (guess != truth).double().mean().item(), f1


# --- loaders --------------------------------------------------------------------------------


def _shuffled(training: Training, dataset: Dataset[Any]) -> tuple[Any, Any]:
    loader = DataLoader(dataset, BATCH_SIZE, shuffle=True)
    return loader, _Mapped(loader, lambda batch: (batch, None, None))


def _updated(training: Training, dataset: Dataset[Any], sampler: str) -> tuple[Any, Any]:
    loader = avt.ImportanceLoader(dataset, BATCH_SIZE, sampler=sampler, seed=training.spec["seed"])
    return loader, loader


def _scored(training: Training, dataset: Dataset[Any], pool: Any, cost_ratio: float | None) -> tuple[Any, Any]:
    loader = avt.ImportanceLoader(
        dataset,
        BATCH_SIZE,
        seed=training.spec["seed"],
        score=training.score,
        pool=pool,
        cost_ratio=cost_ratio,
    )
    return loader, _Mapped(loader, lambda found: (found[0], None, found[2]))


def _info_batch(training: Training, dataset: Dataset[Any]) -> tuple[Any, Any]:
    loader = InfoBatch(_Numbered(dataset), BATCH_SIZE, training.spec["epochs"], training.spec["seed"])
    return loader, loader


class _Mapped:
    """What a loader gives, changed by a function, as often as it is asked."""

    def __init__(self, loader: Any, function: Callable[[Any], Any]) -> None:
        self._loader, self._function = loader, function

    def __iter__(self) -> Iterator[Any]:
        return map(self._function, self._loader)


class _Numbered:
    """Batches of a dataset by lists of indices, with these indices."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, indices: Sequence[int]) -> list[Any]:
        return [*default_collate(self._dataset.__getitems__(indices)), torch.as_tensor(indices)]


UNIFORM = "DataLoader"
LOADERS: Mapping[str, Callable[[Training, Dataset[Any]], tuple[Any, Any]]] = {
    UNIFORM: _shuffled,
    "update": lambda training, dataset: _updated(training, dataset, "Calibrated"),
    "Passes": lambda training, dataset: _updated(training, dataset, "Passes"),
    "score": lambda training, dataset: _scored(training, dataset, "auto", training.script.cost_ratio),
    "InfoBatch": _info_batch,
    # To time the parts of "score": without a pool, and with pools of two sizes; to measure the ratio of costs.
    "no pool": lambda training, dataset: _scored(training, dataset, "auto", 1.0),
    "pool 2": lambda training, dataset: _scored(training, dataset, 2.0, None),
    "pool 4": lambda training, dataset: _scored(training, dataset, 4.0, None),
    "measured": lambda training, dataset: _scored(training, dataset, "auto", None),
}
"""The loaders, by name; each returns the loader, and an iterable over ``(inputs, targets), index, weight``."""
TIMED = (UNIFORM, "update", "Passes", "InfoBatch", "no pool", "pool 2", "pool 4")


# --- seconds --------------------------------------------------------------------------------


def time_steps(script: str, X: NDArray[Any], y: NDArray[np.int64]) -> dict[str, float]:
    """Return the processor seconds of a step with each loader of `TIMED`, measured in turns, with one thread."""
    torch.set_num_threads(1)
    spec = {"script": script, "rate": 1e-3, "epochs": 1000, "seed": 0}
    return in_turns({name: Training({**spec, "loader": name}, X, y).step for name in TIMED})


def in_turns(steps: Mapping[str, Step]) -> dict[str, float]:
    """Return the median processor seconds of steps that take turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(_ROUNDS + 1):
        for name, step in steps.items():
            began = time.process_time()
            for _ in range(_TURN):
                step()
            if turn > 0:  # the first one compiles
                found[name].append((time.process_time() - began) / _TURN)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def time_small_steps() -> dict[str, dict[str, float]]:
    """Return the processor seconds of a step of small MLPs on data in memory, by width and loader, in turns."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(16000, 32, generator=generator), torch.randint(2, (16000,), generator=generator)
    return {str(width): _time_width(width, _Items(rows, labels)) for width in _WIDTHS}


class _Items(TensorDataset):
    """Items that are taken one by one, as from most datasets; of a ``TensorDataset`` the loader takes rows at once."""


def _time_width(width: int, dataset: TensorDataset) -> dict[str, float]:
    steps = {name: _plain_step(width, dataset, name) for name in (UNIFORM, "update", "Passes")}
    return in_turns(steps)


def _plain_step(width: int, dataset: TensorDataset, name: str) -> Step:
    """Return a function that takes a step of a plain training loop."""
    torch.manual_seed(0)
    model = build({"kind": "mlp", "hidden": [width, width]}, (32,), 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if name == UNIFORM:
        loader: Any = DataLoader(dataset, BATCH_SIZE, shuffle=True)
    else:
        loader = avt.ImportanceLoader(dataset, BATCH_SIZE, sampler="Calibrated" if name == "update" else name, seed=0)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def uniform() -> None:
        rows, labels = next(batches)
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def drawn() -> None:
        (rows, labels), index, weight = next(batches)
        logits = model(rows)
        loss = F.cross_entropy(logits, labels, reduction="none")
        optimizer.zero_grad()
        avt.weighted_mean(loss, weight).backward()
        optimizer.step()
        loader.update(index, avt.output_norms(logits, labels))

    return uniform if name == UNIFORM else drawn


def cost_ratio(script: str, X: NDArray[Any], y: NDArray[np.int64]) -> float:
    """Return what "auto" measures as the ratio of costs in a short run."""
    torch.set_num_threads(1)
    run = Training({"script": script, "rate": 1e-3, "epochs": 1, "seed": 0, "loader": "measured"}, X, y)
    for _ in range(60):
        run.step()
    return float(run.loader.cost_ratio)
