"""What to run on nets: a plan, the runs that follow from it, and how long they take.

First a grid of step sizes; then each sampler with its best ones, which the records of the grid
determine; then variants of `Calibrated`, to see which of its parts matter.
"""

import math
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from avare._optional import require
from avare.experiments import datasets
from avare.experiments.base import Stage, Stages, Task
from avare.experiments.data import Data
from avare.experiments.runner import Watch, execute
from avare.experiments.store import Record, Spec, Store
from avare.samplers import names

REVISION = 1  # of what a run computes; raise it when the numbers change, so that all is run again
OPTIMISERS = {"sgd": "SGD", "momentum": "Momentum", "adamw": "AdamW"}
"""The optimisers, and how they are written."""
RULES = ("constant", "decreasing", "one-cycle")
PARTS = ("grid", "best", "parts")
"""The parts of a plan, in the order in which they are run."""
ADDED_TIMES: Mapping[str, tuple[str, ...]] = {
    "DataLoader": (),
    "InfoBatch": (),
    "UpperBound": ("importance", "pool"),
    "TwoStages": ("importance", "pool"),
}
"""The loaders that are no sampler's name, and which of the plan's times they add to a step."""
_SHUFFLE = 0  # the seed of the choice of rows
_CELL = ("model", "sampler", "optimiser", "batch_size", "rule", "step", "seed", "level")
_EXTENT = ("seeds", "checkpoints", "test_every")
_KEYS = {  # that a plan must have, by its tables
    "models": ("examples", "tested", "grid_epochs", "epochs"),
    "grid": _EXTENT,
    "best": _EXTENT,
    "parts": (*_EXTENT, "models", "batch_sizes", "optimiser", "of", "aggressive", "samplers"),
}


@dataclass(frozen=True, slots=True)
class NetPlan:
    """What to run: the tables of a file like plan.toml, which explains them.

    >>> plan = read_plan(quick=True)
    >>> plan.networks["mnist-mlp"]["dataset"]
    'mnist'
    """

    networks: Mapping[str, Mapping[str, Any]]
    samplers: Mapping[str, Mapping[str, Any]]
    wanted: Mapping[str, Any]
    """Which of these to run, and with which settings: the table "full" or "quick"."""
    times: Mapping[str, Mapping[str, Any]]

    @property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """The nets to run, with their numbers of examples and epochs."""
        found: Mapping[str, Mapping[str, Any]] = self.wanted["models"]
        return found


def read_plan(path: str | Path | None = None, *, quick: bool = False) -> NetPlan:
    """Read a plan from a file, by default the one of this package, and check it.

    >>> sorted(read_plan().models)
    ['cifar10-cnn', 'ijcnn1-mlp', 'mnist-cnn', 'mnist-mlp']
    """
    if path is None:
        text = resources.files("nets").joinpath("plan.toml").read_text(encoding="utf-8")
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
    plan = NetPlan(tables["networks"], tables["samplers"], tables[part], tables.get("times", {}))
    check_plan(plan, f"{name} [{part}]")
    return plan


def run_nets(
    store: Store,
    *,
    plan: NetPlan | None = None,
    folder: str | Path | None = None,
    jobs: int = 1,
    watch: Watch | None = None,
) -> list[Record]:
    """Do the runs of a plan that are not stored yet, and return the records of all.

    Parameters
    ----------
    store
        Where results are.
    plan
        What to run; by default the plan of this package, which takes an hour with two jobs.
    folder
        A folder to look into first for the files of datasets.
    jobs, watch
        See `avare.experiments.runner.sweep`.

    Examples
    --------
    >>> import tempfile
    >>> from avare.experiments.store import Store
    >>> plan = read_plan(quick=True)
    >>> plan.wanted["models"] = plan.wanted["parts"]["models"] = {}  # without this line it trains nets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run_nets(Store(folder), plan=plan)
    []
    """
    plan = read_plan() if plan is None else plan
    stages = net_stages(plan, folder, jobs=jobs, progress=watch is not None)
    return execute([stages], store, jobs=jobs, watch=watch)


def net_stages(plan: NetPlan, folder: str | Path | None = None, *, jobs: int = 1, progress: bool = False) -> Stages:
    """Yield the runs of a plan, part by part."""
    require("torch", "training nets", "torch,experiments")
    data = load(plan, folder, progress=progress)
    costs = estimate(plan)
    seconds = math.fsum(cost.seconds for cost in costs) / jobs
    about = f", about {duration(seconds)} if none is stored" if seconds > 0.0 else ""
    if progress:
        print(f"nets: {sum(cost.runs for cost in costs)} runs in all{about}", file=sys.stderr)
    grid = yield Stage("nets: grid", grid_tasks(plan, data))
    yield Stage("nets: best settings", best_tasks(plan, data, grid))
    if "parts" in plan.wanted:
        yield Stage("nets: parts", part_tasks(plan, data, grid))


def load(plan: NetPlan, folder: str | Path | None = None, *, progress: bool = False) -> dict[str, Data]:
    """Load the data of each net: its training examples, then its test examples, chosen and scaled by the plan."""
    found: dict[str, Data] = {}
    for name in dict.fromkeys(plan.networks[model]["dataset"] for model in plan.models):
        # One dataset at a time: some are large, and only a part of each is kept.
        train = datasets.load(name, folder=folder, progress=progress)
        test = datasets.load(name, split="test", folder=folder, progress=progress)
        classes = np.unique(train.y)
        for model, sizes in plan.models.items():
            network = plan.networks[model]
            if network["dataset"] != name:
                continue
            rows, targets = [], []
            for split, key in ((train, "examples"), (test, "tested")):
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
            found[model] = Data(name, X, y)
    return found


# --- runs -----------------------------------------------------------------------------------


def grid_tasks(plan: NetPlan, data: Mapping[str, Data]) -> list[Task]:
    """Return the runs of every sampler with every setting, for a few epochs."""
    wanted, grid = plan.wanted, plan.wanted["grid"]
    cells = [
        (*cell, step, seed)
        for cell in product(
            plan.models, wanted["samplers"], wanted["optimisers"], wanted["batch_sizes"], wanted["rules"]
        )
        for step in wanted["sizes"][cell[2]]
        for seed in grid.get("more_seeds", {}).get(cell[1], grid["seeds"])
    ]
    return _tasks(plan, data, "grid", cells)


def best_tasks(plan: NetPlan, data: Mapping[str, Data], grid: Sequence[Record]) -> list[Task]:
    """Return the runs of every sampler, optimiser and batch size with the step sizes that were best on the grid."""
    wanted, best = plan.wanted, chosen(plan, grid)
    settings = product(plan.models, wanted["samplers"], wanted["optimisers"], wanted["batch_sizes"])
    cells = [(*cell, *best[cell], seed) for cell, seed in product(settings, wanted["best"]["seeds"])]
    return _tasks(plan, data, "best", cells)


def part_tasks(plan: NetPlan, data: Mapping[str, Data], grid: Sequence[Record]) -> list[Task]:
    """Return the runs of variants of a sampler, at its best constant step size and at a larger one."""
    parts = plan.wanted.get("parts")
    if parts is None:
        return []
    best, optimiser = chosen(plan, grid, rules=("constant",)), parts["optimiser"]
    levels = {"best": 1.0, "aggressive": parts["aggressive"]}
    cells = []
    for model, size, level in product(parts["models"], parts["batch_sizes"], levels):
        rule, step = best[model, parts["of"], optimiser, size]
        for sampler, seed in product(parts["samplers"], parts["seeds"]):
            cells.append((model, sampler, optimiser, size, rule, levels[level] * step, seed, level))
    return _tasks(plan, data, "parts", cells)


def chosen(
    plan: NetPlan, grid: Sequence[Record], *, rules: Sequence[str] = RULES
) -> dict[tuple[str, str, str, int], tuple[str, float]]:
    """Return the rule and the step size with the least final training loss, by the first keys of a cell.

    One seed decides, the same for all. If no run has a finite loss, it is the smallest step size.
    """
    seed = plan.wanted["grid"]["seeds"][0]
    allowed = {*rules} & {*plan.wanted["rules"]}
    losses: dict[tuple[str, str, str, int], list[tuple[float, int, float, str]]] = {}
    for record in grid:
        spec = record["spec"]
        if spec["part"] == "grid" and spec["seed"] == seed and spec["rule"] in allowed:
            loss = record["trace"]["loss"][-1]
            key = (spec["model"], spec["sampler"], spec["optimiser"], spec["batch_size"])
            entry = (math.inf if loss is None else loss, RULES.index(spec["rule"]), spec["step"], spec["rule"])
            losses.setdefault(key, []).append(entry)
    return {key: (rule, step) for key, found in losses.items() for _, _, step, rule in [min(found)]}


def loader_of(sampler: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return a sampler of the plan as a run takes it, for n examples.

    >>> loader_of({"kind": "Avare", "floor": 0.2}, 100)
    {'kind': 'Avare', 'options': {'p_min': 0.002}}
    """
    options = dict(sampler.get("options", {}))
    if "floor" in sampler:
        options["p_min"] = sampler["floor"] / n
    rest = {key: value for key, value in sampler.items() if key not in ("floor", "options")}
    return {**rest, "options": options}


def _tasks(plan: NetPlan, data: Mapping[str, Data], part: str, cells: Iterable[tuple[Any, ...]]) -> list[Task]:
    """Return the runs of a part, the longest first, so that no worker starts a long one at the end."""
    tasks = []
    for values in cells:
        cell = dict(zip(_CELL, values, strict=False))  # only variants have a level
        model = cell["model"]
        sizes, network = plan.models[model], plan.networks[model]
        spec = {
            "experiment": "nets",
            "part": part,
            "dataset": data[model].name,
            "data_digest": data[model].digest,
            "network": {key: value for key, value in network.items() if key != "dataset"},
            "examples": sizes["examples"],
            "tested": sizes["tested"],
            "loader": loader_of(plan.samplers[cell["sampler"]], sizes["examples"]),
            "epochs": sizes["grid_epochs" if part == "grid" else "epochs"],
            "checkpoints": plan.wanted[part]["checkpoints"],
            "test_every": plan.wanted[part]["test_every"],
            "revision": REVISION,
            **cell,
            "step": float(cell["step"]),
        }
        tasks.append(Task(spec, data[model]))
    return sorted(tasks, key=lambda task: -seconds_of(plan, task.spec))


# --- how long it takes ----------------------------------------------------------------------


class Cost(NamedTuple):
    """The cost of a part of the plan on one net: its runs, and seconds of one processor."""

    part: str
    model: str
    runs: int
    seconds: float


def estimate(plan: NetPlan) -> list[Cost]:
    """Estimate the time of each part and net, from ``[times]`` of the plan; 0 for nets that are not in it.

    With several jobs, divide by their number.

    >>> sum(cost.runs for cost in estimate(read_plan(quick=True))) > 10
    True
    """
    empty = np.zeros((0, 0), dtype=np.float32)
    data = {model: Data(plan.networks[model]["dataset"], empty, np.zeros(0)) for model in plan.models}
    grid = grid_tasks(plan, data)
    # The time does not depend on which step sizes are the best.
    records = [{"spec": task.spec, "trace": {"loss": [1.0]}} for task in grid]
    costs: dict[tuple[str, str], list[float]] = {cell: [] for cell in product(PARTS, plan.models)}
    for task in (*grid, *best_tasks(plan, data, records), *part_tasks(plan, data, records)):
        costs[task.spec["part"], task.spec["model"]].append(seconds_of(plan, task.spec))
    return [Cost(*cell, len(seconds), math.fsum(seconds)) for cell, seconds in costs.items() if seconds]


def seconds_of(plan: NetPlan, spec: Spec) -> float:
    """Estimate the time of one run, from the plan's times."""
    times = plan.times.get(spec["model"])
    if times is None:
        return 0.0
    step = 0.0
    for name in ("step", *ADDED_TIMES.get(spec["loader"]["kind"], ("importance",))):
        time = times[name]  # a number, or one by batch size
        step += time.get(str(spec["batch_size"]), max(time.values())) if isinstance(time, dict) else time
    tests = -(-spec["checkpoints"] // spec["test_every"]) + 1
    evaluated = (spec["checkpoints"] + 1) * spec["examples"] + tests * spec["tested"]
    steps = spec["epochs"] * -(-spec["examples"] // spec["batch_size"])
    return float(steps * step + evaluated / 1000.0 * times["evaluation"])


# --- checks ---------------------------------------------------------------------------------


def check_plan(plan: NetPlan, name: str) -> None:
    """Refuse a plan with missing or unknown words; ``name`` is for the error."""
    wanted = plan.wanted
    parts: Mapping[str, Any] = wanted.get("parts", {})
    for place, table, keys in (
        ("", wanted, ("samplers", "optimisers", "batch_sizes", "rules", "models", "sizes", "grid", "best")),
        *((f": {part}", wanted[part], _KEYS[part]) for part in PARTS if part in wanted),
        *((f": models.{model}", sizes, _KEYS["models"]) for model, sizes in wanted.get("models", {}).items()),
    ):
        for key in keys:
            if key not in table:
                raise ValueError(f"{name}{place}: lacks {key}")
    used = [*wanted["samplers"], *parts.get("samplers", ())]
    kinds = {label: plan.samplers.get(label, {}).get("kind") for label in used}
    for key, values, known in (
        ("models", plan.models, plan.networks),
        ("samplers", used, plan.samplers),
        ("optimisers", wanted["optimisers"], OPTIMISERS),
        ("rules", wanted["rules"], RULES),
        ("sizes", wanted["optimisers"], wanted["sizes"]),
        *((f"samplers.{label}.kind", [kind], (*ADDED_TIMES, *names())) for label, kind in kinds.items()),
        ("parts.models", parts.get("models", ()), plan.models),
        ("parts.batch_sizes", parts.get("batch_sizes", ()), wanted["batch_sizes"]),
        ("parts.of", [parts["of"]] if parts else (), wanted["samplers"]),
        ("parts.optimiser", [parts["optimiser"]] if parts else (), wanted["optimisers"]),
        ("rules, for parts", ["constant"] if parts else (), wanted["rules"]),
    ):
        for value in values:
            if value not in known:
                raise ValueError(f"{name}: {key} = {value!r}: must be among {', '.join(map(str, known))}")


def duration(seconds: float) -> str:
    """Write a time in words.

    >>> duration(42.4), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
