"""A memory that averages: the recursion, its unit, and what it survives."""

import math
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.samplers import Sampler, memory

N, SIZE = 40, 6
MAKERS: dict[str, Callable[..., Sampler]] = {
    "Avare": avare.Avare,
    "Calibrated": avare.Calibrated,
    "Passes": avare.Passes,
}
every = pytest.mark.parametrize("name", MAKERS)
Floats = NDArray[np.float64]


def noisy(step: int, indices: NDArray[np.int64], scale: float = 1.0) -> Floats:
    """Norms that differ between examples by two octaves, and between visits by half an octave."""
    norms: Floats = scale * np.exp(np.sin(indices * 1.7) + 0.3 * np.sin(indices * 12.9 + step * 78.2))
    return norms


def run(sampler: Sampler, steps: int, norms: Callable[[int, NDArray[np.int64]], Floats] = noisy) -> list[list[int]]:
    drawn = []
    for step in range(steps):
        batch = sampler.sample()
        drawn.append(batch.indices.tolist())
        sampler.update(batch, norms(step, batch.indices))
    return drawn


class Reference:
    """The rule in plain Python."""

    def __init__(self, share: float, power: int) -> None:
        self.share, self.power = share, power
        self.remembered = np.full(N, np.nan)
        self.means: list[float] = []

    @property
    def unit(self) -> float:
        decays = memory.DECAY ** np.arange(len(self.means))[::-1]
        return float(np.exp(decays @ np.log(self.means) / decays.sum()))

    def learn(self, batch: avare.Batch, norms: Floats) -> None:
        self.means.append(float(batch.weights @ norms) / N)
        for index, norm in zip(batch.indices, norms / self.unit, strict=True):
            before = self.remembered[index]
            average = self.share * before**self.power + (1.0 - self.share) * norm**self.power
            self.remembered[index] = norm if np.isnan(before) else average ** (1.0 / self.power)


@every
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_remembers_averages_in_units_of_their_time(name: str, share: float) -> None:
    sampler, reference = MAKERS[name](N, SIZE, memory=share, seed=1), Reference(share, 2 if name == "Calibrated" else 1)
    for step in range(200):
        batch = sampler.sample()
        norms = noisy(step, batch.indices, scale=0.98**step)
        sampler.update(batch, norms)
        reference.learn(batch, norms)
    expected = np.nan_to_num(reference.remembered) if name == "Avare" else reference.remembered
    # `Avare` and `Calibrated` keep 24 bits of each average, which is rounded at each visit.
    assert np.allclose(sampler.norms(), reference.unit * expected, rtol=1e-5, equal_nan=True)


# Indices of 50 batches, as they were before there were averages.
DIGESTS = {"Avare": 575137950, "Calibrated": 4118545623, "Passes": 1695874447}


@every
def test_a_share_of_zero_is_the_last_norm(name: str) -> None:
    sampler, found = MAKERS[name](2000, 64, memory=0.0, seed=15), 0
    for _ in range(50):
        batch = sampler.sample()
        found = zlib.crc32(batch.indices.tobytes(), found)
        sampler.update(batch.indices, 1.0 + batch.indices % 7)
    assert found == DIGESTS[name]
    assert set(sampler.norms(np.unique(batch.indices)).tolist()) <= set(range(1, 8))


@every
@pytest.mark.parametrize("exponent", [-900, 300])
def test_the_size_of_all_norms_does_not_matter(name: str, exponent: int) -> None:
    # By a power of two, nothing is rounded: the draws are the very same.
    plain, scaled = (MAKERS[name](N, SIZE, memory=0.5, seed=2) for _ in range(2))
    factor = math.ldexp(1.0, exponent)
    assert run(scaled, 60, lambda step, indices: noisy(step, indices, factor)) == run(plain, 60)
    assert np.allclose(scaled.norms(), factor * plain.norms(), rtol=1e-12, equal_nan=True)


@every
@pytest.mark.compiled
@pytest.mark.parametrize(("first", "last"), [(1e-300, 1e100), (1e100, 1e-300)])
def test_follows_norms_that_change_by_400_orders_of_magnitude(name: str, first: float, last: float) -> None:
    steps = 20_000  # by 4.7 % in each
    sampler, scales = MAKERS[name](N, SIZE, memory=0.5, seed=3), np.geomspace(first, last, steps)
    run(sampler, steps, lambda step, indices: noisy(step, indices, scales[step]))
    assert avare.diagnostics.relative_error(noisy(0, np.arange(N)), sampler.probabilities()) < 0.3


@every
@pytest.mark.parametrize("jump", [1e-6, 1e6])
def test_survives_a_jump_and_batches_of_zeros(name: str, jump: float) -> None:
    sampler = MAKERS[name](N, SIZE, memory=0.5, seed=4)
    run(sampler, 100)
    remembered = sampler.norms()
    sampler.update(np.arange(N), np.zeros(N))
    run(sampler, 3, lambda step, indices: np.zeros(SIZE))
    assert (sampler.norms() < 0.75 * remembered).all()  # they count, and the unit is what it was
    run(sampler, 600, lambda step, indices: noisy(step, indices, jump))
    assert avare.diagnostics.relative_error(noisy(0, np.arange(N)), sampler.probabilities()) < 0.3
    assert np.allclose(sampler.norms(), jump * noisy(0, np.arange(N)), rtol=0.9)


@every
def test_norms_that_are_all_zero_at_first(name: str) -> None:
    sampler = MAKERS[name](N, SIZE, memory=0.5, seed=5)
    run(sampler, 20, lambda step, indices: np.zeros(SIZE))
    assert np.allclose(sampler.probabilities(), 1.0 / N)
    run(sampler, 100)
    assert avare.diagnostics.relative_error(noisy(0, np.arange(N)), sampler.probabilities()) < 0.3


@every
def test_norms_without_a_batch_start_the_unit(name: str) -> None:
    sampler = MAKERS[name](N, SIZE, memory=0.5, seed=6)
    first = noisy(0, np.arange(N), scale=1e-5)
    sampler.update(np.arange(N), first)
    assert np.allclose(sampler.norms(), first, rtol=1e-6)
    sampler.update([3], [3.0 * first[3]])
    middle = first[3] * (math.sqrt(5.0) if name == "Calibrated" else 2.0)
    assert np.isclose(sampler.norms(np.array([3]))[0], middle, rtol=1e-6)


@pytest.mark.parametrize("name", ["Avare", "Calibrated"])
def test_initial_norms_have_a_unit_of_their_own(name: str) -> None:
    initial = 1e9 * noisy(0, np.arange(N))
    sampler = MAKERS[name](N, SIZE, memory=0.5, initial_norms=initial, seed=7)
    assert np.allclose(sampler.norms(), initial, rtol=1e-6)
    batch = sampler.sample()
    sampler.update(batch, noisy(1, batch.indices))
    others = np.setdiff1d(np.arange(N), batch.indices)
    assert np.allclose(sampler.norms(others) / sampler.norms(others).sum(), initial[others] / initial[others].sum())
    assert 0.3 < sampler.norms().mean() / noisy(0, np.arange(N)).mean() < 3.0
    new = sampler.append(norms=[0.4])
    assert np.isclose(sampler.norms(new)[0], 0.4, rtol=1e-6)


@every
def test_averages_gain_where_norms_are_noisy(name: str) -> None:
    generator, gains = np.random.default_rng(8), {}
    typical = np.exp(generator.normal(0.0, 0.7, 300))
    for share in (0.0, 0.5):
        sampler = MAKERS[name](300, 20, memory=share, seed=9)
        costs = []
        for step in range(600):
            batch = sampler.sample()
            sampler.update(batch, typical[batch.indices] * np.exp(generator.normal(0.0, 0.8, 20)))
            if step > 100:
                costs.append(avare.diagnostics.cost(typical, sampler.probabilities()))
        gains[share] = 300.0 * (typical**2).sum() / np.mean(costs)
    assert gains[0.5] > 1.05 * gains[0.0], gains


@every
def test_a_state_of_another_share_is_refused(name: str) -> None:
    state = MAKERS[name](N, SIZE, memory=0.3).state_dict()
    with pytest.raises(ValueError, match=r"state\['memory'\] = 0.3: this sampler has 0.0"):
        MAKERS[name](N, SIZE, memory=0.0).load_state_dict(state)
    for wrong in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"memory = {wrong}: must be at"):
            MAKERS[name](N, SIZE, memory=wrong)
