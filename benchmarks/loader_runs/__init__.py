"""Which loader pays in a fresh training script: ``python benchmarks reproduce loaders``.

Every script has augmentation and one cycle of step sizes. The learning rate is the best of a grid for a plain
``DataLoader``, on validation examples and other seeds, and is the same for all loaders. The ``DataLoader`` has longer
runs too, each with a cycle of its own length, so that loaders can be compared after the same seconds. Runs are the same
on any machine: the ratio of costs, which ``score=`` would measure, is given. The seconds of a step are measured apart,
in turns: ``python benchmarks/which_loader.py --measure``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare._optional import require
from avare.experiments.base import Experiment, Request, Stage, Stages, Summary, Task, register
from avare.experiments.data import Data
from avare.experiments.document import Table
from avare.experiments.runner import surroundings
from avare.experiments.store import Record, Result, Spec, count, together

__all__ = ["LoadersExperiment"]

REVISION = 1  # of what a run computes; raise it when the numbers change, so that all is run again
COMPARED = ("DataLoader", "update", "Passes", "score", "InfoBatch")
"""The loaders that are compared; the first one is the yardstick."""
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
RATE_SEEDS, SEEDS = (100, 101), (0, 1, 2, 3, 4)
LONGER = 1.5  # times the epochs, for the second runs of the `DataLoader`
_QUICK: dict[str, Any] = {"scripts": ("mlp",), "rates": (0.003, 0.01, 0.03), "seeds": (0, 1), "epochs": 2.0}


class LoadersExperiment(Experiment):
    """Compares ways to use the loader in training scripts with augmentation and annealed steps.

    >>> from avare.experiments import get
    >>> isinstance(get("loaders"), LoadersExperiment)
    True
    """

    name = "loaders"
    kinds = ("loaders",)
    shown = ("finished", "diverged")

    def stages(self, request: Request) -> Stages:
        """Yield the search for learning rates, then the runs of all loaders, seed by seed."""
        require("torch", "training nets", "torch,experiments")
        from loader_runs.scripts import SCRIPTS

        scripts = _QUICK["scripts"] if request.quick else tuple(SCRIPTS)
        rates = _QUICK["rates"] if request.quick else RATES
        seeds = _QUICK["seeds"] if request.quick else SEEDS[: request.runs]
        data = {name: SCRIPTS[name].load(request.folder) for name in scripts}

        def task(part: str, script: str, loader: str, rate: float, epochs: float, seed: int) -> Task:
            epochs = _QUICK["epochs"] if request.quick else float(epochs)
            return Task(_spec(part, script, data[script], loader, rate, epochs, seed), data[script])

        searched = yield Stage(
            "loaders: learning rates",
            [
                task("rates", script, COMPARED[0], rate, SCRIPTS[script].searched, seed)
                for script in scripts
                for rate in rates
                for seed in RATE_SEEDS
            ],
        )
        best = best_rates(searched)
        yield Stage(
            "loaders",
            [
                task("runs", script, loader, best[script], length * SCRIPTS[script].epochs, seed)
                for seed in seeds
                for script in scripts
                for loader, length in ((COMPARED[0], LONGER), *((loader, 1.0) for loader in COMPARED))
                if length == 1.0 or not request.quick
            ],
        )

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Train one net; see `loader_runs.training.train`."""
        from loader_runs.training import train  # which imports PyTorch

        return {**train(spec, X, y), "where": surroundings("torch")}

    def describe(self, spec: Spec) -> str:
        """Describe a run: script, loader, length and seed."""
        return f"{spec['script']}, {spec['loader']}, {spec['epochs']:g} epochs, seed {spec['seed']}"

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """Return the table of all runs."""
        runs = [result for result in results if result.shown and result.spec["part"] == "runs"]
        if not runs:
            return None
        groups = together(runs, lambda result: {**result.spec, "seed": None})
        rows = [_row(spec, members) for spec, members in groups]
        columns = "script; loader; epochs||value; runs||integer; train_loss|training loss|digits; "
        columns += "test_loss|test loss|digits; test_error|test error|percent; test_f1|F1|ratio"
        table = Table.of("Means over seeds at the end of runs", columns, rows)
        return Summary(lead=count(len(runs), "run"), tables={"loaders": table}, numbers={"loaders": rows})


def best_rates(records: Sequence[Record]) -> dict[str, float]:
    """Return the learning rate with the least validation error of each script; with rare classes, the largest F1."""
    from loader_runs.scripts import SCRIPTS

    found: dict[str, dict[float, list[float]]] = {}
    for record in records:
        spec, trace = record["spec"], record["trace"]
        if spec["part"] == "rates":
            kept = found.setdefault(spec["script"], {}).setdefault(spec["rate"], [])
            kept.append(badness(SCRIPTS[spec["script"]].judged, "validation", trace))
    return {script: min(rates, key=lambda rate: float(np.mean(rates[rate]))) for script, rates in found.items()}


def badness(judged: str, part: str, trace: Mapping[str, Sequence[float]]) -> float:
    """Return the error on a part of the data, or 1 - F1; infinity for a run that diverged."""
    if not trace:
        return float("inf")
    return trace[f"{part}_error"][-1] if judged == "error" else 1.0 - trace[f"{part}_f1"][-1]


def _spec(part: str, script: str, data: Data, loader: str, rate: float, epochs: float, seed: int) -> Spec:
    return {
        "experiment": "loaders",
        "part": part,
        "script": script,
        "dataset": data.name,
        "data_digest": data.digest,
        "loader": loader,
        "rate": rate,
        "epochs": epochs,
        "seed": seed,
        "revision": REVISION,
    }


def _row(spec: Mapping[str, Any], members: Sequence[Result]) -> dict[str, Any]:
    finished = [each.trace for each in members if each.status == "finished"]
    means = {
        name: float(np.mean([trace[name][-1] for trace in finished])) for name in (finished[0] if finished else ())
    }
    return {**{key: spec[key] for key in ("script", "loader", "epochs", "rate")}, "runs": len(members), **means}


register(LoadersExperiment())
