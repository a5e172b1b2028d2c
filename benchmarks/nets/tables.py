"""Tables of the runs on nets."""

import math
from collections.abc import Callable
from typing import Any

from avare.experiments.document import Column, Table
from avare.experiments.store import number
from nets.plan import OPTIMISERS, PARTS
from nets.results import UNIFORM, NetResults, SeedGroup, reached

_NET = Column("net", "net")
_SAMPLER = Column("sampler", "sampler")
_ENDS: dict[Column, Callable[[SeedGroup], object]] = {
    Column("optimiser", "optimiser"): lambda group: OPTIMISERS.get(group["optimiser"], group["optimiser"]),
    Column("batch_size", "batch", "integer"): lambda group: group["batch_size"],
    Column("rule", "steps"): lambda group: group["rule"],
    Column("step", "step size", "digits"): lambda group: group["step"],
    Column("runs", "runs", "integer"): lambda group: len(group.seeds),
    Column("diverged", "diverged", "integer"): lambda group: group.diverged,
    Column("loss", "training loss", "digits"): lambda group: group.last("loss"),
    Column("loss_error", "", "detail"): lambda group: group.error("loss"),
    Column("test_error", "test error", "percent"): lambda group: group.last("test_error"),
    Column("test_error_error", "", "detail"): lambda group: group.error("test_error"),
    Column("gain", "gain", "number"): lambda group: group.last("gain"),
    Column("possible", "possible", "number"): lambda group: group.last("possible"),
    Column("calibration_error", "calibration error, octaves", "number"): lambda group: group.last("calibration_error"),
    Column("milliseconds", "ms per step", "digits"): lambda group: 1e3 * group.step_seconds,
}
_ROW = ("model", "sampler", "optimiser", "batch_size", "rule", "step", "epochs")


def net_tables(nets: NetResults) -> dict[str, Table]:
    """Return each table by the name of its file."""
    found = {"nets-setups": setups(nets)}
    if nets.of("best"):
        rows = tuple((group.net, group["sampler"], *_ends(group)) for group in nets.of("best"))
        caption = "Each sampler, optimiser and batch size at its best step size"
        found |= {"nets-best": at_best(nets), "nets-settings": Table(caption, (_NET, _SAMPLER, *_ENDS), rows)}
    if nets.of("parts"):
        rows = tuple((group.net, group["level"], group["sampler"], *_ends(group)) for group in nets.of("parts"))
        caption = "Variants, at the step size that is best for Calibrated and at a larger one"
        columns = (_NET, Column("level", "step"), Column("sampler", "variant"), *_ENDS)
        found["nets-parts"] = Table(caption, columns, rows)
    return found


def at_best(nets: NetResults) -> Table:
    """Return the table of samplers at their best settings, with the time they take to uniform's final loss."""
    epochs = Column("epochs_to_uniform", "of uniform's epochs", "number")
    seconds = Column("seconds_to_uniform", "of its seconds", "number")
    rows = tuple(
        (group.net, group["sampler"], *_ends(group), *to_uniform(group, nets.best(model, UNIFORM)))
        for model in nets.models
        for group in nets.at_best(model, diverged=True)
    )
    caption = "Each sampler at its best setting, and the part of uniform's epochs and seconds to reach uniform's loss"
    return Table(caption, (_NET, _SAMPLER, *_ENDS, epochs, seconds), rows)


def setups(nets: NetResults) -> Table:
    """Return the table of nets: their layers, examples and epochs."""
    rows = []
    for model, net in nets.models.items():
        parts = {group["part"]: group for group in nets.groups if group["model"] == model}
        spec = next(iter(parts.values())).spec
        network = spec.get("network") or {}
        layers = "-".join(str(size) for size in network.get("hidden") or network.get("channels") or [])
        epochs = (parts[part]["epochs"] if part in parts else None for part in PARTS)
        rows.append((net, f"{network.get('kind', '')} {layers}".strip(), spec["examples"], spec.get("tested"), *epochs))
    numbers = {
        "examples": "examples",
        "tested": "test examples",
        "grid_epochs": "epochs of the grid",
        "best_epochs": "at the best settings",
        "parts_epochs": "of the variants",
    }
    columns = (_NET, Column("layers", "layers"), *(Column(*pair, "integer") for pair in numbers.items()))
    return Table("The nets, and the epochs of each part", columns, tuple(rows))


def to_uniform(group: SeedGroup, uniform: SeedGroup | None) -> tuple[float, float]:
    """Return the part of uniform's epochs, and of its seconds, after which a group reaches uniform's final loss."""
    if uniform is None:
        return math.nan, math.nan
    loss, target = group.mean("loss"), uniform.last("loss")
    return (
        reached(loss, target, group.epochs) / float(uniform.epochs[-1]),
        reached(loss, target, group.mean("seconds")) / uniform.last("seconds"),
    )


def best_rows(nets: NetResults) -> list[dict[str, Any]]:
    """Return each sampler at its best setting, as JSON values."""
    rows = []
    for group in (group for model in nets.models for group in nets.at_best(model, diverged=True)):
        ends = {key: number(group.last(key)) for key in ("loss", "test_error", "gain", "possible", "seconds")}
        rows.append({**{key: group[key] for key in _ROW}, "runs": len(group.seeds), **ends})
    return rows


def _ends(group: SeedGroup) -> list[object]:
    return [value(group) for value in _ENDS.values()]
