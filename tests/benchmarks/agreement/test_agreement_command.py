"""`python benchmarks/agreement`: stored results, judged by the paper's numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agreement.__main__ import main
from avare.experiments import Store
from stored_runs import as_published


@pytest.fixture
def check_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the script in an empty folder: exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_check(check_command: Any) -> None:
    code, out, _ = check_command("results")
    assert code == 2 and "0 agree, 0 differ, 74 have too few runs" in out
    assert "Run what is missing: avare reproduce all --runs 10 --out results\n" in out
    store = Store("results/runs")
    for record in as_published(2):
        store.put(record)
    code, out, _ = check_command("results", "--runs", "2")
    assert code == 0 and "51 agree, 0 differ, 0 have too few runs" in out and "NeurIPS 2020" in out
    assert "Run what is missing" not in out
    for record in as_published(2, ["mnist"]):
        if record["spec"].get("sampler") == "Avare":
            trace = {**record["trace"], "regret": [*record["trace"]["regret"][:-1], 9e15]}
            store.put({**record, "trace": trace})
    code, out, _ = check_command("results", "--runs", "2", "--json")
    found = json.loads(out)
    assert code == found["exit_code"] == 1 and found["differs"] == 2
    wrong = [row for row in found["rows"] if row["verdict"] == "differs"]
    assert {(row["dataset"], row["sampler"], row["measure"]) for row in wrong} == {("mnist", "Avare", "regret")}
    assert "│ DIFFERS" in check_command("results", "mnist", "--runs", "2")[1]
    assert check_command("results", "cifar10", "ijcnn1", "--runs", "2")[0] == 0
    code, out, _ = check_command("results", "cifar10", "--runs", "3")
    assert code == 2 and "│ too few runs" in out and "│ 2 of 3 runs" in out
    record = next(record for record in as_published(1, ["mnist"]) if "sampler" in record["spec"])
    store.put({**record, "spec": {**record["spec"], "steps": ["odd"]}})
    code, out, err = check_command("results", "cifar10", "--runs", "3")
    assert code == 2 and "unhashable type: 'list'" in err


def test_check_changes_nothing_and_names_what_is_damaged(check_command: Any) -> None:
    store = Store("results/runs")
    for record in as_published(1, ["mnist"]):
        store.put(record)
    first = sorted(store.folder.iterdir())[0]
    first.write_bytes(first.read_bytes()[:-9])
    before = {path: path.read_bytes() for path in store.folder.iterdir()}
    code, _, err = check_command("results", "mnist", "--runs", "1")
    assert code == 2 and err.startswith(f"{first.name}: not a record: ") and err.endswith("; skipped\n")
    found = json.loads(check_command("results", "mnist", "--runs", "1", "--json")[1])
    assert [each.split(": ")[0] for each in found["skipped"]] == [first.name] and found["missing"] > 0
    assert {path: path.read_bytes() for path in store.folder.iterdir()} == before
