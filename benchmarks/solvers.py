"""SGD as a whole: what Avare adds to an epoch, what it saves to an objective, and memory: `make bench`.

Needs MNIST and IJCNN1: in a folder named by ``--data`` or the variable AVARE_DATA, or from the
network. Rivals are scikit-learn's, on the same objective and data, without an intercept, each at
settings that take it to the same objective in the least time.
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
from avare.datasets import Dataset
from avare.problems import Linear, Logistic, Softmax
from harness import duration, interleave, save, table, where

EPOCHS = 100
RACE = (
    f"To the objective of uniform SGD after {EPOCHS} epochs in the paper's settings (softmax, batches of 128 with "
    "replacement, steps m / (2NL + mμt) with the largest L): epochs, and the share that they and their seconds are of "
    "Uniform's. Beside the paper's steps, those of 0.4 L (longer) and 3 L (shorter). SAGA is scikit-learn's "
    "LogisticRegression, with the fewest epochs (of 1, 2, 3, 4, 6, 8, 12, ...) that reach it, its set-up included. "
    "Seconds are medians of three runs in which nothing is evaluated."
)
Maker = type[avare.Avare] | type[avare.Uniform]


def step_sizes(problem: Linear, batch_size: int) -> avare.schedules.InverseTime:
    """The paper's."""
    return avare.schedules.inverse_time(problem.n, problem.smoothness.max(), problem.l2, batch_size)


def epoch_of(problem: Linear, kind: Maker, batch_size: int, replacement: bool) -> Callable[[], object]:
    """An epoch of SGD, from a state that has seen some; nothing is evaluated."""
    sizes = step_sizes(problem, batch_size)
    sampler = kind(problem.n, batch_size, replacement=replacement, seed=0)
    start = avare.sgd(problem, sampler, sizes, epochs=3, evaluate="never").x

    def epoch() -> None:
        avare.sgd(problem, sampler, sizes, epochs=1, start=start, evaluate="never")

    return epoch


def classifier_epochs(data: Dataset, l2: float) -> float:
    """Seconds of an epoch of SGDClassifier: the difference between long and short fits, without its set-up."""

    def fit(epochs: int) -> float:
        model = SGDClassifier(
            loss="log_loss", alpha=l2 / len(data), max_iter=epochs, tol=None, fit_intercept=False, random_state=0
        )
        started = time.perf_counter()
        model.fit(data.X, data.y)
        return time.perf_counter() - started

    fit(1)
    return float(np.median([(fit(11) - fit(1)) / 10 for _ in range(9)]))


def race(data: Dataset, seeds: int) -> dict[str, Any]:
    """Epochs and seconds to where uniform SGD is after 100 epochs, in the paper's settings and at other step sizes.

    Each is a share of what uniform SGD took; infinite where it is not reached in as many epochs. Where that is comes
    from a run that is looked at every quarter of an epoch; it is then made again for its seconds, without looking.
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
    """Bytes that a run takes beyond the data, in a process of its own, kernels compiled before."""
    program = [sys.executable, __file__, "--peak", str(n), str(dimension)]
    return {
        "n": n,
        "data": 4.0 * n * dimension,
        "peak": float(subprocess.run(program, capture_output=True, text=True, check=True).stdout),
        "allowed": 64e6 + 32.0 * n,
    }


def measure_peak(n: int, dimension: int) -> None:
    """Print how many bytes the process grows from when the data stands until the end of a run."""

    def train(n: int) -> int:
        generator = np.random.default_rng(0)
        X = np.empty((n, dimension), dtype=np.float32)
        for first in range(0, n, 10_000):
            X[first : first + 10_000] = generator.normal(size=(min(10_000, n - first), dimension))
        y = np.ones(n, dtype=np.int8)
        y[X[:, 0] < 0] = -1
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is in use now
        before = _high_water()
        problem = Logistic(X, y, l2=1.0)
        avare.sgd(problem, avare.Avare(n, 128, seed=0), 1e-6, epochs=2)
        return _high_water() - before

    train(1000)  # compiles
    print(train(n) * 1024)


def _high_water() -> int:
    """The most memory that this process has had in use, in kB; Linux tells, and lets it be reset."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def report(result: dict[str, Any]) -> str:
    """The measured numbers as tables."""
    epochs, batch_1 = result["epoch"], result["batch_1"]
    targets = [
        [
            f"MNIST, batch 128, {way}: Avare over Uniform",
            "≤ 1.10",
            f"{epochs['Avare'][way] / epochs['Uniform'][way]:.3f}",
        ]
        for way in ("with replacement", "without")
    ]
    targets += [
        ["IJCNN1, batch 1: Avare over SGDClassifier", "≤ 4", f"{batch_1['Avare'] / batch_1['SGDClassifier']:.2f}"],
    ]
    races = []
    for name, each in result["race"].items():
        for what in ("epochs", "seconds"):
            share = np.mean(each[what]["Avare, 1 L"])
            targets.append([f"{name}, the paper's steps: share of Uniform's {what}", "≤ 0.167", f"{share:.3f}"])
        for entrant, shares in each["epochs"].items():
            pace = np.mean(each["seconds"][entrant])
            races.append([name, entrant, f"{100 * np.mean(shares):.1f}", f"{np.mean(shares):.3f}", f"{pace:.3f}"])
        pace = each["saga_seconds"] / np.mean(each["uniform_seconds"])
        races.append([name, "SAGA", f"{each['saga_epochs']}", f"{each['saga_epochs'] / EPOCHS:.3f}", f"{pace:.3f}"])
    for each in result["memory"]:
        targets.append(
            [
                f"memory beyond the data, N = {each['n']:.0e}",
                f"≤ {each['allowed'] / 1e6:.0f} MB",
                f"{each['peak'] / 1e6:.0f} MB",
            ]
        )
    rows = [[name, duration(each["with replacement"]), duration(each["without"])] for name, each in epochs.items()]
    return "\n\n".join(
        [
            "# Solvers",
            "An epoch of softmax regression on MNIST (60,000 × 784, float32), batches of 128, median.",
            table(["sampler", "with replacement", "without"], rows),
            "An epoch of logistic regression on IJCNN1 (49,990 × 22, float64), batches of 1, median.",
            table(["", "seconds"], [[name, duration(each)] for name, each in batch_1.items()]),
            RACE,
            table(["data", "", "epochs", "share of epochs", "share of seconds"], races),
            table(["target", "wanted", "measured"], targets),
        ]
    )


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each comparison of epochs")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--peak", type=int, nargs=2, metavar=("N", "D"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        measure_peak(*arguments.peak)
        return
    result: dict[str, Any] = {"where": where()}
    mnist, ijcnn1 = (avare.datasets.load(name, folder=arguments.data) for name in ("mnist", "ijcnn1"))
    print("Measuring epochs on MNIST ...", flush=True)
    softmax = Softmax(mnist.X, mnist.y, l2=1.0)
    kinds: dict[str, Maker] = {"Uniform": avare.Uniform, "Avare": avare.Avare}
    ways = {"with replacement": True, "without": False}
    times = interleave(
        {f"{name}/{way}": epoch_of(softmax, kinds[name], 128, ways[way]) for name in kinds for way in ways},
        seconds=arguments.seconds,
    )
    result["epoch"] = {name: {way: times[f"{name}/{way}"] for way in ways} for name in kinds}
    print("Measuring epochs on IJCNN1 ...", flush=True)
    logistic = Logistic(ijcnn1.X, ijcnn1.y, l2=1.0)
    result["batch_1"] = interleave(
        {name: epoch_of(logistic, kinds[name], 1, True) for name in kinds}, seconds=arguments.seconds / 3
    )
    result["batch_1"]["SGDClassifier"] = classifier_epochs(ijcnn1, 1.0)
    result["race"] = {}
    for name, data in (("MNIST", mnist), ("IJCNN1", ijcnn1)):
        print(f"Racing on {name} ...", flush=True)
        result["race"][name] = race(data, arguments.seeds)
    del mnist, softmax
    print("Measuring memory ...", flush=True)
    result["memory"] = [peak(10**6, 50), peak(5 * 10**6, 20)]
    text = report(result)
    save("solvers", result, text)
    print(text)


if __name__ == "__main__":
    main()
