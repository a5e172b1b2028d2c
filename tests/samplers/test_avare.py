from types import ModuleType

import numba
import numpy as np
import pytest

import avare
from avare import _validation as validation
from avare import batch
from avare.samplers import gain
from compiled import assert_kernels_release_the_gil_and_are_cached
from sorted_norms import PaperAvare


def test_probabilities_are_lemma_1_at_the_scheduled_floor() -> None:
    sampler = avare.Avare(30, 4, delta=0.8, c=40.0, p_min=0.002, seed=0)
    schedule = avare.schedules.floor(30, 4, 0.8, 40.0, 0.002)
    for _ in range(40):
        assert sampler.floor == schedule(sampler.steps + 1)
        expected = avare.minimize_variance(sampler.norms(), sampler.floor)
        assert np.allclose(sampler.probabilities(), expected, rtol=2.0**-9)  # the floor is met to 2^-10
        drawn = sampler.sample()
        sampler.update(drawn.indices, 1.0 + drawn.indices % 7)


def test_remembers_the_last_norm_of_each() -> None:
    sampler = avare.Avare(5, 2, initial_norms=[1, 2, 3, 4, 5], seed=0)
    sampler.update([1, 3, 1], [7.0, 8.0, 9.0])
    assert sampler.norms().tolist() == [1.0, 9.0, 3.0, 8.0, 5.0]


def test_both_structures_use_the_same_distribution() -> None:
    fast = avare.Avare(60, 8, seed=1)
    slow = PaperAvare(60, 8, seed=2)
    generator = np.random.default_rng(3)
    for _ in range(50):
        indices, norms = generator.integers(0, 60, 8), generator.lognormal(0, 2, 8)
        for sampler in (fast, slow):
            sampler.sample()
            sampler.update(indices, norms)
        assert np.allclose(fast.probabilities(), slow.probabilities(), rtol=2.0**-9)


@pytest.mark.compiled
def test_tracks_the_best_distribution() -> None:
    norms = np.random.default_rng(4).lognormal(0, 1.5, 300)
    errors = {}
    for sampler in (avare.Avare(300, 10, seed=5), avare.Uniform(300, 10, seed=5)):
        for _ in range(3000):
            drawn = sampler.sample()
            sampler.update(drawn.indices, norms[drawn.indices])
        errors[type(sampler)] = avare.diagnostics.relative_error(norms, sampler.probabilities())
    assert errors[avare.Avare] < 0.05 < 1.0 < errors[avare.Uniform]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"p_min": 0.2}, ValueError, "p_min = 0.2: must be at most 1/n = 0.1"),
        ({"c": 9.0}, ValueError, "c = 9.0: must be at least"),
        ({"delta": 0.0}, ValueError, "delta = 0.0"),
        ({"initial_norms": [1.0] * 9}, ValueError, "initial_norms has length 9: must match n, which has 10"),
        ({"initial_norms": [1.0] * 9 + [np.inf]}, ValueError, r"initial_norms\[9\] = inf"),
        ({"seed": -1}, ValueError, "non-negative"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        avare.Avare(10, 2, **arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_a_state_saved_with_different_arguments_is_refused() -> None:
    state = avare.Avare(10, 2, delta=0.5).state_dict()
    with pytest.raises(ValueError, match=r"state\['delta'\] = 0.5: this sampler has 1.0"):
        avare.Avare(10, 2).load_state_dict(state)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
@pytest.mark.parametrize("module", [batch, gain, validation])
def test_kernels_release_the_gil_and_are_cached(module: ModuleType) -> None:
    assert_kernels_release_the_gil_and_are_cached(module)
