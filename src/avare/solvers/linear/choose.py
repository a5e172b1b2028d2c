"""Which method fits a linear model, where it starts, and which sampler it draws with. All choices are made here."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from avare._randomness import Seed
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.samplers import Sampler, build, get
from avare.solvers.linear.dual_ascent import is_strong
from avare.solvers.linear.preconditioner import is_narrow
from avare.solvers.linear.subsampled_newton import sample_of, sample_size

METHODS = ("auto", "saga", "dual_ascent", "subsampled_newton")
DEFAULT = "Calibrated"
"""The sampler of `saga`, if no other is asked for."""
_BATCH = 32
_SAMPLE_EPOCHS = 8


def method_for(method: str, problem: Linear, sampler: Sampler | str, start: Vector | None, *, automatic: bool) -> str:
    """Return the method that will run, or raise an error if the one that was asked for does not fit the problem.

    "auto" may choose a method that draws nothing if nothing asks for draws: steps are automatic, and the sampler is
    `Calibrated`, by its name or as an object.
    """
    if method not in METHODS:
        raise ValueError(f"method = {method!r}: must be one of {', '.join(map(repr, METHODS))}")
    if method == "dual_ascent" and (problem.model.matrix.sparse is None or problem.l2 == 0.0):
        raise ValueError('method = "dual_ascent": needs a sparse X and l2 > 0')
    if method == "dual_ascent" and start is not None and start[problem.penalty.l2 > 0.0].any():
        raise ValueError('method = "dual_ascent": starts at 0; only a free bias may start elsewhere')
    if method == "subsampled_newton" and not (is_narrow(problem) and sample_size(problem) is not None):
        raise ValueError('method = "subsampled_newton": needs l1 = 0, few columns, and 16,000 rows and 320 per column')
    if method != "auto":
        return method
    name = sampler if isinstance(sampler, str) else type(sampler).__name__
    if not automatic or name != DEFAULT:
        return "saga"
    if start is None and is_narrow(problem) and sample_size(problem) is not None:
        return "subsampled_newton"
    return "dual_ascent" if is_strong(problem, start) else "saga"


def start_from_sample(problem: Linear, fit: Callable[[Linear, int, float], Vector]) -> Vector | None:
    """Fit a sixteenth of the rows, for a start near the minimum; None if there are too few, or if it does not help.

    Rows are drawn in proportion to their sample weights, the same number of each class. The remaining error is that of
    the sample: fitting it any closer would be in vain. Other rows show whether the fit is better than 0.
    """
    size, weights = sample_size(problem), problem.model.sample_weight
    if size is None or (len(weights) and not weights.any()):
        return None
    generator, scores = np.random.default_rng(0), problem.sampling_scores()
    sample, others = (sample_of(problem, size, scores, generator) for _ in range(2))
    x = fit(sample, _SAMPLE_EPOCHS, 0.3 * math.sqrt(problem.width / size))
    return x if x.any() and others.survey(x).loss < others.loss_at_zero() else None


def batch_size_of(n: int) -> int:
    """Choose a batch size: 32, but at most a hundredth of the examples."""
    return min(_BATCH, math.ceil(n / 100))


def build_by_norms(
    name: str, problem: Linear, batch_size: int | None, norms: Vector, scores: Vector, seed: Seed, **more: Any
) -> Sampler:
    """Build a sampler by name, with first norms and fixed scores, and those of more options that it has."""
    kind = get(name)
    parameters = inspect.signature(kind).parameters
    options = {key: value for key, value in {"initial_norms": norms, **more}.items() if key in parameters}
    if "smoothness" in kind.needs:
        options["smoothness"] = scores
    size = batch_size_of(problem.n) if batch_size is None else batch_size
    return build(name, problem, size, lasting_floor=True, seed=seed, **options)
