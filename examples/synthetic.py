"""Every sampler on the paper's synthetic problem: how close it comes to the best distribution."""

from typing import Any

import numpy as np

import avare
from avare.experiments import datasets
from avare.samplers import build, get, names


def adaptation(seeds: int, epochs: int = 100) -> dict[str, list[tuple[float, float]]]:
    """By sampler and seed, the relative errors of its distribution and of a uniform one at the same iterates.

    Both are means over the last five epochs. Batches of 1, the theory's settings: T = all draws,
    G = the longest row.
    """
    data = datasets.load("synthetic")
    problem = avare.problems.Logistic(data.X, data.y, l2=1.0)
    step_size = avare.schedules.inverse_time(problem.n, problem.smoothness.max(), problem.l2)
    bound = float(problem.lengths.max())
    errors: dict[str, list[tuple[float, float]]] = {}
    for name in names():
        errors[name] = []
        for seed in range(seeds):
            uniform: list[float] = []

            def look(now: avare.solvers.Progress, found: list[float] = uniform) -> None:
                found.append(float(avare.diagnostics.gain(problem.norms(now.x))) - 1.0)

            limits: dict[str, Any] = {"bound": bound} if "bound" in get(name).takes else {}
            sampler = build(name, problem, 1, horizon=epochs * problem.n, seed=seed, **limits)
            run = avare.sgd(problem, sampler, step_size, epochs=epochs, callback=look)
            errors[name].append((float(run.trace.relative_error[-5:].mean()), float(np.mean(uniform[-5:]))))
    return errors


def main() -> None:
    """Print the relative error of each sampler's distribution beside that of uniform draws at the same iterates."""
    print("Relative error of the distribution, mean of the last 5 of 100 epochs and of 2 seeds; 0 is the best.")
    print(f"{'sampler':12} {'its own':>9} {'uniform':>9}")
    for name, runs in sorted(adaptation(2).items(), key=lambda pair: float(np.mean(pair[1], axis=0)[0])):
        own, uniform = np.mean(runs, axis=0)
        print(f"{name:12} {own:9.3f} {uniform:9.3f}")


if __name__ == "__main__":
    main()
