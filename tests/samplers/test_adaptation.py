"""Every sampler adapts to the paper's synthetic problem, with the theory's settings."""

import numba
import numpy as np
import pytest

from synthetic import adaptation


@pytest.mark.slow
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="an hour without compiled code; the compiled run tests it")
@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
def test_avare_comes_closest_and_the_bandits_beat_uniform() -> None:
    found = {name: np.mean(each, axis=0) for name, each in adaptation(seeds=2).items()}
    errors = {name: float(each[0]) for name, each in found.items()}
    assert errors["Avare"] < 0.05
    for name, error in errors.items():
        assert name in ("Avare", "Optimal") or errors["Avare"] < error, f"{name} comes closer: {errors}"
    for name in ("Mabs", "Vrb", "Osmd"):  # at the same iterates, because those of another run differ by more
        assert errors[name] < found[name][1], f"{name} does not adapt: {found}"
    assert abs(errors["Optimal"]) < 1e-9
    assert errors["Uniform"] == pytest.approx(found["Uniform"][1], rel=1e-9)
