"""What a stored record must have, and what is said if it lacks something."""

import math
from typing import Any

import numpy as np
import pytest

import stored_runs
from avare.experiments.records import RecordError, Result
from stored_runs import parsed

RUN = stored_runs.run(epochs=2)


def changed(record: dict[str, Any], part: str, **changes: Any) -> dict[str, Any]:
    return {**record, part: {**record[part], **changes}}


def parse(record: dict[str, Any]) -> Result:
    return parsed([record])[0]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**RUN, "trace": None}, "lacks 'trace'"),
        (changed(RUN, "spec", sampler=3), r"spec\['sampler'\] = 3: must be text"),
        (changed(RUN, "spec", seed="0"), r"spec\['seed'\] = '0': must be an integer"),
        (changed(RUN, "spec", seed=True), r"spec\['seed'\] = True: must be an integer"),
        (changed(RUN, "trace", regret=[]), "trace lacks 'regret'"),
        (changed(RUN, "trace", regret=[1.0, "2", 3.0]), r"trace\['regret'\]\[1\] = '2': must be a number"),
        (changed(RUN, "trace", regret=[1.0, True, 3.0]), r"trace\['regret'\]\[1\] = True: must be a number"),
        (changed(RUN, "trace", regret=[1.0, 2.0]), "trace has columns of different lengths"),
        (changed(RUN, "trace", epoch=[0, 2, 1]), r"trace\['epoch'\] does not increase"),
        (changed(RUN, "trace", epoch=[0, None, 2]), r"trace\['epoch'\] does not increase"),
        (changed(RUN, "seconds", steps="long"), r"seconds\['steps'\] = 'long': must be a number"),
        ({**stored_runs.facts("mnist"), "facts": 3}, "lacks 'facts'"),
        (changed(stored_runs.facts("mnist"), "facts", n="many"), r"facts\['n'\] = 'many': must be a number"),
        (changed(stored_runs.theory("sgd"), "spec", method=None), r"spec\['method'\] = None: must be text"),
    ],
)
def test_says_what_a_record_lacks(record: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        parse(record)


def test_numbers_that_are_none_are_nan() -> None:
    record = parse(changed(RUN, "trace", regret=[None, math.inf, 10**400]))
    assert np.isnan(record.trace["regret"]).all()


def test_missing_parts_are_left_open() -> None:
    record = parse({key: value for key, value in RUN.items() if key not in ("where", "seconds", "status")})
    assert record.where == {} and record.seconds == {} and record.status == "finished" and record.shown


def test_a_diverged_run_is_not_shown() -> None:
    assert not parse({**RUN, "status": "diverged"}).shown
