"""Step sizes that are found, against the best fixed one: the suboptimality at the end, and what finding them costs."""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

import avare
from avare.experiments import datasets
from avare.experiments.data import obtain, prepared
from avare.problems import Huber, LeastSquares, Linear, Logistic, SmoothedHinge, Softmax
from harness import RESULTS, save, table, where

SAMPLERS = ("Uniform", "Avare", "Calibrated")
FIRST = -3  # fixed step sizes: 2^k over the curvature of f at 0, from here up and down ...
WORSE = 3  # ... until this many in a row are worse than the best
WITHIN = 1.5  # times the best fixed step's suboptimality is good
MOST = 14  # sizes in one direction


class Case(NamedTuple):
    """A problem and the budget of a run on it."""

    problem: Linear
    batch_size: int
    epochs: int


def cases(names: list[str] | None = None) -> dict[str, Case]:
    """The problems by name: from 100 to a million examples."""
    makers = {**TUNED, **FRESH}
    return {name: makers[name](np.random.default_rng(7)) for name in (names or makers)}


def _labels(generator: np.random.Generator, outputs: Any) -> Any:
    return generator.random(len(outputs)) < 1.0 / (1.0 + np.exp(-outputs))


def _tiny(generator: np.random.Generator) -> Case:
    data = datasets.load("synthetic")
    return Case(Logistic(data.X, data.y, l2=1.0), 4, 50)


def _badly_scaled(generator: np.random.Generator) -> Case:
    scales = np.logspace(-2, 2, 8)
    X = generator.normal(size=(2000, 8)) * scales * generator.lognormal(0.0, 0.7, (2000, 1))
    return Case(Logistic(X, _labels(generator, X @ (generator.normal(size=8) / scales)), l2=1e-3), 16, 20)


def _separable(generator: np.random.Generator) -> Case:
    X = generator.normal(size=(1000, 20))
    return Case(Logistic(X, X @ generator.normal(size=20) > 0.0, l2=0.1), 16, 20)


def _heavy_tailed(generator: np.random.Generator) -> Case:
    X = generator.normal(size=(20_000, 5)) * generator.lognormal(0.0, 1.0, (20_000, 1))
    return Case(Logistic(X, _labels(generator, X @ [1.0, -1.0, 0.5, 0.0, 2.0]), l2=1.0), 16, 10)


def _heavy_tailed_squares(generator: np.random.Generator) -> Case:
    X = generator.normal(size=(10_000, 5)) * generator.lognormal(0.0, 1.0, (10_000, 1))
    return Case(LeastSquares(X, X @ np.arange(5.0) + generator.standard_t(3, size=10_000), l2=1.0), 32, 20)


def _sparse(generator: np.random.Generator) -> Case:
    drawn: dict[str, Any] = {"random_state": 3, "data_rvs": lambda size: generator.lognormal(0.0, 1.0, size)}
    X = scipy.sparse.random(5000, 500, density=0.02, format="csr", **drawn)
    return Case(Logistic(X, _labels(generator, X @ (0.5 * generator.normal(size=500))), l2=1.0), 32, 20)


def _digits(generator: np.random.Generator) -> Case:
    data = prepared(obtain("digits")[0])
    return Case(Softmax(data.X, data.y, l2=1.0, bias=True), 32, 20)


def _million(generator: np.random.Generator) -> Case:
    X = (generator.normal(size=(1_000_000, 4)) * generator.lognormal(0.0, 0.8, (1_000_000, 1))).astype(np.float32)
    return Case(Logistic(X, _labels(generator, X @ np.array([1.0, -1.0, 0.5, 2.0])), l2=1.0), 128, 1)


def _counts(generator: np.random.Generator) -> Case:
    X = scipy.sparse.csr_matrix(generator.poisson(generator.gamma(0.05, 1.0, (8000, 300))).astype(np.float64))
    return Case(Logistic(X, _labels(generator, X @ generator.normal(size=300)), l2=1.0, bias=True), 32, 20)


def _outliers(generator: np.random.Generator) -> Case:
    X = generator.standard_t(4, size=(20_000, 8))
    return Case(Huber(X, X @ generator.normal(size=8) + generator.standard_cauchy(20_000), l2=1.0), 64, 20)


def _rare_class(generator: np.random.Generator) -> Case:
    X = generator.gamma(2.0, 1.0, (50_000, 10))
    y = _labels(generator, X @ generator.normal(size=10) - 9.0)
    return Case(Logistic((X - X.mean(axis=0)) / X.std(axis=0), y, l2=1.0, bias=True), 64, 10)


def _bundled(name: str, kind: Callable[..., Linear], batch_size: int) -> Callable[[np.random.Generator], Case]:
    def make(generator: np.random.Generator) -> Case:
        from sklearn import datasets

        data = getattr(datasets, f"load_{name}")()
        X = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
        return Case(kind(X, data.target, l2=1.0, bias=True), batch_size, 30)

    return make


TUNED: dict[str, Callable[[np.random.Generator], Case]] = {
    "tiny": _tiny,
    "badly scaled": _badly_scaled,
    "separable": _separable,
    "heavy-tailed, logistic": _heavy_tailed,
    "heavy-tailed, squares": _heavy_tailed_squares,
    "sparse": _sparse,
    "digits": _digits,
    "a million": _million,
    "breast cancer": _bundled("breast_cancer", SmoothedHinge, 16),
}
"""These were looked at while the rule was chosen; the last one changed its first step."""
FRESH: dict[str, Callable[[np.random.Generator], Case]] = {
    "wine": _bundled("wine", Softmax, 8),
    "diabetes": _bundled("diabetes", LeastSquares, 8),
    "counts": _counts,
    "outliers": _outliers,
    "rare class": _rare_class,
}
"""These had no influence on it."""


class End(NamedTuple):
    """The end of a run."""

    suboptimality: float
    seconds: float
    """Of the processor, from the call until the result."""


def final(case: Case, sampler: str, seed: int, step_size: Any, **options: Any) -> End:
    """The end of a run; its suboptimality is infinite if it diverged."""
    problem = case.problem
    drawing = avare.samplers.build(sampler, problem, case.batch_size, lasting_floor=True, replacement=True, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avare.solvers.DivergenceWarning)
        began = time.process_time()
        run = avare.sgd(problem, drawing, step_size, epochs=case.epochs, evaluate="never", **options)
        took = time.process_time() - began
    assert problem.optimum is not None
    sound = run.status == "finished" and bool(np.isfinite(run.x).all())
    return End(problem.objective(run.x) - problem.optimum if sound else np.inf, took)


def best_fixed(case: Case, sampler: str, seeds: int, averaging: str) -> dict[str, Any]:
    """The fixed step with the least mean suboptimality, which lies inside the grid."""
    curvature, means, best = _curvature(case.problem), dict[int, float](), FIRST
    for direction in (1, -1):
        k = best
        while abs(k - best) <= WORSE and abs(k - FIRST) <= MOST:
            if k not in means:
                size = 2.0**k / curvature
                ends = [final(case, sampler, 100 + s, size, averaging=averaging) for s in range(seeds)]
                means[k] = float(np.mean([end.suboptimality for end in ends]))
            best = min(means, key=lambda k: means[k])
            k += direction
    return {"power_of_two": best, "size": 2.0**best / curvature, "suboptimality": means[best]}


def measure(case: Case, sampler: str, seeds: int) -> dict[str, Any]:
    """Means over the seeds: the best fixed steps, with the last iterate and averaged, and each kind of auto."""
    found: dict[str, Any] = {
        kind: best_fixed(case, sampler, seeds, averaging)
        for kind, averaging in (("last", "none"), ("averaged", "recent"))
    }
    for kind, wanted, averaging in (
        ("auto", "auto", "recent"),
        ("auto, constant", avare.schedules.auto(0.0), "recent"),
        ("auto, 1/t", avare.schedules.auto(1.0), "none"),
    ):
        ends = [final(case, sampler, seed, wanted, averaging=averaging).suboptimality for seed in range(seeds)]
        left = float(np.mean(ends))
        found[kind] = {"suboptimality": left, "ratio": left / found["last"]["suboptimality"], "worst": max(ends)}
        found[kind]["ratio_averaged"] = left / found["averaged"]["suboptimality"]
    # What finding them costs: the least of some runs in turn with the same averaging and with a given step size.
    sizes = {"auto": "auto", "given": found["averaged"]["size"]}
    least = dict.fromkeys(sizes, np.inf)
    for _ in range(max(3, seeds)):
        for kind, size in sizes.items():
            least[kind] = min(least[kind], final(case, sampler, 0, size, averaging="recent").seconds)
    found["auto"]["seconds"], found["auto"]["share"] = least["auto"], max(0.0, 1.0 - least["given"] / least["auto"])
    return found


def _curvature(problem: Linear) -> float:
    direction, largest = np.random.default_rng(0).normal(size=problem.dim), 0.0
    for _ in range(20):
        direction = problem.hessian_product(np.zeros(problem.dim), direction)
        largest = float(np.linalg.norm(direction))
        direction /= largest
    return largest


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of problems; what is stored of the others is kept")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"where": where(), "seeds": arguments.seeds, "cases": {}}
    if arguments.only and (RESULTS / "steps.json").exists():
        result["cases"] = json.loads((RESULTS / "steps.json").read_text())["cases"]
    for name in arguments.only or [*TUNED, *FRESH]:
        (case,) = cases([name]).values()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", avare.problems.ToleranceWarning)
            case.problem.minimize(
                tolerance=1e-8 * float(np.linalg.norm(case.problem.gradient(np.zeros(case.problem.dim))))
            )
        entry = {"n": case.problem.n, "batch_size": case.batch_size, "epochs": case.epochs, "samplers": {}}
        result["cases"][name] = {**entry, "commit": result["where"]["commit"]}
        for sampler in SAMPLERS:
            result["cases"][name]["samplers"][sampler] = measure(case, sampler, arguments.seeds)
            print(rows_of(result, [name])[-1], flush=True)
        keep(result)


def rows_of(result: dict[str, Any], names: Iterable[str]) -> list[list[str]]:
    """The rows of some problems, if they were measured."""
    rows = []
    for name in names:
        entry = result["cases"].get(name, {"samplers": {}})
        for sampler, found in entry["samplers"].items():
            cells = [f"{found['last']['suboptimality']:.3g}", f"2^{found['last']['power_of_two']}"]
            cells += [f"{found['auto']['suboptimality']:.3g}", f"{found['auto']['ratio']:.2f}"]
            cells += [f"{found['auto']['ratio_averaged']:.2f}"]
            cells += [f"{found[kind]['ratio']:.2f}" for kind in ("auto, constant", "auto, 1/t")]
            rows.append([name, f"{entry['n']:,}", sampler, *cells, f"{100.0 * found['auto']['share']:.0f} %"])
    return rows


def keep(result: dict[str, Any]) -> None:
    """Keep what was measured so far."""
    headings = ["problem", "N", "sampler", "best fixed step", "its size", "auto", "ratio", "ratio to averaged"]
    headings += ["constant", "1/t", "cost"]
    parts = [rows_of(result, names) for names in (TUNED, FRESH)]
    good = [sum(float(row[6]) <= WITHIN for row in part) for part in parts]
    costs = [each["auto"]["share"] for entry in result["cases"].values() for each in entry["samplers"].values()]
    text = f"""# Step sizes that are found

Suboptimality at the end of a run, mean over {result["seeds"]} seeds. *Best fixed step*: the best constant step size in
a grid of factors of 2, last iterate, by the mean over other seeds; it lies inside the grid. Its size is in units of
1 / curvature of f at 0. *Auto*: `step_size="auto"`, with its averaging. *Ratio*: auto over best fixed; the next column
compares auto with the best fixed step with the same averaging. *Constant* and *1/t*: the ratios of `schedules.auto(0)`,
averaged, and of `schedules.auto(1)`, last iterate. *Cost*: what finding the sizes adds to a run, as a share of its
processor seconds: the least of some runs, against the least of runs with a given size, in turn.

The median of the costs is {100.0 * float(np.median(costs)):.0f} %. Each problem has its commit in `steps.json`.

## Problems that were looked at while the rule was chosen

{good[0]} of {len(parts[0])} are within {WITHIN:g} times of the best fixed step.

{table(headings, parts[0])}

## Problems that had no influence on the rule

{good[1]} of {len(parts[1])} are within {WITHIN:g} times of the best fixed step.

{table(headings, parts[1])}"""
    save("steps", result, text)


if __name__ == "__main__":
    main()
