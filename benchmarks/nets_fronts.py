"""Loss and test error against seconds: samplers side by side, with constant steps and with annealed ones.

A run that is annealed to its own end is better than a longer one that is stopped there. So each sampler runs several
lengths, each with its own one-cycle of step sizes, and what counts is the front: the least loss, and the least test
error, for a given time. Samplers take turns, so that other work on the machine disturbs all alike. This is a small
version of ``avare reproduce nets``: one optimiser, one batch size, two seeds. Needs MNIST and IJCNN1, from ``--data``,
AVARE_DATA or the network.
"""

import argparse
import dataclasses
import json
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from avare.experiments.nets import plan as nets
from avare.experiments.nets.results import net_name, reached
from avare.experiments.store import Spec
from avare.plotting import RC_PARAMS, assign, line
from harness import RESULTS, save, table, where
from nets_race import race

UNIFORM = "DataLoader"
SAMPLERS = (UNIFORM, "Calibrated", "TwoStages", "UpperBound", "InfoBatch")
MODELS = {
    "ijcnn1-mlp": {"examples": 8000, "tested": 20000, "grid_epochs": 1, "epochs": 8},
    "mnist-mlp": {"examples": 6400, "tested": 10000, "grid_epochs": 1, "epochs": 8},
}
OPTIMISER, BATCH_SIZE = "adamw", 64
CONSTANT = (0.003, 0.01)  # step sizes
ANNEALED = 0.01  # the largest of a cycle
LENGTHS = (0.25, 0.5, 1.0)  # of the epochs
SEEDS = (1, 2)
CHECKPOINTS = 8
CONSTANT_STEPS = (
    "Constant steps, each sampler at the better of two step sizes. The last columns are the part of uniform's epochs "
    "and seconds after which uniform's final training loss is reached."
)
ANNEALED_STEPS = (
    f"One-cycle, largest step {ANNEALED:g}: training loss, test error and seconds at the end of runs of these lengths."
)
MEANING = (
    f"AdamW, batches of {BATCH_SIZE}, one thread, means over {len(SEEDS)} seeds; samplers take turns of some tens of "
    "steps. Seconds are processor time without evaluations."
)


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="which nets")
    parser.add_argument("--figure", action="store_true", help="only draw the figure of the stored results again")
    arguments = parser.parse_args()
    if arguments.figure:
        draw(json.loads((RESULTS / "nets_fronts.json").read_text())["races"])
        return
    torch.set_num_threads(1)
    found = {}
    for model in arguments.models:
        ours = nets.read_plan()
        plan = dataclasses.replace(ours, wanted={**ours.wanted, "models": {model: MODELS[model]}})
        data = nets.load(plan, arguments.data)
        specs = specs_of(plan, data, model)
        runs = []
        for seed in SEEDS:
            print(f"Training {model}, seed {seed} ...", flush=True)
            with_seed: dict[str, Spec] = {label: {**spec, "seed": seed} for label, spec in specs.items()}
            runs.append(race(with_seed, data[model].X, data[model].y, tested=True))
        found[model] = {
            label: {key: np.mean([run[label][key] for run in runs], axis=0).tolist() for key in runs[0][label]}
            for label in specs
        }
        text = "\n\n".join(["# Nets: fronts of loss and test error", MEANING, *tables(found)])
        save("nets_fronts", {"where": where(), "races": found}, text)
        draw(found)
        print(text)


def specs_of(plan: nets.NetPlan, data: Any, model: str) -> dict[str, Any]:
    """Return what to run: by sampler, rule, step size and length."""
    specs = {}
    for sampler in SAMPLERS:
        for rule, step, length in (
            *(("constant", step, 1.0) for step in CONSTANT),
            *(("one-cycle", ANNEALED, length) for length in LENGTHS),
        ):
            cell = (model, sampler, OPTIMISER, BATCH_SIZE, rule, step, SEEDS[0])
            (task,) = nets._tasks(plan, data, "best", [cell])
            extent = {"epochs": length * task.spec["epochs"], "checkpoints": CHECKPOINTS}
            specs[f"{sampler}|{rule}|{step:g}|{length:g}"] = {**task.spec, **extent}
    return specs


def tables(found: dict[str, Any]) -> list[str]:
    """Return the tables of constant and of annealed steps."""
    plan = nets.read_plan()
    names = {model: net_name(model, each["dataset"], each["kind"]) for model, each in plan.networks.items()}
    constant, annealed = [], []
    for model, runs in found.items():
        best = {sampler: best_constant(runs, sampler) for sampler in SAMPLERS}
        uniform = runs[best[UNIFORM]]
        for sampler in SAMPLERS:
            run = runs[best[sampler]]
            parts = [
                reached(np.array(run["loss"]), uniform["loss"][-1], np.array(run[along])) / uniform[along][-1]
                for along in ("epoch", "seconds")
            ]
            constant.append(
                [
                    f"{names[model]}, {sampler}",
                    best[sampler].split("|")[2],
                    f"{run['loss'][-1]:.3g}",
                    f"{100 * run['test_error'][-1]:.2f} %",
                    f"{run['seconds'][-1]:.2f}",
                    *(f"{part:.2f}" for part in parts),
                ]
            )
            ends = [runs[f"{sampler}|one-cycle|{ANNEALED:g}|{length:g}"] for length in LENGTHS]
            annealed.append(
                [
                    f"{names[model]}, {sampler}",
                    *(
                        f"{run['loss'][-1]:.3g}, {100 * run['test_error'][-1]:.2f} %, {run['seconds'][-1]:.2f} s"
                        for run in ends
                    ),
                ]
            )
    return [
        CONSTANT_STEPS,
        table(["", "step", "loss", "test error", "seconds", "of uniform's epochs", "of its seconds"], constant),
        ANNEALED_STEPS,
        table(["", *(f"{length:g} of the epochs" for length in LENGTHS)], annealed),
    ]


def best_constant(runs: dict[str, Any], sampler: str) -> str:
    """Return the label of a sampler's run with constant steps and the least final loss."""
    labels = [f"{sampler}|constant|{step:g}|1" for step in CONSTANT]
    return min(labels, key=lambda label: runs[label]["loss"][-1])


def draw(found: dict[str, Any]) -> None:
    """Draw the fronts of annealed runs: loss and test error against seconds."""
    styles = assign(["Uniform", *SAMPLERS[1:]])
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(8.0, 2.8 * len(found)), layout="constrained")
        axes = figure.subplots(len(found), 2, squeeze=False)
        for row, (model, runs) in zip(axes, found.items(), strict=True):
            for axis, measure, label in zip(
                row, ("loss", "test_error"), ("Training loss", "Test error, per cent"), strict=True
            ):
                for place, sampler in enumerate(SAMPLERS):
                    ends = [runs[f"{sampler}|one-cycle|{ANNEALED:g}|{length:g}"] for length in LENGTHS]
                    seconds = np.array([run["seconds"][-1] for run in ends])
                    values = np.array([run[measure][-1] for run in ends]) * (100.0 if measure == "test_error" else 1.0)
                    style = styles["Uniform" if sampler == UNIFORM else sampler]
                    line(axis, seconds, values, style, place, len(SAMPLERS)).set_label(sampler)
                axis.set(title=model, xlabel="Seconds of training", ylabel=label, xlim=(0.0, None))
            row[0].set_yscale("log")
        axes[0, 0].legend()
        figure.savefig(RESULTS / "nets_fronts.png", dpi=160)


if __name__ == "__main__":
    main()
