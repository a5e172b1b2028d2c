"""Loss and test error against seconds: samplers side by side, with constant steps and with annealed ones.

A run that is annealed to its own end is better than a longer one that is stopped there. So each sampler runs several
lengths, each with its own one-cycle of step sizes, and what counts is the front: the least loss, and the least test
error, for a given time. First each sampler gets its own step sizes for each length, from a search that continues until
the best one is inside: one by the training loss, and one by the error on validation examples, which are neither trained
on nor tested. Then samplers take turns, so that other work on the machine disturbs all alike. Every search and every
race is stored in ``--runs``: stop and resume at any time, or begin with an empty folder. This is a small version of
``python benchmarks reproduce nets --plan pools.toml``, with one optimiser and one batch size. Needs MNIST, IJCNN1 and
CIFAR10, from ``--data``, AVARE_DATA or the network.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from avare.experiments.data import Data
from avare.experiments.store import Spec
from avare.plotting.charts import SKY, Style, assign, drawing, line
from harness import RESULTS, save, table, where
from log_axes import log_axis, log_ticks
from nets import plan as nets
from nets.results import reached
from nets.training import Training
from nets_race import race

UNIFORM, OURS = "DataLoader", "TwoStages"
RIVALS = ("Calibrated", "Passes", "UpperBound", "InfoBatch")
FIXED = ("TwoStages, 2", "TwoStages, 3", "TwoStages, 5")
OPTIMISER, BATCH_SIZE = "adamw", 64
STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
START = 2  # of these: where the search begins
LENGTHS = (0.125, 0.25, 0.5, 1.0)  # of the epochs
FIXED_LENGTH = 0.5  # for pools of a fixed size
MEASURES = ("loss", "test_error")
CHECKPOINTS = 8
THROWN_BACK = 10.0  # times its least loss: a run that ends there has lost its progress
SEARCH_SEEDS, SEEDS = (11, 12, 13), (1, 2, 3, 4, 5)
Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]
Searched = dict[str, dict[str, dict[str, float]]]
"""By "sampler|rule|length" and step size: the mean of each measure."""


@dataclasses.dataclass(frozen=True)
class Net:
    """A net, its size, and what is compared on it."""

    title: str
    model: str  # in pools.toml
    examples: int
    tested: int  # and as many for validation
    epochs: int
    seeds: tuple[int, ...] = SEEDS
    samplers: tuple[str, ...] = (UNIFORM, OURS, *RIVALS)
    fixed: tuple[str, ...] = FIXED  # annealed over FIXED_LENGTH only, with the step size of OURS
    rules: tuple[str, ...] = ("constant", "one-cycle")
    step: float | None = None  # if it is not searched
    search_seeds: tuple[int, ...] = SEARCH_SEEDS
    flipped: float = 0.0  # the part of the labels that is random
    aims: tuple[tuple[str, float], ...] = ()  # for OURS, by the names of `aims`


AHEAD = (("ahead of InfoBatch", 1.0), ("ahead of UpperBound", 1.0))
NETS = {
    "ijcnn1": Net(
        "MLP on IJCNN1",
        "ijcnn1-mlp",
        16000,
        10000,
        8,
        aims=(
            *(("epochs", 0.35), ("seconds", 0.5), ("annealed seconds", 0.45), ("annealed seconds to error", 0.5)),
            *(("possible over realised gain", 2.0), ("runs thrown back", 0.0), *AHEAD),
        ),
    ),
    "mlp": Net(
        "MLP on MNIST",
        "mnist-mlp",
        12800,
        10000,
        10,
        aims=(
            *(("epochs", 0.35), ("seconds", 0.5), ("annealed seconds", 0.6), ("error above uniform's", 2.0)),
            *(("possible over realised gain", 2.0), ("runs thrown back", 0.0), *AHEAD),
        ),
    ),
    "cnn": Net(
        "CNN on MNIST",
        "mnist-cnn",
        6400,
        10000,
        8,
        aims=(
            *(("epochs", 0.35), ("seconds", 0.5), ("annealed seconds", 0.6), ("error above uniform's", 2.0)),
            *(("possible over realised gain", 2.0), ("runs thrown back", 0.0), *AHEAD),
        ),
    ),
    "cifar": Net(
        "CNN on CIFAR10",
        "cifar10-cnn",
        6400,
        5000,
        6,
        samplers=(UNIFORM, OURS),
        fixed=(),
        rules=("constant",),
        aims=(("all seconds", 1.03), ("runs thrown back", 0.0)),
    ),
    "noisy": Net(
        "CNN on MNIST, half of the labels random",
        "mnist-cnn",
        6400,
        2000,
        6,
        (1, 2, 3),
        (UNIFORM, OURS),
        (),
        ("constant",),
        step=0.003,
        flipped=0.5,
        aims=(("all seconds", 1.03), ("runs thrown back", 0.0)),
    ),
    "wide": Net(
        "wide CNN on MNIST",
        "mnist-cnn-wide",
        3200,
        5000,
        8,
        (1, 2, 3),
        (UNIFORM, OURS, "Passes", "UpperBound", "InfoBatch"),
        (),
        ("one-cycle",),
        search_seeds=(11,),
        aims=(("annealed seconds", 0.6), ("error above uniform's", 2.0), *AHEAD),
    ),
}
SHOWN = {  # to a reader in a hurry
    "ijcnn1": "MLP on IJCNN1: there is something to gain",
    "cifar": "CNN on CIFAR10: there is little to gain",
}
LABELS = {UNIFORM: "DataLoader, shuffled", OURS: "ImportanceLoader"}  # as users know them
MEANING = (
    f"AdamW, batches of {BATCH_SIZE}, one thread; samplers take turns of some tens of steps. Seconds are processor "
    "time without evaluations. Step sizes are chosen for each sampler and each length of a run among "
    f"{', '.join(f'{step:g}' for step in STEPS)}: where the training loss is shown, by the mean training loss of three "
    "other seeds; where the test error is shown, by their mean error on validation examples. The wide CNN has one such "
    "seed."
)
CONSTANT_STEPS = (
    "Constant steps. The last columns are the part of uniform's epochs and seconds after which uniform's final "
    f"training loss is reached. A run is thrown back if it ends above {THROWN_BACK:g} times its least loss."
)
ANNEALED_STEPS = {
    "loss": "One-cycle: training loss and seconds at the end of runs of these lengths, and the largest step; ± is the "
    "standard error. Steps are chosen by the training loss.",
    "test_error": "The same for the test error. Steps are chosen by the validation error.",
}
FRONT = (
    "Annealed runs against the longest one of uniform batches: the part of its seconds after which its training loss, "
    "and its test error, are reached, on a line through the ends of the runs. Third, the part to its training loss if "
    "all steps are chosen by the validation error. Last, by how many standard errors the test error is above uniform's "
    "after the same seconds, at worst."
)
AIMS = (
    "Our aims for TwoStages. With constant steps, the part of uniform's epochs and seconds to its final training loss; "
    "annealed, the part of the seconds of its longest run to the training loss and the test error of that run. All "
    "seconds: those of a whole run over uniform's. Error above uniform's: of annealed runs, in standard errors of the "
    "difference, at the same seconds, at worst. Possible over realised gain: means over seeds with constant steps, at "
    "worst, where 3 or more is possible. Ahead: its training loss over the other's, annealed, after the seconds of its "
    "own shortest run and after those of uniform's longest; the worse of the two."
)


def main() -> None:
    """Search, race, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--runs", type=Path, default=RESULTS / "nets_fronts", help="folder for searches and races")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS), help="which nets")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="at most this many seeds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no race after this time")
    parser.add_argument("--report", action="store_true", help="only write the report of the stored races")
    arguments = parser.parse_args()
    began = time.monotonic()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        torch.set_num_threads(1)
        worlds = {name: World(NETS[name], arguments.data, arguments.runs / name) for name in arguments.nets}
        searched = {name: world.search() for name, world in worlds.items()}
        for place in range(arguments.seeds):
            for name, world in worlds.items():
                if time.monotonic() - began < 60.0 * arguments.minutes:
                    world.race(searched[name], place)
    report(arguments.runs)


class World:
    """A net with its data, and the files of its search and races."""

    def __init__(self, net: Net, folder: str | None, stem: Path) -> None:
        self.net, self.stem, self.where = net, stem, where()
        with resources.as_file(resources.files("nets") / "pools.toml") as path:
            ours = nets.read_plan(path)
        sizes = {"examples": net.examples, "tested": net.tested, "grid_epochs": 1, "epochs": net.epochs}

        def with_sizes(**changes: int) -> nets.NetPlan:
            return dataclasses.replace(ours, wanted={**ours.wanted, "models": {net.model: {**sizes, **changes}}})

        self.plan = with_sizes()
        known = net.examples + net.tested  # for training, then for validation
        self.data: dict[str, Data] = nets.load(with_sizes(examples=known), folder)
        X, y = self.data[net.model].X, self.data[net.model].y.copy()
        generator = np.random.default_rng(0)
        chosen = np.flatnonzero(generator.random(net.examples) < net.flipped)
        y[chosen] = generator.integers(0, int(y.max()) + 1, len(chosen))
        self.searched: Arrays = X[:known], y[:known]
        rows = np.r_[: net.examples, known : len(y)]
        self.raced: Arrays = X[rows], y[rows]

    def spec(self, sampler: str, rule: str, step: float, length: float, seed: int) -> Spec:
        """Return the specification of a run."""
        cell = (self.net.model, sampler, OPTIMISER, BATCH_SIZE, rule, step, seed)
        (task,) = nets._tasks(self.plan, self.data, "best", [cell])
        checkpoints = CHECKPOINTS if rule == "constant" else 1
        return {**task.spec, "epochs": length * task.spec["epochs"], "checkpoints": checkpoints}

    def search(self) -> Searched:
        """Return what step sizes lead to, for each sampler, rule and length."""
        path = self.stem.with_suffix(".search.json")
        found: Searched = json.loads(path.read_text()) if path.exists() else {}

        def look(sampler: str, rule: str, length: float, measure: str, place: int) -> float:
            kept, step = found.setdefault(label(sampler, rule, length), {}), f"{STEPS[place]:g}"
            if step not in kept:
                runs = [self.ends(sampler, rule, STEPS[place], length, seed) for seed in self.net.search_seeds]
                kept[step] = {name: float(np.mean([run[name] for run in runs])) for name in MEASURES}
                path.write_text(json.dumps(found, indent=1))
                print(f"{self.net.title}, {sampler}, {rule}, {length:g}, {step}: {kept[step]}", flush=True)
            return kept[step][measure]

        for sampler, rule in itertools.product(self.net.samplers, self.net.rules):
            for length in lengths_of(rule):
                if self.net.step is not None:
                    found[label(sampler, rule, length)] = {f"{self.net.step:g}": dict.fromkeys(MEASURES, math.nan)}
                    continue
                for measure in MEASURES if rule == "one-cycle" else MEASURES[:1]:
                    climb(functools.partial(look, sampler, rule, length, measure))
        return found

    def ends(self, sampler: str, rule: str, step: float, length: float, seed: int) -> dict[str, float]:
        """Return the training loss and the validation error at the end of a run."""
        spec = self.spec(sampler, rule, step, length, seed)
        run = Training(spec, *self.searched)
        finite = run.advance(round(spec["epochs"] * run.steps_per_epoch))
        found = run.measure(tested=True) if finite else {}
        return {name: 1e300 if found.get(name) is None else float(found[name] or 0.0) for name in MEASURES}

    def race(self, searched: Searched, place: int) -> None:
        """Train all runs of a seed in turns, unless they are stored."""
        if place >= len(self.net.seeds):
            return
        seed = self.net.seeds[place]
        path = self.stem.with_suffix(f".race{seed}.json")
        stored = json.loads(path.read_text())["runs"] if path.exists() else {}
        print(f"Training {self.net.title}, seed {seed} ...", flush=True)
        specs = {}
        for sampler, rule in itertools.product((*self.net.samplers, *self.net.fixed), self.net.rules):
            for length in lengths_of(rule):
                if sampler in self.net.fixed and (rule, length) != ("one-cycle", FIXED_LENGTH):
                    continue
                for measure in MEASURES:
                    step = best_step(searched, sampler, rule, length, measure)
                    specs[f"{label(sampler, rule, length)}|{step}"] = self.spec(
                        sampler, rule, float(step), length, seed
                    )
        specs = {name: spec for name, spec in specs.items() if name not in stored}
        if not specs:
            return
        traces = race(specs, *self.raced, tested=True)
        path.write_text(json.dumps({"where": self.where, "seed": seed, "runs": {**stored, **traces}}, indent=1))


def label(sampler: str, rule: str, length: float) -> str:
    """Return the name of runs that differ in the step size and the seed only."""
    return f"{sampler}|{rule}|{length:g}"


def lengths_of(rule: str) -> tuple[float, ...]:
    """Return the lengths of the runs with a rule, in parts of the epochs."""
    return LENGTHS if rule == "one-cycle" else (1.0,)


def best_step(searched: Searched, sampler: str, rule: str, length: float, measure: str) -> str:
    """Return the step size with the least training loss or, of annealed runs, the least validation error."""
    found = searched[label(OURS if sampler in FIXED else sampler, rule, length)]
    measure = "loss" if rule == "constant" else measure
    return min(found, key=lambda step: found[step][measure])


def climb(measure: Callable[[int], float]) -> None:
    """Look at steps from the start on, as long as the measure falls, in both directions."""
    best = START
    measure(best)
    for direction in (1, -1):
        place = best + direction
        while 0 <= place < len(STEPS) and measure(place) < measure(best):
            best, place = place, place + direction
        if best != START:
            break


# --- report ---------------------------------------------------------------------------------


def report(folder: Path) -> None:
    """Write tables and figure of the stored races."""
    found: dict[str, Any] = {}
    searches: dict[str, Searched] = {}
    place = where()
    for name, net in NETS.items():
        path = folder / f"{name}.search.json"
        stored = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}.race*.json"))]
        if not stored:
            continue
        searches[name] = json.loads(path.read_text()) if path.exists() else {}
        place = {**place, "commit": stored[-1]["where"]["commit"], "date": stored[-1]["where"]["date"]}
        found[name] = {measure: {} for measure in MEASURES}
        found[name]["seeds"] = [each["seed"] for each in stored]
        for sampler, rule in itertools.product((*net.samplers, *net.fixed), net.rules):
            for length, measure in itertools.product(lengths_of(rule), MEASURES):
                run = label(sampler, rule, length)
                step = f"{net.step:g}" if net.step else best_step(searches[name], sampler, rule, length, measure)
                traces = [each["runs"].get(f"{run}|{step}") for each in stored]
                if all(traces):
                    found[name][measure][run] = {"step": float(step), **together(traces)}
    text = "\n\n".join(["# Nets: fronts of loss and test error", MEANING, AIMS, judged(found), *tables(found)])
    save("nets_fronts", {"where": place, "races": found, "searches": searches}, text)
    draw(found)
    draw_seconds(found)
    print(text)


def together(traces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of the seeds, the standard errors at the end, and whether a run was thrown back."""
    found: dict[str, Any] = {}
    for key in ("epoch", "seconds", "loss", "test_error", "gain", "possible"):
        values = np.array([trace[key] for trace in traces])
        found[key] = values.mean(axis=0).tolist()
        spread = values[:, -1].std(ddof=1) / math.sqrt(len(traces)) if len(traces) > 1 else math.nan
        found[f"{key}_error"] = float(spread)
    losses = np.array([trace["loss"] for trace in traces])
    found["thrown_back"] = int(np.sum(losses[:, -1] > THROWN_BACK * np.nanmin(losses, axis=1)))
    return found


def judged(found: dict[str, Any]) -> str:
    """Return the table of the aims."""
    rows = []
    for name, runs in found.items():
        measured = aims(runs, NETS[name])
        for aim, wanted in NETS[name].aims:
            value = measured[aim]
            met = "yes" if value <= wanted else "**no**"
            rows.append([f"{NETS[name].title}: {aim}", f"≤ {wanted:g}", _number(value), met])
    return table(["aim", "wanted", "measured", "met"], rows)


def aims(runs: dict[str, Any], net: Net) -> dict[str, float]:
    """Return the number of each aim that these runs can judge; infinite if a loss was not reached."""
    found = {}
    ours, uniform = (runs["loss"].get(label(sampler, "constant", 1.0)) for sampler in (OURS, UNIFORM))
    if ours is not None and uniform is not None:
        for aim, along in (("epochs", "epoch"), ("seconds", "seconds")):
            found[aim] = (
                reached(np.array(ours["loss"]), uniform["loss"][-1], np.array(ours[along])) / uniform[along][-1]
            )
        found["all seconds"] = ours["seconds"][-1] / uniform["seconds"][-1]
        possible, realised = np.array(ours["possible"][1:]), np.array(ours["gain"][1:])
        found["possible over realised gain"] = float(np.max((possible / realised)[possible >= 3.0], initial=0.0))
        found["runs thrown back"] = float(ours["thrown_back"])
    fronts = {sampler: _front(runs, sampler, "loss") for sampler in net.samplers}
    if len(fronts[OURS]) > 1:
        found["annealed seconds"] = _part(runs, OURS, "loss")
        found["annealed seconds to error"] = _part(runs, OURS, "test_error")
        found["error above uniform's"] = _excess(runs, OURS)
        times = (fronts[OURS][0]["seconds"][-1], fronts[UNIFORM][-1]["seconds"][-1])
        for rival in ("InfoBatch", "UpperBound"):
            if rival in fronts:
                found[f"ahead of {rival}"] = max(_at(fronts[OURS], at) / _at(fronts[rival], at) for at in times)
    return {aim: math.inf if math.isnan(value) else value for aim, value in found.items()}


def _front(runs: dict[str, Any], sampler: str, measure: str) -> list[dict[str, Any]]:
    """Return the annealed runs of a sampler with the steps that were chosen by a measure, shortest first."""
    labels = [label(sampler, "one-cycle", length) for length in LENGTHS]
    return [runs[measure][each] for each in labels if each in runs[measure]]


def _part(runs: dict[str, Any], sampler: str, measure: str, chosen: str = "") -> float:
    """Return the part of uniform's seconds after which annealed runs reach the end of its longest run."""
    front, goal = (_front(runs, each, chosen or measure) for each in (sampler, UNIFORM))
    values, seconds = (np.array([end[key][-1] for end in front]) for key in (measure, "seconds"))
    return float(reached(values, goal[-1][measure][-1], seconds) / goal[-1]["seconds"][-1])


def _at(front: list[dict[str, Any]], at: float, key: str = "loss") -> float:
    """Return the loss or error of a front after some seconds, on a line through the ends of its runs."""
    seconds = np.array([end["seconds"][-1] for end in front])
    return float(np.exp(np.interp(at, seconds, np.log([end[key][-1] for end in front]))))


def _excess(runs: dict[str, Any], sampler: str) -> float:
    """Return by how many standard errors the test error is above uniform's after the same seconds, at worst."""
    uniform, found = _front(runs, UNIFORM, "test_error"), []
    for end in _front(runs, sampler, "test_error"):
        at = end["seconds"][-1]
        nearest = min(uniform, key=lambda each: abs(each["seconds"][-1] - at))
        spread = math.hypot(end["test_error_error"], nearest["test_error_error"])
        found.append(float(end["test_error"][-1] - _at(uniform, at, "test_error")) / max(spread, 1e-12))
    return max(found)


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "not reached"


def tables(found: dict[str, Any]) -> list[str]:
    """Return the tables of constant steps, of annealed steps, and of the fronts."""
    constant: list[list[str]] = []
    annealed: dict[str, list[list[str]]] = {measure: [] for measure in MEASURES}
    fronts: list[list[str]] = []
    for name, runs in found.items():
        net, seeds = NETS[name], len(runs["seeds"])
        for sampler in (*net.samplers, *net.fixed):
            title = f"{net.title}, {sampler}"
            run, uniform = (runs["loss"].get(label(each, "constant", 1.0)) for each in (sampler, UNIFORM))
            if run is not None:
                constant.append([title, str(seeds), *_constant(run, uniform)])
            for measure in MEASURES:
                ends = [runs[measure].get(label(sampler, "one-cycle", length)) for length in LENGTHS]
                if any(ends):
                    annealed[measure].append([title, *(_end(end, measure) for end in ends)])
            if len(_front(runs, sampler, "loss")) > 1 and sampler != UNIFORM:
                parts = [_part(runs, sampler, measure) for measure in MEASURES]
                parts += [_part(runs, sampler, "loss", chosen="test_error"), _excess(runs, sampler)]
                fronts.append([title, *map(_number, parts)])
    headings = ["", "seeds", "step", "loss", "test error", "seconds", "of uniform's epochs", "of its seconds"]
    lengths = [f"{length:g} of the epochs" for length in LENGTHS]
    texts = [CONSTANT_STEPS, table([*headings, "runs thrown back"], constant)]
    for measure in MEASURES:
        texts += [ANNEALED_STEPS[measure], table(["", *lengths], annealed[measure])]
    columns = ["", "of uniform's seconds, to its loss", "to its test error", "to its loss, steps by validation"]
    return [*texts, FRONT, table([*columns, "test error above uniform's"], fronts)]


def _constant(run: dict[str, Any], uniform: dict[str, Any]) -> list[str]:
    """Return the cells of a run with constant steps."""
    parts = [
        reached(np.array(run["loss"]), uniform["loss"][-1], np.array(run[along])) / uniform[along][-1]
        for along in ("epoch", "seconds")
    ]
    return [
        f"{run['step']:g}",
        _value(run, "loss"),
        _value(run, "test_error"),
        f"{run['seconds'][-1]:.2f}",
        *map(_number, parts),
        str(run["thrown_back"]),
    ]


def _end(run: dict[str, Any] | None, measure: str) -> str:
    """Return where a run ends, its seconds and its largest step."""
    return "" if run is None else f"{_value(run, measure)}, {run['seconds'][-1]:.2f} s, {run['step']:g}"


def _value(run: dict[str, Any], measure: str) -> str:
    if measure == "loss":
        return f"{run['loss'][-1]:.3g}{_spread(run['loss_error'], '.1g')}"
    return f"{100 * run['test_error'][-1]:.2f}{_spread(100 * run['test_error_error'], '.2f')} %"


def _spread(error: float, form: str) -> str:
    return "" if math.isnan(error) else f" ± {error:{form}}"


def draw(found: dict[str, Any]) -> None:
    """Draw the fronts of annealed runs: loss and test error against seconds."""
    shown = {name: runs for name, runs in found.items() if "one-cycle" in NETS[name].rules}
    if not shown:
        return
    samplers = (UNIFORM, OURS, *RIVALS)
    styles = _styles()
    with drawing():
        figure = Figure(figsize=(8.0, 2.7 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), 2, squeeze=False)
        for row, (name, runs) in zip(axes, shown.items(), strict=True):
            for axis, measure, title in zip(row, MEASURES, ("Training loss", "Test error, %"), strict=True):
                for place, sampler in enumerate(each for each in samplers if each in NETS[name].samplers):
                    ends = _front(runs, sampler, measure)
                    seconds = np.array([run["seconds"][-1] for run in ends])
                    values = np.array([run[measure][-1] for run in ends]) * (100.0 if measure == "test_error" else 1.0)
                    style = styles["Uniform" if sampler == UNIFORM else sampler]
                    line(axis, seconds, values, style, place, len(samplers)).set_label(sampler)
                axis.set(title=NETS[name].title, xlabel="Seconds of training", ylabel=title, xscale="log", yscale="log")
                log_ticks(axis.xaxis)
                log_ticks(axis.yaxis)
        axes[0, 0].legend()
        figure.savefig(RESULTS / "nets_fronts.png", dpi=160)


def draw_seconds(found: dict[str, Any]) -> None:
    """Draw the training loss against seconds: one net where importance sampling helps, one where it does not."""
    shown = {name: title for name, title in SHOWN.items() if name in found}
    with drawing():
        figure = Figure(figsize=(8.0, 2.9), layout="constrained")
        for axis, (name, title) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
            runs = {label: found[name]["loss"][f"{sampler}|constant|1"] for sampler, label in LABELS.items()}
            for place, (sampler, label) in enumerate(LABELS.items()):
                style = _styles()["Uniform" if sampler == UNIFORM else sampler]
                seconds, loss = np.array(runs[label]["seconds"]), np.array(runs[label]["loss"])
                line(axis, seconds, loss, style, place, len(LABELS)).set_label(label)
            axis.axhline(runs[LABELS[UNIFORM]]["loss"][-1], color="#777777", linewidth=0.8, linestyle=":")
            losses = np.concatenate([np.array(run["loss"][1:]) for run in runs.values()])
            log_axis(axis, losses, losses)  # without the loss before the first step
            axis.set(title=title, xlabel="Seconds of training", xlim=(0.0, None))
        figure.axes[0].set_ylabel("Training loss")
        figure.axes[0].legend()
        figure.savefig(RESULTS / "nets_seconds.png", dpi=160)


def _styles() -> dict[str, Style]:
    return {**assign(["Uniform", *RIVALS]), OURS: Style(SKY, "solid", "o")}


if __name__ == "__main__":
    main()
