"""Samplers side by side on your own data, and a verdict on each."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from numpy.typing import NDArray

from avare import _validation as validation
from avare.experiments import convergence, descent
from avare.experiments.base import RUNS, Closing, Experiment, Stage, Stages, Summary, Task
from avare.experiments.content import Figure, Panel, Table
from avare.experiments.data import Data
from avare.experiments.facts import doubt_of_optimum, facts_table, table_task
from avare.experiments.limits import limits_of, limits_spec, words_of_limits
from avare.experiments.records import Fields, Result
from avare.experiments.registry import register
from avare.experiments.store import Record, Spec, Store, canonical
from avare.experiments.sweep import Workers, execute
from avare.experiments.verdict import any_sooner, sentences, verdicts_of

_ALONE = f"There is nothing to compare: run {convergence.BASELINE} and another sampler."
TOLERANCE = 1e-9
"""Of the optimum, relative to the gradient at 0."""


class Compare(Experiment):
    """Runs of SGD on one dataset; the command ``avare compare``."""

    name = "compare"
    kinds: ClassVar = {"compare": descent.FIELDS, "limits": Fields(texts=("dataset",))}
    words = ()

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do one run of SGD, or find what limits Uniform."""
        return limits_of(spec, X, y, optimum) if "limited" in spec else descent.descend(spec, X, y, optimum)

    def describe(self, spec: Spec) -> str:
        """Describe a run in a few words."""
        return f"{spec['dataset']}, noise or distance" if "limited" in spec else descent.describe_descent(spec)

    def passes(self, spec: Spec) -> float:
        """Return about how often a run looks at each example."""
        return float(spec["epochs"]) * (2.0 if "limited" in spec else 1.0)

    def closing(self, records: Sequence[Record]) -> Closing:
        """Return the verdicts, and where each sampler ends; the first record is that of the dataset."""
        if not records:
            return Closing()
        runs = [record for record in records if "sampler" in record["spec"]]
        rows, table, last = convergence.final_rows(runs), records[0], runs[-1]["spec"]
        facts, doubt = {table["spec"]["dataset"]: table["facts"]}, doubt_of_optimum(table["spec"], table["facts"])
        found = verdicts_of(runs)
        for row in rows:
            judged = found.get((row["dataset"], row["steps"], row["sampler"]))
            row["verdict"] = None if judged is None else {along: each.as_dict() for along, each in judged.items()}
        limits = next((record["limits"] for record in records if record.get("limits")), None)
        parts: list[str | Table] = [convergence.final_table(rows), facts_table(facts), *([doubt] if doubt else [])]
        settings = {"loss": last["loss"], **settings_of(last)}
        parts.append(" ".join(f"{name.capitalize()}: {words}." for name, words in settings.items()))
        if last["caution"] > 1.0:
            parts.append(
                f"Steps are {last['caution']:g} times shorter than the paper's, which would overshoot: the rows have "
                "much in common, and batches are large."
            )
        parts += sentences(found) or [_ALONE]
        if limits is not None:
            parts.append(words_of_limits(limits, any_sooner(found)))
        return Closing(tuple(parts), {"loss": last["loss"], "runs": rows, "facts": facts, "limits": limits})

    def summarise(self, results: Sequence[Result], runs: int = RUNS) -> Summary | None:
        """Return a tab for each dataset and setting."""
        descents = [each for each in results if "sampler" in each.spec]
        groups = convergence.groups_of(descents)
        if not groups:
            return None
        limits = [each for each in results if "limited" in each.spec and each.shown]
        return Summary(
            lead=convergence.lead_of(groups),
            tables={self.name: convergence.last_epoch(groups)},
            figures={**convergence.figures_of(self.name, groups), **_figure(self.name, groups)},
            panels=tuple(_panel(group, descents, limits) for group in groups),
            details=convergence.details_of(groups),
            numbers={"groups": convergence.numbers_of(groups)},
        )


register(Compare())


def compare(
    data: Data,
    loss: str,
    store: Store,
    *,
    samplers: Sequence[str] = ("Uniform", "Avare"),
    rules: Sequence[str] = (descent.AUTO,),
    epochs: int = 20,
    runs: int = 5,
    batch_size: int = 128,
    l2: float = 1.0,
    replacement: bool = True,
    **workers: Unpack[Workers],
) -> list[Record]:
    """Run SGD with each of some samplers; return all records, that of the dataset first.

    Parameters
    ----------
    data, loss
        As `obtain` and then `prepared` return them.
    samplers, rules
        Names of samplers and of step sizes: "auto", found for each sampler, with averaged iterates; or the paper's
        "decreasing" and "constant", shorter if those are too long for the full gradient.
    epochs, runs
        Epochs per run, and runs of each sampler, with seeds 0, 1, ...
    batch_size, l2
        Draws per step, and the factor of the one l2 term of the whole sum.
    replacement
        How to draw, for samplers that can do both.
    store, **workers
        Where results are kept, and `Workers`.

    Examples
    --------
    >>> import tempfile
    >>> from avare.experiments import Store, final_rows, obtain
    >>> data, loss = obtain("synthetic")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = compare(data, loss, Store(folder), samplers=["Uniform"], epochs=2, runs=1, batch_size=10)
    >>> [row["sampler"] for row in final_rows(records)]
    ['Uniform']
    """
    epochs = validation.integer("epochs", epochs, at_least=1)
    runs = validation.integer("runs", runs, at_least=1)
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    l2 = validation.number("l2", l2, at_least=0.0)
    for name in samplers:
        if batch_size > len(data) and not descent.draws_with_replacement(name, replacement):
            raise ValueError(f"batch_size = {batch_size}: must be at most n = {len(data)} without replacement")
    optimum = table_task(data, loss, l2, TOLERANCE)

    def stages() -> Stages:
        (facts,) = yield Stage("optimum", [optimum])
        least = facts["facts"]["optimum"]
        shared: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "l2": l2, "replacement": replacement}
        tasks: list[Task] = []
        for rule in rules:
            caution = 1.0
            if rule != descent.AUTO:
                caution = descent.caution_of(descent.problem_of(optimum.spec, data.X, data.y), data.X, batch_size)
            extent = {"runs": runs, "rules": (rule,), "samplers": samplers, "caution": caution, **shared}
            tasks += descent.descents("compare", data, loss, least, **extent)
        if descent.AUTO in rules:
            tasks.append(Task(limits_spec(data, loss, **shared), data, least))
        yield Stage("runs", tasks)

    return execute(stages(), store, **workers)


# --- the page --------------------------------------------------------------------------------


def settings_of(spec: Spec) -> dict[str, str]:
    """Return how the data were prepared and which steps were taken, by name.

    >>> settings_of({"bias": True, "held_out": 1000, "steps": "auto"})["columns"]
    'standardised, with an intercept'
    """
    found = {"columns": "standardised, with an intercept" if spec.get("bias") else "as given"}
    if spec.get("held_out"):
        found["held out for the test"] = f"{spec['held_out']:,} rows"
    if spec["steps"] == descent.AUTO:
        found["step sizes"] = "found for each sampler, iterates averaged"
    return found


def _panel(group: convergence.Group, results: Sequence[Result], limits: Sequence[Result]) -> Panel:
    """Return the tab of a group, with the verdicts first."""
    members = _members(group, results)
    found = verdicts_of([each.stored for each in members])
    limited = [
        words_of_limits(each.stored["limits"], any_sooner(found))
        for each in limits
        if _same(_without(each), _without(group))
    ]
    return convergence.panel_of(
        group,
        table=convergence.last_epoch([group]),
        verdict=sentences(found) or [_ALONE],
        words=limited,
        settings=settings_of(members[0].spec) if members else {},
    )


def _figure(name: str, groups: Sequence[convergence.Group]) -> dict[str, Figure]:
    """Return the figure of the suboptimality over seconds, a row for each dataset."""
    rows = [convergence.timed(group, group.rules[0]) for group in groups]
    if not any(rows):
        return {}
    return {f"{name}-seconds": Figure("Seconds of steps; mean and one standard deviation", tuple(filter(None, rows)))}


def _members(group: convergence.Group, results: Sequence[Result]) -> list[Result]:
    return [each for each in results if each.shown and _same(convergence.setting_of(each), group.setting)]


def _without(found: Result | convergence.Group) -> dict[str, Any]:
    """Return the setting of runs, without what they are for."""
    setting = found.setting if isinstance(found, convergence.Group) else convergence.setting_of(found)
    return {key: value for key, value in setting.items() if key != "experiment"}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return canonical(one) == canonical(other)
