"""Linear models: `AvareClassifier` and other solvers, to the same relative suboptimality.

It needs MNIST, CIFAR10 and IJCNN1, in the folder ``--data`` or AVARE_DATA, or from the network; the text of "next
letter" is ``text/tinyshakespeare.txt`` there, and adult and reuters are in ``linear/``. Data that is missing is left
out. All minimise the same objective, logistic regression with l2 = 1 in total and without an intercept, on the same
data, each with its defaults. The method was developed on some of the data; the rest is held out. Each result is stored
at once. ``--cases`` and ``--solvers`` measure some again and keep the others; ``--missing`` measures only what is not
stored.
"""

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_svmlight_file,
    load_wine,
    make_classification,
    make_hastie_10_2,
    make_moons,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from avare.experiments import datasets
from avare.problems import Linear, Logistic, Softmax
from avare.sklearn import AvareClassifier
from harness import RESULTS, save, table, where

TARGETS = (1e-3, 1e-6)
BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
NOTE = (
    "Processor seconds with one thread until the objective is within 10⁻³ and 10⁻⁶ of the optimum, relative to it. The "
    "budget, of iterations or epochs, is the smallest of 1, 2, 3, 4, 6, 8, 12, ... that suffices; seconds are those of "
    "a whole fit with it, with the checks of the data and all set-up, the median of three. A dash: not reached when a "
    "fit took longer than the limit of seconds, or with a budget of 512; larger ones were not tried. An empty cell: "
    "the solver does not take such data. “Weighted” has sample weights lognormal(0, 1.5). CIFAR10 binary: the six "
    "classes of animals against the four of vehicles. Next letter: a vowel or not, by hashed n-grams. "
    "The budget of `AvareClassifier` is its tolerance, tol² = 10⁻³, 10⁻⁴, 10⁻⁵, 10⁻⁶, 10⁻⁸, ..., relative to the "
    "objective of a constant model. It certifies them, which is in its seconds. The optimum is that of Newton's "
    "method; its gradient proves that it is right to 10⁻⁹."
)
_SOLVERS = ("AvareClassifier", "cyanure", "lbfgs", "saga", "sag", "newton-cholesky", "liblinear", "SGDClassifier")
_MULTINOMIAL = ("saga", "sag", "lbfgs", "newton-cholesky")
_VEHICLES = (0, 1, 8, 9)  # of CIFAR10: airplane, automobile, ship, truck; the other six classes are animals
_PRECISION = 1e-9  # of the optimum, relative to it


def text(generator: np.random.Generator) -> tuple[Any, Any]:
    """Documents like tf-idf: 50,000 rows of unit length, 100,000 columns, word frequencies by Zipf's law."""
    n, width, words = 50_000, 100_000, 80
    chances = 1.0 / np.arange(10, width + 10)
    columns = generator.choice(width, size=n * words, p=chances / chances.sum())
    values = np.log(1.0 / chances[columns]) * generator.lognormal(0.0, 0.3, n * words)
    X = sparse.csr_matrix((values, columns, np.arange(0, n * words + 1, words)), shape=(n, width))
    X.sum_duplicates()
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X = sparse.csr_matrix(sparse.diags(1.0 / lengths) @ X)
    truth = generator.normal(size=width) * (generator.random(width) < 0.05) * 20.0
    return X, np.where(X @ truth + generator.logistic(size=n) > 0.0, 1, -1)


def imbalanced(generator: np.random.Generator) -> tuple[Any, Any]:
    """A million rows of 49 columns and a constant, of lengths lognormal(0, 1); 1 % are positive."""
    X = generator.normal(size=(1_000_000, 50)) * generator.lognormal(0.0, 1.0, (1_000_000, 1))
    X[:, -1] = 1.0
    outputs = X @ np.append(generator.normal(size=49) / 7.0, 0.0) + generator.logistic(size=len(X))
    return X, np.where(outputs > np.quantile(outputs, 0.99), 1, -1)


def letters(folder: Path | None) -> tuple[Any, Any]:
    """Is the next letter a vowel? 100,000 places in Shakespeare's plays, by the four n-grams before them, hashed."""
    if folder is None:
        raise FileNotFoundError("--data is needed")
    words = (folder / "text" / "tinyshakespeare.txt").read_bytes()
    codes = np.frombuffer(words, dtype=np.uint8).astype(np.uint64)
    vowels = np.isin(codes, np.frombuffer(b"aeiouAEIOU", dtype=np.uint8))
    places = np.sort(np.random.default_rng(3).choice(np.arange(4, len(codes)), 100_000, replace=False))
    keys, columns = np.zeros(len(places), dtype=np.uint64), []
    for length in range(1, 5):
        keys = keys * np.uint64(257) + codes[places - length] + np.uint64(1)
        columns.append((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(50))  # 14 bits
    starts = np.arange(0, 4 * len(places) + 1, 4)
    X = sparse.csr_matrix((np.ones(4 * len(places)), np.column_stack(columns).astype(np.int64).ravel(), starts))
    X.sum_duplicates()
    return X, np.where(vowels[places], 1, -1)


def moons() -> tuple[Any, Any]:
    """Two half moons with noise, by 300 random Fourier features: columns that are strongly correlated."""
    X, y = make_moons(40_000, noise=0.3, random_state=0)
    return RBFSampler(gamma=2.0, n_components=300, random_state=0).fit_transform(X), np.where(y == 1, 1, -1)


def developed(folder: Path | None) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """The data on which the method was developed, made when they are needed."""

    def loaded(name: str, label: Callable[[Any], Any] = lambda y: y) -> Callable[[], tuple[Any, Any]]:
        def load() -> tuple[Any, Any]:
            data = datasets.load(name, folder=folder)
            return data.X if sparse.issparse(data.X) else data.X.astype(np.float64), label(data.y)

        return load

    def breast_cancer() -> tuple[Any, Any]:
        X, y = load_breast_cancer(return_X_y=True)
        return scale(X), np.where(y == 1, 1, -1)

    def digits() -> tuple[Any, Any]:
        X, y = load_digits(return_X_y=True)
        return X / 16.0, y

    def coded(name: str) -> Callable[[], tuple[Any, Any]]:
        def load() -> tuple[Any, Any]:
            if folder is None:
                raise FileNotFoundError("--data is needed")
            X, y = load_svmlight_file(str(folder / "linear" / f"{name}.trn.bz2"), zero_based=True)
            small = (X.indices.astype(np.int32), X.indptr.astype(np.int32))  # which liblinear needs
            return sparse.csr_matrix((X.data, *small), shape=X.shape), np.where(y > 0.0, 1, -1)

        return load

    return {
        "breast cancer": breast_cancer,
        "digits": digits,
        "IJCNN1": loaded("ijcnn1"),
        "adult": coded("adult"),
        "reuters": coded("reuters"),
        "sparse text": lambda: text(np.random.default_rng(1)),
        "imbalanced": lambda: imbalanced(np.random.default_rng(2)),
        "MNIST odd/even": loaded("mnist", lambda y: np.where(y % 2 == 0, 1, -1)),
        "MNIST multinomial": loaded("mnist"),
        "CIFAR10 binary": loaded("cifar10", lambda y: np.where(np.isin(y, _VEHICLES), -1, 1)),
    }


def held_out(folder: Path | None) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Data that was not used to develop the method."""

    def cars() -> tuple[Any, Any]:
        data = datasets.load("cifar10", folder=folder)
        chosen = np.isin(data.y, (1, 9))
        return data.X[chosen].astype(np.float64), np.where(data.y[chosen] == 9, 1, -1)

    def wine() -> tuple[Any, Any]:
        X, y = load_wine(return_X_y=True)
        return scale(X), y

    def hastie() -> tuple[Any, Any]:
        X, y = make_hastie_10_2(200_000, random_state=0)
        return np.hstack([X, X**2]), np.where(y > 0.0, 1, -1)

    return {
        "wine": wine,
        "Hastie": hastie,
        "moons": moons,
        "next letter": lambda: letters(folder),
        "five classes": lambda: make_classification(
            30_000, 100, n_informative=30, n_redundant=30, n_classes=5, random_state=0
        ),
        "cars or trucks": cars,
    }


def cases(folder: Path | None) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """All data."""
    return {**developed(folder), **held_out(folder)}


def ours(X: Any, y: Any, weight: Any, digits: int) -> Any:
    """Fit by `AvareClassifier` to two digits more than given."""
    model = AvareClassifier(C=1.0, fit_intercept=False, tol=10.0 ** (-0.5 * (digits + 2)))
    return model.fit(X, y, sample_weight=weight).coef_.ravel()


def rivals(X: Any, y: Any, weight: Any) -> dict[str, Callable[[int], Any]]:
    """Fits of the same objective by scikit-learn, as functions of the budget."""

    def logistic(solver: str) -> Callable[[int], Any]:
        return lambda budget: (
            LogisticRegression(solver=solver, C=1.0, fit_intercept=False, tol=1e-14, max_iter=budget, random_state=0)
            .fit(X, y, sample_weight=weight)
            .coef_.ravel()
        )

    def sgd(budget: int) -> Any:
        alpha = 1.0 / (len(y) if weight is None else weight.sum())
        scaled = None if weight is None else weight / weight.mean()
        model = SGDClassifier("log_loss", alpha=alpha, fit_intercept=False, tol=None, max_iter=budget, random_state=0)
        return model.fit(X, y, sample_weight=scaled).coef_.ravel()

    def cyanure(budget: int) -> Any:
        from cyanure.estimators import Classifier

        model = Classifier(
            "logistic",
            "l2",
            lambda_1=1.0 / len(y),
            fit_intercept=False,
            max_iter=budget,
            tol=1e-14,
            n_threads=1,
            verbose=False,
        )
        return np.ravel(model.fit(X, y).get_weights())

    found = {name: logistic(name) for name in ("saga", "sag", "lbfgs", "newton-cholesky", "liblinear")}
    found["SGDClassifier"] = sgd
    if importlib.util.find_spec("cyanure") and weight is None:  # it takes no sample weights
        found["cyanure"] = cyanure
    classes = len(np.unique(y))
    if X.shape[1] * (classes if classes > 2 else 1) > 5000:
        del found["newton-cholesky"]  # its matrix would not fit into memory
    return found if classes == 2 else {name: fit for name, fit in found.items() if name in _MULTINOMIAL}


def race(fit: Callable[[int], Any], left: Callable[[Any], float], seconds: float) -> list[dict[str, float] | None]:
    """For each target, the smallest budget that reaches it and the median seconds of three fits with it."""
    found: list[dict[str, float] | None] = []
    times: dict[int, float] = {}
    reached: dict[int, float] = {}
    fit(1)  # compiles, and warms up
    for budget in BUDGETS:
        started = time.process_time()
        x = fit(budget)
        times[budget], reached[budget] = time.process_time() - started, left(x)
        if reached[budget] <= TARGETS[-1] or times[budget] > seconds:
            break
    for target in TARGETS:
        enough = [budget for budget in times if reached[budget] <= target]
        if not enough:
            found.append(None)
            continue
        taken = [times[enough[0]]]
        for _ in range(2):
            started = time.process_time()
            fit(enough[0])
            taken.append(time.process_time() - started)
        found.append({"budget": enough[0], "seconds": float(np.median(taken))})
    return found


def optimum(problem: Linear) -> float:
    """The least objective. Its gradient g proves how good it is: f is at most g^2 / (2 l2) above the minimum."""
    x = problem.minimize(tolerance=1e-4)
    assert problem.optimum is not None
    left = float(np.linalg.norm(problem.gradient(x)))
    if left**2 / (2.0 * problem.l2) > _PRECISION * problem.optimum:
        raise RuntimeError(f"the gradient at the optimum has the norm {left:.3g}: too much for {_PRECISION:g}")
    return problem.optimum


def suboptimality(problem: Linear, least: float, x: Any) -> float:
    """How far the objective is above the least, relative to it."""
    return problem.objective(x) / least - 1.0


def main() -> None:
    """Run the chosen cases, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--cases", nargs="*", default=None, help="names of data; all by default")
    parser.add_argument("--solvers", nargs="*", default=None, help="all by default")
    parser.add_argument("--weights", nargs="*", choices=["no", "yes"], default=["no"])
    parser.add_argument("--missing", action="store_true", help="skip what is stored")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one fit, beyond which a solver is given up")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    stored = RESULTS / "linear.json"
    result: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {"cases": {}}
    result["where"] = where()
    with threadpool_limits(1):
        for name, make in cases(arguments.data).items():
            if arguments.cases and name not in arguments.cases:
                continue
            try:
                X, y = make()
            except (OSError, datasets.DatasetError) as error:
                print(f"{name} is left out: {error}")
                continue
            for weighted in ("no", "yes"):
                if weighted in arguments.weights:
                    title = f"{name}, weighted" if weighted == "yes" else name
                    weight = np.random.default_rng(0).lognormal(0.0, 1.5, len(y)) if weighted == "yes" else None
                    measure(result, title, X, y, weight, arguments)


def measure(result: dict[str, Any], title: str, X: Any, y: Any, weight: Any, arguments: argparse.Namespace) -> None:
    """Run the chosen solvers on one case, and keep each result at once."""
    kind = Logistic if len(np.unique(y)) == 2 else Softmax
    problem = kind(X, y, l2=1.0, sample_weight=weight)
    case = result["cases"].setdefault(title, {"solvers": {}})
    if "optimum" not in case:
        case["optimum"] = optimum(problem)
    fits: dict[str, Callable[[int], Any]] = {"AvareClassifier": partial(ours, X, y, weight), **rivals(X, y, weight)}
    for solver, fit in fits.items():
        chosen = not arguments.solvers or solver in arguments.solvers
        if chosen and not (arguments.missing and solver in case["solvers"]):
            reached = race(fit, partial(suboptimality, problem, case["optimum"]), arguments.seconds)
            commit = result["where"]["commit"]
            case["solvers"][solver] = {"reached": reached, "limit": arguments.seconds, "commit": commit}
            print(title, solver, reached, flush=True)
            save("linear", result, as_text(result))


def in_order(result: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The measured cases of some data, each without weights and then with them."""
    titles = [title for name in names for title in (name, f"{name}, weighted")]
    return {title: result["cases"][title] for title in titles if title in result["cases"]}


def overview(result: dict[str, Any], measured: dict[str, Any]) -> str:
    """A table with a row for each case, the seconds to both targets in each cell."""
    names = [name for name in _SOLVERS if any(name in case["solvers"] for case in result["cases"].values())]
    return table(["seconds", *names], [[title, *both(case["solvers"], names)] for title, case in measured.items()])


def both(solvers: dict[str, Any], names: list[str]) -> list[str]:
    """The seconds that each solver needs to reach the one target and the other, the least of all in bold."""
    found = {
        name: [np.inf if each is None else each["seconds"] for each in solvers[name]["reached"]]
        for name in names
        if name in solvers
    }
    least = np.min(list(found.values()), axis=0)

    def cell(value: float, best: float) -> str:
        text = "–" if value == np.inf else f"{value:.2g}" if value < 10.0 else f"{value:.0f}"
        return f"**{text}**" if value == best < np.inf else text

    return [", ".join(map(cell, found[name], least)) if name in found else "" for name in names]


def as_text(result: dict[str, Any]) -> str:
    """The result as a table, and what it shows."""
    rows = []
    for title, case in in_order(result, cases(None)).items():
        for solver, found in case["solvers"].items():
            cells = [
                ["–", "–"] if each is None else [f"{each['budget']:g}", f"{each['seconds']:.3g}"]
                for each in found["reached"]
            ]
            rows.append([title, solver, *cells[0], *cells[1], f"{found['limit']:g}", found["commit"][:7]])
    headings = ["data", "solver", "budget to 10⁻³", "seconds", "budget to 10⁻⁶", "seconds", "limit", "commit"]
    parts = [overview(result, in_order(result, part(None))) for part in (developed, held_out)]
    return "\n\n".join([NOTE, "Developed on:", parts[0], "Held out:", parts[1], table(headings, rows)])


if __name__ == "__main__":
    main()
