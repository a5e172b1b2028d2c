"""Step sizes found by short trials, for the problem and the sampler at hand.

How long steps may be depends on the curvature of f and on the noise that a sampler leaves. A trial shows both: some
steps of SGD from the start, and the objective they reach. Step sizes go up by factors of 2, from 1/16 of 1 / curvature,
until two in a row are worse than the best; if the first is the best, they go down. Short steps hardly show noise: the
search from below does not end in a dip that noise has made.

The best step size of a short run is often too long for a long one. So steps fall as 1 / sqrt(t) from the length of a
trial on. Averaged iterates make up for steps that are a few times too long or too short. If distance matters more than
noise, steps should fall later, or be longer: a few trials, each four times as long, decide that.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from avare._state import Field
from avare.problems import Linear, Problem
from avare.problems.base import Vector
from avare.samplers import Sampler
from avare.schedules import Auto, Polynomial, auto
from avare.solvers.interrupt import Interrupt
from avare.solvers.loop import Loop

RESTARTS = 8
"""How often a run is started, at most, until its steps are short enough."""
_SHARE = 200  # a trial has 1/200 of the steps, ...
_FEWEST = (40, 200)  # ... but not fewer: the second number, or the first if a step is much work, ...
_WORK = 5e7  # ... so that a trial has about this many products of a row's entry and a coefficient
_LONGER = 4  # times as long are the last trials
_DOUBLINGS = 1  # of the step size in them, at most
_FIRST = -4  # the power of 2, over the curvature, of the first step size
_WORSE = 2  # step sizes in a row that are worse end the search in a direction
_FEWEST_ROWS = 4096  # for the objective of a trial
_POWER_ITERATIONS = 8
_LOST = 0.1  # of what a trial has gained
_MOST = 60  # doublings or halvings of the first step size


@dataclass(frozen=True, slots=True)
class Found:
    """Step sizes that were found, and how to see that they are too long after all."""

    sizes: Polynomial
    sketch: Problem
    highest: float
    """The objective of the sketch above which a run that has ended has lost what its trial had gained."""

    def astray(self, loop: Loop) -> bool:
        """Return whether a run has diverged, or ended above its trial: rare examples can do that."""
        if loop.status == "diverged":
            return True
        with np.errstate(over="ignore", invalid="ignore"):
            return loop.status == "finished" and not self.sketch.objective(loop.x) <= self.highest

    def shorter(self) -> "Found":
        """Return the same with steps of a quarter of the size."""
        return replace(self, sizes=Polynomial(self.sizes.scale / 4.0, self.sizes.offset, self.sizes.power))


def request_of(step_size: Any) -> Auto | None:
    """Return what step sizes to find; None if they are given."""
    if isinstance(step_size, str):
        if step_size != "auto":
            raise TypeError(
                f'step_size = {step_size!r}: must be "auto", a number, a schedule or a function of the step'
            )
        return auto()
    return step_size if isinstance(step_size, Auto) else None


def find(
    loop_of: Callable[..., Loop],
    problem: Problem,
    sampler: Sampler,
    wanted: Auto,
    steps: int,
    interrupt: Interrupt,
    say: Callable[[str], None],
) -> Found:
    """Return the step sizes of the best trial.

    The cost is that of about eight trials, each of 1/200 of the steps, at least 200 (40 if there are very many
    coefficients), of four trials that are four times as long, and of as many looks at some of the rows: a tenth of the
    steps of a run of 40,000 or more.
    """
    fewest = int(np.clip(_WORK / (sampler.batch_size * problem.dim), *_FEWEST))
    length = min(max(fewest, math.ceil(steps / _SHARE)), max(steps, 1))
    sketch = _sketch(problem, length * sampler.batch_size)
    none = np.empty(0, dtype=np.int64)
    start = loop_of(1.0, sampler, 0, evaluations=none).x
    if math.isnan(sketch.objective(start)):
        raise ValueError('step_size = "auto" needs an objective: pass objective=... to the problem, or step sizes')
    first = 1.0 / _curvature(sketch, start)

    def value(sizes: Polynomial, count: int) -> float:
        say(f"trial of {count} steps of size {sizes(1):.3g}")
        trial = loop_of(sizes, copy.deepcopy(sampler), count, evaluations=none)
        trial.run(interrupt, lambda loop: None)
        if trial.status == "diverged" or not np.isfinite(trial.x).all():
            return math.inf
        with np.errstate(over="ignore", invalid="ignore"):
            reached = sketch.objective(trial.x)
        return reached if math.isfinite(reached) else math.inf

    values: dict[int, float] = {}
    best = _FIRST
    for direction in (1, -1):
        k, worse = best, 0
        while worse < _WORSE and abs(k) <= _MOST and not interrupt.wished:
            if k not in values:
                values[k] = value(_schedule(first * 2.0**k, length, wanted.power), length)
            best = min(values, key=values.__getitem__)  # the first of equal ones
            worse = 0 if values[best] == math.inf and direction < 0 else abs(k - best)
            k += direction
    lowest = values.get(best, math.inf)
    while values.get(best + 1) == math.inf and best - 1 in values:  # too close to divergence for a longer run
        best -= 1
    size, longer = first * 2.0**best, _LONGER * length
    chosen = _schedule(size, length, wanted.power)
    if wanted.power == 0.0:
        chosen = _schedule(size * math.sqrt(length / max(steps, length)), length, 0.0)
    elif longer <= steps and not interrupt.wished:
        lowest = math.inf
        for offset in (length, _LONGER * longer):
            for doublings in range(_DOUBLINGS + 1):
                sizes = _schedule(size * 2.0**doublings, offset, wanted.power)
                reached = value(sizes, longer)
                if reached >= lowest:
                    break
                lowest, chosen = reached, sizes
    return Found(chosen, sketch, lowest + _LOST * max(0.0, sketch.objective(start) - lowest))


def found_state(sizes: Any) -> dict[str, Any]:
    """Return step sizes as a part of a state, if they may have been found by a search."""
    return {"step_size": np.array([sizes.scale, sizes.offset, sizes.power])} if isinstance(sizes, Polynomial) else {}


def found_before(state: Mapping[str, Any]) -> Polynomial:
    """Return the step sizes of a saved state."""
    if "step_size" not in state:
        raise ValueError(
            "resume lacks 'step_size': its run did not have step_size = \"auto\"; pass the same step sizes"
        )
    scale, offset, power = Field(np.float64, (3,), at_least=0.0).read(state, "step_size", "resume").tolist()
    if not (scale > 0.0 and offset >= 1.0 and power <= 1.0):
        raise ValueError(f"resume['step_size'] = {[scale, offset, power]}: must be a scale, an offset and a power")
    return Polynomial(scale, offset, power)


def _schedule(size: float, length: int, power: float) -> Polynomial:
    return Polynomial(size * float(length) ** power, float(length), power)


def _sketch(problem: Problem, rows: int) -> Problem:
    """Return a smaller problem whose objective estimates that of the problem; long rows are in it for sure."""
    rows = max(rows, _FEWEST_ROWS)
    if not isinstance(problem, Linear) or 2 * rows > problem.n:
        return problem
    smoothness = problem.smoothness
    p = 0.5 / problem.n + 0.5 * smoothness / smoothness.sum()
    chosen = np.random.default_rng(0).choice(problem.n, size=rows, p=p / p.sum())
    return problem.subset(chosen, 1.0 / (rows * p[chosen]))


def _curvature(problem: Problem, x: Vector) -> float:
    """Return the largest curvature of f at x, by power iterations on differences of gradients."""
    direction = np.random.default_rng(0).normal(size=problem.dim)
    here, largest = problem.gradient(x), 0.0
    for _ in range(_POWER_ITERATIONS):
        direction *= 1e-4 * (1.0 + float(np.linalg.norm(x))) / float(np.linalg.norm(direction))
        product = problem.gradient(x + direction) - here
        found = float(np.linalg.norm(product)) / float(np.linalg.norm(direction))
        if not 0.0 < found < math.inf:
            break
        direction, largest = product, found
    if largest > 0.0:
        return largest
    return (float(problem.smoothness.sum()) if isinstance(problem, Linear) else 0.0) or 1.0
