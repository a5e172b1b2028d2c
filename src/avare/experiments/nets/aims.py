"""What the shipped default is to reach on nets, and whether it does, cell by cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avare.experiments.nets.summary import CHANCE, DEFAULT, UNIFORM, Line, Nets, reached, title

AIMS = (
    "not worse than uniform",
    "uniform's final loss sooner",
    "gain near the best possible",
)
"""The three aims, in short."""
_ERRORS = 2.0  # standard errors
# By dataset: at most this part of uniform's epochs, and of its seconds; None: not asked.
_SOONER: dict[str, tuple[float | None, float]] = {"mnist": (0.5, 0.6), "ijcnn1": (0.5, 0.6), "cifar10": (None, 1.05)}
_CONVERGED = 0.9  # uniform has learned something where its loss ends below so many times that of guessing
_WORTH, _FACTOR = 3.0, 2.0  # from this possible gain on, the realised one must be within this factor


@dataclass(frozen=True, slots=True)
class Aim:
    """One cell of an aim.

    Parameters
    ----------
    aim
        One of `AIMS`.
    model, setting
        Of which net, and how it was trained.
    measure
        What is compared.
    uniform, ours
        Of uniform batches, or the yardstick of the aim; and of the default.
    limit
        What ours must not be above; nan where there is none.
    holds
        None where it cannot be judged.
    note
        Why not, or what else is to be said.
    """

    aim: str
    model: str
    setting: str
    measure: str
    uniform: float
    ours: float
    limit: float
    holds: bool | None
    note: str = ""


def check_aims(nets: Nets) -> list[Aim]:
    """Every cell of the three aims."""
    return [*_not_worse(nets), *_sooner(nets), *_near_the_best(nets)]


def _not_worse(nets: Nets) -> list[Aim]:
    """On the grid, wherever uniform ends well below guessing: not worse beyond two standard errors."""
    found = []
    for uniform in nets.of("grid", sampler=UNIFORM):
        same = {key: getattr(uniform, key) for key in ("model", "optimiser", "batch_size", "rule", "step")}
        ours = nets.of("grid", sampler=DEFAULT, **same)
        if not ours:
            continue
        end = uniform.last("loss")
        guessing = CHANCE.get(str(uniform.spec["dataset"]), float(uniform.mean("loss")[0]))
        for measure, words in (("loss", "training loss"), ("test_error", "test error")):
            common = (AIMS[0], title(uniform.model), uniform.setting, words)
            if not end < _CONVERGED * guessing:  # also where it is nan
                note = "uniform does not converge"
                found.append(Aim(*common, end if measure == "loss" else math.nan, math.nan, math.nan, None, note))
                continue
            found.append(_compare(common, uniform, ours[0], measure))
    return found


def _compare(common: tuple[str, str, str, str], uniform: Line, ours: Line, measure: str) -> Aim:
    theirs, own = uniform.last(measure), ours.last(measure)
    error = math.hypot(uniform.error(measure), ours.error(measure))
    if ours.diverged:
        return Aim(*common, theirs, math.nan, math.nan, False, f"{ours.diverged} of {len(ours.seeds)} runs diverged")
    if math.isnan(error):
        return Aim(*common, theirs, own, math.nan, None, "one seed only")
    limit = theirs + _ERRORS * error
    return Aim(*common, theirs, own, limit, own <= limit)


def _sooner(nets: Nets) -> list[Aim]:
    """At the best settings of both: in what part of uniform's epochs and seconds its final loss is reached."""
    found = []
    for model in nets.models:
        uniform, ours = nets.best(model, UNIFORM), nets.best(model, DEFAULT)
        if uniform is None or ours is None:
            continue
        epochs_limit, seconds_limit = _SOONER.get(str(uniform.spec["dataset"]), (None, math.nan))
        target = uniform.last("loss")
        setting = f"{ours.setting}; uniform: {uniform.setting}"
        for words, limit, along, whole in (
            ("epochs", epochs_limit, ours.epochs, float(uniform.epochs[-1])),
            ("seconds", seconds_limit, ours.mean("seconds"), uniform.last("seconds")),
        ):
            if limit is None:
                continue
            place = reached(ours.mean("loss"), target, along)
            note = "" if math.isfinite(place) else "not reached"
            judged = None if math.isnan(limit) else math.isfinite(place) and place <= limit * whole
            found.append(Aim(AIMS[1], title(model), setting, words, whole, place, limit * whole, judged, note))
    return found


def _near_the_best(nets: Nets) -> list[Aim]:
    """At the best step sizes: the largest ratio of the possible to the realised gain, after the start."""
    found = []
    for line in nets.of("best", sampler=DEFAULT):
        common = (AIMS[2], title(line.model), line.setting, "possible / realised gain, at worst")
        with np.errstate(divide="ignore", invalid="ignore"):
            possible = np.exp(np.log(line.runs["possible"]).mean(axis=0))[1:]
            ratio = np.exp(np.log(line.runs["possible"] / line.runs["gain"]).mean(axis=0))[1:]
        worth = np.flatnonzero(possible >= _WORTH)
        if not len(worth):
            found.append(Aim(*common, math.nan, math.nan, math.nan, None, f"never {_WORTH:g} to gain"))
            continue
        worst = worth[int(np.argmax(ratio[worth]))]
        value = float(ratio[worst])
        kept = int(np.sum(ratio[worth] <= _FACTOR))
        note = f"epoch {line.epochs[1:][worst]:.3g}; within it at {kept} of {len(worth)} checkpoints"
        found.append(Aim(*common, float(possible[worst]), value, _FACTOR, value <= _FACTOR, note))
    return found


def tally(aims: Sequence[Aim], aim: str) -> tuple[int, int]:
    """How many cells of an aim hold, and how many are judged."""
    judged = [each for each in aims if each.aim == aim and each.holds is not None]
    return sum(bool(each.holds) for each in judged), len(judged)
