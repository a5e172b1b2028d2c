"""Samplers side by side on your own data, and a verdict on each."""

from collections.abc import Sequence
from typing import Any, Unpack

from numpy.typing import NDArray

from avare import _validation as validation
from avare.experiments import aggregate, sgd_runs
from avare.experiments.aggregate import Group
from avare.experiments.base import RUNS, Experiment, Stage, Stages, Summary, Task
from avare.experiments.data import Data
from avare.experiments.document import Panel
from avare.experiments.noise_or_distance import SEEDS, limits_of, words_of_limits
from avare.experiments.optimum import doubt_of_optimum, facts_table, find_optimum, optimum_task
from avare.experiments.records import Result
from avare.experiments.registry import register
from avare.experiments.runner import Workers, execute
from avare.experiments.sgd_runs import AUTO, BASELINE, Setting, descent_spec
from avare.experiments.store import Record, Spec, Store
from avare.experiments.verdict import any_faster, sentences, verdicts_of

_ALONE = f"There is nothing to compare: run {BASELINE} and another sampler."
TOLERANCE = 1e-9
"""Of the optimum, relative to the gradient at 0."""


class Compare(Experiment):
    """Runs of SGD on one dataset; the command ``avare compare``."""

    name = "compare"
    kinds = ("compare", "limits", "optimum")
    words = ()

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do one run of SGD, find what limits Uniform, or find the optimum."""
        if spec["experiment"] == "optimum":
            return find_optimum(spec, X, y)
        return (limits_of if spec["experiment"] == "limits" else sgd_runs.descend)(spec, X, y, optimum)

    def summarise(self, results: Sequence[Result], runs: int = RUNS) -> Summary | None:
        """Return a tab for each dataset and setting."""
        groups = _groups(results)
        if not groups:
            return None
        optima = [each for each in results if each.kind == "optimum"]
        about = [(group.title, each) for group in groups for each in optima if group.fits(each)]
        facts = [{"dataset": title, **each.stored["facts"]} for title, each in about]
        doubts = dict.fromkeys(doubt_of_optimum(each.spec, each.stored["facts"]) for each in optima)
        rows, found = aggregate.last_rows(groups), verdicts_of(groups)
        for row in rows:
            judged = found.get((row["dataset"], row["steps"], row["sampler"]), {})
            row["verdict"] = {along: each.as_dict() for along, each in judged.items()}
        limits = [
            {"dataset": each.spec["dataset"], **each.stored["limits"]} for each in results if each.kind == "limits"
        ]
        return Summary(
            lead=aggregate.lead_of(groups),
            notices=tuple(filter(None, doubts)),
            tables={"compare": aggregate.last_epoch(rows), **({"facts": facts_table(facts)} if facts else {})},
            figures=aggregate.figures_of(self.name, groups),
            panels=tuple(_panel(group, results) for group in groups if group.rules),
            numbers={"groups": aggregate.numbers_of(groups), "runs": rows, "facts": facts, "limits": limits},
        )


register(Compare())


def compare(
    data: Data,
    loss: str,
    store: Store,
    *,
    samplers: Sequence[str] = (BASELINE, sgd_runs.DEFAULT),
    rules: Sequence[str] = (AUTO,),
    epochs: int = 20,
    runs: int = 5,
    batch_size: int = 128,
    l2: float = 1.0,
    replacement: bool = True,
    **workers: Unpack[Workers],
) -> list[Record]:
    """Run SGD with each of some samplers; return all records, the one of the optimum first.

    Parameters
    ----------
    data : Data
        As `obtain` and then `prepared` return it.
    loss : str
        The name of a loss, as `obtain` returns it.
    store : Store
        Where results are kept.
    samplers : sequence of str, default=("Uniform", "Calibrated")
        Names of samplers.
    rules : sequence of str, default=("auto",)
        Step sizes: "auto", found for each sampler, with averaged iterates; or the paper's "decreasing" and "constant",
        shorter if those are too long for the full gradient.
    epochs : int, default=20
        Epochs per run.
    runs : int, default=5
        Runs of each sampler, with seeds 0, 1, ...
    batch_size : int, default=128
        Draws per step.
    l2 : float, default=1.0
        The factor of the one l2 term of the whole sum.
    replacement : bool, default=True
        How to draw, for samplers that can do both.
    **workers
        See `Workers`.

    Examples
    --------
    >>> import tempfile
    >>> from avare.experiments import Store, obtain, summary
    >>> data, loss = obtain("synthetic")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = compare(data, loss, Store(folder), samplers=["Uniform"], epochs=2, runs=1, batch_size=10)
    >>> [row["sampler"] for row in summary(records)]
    ['Uniform']
    """
    epochs = validation.integer("epochs", epochs, at_least=1)
    runs = validation.integer("runs", runs, at_least=1)
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    l2 = validation.number("l2", l2, at_least=0.0)
    for name in samplers:
        if batch_size > len(data) and not sgd_runs.draws_with_replacement(name, replacement):
            raise ValueError(f"batch_size = {batch_size}: must be at most n = {len(data)} without replacement")
    optimum, shared = optimum_task("optimum", data, loss, l2, TOLERANCE), (loss, epochs, batch_size, l2, replacement)

    def stages() -> Stages:
        (found,) = yield Stage("optimum", [optimum])
        least, specs = found["facts"]["optimum"], []
        for rule in rules:
            caution = 1.0
            if rule != AUTO:
                caution = sgd_runs.caution_of(sgd_runs.problem_of(optimum.spec, data.X, data.y), data.X, batch_size)
            own = Setting(*shared, caution=caution)
            specs += [descent_spec("compare", data, own, name, rule, k) for k in range(runs) for name in samplers]
        if AUTO in rules:
            specs.append(descent_spec("limits", data, Setting(*shared), BASELINE, AUTO, SEEDS[0]))
        yield Stage("runs", [Task(spec, data, least) for spec in specs])

    return execute([stages()], store, **workers)


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the measures at the last epoch of each sampler: means over the runs, and the verdicts.

    >>> summary([])
    []
    """
    return list(Compare().closing(records).numbers.get("runs", []))


def _groups(results: Sequence[Result]) -> list[Group]:
    return aggregate.groups_of(each for each in results if each.kind == "compare")


def _panel(group: Group, results: Sequence[Result]) -> Panel:
    """Return the tab of a group: the verdicts first, and what limits Uniform."""
    found, caution = verdicts_of([group]), group.setting["caution"]
    words = [
        words_of_limits(each.stored["limits"], any_faster(found))
        for each in results
        if each.kind == "limits" and each.shown and group.fits(each)
    ]
    held_out = f" Held out for the test: {group.setting['held_out']:,} rows." if group.setting["held_out"] else ""
    found_steps = " Step sizes: found for each sampler; iterates are averaged." if AUTO in group.rules else ""
    columns = "standardised, with an intercept" if group.setting["bias"] else "as given"
    words.append(f"Loss: {group.setting['loss']}. Columns: {columns}.{held_out}{found_steps}")
    if caution and caution > 1.0:
        words.append(
            f"Steps are {caution:g} times shorter than the paper's, which would overshoot: the rows have "
            "much in common, and batches are large."
        )
    table = aggregate.last_epoch(aggregate.last_rows([group]))
    return aggregate.panel_of(group, table, verdict=sentences(found) or [_ALONE], words=words)
