"""What the report reads, and what it passes over."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stored_runs
from avare.experiments.store import Skipped, key_of
from avare.report.records import RecordError, parse, read


def changed(record: dict[str, Any], part: str, **changes: Any) -> dict[str, Any]:
    return {**record, part: {**record[part], **changes}}


def test_reads_all_records_of_a_folder(tmp_path: Path) -> None:
    store = stored_runs.put(
        tmp_path / "store",
        [stored_runs.run(), stored_runs.facts("mnist"), stored_runs.theory("sgd"), stored_runs.run(seed=1)],
    )
    (store / "notes.txt").write_text("not a record")
    records, skipped = read(store)
    assert sorted(record.spec["experiment"] for record in records) == ["reproduce", "reproduce", "table", "theory"]
    assert skipped == []
    (facts,) = (record.stored["facts"] for record in records if record.spec["experiment"] == "table")
    assert facts["gain_at_optimum"] == 5.088


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    store = stored_runs.put(tmp_path, [stored_runs.run()])
    (path,) = store.glob("*.json")
    (store / "half.json").write_bytes(path.read_bytes()[:500])
    (store / "noise.json").write_bytes(b"\xff\xfe\x00")
    (store / "folder.json").mkdir()
    records, skipped = read(store)
    assert len(records) == 1
    assert [each.name for each in skipped] == ["folder.json", "half.json", "noise.json"]
    assert "cannot be read" in skipped[0].reason and "not JSON" in skipped[1].reason


def test_a_number_that_has_changed_is_noticed_and_the_file_left_alone(tmp_path: Path) -> None:
    store = stored_runs.put(tmp_path, [stored_runs.run(), stored_runs.run(seed=1)])
    first, second = sorted(store.iterdir())
    first.write_bytes(first.read_bytes().replace(b"12345.6", b"12345.7"))
    before = {path: path.read_bytes() for path in (first, second)}
    records, skipped = read(store)
    assert [record.stored["key"] for record in records] == [second.stem]
    assert skipped == [Skipped(first.name, "damaged: the checksum is that of another content")]
    assert {path: path.read_bytes() for path in store.iterdir()} == before


def test_sound_records_that_lack_something_are_named(tmp_path: Path) -> None:
    store = stored_runs.put(tmp_path, [stored_runs.run(), changed(stored_runs.run(seed=1), "trace", regret=[])])
    (tmp_path / "0.json").touch()
    records, skipped = read(store)
    assert len(records) == 1 and len(skipped) == 2
    assert skipped[1].name == f"{key_of(stored_runs.run(seed=1)['spec'])}.json"
    assert skipped[1].reason == "trace lacks 'regret'"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"store = '.*nowhere': there is no such folder"):
        read(tmp_path / "nowhere")


RUN = stored_runs.run(epochs=2)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**RUN, "spec": None}, "lacks 'spec'"),
        ({**RUN, "trace": None}, "lacks 'trace'"),
        (changed(RUN, "spec", experiment="other"), r"spec\['experiment'\] = 'other': must be one of reproduce"),
        (changed(RUN, "spec", sampler=3), r"spec\['sampler'\] = 3: must be text"),
        (changed(RUN, "spec", seed="0"), r"spec\['seed'\] = '0': must be an integer"),
        (changed(RUN, "spec", seed=True), r"spec\['seed'\] = True: must be an integer"),
        (changed(RUN, "trace", regret=[]), "trace lacks 'regret'"),
        (changed(RUN, "trace", regret=[1.0, "2", 3.0]), r"trace\['regret'\]\[1\] = '2': must be a number"),
        (changed(RUN, "trace", regret=[1.0, True, 3.0]), r"trace\['regret'\]\[1\] = True: must be a number"),
        (changed(RUN, "trace", regret=[1.0, 2.0]), "trace has columns of different lengths"),
        (changed(RUN, "trace", epoch=[0, 2, 1]), r"trace\['epoch'\] does not rise"),
        (changed(RUN, "trace", epoch=[0, None, 2]), r"trace\['epoch'\] does not rise"),
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


def test_what_is_not_said_is_left_open() -> None:
    record = parse({key: value for key, value in RUN.items() if key not in ("where", "seconds", "status")})
    assert record.where == {} and record.seconds == {} and record.status == "finished"
