"""Calibrated in Avare's place in the paper's experiments: how far each is from the best distribution.

Needs MNIST and IJCNN1: in a folder named by ``--data`` or the variable AVARE_DATA, or from the network.
"""

import argparse
from typing import Any

import numpy as np

import avare
from avare import datasets, schedules
from avare.problems import Softmax
from harness import save, table, where

EPOCHS, BATCH_SIZE = 100, 128
LAST = 5  # epochs that are averaged over
LIMIT = 0.02  # above Avare's relative error
MEANING = (
    "Relative error of the distribution, [c(p) − (Σn)²] / (Σn)², in the paper's experiments (softmax, batches of 128 "
    f"with replacement): mean over the last {LAST} of {EPOCHS} epochs, then mean and standard deviation over seeds."
)


def run(problem: Softmax, name: str, steps: str, seed: int) -> float:
    """The relative error at the end of a run in the paper's settings."""
    largest = float(problem.smoothness.max())
    sizes: schedules.Schedule = schedules.constant(BATCH_SIZE / (2.0 * problem.n * largest))
    p_min = 1.0 / (5 * problem.n)
    if steps == "decreasing":
        sizes, p_min = schedules.inverse_time(problem.n, largest, problem.strong_convexity, BATCH_SIZE), 0.0
    make: Any = avare.samplers.get(name)
    sampler = make(problem.n, BATCH_SIZE, replacement=True, p_min=p_min, seed=seed)
    trace = avare.sgd(problem, sampler, sizes, epochs=EPOCHS).trace
    return float(np.mean(trace.relative_error[-LAST:]))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for name in ("ijcnn1", "mnist"):
        data = datasets.load(name, folder=arguments.data)
        problem = Softmax(data.X, data.y, l2=1.0)
        for steps in ("decreasing", "constant"):
            print(f"Measuring {name}, {steps} steps ...", flush=True)
            found[f"{name}, {steps}"] = {
                sampler: [run(problem, sampler, steps, seed) for seed in range(arguments.seeds)]
                for sampler in ("Avare", "Calibrated")
            }
    rows = []
    for place, each in found.items():
        more = float(np.mean(each["Calibrated"]) - np.mean(each["Avare"]))
        means = (f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" for values in each.values())
        rows.append([place, *means, f"{more:+.4f}", "yes" if more <= LIMIT else "**no**"])
    text = "\n\n".join(
        [
            "# Calibrated in the paper's experiments",
            MEANING,
            table(["", "Avare", "Calibrated", "difference", f"≤ {LIMIT}"], rows),
        ]
    )
    save("calibrated", {"where": where(), "relative_errors": found}, text)
    print(text)


if __name__ == "__main__":
    main()
