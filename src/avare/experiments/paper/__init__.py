"""The paper's experiments, and how our numbers compare with its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from avare.experiments import aggregate, sgd_runs
from avare.experiments.aggregate import Group
from avare.experiments.base import RUNS, Closing, Experiment, Request, Stages, Summary
from avare.experiments.data import display_name, listing_order
from avare.experiments.document import Panel, Section, Table
from avare.experiments.optimum import doubt_of_optimum, find_optimum
from avare.experiments.paper import checking
from avare.experiments.paper.plan import PARTS, SETTINGS, paper_stages
from avare.experiments.records import Result
from avare.experiments.registry import register
from avare.experiments.store import Record, Spec
from avare.experiments.verdict import sentences, verdicts_of

_APART = "synthetic"  # has its own figure, as in the paper
_METHOD = "Avare"  # the paper's sampler


class Paper(Experiment):
    """The paper's datasets and its Table 1, or all."""

    name = "paper"
    kinds = ("reproduce", "table")
    words = (*PARTS, "all")
    checkable = tuple(SETTINGS)

    def stages(self, request: Request) -> Stages:
        """Yield the search for the optima, then the runs."""
        return paper_stages(request)

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do one run of SGD, or the search for an optimum."""
        return find_optimum(spec, X, y) if spec["experiment"] == "table" else sgd_runs.descend(spec, X, y, optimum)

    def parse(self, data: Mapping[str, Any]) -> Result:
        """Read a stored record; raise an error if it cannot be shown."""
        result = super().parse(data)
        aggregate.last_rows(_groups([result]))
        return result

    def check(self, results: Sequence[Result], names: Sequence[str], runs: int) -> Closing:
        """Compare results with what the paper says about some datasets."""
        rows, paper = checking.check(results, names, runs), checking.published()
        source = f"Source: {paper['source']}. {paper['smoothness_note']}"
        numbers = {"rows": [row.as_dict() for row in rows], **checking.tally(rows)}
        parts = (checking.check_table(rows), source, checking.tally_words(rows))
        return Closing(parts, numbers, checking.exit_code(rows))

    def summarise(self, results: Sequence[Result], runs: int = RUNS) -> Summary | None:
        """Return a tab for each dataset and setting, and one with every number of the paper."""
        if not results:
            return None
        groups, known, paper = _groups(results), checking.facts(results), checking.published()
        named = {each.spec["dataset"] for each in results if each.kind == "reproduce"} | set(known)
        rows = checking.check(results, sorted(named & {*SETTINGS}, key=listing_order), runs)
        tables = [each for each in results if each.kind == "table" and each.shown]
        notices = tuple(filter(None, {doubt_of_optimum(each.spec, each.stored["facts"]) for each in tables}))
        panels, shown = [_panel(group) for group in groups if group.rules], {}
        if groups:
            shown["reproduce"] = _last_epoch(groups)
        if rows:
            shown |= {"table1": checking.table_one(known, paper), "check": checking.check_table(rows)}
            panels.append(_paper_panel(shown["table1"], rows))
        apart = [group for group in groups if group.dataset == _APART]
        return Summary(
            lead=aggregate.lead_of(groups),
            notices=notices,
            tables=shown,
            on_page_only=("check",),
            figures={
                **aggregate.figures_of("reproduce", [group for group in groups if group not in apart]),
                **aggregate.figures_of(f"reproduce-{_APART}", apart),
            },
            panels=tuple(panels),
            numbers={
                "groups": aggregate.numbers_of(groups),
                "runs": aggregate.last_rows(groups),
                "facts": [{"dataset": name, **fact} for name, fact in known.items()],
                "doubts": list(notices),
                "check": [row.as_dict() for row in rows],
            },
        )


register(Paper())


def _groups(results: Sequence[Result]) -> list[Group]:
    return aggregate.groups_of(each for each in results if each.kind == "reproduce")


def _last_epoch(groups: Sequence[Group]) -> Table:
    """Return the last epoch; next to runs with the paper's settings are its numbers."""
    paper, rows = checking.published(), []
    for group in groups:
        figures = {} if checking.other_settings(group.setting, paper) else paper["last_epoch"]
        for row in aggregate.last_rows([group]):
            theirs = figures.get(row["steps"], {}).get(group.dataset, {}).items()
            rows.append({**row, **{f"{measure}_paper": values.get(row["sampler"]) for measure, values in theirs}})
    return aggregate.last_epoch(rows, paper=True)


def _panel(group: Group) -> Panel:
    found = {key: each for key, each in verdicts_of([group]).items() if key[-1] == _METHOD}
    return aggregate.panel_of(group, _last_epoch([group]), sentences(found))


def _paper_panel(first: Table, rows: Sequence[checking.Row]) -> Panel:
    paper = checking.published()
    absent = [display_name(name) for name in paper["table"] if name not in {row.dataset for row in rows}]
    words = [f"Not in this store: {', '.join(absent)}."] if absent else []
    sections = (
        Section("Table 1", (first, paper["smoothness_note"])),
        Section("Every number", (checking.check_table(rows),)),
        Section("Source", (*words, f"{paper['source']}.")),
    )
    return Panel("Against the paper", sections, verdict=(f"Against the paper: {checking.tally_words(rows)}.",))
