"""Calibrated in place of Avare in the paper's experiments: the distance of each to the best distribution.

It needs MNIST and IJCNN1, in the folder ``--data`` or AVARE_DATA, or from the network.
"""

import argparse
from typing import Any

import numpy as np

from avare.experiments import Request, obtain
from avare.experiments.paper import descents
from avare.experiments.runner import perform
from harness import save, table, where

SAMPLERS = ("Avare", "Calibrated")
LAST = 5  # epochs to average
LIMIT = 0.02  # how much the relative error may exceed Avare's
MEANING = (
    "Relative error of the distribution, [c(p) − (Σn)²] / (Σn)², in the paper's experiments (softmax, batches of 128 "
    f"with replacement): mean over the last {LAST} of 100 epochs, then mean and standard deviation over seeds."
)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for name in ("ijcnn1", "mnist"):
        print(f"Measuring {name} ...", flush=True)
        data, _ = obtain(name, folder=arguments.data)
        for task in descents(data, 0.0, Request(runs=arguments.seeds, samplers=SAMPLERS)):
            errors = perform(task.spec, data.X, data.y)["trace"]["relative_error"]
            cell = found.setdefault(f"{name}, {task.spec['steps']}", {sampler: [] for sampler in SAMPLERS})
            cell[task.spec["sampler"]].append(float(np.mean(errors[-LAST:])))
    rows = []
    for place, each in found.items():
        more = float(np.mean(each["Calibrated"]) - np.mean(each["Avare"]))
        means = (f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" for values in each.values())
        rows.append([place, *means, f"{more:+.4f}", "yes" if more <= LIMIT else "**no**"])
    text = "\n\n".join(
        [
            "# Calibrated in the paper's experiments",
            MEANING,
            table(["", *SAMPLERS, "difference", f"≤ {LIMIT}"], rows),
        ]
    )
    result: dict[str, Any] = {"where": where(), "relative_errors": found}
    save("calibrated", result, text)
    print(text)


if __name__ == "__main__":
    main()
