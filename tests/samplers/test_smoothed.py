"""Weights mixed with the uniform distribution: the law of draws, and where each comes from."""

import numpy as np
import pytest

from avare._randomness import uniform_source
from avare.samplers.rivals.smoothed import SmoothedState, draw_smoothed
from avare.structures import Buckets
from laws import FALSE_ALARM, chi_square, draws_of

DRAWS = draws_of(100_000)


@pytest.mark.parametrize("start", [[0.3, 1 / 3, 2.0, 0.0], [0.0] * 4])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_smoothed_draws(start: list[float], share: float, floor: float) -> None:
    generator = np.random.default_rng(4)
    memory = Buckets(start)
    state = SmoothedState(memory.arrays, floor, share, np.zeros(4))
    inner = memory.probabilities(floor)
    p = (1.0 - share) * inner + share / 4
    draws: list[tuple[int, ...]] = []
    for size in (1, 2, 100) * (DRAWS // 100):
        indices, probabilities, weights = np.empty(size, np.int64), np.empty(size), np.empty(size)
        uniform = draw_smoothed(state, uniform_source(generator), indices, probabilities, weights)
        assert np.allclose(probabilities, p[indices], rtol=1e-12) and np.allclose(weights, 1.0 / (size * p[indices]))
        assert np.array_equal(state.drawn_with[indices], probabilities)
        draws += zip(indices.tolist(), uniform.tolist(), strict=True)
    uniform_share = share if any(start) else 1.0
    law: dict[tuple[int, ...], float] = {
        (i, came): uniform_share / 4 if came else (1.0 - uniform_share) * inner[i]
        for i in range(4)
        for came in (True, False)
    }
    assert chi_square(draws, law) > FALSE_ALARM
