"""Thinned passes: what is kept and how often, each once per pass, weights, states."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

import avare
import two_stages
from laws import FALSE_ALARM, chi_square, draws_of

NORMS = np.array([0.0, 0.1, 0.1, 0.2, 3.0, 4.0, 4.0, 5.0])


def trained(size: int = 2, least: float = 0.3, seed: int = 0) -> avare.Passes:
    """A sampler that knows all norms, at the start of a pass."""
    sampler = avare.Passes(len(NORMS), size, least=least, seed=seed)
    sampler.update(np.arange(len(NORMS)), NORMS)
    return sampler


@pytest.mark.parametrize("least", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_probabilities_of_being_kept(size: int, least: float) -> None:
    sampler = trained(size, least)
    expected = np.clip(NORMS / NORMS.mean(), least, 1.0).sum()
    count = min(math.ceil(expected / size - 1e-9) * size, len(NORMS))
    kept = sampler.probabilities() * count
    assert np.allclose(kept, two_stages.inclusion(NORMS, count, least * len(NORMS) / count), rtol=1e-9)
    assert kept.min() >= least * (1.0 - 1e-12)
    batches = [sampler.sample() for _ in range(count // size)]
    indices = np.concatenate([batch.indices for batch in batches])
    assert len(np.unique(indices)) == len(indices)  # each once per pass
    for batch in batches:
        assert np.allclose(batch.weights, count / (size * kept[batch.indices]), rtol=1e-12)
        assert np.allclose(batch.probabilities, kept[batch.indices] / count, rtol=1e-12)


def test_the_law_of_a_pass() -> None:
    sampler, count = trained(), 6
    law = two_stages.thinned_law(sampler.probabilities(), count, 2)  # that of any batch of the pass: here the second
    draws = []
    for _ in range(draws_of(40_000)):
        batches = [sampler.sample() for _ in range(count // 2)]
        draws.append(tuple(batches[1].indices.tolist()))
    assert chi_square(draws, law) > FALSE_ALARM


def test_a_later_batch_of_a_pass_is_unbiased_by_enumeration() -> None:
    # Over the choice of the pass and its order, whatever was drawn before.
    sampler, count, g = trained(), 6, np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, -6.0])
    p, mean = sampler.probabilities(), 0.0
    for order, chance in two_stages.thinned_law(p, count, 4).items():
        batch = list(order[2:])
        mean += chance * float(np.sum(g[batch] / (2 * p[batch])))
    assert math.isclose(mean, g.sum(), rel_tol=1e-9)


def test_the_first_pass_has_every_example() -> None:
    n, size = 23, 5
    sampler = avare.Passes(n, size, seed=1)
    assert np.isnan(sampler.norms()).all()
    batches = [sampler.sample() for _ in range(5)]
    for batch in batches:
        assert len(np.unique(batch.indices)) == size and np.allclose(batch.weights, n / size)
    counts = np.bincount(np.concatenate([batch.indices for batch in batches]), minlength=n)
    assert counts.min() == 1 and counts.max() == 2 and counts.sum() == 25  # two fill up the last batch
    for batch in batches:
        sampler.update(batch.indices, 1e-3 + (batch.indices % 7 == 0))
    p = sampler.probabilities()
    assert not np.isnan(sampler.norms()).any() and p.min() < 0.5 * p.max()


def test_every_batch_of_a_pass_that_is_filled_up_is_unbiased_by_enumeration() -> None:
    # Five examples in batches of two: the third batch has the last example and one of the four before it.
    laws: list[dict[tuple[int, ...], float]] = [defaultdict(float) for _ in range(3)]
    orders = list(itertools.permutations(range(5)))
    for order in orders:
        laws[0][order[0:2]] += 1.0 / len(orders)
        laws[1][order[2:4]] += 1.0 / len(orders)
        for again in order[:4]:
            for batch in itertools.permutations((again, order[4])):
                laws[2][batch] += 1.0 / len(orders) / 4 / 2
    g = np.array([3.0, -1.0, 4.0, 1.0, -5.0])
    for law in laws:
        assert math.isclose(sum(chance * 5 / 2 * g[list(batch)].sum() for batch, chance in law.items()), g.sum())
    sampler = avare.Passes(5, 2, seed=4)
    draws: list[list[tuple[int, ...]]] = [[], [], []]
    for _ in range(draws_of(20_000)):
        for each in draws:
            each.append(tuple(sampler.sample().indices.tolist()))
    for each, law in zip(draws, laws, strict=True):
        assert chi_square(each, law) > FALSE_ALARM


def test_batches_of_different_sizes_complete_a_pass() -> None:
    sampler = avare.Passes(7, 3, seed=2)
    seen = [sampler.sample(size).indices.tolist() for size in (2, 4, 3)]
    assert set(itertools.chain(*seen)) == set(range(7)) and all(len(set(each)) == len(each) for each in seen)
    assert len(set(sampler.sample(7).indices.tolist())) == 7


def test_examples_without_a_norm_are_kept_for_certain() -> None:
    sampler = avare.Passes(23, 5, seed=1)
    known = np.arange(20)
    sampler.update(known, 1e-3 + (known % 7 == 0))
    p = sampler.probabilities()
    assert np.allclose(p[20:], p.max()) and p.min() < 0.5 * p.max()
    drawn = np.concatenate([sampler.sample().indices for _ in range(round(1.0 / p.max()) // 5)])
    assert {20, 21, 22} <= set(drawn.tolist())


def test_norms_count_from_the_next_pass_on() -> None:
    sampler = trained()
    before = sampler.probabilities()
    sampler.sample()
    sampler.update(np.arange(len(NORMS)), NORMS[::-1])
    assert np.array_equal(sampler.probabilities(), before)
    sampler.sample()
    sampler.sample()
    assert np.allclose(sampler.probabilities(), before[::-1], rtol=1e-9)


def test_every_example_comes_again() -> None:
    sampler, steps = trained(), draws_of(40_000)
    counts = Counter(int(i) for _ in range(steps) for i in sampler.sample().indices)
    expected = sampler.probabilities() * 2 * steps
    # Systematic draws vary less than independent ones: five of their standard deviations are a false alarm of 1e-6.
    assert all(abs(counts[i] - expected[i]) < 5.0 * math.sqrt(expected[i]) for i in range(len(NORMS)))


def test_states_resume_in_the_middle_of_a_pass() -> None:
    sampler, other = trained(seed=3), avare.Passes(len(NORMS), 2, least=0.3)
    sampler.sample()
    state = sampler.state_dict()
    after = [sampler.sample().indices.tolist() for _ in range(9)]
    other.load_state_dict(state)
    assert [other.sample().indices.tolist() for _ in range(9)] == after
    with pytest.raises(ValueError, match=r"state\['least'\] = 0.3: this sampler has 0.2"):
        avare.Passes(len(NORMS), 2).load_state_dict(state)
    for name, value, message in (
        ("_order", None, r"state\['order'\]\[0\] = \d: occurs twice"),
        ("_kept", 0.9, r"state\['kept'\] sums to"),
        ("_progress", 7, r"state\['progress'\]\[0\] = 7: must be at most 6"),
    ):
        sampler.load_state_dict(state)
        getattr(sampler, name)[0] = sampler._order[1] if value is None else value
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(sampler.state_dict())


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="replacement = True: Passes draws without replacement only"):
        avare.Passes(5, 2, replacement=True)
    with pytest.raises(ValueError, match=r"least = 0.0: must be at least 0.001"):
        avare.Passes(5, 2, least=0.0)
    with pytest.raises(ValueError, match=r"least = 1.5: must be at most 1"):
        avare.Passes(5, 2, least=1.5)
