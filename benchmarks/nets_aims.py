"""What `Calibrated` is meant to reach on nets, and whether it does: `python benchmarks/nets_aims.py`.

Three aims, judged cell by cell (docs/nets.md). With ``--store``, cells are computed from the runs of
``python benchmarks reproduce nets``; ``--save`` then keeps both tables in ``benchmarks/results/nets``. Otherwise
the kept cells are read and counted.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from avare.experiments import Column, Store, Table
from avare.experiments.store import RecordError
from harness import RESULTS
from nets import NetsExperiment
from nets.plan import OPTIMISERS
from nets.results import DEFAULT, UNIFORM, NetResults, SeedGroup, gather, reached

AIMS = (
    "not worse than uniform",
    "uniform's final loss sooner",
    "gain near the best possible",
)
"""The three aims, in short."""
TALLY, CELLS = RESULTS / "nets" / "nets-aims.md", RESULTS / "nets" / "nets-aims-cells.md"
_CHANCE = {"mnist": math.log(10.0), "cifar10": math.log(10.0), "ijcnn1": 0.318}
# By dataset: the loss of a net that knows the frequencies of the classes, and nothing else.
_ERRORS = 2.0  # standard errors
# By dataset: at most this part of uniform's epochs, and of its seconds; None: no aim.
_SOONER: dict[str, tuple[float | None, float]] = {"mnist": (0.5, 0.6), "ijcnn1": (0.5, 0.6), "cifar10": (None, 1.05)}
_CONVERGED = 0.9  # uniform has learned something if its final loss is below this part of the loss of guessing
_WORTH, _FACTOR = 3.0, 2.0  # from this possible gain on, the realised gain must be within this factor
_ANSWERS = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison.

    Parameters
    ----------
    aim
        One of `AIMS`.
    net, setting
        The net, and how it was trained.
    measure
        What is compared.
    uniform, ours
        The value of uniform batches, or the yardstick of the aim; and the value of the default.
    limit
        The largest value of ours that holds; NaN if there is none.
    holds
        None if it cannot be judged.
    note
        The reason for that, or a remark.
    """

    aim: str
    net: str
    setting: str
    measure: str
    uniform: float
    ours: float
    limit: float
    holds: bool | None
    note: str = ""


def main() -> None:
    """Judge or read the cells, print and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="folder with the runs, such as results/runs")
    parser.add_argument("--save", action="store_true", help="keep the tables in benchmarks/results/nets")
    arguments = parser.parse_args()
    cells = read_cells(CELLS) if arguments.store is None else check_aims(read_store(arguments.store))
    print(tally_table(cells).as_markdown())
    print(cell_table([cell for cell in cells if cell.holds is False]).as_markdown())
    if arguments.save and arguments.store is not None:
        TALLY.write_text(tally_table(cells).as_markdown())
        CELLS.write_text(cell_table(cells).as_markdown())


def read_store(folder: Path) -> NetResults:
    """Return the runs on nets in a store."""
    experiment, results = NetsExperiment(), []
    for record in Store(folder).read()[0]:
        if record["spec"].get("experiment") in experiment.kinds:
            try:
                results.append(experiment.parse(record))
            except RecordError as error:
                print(f"{record['key']}: {error}; skipped")
    nets = gather(results)
    if nets is None:
        raise ValueError(f"store = {str(folder)!r}: holds no runs on nets")
    return nets


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a kept table, with rounded numbers."""
    cells = []
    for line in path.read_text().splitlines()[4:]:
        words = ["" if word == "–" else word for word in (part.strip() for part in line.strip("|").split("|"))]
        numbers = [_number(word) for word in words[4:7]]
        cells.append(Cell(*words[:4], *numbers, _ANSWERS.get(words[7]), words[8]))  # type: ignore[arg-type, call-arg]
    return cells


def check_aims(nets: NetResults) -> list[Cell]:
    """Return every cell of the three aims."""
    return [*_not_worse(nets), *_sooner(nets), *_near_the_best(nets)]


def _not_worse(nets: NetResults) -> list[Cell]:
    """On the grid, if uniform's final loss is well below that of guessing: not worse by two standard errors."""
    found = []
    for uniform in nets.of("grid", sampler=UNIFORM):
        same = {key: uniform[key] for key in ("model", "optimiser", "batch_size", "rule", "step")}
        ours = nets.of("grid", sampler=DEFAULT, **same)
        if not ours:
            continue
        end = uniform.last("loss")
        guessing = _CHANCE.get(uniform["dataset"], float(uniform.mean("loss")[0]))
        for measure, words in (("loss", "training loss"), ("test_error", "test error")):
            common = (AIMS[0], uniform.net, setting_of(uniform), words)
            if not end < _CONVERGED * guessing:  # also if it is NaN
                value = end if measure == "loss" else math.nan
                found.append(Cell(*common, value, math.nan, math.nan, None, "uniform does not converge"))
            else:
                found.append(_compare(common, uniform, ours[0], measure))
    return found


def _compare(common: tuple[str, str, str, str], uniform: SeedGroup, ours: SeedGroup, measure: str) -> Cell:
    theirs, own = uniform.last(measure), ours.last(measure)
    error = math.hypot(uniform.error(measure), ours.error(measure))
    if ours.diverged:
        return Cell(*common, theirs, math.nan, math.nan, False, f"{ours.diverged} of {len(ours.seeds)} runs diverged")
    if math.isnan(error):
        return Cell(*common, theirs, own, math.nan, None, "one seed only")
    limit = theirs + _ERRORS * error
    return Cell(*common, theirs, own, limit, own <= limit)


def _sooner(nets: NetResults) -> list[Cell]:
    """At the best settings of both: after which part of uniform's epochs and seconds its final loss is reached."""
    found = []
    for model in nets.models:
        uniform, ours = nets.best(model, UNIFORM), nets.best(model, DEFAULT)
        if uniform is None or ours is None:
            continue
        epochs_limit, seconds_limit = _SOONER.get(uniform["dataset"], (None, math.nan))
        setting = f"{setting_of(ours)}; uniform: {setting_of(uniform)}"
        for words, limit, along, whole in (
            ("epochs", epochs_limit, ours.epochs, float(uniform.epochs[-1])),
            ("seconds", seconds_limit, ours.mean("seconds"), uniform.last("seconds")),
        ):
            if limit is not None:
                place = reached(ours.mean("loss"), uniform.last("loss"), along)
                note = "" if math.isfinite(place) else "not reached"
                holds = None if math.isnan(limit) else math.isfinite(place) and place <= limit * whole
                found.append(Cell(AIMS[1], ours.net, setting, words, whole, place, limit * whole, holds, note))
    return found


def _near_the_best(nets: NetResults) -> list[Cell]:
    """At the best step sizes: the largest ratio of the possible to the realised gain, after the start."""
    found = []
    for group in nets.of("best", sampler=DEFAULT):
        common = (AIMS[2], group.net, setting_of(group), "possible / realised gain, at worst")
        with np.errstate(divide="ignore", invalid="ignore"):
            possible = np.exp(np.log(group.runs["possible"]).mean(axis=0))[1:]
            ratio = np.exp(np.log(group.runs["possible"] / group.runs["gain"]).mean(axis=0))[1:]
        worth = np.flatnonzero(possible >= _WORTH)
        if not len(worth):
            found.append(Cell(*common, math.nan, math.nan, math.nan, None, f"the possible gain is below {_WORTH:g}"))
            continue
        worst = worth[int(np.argmax(ratio[worth]))]
        value = float(ratio[worst])
        kept = int(np.sum(ratio[worth] <= _FACTOR))
        note = f"epoch {group.epochs[1:][worst]:.3g}; within it at {kept} of {len(worth)} checkpoints"
        found.append(Cell(*common, float(possible[worst]), value, _FACTOR, value <= _FACTOR, note))
    return found


def setting_of(group: SeedGroup) -> str:
    """Return optimiser, step size and batch size in a few words."""
    optimiser = OPTIMISERS.get(group["optimiser"], group["optimiser"])
    return f"{optimiser} {group['step']:g} {group['rule']}, batches of {group['batch_size']}"


def tally(cells: Sequence[Cell], aim: str) -> tuple[int, int]:
    """Return how many cells of an aim hold, and how many are judged."""
    judged = [cell for cell in cells if cell.aim == aim and cell.holds is not None]
    return sum(bool(cell.holds) for cell in judged), len(judged)


def tally_table(cells: Sequence[Cell]) -> Table:
    """Return how many cells of each aim hold, by net."""
    rows = []
    for aim in AIMS:
        for net in dict.fromkeys(cell.net for cell in cells):
            of_net = [cell for cell in cells if cell.net == net and cell.aim == aim]
            held, judged = tally(of_net, aim)
            if of_net:
                rows.append((aim, net, held, judged, held == judged if judged else None))
    return Table(
        f"The aims for {DEFAULT}, by net",
        (
            Column("aim", "aim"),
            Column("net", "net"),
            Column("held", "cells that hold", "integer"),
            Column("judged", "of", "integer"),
            Column("holds", "all?", "answer"),
        ),
        tuple(rows),
    )


def cell_table(cells: Sequence[Cell]) -> Table:
    """Return the cells as a table."""
    return Table(
        "Cells of the aims: what is compared, the most that is allowed, and whether it holds",
        (
            Column("aim", "aim"),
            Column("net", "net"),
            Column("setting", "setting"),
            Column("measure", "measure"),
            Column("uniform", "uniform, or yardstick", "digits"),
            Column("ours", DEFAULT, "digits"),
            Column("limit", "at most", "digits"),
            Column("holds", "holds?", "answer"),
            Column("note", "note"),
        ),
        tuple(astuple(cell) for cell in cells),
    )


def _number(word: str) -> float:
    """Return a number as tables write it: "0.12", or with a power of ten; NaN for ""."""
    digits, _, power = word.translate(str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")).partition(" × 10")
    return float(f"{digits}e{power or 0}") if word else math.nan


if __name__ == "__main__":
    main()
