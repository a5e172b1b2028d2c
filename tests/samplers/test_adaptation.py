"""They adapt: every sampler on the paper's synthetic problem, with the theory's settings."""

import numba
import numpy as np
import pytest

import avare
from avare.samplers import get, names
from synthetic import Logistic, train

EPOCHS, SEEDS = 100, 10


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="an hour without compiled code; the compiled run tests it")
@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
def test_avare_comes_closest_and_the_bandits_beat_uniform() -> None:
    problem = Logistic()
    step_size = avare.schedules.inverse_time(problem.n, problem.smoothness, problem.l2)
    limits = {"horizon": EPOCHS * problem.n, "bound": float(problem.lengths.max())}
    arguments: dict[str, dict[str, object]] = {
        "Static": {"smoothness": problem.constants},
        "Safe": {"smoothness": problem.constants, "bound": limits["bound"]},
        "Mixture": {"components": np.stack([problem.constants, problem.lengths])},
        "Optimal": {"norms": lambda: problem.norms(problem.x)},
        **{name: dict(limits) for name in ("Mabs", "Vrb", "Osmd")},
    }
    errors = {}
    for name in names():
        runs = [
            train(problem, get(name)(problem.n, 1, seed=seed, **arguments.get(name, {})), step_size, EPOCHS)  # type: ignore[arg-type]  # not the base class
            for seed in range(SEEDS)
        ]
        errors[name] = float(np.mean([run[-5:, 1].mean() for run in runs]))
    assert errors["Avare"] < 0.05
    for name, error in errors.items():
        assert name in ("Avare", "Optimal") or errors["Avare"] < error, f"{name} comes closer: {errors}"
    for name in ("Mabs", "Vrb", "Osmd"):
        assert errors[name] < errors["Uniform"], f"{name} does not adapt: {errors}"
    assert abs(errors["Optimal"]) < 1e-9
