"""All curves of the paper's experiments with all digits, for ``numbers.json``."""

from collections.abc import Sequence
from typing import Any

from avare.experiments.aggregate import Group, Series
from avare.experiments.sgd_runs import MEASURES
from avare.experiments.store import number, numbers
from harness import curve_numbers


def numbers_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return everything with all digits, for ``numbers.json``."""
    return [
        {
            "title": group.title,
            "setting": group.setting,
            "series": [_numbers(each) for each in group.series if each.finished],
        }
        for group in groups
    ]


def _numbers(series: Series) -> dict[str, Any]:
    return {
        "label": series.label,
        "spec": series.spec,
        "seeds": [run.spec["seed"] for run in series.finished],
        "seconds": {part: number(series.seconds(part)) for part in ("steps", "evaluation")},
        "epoch": numbers(series.finished[0].trace["epoch"]),
        **{measure: curve_numbers(series.curve(measure)) for measure in MEASURES},
    }
