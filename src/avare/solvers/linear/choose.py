"""Which sampler and batch size draws for a linear model, if neither is given."""

import inspect
import math
from typing import Any

from avare._randomness import Seed
from avare.problems.base import Vector
from avare.problems.linear import Linear
from avare.samplers import Sampler, build, get

DEFAULT = "Calibrated"
"""The sampler of `saga`, if no other is asked for."""
_BATCH = 32


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
