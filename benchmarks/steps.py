"""Step sizes that are found, against the best fixed one: the suboptimality at the end, on eight problems."""

import argparse
import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

import avare
from avare.experiments.data import obtain
from avare.experiments.preparation import prepared
from avare.problems import LeastSquares, Linear, Logistic, Softmax
from harness import save, table, where

SAMPLERS = ("Uniform", "Avare", "Calibrated")
GRID = range(-11, 7)  # fixed step sizes: 2^k over the curvature of f at 0


class Case(NamedTuple):
    """A problem and the budget of a run on it."""

    problem: Linear
    batch_size: int
    epochs: int


def cases(names: list[str] | None = None) -> dict[str, Case]:
    """The problems by name: from 100 to a million examples."""
    makers = {
        "tiny": _tiny,
        "badly scaled": _badly_scaled,
        "separable": _separable,
        "heavy-tailed, logistic": _heavy_tailed,
        "heavy-tailed, squares": _heavy_tailed_squares,
        "sparse": _sparse,
        "digits": _digits,
        "a million": _million,
    }
    return {name: makers[name](np.random.default_rng(7)) for name in (names or makers)}


def _labels(generator: np.random.Generator, outputs: Any) -> Any:
    return generator.random(len(outputs)) < 1.0 / (1.0 + np.exp(-outputs))


def _tiny(generator: np.random.Generator) -> Case:
    data = avare.datasets.load("synthetic")
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
    data = prepared(*obtain("digits"))
    return Case(Softmax(data.X, data.y, l2=1.0, bias=True), 32, 20)


def _million(generator: np.random.Generator) -> Case:
    X = (generator.normal(size=(1_000_000, 4)) * generator.lognormal(0.0, 0.8, (1_000_000, 1))).astype(np.float32)
    return Case(Logistic(X, _labels(generator, X @ np.array([1.0, -1.0, 0.5, 2.0])), l2=1.0), 128, 1)


def final(case: Case, sampler: str, seed: int, step_size: Any, **options: Any) -> tuple[float, float]:
    """The suboptimality at the end of a run, infinite if it diverged; and the search's part of all seconds."""
    problem = case.problem
    drawing = avare.samplers.build(sampler, problem, case.batch_size, lasting_floor=True, replacement=True, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avare.solvers.DivergenceWarning)
        run = avare.sgd(problem, drawing, step_size, epochs=case.epochs, evaluate="never", **options)
    sound = run.status == "finished" and bool(np.isfinite(run.x).all())
    assert problem.optimum is not None
    left = problem.objective(run.x) - problem.optimum if sound else np.inf
    return left, run.search_seconds / (run.search_seconds + run.seconds)


def measure(case: Case, sampler: str, seeds: int) -> dict[str, Any]:
    """Means over the seeds: the best fixed steps, with the last iterate and averaged, and each kind of auto."""
    curvature = _curvature(case.problem)
    found: dict[str, Any] = {}
    for kind, averaging in (("last", "none"), ("averaged", "recent")):
        means = {
            k: float(
                np.mean(
                    [final(case, sampler, 100 + s, 2.0**k / curvature, averaging=averaging)[0] for s in range(seeds)]
                )
            )
            for k in GRID
        }
        best = min(means, key=lambda k: means[k])
        found[kind] = {"power_of_two": best, "suboptimality": means[best]}
    for kind, wanted, averaging in (
        ("auto", "auto", "recent"),
        ("auto, constant", avare.schedules.auto(0.0), "recent"),
        ("auto, 1/t", avare.schedules.auto(1.0), "none"),
    ):
        runs = [final(case, sampler, seed, wanted, averaging=averaging) for seed in range(seeds)]
        left, share = (float(np.mean(each)) for each in zip(*runs, strict=True))
        found[kind] = {"suboptimality": left, "ratio": left / found["last"]["suboptimality"], "search_share": share}
        found[kind]["ratio_averaged"] = left / found["averaged"]["suboptimality"]
        found[kind]["worst"] = max(each for each, _ in runs)
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
    parser.add_argument("--only", nargs="*", help="names of problems")
    arguments = parser.parse_args()
    rows, result = [], {"where": where(), "seeds": arguments.seeds, "cases": {}}
    for name, case in cases(arguments.only).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", avare.problems.ToleranceWarning)
            case.problem.minimize(
                tolerance=1e-8 * float(np.linalg.norm(case.problem.gradient(np.zeros(case.problem.dim))))
            )
        result["cases"][name] = {
            "n": case.problem.n,
            "batch_size": case.batch_size,
            "epochs": case.epochs,
            "samplers": {},
        }
        for sampler in SAMPLERS:
            found = measure(case, sampler, arguments.seeds)
            result["cases"][name]["samplers"][sampler] = found
            cells = [f"{found['last']['suboptimality']:.3g}", f"2^{found['last']['power_of_two']}"]
            cells += [f"{found['auto']['suboptimality']:.3g}", f"{found['auto']['ratio']:.2f}"]
            cells += [f"{found['auto']['ratio_averaged']:.2f}"]
            cells += [f"{found[kind]['ratio']:.2f}" for kind in ("auto, constant", "auto, 1/t")]
            cells += [f"{100.0 * found['auto']['search_share']:.0f} %"]
            rows.append([name, f"{case.problem.n:,}", sampler, *cells])
            print(rows[-1], flush=True)
        if arguments.only is None:
            keep(result, rows)


def keep(result: dict[str, Any], rows: list[list[str]]) -> None:
    """Keep what was measured so far."""
    headings = ["problem", "N", "sampler", "best fixed step", "its size", "auto", "ratio", "ratio to averaged"]
    headings += ["constant", "1/t", "search"]
    text = f"""# Step sizes that are found

Suboptimality at the end of a run, mean over {result["seeds"]} seeds. *Best fixed step*: the best of {len(GRID)}
constant step sizes, last iterate, by the mean over other seeds; its size is in units of 1 / curvature of f at 0.
*Auto*: `step_size="auto"`, with its averaging. *Ratio*: auto over best fixed; the next column compares auto with the
best fixed step with the same averaging. *Constant* and *1/t*: the ratios of `schedules.auto(0)`, averaged, and of
`schedules.auto(1)`, last iterate. *Search*: its share of the seconds of a run.

{table(headings, rows)}"""
    save("steps", result, text)


if __name__ == "__main__":
    main()
