"""The prototype with cells by norm and age: draws by the law it states, and learns what age tells."""

from typing import Any

import numpy as np
import pytest

import avare
from avare.experiments.aged import Aged
from laws import FALSE_ALARM, chi_square, ordered_samples


def taught(sampler: Any, norms: Any, steps: int) -> Any:
    for _ in range(steps):
        batch = sampler.sample()
        sampler.update(batch.indices, norms[batch.indices])
    return sampler


@pytest.mark.parametrize("ages", [1, 6])
def test_unbiased_and_of_the_law(ages: int) -> None:
    sampler = taught(Aged(5, 2, ages=ages, decay=0.9, seed=0), np.array([0.0, 1.0, 1.3, 4.0, 20.0]), 30)
    p = sampler.probabilities()
    assert p.sum() == pytest.approx(1.0) and p.min() >= sampler.floor * (1 - 1e-12)
    law = dict(ordered_samples(p, 2, replacement=False))
    g = np.array([1.0, -2.0, 3.0, 0.5, 7.0])
    mean = sum(chance * (avare.batch_weights(p[list(i)], False) @ g[list(i)]) for i, chance in law.items())
    assert mean == pytest.approx(g.sum())
    steps, draws = sampler.steps, []
    for _ in range(4000):
        sampler._steps = steps
        sampler._drawn = None
        batch = sampler.sample()
        assert np.array_equal(batch.probabilities, p[batch.indices])
        draws.append(tuple(batch.indices.tolist()))
    assert chi_square(draws, law) > FALSE_ALARM


def test_with_one_age_it_is_calibrated() -> None:
    # Cells of both are an eighth of an octave wide, at other edges: the norm expected differs by at most a cell.
    norms = np.random.default_rng(0).lognormal(0.0, 1.5, 300)
    ours, theirs = taught(Aged(300, 10, ages=1, seed=1), norms, 400), taught(avare.Calibrated(300, 10), norms, 400)
    ratio = ours.probabilities() / theirs.probabilities()
    assert ratio.min() > 0.8 and ratio.max() < 1.25


@pytest.mark.parametrize("tells", [False, True])
def test_learns_what_age_tells(tells: bool) -> None:
    # The norm is 1; or, if age tells something, 4 for what was not seen for more than an epoch.
    n, size, steps = 200, 10, 3000
    sampler = Aged(n, size, decay=1.0, p_min=1 / (5 * n), seed=4)
    seen = np.zeros(n)
    for step in range(steps):
        batch = sampler.sample()
        age = (step - seen[batch.indices]) * size / n
        sampler.update(batch.indices, np.where(age > 1.0, 4.0, 1.0) if tells else np.ones(size))
        seen[batch.indices] = step
    age = (steps - seen) * size / n
    p = sampler.probabilities()
    if tells:
        assert p[age > 1.1].mean() > 1.5 * p[age < 0.5].mean()
    else:
        assert (
            p.max() / p.min() < 1.1
        )  # all norms told were the same, and the centre of their cell is within 1.05 of it


def test_resumes() -> None:
    norms = np.random.default_rng(5).lognormal(0.0, 1.0, 40)
    sampler = taught(Aged(40, 4, seed=6), norms, 50)
    twin = Aged(40, 4, seed=7)
    twin.load_state_dict(sampler.state_dict())
    for _ in range(20):
        ours, theirs = sampler.sample(), twin.sample()
        assert ours.indices.tolist() == theirs.indices.tolist() and ours.weights.tolist() == theirs.weights.tolist()
        for each in (sampler, twin):
            each.update(ours.indices, norms[ours.indices] * 2.0)


def test_where_nothing_is_known_it_is_uniform() -> None:
    sampler = Aged(7, 2)
    assert sampler.probabilities().tolist() == [1 / 7] * 7
    sampler.update([0, 1], [0.0, 0.0])
    assert sampler.probabilities().tolist() == [1 / 7] * 7
    with pytest.raises(ValueError, match="ages = 0"):
        Aged(7, 2, ages=0)
