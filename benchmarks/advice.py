"""What `avare diagnose` expects, against what `avare compare` finds, on ten datasets."""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from avare.experiments import Store, compare, diagnose, obtain
from avare.experiments.aggregate import groups_of
from avare.experiments.data import Data, prepared
from avare.experiments.diagnosis import Diagnosis
from avare.experiments.sgd_runs import BASELINE, DEFAULT, problem_of, sampler_of, separate
from avare.experiments.store import Result, Spec
from avare.experiments.verdict import share_of_noise, verdicts_of
from avare.problems import ToleranceWarning
from avare.solvers import sgd
from harness import RESULTS, save, table, where

SAMPLER = DEFAULT
SEEDS = (1_000_003, 1_000_033)  # of the runs that tell noise from distance: not the seeds that are compared


def datasets(folder: str | None) -> Iterator[tuple[str, Data, str, dict[str, Any]]]:
    """Yield name, data, loss and settings: seven generated or bundled ones, and three from the folder."""
    generator = np.random.default_rng(11)

    def labels(outputs: Any) -> Any:
        return (generator.random(len(outputs)) < 1.0 / (1.0 + np.exp(-outputs))).astype(np.int64)

    def given(name: str, X: Any, y: Any, loss: str, **settings: Any) -> tuple[str, Data, str, dict[str, Any]]:
        return name, prepared(Data(name, X, y)), loss, settings

    for name in ("synthetic", "digits"):
        data, loss = obtain(name)
        yield name, prepared(data), loss, {"batch_size": 16}
    X = generator.normal(size=(20_000, 10)) * generator.lognormal(0.0, 1.0, (20_000, 1))
    yield given("heavy-tailed, logistic", X, labels(X @ generator.normal(size=10)), "logistic", batch_size=32)
    X = generator.normal(size=(10_000, 40)) * generator.lognormal(0.0, 0.7, (10_000, 1))
    y = X @ generator.normal(size=40) + generator.normal(size=10_000)
    yield given("heavy-tailed, squares", X, y, "least_squares", batch_size=32)
    X = generator.normal(size=(10_000, 30))
    yield given("even, squares", X, X @ generator.normal(size=30) + generator.normal(size=10_000), "least_squares")
    X = generator.normal(size=(20_000, 20))
    rare = (X @ generator.normal(size=20) + 2.0 * generator.normal(size=20_000) > 11.0).astype(np.int64)
    yield given("rare class", X, rare, "logistic", batch_size=32)
    X = scipy.sparse.random(
        10_000, 200, density=0.03, format="csr", random_state=5, data_rvs=lambda k: generator.lognormal(0, 1, k)
    )
    yield given("sparse", X, labels(X @ generator.normal(size=200)), "logistic", batch_size=32)
    X = generator.normal(size=(5000, 30)) @ np.diag(np.logspace(0, -3, 30)) @ generator.normal(size=(30, 30))
    yield given("correlated columns", X, labels(X @ generator.normal(size=30)), "logistic", batch_size=32)
    if folder is not None:
        for name in ("ijcnn1", "mnist"):
            data, loss = obtain(name, folder=folder)
            yield name, prepared(data), loss, {}


def measure(data: Data, loss: str, runs: int, jobs: int, settings: dict[str, Any]) -> dict[str, Any]:
    """What diagnose expects, and what compare finds."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)
        expected = diagnose(data, loss, **settings)
    middle = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        records = compare(data, loss, Store(folder), samplers=(BASELINE, SAMPLER), runs=runs, jobs=jobs, **settings)
    ended = time.perf_counter()
    results = [Result.of(record) for record in records]
    (judged,) = verdicts_of(groups_of(each for each in results if each.kind == "compare")).values()
    found = judged["epochs"]
    return {
        "expected": expected.as_dict() | factors_of(expected),
        "found": found.as_dict(),
        "seconds": judged["seconds"].as_dict(),
        "limits": limits_of(data, records[1]["spec"], records[0]["facts"]["optimum"]),
        "within": expected.in_epochs.kind == "inconclusive" or 0.5 <= expected.in_epochs.factor / found.factor <= 2.0,
        "took": [middle - began, ended - middle],
    }


def limits_of(data: Data, spec: Spec, optimum: float) -> dict[str, float]:
    """Do two more runs of the baseline, and return what noise and distance add to the optimum."""
    problem = problem_of(spec, data.X, data.y)
    samplers = [sampler_of({**spec, "seed": seed}, problem) for seed in SEEDS]
    ends = [sgd(problem, each, "auto", epochs=spec["epochs"], evaluate="never").x for each in samplers]
    return dict(zip(("noise", "distance"), separate(problem, ends, optimum), strict=True))


def factors_of(expected: Diagnosis) -> dict[str, float | None]:
    """Return the factors in epochs and in seconds; None where diagnose is inconclusive."""
    found = {"factor": expected.in_epochs, "factor_in_seconds": expected.in_seconds}
    return {name: None if each.kind == "inconclusive" else each.factor for name, each in found.items()}


def row_of(name: str, entry: dict[str, Any]) -> list[str]:
    """The row of a dataset."""
    expected, found = entry["expected"], entry["found"]
    advice = "inconclusive" if expected["factor"] is None else f"{expected['factor']:.2f}"
    noise = [f"{100.0 * share_of_noise(limits):.0f} %" for limits in (expected, entry["limits"])]
    gain = expected.get("gain", expected.get("gain_at_optimum"))
    cells = [f"{expected['n']:,}", f"{gain:.2f}", advice, f"{found['factor']:.2f}"]
    cells += [f"{found['low']:.2f} to {found['high']:.2f}", found["words"], "yes" if entry["within"] else "**no**"]
    return [name, *cells, *in_seconds(expected, entry["seconds"]), ", ".join(noise)]


def in_seconds(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The cells about seconds: expected, and found."""
    advice = "inconclusive" if expected["factor_in_seconds"] is None else f"{expected['factor_in_seconds']:.2f}"
    if None in (found["factor"], found["low"], found["high"]):
        return [advice, found["words"]]
    return [advice, f"{found['factor']:.2f} ({found['low']:.2f} to {found['high']:.2f})"]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with ijcnn1 and mnist; without it, these two are left out")
    parser.add_argument("--only", nargs="*", help="names of datasets; what is stored of the others is kept")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"where": where(), "runs": arguments.runs, "datasets": {}}
    if arguments.only and (RESULTS / "advice.json").exists():
        result["datasets"] = json.loads((RESULTS / "advice.json").read_text())["datasets"]
    for name, data, loss, settings in datasets(arguments.data):
        if arguments.only and name not in arguments.only:
            continue
        entry = {**measure(data, loss, arguments.runs, arguments.jobs, settings), "commit": result["where"]["commit"]}
        result["datasets"][name] = entry
        print(row_of(name, entry), f"{entry['took'][0]:.0f} s, {entry['took'][1]:.0f} s", flush=True)
        keep(result)


def keep(result: dict[str, Any]) -> None:
    """Keep what was measured so far."""
    found = result["datasets"]
    right = sum(each["within"] for each in found.values())
    headings = ["dataset", "N", "possible gain", "expected", "found", "interval", "verdict", "within a factor 2"]
    headings += ["in seconds: expected", "found (interval)", "noise: expected, found"]
    text = f"""# What `avare diagnose` expects, and what `avare compare` finds

How many times fewer epochs {SAMPLER} needs for the loss that {BASELINE} has after 20; {result["runs"]} runs of each.
Columns are standardised, with an intercept, and step sizes are found for each sampler. *Noise*: its share of
{BASELINE}'s suboptimality at the end; the rest is distance. *In seconds*: the same in seconds. diagnose makes runs of
its own, with other seeds, and of large data on some of the rows. {right} of {len(found)} are within a factor 2, or
diagnose is inconclusive.

{table(headings, [row_of(name, entry) for name, entry in found.items()])}"""
    save("advice", result, text)


if __name__ == "__main__":
    main()
