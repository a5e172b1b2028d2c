"""Samplers side by side on your own data, and a verdict on each."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from avare import _validation as validation
from avare.experiments import aggregate, sgd_runs
from avare.experiments.aggregate import Group
from avare.experiments.base import Experiment, Stage, Stages, Summary, Task, register
from avare.experiments.data import Data, display_name
from avare.experiments.document import Figure, Panel, Table
from avare.experiments.runner import Watch, execute
from avare.experiments.sgd_runs import AUTO, BASELINE, RULES, OwnSteps, Setting, descent_spec
from avare.experiments.store import Record, Result, Spec, Store, count
from avare.experiments.verdict import sentences, verdicts_of

_ALONE = f"There is nothing to compare: run {BASELINE} and another sampler."
_RULES_OF = {AUTO: (AUTO,), "paper": RULES, **{rule: (rule,) for rule in RULES}}
TOLERANCE = 1e-9
"""Of the optimum, relative to the gradient at 0."""


class Compare(Experiment):
    """Runs of SGD on some datasets, each with its optimum; the command ``avare compare``."""

    name = "compare"
    kinds: ClassVar[tuple[str, ...]] = ("compare", "optimum")  # runs, and optima
    words: ClassVar[tuple[str, ...] | None] = ()

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do one run of SGD, or find the optimum."""
        if spec["experiment"] == self.kinds[0]:
            return sgd_runs.descend(spec, X, y, optimum)
        return sgd_runs.find_optimum(spec, X, y)

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """Return a tab for each dataset and setting."""
        groups = aggregate.groups_of(each for each in results if each.kind == self.kinds[0])
        optima = [each for each in results if each.kind == self.kinds[1] and each.shown]
        if not (groups or optima):
            return None
        facts = []
        for each in optima:
            title = next((group.title for group in groups if group.fits(each)), display_name(each.spec["dataset"]))
            facts.append({"dataset": title, **each.stored["facts"]})
        doubts = dict.fromkeys(doubt_of_optimum(each.spec, each.stored["facts"]) for each in optima)
        rows, found = aggregate.last_rows(groups), verdicts_of(groups)
        for row in rows:
            judged = found.get((row["dataset"], row["steps"], row["sampler"]), {})
            row["verdict"] = {along: each.as_dict() for along, each in judged.items()}
        notices = tuple(filter(None, doubts))
        tables = {self.kinds[0]: self.table(groups)} if groups else {}
        finished = sum(len(each.finished) for group in groups for each in group.series)
        return Summary(
            lead=f"{count(finished, 'run')} on {count(len({each.dataset for each in groups}), 'dataset')}",
            notices=notices,
            tables=tables | ({"facts": facts_table(facts)} if facts else {}),
            figures=self.figures(groups),
            panels=tuple(self.panel(group) for group in groups if group.rules),
            numbers={"runs": rows, "facts": facts, "doubts": list(notices)},
        )

    def table(self, groups: Sequence[Group]) -> Table:
        """Return the measures at the last epoch."""
        return aggregate.last_epoch(aggregate.last_rows(groups))

    def figures(self, groups: Sequence[Group]) -> dict[str, Figure]:
        """Return a figure for each step size rule."""
        return aggregate.figures_of(self.kinds[0], groups)

    def panel(self, group: Group) -> Panel:
        """Return the tab of a group, the verdicts first."""
        found = verdicts_of([group])
        found_steps = " Step sizes: found for each sampler; iterates are averaged." if AUTO in group.rules else ""
        columns = "standardised, with an intercept" if group.setting["bias"] else "as given"
        about = f"Loss: {group.setting['loss']}. Columns: {columns}.{found_steps}"
        return aggregate.panel_of(group, self.table([group]), verdict=sentences(found) or [_ALONE], words=(about,))


register(Compare())


def compare(
    data: Data,
    loss: str,
    store: Store,
    *,
    samplers: Sequence[str] = (BASELINE, sgd_runs.DEFAULT),
    epochs: int = 20,
    runs: int = 5,
    batch_size: int | None = None,
    l2: float = 1.0,
    steps: OwnSteps = "auto",
    jobs: int = 1,
    watch: Watch | None = None,
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
    epochs : int, default=20
        Epochs per run.
    runs : int, default=5
        Runs of each sampler, with seeds 0, 1, ...
    batch_size : int, optional
        Draws per step, at most the number of examples; by default 128.
    l2 : float, default=1.0
        The factor of the one l2 term of the whole sum.
    steps : {"auto", "paper", "decreasing", "constant"}, default="auto"
        "auto": step sizes are found for each sampler, and iterates are averaged. "paper": both of the paper's; or one
        of these. If rows have much in common, the paper's are shortened.
    jobs : int, default=1
        How many runs to do at a time, each in its own process; 1: in this process.
    watch : Watch, optional
        Receives the progress.

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
    batch_size = sgd_runs.batch_size_of(batch_size, len(data))
    l2 = validation.number("l2", l2, at_least=0.0)
    optimum = sgd_runs.optimum_task("optimum", data, loss, l2, TOLERANCE)
    validation.choice("steps", steps, _RULES_OF)
    caution = 1.0
    if steps != AUTO:
        caution = sgd_runs.caution_of(sgd_runs.problem_of(optimum.spec, data.X, data.y), batch_size)
    shared = Setting(loss, epochs, batch_size, l2, caution)

    def stages() -> Stages:
        (found,) = yield Stage("optimum", [optimum])
        each = itertools.product(range(runs), _RULES_OF[steps], samplers)
        specs = [descent_spec("compare", data, shared, name, rule, seed) for seed, rule, name in each]
        yield Stage("runs", [Task(spec, data, found["facts"]["optimum"]) for spec in specs])

    return execute([stages()], store, jobs=jobs, watch=watch)


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the measures at the last epoch of each sampler: means over the runs, and the verdicts.

    >>> summary([])
    []
    """
    found = Compare().closing(records)
    return [] if found is None else list(found.numbers["runs"])


def doubt_of_optimum(spec: Spec, facts: Mapping[str, Any]) -> str:
    """Return a warning if the search for an optimum ended before its tolerance; "" if it did not."""
    left, allowed = facts["gradient_at_optimum"], facts["gradient_allowed"]
    if left <= allowed:
        return ""
    # A convex function of curvature mu is at most |gradient|^2 / (2 mu) above its minimum.
    most = f" by at most {left * left / (2.0 * spec['l2']):.2g}" if spec["l2"] > 0.0 else ""
    return (
        f"The optimum of {display_name(spec['dataset'])} was not found to the requested tolerance: the norm of its "
        f"gradient is {left:.2g}, not {allowed:.2g}. Suboptimalities are too small{most}, and the gain at the optimum "
        "is approximate."
    )


def facts_table(facts: Sequence[Mapping[str, Any]]) -> Table:
    """Return the facts about some datasets."""
    columns = (
        "dataset; n|examples|integer; dim|coefficients|integer; optimum||value; "
        "gain_at_optimum|gain at the optimum|ratio; smoothness_ratio||number"
    )
    return Table.of("At the optimum", columns, facts)
