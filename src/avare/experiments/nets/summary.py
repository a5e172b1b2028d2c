"""What the stored runs on nets say: runs that differ by their seed alone, taken together."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.store import canonical
from avare.report import styles
from avare.report.records import Record
from avare.report.styles import BLACK, GREEN, PURPLE, SKY, Style, rank, ranked

UNIFORM, DEFAULT = "DataLoader", "Calibrated"
MEASURES = ("seconds", "loss", "test_error", "gain", "possible", "calibration_error")
TITLES = {
    "mnist-mlp": "MLP on MNIST",
    "mnist-cnn": "CNN on MNIST",
    "ijcnn1-mlp": "MLP on IJCNN1",
    "cifar10-cnn": "CNN on CIFAR10",
}
OPTIMISERS = {"sgd": "SGD", "momentum": "Momentum", "adamw": "AdamW"}
CHANCE = {"mnist": math.log(10.0), "cifar10": math.log(10.0), "ijcnn1": 0.318}
"""By dataset: the loss of a net that has learned how frequent the classes are, and nothing else."""
_SAMPLERS = (DEFAULT, "Avare", "Avare, √norm", UNIFORM, "Srg", "UpperBound")
_STYLES = {
    UNIFORM: Style(BLACK, "solid", "^"),
    "Avare, √norm": Style(SKY, "dash", "h"),
    "by norm": Style(SKY, "solid", "v"),
    "by norm and age": Style(GREEN, "solid", "D"),
    "step × gain, up to 2": Style(GREEN, "dash", "P"),
    "step × gain, up to 5": Style(PURPLE, "solid", "X"),
}
# What of a spec must be the same for runs to be compared: on the whole, and within a part.
_SETUP = ("data_digest", "network", "examples", "tested", "revision")
_EXTENT = ("epochs", "checkpoints", "test_every")
# Of a sampler, what must be the same in a part: on the grid its options, elsewhere the step size too, which is the
# best, or a multiple of it. Without it, runs of an older plan would be shown as settings of the same sampler.
_CHOSEN = {"grid": ("loader",), "best": ("loader", "rule", "step"), "parts": ("loader", "rule", "step")}
_CELL = ("sampler", "optimiser", "batch_size", "level")


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One sampler with one setting.

    Parameters
    ----------
    part
        Of the experiment: "grid", "best" or "parts".
    level
        For parts: "best" or "aggressive"; otherwise empty.
    model, sampler, optimiser, batch_size, rule, step
        What was run.
    spec
        What its runs have in common.
    seeds
        One a run.
    epochs
        Where it was evaluated.
    runs
        By measure: a row a run, nan where there is no number.
    diverged
        How many of the runs.
    """

    part: str
    level: str
    model: str
    sampler: str
    optimiser: str
    batch_size: int
    rule: str
    step: float
    spec: Mapping[str, Any]
    seeds: tuple[int, ...]
    epochs: NDArray[np.float64]
    runs: Mapping[str, NDArray[np.float64]]
    diverged: int

    def mean(self, measure: str) -> NDArray[np.float64]:
        """At each checkpoint; nan where a run has no number."""
        return np.asarray(self.runs[measure].mean(axis=0))

    def deviation(self, measure: str) -> NDArray[np.float64]:
        """Standard deviation at each checkpoint; 0 of a single run."""
        values = self.runs[measure]
        return np.asarray(values.std(axis=0, ddof=1) if len(values) > 1 else 0.0 * values[0])

    def last(self, measure: str) -> float:
        """The mean at the end."""
        return float(self.mean(measure)[-1])

    def error(self, measure: str) -> float:
        """The standard error of the mean at the end; nan of a single run."""
        return float(self.deviation(measure)[-1]) / math.sqrt(len(self.seeds)) if len(self.seeds) > 1 else math.nan

    @property
    def step_seconds(self) -> float:
        """What a step takes, on average."""
        steps = self.epochs[-1] * -(-self.spec["examples"] // self.batch_size)
        return self.last("seconds") / steps if steps > 0 else math.nan

    @property
    def setting(self) -> str:
        """In a few words."""
        return (
            f"{OPTIMISERS.get(self.optimiser, self.optimiser)} {self.step:g} {self.rule}, batches of {self.batch_size}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Nets:
    """All that a store says of nets."""

    lines: tuple[Line, ...]
    records: int
    left_out: int
    """Runs of other setups than those shown: of other data, nets, or extent."""
    styles: Mapping[str, Style]
    seconds: float
    """Of all runs shown, steps and evaluations."""

    @property
    def models(self) -> list[str]:
        """The nets there are."""
        return ranked({line.model for line in self.lines}, TITLES)

    @property
    def samplers(self) -> list[str]:
        """The samplers that are compared, those of the parts apart."""
        return ranked({line.sampler for line in self.lines if line.part != "parts"}, _SAMPLERS)

    def of(self, part: str, **wanted: Any) -> list[Line]:
        """The lines of a part, with given values of their fields."""
        return [
            line
            for line in self.lines
            if line.part == part and all(getattr(line, key) == value for key, value in wanted.items())
        ]

    def best(self, model: str, sampler: str) -> Line | None:
        """A sampler at the best of all settings: with the least mean training loss at the end."""
        lines = [line for line in self.of("best", model=model, sampler=sampler) if math.isfinite(line.last("loss"))]
        return min(lines, key=lambda line: line.last("loss"), default=None)

    def at_best(self, model: str) -> list[Line]:
        """All samplers, each at the best of all settings."""
        return [line for label in self.samplers if (line := self.best(model, label)) is not None]


def title(model: str) -> str:
    """How a net is written.

    >>> title("mnist-mlp"), title("mine")
    ('MLP on MNIST', 'mine')
    """
    return TITLES.get(model, model)


def gather_nets(records: Sequence[Record]) -> Nets | None:
    """What the records of nets say; None where there are none.

    Where the store has runs of several setups of a net, as after a quick run and a full one, or of several
    plans, those of which there are most are shown; of equally many, the largest, then the newest.
    """
    found = [record for record in records if record.spec["experiment"] == "nets"]
    if not found:
        return None
    kept: list[Record] = []
    for model in {record.spec["model"] for record in found}:
        of_model = _most([record for record in found if record.spec["model"] == model], _SETUP)
        for part in {record.spec["part"] for record in of_model}:
            of_part = _most([record for record in of_model if record.spec["part"] == part], _EXTENT)
            cells: dict[str, list[Record]] = {}
            for record in of_part:
                cells.setdefault(_mark(record, _CELL[:1] if part == "grid" else _CELL), []).append(record)
            for members in cells.values():
                kept += _most(members, _CHOSEN.get(part, ()))
    groups: dict[str, list[Record]] = {}
    for record in kept:
        groups.setdefault(canonical({**record.spec, "seed": None}), []).append(record)
    lines = sorted((_line(members) for members in groups.values()), key=_order)
    names = {line.sampler for line in lines}
    return Nets(
        lines=tuple(lines),
        records=len(kept),
        left_out=len(found) - len(kept),
        styles={**styles.assign(name for name in names if name not in _STYLES), **_STYLES},
        seconds=math.fsum(value for record in kept for value in record.seconds.values() if math.isfinite(value)),
    )


def reached(loss: NDArray[np.float64], target: float, along: NDArray[np.float64]) -> float:
    """Where a loss first is at a target, along epochs or seconds; nan where it never is.

    Between two checkpoints the logarithm of the loss is taken for straight.

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


def _line(members: Sequence[Record]) -> Line:
    ordered = sorted(members, key=lambda record: int(record.spec["seed"]))
    spec = {key: value for key, value in ordered[0].spec.items() if key != "seed"}
    return Line(
        part=spec["part"],
        level=str(spec.get("level", "")),
        model=spec["model"],
        sampler=spec["sampler"],
        optimiser=spec["optimiser"],
        batch_size=int(spec["batch_size"]),
        rule=spec["rule"],
        step=float(spec["step"]),
        spec=spec,
        seeds=tuple(int(record.spec["seed"]) for record in ordered),
        epochs=ordered[0].trace["epoch"],
        runs={measure: np.array([record.trace[measure] for record in ordered]) for measure in MEASURES},
        diverged=sum(record.status == "diverged" for record in ordered),
    )


def _most(records: Sequence[Record], keys: Sequence[str]) -> list[Record]:
    """Those that agree with most others in some keys; of equally many, the longest runs, then the newest."""
    marks = [_mark(record, keys) for record in records]
    counts = Counter(marks)
    sizes = {mark: record.spec["examples"] * record.spec["epochs"] for mark, record in zip(marks, records, strict=True)}
    dates: dict[str, str] = {}
    for mark, record in zip(marks, records, strict=True):
        dates[mark] = max(dates.get(mark, ""), str(record.where.get("date", "")))
    most = max(counts, key=lambda mark: (counts[mark], sizes[mark], dates[mark], mark))
    return [record for mark, record in zip(marks, records, strict=True) if mark == most]


def _mark(record: Record, keys: Sequence[str]) -> str:
    """A text that is the same for records whose specs agree in some keys."""
    return canonical({key: record.spec.get(key) for key in keys})


def _order(line: Line) -> tuple[Any, ...]:
    names = (*_SAMPLERS, *_STYLES)
    place = names.index(line.sampler) if line.sampler in names else len(names)
    return (
        rank(line.model, TITLES),
        line.part,
        line.level,
        place,
        line.sampler,
        rank(line.optimiser, OPTIMISERS),
        line.batch_size,
        line.rule,
        line.step,
    )
