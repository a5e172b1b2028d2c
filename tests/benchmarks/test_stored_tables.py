"""The stored tables and the numbers on the pages: those of the stored files."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def module(name: str) -> Any:
    """A benchmark, if what it imports is installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"benchmarks/{name}.py: {error}")


def kept(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a benchmark writes from its stored numbers."""
    texts: list[str] = []
    script = module(name)
    monkeypatch.setattr(script, "save", lambda name, result, text: texts.append(text))
    script.keep(stored(name))
    return texts[0]


def reported(name: str, function: str = "report") -> Callable[[pytest.MonkeyPatch], str]:
    return lambda monkeypatch: str(getattr(module(name), function)(stored(name)))


WRITTEN: dict[str, Callable[[pytest.MonkeyPatch], str]] = {
    **{
        name: reported(name)
        for name in ("campaign", "first_hour", "frameworks", "gradient_norms", "samplers", "solvers")
    },
    **{name: reported(name) for name in ("linear_shapes", "random_posteriors", "structures", "torch_loader")},
    **{name: reported(name) for name in ("linear_certificates", "linear_choices")},
    "which_loader": reported("which_loader"),
    "steps": lambda monkeypatch: kept("steps", monkeypatch),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_stored_table_has_the_stored_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("|")]

    found = rows(WRITTEN[name](monkeypatch))
    assert found and found == rows((RESULTS / f"{name}.md").read_text())


def test_the_page_on_posteriors_has_the_stored_table() -> None:
    tables = module("random_posteriors").block(stored("random_posteriors"))
    assert tables in (ROOT / "docs" / "sampling.md").read_text()


def quoted(page: str, pattern: str) -> list[float]:
    """The numbers in a sentence of a page, in which each space may be a line break."""
    match = re.search(pattern.replace(" ", r"\s+"), (ROOT / page).read_text())
    assert match is not None, f"{page} does not say: {pattern}"
    return [float(number.replace("−", "-")) for number in match.groups()]


def test_the_pages_have_the_tables_of_the_stored_results() -> None:
    made = module("readme_table")
    for page in made.PAGES:
        assert page.read_text() == made.written(page), "run python benchmarks/readme_table.py"
    which = module("which_loader")
    assert which.PAGE.read_text() == which.written(stored("which_loader")), "run python benchmarks/which_loader.py"


def test_loaders_are_compared_on_several_nets_and_seeds() -> None:
    scripts = module("which_loader").scripts_of(stored("which_loader"))
    assert len(scripts) >= 4 and all(len(script.seeds) >= 5 for script in scripts.values())
    rates = stored("which_loader")["searched"]
    for name, script in scripts.items():  # the best learning rate is inside the grid, and other seeds have chosen it
        grid = sorted({row["rate"] for row in rates if row["script"] == name})
        assert grid[0] < script.rate < grid[-1]
        assert not script.seeds & {row["seed"] for row in rates}


def test_the_readme_quotes_the_fronts() -> None:
    rows = [line.strip("| ").split(" | ") for line in (RESULTS / "nets_fronts.md").read_text().splitlines()]
    measured = {cells[0]: cells[2] for cells in rows if len(cells) == 4}
    helps = [float(measured[f"MLP on IJCNN1: {aim}"]) for aim in ("epochs", "seconds")]
    assert quoted("README.md", r"after ([\d.]+) of their epochs and ([\d.]+) of their seconds") == helps
    assert quoted("README.md", r"and takes ([\d.]+) times as long") == [float(measured["CNN on CIFAR10: all seconds"])]


def test_the_readme_quotes_the_paper_run_again() -> None:
    checked = stored("paper/numbers")["check"]
    errors = {
        row["dataset"]: 10.0 ** row["ours"]
        for row in checked
        if (row["steps"], row["sampler"], row["measure"]) == ("decreasing", "Avare", "relative_error")
    }
    names = ("mnist", "ijcnn1", "cifar10")
    assert quoted("README.md", r"comes within (\d+), (\d+) and (\d+) per cent of the least cost") == [
        float(np.ceil(100.0 * errors[name])) for name in names
    ]


def test_the_page_of_experiments_quotes_what_differs_from_the_paper() -> None:
    numbers, doubts = stored("paper/numbers"), stored("doubts")
    constant = {
        row["measure"]: row
        for row in numbers["check"]
        if (row["dataset"], row["steps"], row["sampler"]) == ("mnist", "constant", "Avare")
    }
    error, regret = constant["relative_error"], constant["regret"]
    page, floor = "docs/experiments.md", doubts["floor"]
    assert quoted(page, r"relative error (−[\d.]+), the paper (−[\d.]+); the regret is ([\d.]+) times") == [
        round(error["ours"], 2),
        error["theirs"],
        round(regret["ours"] / regret["theirs"], 1),
    ]
    assert quoted(page, r"floor is ([\d.]+)/N") == [round(floor["floor"], 3)]
    assert quoted(page, r"gets below (−[\d.]+) there") == [round(floor["least"], 2)]
    gains = {facts["dataset"]: facts["gain_at_optimum"] for facts in numbers["facts"]}
    assert quoted(page, r"gain at the optimum\*\*: ([\d.]+)") == [round(gains["cifar10"], 3)]
    assert quoted(page, r"smaller possible gain \(([\d.]+)") == [round(gains["synthetic"], 2)]


def test_the_page_of_linear_models_has_the_table() -> None:
    result = stored("linear_shapes")
    assert module("linear_shapes").overview(result) in (ROOT / "docs" / "linear.md").read_text()
    assert quoted("docs/linear.md", r"seed (\d+), which was not looked at before") == [result["seed"]]
    assert len(result["shapes"]) >= 120


def test_the_page_of_posteriors_quotes_the_small_net() -> None:
    net = stored("chains")["net"]
    means = {name: np.mean(runs, axis=0) for name, runs in net.items()}
    errors = {name: np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs)) for name, runs in net.items()}
    pattern = r"log-loss is ([\d.]+) ± ([\d.]+) with `Calibrated` and ([\d.]+) ± ([\d.]+) with uniform"
    found = [each[name][0] for name in ("Calibrated", "Uniform") for each in (means, errors)]
    assert quoted("docs/sampling.md", pattern) == [round(each, 3) for each in found]
    assert quoted("docs/sampling.md", r"calibration error ([\d.]+) % with both") == [
        *{round(100.0 * mean[2], 1) for mean in means.values()}
    ]


def test_the_page_of_solvers_quotes_the_steps() -> None:
    found = [each for case in stored("steps")["cases"].values() for each in case["samplers"].values()]
    shares = [each["auto"]["share"] for each in found if each["auto"]["seconds"] >= 0.01]
    median = np.median([each["auto"]["share"] for each in found])
    page = "docs/solvers.md"
    assert quoted(page, r"up to (\d+) times worse") == [round(max(each["auto, 1/t"]["ratio"] for each in found))]
    assert quoted(page, r"in the median (\d+) % of") == [round(100.0 * median)]
    assert quoted(page, r"at most (\d+) % if a run takes ten milliseconds") == [round(100.0 * max(shares))]


def test_the_pages_quote_how_the_cost_of_a_step_grows() -> None:
    steps = stored("structures")["steps"]
    grown = round(steps["100000000"]["Avare"] / steps["10000"]["Avare"], 1)
    for page in ("README.md", "docs/index.md", "docs/buckets.md"):
        assert quoted(page, r"hundred million (?:examples )?takes? \[?([\d.]+) times as long") == [grown], page


def test_the_first_draw_takes_a_few_seconds() -> None:
    assert 1.0 < stored("first_hour")["tasks"]["first draw"]["first"]["processor"] < 8.0
    for page in ("README.md", "docs/start.md"):
        said = r"very first draw (?:or fit )?compiles (?:its )?kernels, which takes a few seconds"
        assert quoted(page, said) == []


def test_the_cost_model_chooses_a_solver_that_is_nearly_the_best() -> None:
    rows = [row["seconds"] for row in stored("linear_choices")["shapes"]]
    assert len(rows) >= 100 and max(row["chosen"] / min(row.values()) for row in rows) <= 1.5


def test_linear_models_of_random_shapes_are_never_far_behind() -> None:
    """The aims of docs/linear.md, but for the worst problem: there is always one."""
    result, linear_shapes = stored("linear_shapes"), module("linear_shapes")
    for target in linear_shapes.TARGETS:
        ratios = linear_shapes.ratios(result, target)
        assert len(ratios) >= 110 and np.median(ratios) <= 0.9 and np.quantile(ratios, 0.9) <= 1.25
        assert np.median(linear_shapes.ratios(result, target, linear_shapes.MANY)) <= 0.5
    assert all(row["left"] <= float(target) for each in result["shapes"] for target, row in each["targets"].items())


def test_no_certificate_was_wrong() -> None:
    problems = stored("linear_certificates")["problems"]
    assert len(problems) == 1000 and not any(map(module("linear_certificates").is_wrong, problems))
