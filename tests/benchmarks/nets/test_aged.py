"""The prototype with cells by norm and age: it draws by its stated law, and learns the effect of age."""

from typing import Any

import numpy as np
import pytest
import torch

import avare
from aged import COMPARED, VARIANTS, Aged, variant_plan
from avare import samplers
from laws import FALSE_ALARM, chi_square, ordered_samples
from nets import plan as nets
from nets import training


def trained(sampler: Any, norms: Any, steps: int) -> Any:
    for _ in range(steps):
        batch = sampler.sample()
        sampler.update(batch.indices, norms[batch.indices])
    return sampler


@pytest.mark.parametrize("ages", [1, 6])
def test_draws_are_unbiased_and_follow_the_law(ages: int) -> None:
    sampler = trained(Aged(5, 2, ages=ages, decay=0.9, seed=0), np.array([0.0, 1.0, 1.3, 4.0, 20.0]), 30)
    p = sampler.probabilities()
    assert p.sum() == pytest.approx(1.0) and p.min() >= sampler.floor * (1 - 1e-12)
    law = dict(ordered_samples(p, 2, replacement=False))
    g = np.array([1.0, -2.0, 3.0, 0.5, 7.0])
    mean = sum(chance * (avare.batch_weights(p[list(i)], False) @ g[list(i)]) for i, chance in law.items())
    assert mean == pytest.approx(g.sum())
    steps, draws = sampler.steps, []
    for _ in range(4000):
        sampler.steps = steps
        sampler._drawn = None
        batch = sampler.sample()
        assert np.array_equal(batch.probabilities, p[batch.indices])
        draws.append(tuple(batch.indices.tolist()))
    assert chi_square(draws, law) > FALSE_ALARM


def test_with_one_age_it_is_calibrated() -> None:
    # Cells of both are an eighth of an octave wide, with different edges: expected norms differ by at most a cell.
    norms = np.random.default_rng(0).lognormal(0.0, 1.5, 300)
    ours, theirs = trained(Aged(300, 10, ages=1, seed=1), norms, 400), trained(avare.Calibrated(300, 10), norms, 400)
    ratio = ours.probabilities() / theirs.probabilities()
    assert ratio.min() > 0.8 and ratio.max() < 1.25


@pytest.mark.parametrize("matters", [False, True])
def test_learns_the_effect_of_age(matters: bool) -> None:
    # The norm is 1; if age matters, it is 4 for examples that were not seen for more than an epoch.
    n, size, steps = 200, 10, 3000
    sampler = Aged(n, size, decay=1.0, p_min=1 / (5 * n), seed=4)
    seen = np.zeros(n)
    for step in range(steps):
        batch = sampler.sample()
        age = (step - seen[batch.indices]) * size / n
        sampler.update(batch.indices, np.where(age > 1.0, 4.0, 1.0) if matters else np.ones(size))
        seen[batch.indices] = step
    age = (steps - seen) * size / n
    p = sampler.probabilities()
    if matters:
        assert p[age > 1.1].mean() > 1.5 * p[age < 0.5].mean()
    else:
        # All reported norms are equal, and the centre of their cell is within a factor 1.05.
        assert p.max() / p.min() < 1.1


def test_resumes_with_the_same_draws() -> None:
    norms = np.random.default_rng(5).lognormal(0.0, 1.0, 40)
    sampler = trained(Aged(40, 4, seed=6), norms, 50)
    twin = Aged(40, 4, seed=7)
    twin.load_state_dict(sampler.state_dict())
    for _ in range(20):
        ours, theirs = sampler.sample(), twin.sample()
        assert ours.indices.tolist() == theirs.indices.tolist() and ours.weights.tolist() == theirs.weights.tolist()
        for each in (sampler, twin):
            each.update(ours.indices, norms[ours.indices] * 2.0)


def test_it_is_uniform_before_the_first_norms() -> None:
    sampler = Aged(7, 2)
    assert sampler.probabilities().tolist() == [1 / 7] * 7
    sampler.update([0, 1], [0.0, 0.0])
    assert sampler.probabilities().tolist() == [1 / 7] * 7
    with pytest.raises(ValueError, match="ages = 0"):
        Aged(7, 2, ages=0)
    with pytest.raises(ValueError, match="replacement = True: Aged draws without replacement only"):
        Aged(7, 2, replacement=True)


@pytest.mark.parametrize("quick", [False, True])
def test_its_plan_is_sound_once_it_is_registered(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = variant_plan(quick=quick)
    assert plan.wanted["samplers"] == [COMPARED] and plan.wanted["parts"]["samplers"] == ["calibrated", *VARIANTS]
    with pytest.raises(ValueError, match=r"samplers\.by norm\.kind = 'Aged'"):
        nets.check_plan(plan, "aged")
    monkeypatch.setitem(samplers.registry._KINDS, "Aged", Aged)  # what `register` does, for this test only
    nets.check_plan(plan, "aged")
    assert {cost.model for cost in nets.estimate(plan)} == set(plan.models)


def test_nets_train_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(samplers.registry._KINDS, "Aged", Aged)
    dataset = torch.utils.data.TensorDataset(torch.randn(30, 2), torch.arange(30) % 2)
    spec = {"loader": {**VARIANTS["by norm and age"]}, "batch_size": 4, "seed": 3}
    batches = training.batches_of(spec, dataset, torch.nn.Linear(2, 2))
    twin = Aged(30, 4, ages=6, seed=3)
    for _ in range(10):
        _, index, weight = next(batches.endless)
        expected = twin.sample()
        assert index is not None and weight is not None and index.tolist() == expected.indices.tolist()
        assert weight.tolist() == pytest.approx(expected.weights * 4 / 30)
        for each in (batches.loader, twin):
            each.update(expected.indices, expected.indices + 1.0)
