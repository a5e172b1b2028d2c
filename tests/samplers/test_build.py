"""Any sampler by its name, with what it needs taken from the problem."""

from typing import Any

import numpy as np
import pytest

import avare
from avare.problems import Generic
from avare.samplers import Sampler, build, get
from linear_models import N, make, plainly
from sampler_checks import own_names

PROBLEM = make("Softmax")
GENERIC: Generic = plainly(PROBLEM)


def argument(sampler: Sampler, name: str) -> Any:
    return sampler.state_dict()[name]


@pytest.mark.parametrize("name", own_names())
def test_every_sampler_is_built_for_a_linear_model(name: str) -> None:
    sampler = build(name, PROBLEM, 5, seed=1)
    assert type(sampler) is get(name)
    assert (sampler.n, sampler.batch_size) == (N, 5)
    batch = sampler.sample()
    sampler.update(batch.indices, PROBLEM.norms(np.zeros(PROBLEM.dim))[batch.indices])
    assert np.isclose(sampler.probabilities().sum(), 1.0)


@pytest.mark.parametrize("name", own_names())
def test_without_replacement_if_the_sampler_can(name: str) -> None:
    assert build(name, PROBLEM, 5).replacement == get(name).with_replacement_only
    if not get(name).without_replacement_only:
        assert build(name, PROBLEM, 5, replacement=True).replacement


@pytest.mark.parametrize("name", own_names())
@pytest.mark.parametrize("problem", [GENERIC, N], ids=["a problem without constants", "a number of examples"])
def test_what_a_problem_lacks_must_be_passed(name: str, problem: Any) -> None:
    needs = get(name).needs
    if not needs:
        assert build(name, problem, 5).n == N
        return
    with pytest.raises(
        ValueError, match=f"{name} needs {needs[0]}, which the problem does not have: pass {needs[0]}=..."
    ):
        build(name, problem, 5)
    options: dict[str, Any] = {"smoothness": np.ones(N), "components": np.ones((1, N))}
    assert build(name, problem, 5, **{need: options[need] for need in needs}).n == N


def test_constants_come_from_the_problem_unless_they_are_passed() -> None:
    smoothness = PROBLEM.smoothness
    assert np.allclose(build("Static", PROBLEM, 5, uniform=0.0).probabilities(), smoothness / smoothness.sum())
    passed = build("Static", PROBLEM, 5, uniform=0.0, smoothness=np.ones(N))
    assert np.allclose(passed.probabilities(), 1 / N)
    mixture = build("Mixture", PROBLEM, 5)
    assert isinstance(mixture, avare.Mixture)
    assert np.allclose(mixture.components[0], smoothness / smoothness.sum())
    assert np.allclose(mixture.components[1], PROBLEM.lengths / PROBLEM.lengths.sum())


def test_the_horizon_goes_to_samplers_that_use_it() -> None:
    for name in own_names():
        uses = "horizon" in get(name).takes
        sampler = build(name, PROBLEM, 5, horizon=777)
        assert sampler.state_dict().get("given_horizon", 0) == (777 if uses else 0)
    assert argument(build("Vrb", PROBLEM, 5, horizon=777, bound=2.0), "given_bound") == 2.0
    assert argument(build("Vrb", PROBLEM, 5), "given_horizon") == 0


def test_a_lasting_floor() -> None:
    for name in ("Avare", "Calibrated"):
        assert argument(build(name, PROBLEM, 5), "p_min") == 0.0
        lasting = build(name, PROBLEM, 5, lasting_floor=True)
        assert argument(lasting, "p_min") == 1 / (5 * N)
        assert argument(lasting, "c") == pytest.approx(1 / (1 / N - 1 / (5 * N)))
        assert argument(build(name, PROBLEM, 5, lasting_floor=True, p_min=0.1 / N), "p_min") == 0.1 / N
        own = build(name, PROBLEM, 5, lasting_floor=True, c=3.0 * N)
        assert (argument(own, "c"), argument(own, "p_min")) == (3.0 * N, 0.0)
    assert build("Uniform", PROBLEM, 5, lasting_floor=True).n == N
    stratified = build("Stratified", PROBLEM, 5, lasting_floor=True)  # it has its own
    assert argument(stratified, "p_min") == 0.5 / N


def test_a_number_of_examples_is_enough() -> None:
    for n in (40, np.int64(40)):
        sampler = build("Avare", n, batch_size=3, seed=2)
        assert (sampler.n, sampler.batch_size) == (40, 3)
    assert build("Avare", 400).batch_size == 128


def test_the_seed_is_passed_on() -> None:
    draws = [build("Uniform", 40, 3, seed=seed).sample().indices.tolist() for seed in (5, 5, 6)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("Best", {}, ValueError, "name = 'Best': must be one of Avare"),
        ("Avare", {"theta": 1.0}, TypeError, "theta"),
        ("Srg", {"replacement": False}, ValueError, "replacement = False: Srg draws with replacement only"),
        ("Static", {"smoothness": [1.0]}, ValueError, "smoothness has length 1"),
    ],
)
def test_refuses_bad_input(name: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(name, PROBLEM, 5, **options)
