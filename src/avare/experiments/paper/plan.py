"""The paper's experiments, with its settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from avare import samplers
from avare.experiments.data import Data, Loss, obtain
from avare.experiments.runs import descent_spec, problem_of, table_spec, theory_spec
from avare.experiments.store import Record, Store
from avare.experiments.sweep import Task, Watch, sweep

Rule = Literal["decreasing", "constant"]

RULES: tuple[Rule, ...] = get_args(Rule)
SAMPLERS = ("Uniform", "Mabs", "Vrb", "Avare")
L2 = 1.0
RUNS = 10


@dataclass(frozen=True, slots=True)
class Setting:
    """How a dataset is used.

    Parameters
    ----------
    loss
        Of an example.
    batch_size
        m, drawn with replacement.
    tolerance
        To which the optimum is found, as a part of the gradient at 0.
    quick_epochs
        How many there are where it must be quick.
    caution
        By what the largest smoothness is multiplied to make step sizes of it. The paper does not say what its L is.
        On CIFAR10, where images have much in common, steps of m / (2 N L) with ours are too long even for the whole
        gradient, whatever the sampler; 3 L gives the paper's figures.
    """

    loss: Loss
    batch_size: int
    tolerance: float
    quick_epochs: int
    caution: float = 1.0


SETTINGS: dict[str, Setting] = {
    "synthetic": Setting("logistic", 1, 1e-13, 100),
    "mnist": Setting("softmax", 128, 1e-8, 4),
    "ijcnn1": Setting("softmax", 128, 1e-12, 20),
    "cifar10": Setting("softmax", 128, 1e-7, 1, caution=3.0),
}
PARTS = (*SETTINGS, "table", "theory")
BOUNDS = {"sgd": Fraction(2, 3), "sgld": Fraction(5, 6)}
"""As which power of the steps the regret of each method grows at most, by the theorems."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run.

    Parameters
    ----------
    runs
        Seeds 0, 1, ... of each.
    epochs
        Of each run; None: so few that it is quick.
    rules
        Step sizes.
    samplers
        Names of samplers.
    theory_steps
        Of each run that measures the regret at every step.
    """

    runs: int = RUNS
    epochs: int | None = 100
    rules: Sequence[Rule] = RULES
    samplers: Sequence[str] = SAMPLERS
    theory_steps: int = 100_000

    @classmethod
    def quick(cls, rules: Sequence[Rule] = RULES, samplers: Sequence[str] = SAMPLERS) -> "Extent":
        """About two minutes for everything."""
        return cls(2, None, rules, samplers, 5_000)


def parts_of(what: Sequence[str]) -> list[str]:
    """The parts that are asked for, in order; "all" is all of them.

    >>> parts_of(["mnist", "synthetic"])
    ['synthetic', 'mnist']
    """
    for name in what:
        if name not in (*PARTS, "all"):
            raise ValueError(
                f"what = {name!r}: must be one of {', '.join(PARTS)}, all; the command also knows check and nets"
            )
    return [part for part in PARTS if part in what or "all" in what]


def reproduce(
    what: Sequence[str],
    store: Store,
    *,
    extent: Extent | None = None,
    folder: str | None = None,
    jobs: int = 1,
    dask: str | None = None,
    watch: Watch | None = None,
) -> list[Record]:
    """Do what is not stored yet of some parts of the paper, and give all their records.

    Parameters
    ----------
    what
        Datasets, "table" (Table 1 of all of them), "theory" (how the regret grows), or "all".
    store
        Where results are.
    extent
        How much is run; the paper's, by default.
    folder
        Where the files of datasets are looked for first.
    jobs, dask, watch
        As for `sweep`.
    """
    extent = Extent() if extent is None else extent
    parts = parts_of(what)
    names = list(SETTINGS) if "table" in parts else [name for name in SETTINGS if name in parts]
    for name in extent.samplers:
        samplers.get(name)  # refuses what there is not
    data = {
        name: obtain(name, folder=folder, progress=watch is not None)[0] for name in _order(names, "theory" in parts)
    }
    arguments: dict[str, Any] = {"jobs": jobs, "dask": dask, "watch": watch}
    # The longest first, so that no worker is left with it in the end.
    tables = sweep([table_task(data[name]) for name in reversed(names)], store, title="optima", **arguments)
    optima = {record["spec"]["dataset"]: record["facts"]["optimum"] for record in tables}
    tasks = [
        task
        for name in reversed(names)
        if name in parts
        for task in descent_tasks("reproduce", data[name], SETTINGS[name].loss, optima[name], extent)
    ]
    if "theory" in parts:
        tasks += theory_tasks(data["synthetic"], extent)
    return tables + (sweep(tasks, store, title="runs", **arguments) if tasks else [])


def table_task(data: Data) -> Task:
    """What there is to know of one of the paper's datasets."""
    setting = SETTINGS[data.name]
    spec = table_spec(dataset=data.name, data_digest=data.digest, loss=setting.loss, l2=L2, tolerance=setting.tolerance)
    return Task(spec, data)


def descent_tasks(experiment: str, data: Data, loss: Loss, optimum: float, extent: Extent) -> list[Task]:
    """The runs on one of the paper's datasets, seed by seed."""
    setting = SETTINGS[data.name]
    epochs = setting.quick_epochs if extent.epochs is None else extent.epochs
    longest = float(problem_of({"loss": loss, "l2": L2}, data.X, data.y).lengths.max())
    return [
        Task(
            descent_spec(
                experiment,
                dataset=data.name,
                data_digest=data.digest,
                loss=loss,
                steps=rule,
                sampler=sampler,
                options=options_of(sampler, rule, len(data), epochs, longest),
                seed=seed,
                epochs=epochs,
                batch_size=setting.batch_size,
                replacement=draws_with_replacement(sampler),
                l2=L2,
                caution=setting.caution,
            ),
            data,
            optimum,
        )
        for seed in range(extent.runs)
        for rule in extent.rules
        for sampler in extent.samplers
    ]


def theory_tasks(data: Data, extent: Extent) -> list[Task]:
    """The runs that measure how the regret grows."""
    return [
        Task(
            theory_spec(
                method,
                dataset=data.name,
                data_digest=data.digest,
                loss=SETTINGS[data.name].loss,
                l2=L2,
                seed=seed,
                steps=extent.theory_steps,
            ),
            data,
        )
        for seed in range(extent.runs)
        for method in BOUNDS
    ]


def options_of(sampler: str, rule: str, n: int, epochs: int, bound: float | None) -> dict[str, Any]:
    """What the paper gives each sampler: a lasting floor for constant steps, the theory's limits to the rivals.

    With a bound, the limits are kept as they are stated, although some norms pass the paper's bound;
    without one they are learned.

    >>> options_of("Avare", "constant", 100, epochs=5, bound=None)
    {'delta': 1.0, 'p_min': 0.002}
    """
    if sampler in ("Avare", "Calibrated"):
        return {"delta": 1.0, "p_min": 0.0 if rule == "decreasing" else 1.0 / (5 * n)}
    if sampler in ("Mabs", "Vrb") and bound is not None:
        return {"horizon": epochs * n, "bound": bound, "keep_limits": True}
    if sampler in ("Mabs", "Vrb", "Osmd"):
        return {"horizon": epochs * n}
    return {}


def draws_with_replacement(sampler: str, wanted: bool = True) -> bool:
    """Whether a sampler draws with replacement, where that is wanted, and it can do both."""
    kind = samplers.get(sampler)
    return kind.with_replacement_only or (wanted and not kind.without_replacement_only)


def exponent(record: Mapping[str, Any]) -> float:
    """How the regret of a run grows over the last decade of steps: the slope of its logarithm.

    The start is not yet the law. Nan where there are no two points.

    >>> steps = [1, 10, 20, 50, 100]
    >>> round(exponent({"trace": {"step": steps, "regret": [3.0 * t**0.5 for t in steps]}}), 6)
    0.5
    """
    steps, regret = (np.array(record["trace"][name], dtype=np.float64) for name in ("step", "regret"))
    last = (steps >= steps[-1] / 10.0) & (regret > 0.0)
    if np.count_nonzero(last) < 2:
        return math.nan
    return float(np.polyfit(np.log(steps[last]), np.log(regret[last]), 1)[0])


def _order(names: Sequence[str], theory: bool) -> list[str]:
    return list(dict.fromkeys([*names, *(["synthetic"] if theory else [])]))
