"""What limits uniform sampling: the noise of its batches, or the distance that is still to go.

Two runs that differ by their seed alone end at x and y. Their mean (x + y) / 2 is as far from the optimum, but has half
of the noise. If f is roughly quadratic there, noise adds 2 ((f(x) + f(y)) / 2 - f((x + y) / 2)) to the objective. The
rest above the optimum is distance: it would be there without noise, and no sampler makes it smaller.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.sgd_runs import AUTO, BASELINE, problem_of, sampler_of
from avare.experiments.store import Record, Spec
from avare.problems import Linear
from avare.solvers import sgd

MOSTLY = 0.8
"""From this share of the suboptimality on, noise or distance is what limits."""
_ENDS = {0: "less than 5 %", 10: "more than 95 %"}  # of the suboptimality, in tenths
SEEDS = (1_000_003, 1_000_033)
"""Not the seeds of the runs that are compared."""


def limits_of(spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
    """Do two runs of the baseline, and separate noise from distance."""
    problem = problem_of(spec, X, y)
    began = time.perf_counter()
    samplers = [sampler_of({**spec, "seed": seed}, problem) for seed in SEEDS]
    runs = [sgd(problem, each, AUTO, epochs=spec["epochs"], evaluate="never") for each in samplers]
    noise, distance = separate(problem, [run.x for run in runs], optimum or 0.0)
    steps = sum(run.seconds for run in runs)
    seconds = {"steps": steps, "evaluation": time.perf_counter() - began - steps}
    return {"seconds": seconds, "limits": {"noise": noise, "distance": distance}, "status": "finished"}


def separate(problem: Linear, ends: Sequence[NDArray[np.float64]], optimum: float) -> tuple[float, float]:
    """Return what noise and distance add to the optimum at the ends of some runs.

    >>> from avare.problems import LeastSquares
    >>> problem = LeastSquares(np.eye(2), [0.0, 0.0], l2=0.0)
    >>> separate(problem, [np.array([3.0, 1.0]), np.array([3.0, -1.0])], 0.0)  # 3 to go, and noise of 1
    (1.0, 4.0)
    """
    reached = float(np.mean([problem.objective(x) for x in ends]))
    centre = problem.objective(np.mean(ends, axis=0))
    noise = max(0.0, len(ends) / (len(ends) - 1.0) * (reached - centre))
    return noise, max(0.0, reached - optimum - noise)


def share_of_noise(limits: Mapping[str, float]) -> float:
    """Return the share of the noise in the suboptimality; 0 if there is none at all."""
    total = limits["noise"] + limits["distance"]
    return limits["noise"] / total if total > 0.0 else 0.0


def words_of_limits(limits: Mapping[str, float], faster: bool = False) -> str:
    """Say what limits the baseline, and whether a sampler is faster.

    >>> words_of_limits({"noise": 1.0, "distance": 9.0})[:75]
    'Conditioning, not noise, limits Uniform: at its end, noise is roughly 10 % '
    """
    share = share_of_noise(limits)
    tenths = round(10.0 * share)  # two runs allow no more
    part = f"at its end, noise is {_ENDS.get(tenths, f'roughly {10 * tenths} %')} of its suboptimality"
    if share >= MOSTLY:
        return f"Noise limits {BASELINE}: {part}."
    rest = f"{part}. The rest is distance still to go"
    if faster:
        return f"Noise limits {BASELINE}, also by the short steps that it forces: {rest}."
    if share <= 1.0 - MOSTLY:
        advice = "Use more --epochs, a larger --l2 or, if you passed --raw, scaled columns."
        return f"Conditioning, not noise, limits {BASELINE}: {rest}, which no sampler shortens. {advice}"
    return f"Noise and distance limit {BASELINE}: {rest}."
