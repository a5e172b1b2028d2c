"""Compare the time of `avare.torch` with an older tree: `python benchmarks/before_after_torch.py --before OLD/src`.

Each case has a process of its own in each tree, on one thread: cases in one process would share caches, memory and
random numbers. The two processes take turns, so that other work on the machine slows both. A case is repeated many
times; the least and the median processor time of all turns count. Processes import what they need when they need it:
`harness` is of this tree.
"""

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 0.05  # of a turn
LIMIT = 1.05
BATCH, EXAMPLES = 64, 60_000
NEW = Path(__file__).parents[1] / "src"
MEANING = (
    "Processor time of one call, in the older tree and in this one: the least of all turns, which other work on the "
    f"machine changes least, and the ratio of the medians. Batches of {BATCH} from {EXAMPLES:,} examples in memory."
)
Case = Callable[[], object]


def forever(loader: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def losses_and_norms() -> Any:
    """The function, wherever a tree has it."""
    for home in ("avare.torch.norms.cross_entropy", "avare.torch.cross_entropy"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(home).losses_and_norms
    raise ImportError("no losses_and_norms in this tree")


def loader_cases() -> Iterator[tuple[str, Case]]:
    """Batches and updates: without a pool, with one, with one that does not pay; and draws alone."""
    import torch
    from torch.utils.data import TensorDataset

    import avare.torch as avt

    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(EXAMPLES, 22, generator=generator), torch.randint(10, (EXAMPLES,), generator=generator)
    dataset, norms = TensorDataset(rows, labels), torch.rand(3 * BATCH, generator=generator)

    def batch_and_update(**options: Any) -> Case:
        loader = avt.ImportanceLoader(dataset, BATCH, seed=0, **options)
        batches = forever(loader)

        def case() -> None:
            _, index, _ = next(batches)
            loader.update(index, norms[:BATCH])

        return case

    yield "loader: batch and update", batch_and_update()
    never: dict[str, Any] = {"score": lambda batch: norms[:1].expand(len(batch[0])), "cost_ratio": 0.5}
    yield "loader: batch and update, pool off", batch_and_update(**never)
    pooled = forever(avt.ImportanceLoader(dataset, BATCH, seed=0, score=lambda batch: norms, pool=3))
    yield "loader: batch of a pool of 3", functools.partial(next, pooled)

    def drawing(reports: bool) -> Case:
        batches: Any = avt.ImportanceLoader(range(10**6), 128, seed=0, batches_per_epoch=10**9).batch_sampler
        drawn, values = iter(batches), norms[:128].numpy()

        def case() -> None:
            pairs = next(drawn)
            batches.cursor.receive()
            if reports:
                batches.update(pairs.indices, values)

        return case

    yield "batch sampler: draw of 128", drawing(False)
    yield "batch sampler: draw of 128 and update", drawing(True)


def norm_cases() -> Iterator[tuple[str, Case]]:
    """Norms at the output, and the losses with them."""
    import torch

    import avare.torch as avt

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def classes(number: int, *shape: int) -> Any:
        return torch.randint(number, shape, generator=torch.Generator().manual_seed(1))

    for size, number in ((64, 10), (128, 10), (512, 1000)):
        logits, target = random(size, number), classes(number, size)
        yield f"output_norms: {size} × {number}", functools.partial(avt.output_norms, logits, target)
    small, target = random(64, 10), classes(10, 64)
    yield "output_norms: 64 × 10, keep", functools.partial(avt.output_norms, small, target, not_finite="keep")
    yield "output_norms: 64 × 10, smoothed", functools.partial(avt.output_norms, small, target, label_smoothing=0.1)
    binary, wanted = random(64, 10), classes(2, 64, 10).float()
    yield "output_norms: 64 × 10, binary", functools.partial(avt.output_norms, binary, wanted, loss="binary")
    yield "output_norms: 64 × 10, squared", functools.partial(avt.output_norms, binary, wanted, loss="squared")
    features = random(64, 256)
    yield "last_layer_norms: 64 × 256 × 10", functools.partial(avt.last_layer_norms, features, small, target)
    for time_, number in ((64, 1000), (128, 8000)):
        words, tokens = random(8, time_, number), classes(number, 8, time_)
        shape = f"8 × {time_} × {number}"
        yield f"output_norms: {shape}", functools.partial(avt.output_norms, words, tokens, class_dim=-1)
        yield f"losses_and_norms: {shape}", functools.partial(losses_and_norms(), words, tokens)
    yield "losses_and_norms: 64 × 10", functools.partial(losses_and_norms(), small, target)


def step_cases() -> Iterator[tuple[str, Case]]:
    """Training steps of a small net, with output norms and exact ones."""
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import TensorDataset

    import avare.torch as avt

    generator = torch.Generator().manual_seed(0)
    dataset = TensorDataset(torch.randn(5000, 1, 14, 14, generator=generator), torch.randint(10, (5000,)))
    layers: dict[str, list[nn.Module]] = {
        "MLP": [nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10)],
        "CNN": [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10)],
    }
    for (name, each), kind in itertools.product(layers.items(), ("output_norms", "GradientNorms")):
        model = nn.Sequential(*each)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = avt.ImportanceLoader(dataset, BATCH, seed=0)
        exact = avt.GradientNorms(model) if kind == "GradientNorms" else None
        batches = forever(loader)

        def step(model: Any, optimizer: Any, loader: Any, exact: Any, batches: Iterator[Any]) -> None:
            (rows, labels), index, weight = next(batches)
            with contextlib.nullcontext() if exact is None else exact:
                logits = model(rows)
                loss = F.cross_entropy(logits, labels, reduction="none")
                optimizer.zero_grad()
                (weight * loss).mean().backward()
            loader.update(index, avt.output_norms(logits, labels) if exact is None else exact(weight))
            optimizer.step()

        yield f"training step: {name}, {kind}", functools.partial(step, model, optimizer, loader, exact, batches)


def trainer_cases() -> Iterator[tuple[str, Case]]:
    """Steps of a Trainer, without pools."""
    import tempfile

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    import avare.torch as avt
    from avare.torch.transformers import ImportanceTrainer

    sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    ids = torch.randint(512, (512, 16), generator=torch.Generator().manual_seed(0))
    dataset = [{"input_ids": row, "labels": row} for row in ids]
    folder = tempfile.TemporaryDirectory()
    common: dict[str, Any] = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "seed": 0}
    args = TrainingArguments(folder.name, max_steps=20, save_strategy="no", logging_strategy="no", **common)

    def case() -> None:
        folder.name  # noqa: B018  # which keeps the folder
        model = LlamaForCausalLM(config)
        ImportanceTrainer(model, args, train_dataset=dataset, importance=avt.Importance(pool=None)).train()

    yield "Trainer: 20 steps", case


FAMILIES = (loader_cases, norm_cases, step_cases, trainer_cases)


def work(wanted: str) -> None:
    """Run a case as the parent asks: it sends numbers of calls, and gets seconds per call. Without a case, name all."""
    answers, sys.stdout = sys.stdout, sys.stderr
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch

    torch.set_num_threads(1)
    found = ((name, case) for family in FAMILIES for name, case in family() if wanted in ("", name))
    if not wanted:
        print(json.dumps([name for name, _ in found]), file=answers, flush=True)
        return
    _, case = next(found)
    for line in sys.stdin:
        count = int(line)
        began = time.process_time()
        for _ in range(count):
            case()
        print(json.dumps((time.process_time() - began) / count), file=answers, flush=True)


class Worker:
    """A process that runs a case of one tree; without a case, it names all."""

    def __init__(self, source: Path, case: str = "") -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--worker", case]
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def answer(self) -> Any:
        """Read a line of the process."""
        line = self.process.stdout.readline() if self.process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"the worker has ended with code {self.process.wait()}")
        return json.loads(line)

    def run(self, count: int) -> float:
        """Return the processor seconds of a call."""
        assert self.process.stdin is not None
        print(count, file=self.process.stdin, flush=True)
        return float(self.answer())

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(before: Path, name: str, turns: int) -> dict[str, float]:
    """Return the least and the median seconds of a call, in both trees."""
    old, new = Worker(before, name), Worker(NEW, name)
    once = max(min(worker.run(1) for _ in range(3)) for worker in (old, new))
    count = math.ceil(SECONDS / max(once, 1e-9)) if once < SECONDS else 1
    count = min(count, 2000)
    times: dict[str, list[float]] = {"before": [], "after": []}
    for turn in range(turns if once < 20 * SECONDS else math.ceil(turns / 5)):
        pairs = [("before", old), ("after", new)]
        for kind, worker in pairs if turn % 2 else pairs[::-1]:
            times[kind].append(worker.run(count))
    old.end()
    new.end()
    found = {kind: min(each) for kind, each in times.items()}
    medians = {kind: statistics.median(each) for kind, each in times.items()}
    return {
        **found,
        "ratio": found["after"] / found["before"],
        "median_ratio": medians["after"] / medians["before"],
    }


def report(result: dict[str, Any]) -> str:
    """Return the table."""
    from harness import duration, table

    rows = [
        [
            name,
            *map(duration, (each["before"], each["after"])),
            *(f"{each[kind]:.2f} ×" for kind in ("ratio", "median_ratio")),
            "yes" if min(each["ratio"], each["median_ratio"]) <= LIMIT else "**no**",
        ]
        for name, each in result["cases"].items()
    ]
    headings = ["", "before", "after", "ratio", "ratio of medians", f"≤ {LIMIT} ×"]
    return f"# avare.torch, before and after\n\n{MEANING}\n\n{table(headings, rows)}"


def main() -> None:
    """Measure, then write JSON and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the src folder of the older tree")
    parser.add_argument("--turns", type=int, default=40, help="turns per case")
    parser.add_argument("--only", default="", help="measure only cases whose names contain this, and store nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        work(arguments.worker)
        return
    if arguments.before is None or not (arguments.before / "avare").is_dir():
        parser.error("--before must name a folder that contains the package avare")
    from harness import save, where

    result: dict[str, Any] = {"where": where(), "cases": {}}
    old = Worker(arguments.before).answer()
    for name in Worker(NEW).answer():
        if arguments.only in name and name in old:
            result["cases"][name] = measure(arguments.before, name, arguments.turns)
            print(name, {key: f"{value:.3g}" for key, value in result["cases"][name].items()}, flush=True)
    text = report(result)
    if not arguments.only:
        save("before_after_torch", result, text)
    print(text)


if __name__ == "__main__":
    main()
