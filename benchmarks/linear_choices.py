"""The cost model of linear models: how far the method that it chooses is from the best one.

On the problems of `linear_shapes` for seeds 0, 1 and 2 (without l1), fits with the chosen method are timed in turns
with fits by each single solver of a step, with and without samples of the rows first, and by dual ascent. A solver
cannot be replaced by another one then.
"""

import argparse
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from avare.linear import dual_ascent, newton, newton_system, samples
from avare.linear.solver import solve
from avare.sklearn import base
from harness import duration, save, table, where
from linear_shapes import Shape, draw, in_turns, ours

TARGET = 1e-6
_DUAL = "dual ascent"
_MUCH_SLOWER = 10.0  # times the chosen method: not timed again


def names(shape: Shape) -> list[str]:
    """The preconditioners that are possible for all rows of a problem, and dual ascent."""
    found, possible = list[str](), list[bool]()
    all_levels, cost = newton_system.all_levels, dual_ascent.expected_cost

    def levels_of(total: Any) -> Any:
        levels = all_levels(total)
        found[:] = [level.name for level in levels]  # the last one has all rows
        return levels

    def cost_of(task: Any) -> float:
        possible.append(cost(task) < np.inf)
        return np.inf

    with (
        mock.patch.object(newton_system, "all_levels", levels_of),
        mock.patch.object(dual_ascent, "expected_cost", cost_of),
        mock.patch.object(base, "solve", partial(solve, strategies=[dual_ascent, newton])),
    ):
        ours(shape, TARGET)()
    return found + [_DUAL] * any(possible)


def fixed(shape: Shape, name: str, samples_first: bool) -> Callable[[], Any]:
    """A fit by one preconditioner, or by dual ascent."""
    fit = ours(shape, TARGET)
    strategies = [dual_ascent] if name == _DUAL else [samples, newton] if samples_first else [newton]

    def one(levels: Any) -> Any:
        return [level for level in levels if level.name == name] or levels[-1:]

    def run() -> Any:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(base, "solve", partial(solve, strategies=strategies)))
            stack.enter_context(mock.patch.object(newton_system, "_worthwhile", one))
            stack.enter_context(mock.patch.object(dual_ascent.DualAscent, "needed", return_value=0.0))
            return fit()

    return run


def measure(seed: int, number: int) -> dict[str, Any] | None:
    """The seconds of the chosen method and of each single solver; None with an l1 term."""
    shape = draw(seed, number)
    if shape.l1:
        return None
    chosen = ours(shape, TARGET)
    fits = {"chosen": chosen}
    for name in names(shape):
        fits[name] = fixed(shape, name, False)
        if name != _DUAL:
            fits[f"{name}, samples first"] = fixed(shape, name, True)
    once = in_turns(fits, rounds=1)
    fits = {name: fit for name, fit in fits.items() if once[name] <= _MUCH_SLOWER * once["chosen"]}
    seconds = once | in_turns(fits)
    return {"seed": seed, "shape": number, "title": shape.title, "seconds": seconds}


def report(result: dict[str, Any]) -> str:
    """How far the choice is from the best, and the worst choices."""
    rows = [(row["seconds"]["chosen"] / min(row["seconds"].values()), row) for row in result["shapes"]]
    ratios = np.array([ratio for ratio, _ in rows])
    facts = (
        f"Seeds 0, 1 and 2, {len(rows)} problems without l1, fits to 10⁻⁶. The seconds of the chosen method over those "
        "of the best single solver, which is not known beforehand: 1 if the choice was the best one. Times vary by a "
        "few percent, and the best of several is low by chance."
    )
    shares = [f"{np.mean(ratios <= limit):.0%}" for limit in (1.1, 1.5, 2.0)]
    cells = [f"{value:.2f}" for value in (*np.quantile(ratios, [0.5, 0.9]), ratios.max())]
    quantiles = table(["≤ 1.1", "≤ 1.5", "≤ 2", "median", "90 %", "worst"], [[*shares, *cells]])
    lines = []
    for ratio, row in sorted(rows, key=lambda item: -item[0])[:10]:
        best = min(row["seconds"], key=row["seconds"].__getitem__)
        times = [duration(row["seconds"]["chosen"]), duration(row["seconds"][best])]
        lines.append([row["title"], f"{row['seed']}, {row['shape']}", f"{ratio:.2f}", *times, best])
    slowest = table(["problem", "seed, shape", "ratio", "chosen", "best", "by"], lines)
    return "\n\n".join([facts, quantiles, "The worst ten:", slowest])


def main() -> None:
    """Measure some problems of each seed, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=40, help="of each seed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"where": where(), "shapes": []}
    with threadpool_limits(1):
        for seed in range(3):
            for number in range(arguments.shapes):
                found = measure(seed, number)
                result["shapes"] += [] if found is None else [found]
            save("linear_choices", result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
