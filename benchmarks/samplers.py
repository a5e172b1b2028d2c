"""Every sampler: the cost of a step, and the distance to the best distribution: `make bench`.

A step draws a batch of 128 and updates their norms, log-normal(0, 2), with each sampler's
default for `replacement`. The second table is the paper's synthetic problem (N = 100, d = 10,
batches of 1, 100 epochs, the theory's settings with T = 10,000 draws and G = the longest row).
"""

import argparse
import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from avare.samplers import LimitWarning, get, names
from harness import duration, interleave, save, table, where

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from synthetic import adaptation

BATCH_SIZE = 128
SIZES = [10**4, 10**6, 10**7]
LIMITS = {"Calibrated": 1.2, "Mabs": 2.0, "Vrb": 2.0, "Srg": 2.0, "Static": 2.0}  # times Avare's cost
Step = Callable[[], object]
SYNTHETIC = (
    "Relative error of the distribution on the paper's synthetic problem: mean over the last five of 100 epochs, "
    "then mean and standard deviation over seeds."
)


def step_of(name: str, n: int) -> Step:
    """Return a function that draws a batch and updates its norms."""
    generator = np.random.default_rng(1)
    norms = generator.lognormal(0.0, 2.0, n)
    arguments: dict[str, dict[str, Any]] = {
        "Avare": {"initial_norms": norms},
        "Calibrated": {"initial_norms": norms},
        "Static": {"smoothness": norms},
        "Safe": {"smoothness": norms, "bound": 1e5},
        "Mixture": {"components": np.stack([norms, norms[::-1]])},
        "Optimal": {"norms": lambda: norms},
        **{limited: {"horizon": 10**9, "bound": 1e5} for limited in ("Mabs", "Vrb", "Osmd")},
    }
    sampler = get(name)(n, BATCH_SIZE, seed=0, **arguments.get(name, {}))
    if name == "Srg":
        sampler.update(np.arange(n), norms)
    pick = itertools.cycle(list(generator.lognormal(0.0, 2.0, (64, BATCH_SIZE)))).__next__

    def step() -> None:
        batch = sampler.sample()
        sampler.update(batch.indices, pick())

    return step


def costs(n: int, seconds: float) -> dict[str, float]:
    """Measure the seconds per step of each sampler."""
    return interleave({name: step_of(name, n) for name in names()}, seconds=seconds)


def report(result: dict[str, Any]) -> str:
    """Format the measured numbers as tables."""

    def cost(each: dict[str, float], name: str) -> str:
        return f"{duration(each[name])} ({each[name] / each['Uniform']:.2g} ×, {each[name] / each['Avare']:.2g} ×)"

    measured = sorted(next(iter(result["costs"].values())))
    rows = [[name, *(cost(each, name) for each in result["costs"].values())] for name in measured]
    limits = [
        [
            f"{name}, N = {int(n):.0e}",
            f"≤ {limit:g} × Avare",
            f"{each[name] / each['Avare']:.2f} ×",
            "yes" if each[name] <= limit * each["Avare"] else "**no**",
        ]
        for name, limit in LIMITS.items()
        for n, each in result["costs"].items()
    ]
    errors = sorted(result["adaptation"].items(), key=lambda item: float(np.mean(item[1])))
    return "\n\n".join(
        [
            "# Samplers",
            f"Median time of a draw and an update of a batch of {BATCH_SIZE}; in brackets, over Uniform's and Avare's.",
            table(["sampler", *(f"N = {int(n):.0e}" for n in result["costs"])], rows),
            table(["target", "wanted", "measured", "met"], limits),
            SYNTHETIC,
            table(
                ["sampler", "relative error", "±"],
                [[name, f"{np.mean(each):.4f}", f"{np.std(each):.4f}"] for name, each in errors],
            ),
        ]
    )


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="numbers of examples")
    parser.add_argument("--seconds", type=float, default=30.0, help="to spend on each number of examples")
    parser.add_argument("--seeds", type=int, default=10, help="runs of the synthetic problem")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", LimitWarning)
    result: dict[str, Any] = {"where": where(), "costs": {}}
    for n in map(int, arguments.sizes):
        print(f"Measuring at N = {n:.0e} ...", flush=True)
        result["costs"][str(n)] = costs(n, arguments.seconds)
    print("Training on the synthetic problem ...", flush=True)
    result["adaptation"] = {name: [error for error, _ in each] for name, each in adaptation(arguments.seeds).items()}
    text = report(result)
    save("samplers", result, text)
    print(text)


if __name__ == "__main__":
    main()
