"""The paper's experiments, and how our numbers compare with its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from avare.experiments import convergence, descent
from avare.experiments.base import RUNS, Closing, Experiment, Request, Stages, Summary
from avare.experiments.content import Panel, Section, Table
from avare.experiments.convergence import Group, Series
from avare.experiments.data import display_name, listing_order
from avare.experiments.facts import doubt_of_optimum, facts_table, tabulate
from avare.experiments.paper import checking, theory
from avare.experiments.paper.checking import Row, check, check_table, facts, published, table_one, tally, tally_words
from avare.experiments.paper.plan import PARTS, SAMPLERS, SETTINGS, Extent, paper_stages
from avare.experiments.records import Fields, Result, mapping_in, number_in
from avare.experiments.registry import register
from avare.experiments.store import Record, Spec
from avare.experiments.verdict import sentences, verdicts_of

_APART = "synthetic"  # has its own figure, as in the paper
_METHOD = "Avare"  # the paper's sampler


class Paper(Experiment):
    """The paper's datasets, its Table 1 and the growth of the regret, or all."""

    name = "paper"
    kinds: ClassVar = {"reproduce": descent.FIELDS, "theory": theory.FIELDS, "table": Fields(texts=("dataset",))}
    words = (*PARTS, "all")
    checkable = tuple(SETTINGS)
    sized_by = ("dataset", "epochs", "length")
    paced_by = ("sampler", "method")

    def stages(self, request: Request) -> Stages:
        """Yield the search for the optima, then the runs."""
        rules = tuple(rule for rule in descent.RULES if rule in request.rules)
        names = request.samplers or SAMPLERS
        extent = Extent.quick(rules, names) if request.quick else Extent(rules=rules, samplers=names)
        extent = replace(extent, runs=request.runs or extent.runs, epochs=request.epochs or extent.epochs)
        yield from paper_stages(request.words, extent, request.folder, progress=request.progress)

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Do one run of SGD, one that measures the regret, or the search for an optimum."""
        if spec["experiment"] == "table":
            return tabulate(spec, X, y)
        return theory.measure_regret(spec, X, y) if "method" in spec else descent.descend(spec, X, y, optimum)

    def describe(self, spec: Spec) -> str:
        """Describe a run in a few words."""
        if spec["experiment"] == "table":
            return f"optimum of {spec['dataset']}"
        if "method" in spec:
            return f"regret of {spec['method']}, seed {spec['seed']}"
        return descent.describe_descent(spec)

    def passes(self, spec: Spec) -> float:
        """Return about how often a run looks at each example: once per step, if it measures the regret."""
        return float(spec.get("epochs", spec.get("length", 100)))  # the search for an optimum takes about 100

    def parse(self, data: Mapping[str, Any]) -> Result:
        """Check a stored record; also the facts about a dataset."""
        result = super().parse(data)
        if result.kind == "table":
            for name, value in mapping_in(data, "facts").items():
                number_in(f"facts[{name!r}]", value)
        return result

    def closing(self, records: Sequence[Record]) -> Closing:
        """Return where each sampler ends, the facts about datasets, and how the regret grows."""
        rows, known, growth = convergence.final_rows(records), facts(records), theory.exponents(records)
        doubts = [doubt_of_optimum(record["spec"], record.get("facts", {})) for record in records]
        parts: list[str | Table] = [convergence.final_table(rows)] if rows else []
        parts += [facts_table(known)] if known else []
        parts += [text for text in doubts if text]
        judged = verdicts_of([record for record in records if "sampler" in record["spec"]])
        parts += sentences({key: each for key, each in judged.items() if key[-1] == _METHOD})
        parts += [
            f"{method}: the regret grows as t^{mean:.2f} (±{deviation:.2f}); the theorem allows t^{bound:.2f}"
            for method, (mean, deviation, bound) in growth.items()
        ]
        return Closing(tuple(parts), {"runs": rows, "facts": known, "exponents": growth})

    def check(self, records: Sequence[Record], names: Sequence[str], runs: int) -> Closing:
        """Compare stored records with what the paper says about some datasets."""
        rows, paper = check(records, names, runs), published()
        counts = tally(rows)
        marked = [replace(row, verdict=row.verdict.upper()) if row.verdict == "differs" else row for row in rows]
        parts = (
            check_table(marked),
            f"Source: {paper['source']}. {paper['smoothness_note']}",
            f"{counts['agrees']} agree, {counts['differs']} differ, {counts['missing']} have too few runs",
        )
        return Closing(parts, {"rows": [row.as_dict() for row in rows], **counts}, checking.exit_code(rows))

    def summarise(self, results: Sequence[Result], runs: int = RUNS) -> Summary | None:
        """Return a tab for each dataset and setting, one for the theory, and one with every number of the paper."""
        if not results:
            return None
        descents = [each for each in results if each.kind == "reproduce"]
        tables = [each for each in results if each.kind == "table" and each.shown]
        groups = convergence.groups_of(descents)
        growths = theory.growths_of([each for each in results if each.kind == "theory"])
        known = facts(each.stored for each in tables)
        known = {name: known[name] for name in sorted(known, key=listing_order)}
        judged = sorted({*known, *(each.spec["dataset"] for each in descents)} & {*SETTINGS}, key=listing_order)
        rows = check([each.stored for each in results], judged, runs)
        doubts = dict.fromkeys(doubt_of_optimum(each.spec, each.stored["facts"], display=True) for each in tables)
        notices, paper = tuple(text for text in doubts if text), published()
        shown, panels = {}, [_group_panel(group, descents, paper, runs) for group in groups]
        if growths:
            panels.append(theory.theory_panel(growths))
        if known and not groups and not judged:  # of your own data only
            shown["facts"] = facts_table({display_name(name): fact for name, fact in known.items()})
            panels.append(Panel("Possible gain", (Section("At the optimum", (shown["facts"],)),)))
        elif groups or known:
            shown["table1"] = table_one(known, paper)
            panels.append(_paper_panel(shown["table1"], rows, paper))
        if rows:
            shown["check"] = check_table(rows)
        if groups:
            shown["reproduce"] = _last_epoch(groups, paper)
        if growths:
            shown["theory"] = theory.theory_table(growths)
        return Summary(
            lead=convergence.lead_of(groups),
            notices=notices,
            tables=shown,
            figures={
                **convergence.figures_of("reproduce", [group for group in groups if group.dataset != _APART]),
                **convergence.figures_of(f"reproduce-{_APART}", [group for group in groups if group.dataset == _APART]),
                **({"theory": theory.theory_figure(growths)} if growths else {}),
            },
            panels=tuple(panels),
            details=convergence.details_of(groups),
            numbers={
                "groups": convergence.numbers_of(groups),
                "theory": [growth.as_dict() for growth in growths],
                "facts": [{"dataset": name, **fact} for name, fact in known.items()],
                "doubts": list(notices),
                "check": [row.as_dict() for row in rows],
            },
        )


register(Paper())


def _last_epoch(groups: Sequence[Group], paper: Mapping[str, Any]) -> Table:
    """The last epoch; runs with the paper's settings have its numbers beside them."""

    def numbers(group: Group, series: Series) -> dict[str, float]:
        figures = {} if checking.other_settings(group.setting, paper) else paper["last_epoch"]
        by_measure = figures.get(series.rule, {}).get(group.dataset, {})
        return {measure: values[series.label] for measure, values in by_measure.items() if series.label in values}

    return convergence.last_epoch(groups, numbers)


def _group_panel(group: Group, results: Sequence[Result], paper: Mapping[str, Any], runs: int) -> Panel:
    same = [each.stored for each in results if convergence.setting_of(each) == group.setting]
    names = [group.dataset] if group.dataset in SETTINGS else []
    rows = [row for row in check(same, names, runs) if row.steps in group.rules]
    more = []
    if rows:
        unused = () if any(row.note for row in rows) else ("note",)
        more.append(Section("Against the paper", (tally_words(rows), check_table(rows).without("dataset", *unused))))
    verdict = [f"Against the paper: {tally_words(rows)}"] if rows else []
    return convergence.panel_of(group, *more, table=_last_epoch([group], paper), verdict=verdict)


def _paper_panel(first: Table, rows: Sequence[Row], paper: Mapping[str, Any]) -> Panel:
    absent = [display_name(name) for name in paper["table"] if name not in {row.dataset for row in rows}]
    sections = [Section("Table 1", (first, paper["smoothness_note"]))]
    if rows:
        sections.append(Section("Every number", (tally_words(rows), check_table(rows))))
    words = [f"Not in this store: {', '.join(absent)}."] if absent else []
    sections.append(Section("Source", (*words, f"{paper['source']}.")))
    return Panel("Against the paper", tuple(sections))
