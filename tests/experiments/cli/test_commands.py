"""Every command: what it prints for people and for machines, and how it fails."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import avare
from avare.experiments import (
    Request,
    Store,
    Task,
    base,
    diagnosis,
)
from avare.experiments import paper as paper_plan
from avare.experiments.cli import main
from avare.experiments.cli.output import Display
from avare.experiments.data import Data, obtain
from avare.experiments.datasets import DatasetError
from avare.experiments.paper import descents, paper_optimum
from avare.experiments.report import write as write_report
from avare.experiments.store import key_of
from avare.experiments.verdict import ComparisonVerdict
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

    monkeypatch.setattr("avare.experiments.cli.application.write_report", write_page)
    return asked


def test_compare(avare_command: Any, report: Any) -> None:
    code, out, err = avare_command("compare", "digits", *LITTLE, "--samplers", "uniform,Avare")
    assert code == 0
    assert "\nLoss: softmax. Columns: standardised, with an intercept. Step sizes: found for each" in out
    words = "inconclusive (1 run of 1 epoch); try --epochs 20"
    assert f"\nVerdict: Avare and Uniform, in epochs: {words}. Wall-clock time: {words}.\n" in out
    assert out.endswith("Results: results/runs\nPage: results/report/index.html\n")
    assert "runs: 2 wanted, 0 stored already" in err and "compare, digits, softmax, auto, Avare, seed 0:" in err
    assert report == [(Path("results/runs"), Path("results/report"))]
    code, out, err = avare_command("compare", "digits", *LITTLE, "--samplers", "Uniform,Avare", "--json")
    found = json.loads(out)
    assert code == 0 and "2 wanted, 2 stored already" in err
    avare, uniform = found["runs"]
    assert avare["loss"] == "softmax" and (avare["sampler"], uniform["sampler"]) == ("Avare", "Uniform")
    assert found["facts"][0]["n"] == 1797 and found["page"] == "results/report/index.html"
    assert uniform["verdict"] == {} and set(avare["verdict"]) == {"epochs", "seconds"}
    assert avare["verdict"]["epochs"]["kind"] == "inconclusive"


def test_compare_columns_as_they_are(avare_command: Any, report: Any) -> None:
    code, out, _ = avare_command("compare", "digits", *LITTLE, "--samplers", "Uniform", "--raw")
    assert code == 0 and "Columns: as given." in out and "There is nothing to compare: run Uniform and another" in out
    assert "What to do" not in out  # which a diagnosis says


def test_compare_with_a_test_and_the_paper_steps(avare_command: Any, report: Any, tmp_path: Path) -> None:
    words = ["--samplers", "Uniform", "--raw", "--test", "0.2", "--steps", "paper"]
    code, out, _ = avare_command("compare", "digits", *LITTLE, *words)
    assert code == 0 and "test error" in out and "│ Digits  │ constant   │ Uniform │" in out and "1\u202f438" in out
    code, out, _ = avare_command("compare", "digits", *LITTLE, *words, "--json")
    rows = json.loads(out)["runs"]
    assert [row["steps"] for row in rows] == ["decreasing", "constant"]
    assert all(0.02 < row["test_error"] < 0.5 for row in rows)  # chance is 0.9
    code, _, err = avare_command("compare", "digits", *LITTLE, "--steps", "short")
    assert code == 2 and "--steps" in err


@pytest.mark.usefixtures("no_pictures")
def test_the_tables_of_the_page_have_the_test_error(tmp_path: Path) -> None:
    words = ["--samplers", "Uniform", "--test", "0.2", "--out", str(tmp_path)]
    assert main(["compare", "digits", *LITTLE, *words]) == 0
    assert "| test error |" in (tmp_path / "report" / "tables" / "compare.md").read_text()


def test_datasets(avare_command: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _, _ = mnist()
    enter(monkeypatch, "mnist", files, mirrors=("http://127.0.0.1:9/",))
    code, out, _ = avare_command("datasets", "list")
    assert code == 0 and "│ digits    │ built in" in out and "│ mnist     │ 0 of 4 files" in out
    write(tmp_path / "data", files)
    assert avare_command("datasets")[:2] == (code, out)
    code, out, _ = avare_command("datasets", "list", "--data", "data", "--json")
    assert {"name": "mnist", "here": "4 of 4 files"} in json.loads(out)
    code, out, _ = avare_command("datasets", "where", "mnist")
    assert code == 0 and "train-images-idx3-ubyte: not here; `avare datasets fetch` downloads it" in out
    code, out, _ = avare_command("datasets", "fetch", "mnist", "--data", "data", "--json")
    assert code == 0 and json.loads(out)["train-labels-idx1-ubyte"] == "data/train-labels-idx1-ubyte"
    assert avare_command("datasets", "fetch", "digits")[1] == "It has no files: it is built in.\n"
    code, _, err = avare_command("datasets", "fetch", "mnist")
    assert code == 1 and err.count("\n") == 1 and "--data" in err and "AVARE_DATA" in err  # what to do, in one line
    code, _, err = avare_command("datasets", "where", "imagenet")
    assert code == 1 and "name = 'imagenet': must be one of cifar10" in err


def test_compare_always_has_a_verdict(avare_command: Any, report: Any) -> None:
    time = (
        r"(no significant difference over 2 runs|[\d.]+–[\d.]+× (faster|slower)|inconclusive \(2 runs\); try --runs 8)"
    )
    epochs = (
        rf"(needs [\d.]+–[\d.]+× (fewer|more) epochs than Uniform for the same loss|and Uniform, in epochs: {time})"
    )
    words = ("--runs", "2", "--jobs", "1", "--epochs", "5", "--batch-size", "4")
    code, out, _ = avare_command("compare", "synthetic", *words)
    assert code == 0
    assert len(re.findall(rf"^Verdict: Calibrated {epochs}\. Wall-clock time: {time}\.$", out, re.M)) == 1


def test_an_optimum_that_was_not_found_is_mentioned(avare_command: Any, report: Any, monkeypatch: Any) -> None:
    for command in (["compare", "synthetic", "--batch-size", "4"], ["reproduce", "synthetic"]):
        words = [*command, *LITTLE, "--samplers", "Uniform"]
        code, out, _ = avare_command(*words, "--out", "sound")
        assert code == 0 and "not found" not in out
        with monkeypatch.context() as patch:
            patch.setattr(avare.problems.Logistic, "minimize", lambda problem, tolerance: np.full(problem.dim, 0.01))
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
    code, out, _ = avare_command("compare", "two.csv", "--target", "y", "--loss", "huber", *LITTLE, "--batch-size", "4")
    assert code == 0 and out.count("│ two     │") == 2 + 1
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
        assert f"\nmany: 101 examples; {loss}, " in out


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
    assert [row["sampler"] for row in found["runs"]] == ["Srg"]
    assert [each["dataset"].lower() for each in found["facts"]] == ["synthetic"]
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


def test_diagnose(avare_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = avare_command("diagnose", "synthetic", "--batch-size", "4", "--epochs", "8", "--runs", "2")
    lines = err.splitlines()
    assert lines[0] == "diagnosis: run 1 of 2, Uniform"
    assert lines[-2:] == ["diagnosis: the optimum", "diagnosis: done"]
    about = "synthetic: 100 examples; logistic, 11 coefficients; 2 runs of 8 epochs with each sampler\n"
    assert code == 0 and out.startswith(about)
    assert "What to do: fit this linear model with AvareClassifier of avare.sklearn" in out
    monkeypatch.setattr(diagnosis, "_MOST_NUMBERS", 64_000)
    monkeypatch.setattr(diagnosis, "_FEW_NUMBERS", 64_000)
    code, out, _ = avare_command("diagnose", "digits", "--epochs", "1", "--json", "--raw")
    found = json.loads(out)
    assert code == 0 and (found["n"], found["rows"], found["dim"]) == (1797, 1000, 640)
    assert found["verdict"] in ("yes", "a little", "no", "inconclusive") and found["fit_seconds"] is None
    assert found["words"].lower().startswith(found["verdict"]) and "limit" in found["words"]
    assert found["in_epochs"]["runs"] == 20 and found["gain"] > 1.0 and found["noise"] >= 0.0 <= found["distance"]
    assert "--runs" in avare_command("diagnose", "synthetic", "--runs", "1")[2]


def judged(kind: str, factor: float) -> ComparisonVerdict:
    return ComparisonVerdict(kind, factor, 0.9 * factor, 1.1 * factor, 5)


@pytest.mark.parametrize(
    ("kind", "factor", "verdict", "words"),
    [
        ("no difference", 1.0, "no", "No: Calibrated and Uniform, in epochs: no significant difference over 5 runs. W"),
        ("slower", 0.5, "no", "No: Calibrated needs 1.8–2.2× more epochs than Uniform for the same loss. Wall-clock"),
        ("faster", 1.5, "a little", "A little: Calibrated needs 1.4–1.7× fewer epochs than Uniform for the same loss."),
        ("faster", 4.0, "yes", "Yes: Calibrated needs 3.6–4.4× fewer epochs than Uniform for the same loss. Wall-cl"),
        ("inconclusive", 1.2, "inconclusive", "Inconclusive: Calibrated and Uniform, in epochs: inconclusive (5 runs)"),
    ],
)
def test_the_words_of_a_diagnosis(kind: str, factor: float, verdict: str, words: str) -> None:
    about = ("mine", "softmax", 10, 10, 4, 20, 3.04, 9.0, 1.0, judged(kind, factor), judged("faster", 2.0))
    found = diagnosis.Diagnosis(*about, 0.12)
    assert found.verdict == verdict and found.words.startswith(words)
    assert "Wall-clock time: 1.8–2.2× faster. Where Uniform ends, the best distribution divides the " in found.words
    assert "gradient by 3.0. This lowers the noise, and helps only if noise limits the runs. Noise " in found.words
    assert "Noise limits Uniform: at its end, noise is roughly 90 % of its suboptimality." in found.words
    assert found.words.endswith("with AvareClassifier of avare.sklearn, which needs no step size: 0.1 s.")
    assert replace(found, fit_seconds=None).words.endswith("which needs no step size.")
    assert replace(found, fit_seconds=1e-3).words.endswith(": less than 0.1 s.")
    assert found.as_dict()["verdict"] == verdict and found.as_dict()["in_seconds"]["kind"] == "faster"


@pytest.mark.parametrize(
    ("kind", "factor", "verdict"),
    [
        ("slower", 0.7, "no"),
        ("no difference", 1.0, "no"),
        ("inconclusive", 1.2, "inconclusive"),
        ("faster", 1.2, "a little"),
    ],
)
def test_a_diagnosis_weighs_seconds_too(kind: str, factor: float, verdict: str) -> None:
    about = ("mine", "softmax", 10, 10, 4, 20, 3.04, 9.0, 1.0, judged("faster", 4.0), judged(kind, factor), 0.12)
    found = diagnosis.Diagnosis(*about)
    assert found.verdict == verdict and found.words.lower().startswith(f"{verdict}: calibrated needs 3.6–4.4× fewer")
    assert ("do not pay for its slower steps here" in found.words) == (verdict == "no")


def test_a_diagnosis_where_there_is_nothing_to_learn() -> None:
    found = diagnosis.diagnose(Data("flat", np.ones((4, 1)), np.zeros(4)), "least_squares", batch_size=1, epochs=1)
    assert found.gain == 1.0 and found.verdict != "yes"


def test_files_of_a_named_dataset(
    avare_command: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _, _ = mnist()
    enter(monkeypatch, "mnist", files, mirrors=("http://127.0.0.1:9/",))
    code, _, err = avare_command("diagnose", "mnist")
    assert code == 1 and err.count("\n") == 1 and "--data" in err and "AVARE_DATA" in err  # what to do, in one line
    code, _, err = avare_command("diagnose", "mnist", "--data", "nowhere")
    assert (code, err) == (1, "avare: folder (--data) = 'nowhere': there is no such folder\n")
    write(tmp_path / "data", files | {"train-images-idx3-ubyte": b"other"})
    code, _, err = avare_command("diagnose", "mnist", "--data", "data")
    assert code == 1 and "different one; remove it to download the official one (in Python, verify=False" in err


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
        assert code == 0 and all(name in out for name in ("reproduce", "compare", "diagnose", "report"))
    for command in ("reproduce", "compare", "diagnose", "report"):
        assert avare_command(command, "--help")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["reproduce", "imagenet"], 1, "reproduce = 'imagenet': must be one of synthetic, mnist"),
        (["reproduce", "--jobs", "0"], 2, "--jobs"),
        (["reproduce", "--steps", "up"], 2, "--steps"),
        (["reproduce", "synthetic", "--samplers", "Best"], 1, "--samplers = 'Best': must be one of Avare"),
        (["reproduce", "synthetic", "--samplers", ","], 1, "--samplers = '': must be one of Avare"),
        (["compare"], 2, "DATA"),
        (["compare", "nothing"], 1, "nothing: neither a file nor one of cifar10, digits"),
        (["compare", "no/thing.csv", "--target", "y"], 1, "no/thing.csv: there is no such file"),
        (["compare", "digits", "--loss", "hinge"], 1, "loss = 'hinge': must be one of huber"),
        (["compare", "digits", "--target", "y"], 1, "target = 'y': digits is a named dataset"),
        (["compare", "digits", "--l2", "-1"], 2, "--l2"),
        (
            ["compare", "digits", "--batch-size", "100000000"],
            1,
            "batch_size = 100000000: must be at most 1797, the num",
        ),
        (["diagnose", "digits", "--batch-size", "1798"], 1, "batch_size = 1798: must be at most 1797, the number of"),
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


@pytest.mark.parametrize("command", ["compare", "diagnose"])
def test_numbers_whose_squares_overflow_are_refused_in_one_line(
    avare_command: Any, tmp_path: Path, command: str
) -> None:
    """NumPy's warnings of an overflow do not reach the user."""
    (tmp_path / "huge.csv").write_text("a,y\n" + "".join(f"{k % 3}e300,{k % 2}\n" for k in range(12)))
    code, _, err = avare_command(command, "huge.csv", "--target", "y", "--batch-size", "4", "--epochs", "1", "--raw")
    assert code == 1 and err.startswith("avare: ") and err.count("\n") == 1
    assert "X[1, 0] = 1e+300: must be within" in err and "RuntimeWarning" not in err


def test_unexpected_errors_and_debug(avare_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("avare.experiments.cli.application.compare_samplers", fail)
    code, _, err = avare_command("compare", "digits")
    assert code == 1 and err == "avare: ZeroDivisionError: division by zero (--debug shows where)\n"
    with pytest.raises(ZeroDivisionError):
        main(["compare", "digits", "--debug"])


def test_interrupts_and_damage_are_mentioned(avare_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    command = ("compare", "digits", *LITTLE, "--samplers", "Uniform")
    avare_command(*command)
    place = next(Path("results/runs").glob("*.json"))
    damaged = f"avare: {place.name}.damaged-[0-9a-f]+: was damaged, is renamed, and its run is done again\n"
    place.write_text("{")
    code, _, err = avare_command(*command)
    assert code == 0 and re.search(damaged, err)
    place.write_text("{")
    monkeypatch.setattr("avare.experiments.runner.perform", interrupt)
    code, _, err = avare_command(*command)
    assert code == 130 and re.search(damaged, err)
    assert err.endswith("avare: interrupted; 1 results are stored, and the same command resumes\n")


def test_a_missing_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "avare.experiments.cli.application")
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.setattr(sys, "argv", ["avare", "--version"])
    assert main() == 1
    assert capsys.readouterr().err == "avare: the command line needs typer: pip install 'avare[experiments]'\n"


# --- displays ------------------------------------------------------------------------------


def finished(spec: Any, seconds: float) -> dict[str, Any]:
    return {"spec": spec, "key": key_of(spec), "seconds": {"steps": seconds, "evaluation": 0.0}}


def runs_of(data: Data, seeds: int, epochs: int, samplers: tuple[str, ...]) -> list[Task]:
    return descents(data, 1.0, Request(runs=seeds, epochs=epochs, rules=("constant",), samplers=samplers))


@pytest.mark.parametrize("terminal", [False, True])
def test_displays(terminal: bool) -> None:
    data, _ = obtain("synthetic")
    tasks = runs_of(data, 2, 3, ("Uniform", "Avare"))
    stream = io.StringIO()
    shown = Display(Console(file=stream, force_terminal=terminal, width=150))
    shown.begin("runs", tasks, [finished(tasks[0].spec, 101.0)])
    shown.finished(tasks[1], finished(tasks[1].spec, 7.0))
    shown.finished(tasks[3], finished(tasks[3].spec, 8.0))
    shown.finished(tasks[2], finished(tasks[2].spec, 9.0))
    shown.end()
    text = stream.getvalue()
    if not terminal:
        assert text.splitlines() == [
            "runs: 4 wanted, 1 stored already",
            "runs: [2/4] reproduce, synthetic, logistic, constant, Avare, seed 0: 7.0 s",
            "runs: [3/4] reproduce, synthetic, logistic, constant, Avare, seed 1: 8.0 s",
            "runs: [4/4] reproduce, synthetic, logistic, constant, Uniform, seed 1: 9.0 s",
        ]
    else:
        assert "100%" in text and "reproduce, synthetic, logistic, constant, Uniform, seed 1" in text


def test_descriptions_of_runs() -> None:
    data, _ = obtain("synthetic")
    describe = base.get("paper").describe
    (task,) = runs_of(data, 1, 20, ("Avare",))
    assert describe(task.spec) == "reproduce, synthetic, logistic, constant, Avare, seed 0"
    assert describe(paper_optimum(data).spec) == "table, synthetic, logistic"


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
    assert "\n  age, id: numbers, as they are\n" in out


def test_names_that_are_not_plain_text(avare_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file name that is not UTF-8, and a header that would control the terminal."""
    monkeypatch.setattr("avare.experiments.cli.application.write_report", write_report)
    generator, settings = (
        np.random.default_rng(0),
        ("--epochs", "1", "--runs", "1", "--samplers", "Uniform", "--jobs", "1"),
    )
    X = generator.normal(size=(60, 3))
    np.savez(tmp_path / "a.npz", X=X, y=(X[:, 0] > 0).astype(int))
    (tmp_path / "a.npz").rename(tmp_path / "caf\udce9.npz")
    rows = "".join(f"{k % 7},{k % 2}\n" for k in range(60))
    (tmp_path / "b.csv").write_text(f"\x1b]0;title\x07\x1b[31mred,y\n{rows}")
    for source, shown in (("caf\udce9.npz", "caf\\udce9"), ("synthetic", "caf\\udce9"), ("b.csv", r"\x1b[31mred")):
        code, out, err = avare_command("compare", source, *("--target", "y") * (source == "b.csv"), *settings)
        assert code == 0, err
        assert shown in out + (tmp_path / "results" / "report" / "index.html").read_text()
        assert not {"\x1b", "\x07"} & {*out, *err}
    code, out, err = avare_command("compare", "b.csv", "--target", "\x1b[2J")
    assert code == 1 and r"target = '\x1b[2J', must be one of its columns" in err and "\x1b" not in err
