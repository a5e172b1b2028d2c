"""The experiment on nets: a plan, the runs that follow from it, and how long they take.

First a grid of step sizes; then each sampler with the best of them, which follows from the records
of the grid alone; then the parts that `Calibrated` is made of.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Literal

import numpy as np

from avare import datasets
from avare.experiments.data import Data, digest
from avare.experiments.store import Record, Spec, Store
from avare.experiments.sweep import Task, Watch, sweep

Part = Literal["grid", "best", "parts"]

REVISION = 1  # of what a run computes; to be raised when its numbers change, so that it is run again
OPTIMISERS = ("sgd", "momentum", "adamw")
RULES = ("constant", "decreasing")
_KINDS = ("DataLoader", "UpperBound", "Aged")  # beside the samplers themselves
_SHUFFLE = 0  # the seed by which rows are chosen, where they are
_EXTENT = ("seeds", "checkpoints", "test_every")
_NEEDED = {  # by each table of a plan
    "grid": _EXTENT,
    "best": _EXTENT,
    "parts": (*_EXTENT, "models", "batch_sizes", "optimiser", "of", "aggressive", "samplers"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Parameters
    ----------
    networks
        What nets there are, by name.
    samplers
        What samplers there are, by name.
    wanted
        Which of them, with which settings.
    times
        Seconds by net, from which the time of all is estimated.
    """

    networks: Mapping[str, Mapping[str, Any]]
    samplers: Mapping[str, Mapping[str, Any]]
    wanted: Mapping[str, Any]
    times: Mapping[str, Mapping[str, Any]]

    @property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """The nets that are run, with their sizes."""
        found: Mapping[str, Mapping[str, Any]] = self.wanted["models"]
        return found


def read_plan(path: str | Path | None = None, *, quick: bool = False) -> Plan:
    """The plan in a file, by default our own; checked.

    >>> sorted(read_plan().models)
    ['cifar10-cnn', 'ijcnn1-mlp', 'mnist-cnn', 'mnist-mlp']
    """
    if path is None:
        text = resources.files("avare.experiments.nets").joinpath("plan.toml").read_text(encoding="utf-8")
    else:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    name = "plan.toml" if path is None else str(path)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name}: not a plan: {error}") from None
    part = "quick" if quick else "full"
    for table in ("networks", "samplers", part):
        if table not in tables:
            raise ValueError(f"{name}: not a plan: lacks [{table}]")
    plan = Plan(tables["networks"], tables["samplers"], tables[part], tables.get("times", {}))
    _check(plan, f"{name} [{part}]")
    return plan


def run_nets(
    store: Store,
    *,
    plan: Plan | None = None,
    folder: str | None = None,
    jobs: int = 1,
    dask: str | None = None,
    watch: Watch | None = None,
) -> list[Record]:
    """Do what is not stored yet of a plan, and give all its records.

    Parameters
    ----------
    store
        Where results are.
    plan
        What is run; ours, by default: under an hour with two jobs.
    folder
        Where the files of datasets are looked for first.
    jobs, dask, watch
        As for `sweep`.
    """
    plan = read_plan() if plan is None else plan
    require_torch()
    data = load(plan, folder, progress=watch is not None)
    arguments: dict[str, Any] = {"jobs": jobs, "dask": dask, "watch": watch}
    grid = sweep(grid_tasks(plan, data), store, title="nets: grid", **arguments)
    best = sweep(best_tasks(plan, data, grid), store, title="nets: best settings", **arguments)
    parts = part_tasks(plan, data, grid)
    return grid + best + (sweep(parts, store, title="nets: parts", **arguments) if parts else [])


def require_torch() -> None:
    """Refuse to go on without PyTorch, and say how to get it."""
    try:
        import_module("torch")
    except ImportError as error:
        raise ImportError("training nets needs torch: pip install 'avare[torch,experiments]'") from error


def load(plan: Plan, folder: str | None = None, *, progress: bool = False) -> dict[str, Data]:
    """The data of each net: its training examples, then its test examples, chosen and scaled as the plan says."""
    found: dict[str, Data] = {}
    for name in dict.fromkeys(plan.networks[model]["dataset"] for model in plan.models):
        # One set after another: some are large, and only a part of them is kept.
        splits = [
            datasets.load(name, folder=folder, progress=progress),
            datasets.load(name, split="test", folder=folder, progress=progress),
        ]
        classes = np.unique(splits[0].y)
        for model, sizes in plan.models.items():
            network = plan.networks[model]
            if network["dataset"] != name:
                continue
            rows, targets = [], []
            for split, key in zip(splits, ("examples", "tested"), strict=True):
                if sizes[key] > len(split):
                    raise ValueError(f"{key} = {sizes[key]} for {model}: {name} has {len(split)}")
                which: Any = slice(sizes[key])
                if network.get("shuffled", False):
                    which = np.random.default_rng(_SHUFFLE).permutation(len(split))[: sizes[key]]
                rows.append(np.asarray(split.X[which], dtype=np.float32))
                targets.append(split.y[which])
            X = np.concatenate(rows)
            X -= np.float32(network.get("centre", 0.0))
            X /= np.float32(network.get("scale", 1.0))
            y = np.searchsorted(classes, np.concatenate(targets)).astype(np.int64)
            found[model] = Data(name, X, y, digest(X, y))
    return found


# --- what is run ----------------------------------------------------------------------------


def grid_tasks(plan: Plan, data: Mapping[str, Data]) -> list[Task]:
    """Every sampler with every setting, for a few epochs."""
    wanted, grid = plan.wanted, plan.wanted["grid"]
    tasks = [
        _task(plan, data, "grid", model, sampler, optimiser, batch_size, rule, step, seed)
        for model in plan.models
        for sampler in wanted["samplers"]
        for seed in grid.get("more_seeds", {}).get(sampler, grid["seeds"])
        for optimiser in wanted["optimisers"]
        for batch_size in wanted["batch_sizes"]
        for rule in wanted["rules"]
        for step in wanted["sizes"][optimiser]
    ]
    return _longest_first(plan, tasks)


def best_tasks(plan: Plan, data: Mapping[str, Data], grid: Sequence[Record]) -> list[Task]:
    """Every sampler, optimiser and batch size with the step sizes that were best on the grid."""
    wanted = plan.wanted
    best = chosen(plan, grid)
    tasks = [
        _task(
            plan,
            data,
            "best",
            model,
            sampler,
            optimiser,
            batch_size,
            *best[model, sampler, optimiser, batch_size],
            seed,
        )
        for seed in wanted["best"]["seeds"]
        for model in plan.models
        for sampler in wanted["samplers"]
        for optimiser in wanted["optimisers"]
        for batch_size in wanted["batch_sizes"]
    ]
    return _longest_first(plan, tasks)


def part_tasks(plan: Plan, data: Mapping[str, Data], grid: Sequence[Record]) -> list[Task]:
    """The parts of a sampler, at the constant step size that was best for it and at one that is too large."""
    parts = plan.wanted.get("parts")
    if parts is None:
        return []
    best = chosen(plan, grid, rules=("constant",))
    tasks = []
    for model in parts["models"]:
        for batch_size in parts["batch_sizes"]:
            _, step = best[model, parts["of"], parts["optimiser"], batch_size]
            for level, size in (("best", step), ("aggressive", parts["aggressive"] * step)):
                tasks += [
                    _task(
                        plan,
                        data,
                        "parts",
                        model,
                        sampler,
                        parts["optimiser"],
                        batch_size,
                        "constant",
                        size,
                        seed,
                        level,
                    )
                    for seed in parts["seeds"]
                    for sampler in parts["samplers"]
                ]
    return _longest_first(plan, tasks)


def chosen(
    plan: Plan, grid: Sequence[Record], *, rules: Sequence[str] | None = None
) -> dict[tuple[str, str, str, int], tuple[str, float]]:
    """The rule and the step size with the least training loss at the end, by net, sampler, optimiser and batch size.

    Of one seed, the same for all. Where no run has a finite loss, it is the smallest step size.
    """
    wanted = plan.wanted
    allowed = wanted["rules"] if rules is None else [rule for rule in wanted["rules"] if rule in rules]
    seed = wanted["grid"]["seeds"][0]
    losses: dict[tuple[str, str, str, int], list[tuple[float, int, float, str]]] = {}
    for record in grid:
        spec = record["spec"]
        if spec["part"] == "grid" and spec["seed"] == seed and spec["rule"] in allowed:
            loss = record["trace"]["loss"][-1]
            key = (spec["model"], spec["sampler"], spec["optimiser"], spec["batch_size"])
            entry = (float("inf") if loss is None else loss, RULES.index(spec["rule"]), spec["step"], spec["rule"])
            losses.setdefault(key, []).append(entry)
    return {key: (rule, step) for key, found in losses.items() for _, _, step, rule in [min(found)]}


def _task(
    plan: Plan,
    data: Mapping[str, Data],
    part: Part,
    model: str,
    sampler: str,
    optimiser: str,
    batch_size: int,
    rule: str,
    step: float,
    seed: int,
    level: str | None = None,
) -> Task:
    sizes, network = plan.models[model], plan.networks[model]
    spec = {
        "experiment": "nets",
        "part": part,
        "model": model,
        "dataset": data[model].name,
        "data_digest": data[model].digest,
        "network": {key: value for key, value in network.items() if key != "dataset"},
        "examples": sizes["examples"],
        "tested": sizes["tested"],
        "sampler": sampler,
        "loader": loader_of(plan.samplers[sampler], sizes["examples"]),
        "optimiser": optimiser,
        "batch_size": batch_size,
        "rule": rule,
        "step": float(step),
        "seed": seed,
        "epochs": sizes["grid_epochs" if part == "grid" else "epochs"],
        "checkpoints": plan.wanted[part]["checkpoints"],
        "test_every": plan.wanted[part]["test_every"],
        "revision": REVISION,
    }
    return Task(spec if level is None else {**spec, "level": level}, data[model])


def loader_of(sampler: Mapping[str, Any], n: int) -> dict[str, Any]:
    """A sampler of the plan as a run takes it, for n examples.

    >>> loader_of({"kind": "Avare", "floor": 0.2}, 100)
    {'kind': 'Avare', 'options': {'p_min': 0.002}}
    """
    options = dict(sampler.get("options", {}))
    if "floor" in sampler:
        options["p_min"] = sampler["floor"] / n
    rest = {key: value for key, value in sampler.items() if key not in ("floor", "options")}
    return {**rest, "options": options}


# --- how long it takes ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """What a part of the plan comes to on one net: how many runs, and how many seconds of one processor."""

    part: str
    model: str
    runs: int
    seconds: float


def estimate(plan: Plan) -> list[Cost]:
    """How long everything takes, by part and net; divide by the jobs, which do not disturb each other much.

    It rests on ``[times]`` of the plan, and nets that are not there count as nothing.
    """
    empty = np.zeros((0, 0), dtype=np.float32)
    data = {model: Data(plan.networks[model]["dataset"], empty, np.zeros(0), "") for model in plan.models}
    grid = grid_tasks(plan, data)
    # Which step sizes will be the best does not matter for the time.
    records = [{"spec": task.spec, "trace": {"loss": [1.0]}} for task in grid]
    tasks = grid + best_tasks(plan, data, records) + part_tasks(plan, data, records)
    costs = []
    for part in ("grid", "best", "parts"):
        for model in plan.models:
            seconds = [seconds_of(plan, task.spec) for task in tasks if _is(task.spec, part, model)]
            if seconds:
                costs.append(Cost(part, model, len(seconds), sum(seconds)))
    return costs


def seconds_of(plan: Plan, spec: Spec) -> float:
    """An estimate for one run, from the plan's times."""
    times = plan.times.get(spec["model"])
    if times is None:
        return 0.0
    size = str(spec["batch_size"])
    step = times["step"].get(size, max(times["step"].values()))
    kind = spec["loader"]["kind"]
    if kind == "UpperBound":
        step += times["importance"] + times["pool"].get(size, max(times["pool"].values()))
    elif kind != "DataLoader":
        step += times["importance"] * (4.0 if kind == "Aged" else 1.0)
    tests = -(-spec["checkpoints"] // spec["test_every"]) + 1
    looked_at = (spec["checkpoints"] + 1) * spec["examples"] + tests * spec["tested"]
    steps = spec["epochs"] * -(-spec["examples"] // spec["batch_size"])
    return float(steps * step + looked_at / 1000.0 * times["evaluation"])


def _is(spec: Spec, part: str, model: str) -> bool:
    return bool(spec["part"] == part and spec["model"] == model)


def _longest_first(plan: Plan, tasks: list[Task]) -> list[Task]:
    """So that no worker is left with a long one in the end."""
    return sorted(tasks, key=lambda task: -seconds_of(plan, task.spec))


# --- checks ---------------------------------------------------------------------------------


def _check(plan: Plan, name: str) -> None:
    """Refuse a plan that names what there is not, before anything is run."""
    from avare.samplers import names

    wanted = plan.wanted
    _has(name, wanted, ("samplers", "optimisers", "batch_sizes", "rules", "models", "sizes", "grid", "best"))
    for table, keys in _NEEDED.items():
        if table in wanted:
            _has(f"{name}: {table}", wanted[table], keys)
    for model, sizes in plan.models.items():
        _has(f"{name}: models.{model}", sizes, ("examples", "tested", "grid_epochs", "epochs"))
    parts = wanted.get("parts", {"samplers": [], "models": [], "batch_sizes": []})
    _among(name, "models", list(plan.models), plan.networks)
    _among(name, "parts.models", parts["models"], plan.models)
    _among(name, "samplers", [*wanted["samplers"], *parts["samplers"]], plan.samplers)
    _among(name, "optimisers", wanted["optimisers"], OPTIMISERS)
    _among(name, "rules", wanted["rules"], RULES)
    _among(name, "sizes", wanted["optimisers"], wanted["sizes"])
    _among(name, "parts.batch_sizes", parts["batch_sizes"], wanted["batch_sizes"])
    for sampler in (*wanted["samplers"], *parts["samplers"]):
        _among(name, f"samplers.{sampler}.kind", [plan.samplers[sampler].get("kind")], (*_KINDS, *names()))
    if parts["models"]:
        _among(name, "parts.of", [parts["of"]], wanted["samplers"])
        _among(name, "parts.optimiser", [parts["optimiser"]], wanted["optimisers"])
        _among(name, "rules, for parts", ["constant"], wanted["rules"])


def _has(name: str, table: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        if key not in table:
            raise ValueError(f"{name}: lacks {key}")


def _among(name: str, key: str, values: Sequence[Any], known: Any) -> None:
    for value in values:
        if value not in known:
            raise ValueError(f"{name}: {key} = {value!r}: must be among {', '.join(map(str, known))}")


# --- what came out, in short ----------------------------------------------------------------


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Where each sampler ends at its best settings, by net: means over the seeds of the best of its settings."""
    groups: dict[tuple[str, str, str, int], list[Record]] = {}
    for record in records:
        spec = record["spec"]
        if spec.get("part") == "best":
            key = (spec["model"], spec["sampler"], spec["optimiser"], spec["batch_size"])
            groups.setdefault(key, []).append(record)
    best: dict[tuple[str, str], tuple[float, list[Record]]] = {}
    for (model, sampler, _, _), members in groups.items():
        loss = _mean(members, "loss")
        rank = math.inf if loss is None else loss
        if (model, sampler) not in best or rank < best[model, sampler][0]:
            best[model, sampler] = (rank, members)
    return [
        {
            "model": model,
            "sampler": sampler,
            **{key: members[0]["spec"][key] for key in ("optimiser", "batch_size", "rule", "step", "epochs")},
            "runs": len(members),
            **{measure: _mean(members, measure) for measure in ("loss", "test_error", "gain", "possible", "seconds")},
        }
        for (model, sampler), (_, members) in best.items()
    ]


def _mean(records: Sequence[Record], measure: str) -> float | None:
    """At the end; None where a run has no number."""
    values = [record["trace"][measure][-1] for record in records]
    return None if None in values else float(np.mean(np.array(values, dtype=np.float64)))
