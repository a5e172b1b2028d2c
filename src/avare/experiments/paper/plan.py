"""What the paper's experiments run: its datasets and settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from avare import samplers
from avare.experiments.base import RUNS, Stage, Stages, Task
from avare.experiments.data import Data, obtain
from avare.experiments.descent import RULES, Rule, descents, problem_of
from avare.experiments.facts import table_task
from avare.experiments.paper.theory import BOUNDS, theory_task
from avare.experiments.store import Record, Store
from avare.experiments.sweep import Workers, execute

SAMPLERS = ("Uniform", "Mabs", "Vrb", "Avare")
L2 = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How the paper uses a dataset."""

    loss: str
    batch_size: int  # drawn with replacement
    tolerance: float  # of the optimum, relative to the gradient at 0
    quick_epochs: int
    caution: float = 1.0  # factor on the largest smoothness, from which step sizes are made


# The paper does not say what its L is. On CIFAR10, where images have much in common, steps of m / (2 N L) with ours are
# too long even for the full gradient, whatever the sampler; 3 L gives the paper's figures.
SETTINGS: dict[str, Setting] = {
    "synthetic": Setting("logistic", 1, 1e-13, 100),
    "mnist": Setting("softmax", 128, 1e-8, 4),
    "ijcnn1": Setting("softmax", 128, 1e-12, 20),
    "cifar10": Setting("softmax", 128, 1e-7, 1, caution=3.0),
}
PARTS = (*SETTINGS, "table", "theory")
_THEORY_DATASET = "synthetic"


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run.

    >>> Extent().runs, Extent.quick().runs
    (10, 2)
    """

    runs: int = RUNS  # seeds 0, 1, ... of each setting
    epochs: int | None = 100  # per run; None: few, so that it is quick
    rules: Sequence[Rule] = RULES
    samplers: Sequence[str] = SAMPLERS
    theory_steps: int = 100_000  # of each run that measures the regret at every step

    @classmethod
    def quick(cls, rules: Sequence[Rule] = RULES, samplers: Sequence[str] = SAMPLERS) -> "Extent":
        """Return an extent that takes about two minutes for everything."""
        return cls(2, None, rules, samplers, 5_000)


def parts_of(what: Sequence[str]) -> list[str]:
    """Return the parts that are asked for, in order; "all" is all of them.

    >>> parts_of(["mnist", "synthetic"])
    ['synthetic', 'mnist']
    """
    for name in what:
        if name not in (*PARTS, "all"):
            raise ValueError(f"what = {name!r}: must be one of {', '.join(PARTS)}, all")
    return [part for part in PARTS if part in what or "all" in what]


def reproduce(
    what: Sequence[str],
    store: Store,
    *,
    extent: Extent | None = None,
    folder: str | None = None,
    **workers: Unpack[Workers],
) -> list[Record]:
    """Run what is not stored yet of some parts of the paper; return all their records.

    Parameters
    ----------
    what, extent
        Datasets, "table" (Table 1 of all of them), "theory" (how the regret grows), or "all"; and how much of it: by
        default as much as the paper.
    folder
        A folder to look into first for the files of datasets.
    store, **workers
        Where results are kept, and `Workers`.

    Examples
    --------
    >>> import tempfile
    >>> from avare.experiments.store import Store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = reproduce(["synthetic"], Store(folder), extent=Extent(1, 1, ["constant"], ["Uniform"]))
    >>> [record["spec"]["dataset"] for record in records]
    ['synthetic', 'synthetic']
    """
    stages = paper_stages(what, extent or Extent(), folder, progress=workers.get("watch") is not None)
    return execute(stages, store, **workers)


def paper_stages(what: Sequence[str], extent: Extent, folder: str | None, *, progress: bool) -> Stages:
    """Yield the search for the optima, then all runs; in each the longest first, so that workers end together."""
    parts = parts_of(what)
    names = list(SETTINGS) if "table" in parts else [name for name in SETTINGS if name in parts]
    for name in extent.samplers:
        samplers.get(name)  # raises an error if there is no such sampler
    theory = [_THEORY_DATASET] if "theory" in parts else []
    data = {name: obtain(name, folder=folder, progress=progress)[0] for name in dict.fromkeys([*names, *theory])}
    tables = yield Stage("optima", [optimum_task(data[name]) for name in reversed(names)])
    optima = {record["spec"]["dataset"]: record["facts"]["optimum"] for record in tables}
    tasks = [
        task
        for name in reversed(names)
        if name in parts
        for task in descent_tasks("reproduce", data[name], SETTINGS[name].loss, optima[name], extent)
    ]
    tasks += [task for name in theory for task in theory_tasks(data[name], extent)]
    if tasks:
        yield Stage("runs", tasks)


def optimum_task(data: Data) -> Task:
    """Return the search for the optimum of one of the paper's datasets."""
    setting = SETTINGS[data.name]
    return table_task(data, setting.loss, L2, setting.tolerance)


def descent_tasks(experiment: str, data: Data, loss: str, optimum: float, extent: Extent) -> list[Task]:
    """Return the runs on one of the paper's datasets, seed by seed."""
    setting = SETTINGS[data.name]
    epochs = setting.quick_epochs if extent.epochs is None else extent.epochs
    bound = float(problem_of({"loss": loss, "l2": L2}, data.X, data.y).lengths.max())
    wanted: dict[str, Any] = {"runs": extent.runs, "rules": extent.rules, "samplers": extent.samplers, "epochs": epochs}
    settings: dict[str, Any] = {"batch_size": setting.batch_size, "l2": L2, "caution": setting.caution, "bound": bound}
    return descents(experiment, data, loss, optimum, **wanted, **settings)


def theory_tasks(data: Data, extent: Extent) -> list[Task]:
    """Return the runs that measure how the regret grows."""
    loss, steps = SETTINGS[data.name].loss, extent.theory_steps
    return [
        theory_task(method, data, loss, L2, seed=seed, steps=steps) for seed in range(extent.runs) for method in BOUNDS
    ]
