"""Chains: what control variates and Hamiltonian steps cost per step, and how chains use several cores; a small net.

Steps are timed in processor seconds, the rivals in turn. Chains in parallel are timed by the clock, so that this part
needs a machine that does nothing else. The net is that of `examples/posteriors_sghmc.py`.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "examples"))

import numpy as np

import avare
from avare.problems import Logistic
from harness import duration, save, table, where
from posteriors_sghmc import run as run_net

SAMPLERS = ("Uniform", "Calibrated")
WAYS: dict[str, dict[str, Any]] = {
    "SGLD": {"control": "none"},
    "SGLD, control at the mode": {"control": "mode"},
    "SGLD, control by SAGA's table": {"control": "saga"},
    "SGHMC": {"control": "none", "friction": 1.0},
    "SGHMC, control at the mode": {"control": "mode", "friction": 1.0},
}


def make_problem(n: int, dim: int) -> Logistic:
    """Make a logistic regression with rows of different lengths."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, dim)) * generator.lognormal(0.0, 0.5, (n, 1)) / dim**0.5
    return Logistic(X, generator.random(n) < 1.0 / (1.0 + np.exp(-X @ generator.normal(size=dim))), l2=1.0)


def chain(problem: Logistic, mode: Any, name: str, way: dict[str, Any], steps: int, chains: int = 1) -> Any:
    """Run chains with steps so small that they stay near the mode."""
    solve = avare.sghmc if "friction" in way else avare.sgld
    options = {**way, "control": mode if way["control"] == "mode" else way["control"]}
    scale = np.ones(problem.dim)
    sampler = avare.samplers.build(name, problem, 32, lasting_floor=True, seed=0)
    return solve(
        problem, sampler, 1e-5, precondition=scale, steps=steps, thin=100, start=mode, seed=0, chains=chains, **options
    )


def per_step(problem: Logistic, steps: int, rounds: int) -> list[dict[str, Any]]:
    """Return the processor seconds of a step of each way, the least of some rounds."""
    mode, rows = problem.minimize(), []
    for name in SAMPLERS:
        least = dict.fromkeys(WAYS, np.inf)
        for options in WAYS.values():
            chain(problem, mode, name, options, 10)  # compiles
        for _ in range(rounds):
            for way, options in WAYS.items():
                started = time.process_time()
                chain(problem, mode, name, options, steps)
                least[way] = min(least[way], (time.process_time() - started) / steps)
        rows += [
            {"sampler": name, "way": way, "seconds": least[way], "ratio": least[way] / least["SGLD"]} for way in WAYS
        ]
    return rows


def parallel(problem: Logistic, steps: int, rounds: int) -> dict[str, float]:
    """Return the draws per second of four chains over those of one, by the clock: the best of some rounds."""
    mode, options = problem.minimize(), WAYS["SGLD, control at the mode"]
    seconds = {1: np.inf, 4: np.inf}
    for _ in range(rounds):
        for count in seconds:
            started = time.perf_counter()
            chain(problem, mode, "Calibrated", options, steps, chains=count)
            seconds[count] = min(seconds[count], time.perf_counter() - started)
    return {"one": seconds[1], "four": seconds[4], "ratio": 4.0 * seconds[1] / seconds[4]}


def small_net(seeds: int) -> dict[str, Any]:
    """Return log-loss, error and calibration error on test data by SGHMC with both kinds of batches, for each seed."""
    return {name: [run_net(name, seed=seed) for seed in range(seeds)] for name in SAMPLERS}


def main() -> None:
    """Measure and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--columns", type=int, default=22)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5, help="of the small net")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    problem = make_problem(arguments.examples, arguments.columns)
    rows = per_step(problem, arguments.steps, arguments.rounds)
    chains = parallel(problem, 5 * arguments.steps, arguments.rounds)
    text = [[row["sampler"], row["way"], duration(row["seconds"]), f"{row['ratio']:.2f}"] for row in rows]
    markdown = f"Logistic regression, {arguments.examples} x {arguments.columns}, batches of 32, processor time.\n\n"
    markdown += table(["sampler", "step", "time", "over SGLD's"], text)
    markdown += (
        f"\n\nFour chains on {os.cpu_count()} cores give {chains['ratio']:.2f} times the draws per second of one."
    )
    markdown += "\n\nAims: control at the mode at most 1.3 times SGLD's step; four chains on two cores at least 1.8."
    net = small_net(arguments.seeds)
    markdown += "\n\nPosterior of a small net by SGHMC (examples/posteriors_sghmc.py): means over "
    markdown += f"{arguments.seeds} seeds and their standard errors, on test data.\n\n"
    markdown += table(
        ["batches", "log-loss", "error", "calibration error"], [[name, *_means(net[name])] for name in net]
    )
    print(markdown)
    if not arguments.no_save:
        settings = {key: value for key, value in vars(arguments).items() if key != "no_save"}
        save("chains", {"where": where(), "settings": settings, "steps": rows, "chains": chains, "net": net}, markdown)


def _means(runs: list[tuple[float, float, float]]) -> list[str]:
    means = np.mean(runs, axis=0)
    errors = np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs))
    loss, *percentages = zip(means, errors, strict=True)
    return [f"{loss[0]:.4f} ± {loss[1]:.4f}", *(f"{mean:.2%} ± {error:.2%}" for mean, error in percentages)]


if __name__ == "__main__":
    main()
