"""Linear models of random shapes: our estimators next to the best of the other solvers, at the same accuracy.

``--seed S --shapes N`` draws N problems and stores the result; ``--seed S --shape K`` repeats problem K alone and
stores nothing; ``--resume`` continues a run that was stopped. Seeds 0, 1 and 2 are for development. cyanure, celer and
skglm take part if they are installed.
"""

import argparse
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from avare.linear.solver import solve
from avare.problems import LeastSquares, Linear, Logistic, Softmax
from avare.sklearn import AvareClassifier, AvareRegressor
from harness import RESULTS, duration, save, table, where

TARGETS = (1e-4, 1e-6)
MANY = 20_000  # rows
NOTE = (
    "For each problem, the processor seconds of one of our fits over those of the quickest other solver: less than 1 "
    "is in our favour. Accuracy is how far the objective is above the minimum, relative to the objective of the best "
    "constant model. Ours is `AvareClassifier` or `AvareRegressor` with tol² = 10⁻⁴ or 10⁻⁶, which certify it "
    "themselves. The others have the cheapest setting of a grid of tolerances or iterations that reaches it, found by "
    "trial; the trials are not counted. The minimum is that of our Newton method at 10⁻¹³. One thread, warm, whole "
    "fits with the checks of the data, in turns, the median of three. “Within 5 ms”: not more than 5 ms slower."
)
LAW = (
    "The law of the problems: n log-uniform from 50 to 300,000, d log-uniform from 1 to 2,000 (text: ten times as "
    "many), d cut so that X has at most 3 million entries (times the classes). Data, equally likely: dense with "
    "correlated columns of different scales, sparse, one-hot columns with Zipf frequencies, dense rows times "
    "1 + Pareto(1.5), text like tf-idf. Models: logistic l2 (55 %), least squares l2 (15 %), l1 with either loss "
    "(15 %), multinomial with 3 to 10 classes (15 %). C log-uniform from 10⁻³ to 10⁴; with l1, 1 to 1,000 times the "
    "smallest C at which a coefficient is not 0. Half have weights, lognormal(0, 1). One-hot columns have an "
    "intercept, of the others half."
)
_ENTRIES = 3_000_000
_BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
_TOLERANCES = tuple(10.0**-power for power in range(13))
_NEARLY = 1.3  # times the quickest: other solvers that were this quick in the trial are measured too
_ROUNDS, _SHORT, _REPEATS = 3, 0.01, 10  # turns; seconds and number of fits in a turn if they are short
_SLACK = 0.005  # seconds


class Shape(NamedTuple):
    """One problem."""

    title: str
    model: str
    X: Any
    y: Any
    weight: Any
    C: float
    intercept: bool
    l1: bool


class Rival(NamedTuple):
    """A solver, its settings from the least accurate on, and the fit with one of them."""

    name: str
    settings: tuple[float, ...]
    fit: Callable[[float], Any]


# --- the law --------------------------------------------------------------------------------


def draw(seed: int, number: int) -> Shape:
    """Draw one problem."""
    generator = np.random.default_rng([seed, number])
    model = str(generator.choice(["logistic", "squares", "l1", "multinomial"], p=[0.55, 0.15, 0.15, 0.15]))
    kind = str(generator.choice(["dense", "sparse", "one-hot", "heavy", "text"]))
    n, d = (int(math.exp(generator.uniform(math.log(least), math.log(most)))) for least, most in ((50, 3e5), (1, 2e3)))
    classes = int(generator.integers(3, 11)) if model == "multinomial" else 2
    is_l1 = model == "l1"
    if is_l1:
        model = str(generator.choice(["logistic", "squares"]))
    X = _data(kind, n, d, _ENTRIES // (classes - 1), generator)
    outputs = _outputs(X, classes - 1, generator)
    if model == "squares":
        y = generator.normal() * 10.0 + outputs[:, 0] + generator.normal(size=n) * generator.lognormal()
    else:
        y = _labels(outputs, generator)
    weight = generator.lognormal(0.0, 1.0, n) if generator.random() < 0.5 else None
    intercept = kind == "one-hot" or bool(generator.random() < 0.5)
    C = math.exp(generator.uniform(math.log(1e-3), math.log(1e4)))
    if is_l1:
        C = _least(model, X, y, weight, intercept) * 1000.0 ** generator.random()
    name = f"{model} l1" if is_l1 else model
    extras = [*([f"{classes} classes"] if classes > 2 else []), *(["weights"] if weight is not None else [])]
    extras += ["intercept"] if intercept else []
    title = ", ".join([name, f"{kind} {n:,} × {X.shape[1]:,}", f"C = {C:.2g}", *extras])
    return Shape(title, model, X, y, weight, C, intercept, is_l1)


def _data(kind: str, n: int, d: int, entries: int, generator: np.random.Generator) -> Any:
    if kind in ("dense", "heavy"):
        d = max(1, min(d, entries // n))
        X = generator.normal(size=(n, d))
        if kind == "heavy":
            return X * (1.0 + generator.pareto(1.5, (n, 1)))
        common = generator.normal(size=(n, 3)) @ generator.normal(size=(3, d))
        return (X + common) * generator.lognormal(0.0, 1.0, d) + generator.normal(size=d)
    if kind == "one-hot":
        return _one_hot(n, d, entries, generator)
    d = 10 * d if kind == "text" else d
    each = max(1, min(int(d * 10.0 ** generator.uniform(-2.0, -1.0)), 100, entries // n))
    chances = np.ones(d) if kind == "sparse" else 1.0 / np.arange(10, d + 10)
    columns = generator.choice(d, size=n * each, p=chances / chances.sum())
    values = generator.normal(size=n * each)
    if kind == "text":
        values = np.log(1.0 / chances[columns]) * generator.lognormal(0.0, 0.3, n * each)
    X = sparse.csr_matrix((values, columns, np.arange(0, n * each + 1, each)), shape=(n, d))
    X.sum_duplicates()
    if kind == "text":
        lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
        X = sparse.csr_matrix(sparse.diags(1.0 / lengths) @ X)
    return X


def _one_hot(n: int, d: int, entries: int, generator: np.random.Generator) -> Any:
    factors = max(1, min(int(generator.integers(1, 15)), d, entries // n))
    parts = np.diff(np.append(0, np.sort(generator.choice(np.arange(1, d + 1), factors, replace=False))))
    columns, first = [], 0
    for levels in parts:
        chances = 1.0 / np.arange(1, levels + 1)
        columns.append(first + generator.choice(levels, size=n, p=chances / chances.sum()))
        first += levels
    starts = np.arange(0, n * factors + 1, factors)
    return sparse.csr_matrix((np.ones(n * factors), np.column_stack(columns).ravel(), starts), shape=(n, d))


def _outputs(X: Any, count: int, generator: np.random.Generator) -> Any:
    """Outputs of some coefficients that are not 0, of a random size."""
    d = X.shape[1]
    truth = generator.normal(size=(d, count)) * (generator.random((d, 1)) < generator.uniform(0.1, 1.0))
    outputs = np.asarray(X @ truth)
    spread = np.median(np.abs(outputs - np.median(outputs, axis=0)), axis=0)
    return outputs / np.where(spread > 0.0, spread, 1.0) * generator.lognormal()


def _labels(outputs: Any, generator: np.random.Generator) -> Any:
    scores = np.column_stack([np.zeros(len(outputs)), outputs + generator.normal(size=outputs.shape[1])])
    y = np.argmax(scores + generator.gumbel(size=scores.shape), axis=1)
    y[: scores.shape[1]] = np.arange(scores.shape[1])
    return y


def _least(model: str, X: Any, y: Any, weight: Any, intercept: bool) -> float:
    """The smallest C for which a coefficient is not 0."""
    weights = np.ones(len(y)) if weight is None else weight
    centre = np.average(y, weights=weights) if intercept else 0.0 if model == "squares" else 0.5
    return 1.0 / max(float(np.abs(X.T @ (weights * (y - centre))).max()), 1e-9)


# --- the solvers ----------------------------------------------------------------------------


def rivals(shape: Shape) -> list[Rival]:
    """The solvers that minimise the same objective."""
    if shape.model == "squares":
        return _lassos(shape) if shape.l1 else _ridges(shape)
    return _sparse_classifiers(shape) if shape.l1 else _classifiers(shape)


def _logistic(shape: Shape, name: str, settings: Iterable[float], **options: Any) -> Rival:
    """A solver of LogisticRegression: settings from 1 on are iterations, others tolerances.

    Within a thousand iterations: liblinear cannot be stopped, and takes hours for some heavy rows.
    """
    ratio = 1.0 if shape.l1 else 0.0
    title = f"{name}, dual" if options.get("dual") else name

    def fit(setting: float) -> Any:
        limit = {"max_iter": int(setting), "tol": 1e-14} if setting >= 1.0 else {"max_iter": 1000, "tol": setting}
        model = LogisticRegression(
            C=shape.C, l1_ratio=ratio, fit_intercept=shape.intercept, solver=name, random_state=0, **limit, **options
        )
        return model.fit(shape.X, shape.y, sample_weight=shape.weight)

    return Rival(title, tuple(settings), fit)


def _classifiers(shape: Shape) -> list[Rival]:
    multinomial = shape.model == "multinomial"
    found = []
    if shape.X.shape[1] * (shape.y.max() + 1 if multinomial else 1) <= 5000:
        found.append(_logistic(shape, "newton-cholesky", _BUDGETS[:14]))
    found.append(_logistic(shape, "lbfgs", _BUDGETS))
    if multinomial:
        return [*found, _logistic(shape, "newton-cg", _BUDGETS[:14])]
    if not shape.intercept:  # it has a penalty there
        found.append(_logistic(shape, "liblinear", _TOLERANCES[1:10]))
        found.append(_logistic(shape, "liblinear", _BUDGETS[:16], dual=True))
    if shape.weight is None and importlib.util.find_spec("cyanure"):
        found.append(Rival("cyanure", tuple(float(5 * budget) for budget in _BUDGETS[:16]), _cyanure(shape)))
    return [*found, _logistic(shape, "newton-cg", _BUDGETS[:14])]


def _cyanure(shape: Shape) -> Callable[[float], Any]:
    from cyanure.estimators import Classifier

    def fit(setting: float) -> Any:
        return Classifier(
            "logistic",
            "l2",
            lambda_1=1.0 / (shape.C * len(shape.y)),
            fit_intercept=shape.intercept,
            max_iter=int(setting),
            tol=1e-14,
            n_threads=1,
            verbose=False,
        ).fit(shape.X, shape.y)

    return fit


def _sparse_classifiers(shape: Shape) -> list[Rival]:
    found = []
    if not shape.intercept:
        found.append(_logistic(shape, "liblinear", _TOLERANCES[1:10]))
    if shape.weight is None and not shape.intercept and importlib.util.find_spec("celer"):
        celer = importlib.import_module("celer").LogisticRegression
        found.append(
            Rival("celer", _TOLERANCES[1:], lambda tol: celer(shape.C, tol=tol, max_iter=200).fit(shape.X, shape.y))
        )
    if shape.weight is None and importlib.util.find_spec("skglm"):
        skglm, alpha = importlib.import_module("skglm").SparseLogisticRegression, 1.0 / (shape.C * len(shape.y))

        def fit(tol: float) -> Any:
            return skglm(alpha, tol=tol, max_iter=200, fit_intercept=shape.intercept).fit(shape.X, shape.y)

        found.append(Rival("skglm", _TOLERANCES[1:], fit))
    return [*found, _logistic(shape, "saga", _BUDGETS)]


def _ridges(shape: Shape) -> list[Rival]:
    def solver(name: str) -> Callable[[float], Any]:
        return lambda tol: Ridge(
            1.0 / shape.C, solver=name, tol=tol, max_iter=10_000, fit_intercept=shape.intercept
        ).fit(shape.X, shape.y, sample_weight=shape.weight)

    is_dense = not sparse.issparse(shape.X)
    exact = ["cholesky", "svd"] if is_dense else [] if shape.intercept else ["cholesky"]
    if shape.X.shape[1] > 5000 and shape.X.shape[0] > 5000:
        exact = []
    found = [Rival(name, (1e-9,), solver(name)) for name in exact]
    return found + [Rival(name, _TOLERANCES[1:], solver(name)) for name in ("sparse_cg", "lsqr")]


def _lassos(shape: Shape) -> list[Rival]:
    total = float(len(shape.y) if shape.weight is None else shape.weight.sum())
    alpha = 1.0 / (shape.C * total)

    def lasso(tol: float) -> Any:
        model = ElasticNet(alpha, l1_ratio=1.0, tol=tol, max_iter=100_000, fit_intercept=shape.intercept)
        return model.fit(shape.X, shape.y, sample_weight=shape.weight)

    def other(name: str, tol: float) -> Any:
        kind = importlib.import_module(name).Lasso
        return kind(alpha, tol=tol, max_iter=200, fit_intercept=shape.intercept).fit(shape.X, shape.y)

    names = [name for name in ("celer", "skglm") if shape.weight is None and importlib.util.find_spec(name)]
    return [Rival("Lasso", _TOLERANCES[1:], lasso)] + [
        Rival(name, _TOLERANCES[1:], partial(other, name)) for name in names
    ]


# --- the race -------------------------------------------------------------------------------


class Judge:
    """The objective of a shape, its minimum, and how far a fitted model is above it."""

    def __init__(self, shape: Shape) -> None:
        kinds: dict[str, Any] = {"logistic": Logistic, "squares": LeastSquares, "multinomial": Softmax}
        strength, bias = 1.0 / shape.C, "free" if shape.intercept else False
        l2, l1 = (0.0, strength) if shape.l1 else (strength, 0.0)
        self._problem: Linear = kinds[shape.model](
            shape.X, shape.y, l2=l2, l1=l1, sample_weight=shape.weight, bias=bias
        )
        self._intercept = shape.intercept
        self.found = solve(self._problem, tol=1e-13)

    def left(self, model: Any) -> float:
        """How far a model is above the minimum, relative to the objective of the best constant model."""
        coefficients = np.asarray(model.coef_, dtype=float).reshape(-1, self._problem.width - int(self._intercept))
        if coefficients.shape[0] != self._problem.outputs:
            return math.inf
        if self._intercept:
            coefficients = np.column_stack([coefficients, np.ravel(model.intercept_)])
        objective = self._problem.objective(coefficients.ravel())
        return max(objective - self.found.objective, 0.0) / self.found.scale if math.isfinite(objective) else math.inf


def ours(shape: Shape, target: float) -> Callable[[], Any]:
    """Our fit at an accuracy."""
    kind = AvareRegressor if shape.model == "squares" else AvareClassifier
    model = kind(C=shape.C, l1_ratio=float(shape.l1), fit_intercept=shape.intercept, tol=math.sqrt(target))
    return lambda: model.fit(shape.X, shape.y, sample_weight=shape.weight)


def trial(rival: Rival, judge: Judge, limits: dict[float, float]) -> dict[float, tuple[float, float]]:
    """For each target, the cheapest setting that reaches it and its seconds; given up beyond the limits."""
    found: dict[float, tuple[float, float]] = {}
    for number, setting in enumerate(rival.settings):
        if number == 0:
            rival.fit(setting)  # compiles, and warms up
        started = time.process_time()
        model = rival.fit(setting)
        taken = time.process_time() - started
        left = judge.left(model)
        found.update({target: (setting, taken) for target in TARGETS if left <= target and target not in found})
        open_ones = [target for target in TARGETS if target not in found]
        if not open_ones or taken > max(limits[target] for target in open_ones):
            break
    return found


def measure(shape: Shape, seconds: float) -> dict[str, Any]:
    """Our seconds and those of the quickest other solver, for each target."""
    judge = Judge(shape)
    limits, trials = dict.fromkeys(TARGETS, seconds), {}
    for rival in rivals(shape):
        trials[rival.name] = (rival, trial(rival, judge, limits))
        for target, (_, taken) in trials[rival.name][1].items():
            limits[target] = min(limits[target], 1.5 * taken)
    result: dict[str, Any] = {"title": shape.title, "n": shape.X.shape[0], "gap": judge.found.gap / judge.found.scale}
    result["targets"] = {}
    for target in TARGETS:
        own = ours(shape, target)
        model = own()
        row: dict[str, Any] = {"left": judge.left(model), "steps": int(model.n_iter_), "rival": None}
        reached = {name: done[target] for name, (_, done) in trials.items() if target in done}
        least = min((taken for _, taken in reached.values()), default=math.inf)
        fits = {"ours": own}
        for name, (setting, taken) in reached.items():
            if taken <= _NEARLY * least:
                fits[name] = partial(trials[name][0].fit, setting)
        timed = in_turns(fits)
        row["seconds"] = timed.pop("ours")
        if timed:
            best = min(timed, key=timed.__getitem__)
            row |= {"rival": best, "setting": reached[best][0], "other": timed[best]}
        result["targets"][f"{target:g}"] = row
    return result


def in_turns(fits: dict[str, Callable[[], Any]], rounds: int = _ROUNDS) -> dict[str, float]:
    """The median processor seconds of each fit."""
    times: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(rounds):
        for name, fit in fits.items():
            started, count = time.process_time(), 0
            while count == 0 or (count < _REPEATS and time.process_time() - started < _SHORT):
                fit()
                count += 1
            times[name].append((time.process_time() - started) / count)
    return {name: float(np.median(each)) for name, each in times.items()}


# --- the result -----------------------------------------------------------------------------


def ratios(result: dict[str, Any], target: float, rows: int = 0) -> Any:
    """Our seconds over those of the quickest other solver, for the problems with at least some rows."""
    found = [each["targets"][f"{target:g}"] for each in result["shapes"] if each["n"] >= rows]
    return np.array([row["seconds"] / row["other"] for row in found if row["rival"]])


def overview(result: dict[str, Any]) -> str:
    """A table of quantiles."""
    lines = []
    for rows, name in ((0, "all"), (MANY, f"n ≥ {MANY:,}")):
        for target in TARGETS:
            found = ratios(result, target, rows)
            if not len(found):
                continue
            close = [
                row["seconds"] <= row["other"] + _SLACK
                for row in (each["targets"][f"{target:g}"] for each in result["shapes"] if each["n"] >= rows)
                if row["rival"]
            ]
            cells = [f"{value:.2f}" for value in (*np.quantile(found, [0.5, 0.9]), found.max())]
            shares = [f"{np.mean(found < 1.0):.0%}", f"{np.mean((found <= 2.0) | np.array(close)):.0%}"]
            lines.append([f"{name}, {_power(target)}", str(len(found)), *cells, *shares])
    headings = ["problems, accuracy", "number", "median", "90 %", "worst", "faster", "≤ 2 × or within 5 ms"]
    return table(headings, lines)


def worst(result: dict[str, Any], count: int = 10) -> str:
    """The worst ratios, with the command that repeats each."""
    found = [
        (row["seconds"] / row["other"], target, each, row)
        for each in result["shapes"]
        for target, row in each["targets"].items()
        if row["rival"]
    ]
    lines = [
        [
            f"`--seed {result['seed']} --shape {each['shape']}`",
            _power(float(target)),
            f"{ratio:.1f}",
            duration(row["seconds"]),
            duration(row["other"]),
            row["rival"],
            each["title"],
        ]
        for ratio, target, each, row in sorted(found, key=lambda item: -item[0])[:count]
    ]
    return table(["python benchmarks/linear_shapes.py", "accuracy", "ratio", "ours", "other", "by", "problem"], lines)


def _power(target: float) -> str:
    return f"10⁻{'⁰¹²³⁴⁵⁶⁷⁸⁹'[round(-math.log10(target))]}"


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = [row for each in result["shapes"] for row in each["targets"].values()]
    above = sum(row["left"] > float(target) for each in result["shapes"] for target, row in each["targets"].items())
    unreached = sum(row["rival"] is None for row in rows)
    facts = (
        f"Seed {result['seed']}, {len(result['shapes'])} problems; {result['remark']} Of our {len(rows)} fits, {above} "
        f"ended farther from the minimum than asked. In {unreached} cases no other solver reached the accuracy within "
        f"{result['limit']:g} seconds; they do not count. Other work ran on the machine at the same time."
    )
    quantiles, slowest = overview(result), worst(result)
    return "\n\n".join([facts, quantiles, NOTE, LAW, "The worst ten:", slowest])


def main() -> None:
    """Draw problems, measure them, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=120)
    parser.add_argument("--shape", type=int, default=None, help="this one only; nothing is stored")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one fit, beyond which a solver is given up")
    parser.add_argument("--remark", default="a seed used during development.", help="about the seed")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    parser.add_argument("--resume", action="store_true", help="continue the stored result of this seed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"where": where(), "seed": arguments.seed, "remark": arguments.remark}
    result |= {"limit": arguments.seconds, "shapes": []}
    if arguments.resume:
        result = json.loads((RESULTS / "linear_shapes.json").read_text())
        if result["seed"] != arguments.seed:
            parser.error(f"the stored result is of seed {result['seed']}")
    numbers = range(len(result["shapes"]), arguments.shapes) if arguments.shape is None else [arguments.shape]
    with threadpool_limits(1):
        for number in numbers:
            found = {"shape": number, **measure(draw(arguments.seed, number), arguments.seconds)}
            result["shapes"].append(found)
            print(number, found["title"], *(as_line(row) for row in found["targets"].values()), sep="; ", flush=True)
            if arguments.shape is None and not arguments.dry:
                save("linear_shapes", result, report(result))
    if arguments.dry:
        print(report(result))


def as_line(row: dict[str, Any]) -> str:
    """One measurement in a few words."""
    if row["rival"] is None:
        return f"{duration(row['seconds'])}, no other"
    ratio = row["seconds"] / row["other"]
    return f"{ratio:.2f} = {duration(row['seconds'])} / {duration(row['other'])} {row['rival']} {row['setting']:g}"


if __name__ == "__main__":
    main()
