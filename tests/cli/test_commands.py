"""Every command: what it prints for people and for machines, and how it fails."""

import io
import json
import math
import re
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.sparse import csr_array

import avare.report
from avare.cli import main
from avare.cli.display import Display, Estimate
from avare.datasets import DatasetError
from avare.experiments import (
    Closing,
    Experiment,
    Figure,
    Panel,
    Request,
    Result,
    Section,
    Stage,
    Stages,
    Store,
    Summary,
    Table,
    Task,
    diagnosis,
    registry,
    together,
)
from avare.experiments import paper as paper_plan
from avare.experiments.data import Data, obtain
from avare.experiments.paper import descents, paper_optimum
from avare.experiments.runner import duration
from avare.experiments.sgd_runs import common_spec
from avare.experiments.store import key_of
from avare.plotting import Chart, Curve
from tiny_datasets import enter, mnist, write

pytestmark = pytest.mark.usefixtures("cache")
LITTLE = ["--epochs", "1", "--runs", "1", "--jobs", "1"]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path]]:
    """In place of the report, one that only notes what it is asked for."""
    asked: list[tuple[Path, Path]] = []

    def write_page(store: Path, out: Path, *, say: Callable[[str], None]) -> Path:
        asked.append((store, out))
        for path in sorted(store.glob("bad*")):
            say(f"{path.name}: is bad")
        return out / "index.html"

    monkeypatch.setattr("avare.cli.application.write_report", write_page)
    return asked


def test_compare(avare_command: Any, report: Any) -> None:
    code, out, err = avare_command("compare", "digits", *LITTLE, "--samplers", "uniform,Avare")
    assert code == 0
    assert "\nLoss: softmax. Columns: standardised, with an intercept. Step sizes: found for each" in out
    words = "inconclusive (1 run of 1 epoch); try --epochs 20"
    assert f"\nVerdict: Avare and Uniform, in epochs: {words}. Wall-clock time: {words}.\n" in out
    assert re.search(r"^(Noise|Conditioning|Distance).* limit", out, re.MULTILINE)
    assert out.endswith("Results: results/runs\nPage: results/report/index.html\n")
    assert "runs: 3 wanted, 0 stored already" in err and "compare, digits, softmax, auto, Avare, seed 0:" in err
    assert report == [(Path("results/runs"), Path("results/report"), 10)]
    code, out, err = avare_command("compare", "digits", *LITTLE, "--samplers", "Uniform,Avare", "--json")
    found = json.loads(out)
    assert code == 0 and "3 wanted, 3 stored already" in err
    avare, uniform = found["runs"]
    assert avare["loss"] == "softmax" and (avare["sampler"], uniform["sampler"]) == ("Avare", "Uniform")
    assert found["facts"][0]["n"] == 1797 and found["page"] == "results/report/index.html"
    assert uniform["verdict"] == {} and set(avare["verdict"]) == {"epochs", "seconds"}
    assert avare["verdict"]["epochs"]["kind"] == "inconclusive" and found["limits"][0]["noise"] >= 0.0


def test_compare_with_a_test_and_the_paper_steps(avare_command: Any, report: Any) -> None:
    words = ["--samplers", "Uniform", "--raw", "--test", "0.2", "--steps", "paper"]
    code, out, _ = avare_command("compare", "digits", *LITTLE, *words)
    assert code == 0 and "test error" in out and "│ Digits  │ constant   │ Uniform │" in out
    assert "Columns: as given. Held out for the test: 359 rows." in out and "│ 1\u202f438 " in out
    assert "times shorter than the paper's, which would overshoot" in out and " limits Uniform" not in out


@pytest.mark.usefixtures("no_pictures")
def test_the_tables_of_the_page_have_the_test_error(tmp_path: Path) -> None:
    words = ["--samplers", "Uniform", "--test", "0.2", "--out", str(tmp_path)]
    assert main(["compare", "digits", *LITTLE, *words]) == 0
    assert "| test error |" in (tmp_path / "report" / "tables" / "compare.md").read_text()


def test_compare_always_has_a_verdict(avare_command: Any, report: Any) -> None:
    time = (
        r"(no significant difference over 2 runs|[\d.]+–[\d.]+× (faster|slower)|inconclusive \(2 runs\); try --runs 8)"
    )
    epochs = (
        rf"(needs [\d.]+–[\d.]+× (fewer|more) epochs than Uniform for the same loss|and Uniform, in epochs: {time})"
    )
    code, out, _ = avare_command(
        "compare", "synthetic", "--runs", "2", "--jobs", "1", "--epochs", "5", "--batch-size", "4"
    )
    assert code == 0
    assert len(re.findall(rf"^Verdict: Calibrated {epochs}\. Wall-clock time: {time}\.$", out, re.M)) == 1


def test_an_optimum_that_was_not_found_is_mentioned(avare_command: Any, report: Any, monkeypatch: Any) -> None:
    for command in (["compare", "synthetic", "--batch-size", "4"], ["reproduce", "synthetic"]):
        words = [*command, *LITTLE, "--samplers", "Uniform"]
        code, out, _ = avare_command(*words, "--out", "sound")
        assert code == 0 and "not found" not in out
        with monkeypatch.context() as patch:
            patch.setattr("avare.problems.minimum._NEWTON_STEPS", 0)
            code, out, _ = avare_command(*words, "--out", "early")
        assert code == 0 and out.count("The optimum of Synthetic was not found to the requested tolerance: ") == 1
        code, out, _ = avare_command(*words, "--out", "early")  # nothing is run, and it is said all the same
        assert code == 0 and out.count("The optimum of Synthetic was not found to the requested tolerance: ") == 1


def test_compare_own_files(avare_command: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(40, 3)).round(3)
    for name, y in (
        ("real", X @ [1.0, 2.0, 3.0] + 0.25),
        ("two", (X[:, 0] > 0).astype(int)),
        ("many", np.arange(40) % 3),
    ):
        lines = ["a,b,c,y", *(f"{a},{b},{c},{target}" for (a, b, c), target in zip(X, y, strict=True))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    for name, loss in (("real", "least_squares"), ("two", "logistic"), ("many", "softmax")):
        code, out, _ = avare_command(
            "compare", f"{name}.csv", "--target", "y", *LITTLE, "--batch-size", "4", "--samplers", "Avare", "--json"
        )
        assert code == 0 and json.loads(out)["runs"][0]["loss"] == loss
    code, out, _ = avare_command(
        "compare", "two.csv", "--target", "y", "--loss", "huber", *LITTLE, "--batch-size", "4", "--steps", "paper"
    )
    assert code == 0 and out.count("│ two     │") == 4 + 1
    code, out, err = avare_command("compare", "many.csv", "--target", "y", "--loss", "smoothed_hinge")
    assert code == 1 and err == "avare: loss = 'smoothed_hinge': many.csv has 3 classes; use softmax\n"
    code, out, err = avare_command("compare", "real.csv", "--target", "y", "--loss", "softmax")
    assert code == 1 and "real.csv, line 2: label = " in err and "--loss least_squares" in err
    code, out, err = avare_command("compare", "real.csv", "--target", "z")
    assert code == 1 and err.count("\n") == 1 and "real.csv" in err and "z" in err
    (tmp_path / "broken.libsvm").write_text("1 1:2\n1 2:x\n")
    code, out, err = avare_command("compare", "broken.libsvm")
    assert code == 1 and err.count("\n") == 1 and "broken.libsvm, line 2" in err


def test_the_chosen_loss_is_printed(avare_command: Any, tmp_path: Path) -> None:
    rows = "".join(f"{k % 3},{k % 5},{k}\n" for k in range(101))
    (tmp_path / "many.csv").write_text(f"a,b,y\n{rows}")
    for words, loss in (([], "least_squares"), (["--loss", "softmax"], "softmax")):
        code, out, _ = avare_command("compare", "many.csv", "--target", "y", *words, *LITTLE, "--samplers", "Uniform")
        assert code == 0 and f"\nLoss: {loss}. " in out
        code, out, _ = avare_command("diagnose", "many.csv", "--target", "y", *words, "--epochs", "1")
        assert code == 0 and out.startswith("Columns of many.csv:\n  a, b: numbers, as they are\n  y: the target\n")
        assert f"\nmany: 101 examples, {loss}, " in out


def test_a_file_is_not_mistaken_for_a_named_dataset(tmp_path: Path) -> None:
    path = tmp_path / "mnist.csv"
    path.write_text("a,y\n1,0\n2,1\n3,0\n")
    assert obtain(str(path), target="y")[0].name == "mnist.csv"
    path.write_text("a,y\n1,4\n2,4\n")
    with pytest.raises(DatasetError, match=r"mnist\.csv has one class only, 4: classification needs two or more"):
        obtain(str(path), target="y")
    assert obtain(str(path), target="y", loss="least_squares")[1] == "least_squares"


def test_reproduce(avare_command: Any, report: Any) -> None:
    steps = "--steps=decreasing"
    code, out, err = avare_command("reproduce", "synthetic", *LITTLE, steps)
    assert code == 0 and err.startswith("optima: 1 wanted, 0 stored already\n")
    assert out.count("│ Synthetic │ decreasing │") == 4 and out.endswith("Page: results/report/index.html\n")
    code, out, _ = avare_command("reproduce", "synthetic", *LITTLE, steps, "--samplers", "Srg", "--json")
    found = json.loads(out)
    assert code == 0 and found["store"] == "results/runs"
    assert [row["sampler"] for row in found["runs"]] == ["Srg"] and [each["dataset"] for each in found["facts"]] == [
        "synthetic"
    ]
    assert report[0] == (Path("results/runs"), Path("results/report"))


def test_reproduce_everything_on_tiny_data(avare_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _, _ = mnist(n=150)
    enter(monkeypatch, "mnist", files)
    folder = write(tmp_path / "data", files)
    settings = {name: paper_plan.SETTINGS[name] for name in ("synthetic", "mnist")}
    monkeypatch.setattr(paper_plan, "SETTINGS", settings)
    arguments = ("reproduce", "mnist", "table", "--data", str(folder), *LITTLE, "--samplers", "Avare")
    code, out, _ = avare_command(*arguments)
    assert code == 0 and out.count("│ MNIST ") == 2 + 1 and "│ Synthetic │" in out
    code, out, err = avare_command("reproduce", "mnist", "--data", "nowhere")
    assert code == 1 and err == "avare: folder (--data) = 'nowhere': there is no such folder\n"


def test_a_plan_is_refused_by_experiments_that_take_none(avare_command: Any) -> None:
    code, _, err = avare_command("reproduce", "mnist", "--plan", "plan.toml")
    assert code == 1 and err == "avare: --plan: mnist takes none\n"


class Toy(Experiment):
    """How far a walk gets: a toy."""

    name = "toy"
    kinds = ("toy",)

    def stages(self, request: Request) -> Stages:
        data, _ = obtain("synthetic")
        settings = [(sampler, seed) for sampler in request.samplers or ("Uniform", "Own") for seed in range(2)]
        specs = [{"experiment": "toy", "sampler": sampler, "seed": seed, "epochs": 2} for sampler, seed in settings]
        yield Stage("toy", [Task(spec, data) for spec in specs], note="toy: four walks")

    def run(self, spec: Any, X: Any, y: Any, optimum: float | None) -> dict[str, Any]:
        values = [4.0, 2.0, 1.0 + spec["seed"]]
        return {"seconds": {"steps": 0.5}, "status": "finished", "trace": {"epoch": [0, 1, 2], "value": values}}

    def closing(self, records: Sequence[dict[str, Any]]) -> Closing:
        ends = [record["trace"]["value"][-1] for record in records]
        return Closing((f"Walks end at {ends}.",) if ends else (), {"toy": ends})

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        groups = together((each for each in results if each.shown), lambda each: each.spec["sampler"])
        curves = tuple(
            Curve.of_runs(name, members[0].trace["epoch"], [each.trace["value"] for each in members])
            for name, members in groups
        )
        chart = Chart("Value", "Epochs", curves)
        rows = [{"sampler": curve.label, "value": float(curve.mean[-1])} for curve in curves]
        table = Table.of("The last value", "sampler; value||number", rows)
        return Summary(
            lead=f"{len(results)} toy runs",
            tables={"toy": table},
            figures={"toy": Figure("Toy", ((chart,),))},
            panels=(Panel("Toy", (Section("How it falls", (chart, table)),)),),
            numbers={"toy": rows},
        )


def test_another_experiment_is_run_and_reported(
    avare_command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry, "_EXPERIMENTS", dict(registry._EXPERIMENTS))
    registry.register(Toy())
    monkeypatch.setattr("avare.cli.application.write_report", avare.report.write)
    code, out, err = avare_command("reproduce", "toy", "--jobs", "2")  # whose processes have not registered it
    assert code == 0 and err.startswith("toy: four walks\ntoy: 4 wanted, 0 stored already\n")
    assert "[4/4] " in err and "Own, seed 1: 0.5 s" in err
    assert out.startswith("Walks end at [1.0, 2.0, 1.0, 2.0].\nResults: results/runs\nPage: ")
    code, out, err = avare_command("reproduce", "toy", "synthetic", *LITTLE, "--samplers", "Uniform", "--json")
    found = json.loads(out)
    assert code == 0 and found["toy"] == [1.0, 2.0] and [row["sampler"] for row in found["runs"]] == ["Uniform"] * 2
    assert err.index("optima: 1 wanted") < err.index("toy: 2 wanted, 2 stored already")
    folder = tmp_path / "results" / "report"
    numbers = json.loads((folder / "numbers.json").read_text())
    assert numbers["toy"] == [{"sampler": "Own", "value": 1.5}, {"sampler": "Uniform", "value": 1.5}]
    assert (folder / "tables" / "toy.csv").read_text() == "sampler,value\nOwn,1.5\nUniform,1.5\n"
    assert (folder / "figures" / "toy.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "index.html").read_text()
    assert ">Toy</button>" in page and "<h2>How it falls</h2>" in page and "toy: 4 toy runs" in page
    code, _, err = avare_command("reproduce", "toys")
    assert code == 1 and err.startswith("avare: reproduce 'toys': must be one of synthetic, mnist")


def test_diagnose(avare_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = avare_command("diagnose", "synthetic", "--batch-size", "4", "--epochs", "8")
    assert err.splitlines()[-1].startswith("diagnosis: separating noise and distance [")
    assert code == 0 and out.startswith("synthetic: 100 examples, logistic, 11 coefficients\n")
    assert "Smoothness, largest over mean: " in out
    monkeypatch.setattr(diagnosis, "_MOST_NUMBERS", 64_000)
    code, out, _ = avare_command("diagnose", "digits", "--epochs", "1", "--json", "--raw")
    found = json.loads(out)
    assert code == 0 and (found["n"], found["rows"], found["dim"]) == (1797, 1000, 640)
    assert found["verdict"] in ("yes", "a little", "no", "inconclusive")
    assert found["words"].lower().startswith(found["verdict"]) and "limit" in found["words"]
    assert found["runs"] == 4 and 0.0 <= found["noise_share"][0] <= found["noise_share"][1] <= 1.0
    known = found["factor"] is not None and found["step_ratio"] is not None
    assert not known or found["factor_in_seconds"] in (1.0, pytest.approx(found["factor"] / found["step_ratio"]))
    assert "--runs" in avare_command("diagnose", "synthetic", "--runs", "2")[2]


THAN = "epochs than Uniform for the loss that Uniform has after 20. Wall-clock time:"


@pytest.mark.parametrize(
    ("factor", "ratio", "verdict", "words"),
    [
        (1.05, 1.4, "no", "No: expect no difference after 20 epochs. Wall-clock time: roughly 1.3× slower; a step"),
        (0.5, 1.0, "no", f"No: expect Calibrated to need roughly 2.0× more {THAN} roughly 2.0× slower; a step"),
        (
            1.5,
            1.5,
            "a little",
            f"A little in epochs, but not in wall-clock time: expect Calibrated to need roughly 1.5× fewer {THAN} no",
        ),
        (4.0, 1.6, "yes", f"Yes: expect Calibrated to need roughly 4.0× fewer {THAN} roughly 2.5× faster; a step"),
        (4.0, math.nan, "yes", f"Yes: expect Calibrated to need roughly 4.0× fewer {THAN} inconclusive, the times"),
        (math.nan, 1.4, "inconclusive", "Inconclusive: 6 pilot runs of each sampler differ too much; try --runs 24."),
    ],
)
def test_the_words_of_a_diagnosis(factor: float, ratio: float, verdict: str, words: str) -> None:
    shown = (3.0, 2.0, 20, 9.0, 1.0, factor, "", 6, (0.72, 1.0), 1.0, ratio)
    found = diagnosis.Diagnosis("mine", "softmax", 10, 10, 4, *shown)
    assert found.verdict == verdict and found.words.startswith(words)
    assert "Noise limits Uniform: at its end, noise is 70 to 100 %" in found.words and found.words.endswith("by 3.00.")
    assert found.as_dict()["verdict"] == verdict and (found.as_dict()["step_ratio"] is None) == math.isnan(ratio)
    assert (found.as_dict()["factor"] is None) == (verdict == "inconclusive")
    flat = replace(found, power=0.01)  # where the objective hardly changes, nor do seconds matter
    if verdict == "no" and factor > 0.8:
        assert "Wall-clock time: no difference; a step with Calibrated takes roughly 1.4 times as long." in flat.words
    else:
        assert flat.words == found.words
    doubtful = replace(found, doubt="The optimum was not found.").words
    assert doubtful.endswith("The optimum was not found.")
    if verdict == "inconclusive":
        assert " Wall-clock time: a step with Calibrated takes roughly 1.4 times as long. " in found.words
        assert doubtful.startswith("Inconclusive: the optimum is not known well enough. Use a larger --l2")


def test_a_diagnosis_where_there_is_nothing_to_learn() -> None:
    from avare.experiments.data import Data

    found = diagnosis.diagnose(Data("flat", np.ones((4, 1)), np.zeros(4), ""), "least_squares", batch_size=1, epochs=1)
    assert found.gain_at_optimum == 1.0 and found.verdict == "no"


def test_datasets(avare_command: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _, _ = mnist()
    enter(monkeypatch, "mnist", files, mirrors=("http://127.0.0.1:9/",))
    code, out, _ = avare_command("datasets", "list")
    assert code == 0 and "│ digits    │ built in" in out and "│ mnist     │ 0 of 4 files here" in out
    write(tmp_path / "data", files)
    code, out, _ = avare_command("datasets", "list", "--data", "data", "--json")
    assert {"name": "mnist", "state": "here"} in json.loads(out)
    code, out, _ = avare_command("datasets", "where", "mnist")
    assert code == 0 and "train-images-idx3-ubyte: not here; `avare datasets fetch` downloads it" in out
    code, out, _ = avare_command("datasets", "fetch", "mnist", "--data", "data", "--json")
    assert code == 0 and json.loads(out)["train-labels-idx1-ubyte"] == "data/train-labels-idx1-ubyte"
    assert avare_command("datasets", "fetch", "digits")[1] == "It has no files: it is built in.\n"
    code, _, err = avare_command("datasets", "fetch", "mnist")
    assert code == 1 and err.count("\n") == 1 and "--data" in err and "AVARE_DATA" in err  # what to do, in one line
    code, _, err = avare_command("datasets", "where", "mnist", "--data", "nowhere")
    assert (code, err) == (1, "avare: folder (--data) = 'nowhere': there is no such folder\n")
    write(tmp_path / "data", {"train-images-idx3-ubyte": b"other"})
    code, _, err = avare_command("datasets", "fetch", "mnist", "--data", "data")
    assert code == 1 and "different one; remove it to download the official one (in Python, verify=False" in err
    code, _, err = avare_command("datasets", "where", "imagenet")
    assert code == 1 and "name = 'imagenet': must be one of cifar10" in err


def test_report(avare_command: Any, report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Store("results/runs").make()
    assert avare_command("report", "results")[:2] == (0, "Page: results/report/index.html\n")
    assert avare_command("report", "results/runs", "--out", "there")[:2] == (0, "Page: there/index.html\n")
    assert json.loads(avare_command("report", "results", "--json")[1]) == {"page": "results/report/index.html"}
    assert report[1] == (Path("results/runs"), Path("there"))
    Path("results/runs/bad.json").touch()
    code, out, err = avare_command("report", "results")
    assert (code, out) == (0, "Page: results/report/index.html\n")
    assert err == "avare: bad.json: is bad\n"
    assert avare_command("report", "nowhere") == (1, "", "avare: nowhere: there is no such folder\n")
    Path("file").touch()
    Path("link").symlink_to("gone")
    assert avare_command("report", "file") == (1, "", "avare: file is not a folder\n")
    assert avare_command("report", "link") == (1, "", "avare: link: there is no such folder\n")


def test_a_report_is_written_beside_the_store_from_anywhere(
    avare_command: Any, report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store("results/runs/deeper").make()
    for here, store, page in (
        ("results/runs", ".", "../report/index.html"),
        ("results/runs/deeper", "..", "../../report/index.html"),
        ("results", ".", "report/index.html"),
        ("results", "runs", "report/index.html"),
        ("results", str(tmp_path / "results" / "runs"), f"{tmp_path}/results/report/index.html"),
    ):
        monkeypatch.chdir(tmp_path / here)
        assert avare_command("report", store)[:2] == (0, f"Page: {page}\n")
        assert report[-1][1].resolve() == tmp_path / "results" / "report"


def test_help_and_version(avare_command: Any) -> None:
    assert avare_command("--version") == (0, f"{avare.__version__}\n", "")
    for arguments in ((), ("--help",)):
        code, out, _ = avare_command(*arguments)
        assert code == 0 and all(name in out for name in ("reproduce", "compare", "diagnose", "report", "datasets"))
    for command in ("reproduce", "compare", "diagnose", "report"):
        assert avare_command(command, "--help")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["reproduce", "imagenet"], 1, "reproduce 'imagenet': must be one of synthetic, mnist"),
        (["reproduce", "--jobs", "0"], 2, "--jobs"),
        (["reproduce", "--steps", "up"], 2, "--steps"),
        (["reproduce", "synthetic", "--samplers", "Best"], 1, "--samplers Best: must be some of Avare"),
        (["reproduce", "synthetic", "--samplers", ","], 1, "--samplers: there is no name"),
        (["compare"], 2, "DATA"),
        (["compare", "nothing"], 1, "nothing: neither a file nor one of cifar10, digits"),
        (["compare", "no/thing.csv", "--target", "y"], 1, "no/thing.csv: there is no such file"),
        (["compare", "digits", "--loss", "hinge"], 1, "--loss hinge: must be auto or one of huber"),
        (["compare", "digits", "--target", "y"], 1, "target = 'y': digits is a named dataset"),
        (["compare", "digits", "--l2", "-1"], 2, "--l2"),
        (["compare", "digits", "--no-replacement", "--batch-size", "5000"], 1, "batch_size = 5000"),
        (["compare", "digits", "--out", "file"], 1, "file/runs: cannot be used as a folder: Not a directory"),
        (["diagnose", "nothing"], 1, "nothing: neither a file"),
        (["dataset"], 2, "dataset"),
    ],
)
def test_errors_are_one_line(avare_command: Any, tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    (tmp_path / "file").touch()
    found, out, err = avare_command(*arguments)
    assert found == code and out == "" and message in err
    assert err.startswith("avare: ") and err.count("\n") == 1


def test_unexpected_errors_and_debug(avare_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("avare.cli.application.compare_samplers", fail)
    code, _, err = avare_command("compare", "digits")
    assert code == 1 and err == "avare: ZeroDivisionError: division by zero (--debug shows where)\n"
    with pytest.raises(ZeroDivisionError):
        main(["compare", "digits", "--debug"])


def test_interrupts_and_damage_are_mentioned(avare_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    avare_command("compare", "digits", *LITTLE, "--samplers", "Uniform")
    place = next(Path("results/runs").glob("*.json"))
    place.write_text("{")
    code, _, err = avare_command("compare", "digits", *LITTLE, "--samplers", "Uniform")
    assert code == 0 and re.search(
        f"avare: {place.name}.damaged-[0-9a-f]+: was damaged, is renamed, and was run again\n", err
    )

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    place.write_text("{")
    with monkeypatch.context() as patch:
        patch.setattr("avare.experiments.runner.perform", interrupt)
        code, _, err = avare_command("compare", "digits", *LITTLE, "--samplers", "Uniform")
    words = "was damaged, is renamed, and will be run again"
    assert code == 130 and re.search(f"avare: {place.name}.damaged-[0-9a-f]+: {words}\n", err)
    assert err.endswith("avare: interrupted; 2 results are stored, and the same command resumes\n")
    avare_command("compare", "digits", *LITTLE, "--samplers", "Uniform")
    monkeypatch.setattr("avare.cli.application.compare_samplers", interrupt)
    code, _, err = avare_command("compare", "digits")
    assert code == 130
    assert err == "avare: interrupted; 3 results are stored, and the same command resumes\n"


def test_a_missing_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "avare.cli.application")
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.setattr(sys, "argv", ["avare", "--version"])
    assert main() == 1
    assert capsys.readouterr().err == "avare: the command line needs typer: pip install 'avare[experiments]'\n"


# --- displays ------------------------------------------------------------------------------


def finished(spec: Any, seconds: float) -> dict[str, Any]:
    return {"spec": spec, "key": key_of(spec), "seconds": {"steps": seconds, "evaluation": 0.0}}


def runs_of(data: Data, seeds: int, epochs: int, samplers: tuple[str, ...]) -> list[Task]:
    return descents(data, 1.0, Request(runs=seeds, epochs=epochs, rules=("constant",), samplers=samplers))


def regret_of(data: Data, method: str, steps: int) -> Task:
    return Task({**common_spec("theory", data, "logistic", 1.0), "method": method, "seed": 0, "length": steps}, data)


@pytest.mark.parametrize("terminal", [False, True])
def test_displays(terminal: bool) -> None:
    data, _ = obtain("synthetic")
    tasks = runs_of(data, 2, 3, ("Uniform", "Avare"))
    stream = io.StringIO()
    shown = Display(Console(file=stream, force_terminal=terminal, width=150), 2)
    shown.waiting(tasks)  # before anything, nothing happens
    shown.end()
    shown.begin("runs", tasks, [finished(tasks[0].spec, 101.0)])
    assert shown.time_left() == "roughly 3 min left"  # 3 runs of 101 s, two at a time
    shown.started(tasks[1])
    shown.started(tasks[2])
    shown.finished(tasks[1], finished(tasks[1].spec, 7.0))
    shown.finished(tasks[3], finished(tasks[3].spec, 7.0), here=False)
    shown.waiting(tasks[2:3])
    shown.waiting(tasks[2:3])
    shown.finished(tasks[2], finished(tasks[2].spec, 9.0))
    shown.end()
    text = stream.getvalue()
    if not terminal:
        assert text.splitlines() == [
            "runs: 4 wanted, 1 stored already",
            "[2/4] reproduce, synthetic, logistic, constant, Avare, seed 0: 7.0 s; roughly 2 min left",  # of 101 s
            "[3/4] reproduce, synthetic, logistic, constant, Avare, seed 1: by another process; roughly 2 min left",
            "runs: waiting for 1 that another process is running",
            "[4/4] reproduce, synthetic, logistic, constant, Uniform, seed 1: 9.0 s",
        ]
    else:
        assert "4/4" in text and "reproduce, synthetic, logistic, constant, Uniform, seed 1" in text


def test_estimates_come_from_the_most_similar_runs() -> None:
    data, _ = obtain("synthetic")
    first, second = runs_of(data, 1, 3, ("Mabs", "Avare"))
    estimate = Estimate(jobs=2)
    assert math.isnan(estimate.of(first)) and math.isnan(estimate.left({"a": first}, {}))
    estimate.learn(first, finished(first.spec, 10.0))
    assert estimate.of(second) == 10.0
    estimate.learn(second, finished(second.spec, 2.0))
    assert (estimate.of(first), estimate.of(second)) == (10.0, 2.0)
    assert estimate.left({"a": first, "b": second}, {"a": 4.0}) == 6.0  # no two jobs share the first
    assert estimate.left({"a": first, "b": first, "c": second}, {"a": 4.0}) == 10.0
    assert estimate.left({"a": first, "b": first, "c": second}, {}) == 11.0
    assert estimate.left({"b": second}, {"b": 99.0}) == estimate.left({}, {}) == 0.0
    describe = registry.get("paper").describe
    assert describe(first.spec) == "reproduce, synthetic, logistic, constant, Mabs, seed 0"
    assert describe(paper_optimum(data).spec) == "table, synthetic, logistic"


def sized(name: str, n: int, width: int, classes: int = 2, *, sparse: bool = False) -> Data:
    X = np.ones((n, width))
    return Data(name, csr_array(np.eye(n, width)) if sparse else X, np.arange(n) % classes, name)


def test_new_kinds_of_runs_are_estimated_by_their_work() -> None:
    """The datasets come one after another, and theory in the end: the time left is known after the first run."""
    large, small = sized("cifar10", 2000, 200, 10), sized("mnist", 1000, 100, 10)
    tasks = [task for data in (large, small) for task in runs_of(data, 1, 20, ("Uniform", "Avare"))]
    tasks += [regret_of(sized("synthetic", 100, 10), method, 4000) for method in ("sgd", "sgld")]
    shown = Display(Console(file=io.StringIO()), 1)
    shown.begin("runs", tasks, [])
    assert shown.time_left() == ""  # nothing is finished
    shown.finished(tasks[0], finished(tasks[0].spec, 120.0))
    # By examples times coefficients + 1000: 20 · 2000 · 3000 take 120 s, so that 20 · 1000 · 2000 take 40 s, and
    # 4000 · 100 · 1010 take 404 s.
    assert shown.time_left() == f"roughly {duration(120 + 2 * 40 + 2 * 404)} left"
    estimate = Estimate(1)
    estimate.learn(tasks[0], finished(tasks[0].spec, 120.0))
    estimate.learn(tasks[1], finished(tasks[1].spec, 240.0))
    assert [estimate.of(task) for task in tasks[2:]] == pytest.approx([40.0, 80.0, 606.0, 606.0])  # by sampler, if any
    estimate.learn(tasks[-1], finished(tasks[-1].spec, 7.0))
    assert [estimate.of(task) for task in tasks[4:]] == [7.0, 7.0]
    thin = sized("ijcnn1", 10, 500, sparse=True)  # one number a row, and one output
    task = regret_of(thin, "sgd", 100)
    assert estimate.of(task) == pytest.approx(7.0 * (100 * 10 * 1001) / (4000 * 100 * 1010))


def test_the_same_setting_comes_before_the_same_sampler() -> None:
    data = sized("mnist", 1000, 100, 10)
    two, four = (runs_of(data, 2, epochs, ("Uniform", "Avare")) for epochs in (2, 4))
    estimate = Estimate(1)
    estimate.learn(two[0], finished(two[0].spec, 3.0))
    assert [estimate.of(task) for task in (*two, four[0])] == pytest.approx([3.0, 3.0, 3.0, 3.0, 6.0])
    estimate.learn(four[0], finished(four[0].spec, 18.0))
    name = two[0].spec["sampler"]
    for task in two + four:  # 21 s for six epochs; another seed takes as long as the first
        known = {2: 3.0, 4: 18.0} if task.spec["sampler"] == name else {2: 7.0, 4: 14.0}
        assert estimate.of(task) == pytest.approx(known[task.spec["epochs"]])


def test_on_a_terminal_the_time_left_goes_down_while_a_run_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [0.0]
    monkeypatch.setattr("avare.cli.display.time", types.SimpleNamespace(monotonic=lambda: moments[-1]))
    data, _ = obtain("synthetic")
    tasks = runs_of(data, 2, 3, ("Uniform",))
    stream = io.StringIO()
    shown = Display(Console(file=stream, force_terminal=True, width=150), 1)
    shown.begin("runs", tasks, [finished(tasks[0].spec, 80.0)])
    try:
        shown.started(tasks[1])
        for now, text in ((0.0, "roughly 80 s left"), (30.0, "roughly 50 s left"), (95.0, "roughly 0 s left")):
            moments.append(now)
            deadline = time.monotonic() + 60.0
            while text not in stream.getvalue():
                assert time.monotonic() < deadline, stream.getvalue()
                time.sleep(0.02)
    finally:
        shown.end()
    assert "left" not in stream.getvalue().splitlines()[-1]


def test_what_was_done_to_the_columns_is_printed(avare_command: Any, tmp_path: Path) -> None:
    rows = "".join(
        f"{k % 7};{'mf'[k % 2]};{k};{'' if k == 3 else k % 5};{['no', 'yes'][k % 3 > 0]}\n" for k in range(40)
    )
    (tmp_path / "x[red]y$.csv").write_text(f"age;sex;id;score;ill\n{rows}")
    words = ["--target", "ill", "--drop", "id", "--categories", "age", "--batch-size", "4"]
    code, out, err = avare_command("compare", "x[red]y$.csv", *words, *LITTLE)
    assert code == 0, err
    assert out.startswith(
        "Columns of x[red]y$.csv:\n"
        "  age: 7 categories: '0', '1', '2', '3', '4', '5', '6'\n"
        "  sex: text, 1 for 'm', 0 for 'f'\n"
        "  id: left out, as chosen\n"
        "  score: 1 missing, filled with the mean; 1 in the new column 'score is missing'\n"
        "  ill: the target, 2 classes: 'no' = 0, 'yes' = 1\n"
    )
    assert "│ x[red]y$ │" in out and "Loss: logistic." in out
    code, out, _ = avare_command("diagnose", "x[red]y$.csv", *words, "--epochs", "1", "--json")
    found = json.loads(out)
    assert code == 0 and len(found["columns"]) == 5 and found["n"] == 40
    code, _, err = avare_command("diagnose", "x[red]y$.csv")
    assert code == 1 and "which column is the target? Name it by --target" in err and err.count("\n") == 1
    code, _, err = avare_command("diagnose", ".")
    assert code == 1 and err == "avare: . is a folder: pass a file\n"
    words.remove("--drop")
    code, out, _ = avare_command("diagnose", "x[red]y$.csv", *words[:2], "--epochs", "1")
    assert "\n  id: numbers, as they are; if they only number the rows, --drop id leaves them out\n" in out
