"""Records of runs that never were, as a store keeps them."""

import csv
import hashlib
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import regret as regret  # registers the experiment of `theory`
from agreement.checking import published
from avare.experiments import Store
from avare.experiments.base import of_kind
from avare.experiments.document import Table
from avare.experiments.paper import SETTINGS
from avare.experiments.sgd_runs import RULES
from avare.experiments.store import Result

PAPER = ("Avare", "Uniform", "Mabs", "Vrb")
WHERE = {
    "versions": {"python": "3.11.7", "avare": "0.1.0", "numpy": "2.4.6", "numba": "0.66.0"},
    "processor": "Some Processor, 2 cores",
    "system": "Linux x86_64",
    "date": "2026-11-16T01:00:00+00:00",
}
# What the last epoch of each dataset comes to: log10 of relative error and suboptimality, and the regret.
_ROWS = """
mnist      Uniform  0.61  2.4 2.5e12
mnist      Mabs     0.35  2.2 1.6e12
mnist      Vrb      0.25  2.1 1.3e12
mnist      Avare   -1.0   1.9 1.5e11
ijcnn1     Uniform  0.58  1.7 3.35e10
ijcnn1     Mabs     0.25  1.4 2.0e10
ijcnn1     Vrb      0.15  1.3 1.7e10
ijcnn1     Avare   -1.15  1.0 2.0e9
cifar10    Uniform -0.78  3.1 2.3e13
cifar10    Mabs    -1.4   3.1 7.0e12
cifar10    Vrb     -1.4   3.1 7.0e12
cifar10    Avare   -1.75  3.1 3.5e12
synthetic  Uniform  0.5  -1.9 6.1e4
synthetic  Mabs     0.3  -2.0 4.0e4
synthetic  Vrb      0.1  -2.2 2.8e4
synthetic  Avare   -1.5  -2.6 1.0e3
"""
LAST: dict[str, dict[str, tuple[float, float, float]]] = {}
for _dataset, _sampler, *_values in (row.split() for row in _ROWS.split("\n") if row):
    _error, _left, _regret = (float(value) for value in _values)
    LAST.setdefault(_dataset, {})[_sampler] = (_error, _left, _regret)
FACTS = {
    "mnist": {"n": 60000, "dim": 7840, "optimum": 1.3e4, "gain_at_optimum": 5.088, "smoothness_ratio": 3.36},
    "ijcnn1": {"n": 49990, "dim": 44, "optimum": 9e3, "gain_at_optimum": 4.835, "smoothness_ratio": 2.62},
    "cifar10": {"n": 50000, "dim": 30720, "optimum": 8e4, "gain_at_optimum": 1.15, "smoothness_ratio": 3.42},
    "synthetic": {"n": 100, "dim": 10, "optimum": 40.0, "gain_at_optimum": 3.9, "smoothness_ratio": 6.0},
}


def run(
    dataset: str = "mnist",
    sampler: str = "Avare",
    seed: int = 0,
    *,
    experiment: str = "reproduce",
    steps: str = "decreasing",
    epochs: int = 100,
    spread: float = 0.1,
    **spec: Any,
) -> dict[str, Any]:
    """A run whose mean at the last epoch is that of `LAST`, and whose runs of seeds 0, 1, 2 lie ``spread`` apart."""
    error, left, regret = LAST.get(dataset, LAST["mnist"]).get(sampler) or _other(sampler)
    part = np.arange(epochs + 1) / epochs
    factor = 1.0 + spread * (0, -1, 1)[seed % 3]
    trace = {
        "epoch": np.arange(epochs + 1.0),
        "suboptimality": factor * 10 ** (left + 2.0 * (1.0 - np.sqrt(part))),
        "relative_error": factor * 10 ** (error + (0.61 - error) * np.exp(-6 * part) * (1 - part)),
        "regret": factor * regret * (part if sampler == "Uniform" else np.sqrt(part)),
    }
    values = {name: column.tolist() for name, column in trace.items()}
    return record(
        {
            "experiment": experiment,
            "dataset": dataset,
            "data_digest": hashlib.sha256(dataset.encode()).hexdigest(),
            "loss": "logistic" if dataset == "synthetic" else "softmax",
            "steps": steps,
            "sampler": sampler,
            "options": {"delta": 1.0} if sampler == "Avare" else {},
            "seed": seed,
            "epochs": epochs,
            "batch_size": 1 if dataset == "synthetic" else 128,
            "replacement": True,
            "bias": False,
            "held_out": 0,
            "l2": 1.0,
            "caution": 1.0,
            **spec,
        },
        seconds={"steps": 12.3 + seed, "evaluation": 4.5},
        optimum=12345.6,
        trace=values,
    )


def facts(dataset: str, *, spec: dict[str, Any] | None = None, **changes: float) -> dict[str, Any]:
    """What is known of a dataset; numbers that agree with the paper's, unless others are given."""
    whole = {"experiment": "table", "dataset": dataset, "loss": SETTINGS[dataset].loss, "l2": 1.0, **(spec or {})}
    found = {"gradient_at_optimum": 1e-9, "gradient_allowed": 1e-8}
    return record(whole, facts={**FACTS[dataset], **found, **changes})


def theory(method: str, seed: int = 0) -> dict[str, Any]:
    """Regret that grows as T^0.6 (SGD) or T^0.75 (SGLD)."""
    steps = np.unique(np.round(np.logspace(0, 6, 120)))
    regret = (1.0 + 0.1 * (0, -1, 1)[seed % 3]) * 50.0 * steps ** {"sgd": 0.6, "sgld": 0.75}[method]
    spec = {"experiment": "theory", "method": method, "seed": seed}
    return record(spec, trace={"step": steps.tolist(), "regret": regret.tolist()})


def record(spec: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {"spec": spec, "where": WHERE, "seconds": {"steps": 1.0, "evaluation": 0.0}, **parts, "status": "finished"}


def put(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Put records into a store; give its folder."""
    store = Store(folder)
    store.make()
    for each in records:
        store.put(each)
    return folder


def parsed(records: Iterable[dict[str, Any]]) -> list[Result]:
    """Records as a summary gets them."""
    return [of_kind(each["spec"]["experiment"]).parse(each) for each in records]


def csv_rows(table: Table) -> list[dict[str, str]]:
    """The rows of a table as its CSV file has them, by column."""
    return list(csv.DictReader(io.StringIO(table.as_csv())))


def full_store(folder: Path, *, others: Sequence[str] = ()) -> Path:
    """The paper's experiments, theory and a comparison."""
    records = [theory(method, seed) for method in ("sgd", "sgld") for seed in range(3)]
    for dataset in LAST:
        records.append(facts(dataset))
        for rule in ("decreasing", "constant") if dataset != "synthetic" else ("decreasing",):
            records += [run(dataset, sampler, seed, steps=rule) for sampler in PAPER for seed in range(3)]
    names = ("Avare", "Calibrated", "Uniform", *others)
    records += [run("digits", name, seed, experiment="compare", epochs=20) for name in names for seed in range(3)]
    return put(folder, records)


def as_published(runs: int = 2, datasets: Iterable[str] = tuple(SETTINGS)) -> Iterator[dict[str, Any]]:
    """Records whose means are the very numbers of the paper; runs lie around them."""
    figures = published()["last_epoch"]
    for dataset, steps in itertools.product(datasets, RULES):
        by_measure = figures[steps].get(dataset, {})
        for sampler, seed in itertools.product(PAPER if by_measure else (), range(runs)):
            found = run(dataset, sampler, seed, steps=steps)
            for measure, values in by_measure.items():
                value = values.get(sampler, 1.0)
                mean = value if measure == "regret" else 10.0**value
                found["trace"][measure][-1] = (0.9 if seed % 2 == 0 else 1.1) * mean
            yield found
    for dataset in datasets:
        yield facts(dataset)


def _other(sampler: str) -> tuple[float, float, float]:
    """The last epoch of a sampler that the paper does not have: by its name."""
    part = (zlib.crc32(sampler.encode()) % 100) / 100
    return -1.2 + 1.6 * part, 1.8 + 0.5 * part, (0.1 + 1.8 * part) * 1e12
