"""Seconds of training to uniform's final loss: samplers at their best settings, in turns.

``python benchmarks reproduce nets`` does two runs at a time, over an hour. Here samplers take turns, so that other work
on the machine disturbs all alike. Settings are the stored results of that experiment; seeds and epochs are those of its
plan. Needs MNIST, IJCNN1 and CIFAR10, from ``--data``, AVARE_DATA or the network.
"""

import argparse
import csv
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avare.experiments.store import Spec
from harness import RESULTS, save, table, where
from nets import plan as nets
from nets.plan import OPTIMISERS
from nets.results import net_name, reached
from nets.training import Training

UNIFORM, OURS = "DataLoader", "Calibrated"
SAMPLERS = (UNIFORM, OURS, "UpperBound")
LIMITS = {"mnist-mlp": 0.6, "mnist-cnn": 0.6, "ijcnn1-mlp": 0.6, "cifar10-cnn": 1.05}  # of uniform's seconds, for ours
TURNS = 10  # between two checkpoints
WARM_UP = 20  # steps of another run, before the timed one
MEANING = (
    "Each sampler at the settings with the least final training loss, in turns of some tens of steps, in one process "
    "with one thread; means over three seeds. Seconds are processor time without evaluations. The last columns are the "
    "part of uniform's epochs and seconds after which uniform's final loss is reached."
)


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = nets.read_plan()
    data = nets.load(plan, arguments.data)
    stored = _stored(seed=plan.wanted["grid"]["seeds"][0])
    tasks = nets.best_tasks(plan, data, stored)
    found: dict[str, dict[str, Any]] = {}
    for model in plan.models:
        print(f"Training {model} ...", flush=True)
        best = {sampler: _best(stored, model, sampler) for sampler in SAMPLERS}
        races = [
            race(
                {s: task.spec for s in SAMPLERS for task in tasks if _is(task.spec, best[s], seed)},
                data[model].X,
                data[model].y,
            )
            for seed in plan.wanted["best"]["seeds"]
        ]
        found[model] = {
            sampler: {
                "setting": {key: best[sampler][key] for key in ("optimiser", "batch_size", "rule", "step")},
                **{key: np.mean([race[sampler][key] for race in races], axis=0).tolist() for key in races[0][sampler]},
            }
            for sampler in SAMPLERS
        }
    text = "\n\n".join(["# Nets: seconds to uniform's final loss", MEANING, _table(found, written(plan))])
    save("nets_race", {"where": where(), "races": found}, text)
    print(text)


def race(
    specs: dict[str, Spec], X: NDArray[np.float32], y: NDArray[np.int64], *, tested: bool = False
) -> dict[str, dict[str, list[float]]]:
    """Train all in turn; return epochs, seconds, loss and, if asked, test error and gains at the checkpoints."""
    runs = {}
    for sampler, spec in specs.items():
        Training(spec, X, y).advance(WARM_UP)
        runs[sampler] = Training(spec, X, y)
    traces: dict[str, dict[str, list[float]]] = {s: {"epoch": [], "loss": [], "seconds": []} for s in specs}
    turns = TURNS * max(spec["checkpoints"] for spec in specs.values())
    for turn in range(turns + 1):
        for sampler, run in runs.items():
            total = specs[sampler]["epochs"] * run.steps_per_epoch
            run.advance(round(total * turn / turns) - run.steps)
            if turn % (turns // specs[sampler]["checkpoints"]) == 0:
                trace, found = traces[sampler], run.measure(tested=tested)
                trace["epoch"].append(run.steps / run.steps_per_epoch)
                trace["seconds"].append(run.seconds)
                for name in ("loss", "test_error", "gain", "possible") if tested else ("loss",):
                    value = found.get(name)
                    trace.setdefault(name, []).append(float("nan") if value is None else value)
    return traces


def written(plan: nets.NetPlan) -> dict[str, str]:
    """Return how each net is written in tables."""
    return {model: net_name(model, each["dataset"], each["kind"]) for model, each in plan.networks.items()}


def _table(found: dict[str, dict[str, Any]], names: dict[str, str]) -> str:
    rows = []
    for model, samplers in found.items():
        uniform = samplers[UNIFORM]
        for sampler, each in samplers.items():
            loss = np.array(each["loss"])
            epochs, seconds = (
                reached(loss, uniform["loss"][-1], np.array(each[along])) / uniform[along][-1]
                for along in ("epoch", "seconds")
            )
            setting = each["setting"]
            limit = LIMITS[model] if sampler == OURS else None
            rows.append(
                [
                    f"{names[model]}, {sampler}",
                    f"{OPTIMISERS[setting['optimiser']]} {setting['step']:g} {setting['rule']}",
                    str(setting["batch_size"]),
                    f"{loss[-1]:.3g}",
                    f"{each['seconds'][-1]:.2f}",
                    f"{epochs:.2f}",
                    f"{seconds:.2f}",
                    "" if limit is None else f"{limit:g}: {'yes' if seconds <= limit else '**no**'}",
                ]
            )
    headings = ["", "setting", "batch", "final loss", "seconds", "of uniform's epochs", "of its seconds", "limit"]
    return table(headings, rows)


def _stored(seed: int) -> list[dict[str, Any]]:
    """Return the stored table of settings as records of a grid, one per setting, with its final loss."""
    models = {name: model for model, name in written(nets.read_plan()).items()}
    optimisers = {name: optimiser for optimiser, name in OPTIMISERS.items()}
    with (RESULTS / "nets" / "nets-settings.csv").open(newline="") as file:
        return [
            {
                "spec": {
                    "part": "grid",
                    "model": models[row["net"]],
                    "sampler": row["sampler"],
                    "optimiser": optimisers[row["optimiser"]],
                    "batch_size": int(row["batch_size"]),
                    "rule": row["rule"],
                    "step": float(row["step"]),
                    "seed": seed,
                },
                "trace": {"loss": [float(row["loss"]) if row["loss"] else None]},
            }
            for row in csv.DictReader(file)
        ]


def _best(stored: list[dict[str, Any]], model: str, sampler: str) -> Spec:
    """Return the setting of a sampler with the least loss."""
    own = [each for each in stored if (each["spec"]["model"], each["spec"]["sampler"]) == (model, sampler)]
    ended = [each for each in own if each["trace"]["loss"][0] is not None]
    best: Spec = min(ended, key=lambda record: float(record["trace"]["loss"][0]))["spec"]
    return best


def _is(spec: Spec, best: Spec, seed: int) -> bool:
    keys = ("model", "sampler", "optimiser", "batch_size", "rule", "step")
    return bool(spec["seed"] == seed and all(spec[key] == best[key] for key in keys))


if __name__ == "__main__":
    main()
