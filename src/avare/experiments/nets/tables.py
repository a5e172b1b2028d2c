"""Tables of the runs on nets."""

import math
from collections.abc import Sequence

from avare.experiments.nets.aims import AIMS, Aim, check_aims, tally
from avare.experiments.nets.summary import DEFAULT, OPTIMISERS, UNIFORM, Line, Nets, reached, title
from avare.report.tables import Column, Table


def all_tables(nets: Nets) -> dict[str, Table]:
    """Each table by the name of its file."""
    aims = check_aims(nets)
    found = {"nets-setups": net_setups(nets)}
    if nets.of("best"):
        found["nets-best"] = net_best(nets)
        found["nets-settings"] = net_settings(nets)
    if nets.of("parts"):
        found["nets-parts"] = net_parts(nets)
    if aims:
        found["nets-aims"] = net_tally(nets, aims)
        found["nets-aims-cells"] = net_aims(aims)
    return found


def net_best(nets: Nets) -> Table:
    """Each sampler at the best of all its settings."""
    rows = []
    for model in nets.models:
        uniform = nets.best(model, UNIFORM)
        for sampler in nets.samplers:
            line = nets.best(model, sampler)
            if line is not None:
                epochs, seconds = _sooner(line, uniform)
                rows.append((title(model), sampler, *_ends(line), epochs, seconds))
    return Table(
        "Each at the best of all its settings; and the part of uniform's epochs and seconds in which its final loss "
        "is reached",
        (
            Column("net", "net"),
            Column("sampler", "sampler"),
            *_END_COLUMNS,
            Column("epochs_to_uniform", "of uniform's epochs", "number"),
            Column("seconds_to_uniform", "of its seconds", "number"),
        ),
        tuple(rows),
    )


def net_settings(nets: Nets) -> Table:
    """Each sampler with each optimiser and batch size, at the best step size of each."""
    rows = [(title(line.model), line.sampler, *_ends(line)) for line in nets.of("best")]
    return Table(
        "Each sampler, optimiser and batch size at its best step size",
        (Column("net", "net"), Column("sampler", "sampler"), *_END_COLUMNS),
        tuple(rows),
    )


def net_parts(nets: Nets) -> Table:
    """The variants of `Calibrated`."""
    rows = [(title(line.model), line.level, line.sampler, *_ends(line)) for line in nets.of("parts")]
    return Table(
        "Variants, at the step size that is best for Calibrated and at a larger one",
        (Column("net", "net"), Column("level", "step"), Column("sampler", "variant"), *_END_COLUMNS),
        tuple(rows),
    )


def net_setups(nets: Nets) -> Table:
    """What each net is, and how far it was trained."""
    rows = []
    for model in nets.models:
        parts = {line.part: line for line in nets.lines if line.model == model}
        spec = next(iter(parts.values())).spec
        network = spec.get("network") or {}
        layers = network.get("hidden") or network.get("channels") or []
        rows.append(
            (
                title(model),
                f"{network.get('kind', '')} {'-'.join(str(size) for size in layers)}".strip(),
                spec["examples"],
                spec.get("tested"),
                *(parts[part].spec["epochs"] if part in parts else None for part in ("grid", "best", "parts")),
            )
        )
    return Table(
        "The nets, and the epochs of each part",
        (
            Column("net", "net"),
            Column("layers", "layers"),
            Column("examples", "examples", "integer"),
            Column("tested", "tested on", "integer"),
            Column("grid_epochs", "epochs of the grid", "integer"),
            Column("best_epochs", "at the best settings", "integer"),
            Column("parts_epochs", "of the variants", "integer"),
        ),
        tuple(rows),
    )


def net_tally(nets: Nets, aims: Sequence[Aim]) -> Table:
    """How many cells of each aim hold, by net."""
    rows = []
    for aim in AIMS:
        for model in nets.models:
            of_model = [each for each in aims if each.model == title(model)]
            held, judged = tally(of_model, aim)
            if any(each.aim == aim for each in of_model):
                rows.append((aim, title(model), held, judged, held == judged if judged else None))
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


def net_aims(aims: Sequence[Aim]) -> Table:
    """Cell by cell."""
    return Table(
        "Every cell of the aims: what is compared, the most that is allowed, and whether it holds",
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
        tuple(
            (
                each.aim,
                each.model,
                each.setting,
                each.measure,
                each.uniform,
                each.ours,
                each.limit,
                each.holds,
                each.note,
            )
            for each in aims
        ),
    )


_END_COLUMNS = (
    Column("optimiser", "optimiser"),
    Column("batch_size", "batch", "integer"),
    Column("rule", "steps"),
    Column("step", "step size", "digits"),
    Column("runs", "runs", "integer"),
    Column("diverged", "diverged", "integer"),
    Column("loss", "training loss", "digits"),
    Column("loss_error", "", "detail"),
    Column("test_error", "test error", "percent"),
    Column("test_error_error", "", "detail"),
    Column("gain", "gain", "number"),
    Column("possible", "possible", "number"),
    Column("calibration_error", "calibration error, octaves", "number"),
    Column("milliseconds", "ms a step", "digits"),
)


def _ends(line: Line) -> tuple[object, ...]:
    return (
        OPTIMISERS.get(line.optimiser, line.optimiser),
        line.batch_size,
        line.rule,
        line.step,
        len(line.seeds),
        line.diverged,
        line.last("loss"),
        line.error("loss"),
        line.last("test_error"),
        line.error("test_error"),
        line.last("gain"),
        line.last("possible"),
        line.last("calibration_error"),
        1e3 * line.step_seconds,
    )


def _sooner(line: Line, uniform: Line | None) -> tuple[float, float]:
    if uniform is None:
        return math.nan, math.nan
    target = uniform.last("loss")
    return (
        reached(line.mean("loss"), target, line.epochs) / float(uniform.epochs[-1]),
        reached(line.mean("loss"), target, line.mean("seconds")) / uniform.last("seconds"),
    )
