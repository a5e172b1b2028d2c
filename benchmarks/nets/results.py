"""What the stored runs on nets show: runs that differ by their seed alone, taken together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.store import Result, canonical, together
from avare.plotting.charts import rank, ranked
from nets.plan import OPTIMISERS, PARTS, read_plan

UNIFORM, DEFAULT = "DataLoader", "Calibrated"
"""The label of uniform batches, and that of the loader's default."""
MEASURES = ("seconds", "loss", "test_error", "gain", "possible", "calibration_error")
SAMPLERS = (DEFAULT, "Avare", "Avare, √norm", "Srg", "UpperBound", UNIFORM)
"""The order in which samplers are listed; others follow."""
# Keys of a spec that must be the same for runs to be compared: on one net, and in one part of the plan.
_SETUP = ("data_digest", "network", "examples", "tested", "revision")
_EXTENT = ("epochs", "checkpoints", "test_every")
# In each cell of a part, some keys must be the same too, or runs of an older plan would be shown as settings of the
# same sampler: its options, and, except on the grid, the step size, which is the best one or a multiple of it.
_CELLS = {"grid": (("sampler",), ("loader",))}
_CELL = ("sampler", "optimiser", "batch_size", "level"), ("loader", "rule", "step")


@dataclass(frozen=True, slots=True, eq=False)
class SeedGroup:
    """The runs of one sampler with one setting; ``group[key]`` is a value of their common spec, or ""."""

    spec: Mapping[str, Any]
    seeds: tuple[int, ...]
    epochs: NDArray[np.float64]  # at the checkpoints
    runs: Mapping[str, NDArray[np.float64]]  # by measure: a row per run, NaN where there is no number
    diverged: int  # how many runs

    def __getitem__(self, key: str) -> Any:
        return self.spec.get(key, "")

    def mean(self, measure: str) -> NDArray[np.float64]:
        """Return the mean at each checkpoint; NaN where a run has no number."""
        return np.asarray(self.runs[measure].mean(axis=0))

    def deviation(self, measure: str) -> NDArray[np.float64]:
        """Return the standard deviation at each checkpoint; 0 for a single run."""
        values = self.runs[measure]
        return np.asarray(values.std(axis=0, ddof=1) if len(values) > 1 else 0.0 * values[0])

    def last(self, measure: str) -> float:
        """Return the mean at the end."""
        return float(self.mean(measure)[-1])

    def error(self, measure: str) -> float:
        """Return the standard error of the mean at the end; NaN for a single run."""
        return float(self.deviation(measure)[-1]) / math.sqrt(len(self.seeds)) if len(self.seeds) > 1 else math.nan

    @property
    def net(self) -> str:
        """The net as it is written."""
        return net_name(self["model"], self["dataset"], (self["network"] or {}).get("kind", ""))

    @property
    def step_seconds(self) -> float:
        """The mean time of a step."""
        steps = self.epochs[-1] * -(-self["examples"] // self["batch_size"])
        return self.last("seconds") / steps if steps > 0 else math.nan


@dataclass(frozen=True, slots=True, eq=False)
class NetResults:
    """All that a store has of nets."""

    groups: tuple[SeedGroup, ...]
    records: int  # runs that are shown
    left_out: int  # runs with other data, nets or settings than those shown
    seconds: float  # of all runs shown, steps and evaluations

    @property
    def models(self) -> dict[str, str]:
        """The nets, and how they are written."""
        return {group["model"]: group.net for group in self.groups}

    @property
    def samplers(self) -> list[str]:
        """The labels of the samplers that are compared, without variants."""
        return ranked({group["sampler"] for group in self.groups if group["part"] != "parts"}, SAMPLERS)

    def of(self, part: str, **wanted: Any) -> list[SeedGroup]:
        """Return the groups of a part with given values in their specs."""
        wanted["part"] = part
        return [group for group in self.groups if all(group[key] == value for key, value in wanted.items())]

    def best(self, model: str, sampler: str) -> SeedGroup | None:
        """Return a sampler at its best setting: that with the least final training loss; None if all diverged."""
        finite = [group for group in self.of("best", model=model, sampler=sampler) if group.last("loss") < math.inf]
        return min(finite, key=lambda group: group.last("loss"), default=None)

    def at_best(self, model: str, *, diverged: bool = False) -> list[SeedGroup]:
        """Return all samplers, each at its best setting; if asked, also those that diverged with every setting."""
        found = []
        for label in self.samplers:
            best = self.best(model, label)
            if best is not None:
                found.append(best)
            elif diverged:
                found += self.of("best", model=model, sampler=label)[:1]
        return found


def net_name(model: str, dataset: str, kind: str) -> str:
    """Return a net as it is written.

    >>> net_name("mnist-mlp", "mnist", "mlp"), net_name("mnist-mlp-half", "mnist", "mlp"), net_name("x", "mnist", "mlp")
    ('MLP on MNIST', 'MLP on MNIST, half', 'x')
    """
    stem, _, more = model.partition(f"{dataset}-{kind}")
    if stem or (more and not more.startswith("-")):
        return model
    return f"{kind.upper()} on {dataset.upper()}{more.replace('-', ', ', 1).replace('-', ' ')}"


def gather(results: Sequence[Result]) -> NetResults | None:
    """Take the results on nets together; None if none is to be shown.

    If there are runs of several setups of a net, as after a quick run and a full one, or of several plans, the setup
    with the most runs is shown; of equal ones the largest, then the newest.
    """
    shown = [result for result in results if result.shown]
    if not shown:
        return None
    kept: list[Result] = []
    for _, of_model in together(shown, partial(_values, keys=("model",))):
        for (part,), of_part in together(_most(of_model, _SETUP), partial(_values, keys=("part",))):
            cell, same = _CELLS.get(part, _CELL)
            for _, members in together(_most(of_part, _EXTENT), partial(_values, keys=cell)):
                kept += _most(members, same)
    order = {"model": read_plan().networks, "part": PARTS, "level": (), "sampler": SAMPLERS, "optimiser": OPTIMISERS}
    groups = [_group(members) for _, members in together(kept, lambda result: {**result.spec, "seed": None})]
    groups.sort(key=lambda group: (group["batch_size"], group["rule"], group["step"]))
    groups.sort(key=lambda group: [rank(group[key], known) for key, known in order.items()])
    seconds = math.fsum(value for result in kept for value in result.seconds.values() if math.isfinite(value))
    return NetResults(tuple(groups), len(kept), len(shown) - len(kept), seconds)


def reached(loss: NDArray[np.float64], target: float, along: NDArray[np.float64]) -> float:
    """Return where a loss first reaches a target, along epochs or seconds; NaN if it never does.

    Between two checkpoints, the logarithm of the loss is interpolated linearly.

    >>> reached(np.array([8.0, 4.0, 1.0]), 2.0, np.array([0.0, 10.0, 30.0]))
    20.0
    """
    below = np.flatnonzero(loss <= target)
    if not len(below):
        return math.nan
    place = int(below[0])
    if place == 0 or not loss[place - 1] > 0.0 or not loss[place] > 0.0:
        return float(along[place])
    before, after = math.log(loss[place - 1]), math.log(loss[place])
    part = (before - math.log(target)) / (before - after) if before > after else 1.0
    return float(along[place - 1] + part * (along[place] - along[place - 1]))


def _group(members: Sequence[Result]) -> SeedGroup:
    ordered = sorted(members, key=lambda result: int(result.spec["seed"]))
    return SeedGroup(
        spec={key: value for key, value in ordered[0].spec.items() if key != "seed"},
        seeds=tuple(int(result.spec["seed"]) for result in ordered),
        epochs=ordered[0].trace["epoch"],
        runs={measure: np.array([result.trace[measure] for result in ordered]) for measure in MEASURES},
        diverged=sum(result.status == "diverged" for result in ordered),
    )


def _most(results: Sequence[Result], keys: Sequence[str]) -> list[Result]:
    """Return the largest set of results with the same values; of equal ones the longest runs, then the newest."""

    def size(entry: tuple[Any, list[Result]]) -> tuple[Any, ...]:
        values, members = entry
        work = max(result.spec["examples"] * result.spec["epochs"] for result in members)
        return len(members), work, max(str(result.where.get("date", "")) for result in members), canonical(values)

    return max(together(results, partial(_values, keys=keys)), key=size)[1]


def _values(result: Result, keys: Sequence[str]) -> list[Any]:
    return [result.spec.get(key) for key in keys]
