"""One rank of several trainings, one after another: run by test_distributed.py, with a list of settings as JSON.

Each training has a process of its own, because a rank may die. It is forked, so that torch and the kernels are loaded
only once.
"""

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import avare
import avare.torch as avt
from avare.torch.loading.batch_sampler import AvareBatchSampler

torch.set_num_threads(1)  # with more, ranks and parallel tests disturb each other
N, CLASSES, WHOLE_BATCH = 203, 4, 16
Drawn = list[tuple[list[int], list[float]]]


def make_dataset() -> TensorDataset:
    """Rows of widely different lengths."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(N, 5)) * generator.lognormal(0.0, 1.0, (N, 1))
    labels = np.argmax(rows @ generator.normal(size=(5, CLASSES)) + generator.gumbel(size=(N, CLASSES)), axis=1)
    return TensorDataset(torch.from_numpy(rows), torch.from_numpy(labels))


def norms_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient norm with respect to the logits; not detached, as a user's may be."""
    return (logits.softmax(dim=1) - F.one_hot(labels, CLASSES)).norm(dim=1)


def make_model() -> torch.nn.Module:
    """In float64, so that norms, remembered in float32, do not depend on the order of sums."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, CLASSES)).double()


def forever(loader: avt.ImportanceLoader) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def train(
    loader: avt.ImportanceLoader,
    model: torch.nn.Module,
    steps: int,
    *,
    first: int = 0,
    save: tuple[int, Path] | None = None,
    die_at: int | None = None,
) -> Drawn:
    """Make steps of SGD; return what was drawn at each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drawn: Drawn = []
    for step, ((rows, labels), index, weight) in enumerate(forever(loader), start=first + 1):
        if step == die_at:
            os._exit(3)
        drawn.append((index.tolist(), weight.tolist()))
        logits = model(rows)
        loss = F.cross_entropy(logits, labels, reduction="none")
        optimizer.zero_grad()
        (weight * loss).mean().backward()
        optimizer.step()
        loader.update(index, norms_of(logits, labels))
        if save is not None and step == save[0]:
            torch.save({"model": _bare(model).state_dict(), "loader": loader.state_dict()}, save[1])
        if step == steps:
            break
    return drawn


class Sent:
    """Record what a process sends by the functions of ``torch.distributed``: name and bytes of each message."""

    _NAMES = ("all_gather", "all_gather_object", "all_gather_into_tensor", "all_reduce", "broadcast", "gather", "send")

    def __init__(self) -> None:
        self.messages: list[tuple[str, int]] = []
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._originals = {name: getattr(dist, name) for name in self._NAMES}
        for name in self._NAMES:
            setattr(dist, name, self._noted(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(dist, name, original)

    def _noted(self, name: str) -> Any:
        original = self._originals[name]

        def send(*arguments: Any, **options: Any) -> Any:
            tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
            self.messages.append((name, sum(tensor.nbytes for tensor in tensors)))
            return original(*arguments, **options)

        return send


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    inner: torch.nn.Module = getattr(model, "module", model)
    return inner


def _error(action: Any) -> str:
    """Return the kind and text of an action's error."""
    try:
        action()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _of_ranks(rank: int, world: int) -> dict[str, Any]:
    """Return what else ranks do: refusals, ranks that drew different batches."""
    dataset = make_dataset()
    found: dict[str, Any] = {}
    loader = avt.ImportanceLoader(dataset, 4, seed=None)
    _, index, _ = next(iter(loader))
    found["unseeded"] = loader.state_dict()["sampler"]["generator"]
    before = str(loader.state_dict())
    norms = torch.ones(4)
    if rank == 1:
        norms[2] = torch.nan
    found["refused"] = _error(lambda: loader.update(index, norms))
    found["unchanged"] = str(loader.state_dict()) == before
    loader.update(index[: 2 + rank], torch.ones(2 + rank))  # parts of different lengths
    found["waiting"] = loader.measures()["waiting"]
    found["too many"] = _error(lambda: loader.update(torch.cat([index, index]), torch.ones(8)))
    found["other seed"] = _error(lambda: avt.ImportanceLoader(dataset, 4, seed=rank))
    apart = avt.ImportanceLoader(dataset, 4, seed=np.random.default_rng(rank))
    _, index, _ = next(iter(apart))
    found["apart"] = _error(lambda: apart.update(index, torch.ones(4)))
    growing = AvareBatchSampler(N, 4, sampler="Calibrated", seed=5)
    found["extended apart"] = _error(lambda: growing.extend(N + 1 + rank))
    found["retired apart"] = _error(lambda: growing.retire([rank]))
    growing.extend(N + 30)
    growing.retire(np.arange(N))
    found["grown"] = [pairs.indices.tolist() for pairs in growing]
    whole = AvareBatchSampler(N, 4, sampler=avare.Avare(N, 4 * world, seed=8))
    found["object"] = len(next(iter(whole))), len(whole)
    return found


def run(settings: dict[str, Any]) -> None:
    """Join the other ranks, train, write what was drawn."""
    rank, world, folder = settings["rank"], settings["world"], Path(settings["folder"])
    before = avt.ImportanceLoader(make_dataset(), 4)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=settings.get("timeout", 60)),
    )
    result: dict[str, Any] = {"made before": _error(lambda: next(iter(before)))}
    model = make_model()
    loader = avt.ImportanceLoader(make_dataset(), WHOLE_BATCH // world, seed=7, num_workers=settings.get("workers", 0))
    first = 0
    if settings.get("resume"):
        saved = torch.load(settings["resume"], weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        first = settings["first"]
    parallel = DistributedDataParallel(model)
    save = (settings["save"], folder / "checkpoint.pt") if settings.get("save") and rank == 0 else None
    die_at = settings.get("die_at") if rank == 1 else None
    with Sent() as sent:
        result["drawn"] = train(loader, parallel, settings["steps"], first=first, save=save, die_at=die_at)
    result["sent"] = sent.messages
    result["model"] = model.state_dict()
    result["gain"] = loader.gain
    if settings.get("more"):
        result.update(_of_ranks(rank, world))
    torch.save(result, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    """Fork a process for each training, and write its exit code and standard error."""
    loader = avt.ImportanceLoader(make_dataset(), 4)
    _, index, _ = next(iter(loader))
    loader.update(index, torch.ones(4))  # loads the kernels
    for settings in json.loads(sys.argv[1]):
        rank, folder = settings["rank"], Path(settings["folder"])
        child = os.fork()
        if child == 0:
            with open(folder / f"errors{rank}", "w") as errors:
                os.dup2(errors.fileno(), 2)
            run(settings)
            return
        _, status = os.waitpid(child, 0)
        (folder / f"code{rank}").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
