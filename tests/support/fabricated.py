"""Records as a store would hold them, made up: no run takes place."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from avare.experiments.checking import published
from avare.experiments.reproduction import RULES, SETTINGS

WHERE = {"versions": {"avare": "0"}, "processor": "none", "system": "none", "date": "2026-01-01T00:00:00+00:00"}


def run(
    dataset: str, steps: str, sampler: str, seed: int, last: dict[str, float], *, epochs: int = 100, **more: Any
) -> dict[str, Any]:
    """A run that ends with these values."""
    spec = {
        "experiment": "reproduce",
        "dataset": dataset,
        "data_digest": "0" * 64,
        "loss": SETTINGS[dataset].loss,
        "steps": steps,
        "sampler": sampler,
        "options": {},
        "seed": seed,
        "epochs": epochs,
        "batch_size": SETTINGS[dataset].batch_size,
        "replacement": True,
        "l2": 1.0,
    }
    columns = ("objective", "suboptimality", "cost", "optimal_cost", "relative_error", "regret", "gain")
    trace = {name: [10.0 * last.get(name, 1.0), last.get(name, 1.0)] for name in columns}
    trace |= {"step": [0, 100], "epoch": [0.0, float(epochs)], "seconds": [0.0, 2.0]}
    trace["regret"] = [0.0, last.get("regret", 1.0)]
    record = {
        "spec": spec,
        "where": WHERE,
        "seconds": {"steps": 2.0, "evaluation": 1.0},
        "optimum": 1.0,
        "trace": trace,
        "status": "finished",
    }
    return {**record, **more, "spec": {**spec, **more.get("spec", {})}}


def table(dataset: str, **facts: float) -> dict[str, Any]:
    """What is known of a dataset: the paper's facts, unless others are given."""
    known = {"n": 100, "dim": 10, "optimum": 1.0, **published()["table"][dataset], **facts}
    return {
        "spec": {"experiment": "table", "dataset": dataset},
        "where": WHERE,
        "seconds": {"steps": 1.0, "evaluation": 0.0},
        "facts": known,
        "status": "finished",
    }


def as_published(runs: int = 2, datasets: Iterable[str] = tuple(SETTINGS)) -> Iterator[dict[str, Any]]:
    """Records whose means are the very numbers of the paper; runs lie around them."""
    figures = published()["last_epoch"]
    for dataset, steps in itertools.product(datasets, RULES):
        by_measure = figures[steps].get(dataset, {})
        for sampler in ("Uniform", "Mabs", "Vrb", "Avare") if by_measure else ():
            last = {}
            for measure, values in by_measure.items():
                value = values.get(sampler, 1.0)
                last[measure] = value if measure == "regret" else 10.0**value
            for seed in range(runs):
                factor = 0.9 if seed % 2 == 0 else 1.1
                yield run(dataset, steps, sampler, seed, {name: factor * value for name, value in last.items()})
    for dataset in datasets:
        yield table(dataset)
