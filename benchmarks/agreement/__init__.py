"""The paper's experiments with its numbers beside ours; it takes the place of the package's own `Paper`."""

from collections.abc import Sequence
from dataclasses import replace

from agreement import checking
from agreement.reproduced import numbers_of
from avare.experiments import Figure, Panel, Result, Section, Summary, Table, register
from avare.experiments.aggregate import Group, figures_of, groups_of, last_rows
from avare.experiments.base import RUNS
from avare.experiments.data import display_name, listing_order
from avare.experiments.paper import SETTINGS, Paper
from avare.experiments.store import Record, number

_APART = "synthetic"


class CheckedPaper(Paper):
    """The paper's datasets and its Table 1, or all."""

    runs = RUNS
    """How many runs of each setting a verdict needs."""

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """Return what the package shows, and a tab with every number of the paper."""
        found = super().summarise(results)
        if found is None:
            return None
        groups = groups_of(each for each in results if each.kind == self.kinds[0])
        known = checking.facts(results)
        named = {each.spec["dataset"] for each in results if each.kind == self.kinds[0]} | set(known)
        rows = checking.check(results, sorted(named & {*SETTINGS}, key=listing_order), self.runs)
        tables = {name: table for name, table in found.tables.items() if name != "facts"}
        numbers = {**found.numbers, "facts": [{"dataset": name, **fact} for name, fact in known.items()]}
        numbers |= {"groups": numbers_of(groups)}
        numbers["check"] = [row.as_dict() for row in rows]
        panels = found.panels
        if rows:
            tables |= {"table1": checking.table_one(known, checking.published()), "check": checking.check_table(rows)}
            panels = (*panels, _panel(tables["table1"], rows))
        return replace(found, tables=tables, panels=panels, numbers=numbers)

    def closing(self, records: Sequence[Record]) -> Summary | None:
        """Return what the page shows, without the long table of every number."""
        found = super().closing(records)
        tables = {} if found is None else {name: table for name, table in found.tables.items() if name != "check"}
        return found and replace(found, tables=tables)

    def figures(self, groups: Sequence[Group]) -> dict[str, Figure]:
        """Return a figure for each rule, and others for the synthetic dataset, as in the paper."""
        apart = [group for group in groups if group.dataset == _APART]
        others = [group for group in groups if group.dataset != _APART]
        return {**figures_of("reproduce", others), **figures_of(f"reproduce-{_APART}", apart)}

    def table(self, groups: Sequence[Group]) -> Table:
        """Return the last epoch; next to runs with the paper's settings are its numbers."""
        paper, rows = checking.published(), []
        for group in groups:
            figures = {} if checking.other_settings(group.setting, paper) else paper["last_epoch"]
            for row in last_rows([group]):
                theirs = figures.get(row["steps"], {}).get(group.dataset, {}).items()
                row |= {f"{each}_log10": _log10(row.get(each)) for each in checking.LOGARITHMS}
                rows.append({**row, **{f"{measure}_paper": values.get(row["sampler"]) for measure, values in theirs}})
        columns = "dataset; steps; sampler; runs||integer; diverged||integer; epochs||integer; "
        for measure, title in (("relative_error", "relative error"), ("suboptimality", "suboptimality")):
            columns += f"{measure}_log10|{title}, log₁₀|number; {measure}||detail; {measure}_deviation||detail; "
            columns += f"{measure}_paper|paper|number; "
        columns += "regret||power; regret_deviation||detail; regret_paper|paper|number; seconds|seconds a run|seconds"
        table = Table.of("At the last epoch, mean of the runs", columns, rows)
        return table if any(row["diverged"] for row in rows) else table.without("diverged")


register(CheckedPaper())


def _log10(value: float | None) -> float | None:
    return None if value is None else number(checking.log10(value))


def _panel(first: Table, rows: Sequence[checking.Row]) -> Panel:
    paper = checking.published()
    absent = [display_name(name) for name in paper["table"] if name not in {row.dataset for row in rows}]
    words = [f"Not in this store: {', '.join(absent)}."] if absent else []
    sections = (
        Section("Table 1", (first, paper["smoothness_note"])),
        Section("Every number", (checking.check_table(rows),)),
        Section("Source", (*words, f"{paper['source']}.")),
    )
    return Panel("Against the paper", sections, verdict=(f"Against the paper: {checking.tally_words(rows)}.",))
