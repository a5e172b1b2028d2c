"""Our numbers beside the paper's, and whether they agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from avare.report.results import Group, Results, log10, title


@dataclass(frozen=True, slots=True)
class Check:
    """One number of the paper, and ours.

    Parameters
    ----------
    dataset, rule, sampler, measure
        Of what; the rule and the sampler are empty for a fact about the dataset.
    theirs, ours
        Numbers, or an order in words; ours is None where there is no run.
    tolerance
        What may differ, in words; empty where nothing is asked.
    agrees
        None where it is not judged.
    note
        Why it is not, or what else is to be said.
    """

    dataset: str
    rule: str
    sampler: str
    measure: str
    theirs: float | str
    ours: float | str | None
    tolerance: str
    agrees: bool | None
    note: str = ""


def check(results: Results, paper: Mapping[str, Any]) -> list[Check]:
    """Every number that the paper prints of the datasets that were run, beside ours."""
    checks = []
    for dataset, facts in results.facts:
        checks += _facts(dataset, facts, paper)
    for group in results.of("reproduce"):
        checks += of_group(group, paper)
    return checks


def of_group(group: Group, paper: Mapping[str, Any]) -> list[Check]:
    """The same for one dataset: what the paper's figures show at the last epoch."""
    checks = []
    note = _other_setting(group, paper)
    ordered = group.dataset in paper["order"]
    for rule in group.rules:
        runs = {series.label: series for series in group.of(rule)}
        for measure, by_sampler in paper["last_epoch"].get(rule, {}).get(group.dataset, {}).items():
            for sampler, theirs in by_sampler.items():
                ours = None
                if sampler in runs:
                    value = runs[sampler].last(measure)[0]
                    ours = value if measure == "regret" else log10(value)
                words, agrees = ("", None) if ordered else _judge(paper, group.dataset, sampler, measure, theirs, ours)
                remark = "not run" if ours is None else note
                checks.append(
                    Check(group.title, rule, sampler, measure, theirs, ours, words, None if remark else agrees, remark)
                )
        if ordered and paper["order"][group.dataset]["steps"] == rule:
            checks.append(_order(group, rule, paper["order"][group.dataset], note))
    return checks


def _facts(dataset: str, facts: Mapping[str, float], paper: Mapping[str, Any]) -> list[Check]:
    checks = []
    for measure, theirs in paper["table"].get(dataset, {}).items():
        words, agrees = _judge(paper, dataset, "", measure, theirs, facts[measure])
        if measure == "smoothness_ratio":
            note = "the paper does not define its constants"
        else:
            note = "" if words else "another draw of the data"
        checks.append(Check(title(dataset), "", "", measure, theirs, facts[measure], words, agrees, note))
    return checks


def _judge(
    paper: Mapping[str, Any], dataset: str, sampler: str, measure: str, theirs: float, ours: float | None
) -> tuple[str, bool | None]:
    """What may differ, in words, and whether it does not differ by more; None where nothing is asked."""
    allowed = paper["tolerance"].get(measure, {})
    limit = allowed.get(sampler, allowed.get(dataset, allowed.get("default")))
    if limit is None:
        return "", None
    # A little more than the limit, for a number that lies on it may be rounded to either side.
    slack = 1.0 + 1e-9
    if measure == "relative_error":
        return f"±{limit:g}", ours is not None and abs(ours - theirs) <= limit * slack
    if measure == "regret":
        return f"factor {limit:g}", ours is not None and theirs / limit / slack <= ours <= theirs * limit * slack
    return f"{100 * limit:g} %", ours is not None and abs(ours / theirs - 1.0) <= limit * slack


def _order(group: Group, rule: str, wanted: Mapping[str, Any], note: str) -> Check:
    """Whether the samplers come in the paper's order, from the largest down."""
    measure, names = wanted["measure"], wanted["samplers"]
    values = {series.label: series.last(measure)[0] for series in group.of(rule) if series.label in names}
    ours = sorted(values, key=lambda name: -values[name])
    missing = [name for name in names if name not in values]
    if missing:
        note = f"not run: {', '.join(missing)}"
    return Check(
        group.title,
        rule,
        "all",
        measure,
        " > ".join(names),
        " > ".join(ours) if ours else None,
        "the order",
        None if note else ours == names,
        note or "another draw of the data gives other figures; the order must hold",
    )


def _other_setting(group: Group, paper: Mapping[str, Any]) -> str:
    """How the runs differ from the paper's, so that the numbers cannot be compared; empty if they do not."""
    epochs, batch_size = group.setting["epochs"], group.setting["batch_size"]
    differences = []
    if epochs != paper["epochs"]:
        differences.append(f"run for {epochs} epochs, the paper for {paper['epochs']}")
    if batch_size != paper["batch_size"].get(group.dataset, batch_size):
        differences.append(f"batches of {batch_size}, the paper's of {paper['batch_size'][group.dataset]}")
    return "; ".join(differences)
