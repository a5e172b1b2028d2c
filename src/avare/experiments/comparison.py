"""Samplers side by side on your own data."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from numpy.typing import NDArray

from avare import _validation as validation
from avare.experiments import convergence, descent
from avare.experiments.base import RUNS, Closing, Experiment, Stage, Stages, Summary
from avare.experiments.content import Table
from avare.experiments.data import Data
from avare.experiments.descent import Rule
from avare.experiments.facts import doubt_of_optimum, facts_table, table_task
from avare.experiments.records import Result
from avare.experiments.registry import register
from avare.experiments.store import Record, Spec, Store
from avare.experiments.sweep import Workers, execute

_TOLERANCE = 1e-9  # of the optimum, relative to the gradient at 0


class Compare(Experiment):
    """Runs of SGD on one dataset; the command ``avare compare``."""

    name = "compare"
    kinds: ClassVar = {"compare": descent.FIELDS}
    words = ()

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do one run of SGD."""
        return descent.descend(spec, X, y, optimum)

    def describe(self, spec: Spec) -> str:
        """Describe a run in a few words."""
        return descent.describe_descent(spec)

    def closing(self, records: Sequence[Record]) -> Closing:
        """Return where each sampler ends; the first record is that of the dataset."""
        if not records:
            return Closing()
        rows, table, last = convergence.final_rows(records), records[0], records[-1]["spec"]
        facts, doubt = {table["spec"]["dataset"]: table["facts"]}, doubt_of_optimum(table["spec"], table["facts"])
        parts: list[str | Table] = [convergence.final_table(rows), facts_table(facts), *([doubt] if doubt else [])]
        parts.append(f"Loss: {last['loss']}.")
        if last["caution"] > 1.0:
            parts.append(
                f"Steps are {last['caution']:g} times shorter than the paper's, which would overshoot: the rows have "
                "much in common, and batches are large."
            )
        parts += verdict_of(rows)
        return Closing(tuple(parts), {"loss": last["loss"], "runs": rows, "facts": facts})

    def summarise(self, results: Sequence[Result], runs: int = RUNS) -> Summary | None:
        """Return a tab for each dataset and setting."""
        groups = convergence.groups_of(results)
        if not groups:
            return None
        return Summary(
            lead=convergence.lead_of(groups),
            tables={self.name: convergence.last_epoch(groups)},
            figures=convergence.figures_of(self.name, groups),
            panels=tuple(
                convergence.panel_of(group, table=convergence.last_epoch([group]), verdict=_verdict(group, results))
                for group in groups
            ),
            details=convergence.details_of(groups),
            numbers={"groups": convergence.numbers_of(groups)},
        )


register(Compare())


def verdict_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which samplers reach the baseline's end, and when; there is always a sentence."""
    others = [row for row in rows if row["sampler"] != convergence.BASELINE]
    if len(others) == len(rows) or not others:
        return [f"There is nothing to compare: run {convergence.BASELINE} and another sampler."]
    found = convergence.sooner(others)
    return found or [f"No sampler reaches {convergence.BASELINE}'s final suboptimality within these epochs."]


def _verdict(group: convergence.Group, results: Sequence[Result]) -> list[str]:
    """Return the verdict on the runs of a group."""
    records = [
        {**each.stored, "seconds": each.seconds, "status": each.status}
        for each in results
        if convergence.setting_of(each) == group.setting
    ]
    return [sentence.strip() for sentence in verdict_of(convergence.final_rows(records))]


def compare(
    data: Data,
    loss: str,
    store: Store,
    *,
    samplers: Sequence[str] = ("Uniform", "Avare"),
    rules: Sequence[Rule] = ("decreasing",),
    epochs: int = 20,
    runs: int = 3,
    batch_size: int = 128,
    l2: float = 1.0,
    replacement: bool = True,
    **workers: Unpack[Workers],
) -> list[Record]:
    """Run SGD with each of some samplers; return all records, that of the dataset first.

    Parameters
    ----------
    data, loss
        As `obtain` returns them.
    samplers, rules
        Names of samplers and of step sizes: the paper's, or shorter ones if those are too long for the full gradient.
    epochs, runs
        Epochs per run, and runs of each sampler, with seeds 0, 1, ...
    batch_size, l2
        Draws per step, and the factor of the one l2 term of the whole sum.
    replacement
        How to draw, for samplers that can do both.
    store, **workers
        Where results are kept, and `Workers`.
    """
    epochs = validation.integer("epochs", epochs, at_least=1)
    runs = validation.integer("runs", runs, at_least=1)
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    l2 = validation.number("l2", l2, at_least=0.0)
    for name in samplers:
        if batch_size > len(data) and not descent.draws_with_replacement(name, replacement):
            raise ValueError(f"batch_size = {batch_size}: must be at most n = {len(data)} without replacement")
    optimum = table_task(data, loss, l2, _TOLERANCE)

    def stages() -> Stages:
        (facts,) = yield Stage("optimum", [optimum])
        caution = descent.caution_of(descent.problem_of(optimum.spec, data.X, data.y), data.X, batch_size)
        extent: dict[str, Any] = {"runs": runs, "rules": rules, "samplers": samplers, "epochs": epochs}
        extent |= {"batch_size": batch_size, "l2": l2, "caution": caution, "replacement": replacement}
        yield Stage("runs", descent.descents("compare", data, loss, facts["facts"]["optimum"], **extent))

    return execute(stages(), store, **workers)
