import numpy as np
import pytest

from avare.structures.weighted_draws import draw
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

DRAWS = draws_of(100_000)


@pytest.mark.parametrize("p", [[0.1, 0.2, 0.3, 0.4], [0.9, 1e-3, 0.099, 0.0], [1e-200, 3e-200, 1.0, 0.0]])
@pytest.mark.parametrize("replacement", [True, False])
def test_draws_in_linear_time(p: list[float], replacement: bool) -> None:
    generator, size = np.random.default_rng(5), 2 if replacement else 3
    draws = [tuple(draw(np.array(p), size, replacement, generator).tolist()) for _ in range(DRAWS // 5)]
    law = dict(ordered_samples(np.array(p), size, replacement))
    if p[0] < 1e-100 and not replacement:  # which float64 cannot renormalise by subtraction
        law = {(2, 0, 1): 1 / 4, (2, 1, 0): 3 / 4}
    assert chi_square(draws, law) > FALSE_ALARM
    assert len(draw(np.array(p), 0, replacement, generator)) == 0
    if not all(p):
        with pytest.raises(ValueError, match="size = 4: only 3 probabilities are above 0"):
            draw(np.array(p), 4, False, generator)
