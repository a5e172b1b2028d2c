"""Records are written whole or not at all, damage is noticed, and processes leave each other alone."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from avare.experiments import Store
from avare.experiments.store import StoreError, canonical, checksum_of, key_of

SPEC = {"experiment": "compare", "dataset": "digits", "options": {"p_min": 0.1}, "seed": 3}
RECORD = {"spec": SPEC, "optimum": 1.25, "trace": {"epoch": [0.0, 1.0], "gain": [None, 1e-300]}}


def place(store: Store, spec: dict[str, Any] = SPEC) -> Path:
    return store.folder / f"{key_of(spec)}.json"


def test_put_and_get(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "runs")
    assert store.get(SPEC) is None and store.read()[0] == [] and not store.folder.exists()
    store.put(RECORD)
    found = store.get(dict(reversed(SPEC.items())))
    assert found is not None and found.items() >= RECORD.items() and found["format"] == 1
    assert found["checksum"] == checksum_of(found) and found["key"] == key_of(SPEC)
    assert [each["key"] for each in store.read()[0]] == [key_of(SPEC)]
    assert store.get({**SPEC, "seed": 4}) is None
    store.put({**RECORD, "optimum": 2.5})  # replaced, not doubled
    assert [each["optimum"] for each in store.read()[0]] == [2.5]
    assert [path.suffix for path in store.folder.iterdir()] == [".json"]


def test_the_key_depends_on_everything_and_on_nothing_else() -> None:
    assert key_of(SPEC) == key_of(json.loads(json.dumps(SPEC)))
    assert len({key_of({**SPEC, "seed": 1}), key_of({**SPEC, "options": {}}), key_of(SPEC)}) == 3
    with pytest.raises(ValueError, match="JSON"):
        canonical({"value": float("nan")})


@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "text", "list", "other run", "no checksum", "not UTF-8"])
def test_a_damaged_file_is_renamed(tmp_path: Path, kind: str) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    content = place(store).read_bytes()
    other = {**SPEC, "seed": 8}
    store.put({**RECORD, "spec": other})
    damaged = {
        "flipped": content.replace(b"1.25", b"1.26"),
        "cut": content[: len(content) // 2],
        "empty": b"",
        "text": b"hello",
        "list": b"[1, 2]",
        "other run": place(store, other).read_bytes(),
        "no checksum": json.dumps({k: v for k, v in json.loads(content).items() if k != "checksum"}).encode(),
        "not UTF-8": b"\xff" + content,
    }[kind]
    place(store).write_bytes(damaged)
    assert store.get(SPEC) is None
    (aside,) = store.damaged()
    assert aside.name.startswith(f"{key_of(SPEC)}.json.damaged-") and aside.read_bytes() == damaged
    assert [each["spec"]["seed"] for each in store.read()[0]] == [8]
    store.put(RECORD)
    assert store.get(SPEC) is not None
    place(store).write_bytes(damaged)
    assert store.get(SPEC) is None
    assert len(store.damaged()) == 2  # the first is kept as well


def test_reading_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    assert store.read() == ([], []) and not store.folder.exists()
    specs = [{**SPEC, "seed": seed} for seed in range(9)]
    for spec in specs:
        store.put({**RECORD, "spec": spec})
    content = place(store, specs[0]).read_bytes()
    newer = {**json.loads(content), "format": 2}
    infinite = content.replace(b"1e-300", b"1e999")
    assert infinite != content
    unfit = [
        (
            canonical({**newer, "checksum": checksum_of(newer)}).encode(),
            "has format 2, and this version of avare reads 1",
        ),
        (content.replace(b"1.25", b"1.26"), "damaged: checksum or key do not match"),
        (content[: len(content) // 2], "not a record: "),
        (b"[" * 100_000, "not a record: "),
        (b"[1, 2]", "not a record: TypeError"),
        (infinite, "not a record: ValueError('Out of range float values"),
        (place(store, specs[8]).read_bytes(), "damaged: checksum or key do not match"),
    ]
    for spec, (changed, _) in zip(specs, unfit, strict=False):
        place(store, spec).write_bytes(changed)
    (store.folder / "folder.json").mkdir()
    os.mkfifo(store.folder / "pipe.json")
    before = {path: path.read_bytes() for path in store.folder.iterdir() if path.is_file()}
    records, skipped = store.read()
    assert [record["spec"]["seed"] for record in records] == sorted([7, 8], key=lambda seed: key_of(specs[seed]))
    found = dict(each.split(": ", 1) for each in skipped)
    for spec, (_, reason) in zip(specs, unfit, strict=False):
        assert found.pop(place(store, spec).name).startswith(reason)
    assert found == dict.fromkeys(("folder.json", "pipe.json"), "cannot be read: it is not a regular file")
    assert {path: path.read_bytes() for path in store.folder.iterdir() if path.is_file()} == before


def test_a_file_that_is_gone_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.put(RECORD)

    def gone(path: Path) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_bytes", gone)
    assert store.read() == ([], [])


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_an_error_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    store = Store(tmp_path)

    def fail(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(StoreError, match=f"{tmp_path}: cannot write a result: {os.strerror(number)}"):
        store.put(RECORD)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_writing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).put(RECORD)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    for folder in (tmp_path / "file", tmp_path / "file" / "runs"):
        store = Store(folder)
        assert store.get(SPEC) is None
        with pytest.raises(StoreError, match=r"cannot be used as a folder: (File exists|Not a directory)"):
            store.put(RECORD)
    (tmp_path / "runs" / f"{key_of(SPEC)}.json").mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be read"):
        Store(tmp_path / "runs").get(SPEC)
    with pytest.raises(StoreError, match="cannot write a result"):
        Store(tmp_path / "runs").put(RECORD)


def test_damage_that_cannot_be_renamed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    place(store).write_text("{}")

    def fail(*arguments: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreError, match="is damaged, and cannot be renamed: Read-only"):
        store.get(SPEC)

    def gone(*arguments: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "replace", gone)
    assert store.get(SPEC) is None


def test_files_that_killed_processes_left_are_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, new = tmp_path / ".aa.1.tmp", tmp_path / ".bb.2.tmp"
    for path in (old, new):
        path.write_text("{")
    os.utime(old, (time.time() - 7200,) * 2)
    store.put(RECORD)
    assert not old.exists() and new.exists()  # the latter may be under way
    assert len(store.read()[0]) == 1


def test_a_system_that_cannot_open_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", fail)
    Store(tmp_path).put(RECORD)
    monkeypatch.undo()
    assert Store(tmp_path).get(SPEC) is not None
