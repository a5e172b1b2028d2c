"""What a run on a net is: made from its specification and data alone. Needs PyTorch."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import avare.torch as avt
from avare.diagnostics import cost, gain
from avare.experiments.aged import Aged
from avare.experiments.runs import number
from avare.experiments.store import Record, Spec
from avare.samplers import Avare, Calibrated, Sampler

MEASURES = ("seconds", "wall", "loss", "test_error", "gain", "possible", "calibration_error", "step_size")
"""What is measured at each checkpoint; None where it has no meaning."""
_AT_A_TIME = 1600  # examples that are evaluated at once
_WARM_UP = 3  # steps that are not timed
_MOMENTUM = 0.9
_CELLS_AN_OCTAVE = 8
_warm: set[tuple[Any, ...]] = set()  # what this process has loaded


def train(spec: Spec, X: NDArray[np.float32], y: NDArray[np.int64]) -> Record:
    """Train a net as a specification says, and measure it at checkpoints.

    The first ``spec["examples"]`` rows are trained on, the others are for testing. One thread.
    """
    with _one_thread(), torch.random.fork_rng(devices=[]):
        data = Split(spec, X, y)
        kind = (spec["model"], str(spec["loader"]), spec["optimiser"], spec["batch_size"])
        if kind not in _warm:  # so that no compilation is timed
            Run(spec, data).advance(_WARM_UP)
            _warm.add(kind)
        return _follow(Run(spec, data), spec)


def _follow(run: "Run", spec: Spec) -> Record:
    """From checkpoint to checkpoint."""
    started = time.perf_counter()
    total = spec["epochs"] * run.steps_an_epoch
    places = np.linspace(0, total, spec["checkpoints"] + 1).round().astype(int)
    columns: dict[str, list[float | None]] = {name: [] for name in MEASURES}
    status = "finished"
    for checkpoint, place in enumerate(places):
        if status == "finished" and not run.advance(int(place) - run.steps):
            status = "diverged"
        tested = checkpoint % spec["test_every"] == 0 or checkpoint == len(places) - 1
        row = run.measure(tested=tested) if status == "finished" else {}
        for name, values in columns.items():
            value = row.get(name)
            values.append(None if value is None else number(value))
    return {
        "seconds": {"steps": run.wall, "evaluation": time.perf_counter() - started - run.wall},
        "trace": {"epoch": (places / run.steps_an_epoch).tolist(), **columns},
        "steps": run.steps,
        "status": status,
    }


class Split:
    """Training and test examples as tensors in memory."""

    def __init__(self, spec: Spec, X: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        network = spec["network"]
        rows, labels, n = torch.from_numpy(X), torch.from_numpy(y), spec["examples"]  # nothing is copied
        if "shape" in network:
            rows = rows.view(-1, *network["shape"])
        self.train = TensorDataset(rows[:n], labels[:n])
        self.test = TensorDataset(rows[n:], labels[n:])
        self.classes = int(labels.max()) + 1


class Run:
    """A net, its optimiser and its loader, and the time they take."""

    def __init__(self, spec: Spec, data: Split) -> None:
        torch.manual_seed(spec["seed"])
        self.data, self.spec = data, spec
        self.model = build(spec["network"], tuple(data.train.tensors[0].shape[1:]), data.classes)
        self.optimiser = _optimiser(spec["optimiser"], self.model, spec["step"])
        self.loader = Batches(spec, data.train, self.model)
        self.steps_an_epoch = -(-len(data.train) // spec["batch_size"])
        self.steps = 0
        self.seconds = self.wall = 0.0
        self._batches = iter(self.loader)
        self._step_size = float(spec["step"])

    def advance(self, steps: int) -> bool:
        """Take so many steps; False if the loss is no longer a finite number."""
        if steps == 0:
            return True
        wall, processor = time.perf_counter(), time.process_time()
        sound = all(self._step() for _ in range(steps))
        self.seconds += time.process_time() - processor
        self.wall += time.perf_counter() - wall
        return sound

    def measure(self, *, tested: bool) -> dict[str, float | None]:
        """What there is to know at this point; all examples are looked at."""
        logits, labels = self._logits(self.data.train), self.data.train.tensors[1]
        loss = F.cross_entropy(logits, labels).item()
        if not math.isfinite(loss):
            return {"seconds": self.seconds, "wall": self.wall}
        norms = avt.output_norms(logits, labels).double().numpy()
        wrong = None
        if tested:
            wrong = (self._logits(self.data.test).argmax(dim=1) != self.data.test.tensors[1]).double().mean().item()
        return {
            "seconds": self.seconds,
            "wall": self.wall,
            "loss": loss,
            "test_error": wrong,
            "gain": self.loader.realised(norms),
            "possible": float(gain(norms)),
            "calibration_error": calibration_error(self.loader.sampler, norms, root=self.loader.root),
            "step_size": self._step_size,
        }

    def _step(self) -> bool:
        rows, labels, index, weight = next(self._batches)
        size = self._size()
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
            self.loader.update(index, avt.output_norms(logits, labels))
        return True

    def _size(self) -> float:
        """Of the next step: as the rule says, and spent gain on top of it."""
        size = float(self.spec["step"])
        if self.spec["rule"] == "decreasing":  # as 1/t, to a tenth at the end
            size /= 1.0 + 9.0 * self.steps / (self.spec["epochs"] * self.steps_an_epoch)
        cap = self.spec["loader"].get("spend")
        if cap is not None:
            found = self.loader.gain
            size *= min(max(found, 1.0), cap) if math.isfinite(found) else 1.0
        return size

    def _logits(self, dataset: TensorDataset) -> Tensor:
        rows = dataset.tensors[0]
        with torch.no_grad():
            return torch.cat([self.model(rows[k : k + _AT_A_TIME]) for k in range(0, len(rows), _AT_A_TIME)])


class Batches:
    """Batches without an end, of any of the loaders compared: ``rows, labels, index, weight``.

    Index and weight are None for ``DataLoader(shuffle=True)``. Its batches, too, are taken from the tensors in
    one go rather than example by example, so that what is timed is the sampling.
    """

    def __init__(self, spec: Spec, dataset: TensorDataset, model: nn.Module) -> None:
        given, size, seed = spec["loader"], spec["batch_size"], spec["seed"]
        kind = given["kind"]
        self.root = given.get("told") == "root"
        self.sampler: Sampler | None = None
        options = dict(given.get("options", {}))
        self.loader: Any
        if kind == "DataLoader":
            order = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
            self.loader = DataLoader(dataset, sampler=BatchSampler(order, size, drop_last=False), batch_size=None)
        elif kind == "UpperBound":
            self.loader = avt.UpperBoundLoader(
                dataset, lambda batch: avt.output_norms(model(batch[0]), batch[1]), size, seed=seed, **options
            )
        elif kind == "Aged":
            self.sampler = Aged(len(dataset), size, seed=seed, **options)
            self.loader = avt.ImportanceLoader(dataset, size, sampler=self.sampler)
        else:
            if kind in ("Avare", "Calibrated"):
                options.setdefault("p_min", 0.0)  # the loader would give them a lasting floor
            self.loader = avt.ImportanceLoader(
                dataset,
                size,
                sampler=kind,
                sampler_options=options,
                replacement=given.get("replacement"),
                seed=seed,
            )
            self.sampler = self.loader.importance_sampler

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
        plain = isinstance(self.loader, DataLoader) and not isinstance(self.loader, avt.ImportanceLoader)
        while True:
            for batch in self.loader:
                if plain:
                    yield batch[0], batch[1], None, None
                else:
                    (rows, labels), index, weight = batch
                    yield rows, labels, index, weight

    @property
    def gain(self) -> float:
        """As the loader estimates it itself; 1 for uniform batches."""
        return float(getattr(self.loader, "gain", 1.0))

    def update(self, index: Tensor, norms: Tensor) -> None:
        """Tell norms, or their roots."""
        self.loader.update(index, norms.sqrt() if self.root else norms)

    def realised(self, norms: NDArray[np.float64]) -> float:
        """Uniform's cost over that of the next draw, by the true norms of all examples."""
        uniform = len(norms) * float(np.sum(norms**2))
        if uniform == 0.0:
            return 1.0
        if isinstance(self.loader, avt.UpperBoundLoader):
            return pooled_gain(norms, self.loader.pool_size) if self.loader.active else 1.0
        return 1.0 if self.sampler is None else uniform / float(cost(norms, self.sampler.probabilities()))


def build(network: Mapping[str, Any], shape: Sequence[int], classes: int) -> nn.Module:
    """A net: "mlp" with hidden layers of given widths, or "cnn" with convolutions of given channels.

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
    r"""Uniform's second moment over that of a draw from a uniform pool, in proportion to the norms within it. O(N).

    The latter is :math:`E[\bar n^2]` over pools, :math:`\bar n` the mean norm of one.

    >>> pooled_gain(np.array([1.0, 3.0]), 2), pooled_gain(np.array([1.0, 3.0]), 1)
    (1.25, 1.0)
    """
    n, mean, square = len(norms), float(norms.mean()), float(np.mean(norms**2))
    of_the_mean = (square - mean**2) / size * ((n - size) / (n - 1) if n > 1 else 0.0)
    return square / (mean**2 + of_the_mean)


def calibration_error(sampler: Sampler | None, norms: NDArray[np.float64], *, root: bool = False) -> float | None:
    """By how many octaves the norm expected of examples differs from what they have, on average over examples.

    Examples are taken together by cells of the norm remembered, an eighth of an octave each: what is compared is
    the norm expected in a cell, and the root mean square of the true norms there. `Avare` expects what it
    remembers. None for samplers that expect nothing, and before anything is known.
    """
    if isinstance(sampler, Calibrated):
        remembered = sampler.norms()
        order = np.argsort(np.where(np.isnan(remembered), -1.0, remembered), kind="stable")
        found = sampler.calibration()
        cells = np.empty(len(norms), dtype=np.int64)
        cells[order] = np.repeat(np.arange(len(found.members)), found.members)
        expected = found.expected
    elif isinstance(sampler, Avare):
        remembered = sampler.norms() ** 2 if root else sampler.norms()
        with np.errstate(divide="ignore"):
            octaves = np.where(remembered > 0.0, np.floor(np.log2(remembered) * _CELLS_AN_OCTAVE), -np.inf)
        _, cells = np.unique(octaves, return_inverse=True)
        expected = np.sqrt(np.bincount(cells, remembered**2) / np.bincount(cells))
    else:
        return None
    members = np.bincount(cells, minlength=len(expected))
    true = np.sqrt(np.bincount(cells, norms**2, minlength=len(expected)) / np.maximum(members, 1))
    both = (members > 0) & (expected > 0.0) & (true > 0.0)
    if not both.any():
        return None
    return float(np.average(np.abs(np.log2(expected[both] / true[both])), weights=members[both]))


def _optimiser(name: str, model: nn.Module, step: float) -> torch.optim.Optimizer:
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=step, fused=True),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=step, momentum=_MOMENTUM, fused=True),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=step, fused=True),
    }
    return makers[name]()


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
