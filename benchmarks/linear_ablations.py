"""Does each method of `avare.linear` pay? Our fits with and without it, in turns, on the problems that it touches.

``--seed`` twice or more draws problems of `linear_shapes`; a problem counts for a method if a fit uses it. Extreme
problems (tests/support/extreme_problems.py) are fitted without it too: their gaps must hold.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from avare.linear import (
    coordinate_descent,
    dual_ascent,
    losses,
    newton,
    newton_system,
    preconditioners,
    row_basis,
    samples,
    small,
)
from avare.linear.solver import STRATEGIES, solve
from avare.problems import Linear
from avare.problems.logistic import LogisticLoss
from avare.problems.losses import terms_into
from avare.sklearn import AvareClassifier, AvareRegressor, base
from harness import save, table, where
from linear_shapes import Shape, draw, in_turns, ours

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from extreme_problems import exact_objective, extreme_problem, lowest  # the path must be known first

TARGETS = (1e-4, 1e-6)
WORSE = 1.1  # a method whose removal costs less, in the median and at 90 %, leaves
TOL = 1e-4  # of extreme problems
_ROUNDING = 1e-10  # of their scale
_PATIENCE = 20.0  # times the fit with all methods: a slower one without is not repeated
_LOSSES = {"logistic": "smoothed_hinge", "squares": "huber"}

Fit = Callable[[], Any]


class Method(NamedTuple):
    """A method that can be switched off, and noticed."""

    owner: Any
    notice: str
    """What of the owner is called if the method is used."""
    replaced: str = ""
    """What of the owner is replaced to switch it off; for a strategy nothing: it is left out of the order."""
    other: Any = None
    is_flat: bool = False
    """Whether it is for losses that are flat in parts."""


def _only_sweeps(self: Any, chosen: Any) -> tuple[float, float]:
    return _COSTS(self, chosen)[0], math.inf


def _plain_terms(targets: Any, weights: Any, outputs: Any, slopes: Any, curvatures: Any, *work: Any) -> float:
    arrays = (outputs[:, None], slopes[:, None], curvatures[:, None])
    return float(terms_into(LogisticLoss(), targets, weights, *arrays))


_COSTS = coordinate_descent.CoordinateDescent._costs
METHODS = {
    "small models in one kernel": Method(small, "solve"),
    "dual coordinate ascent": Method(dual_ascent, "solve"),
    "basis of the rows": Method(row_basis, "solve"),
    "samples of the rows first": Method(samples, "solve"),
    "l1: coordinate descent on columns": Method(coordinate_descent, "solve"),
    "l1: Gram matrix after sweeps": Method(coordinate_descent.CoordinateDescent, "_finish", "_costs", _only_sweeps),
    "penalties for flat losses": Method(
        newton, "_by_penalties", "_by_penalties", lambda total, point, goal, steps: (point, 0), True
    ),
    "own series for exp and log1p": Method(losses, "_logistic_terms_into", "_logistic_terms_into", _plain_terms),
    "L-BFGS before Newton steps": Method(
        newton, "approach_by_lbfgs", "approach_by_lbfgs", lambda total, system, point, goal: point
    ),
    "factors of samples": Method(preconditioners, "_draw"),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Switch a method off."""
    method = METHODS[name]
    if method.replaced:
        change: Any = mock.patch.object(method.owner, method.replaced, method.other)
    elif name == "factors of samples":
        change = mock.patch.object(newton_system, "_SHARES", ())
    else:
        rest = [each for each in STRATEGIES if each is not method.owner]
        change = mock.patch.object(base, "solve", partial(solve, strategies=rest))
    with change:
        yield


def fit_of(problem: Linear) -> Fit:
    """A fit of a problem to `TOL`, by what the estimators call."""
    return lambda: base.__dict__["solve"](problem, tol=TOL)


def used_by(fit: Fit, names: list[str]) -> list[str]:
    """The methods that a fit uses."""
    seen: set[str] = set()

    def watched(name: str, inner: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            seen.add(name)
            return inner(*arguments, **options)

        return call

    with ExitStack() as stack:
        for name in names:
            owner, attribute = METHODS[name].owner, METHODS[name].notice
            stack.enter_context(mock.patch.object(owner, attribute, watched(name, getattr(owner, attribute))))
        fit()
    return [name for name in names if name in seen]


def flat(shape: Shape, target: float) -> Fit:
    """Our fit of a problem of the same data with a loss that is flat in parts."""
    kind = AvareRegressor if shape.model == "squares" else AvareClassifier
    model = kind(
        _LOSSES[shape.model],
        C=shape.C,
        l1_ratio=float(shape.l1),
        fit_intercept=shape.intercept,
        tol=math.sqrt(target),
    )
    return lambda: model.fit(shape.X, shape.y, sample_weight=shape.weight)


def off(fit: Fit, name: str) -> Fit:
    """The same fit without a method."""

    def run() -> Any:
        with without(name):
            return fit()

    return run


def measure(seed: int, number: int, names: list[str]) -> list[dict[str, Any]]:
    """The seconds of fits with all methods, and without each that they use."""
    shape, rows = draw(seed, number), []
    kinds = {False: ours, True: flat} if shape.model in _LOSSES else {False: ours}
    for is_flat, make in kinds.items():
        own = [name for name in names if METHODS[name].is_flat == is_flat]
        for target in TARGETS:
            fit = make(shape, target)
            touching = used_by(fit, own) if own else []
            if not touching:
                continue
            fits: dict[str, Fit] = {"all": fit} | {name: off(fit, name) for name in touching}
            for each in fits.values():
                each()  # compiles, and warms up
            once = in_turns(fits, rounds=1)
            repeated = {name: each for name, each in fits.items() if once[name] <= _PATIENCE * once["all"]}
            seconds = once | in_turns(repeated)
            converged = {name: bool(each().gap_ <= target) for name, each in fits.items()}
            rows.append({"seed": seed, "shape": number, "title": shape.title, "flat": is_flat, "target": target})
            rows[-1] |= {"seconds": seconds, "converged": converged}
    return rows


def certificates(seeds: range, names: list[str]) -> dict[str, dict[str, int]]:
    """For each method, the extreme problems that use it, and how fits without it end."""
    counts = {name: {"problems": 0, "converged with": 0, "converged without": 0, "wrong without": 0} for name in names}
    for seed in seeds:
        problem = extreme_problem(seed)
        before = fit_of(problem)()
        for name in used_by(fit_of(problem), names):
            with without(name):
                found = fit_of(problem)()
            x = found.table.ravel()
            above = (exact_objective(problem, x) - lowest(problem, x)) / found.scale
            count = counts[name]
            count["problems"] += 1
            count["converged with"] += before.status == "converged"
            count["converged without"] += found.status == "converged"
            count["wrong without"] += bool(above > found.gap / found.scale + _ROUNDING)
    return counts


def report(result: dict[str, Any]) -> str:
    """A table with a row per method."""
    lines = []
    for name in result["certificates"]:
        rows = [row for row in result["rows"] if name in row["seconds"]]
        ratios = np.array([row["seconds"][name] / row["seconds"]["all"] for row in rows])
        lost = sum(row["converged"]["all"] and not row["converged"][name] for row in rows)
        problems = len({(row["seed"], row["shape"]) for row in rows})
        cells = [f"{value:.2f}" for value in (*np.quantile(ratios, [0.5, 0.9]), ratios.max())] if rows else ["–"] * 3
        count = result["certificates"].get(name, {})
        ends = [
            str(count.get(key, "–")) for key in ("problems", "converged with", "converged without", "wrong without")
        ]
        fails = count.get("converged without", 0) < count.get("converged with", 0) or count.get("wrong without", 0) > 0
        pays = bool(rows) and (max(np.quantile(ratios, [0.5, 0.9])) > WORSE or lost > 0 or fails)
        lines.append([name, str(problems), *cells, str(lost), *ends, "yes" if pays else "no"])
    for name, rows in result.get("parts", {}).items():  # by a second source tree without the lines
        ratios = np.array([row["ratio"] for row in rows])
        cells = [f"{value:.2f}" for value in (*np.quantile(ratios, [0.5, 0.9]), ratios.max())]
        pays = "yes" if np.quantile(ratios, 0.9) > WORSE else "no"
        lines.append([name, str(len(rows) // len(TARGETS)), *cells, "0", *["–"] * 4, pays])
    headings = ["without", "problems", "median", "90 %", "worst", "not certified", "extreme", "converged with"]
    headings += ["without", "wrong", "pays"]
    facts = (
        f"Seeds {', '.join(map(str, result['seeds']))} of benchmarks/linear_shapes.py. The processor seconds of our "
        "fit without a method over those with all, in turns in one process, on the problems whose fits use it, at 10⁻⁴ "
        "and 10⁻⁶: more than 1 says that the method pays. “Not certified”: fits that end without a certificate only "
        "without it. Then extreme problems that use it, how many of their fits converge with and without it, and how "
        "many gaps are wrong without it. The last rows are parts of methods: two source trees, in turns."
    )
    return "\n\n".join([facts, table(headings, lines)])


def main() -> None:
    """Measure, and keep the result after each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", default=[20261119, 602214])
    parser.add_argument("--shapes", type=int, default=40, help="of each seed, for all methods")
    parser.add_argument("--rare", type=int, default=160, help="of each seed, for what few problems use")
    parser.add_argument("--first", type=int, default=62000, help="the first seed of extreme problems")
    parser.add_argument("--extreme", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=40.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"where": where(), "seeds": arguments.seed, "rows": [], "certificates": {}}
    names, began = list(METHODS), time.monotonic()
    with threadpool_limits(1), np.errstate(all="ignore"):
        extreme = range(arguments.first, arguments.first + arguments.extreme)
        result["certificates"] = certificates(extreme, names)
        save("linear_ablations", result, report(result))
        for number in range(arguments.rare):
            some = names if number < arguments.shapes else [name for name in names if is_rare(result, name)]
            for seed in arguments.seed:
                if time.monotonic() - began < 60.0 * arguments.minutes and some:
                    for row in measure(seed, number, some):
                        result["rows"].append(row)
                        print(row["title"], row["target"], row["flat"], as_ratios(row), sep="; ", flush=True)
            save("linear_ablations", result, report(result))
    print(report(result))


def is_rare(result: dict[str, Any], name: str, enough: int = 24) -> bool:
    """Whether few problems so far use a method."""
    return len({(row["seed"], row["shape"]) for row in result["rows"] if name in row["seconds"]}) < enough


def as_ratios(row: dict[str, Any]) -> str:
    """How much slower each fit without a method is."""
    seconds = row["seconds"]
    return f"{seconds['all']:.2g} s: " + ", ".join(
        f"{name} {value / seconds['all']:.2f}" for name, value in seconds.items() if name != "all"
    )


if __name__ == "__main__":
    main()
