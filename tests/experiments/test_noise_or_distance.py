"""Noise and distance are taken apart."""

from typing import Any

import numpy as np
import pytest

from avare.experiments.sgd_runs import separate
from avare.experiments.verdict import share_of_noise, words_of_limits
from avare.problems import LeastSquares


def test_noise_and_distance_of_a_quadratic() -> None:
    generator = np.random.default_rng(0)
    problem = LeastSquares(np.diag([1.0, 2.0, 3.0]), np.zeros(3), l2=0.0)
    centre, spread = np.array([1.0, 0.0, -1.0]), np.array([0.5, 0.2, 0.1])
    pairs = [separate(problem, list(centre + spread * generator.normal(size=(4, 3))), 0.0) for _ in range(400)]
    noise, distance = np.mean(pairs, axis=0)
    # By hand: f = sum c x^2 / 2 with c = 1, 4, 9. The deviation of a mean over 400 is below 3 % of each.
    assert noise == pytest.approx(0.5 * (0.25 + 4 * 0.04 + 9 * 0.01), rel=0.1)
    assert distance == pytest.approx(0.5 * (1.0 + 9.0), rel=0.05)


@pytest.mark.parametrize(
    ("noise", "distance", "start"),
    [
        (0.0, 0.0, "Conditioning, not noise, limits Uniform"),
        (0.1, 0.9, "Conditioning, not noise, limits Uniform: at its end, noise is roughly 10 % of its suboptimality"),
        (0.52, 0.48, "Noise and distance limit Uniform: at its end, noise is roughly 50 % of its suboptimality"),
        (9.0, 1.0, "Noise limits Uniform: at its end, noise is roughly 90 % of its suboptimality."),
        (99.0, 1.0, "Noise limits Uniform: at its end, noise is more than 95 % of its suboptimality."),
    ],
)
def test_what_limits(noise: float, distance: float, start: str) -> None:
    limits: Any = {"noise": noise, "distance": distance}
    assert words_of_limits(limits).startswith(start)
    assert words_of_limits(limits, faster=True).startswith("Noise limits Uniform")
    assert share_of_noise(limits) == pytest.approx(noise / (noise + distance) if noise else 0.0)
