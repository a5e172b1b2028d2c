"""Train one net: a run, from its specification and data alone. Needs PyTorch."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import avare.torch as avt
from avare import samplers
from avare.diagnostics import cost, gain, relative_error
from avare.experiments.store import Record, Spec, number
from avare.samplers import Avare, Calibrated, Sampler
from nets.upper_bound import UpperBound

MEASURES = ("seconds", "wall", "loss", "test_error", "gain", "possible", "calibration_error", "step_size")
"""The columns of a trace; a value is None where the measure is not defined."""
_CHUNK = 1600  # examples per forward pass of an evaluation
_WARM_UP = 3  # steps that are not timed
_CELLS_PER_OCTAVE = 8
_warm: set[tuple[Any, ...]] = set()  # the kinds of runs that this process has compiled


def train(spec: Spec, X: NDArray[np.float32], y: NDArray[np.int64]) -> Record:
    """Train a net and measure it at checkpoints, with one thread.

    The first ``spec["examples"]`` rows are for training, the others for testing.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            kind = (spec["model"], str(spec["loader"]), spec["optimiser"], spec["batch_size"])
            if kind not in _warm:  # keep compilation out of the timings
                Training(spec, X, y).advance(_WARM_UP)
                _warm.add(kind)
            return _follow(Training(spec, X, y), spec)
    finally:
        torch.set_num_threads(threads)


def _follow(training: "Training", spec: Spec) -> Record:
    """Train from checkpoint to checkpoint and return the record."""
    started = time.perf_counter()
    total = spec["epochs"] * training.steps_per_epoch
    checkpoints = np.linspace(0, total, spec["checkpoints"] + 1).round().astype(int)
    columns: dict[str, list[float | None]] = {name: [] for name in MEASURES}
    status = "finished"
    for position, checkpoint in enumerate(checkpoints):
        if status == "finished" and not training.advance(int(checkpoint) - training.steps):
            status = "diverged"
        tested = position % spec["test_every"] == 0 or position == len(checkpoints) - 1
        row = training.measure(tested=tested) if status == "finished" else {}
        for name, values in columns.items():
            value = row.get(name)
            values.append(None if value is None else number(value))
    return {
        "seconds": {"steps": training.wall, "evaluation": time.perf_counter() - started - training.wall},
        "trace": {"epoch": (checkpoints / training.steps_per_epoch).tolist(), **columns},
        "steps": training.steps,
        "status": status,
    }


class Training:
    """A net with its data, optimiser and batches, and the time that its steps took; nothing is copied."""

    def __init__(self, spec: Spec, X: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        torch.manual_seed(spec["seed"])
        self.spec, n = spec, spec["examples"]
        rows, labels = torch.from_numpy(X).view(-1, *spec["network"].get("shape", X.shape[1:])), torch.from_numpy(y)
        self.train, self.test = TensorDataset(rows[:n], labels[:n]), TensorDataset(rows[n:], labels[n:])
        self.model = build(spec["network"], tuple(rows.shape[1:]), int(labels.max()) + 1)
        self.optimiser = _OPTIMISERS[spec["optimiser"]](self.model.parameters(), lr=spec["step"], fused=True)
        self.batches = batches_of(spec, self.train, self.model)
        self.steps_per_epoch = -(-n // spec["batch_size"])
        self.steps = 0
        self.seconds = self.wall = 0.0
        self._step_size = float(spec["step"])

    def advance(self, steps: int) -> bool:
        """Take a number of steps; return False if the loss is no longer finite."""
        if steps == 0:
            return True
        wall, processor = time.perf_counter(), time.process_time()
        finite = all(self._step() for _ in range(steps))
        self.seconds += time.process_time() - processor
        self.wall += time.perf_counter() - wall
        return finite

    def measure(self, *, tested: bool) -> dict[str, float | None]:
        """Evaluate all training examples and, if asked, the test examples; see `MEASURES`."""
        logits, labels = self._logits(self.train), self.train.tensors[1]
        loss = F.cross_entropy(logits, labels).item()
        if not math.isfinite(loss):
            return {"seconds": self.seconds, "wall": self.wall}
        norms = avt.output_norms(logits, labels).double().numpy()
        wrong = None
        if tested:
            wrong = (self._logits(self.test).argmax(dim=1) != self.test.tensors[1]).double().mean().item()
        return {
            "seconds": self.seconds,
            "wall": self.wall,
            "loss": loss,
            "test_error": wrong,
            "gain": self.batches.realised(norms),
            "possible": float(gain(norms)),
            "calibration_error": calibration_error(self.batches.sampler, norms, root=self.batches.root),
            "step_size": self._step_size,
        }

    def _step(self) -> bool:
        (rows, labels), index, weight = next(self.batches.endless)
        size = self._next_size()
        if size != self._step_size:
            self._step_size = size
            for group in self.optimiser.param_groups:
                group["lr"] = size
        logits = self.model(rows)
        loss = F.cross_entropy(logits, labels, reduction="none")
        mean = loss.mean() if weight is None else (weight * loss).mean()
        self.optimiser.zero_grad()
        mean.backward()
        self.optimiser.step()
        self.steps += 1
        if not math.isfinite(mean.item()):
            return False
        if index is not None:
            self.batches.update(index, loss.detach(), logits, labels)
        return True

    def _next_size(self) -> float:
        """Return the step size of the rule, times the estimated gain if the spec says so."""
        size = float(self.spec["step"])
        size *= _RULES[self.spec["rule"]](self.steps / (self.spec["epochs"] * self.steps_per_epoch))
        cap = self.spec["loader"].get("spend")
        if cap is not None:
            found = float(self.batches.loader.gain)
            size *= min(max(found, 1.0), cap) if math.isfinite(found) else 1.0
        return size

    def _logits(self, dataset: TensorDataset) -> Tensor:
        rows = dataset.tensors[0]
        with torch.no_grad():
            return torch.cat([self.model(rows[k : k + _CHUNK]) for k in range(0, len(rows), _CHUNK)])


# --- batches --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batches:
    """One of the loaders that are compared."""

    loader: Any
    endless: Iterator[tuple[tuple[Tensor, Tensor], Tensor | None, Tensor | None]]
    """Gives ``(rows, labels), index, weight``; weight is None for uniform batches, index if nothing is reported."""
    gain_of: Callable[[NDArray[np.float64]], float]
    """Maps the true norms of all examples to the gain of the next draw: uniform's cost over that of the draw."""
    sampler: Sampler | None = None
    root: bool = False
    """Whether to report the square roots of the norms."""
    losses: bool = False
    """Whether to report losses in place of norms."""

    def update(self, index: Tensor, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Report norms, their square roots, or losses to the loader."""
        norms = loss if self.losses else avt.output_norms(logits, labels)
        self.loader.update(index, norms.sqrt() if self.root else norms)

    def realised(self, norms: NDArray[np.float64]) -> float:
        """Return the gain of the next draw, from the true norms of all examples. O(N)."""
        return self.gain_of(norms) if norms.any() else 1.0


def batches_of(spec: Spec, dataset: TensorDataset, model: nn.Module) -> Batches:
    """Return the batches of a run: by the maker of its loader's kind, or by the sampler of that name."""
    return LOADERS.get(spec["loader"]["kind"], _remembering)(spec, dataset, model)


def _shuffled(spec: Spec, dataset: TensorDataset, model: nn.Module) -> Batches:
    """``DataLoader(shuffle=True)``, which indexes the tensors once per batch: only the sampling is compared."""
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(spec["seed"]))
    loader = DataLoader(dataset, sampler=BatchSampler(order, spec["batch_size"], drop_last=False), batch_size=None)
    return Batches(loader, ((batch, None, None) for batch in _endless(loader)), lambda norms: 1.0)


def _upper_bound(spec: Spec, dataset: TensorDataset, model: nn.Module) -> Batches:
    pool, size = UpperBound(**spec["loader"].get("options", {})), spec["batch_size"]
    loader = avt.ImportanceLoader(
        dataset,
        size,
        sampler="Uniform",
        score=lambda batch: avt.output_norms(model(batch[0]), batch[1]),
        pool=pool,
        seed=spec["seed"],
    )
    drawn = min(math.ceil(pool.probe * size), len(dataset))
    return Batches(
        loader, _endless(loader), lambda norms: pooled_gain(norms, drawn) if loader.pool_ratio > 1.0 else 1.0
    )


def _two_stages(spec: Spec, dataset: TensorDataset, model: nn.Module) -> Batches:
    """The loader with a second stage: the scores of pools are all that it learns from."""
    loader = avt.ImportanceLoader(
        dataset,
        spec["batch_size"],
        sampler_options=spec["loader"].get("options", {}),
        score=lambda batch: avt.output_norms(model(batch[0]), batch[1]),
        pool=spec["loader"].get("pool", "auto"),
        seed=spec["seed"],
    )
    sampler = loader.importance_sampler

    def gain_of(norms: NDArray[np.float64]) -> float:
        if loader.pool_ratio == 1.0:
            return 1.0  # shuffled passes
        error = float(relative_error(norms, sampler.probabilities()))
        return float(gain(norms)) / (1.0 + error / loader.pool_ratio)

    return Batches(loader, ((batch, None, weight) for batch, _, weight in _endless(loader)), gain_of, sampler)


def _info_batch(spec: Spec, dataset: TensorDataset, model: nn.Module) -> Batches:
    indexed = TensorDataset(*dataset.tensors, torch.arange(len(dataset)))
    loader = InfoBatch(indexed, spec["batch_size"], spec["epochs"], spec["seed"], **spec["loader"].get("options", {}))
    return Batches(loader, iter(loader), lambda norms: 1.0, losses=True)


class InfoBatch:
    """Shuffled passes that skip examples with small losses (Qin et al., ICLR 2024).

    In each pass, an example whose last loss is below the mean is skipped with probability ``skipped``, and has the
    weight 1 / (1 - skipped) otherwise. The last part of the run, ``whole``, has all examples. ``dataset[indices]`` is a
    batch for a list of indices; its last tensor has these indices.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        epochs: int,
        seed: int,
        *,
        skipped: float = 0.5,
        whole: float = 0.125,
    ) -> None:
        self.batch_size, self.skipped = batch_size, skipped
        self._generator = torch.Generator().manual_seed(seed)
        self._losses = torch.full((len(dataset),), math.inf)
        self._weights = torch.ones(len(dataset))
        self._until = (1.0 - whole) * epochs * -(-len(dataset) // batch_size)  # steps
        self._loader = DataLoader(dataset, sampler=_Passes(self._batches), batch_size=None)

    def __iter__(self) -> Iterator[Any]:
        for *batch, index in self._loader:
            yield batch, index, self._weights[index]

    def update(self, index: Tensor, losses: Tensor) -> None:
        """Remember the losses of a batch."""
        self._losses[index] = losses

    def _batches(self) -> Iterator[list[int]]:
        steps = 0
        while True:
            weights = torch.ones_like(self._weights)
            if steps < self._until and torch.isfinite(self._losses).all():
                kept = torch.where(self._losses < self._losses.mean(), 1.0 - self.skipped, 1.0)
                weights = (torch.rand(len(weights), generator=self._generator) < kept) / kept
            self._weights = weights
            places = torch.nonzero(weights).flatten()
            order = places[torch.randperm(len(places), generator=self._generator)]
            for index in order.split(self.batch_size):
                yield index.tolist()
                steps += 1


class _Passes:
    """Batches of indices without end, from a function, as a ``DataLoader`` takes them."""

    def __init__(self, batches: Callable[[], Iterator[list[int]]]) -> None:
        self._of = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._of()


def _remembering(spec: Spec, dataset: TensorDataset, model: nn.Module) -> Batches:
    given = spec["loader"]
    sampler = samplers.build(
        given["kind"],
        len(dataset),
        spec["batch_size"],
        replacement=given.get("replacement"),
        seed=spec["seed"],
        **given.get("options", {}),
    )
    loader = avt.ImportanceLoader(dataset, spec["batch_size"], sampler=sampler)
    return Batches(
        loader,
        _endless(loader),
        lambda norms: len(norms) * float(np.sum(norms**2)) / float(cost(norms, sampler.probabilities())),
        sampler,
        given.get("told") == "root",
    )


def _endless(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


LOADERS: dict[str, Callable[[Spec, TensorDataset, nn.Module], Batches]] = {
    "DataLoader": _shuffled,
    "UpperBound": _upper_bound,
    "TwoStages": _two_stages,
    "InfoBatch": _info_batch,
}
"""The makers of loaders that are no sampler's name, by kind."""


# --- nets and measures ----------------------------------------------------------------------


def one_cycle(part: float) -> float:
    """Rise from a tenth in the first fifth of the run, then fall to 0 as a cosine.

    >>> [round(one_cycle(part), 2) for part in (0.0, 0.2, 0.6, 1.0)]
    [0.1, 1.0, 0.5, 0.0]
    """
    return 0.1 + 4.5 * part if part < 0.2 else 0.5 + 0.5 * math.cos(math.pi * (part - 0.2) / 0.8)


_RULES: dict[str, Callable[[float], float]] = {  # the factor of the step size, by the part of the run that is done
    "constant": lambda part: 1.0,
    "decreasing": lambda part: 1.0 / (1.0 + 9.0 * part),  # as 1/t, to a tenth at the end
    "one-cycle": one_cycle,
}
_OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


def build(network: Mapping[str, Any], shape: Sequence[int], classes: int) -> nn.Module:
    """Build a net: "mlp" with hidden layers of given widths, or "cnn" with convolutions of given channels.

    >>> sum(each.numel() for each in build({"kind": "mlp", "hidden": [128]}, (784,), 10).parameters())
    101770
    """
    layers: list[nn.Module] = []
    if network["kind"] == "mlp":
        width = math.prod(shape)
        for hidden in network["hidden"]:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
    else:
        channels, *sides = shape
        for more in network["channels"]:
            layers += [nn.Conv2d(channels, more, 5, stride=2), nn.ReLU()]
            channels, sides = more, [(side - 5) // 2 + 1 for side in sides]
        layers.append(nn.Flatten())
        width = channels * math.prod(sides)
    return nn.Sequential(*layers, nn.Linear(width, classes))


def pooled_gain(norms: NDArray[np.float64], size: int) -> float:
    r"""Return uniform's second moment over that of a draw from a uniform pool, proportional to its norms. O(N).

    The latter is :math:`E[\bar n^2]` over pools, where :math:`\bar n` is the mean norm of a pool.

    >>> pooled_gain(np.array([1.0, 3.0]), 2), pooled_gain(np.array([1.0, 3.0]), 1)
    (1.25, 1.0)
    """
    n, mean, square = len(norms), float(norms.mean()), float(np.mean(norms**2))
    variance_of_mean = (square - mean**2) / size * ((n - size) / (n - 1) if n > 1 else 0.0)
    return square / (mean**2 + variance_of_mean)


def calibration_error(sampler: Sampler | None, norms: NDArray[np.float64], *, root: bool = False) -> float | None:
    """Return by how many octaves expected norms differ from true ones, averaged over examples. O(N log N).

    Examples are grouped in cells of similar remembered norms, an eighth of an octave each. In each cell, the expected
    norm is compared with the root mean square of the true norms. `Avare` expects what it remembers.
    None if the sampler expects nothing, or has received no norms yet.
    """
    expectations = _EXPECTATIONS.get(type(sampler))
    if expectations is None:
        return None
    cells, expected = expectations(sampler, root)
    members = np.bincount(cells, minlength=len(expected))
    true = np.sqrt(np.bincount(cells, norms**2, minlength=len(expected)) / np.maximum(members, 1))
    both = (members > 0) & (expected > 0.0) & (true > 0.0)
    if not both.any():
        return None
    return float(np.average(np.abs(np.log2(expected[both] / true[both])), weights=members[both]))


def _calibrated(sampler: Calibrated, root: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the cell of each example and the norm expected in each cell."""
    remembered, found = sampler.norms(), sampler.calibration()
    order = np.argsort(np.where(np.isnan(remembered), -1.0, remembered), kind="stable")
    cells = np.empty(sampler.n, dtype=np.int64)
    cells[order] = np.repeat(np.arange(len(found.members)), found.members)
    return cells, found.expected


def _remembered(sampler: Avare, root: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the cell of each example and the root mean square of the norms remembered in each cell."""
    remembered = sampler.norms() ** 2 if root else sampler.norms()
    with np.errstate(divide="ignore"):
        octaves = np.where(remembered > 0.0, np.floor(np.log2(remembered) * _CELLS_PER_OCTAVE), -np.inf)
    _, cells = np.unique(octaves, return_inverse=True)
    return cells, np.sqrt(np.bincount(cells, remembered**2) / np.bincount(cells))


_EXPECTATIONS: dict[Any, Callable[[Any, bool], tuple[NDArray[np.int64], NDArray[np.float64]]]] = {
    Calibrated: _calibrated,
    Avare: _remembered,
}
