"""What a stored record must have, and what is said if it lacks something."""

from typing import Any

import numpy as np
import pytest

import stored_runs
from avare.experiments.store import RecordError, Result
from stored_runs import parsed

RUN = stored_runs.run(epochs=2)


def changed(record: dict[str, Any], part: str, **changes: Any) -> dict[str, Any]:
    return {**record, part: {**record[part], **changes}}


def parse(record: dict[str, Any]) -> Result:
    return parsed([record])[0]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**RUN, "spec": 3}, "lacks 'spec'"),
        ({**RUN, "trace": [1.0]}, "trace: 'list' object"),
        (changed(RUN, "trace", regret=[1.0, "two", 3.0]), "trace: could not convert string to float"),
        (changed(RUN, "trace", regret=[1.0, [2.0], 3.0]), "trace: setting an array element"),
        (changed(RUN, "trace", regret=[1.0, 10**400, 3.0]), "trace: int too large"),
        (changed(RUN, "trace", regret=[1.0, 2.0]), "trace has columns of different lengths"),
        (changed(RUN, "trace", regret=1.0), "trace has columns of different lengths, or none"),
        ({**RUN, "trace": {"regret": [[1.0], [2.0]]}}, "trace has columns of different lengths, or none"),
    ],
)
def test_says_what_a_record_lacks(record: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Result.of(record)


def test_numbers_that_are_none_are_nan() -> None:
    assert np.isnan(parse(changed(RUN, "trace", regret=[None, None, None])).trace["regret"]).all()


def test_missing_parts_are_left_open() -> None:
    record = parse({key: value for key, value in RUN.items() if key not in ("where", "seconds", "status")})
    assert record.where == {} and record.seconds == {} and record.status == "finished" and record.shown


def test_a_diverged_run_is_not_shown() -> None:
    assert not parse({**RUN, "status": "diverged"}).shown
