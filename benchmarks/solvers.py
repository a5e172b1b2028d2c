"""SGD as a whole: the time of an epoch, the time to an objective, and memory: `make bench`.

It needs MNIST and IJCNN1, in the folder ``--data`` or AVARE_DATA, or from the network. Rivals are those of
scikit-learn, on the same objective and data, without an intercept, each with the settings that reach the same
objective in the shortest time.
"""

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, SGDClassifier

import avare
from avare.experiments import datasets
from avare.experiments.datasets import Data
from avare.problems import Linear, Logistic, Softmax
from harness import duration, interleave, save, table, where

EPOCHS = 100
RACE = (
    f"Epochs until a run reaches the objective of uniform SGD after {EPOCHS} epochs in the paper's settings (softmax, "
    "batches of 128 with replacement, steps m / (2NL + mμt) with the largest L), and its epochs and seconds as a "
    "fraction of Uniform's. Besides the paper's steps, those with 0.4 L (larger) and 3 L (smaller). SAGA is "
    "scikit-learn's LogisticRegression, with the fewest epochs (of 1, 2, 3, 4, 6, 8, 12, ...) that reach the "
    "objective, set-up included. Seconds are medians of three runs without evaluations."
)
EPOCH = (
    "Median time of an epoch with batches of 128: softmax regression on MNIST (60,000 × 784, float32), and logistic "
    "regression on IJCNN1 (49,990 × 22, float64)."
)
Maker = type[avare.Avare] | type[avare.Calibrated] | type[avare.Uniform]
KINDS: dict[str, Maker] = {"Uniform": avare.Uniform, "Avare": avare.Avare, "Calibrated": avare.Calibrated}
WAYS = {"with replacement": True, "without": False}
LIMITS = [
    ("MNIST", "Avare", "Uniform", 1.10),
    ("MNIST", "Calibrated", "Avare", 1.15),
    ("IJCNN1", "Calibrated", "Avare", 1.15),
]


def step_sizes(problem: Linear, batch_size: int) -> avare.schedules.Schedule:
    """Return the paper's step sizes."""
    return avare.schedules.inverse_time(problem.n, problem.smoothness.max(), problem.l2, batch_size)


def epoch_of(problem: Linear, kind: Maker, batch_size: int, replacement: bool) -> Callable[[], object]:
    """Return a function that runs an epoch of SGD after some epochs of warm-up, without evaluations."""
    sizes = step_sizes(problem, batch_size)
    sampler = kind(problem.n, batch_size, replacement=replacement, seed=0)
    start = avare.sgd(problem, sampler, sizes, epochs=3, evaluate="never").x

    def epoch() -> None:
        avare.sgd(problem, sampler, sizes, epochs=1, start=start, evaluate="never")

    return epoch


def epochs_of(problem: Linear, seconds: float) -> dict[str, dict[str, float]]:
    """Measure an epoch with batches of 128, of each sampler in turn, with replacement and without."""
    times = interleave(
        {f"{name}/{way}": epoch_of(problem, KINDS[name], 128, WAYS[way]) for name in KINDS for way in WAYS},
        seconds=seconds,
    )
    return {name: {way: times[f"{name}/{way}"] for way in WAYS} for name in KINDS}


def classifier_epochs(data: Data, l2: float) -> float:
    """Measure an epoch of SGDClassifier without set-up: the difference between long and short fits."""

    def fit(epochs: int) -> float:
        model = SGDClassifier(
            loss="log_loss", alpha=l2 / len(data), max_iter=epochs, tol=None, fit_intercept=False, random_state=0
        )
        started = time.perf_counter()
        model.fit(data.X, data.y)
        return time.perf_counter() - started

    fit(1)
    return float(np.median([(fit(11) - fit(1)) / 10 for _ in range(9)]))


def race(data: Data, seeds: int) -> dict[str, Any]:
    """Measure epochs and seconds until a run reaches the objective of uniform SGD after 100 epochs.

    Each is a fraction of uniform SGD's; infinite if 100 epochs are not enough. A first run, evaluated every quarter of
    an epoch, finds the number of steps; it is then repeated without evaluations to measure its seconds.
    """
    problem = Softmax(data.X, data.y, l2=1.0)
    epoch = problem.n // 128
    found: dict[str, Any] = {"goal": [], "uniform_seconds": [], "epochs": {}, "seconds": {}}

    def train(kind: Maker, factor: float, seed: int, steps: int, **options: Any) -> avare.solvers.Run:
        sizes = avare.schedules.inverse_time(problem.n, factor * problem.smoothness.max(), problem.l2, 128)
        sampler = kind(problem.n, 128, replacement=True, seed=seed)
        return avare.sgd(problem, sampler, sizes, steps=steps, **options)

    for seed in range(seeds):
        goal = problem.objective(train(avare.Uniform, 1.0, seed, EPOCHS * epoch, evaluate="never").x)
        found["goal"].append(goal)

        def there(now: avare.solvers.Progress, goal: float = goal) -> bool:
            return bool(now.trace.objective[-1] <= goal)

        again = {"Uniform, 1 L": partial(train, avare.Uniform, 1.0, seed, EPOCHS * epoch, evaluate="never")}
        for kind, factor in ((avare.Avare, 1.0), (avare.Avare, 0.4), (avare.Avare, 3.0), (avare.Uniform, 3.0)):
            run = train(kind, factor, seed, EPOCHS * epoch, evaluate=max(1, epoch // 4), callback=there)
            name, reached = f"{kind.__name__}, {factor:g} L", run.status == "stopped"
            found["epochs"].setdefault(name, []).append(run.steps / epoch / EPOCHS if reached else float("inf"))
            if reached:
                again[name] = partial(train, kind, factor, seed, run.steps, evaluate="never")
        rounds = [{name: run().seconds for name, run in again.items()} for _ in range(3)]
        times = {name: float(np.median([each[name] for each in rounds])) for name in again}
        found["uniform_seconds"].append(times["Uniform, 1 L"])
        for name in found["epochs"]:
            share = times.get(name, float("inf")) / times["Uniform, 1 L"]
            found["seconds"].setdefault(name, []).append(share)
    goal = float(np.mean(found["goal"]))
    # Of two classes scikit-learn fits the difference of their coefficients: half the penalty is the same.
    two = len(problem.classes) == 2
    for most in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96):
        model = LogisticRegression(
            solver="saga", C=2.0 if two else 1.0, fit_intercept=False, max_iter=most, tol=0.0, random_state=0
        )
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(data.X, data.y)
        found["saga_seconds"], found["saga_epochs"] = time.perf_counter() - started, most
        coefficients = np.vstack([-model.coef_, model.coef_]) / 2.0 if two else model.coef_
        found["saga_objective"] = problem.objective(coefficients.ravel())
        if found["saga_objective"] <= goal:
            break
    return found


def peak(n: int, dimension: int) -> dict[str, float]:
    """Measure the bytes that a run needs besides the data, in a new process, after compilation."""
    program = [sys.executable, __file__, "--peak", str(n), str(dimension)]
    return {
        "n": n,
        "data": 4.0 * n * dimension,
        "peak": float(subprocess.run(program, capture_output=True, text=True, check=True).stdout),
        "allowed": 64e6 + 32.0 * n,
    }


def measure_peak(n: int, dimension: int) -> None:
    """Print by how many bytes the process grows, from when it has the data until the end of a run."""

    def train(n: int) -> int:
        generator = np.random.default_rng(0)
        X = np.empty((n, dimension), dtype=np.float32)
        for first in range(0, n, 10_000):
            X[first : first + 10_000] = generator.normal(size=(min(10_000, n - first), dimension))
        y = np.ones(n, dtype=np.int8)
        y[X[:, 0] < 0] = -1
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present use
        before = _high_water()
        problem = Logistic(X, y, l2=1.0)
        avare.sgd(problem, avare.Avare(n, 128, seed=0), 1e-6, epochs=2)
        return _high_water() - before

    train(1000)  # compiles
    print(train(n) * 1024)


def _high_water() -> int:
    """Return the peak memory of this process in kB, as Linux reports it."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def report(result: dict[str, Any]) -> str:
    """Format the measured numbers as tables."""
    epochs, batch_1 = result["epoch"], result["batch_1"]
    targets = [
        [
            f"{data}, batch 128, {way}: {name} over {other}",
            f"≤ {limit:.2f}",
            f"{epochs[data][name][way] / epochs[data][other][way]:.3f}",
        ]
        for data, name, other, limit in LIMITS
        for way in WAYS
    ]
    targets += [
        ["IJCNN1, batch 1: Avare over SGDClassifier", "≤ 4", f"{batch_1['Avare'] / batch_1['SGDClassifier']:.2f}"],
    ]
    races = []
    for name, each in result["race"].items():
        for what in ("epochs", "seconds"):
            share = np.mean(each[what]["Avare, 1 L"])
            targets.append([f"{name}, the paper's steps: fraction of Uniform's {what}", "≤ 0.167", f"{share:.3f}"])
        for entrant, shares in each["epochs"].items():
            pace = np.mean(each["seconds"][entrant])
            races.append([name, entrant, f"{100 * np.mean(shares):.1f}", f"{np.mean(shares):.3f}", f"{pace:.3f}"])
        pace = each["saga_seconds"] / np.mean(each["uniform_seconds"])
        races.append([name, "SAGA", f"{each['saga_epochs']}", f"{each['saga_epochs'] / EPOCHS:.3f}", f"{pace:.3f}"])
    for each in result["memory"]:
        targets.append(
            [
                f"memory besides the data, N = {each['n']:.0e}",
                f"≤ {each['allowed'] / 1e6:.0f} MB",
                f"{each['peak'] / 1e6:.0f} MB",
            ]
        )
    rows = [
        [f"{name}, {way}", *(duration(epochs[data][name][way]) for data in epochs)] for name in KINDS for way in WAYS
    ]
    return "\n\n".join(
        [
            "# Solvers",
            EPOCH,
            table(["sampler", *epochs], rows),
            "Median time of an epoch with batches of 1, logistic regression on IJCNN1.",
            table(["", "seconds"], [[name, duration(each)] for name, each in batch_1.items()]),
            RACE,
            table(["data", "", "epochs", "fraction of epochs", "fraction of seconds"], races),
            table(["target", "wanted", "measured"], targets),
        ]
    )


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--seconds", type=float, default=45.0, help="time for each comparison of epochs")
    parser.add_argument("--seeds", type=int, default=2, help="number of races")
    parser.add_argument("--peak", type=int, nargs=2, metavar=("N", "D"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        measure_peak(*arguments.peak)
        return
    result: dict[str, Any] = {"where": where()}
    mnist, ijcnn1 = (datasets.load(name, folder=arguments.data) for name in ("mnist", "ijcnn1"))
    logistic = Logistic(ijcnn1.X, ijcnn1.y, l2=1.0)
    problems = {"MNIST": Softmax(mnist.X, mnist.y, l2=1.0), "IJCNN1": logistic}
    result["epoch"] = {}
    for name, problem in problems.items():
        print(f"Measuring epochs on {name} ...", flush=True)
        result["epoch"][name] = epochs_of(problem, arguments.seconds)
    result["batch_1"] = interleave(
        {name: epoch_of(logistic, KINDS[name], 1, True) for name in KINDS}, seconds=arguments.seconds / 3
    )
    result["batch_1"]["SGDClassifier"] = classifier_epochs(ijcnn1, 1.0)
    result["race"] = {}
    for name, data in (("MNIST", mnist), ("IJCNN1", ijcnn1)):
        print(f"Racing on {name} ...", flush=True)
        result["race"][name] = race(data, arguments.seeds)
    del mnist, problems, problem
    print("Measuring memory ...", flush=True)
    result["memory"] = [peak(10**6, 50), peak(5 * 10**6, 20)]
    text = report(result)
    save("solvers", result, text)
    print(text)


if __name__ == "__main__":
    main()
