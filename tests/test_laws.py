"""The test of draws must itself be able to fail."""

import numpy as np

from laws import FALSE_ALARM, chi_square, ordered_samples


def test_laws_sum_to_one() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4])
    for replacement in (True, False):
        assert np.isclose(sum(chance for _, chance in ordered_samples(p, 3, replacement)), 1.0)


def test_chi_square_accepts_the_law_and_refuses_another() -> None:
    generator = np.random.default_rng(5)
    law: dict[tuple[int, ...], float] = {(i,): chance for i, chance in enumerate([0.1, 0.2, 0.3, 0.4])}
    right = [(int(i),) for i in generator.choice(4, size=20_000, p=[0.1, 0.2, 0.3, 0.4])]
    wrong = [(int(i),) for i in generator.choice(4, size=20_000, p=[0.12, 0.2, 0.3, 0.38])]
    assert chi_square(right, law) > FALSE_ALARM
    assert chi_square(wrong, law) < FALSE_ALARM
    assert chi_square([*right, (7,)], law) == 0.0
