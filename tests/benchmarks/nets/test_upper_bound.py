"""The rule of a uniform pool: unbiased, active by tau, resumed exactly, and clear about wrong use."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import avare.torch as avt
import two_stages
from laws import FALSE_ALARM, chi_square
from loaders import Counted, forever, through_a_file
from nets.upper_bound import UpperBound

# Python warns about every fork of a process with threads, and torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SCORES = torch.tensor([1.0, 5.0, 0.5, 2.0, 9.0])
DATA = TensorDataset(SCORES, 10.0 * torch.arange(5))


def score(batch: Any) -> torch.Tensor:
    found: torch.Tensor = batch[0]
    return found


def pooled(dataset: Any, score: Any, batch_size: int, rule: UpperBound, **options: Any) -> avt.ImportanceLoader:
    return avt.ImportanceLoader(dataset, batch_size, sampler="Uniform", score=score, pool=rule, **options)


def is_active(loader: avt.ImportanceLoader) -> bool:
    return loader.pool_ratio > 1.0


def test_unbiased_and_with_the_right_law() -> None:
    # Every pool of 3 of 5 has the same probability; 2 of it are drawn in proportion to the scores, none twice.
    g = np.array([3.0, -1.0, 4.0, 1.0, 5.0])
    chosen = list(itertools.combinations(range(5), 3))
    chances_of: dict[tuple[int, ...], dict[int, float]] = {}
    law: dict[tuple[int, ...], float] = {}
    mean = 0.0
    for pool in chosen:
        s = SCORES.double().numpy()[list(pool)]
        included = two_stages.inclusion(s, 2, 0.0)
        chances_of[pool] = dict(zip(pool, included.tolist(), strict=True))
        for places, chance in two_stages.systematic_law(included, 2).items():
            drawn = [pool[place] for place in places]
            law[(*pool, *drawn)] = chance / len(chosen)
            weights = 2.0 / (3.0 * included[list(places)])
            mean += law[(*pool, *drawn)] * float(np.mean(weights * g[drawn]))
    assert mean == pytest.approx(g.mean(), rel=1e-9)

    seen: list[list[int]] = []

    def watched(batch: Any) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        seen.append((batch[1] / 10).int().tolist())
        return score(batch)

    loader = pooled(DATA, watched, 2, UpperBound(1.5, threshold=0), seed=0)
    found = []
    for (scores, tens), index, weight in itertools.islice(forever(loader), 4_000):
        chances = chances_of[tuple(sorted(seen[-1]))]
        assert weight.tolist() == pytest.approx([2.0 / (3.0 * chances[i]) for i in index.tolist()], rel=1e-5)
        assert torch.equal(scores, SCORES[index]) and torch.equal(tens, 10.0 * index)
        found.append((*sorted(seen[-1]), *sorted(index.tolist())))
    assert chi_square(found, law) > FALSE_ALARM


def test_uniform_while_inactive() -> None:
    def never(batch: Any) -> torch.Tensor:
        raise AssertionError("scored")

    rule = UpperBound(threshold=math.inf)
    loader = pooled(DATA, never, 2, rule, seed=0)
    found = []
    for _, index, weight in itertools.islice(forever(loader), 5_000):
        assert weight.tolist() == [1.0, 1.0]
        found.append(tuple(sorted(index.tolist())))
        loader.update(index, SCORES[index])
    assert chi_square(found, dict.fromkeys(itertools.combinations(range(5), 2), 0.1)) > FALSE_ALARM
    assert not is_active(loader) and loader.gain == pytest.approx(1.0) and rule.tau > 1.0


def test_the_switch() -> None:
    dataset = TensorDataset(torch.ones(40))
    scores = torch.ones(12)
    rule = UpperBound(smoothing=0.5)
    loader = pooled(dataset, lambda batch: scores, 4, rule, seed=0)
    assert rule.threshold == 2.0 and rule.tau == 0.0
    batches = forever(loader)
    # One norm of four is not 0: tau moves half way to sqrt(4 * 1) = 2 at each step.
    for expected in (1.0, 1.5, 1.75):
        assert not is_active(loader)
        _, index, weight = next(batches)
        loader.update(index, [0.0, 7.0, 0.0, 0.0])
        assert rule.tau == pytest.approx(expected) and weight.tolist() == [1.0] * 4
        loader.update(index, [1.0] * 4)  # a second report changes nothing
        assert rule.tau == pytest.approx(expected)
    _, index, _ = next(batches)
    loader.update(index, [1e300] + [1e-300] * 3)  # no overflow: half of 1.75 and of 2
    assert rule.tau == pytest.approx(1.875) and not is_active(loader)
    rule.load([2.5])
    assert is_active(loader) and loader.pool_ratio == 3.0
    scores = torch.tensor([1.0] + [0.0] * 11)
    _, index, weight = next(batches)
    assert rule.tau == pytest.approx(0.5 * 2.5 + 0.5 * math.sqrt(12))
    # One for certain, with the weight 4 / 12; the other three of eleven, to fill the batch.
    assert len(set(index.tolist())) == 4 and sorted(weight.tolist()) == pytest.approx([1 / 3] + [11 / 9] * 3)
    before = rule.tau
    loader.update(index, [1.0] * 4)  # the batch came from a pool: no change
    assert rule.tau == before
    scores = torch.zeros(12)  # all shares are equal
    _, index, weight = next(batches)
    assert rule.tau == pytest.approx(0.5 * before + 0.5) and weight.tolist() == pytest.approx([1.0] * 4)
    assert not is_active(loader)


def test_without_updates_a_pool_is_drawn_now_and_then() -> None:
    sizes = []

    def spread(batch: Any) -> torch.Tensor:
        sizes.append(len(batch[0]))
        return (batch[0] % 7 == 0).float()

    loader = pooled(TensorDataset(torch.arange(400)), spread, 20, UpperBound(smoothing=0.0), seed=0)
    for _ in itertools.islice(forever(loader), 110):
        pass
    assert sizes == [60] * 11 and is_active(loader)  # the hundredth, and all after it


def test_the_batch_has_the_items_that_were_scored() -> None:
    data, seen = Counted(), []

    def watched(batch: Any) -> Any:
        seen.append(list(zip(batch[0].tolist(), batch[1].tolist(), strict=True)))
        return 1.0 + batch[0]

    loader = pooled(data, watched, 2, UpperBound(2.5, threshold=0.0), seed=1)
    for (indices, variants), index, _ in loader:
        assert indices.tolist() == index.tolist()
        assert set(zip(indices.tolist(), variants.tolist(), strict=True)) <= set(seen[-1])
    assert len(loader) == 4 and data.asked == 4 * 5  # each once
    named = pooled(data, lambda batch: np.ones(5), 2, UpperBound(2.5, threshold=0.0), collate_fn=tuple)
    (first, _), index, _ = next(iter(named))
    assert first[0] == index[0]


def test_resumes_exactly() -> None:
    def make(seed: int) -> avt.ImportanceLoader:
        return pooled(DATA, score, 1, UpperBound(4.0, threshold=0.9, smoothing=0.7), seed=seed)

    def run(loader: avt.ImportanceLoader, steps: int) -> list[Any]:
        found = []
        for _, index, weight in itertools.islice(forever(loader), steps):
            loader.update(index, [1.0])
            found.append((loader.epoch, index.tolist(), weight.tolist(), is_active(loader)))
        return found

    whole = run(make(3), 40)
    assert {active for *_, active in whole} == {True, False}
    for stop in (1, 5, 7, 23):
        first = make(3)
        assert run(first, stop) == whole[:stop]
        second = make(4)
        second.load_state_dict(through_a_file(first.state_dict()))
        if stop % 5 == 0:
            assert list(second) == []  # saved with the last batch of an epoch: its rest is empty
        iter(second)  # not used
        assert run(second, 40 - stop) == whole[stop:]
    between = make(3)
    batches = iter(between)
    _, index, _ = next(batches)
    other = make(9)
    other.load_state_dict(between.state_dict())  # between a batch and its update
    for loader in (between, other):
        loader.update(index, [2.0])
    taus = [loader.state_dict()["pool_size"].item() for loader in (between, other)]
    assert taus[0] == taus[1] > 0.0


def test_epochs() -> None:
    loader = pooled(DATA, score, 2, UpperBound(), batches_per_epoch=4, seed=0)
    assert len(list(loader)) == 4 == len(loader) and loader.epoch == 1
    next(iter(loader))  # not the whole epoch
    batches = iter(loader)
    next(batches)
    assert loader.epoch == 2
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(batches)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ratio": 0.5}, "pool = 0.5: must be at least 1"),
        ({"smoothing": 1.0}, "smoothing = 1.0: must be below 1"),
        ({"smoothing": -0.1}, "smoothing = -0.1"),
        ({"threshold": -1.0}, "threshold = -1.0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UpperBound(**arguments)


def test_a_pool_is_never_larger_than_the_dataset() -> None:
    sizes = []

    def watched(batch: Any) -> torch.Tensor:
        sizes.append(len(batch[0]))
        return score(batch)

    loader = pooled(DATA, watched, 2, UpperBound(smoothing=0.0, threshold=0.5), seed=0, batches_per_epoch=10**9)
    for _, index, _ in itertools.islice(loader, 9):
        loader.update(index, [1.0, 1.0])
    assert sizes == [5] * 8  # the first batch is uniform


def test_measures_and_states() -> None:
    loader = pooled(DATA, score, 2, UpperBound(2.5))
    assert loader.measures()["pool_ratio"] == 1.0
    other = pooled(DATA, score, 2, UpperBound(2.0))
    with pytest.raises(ValueError, match=r"state\['pool'\] = '2.5, smoothing 0.9, .*': this loader has '2, smoothing"):
        other.load_state_dict(loader.state_dict())


def test_workers() -> None:
    def make(workers: int) -> avt.ImportanceLoader:
        rule = UpperBound(2.5, threshold=0)
        return pooled(DATA, score, 2, rule, seed=0, num_workers=workers, batches_per_epoch=20)

    drawn = [[(index.tolist(), weight.tolist()) for _, index, weight in make(workers)] for workers in (0, 1)]
    assert drawn[0] == drawn[1]  # nothing is remembered, so drawing ahead changes nothing


def test_a_net_is_trained() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, generator=generator)
    y = (x[:, 0] > 1.2).long()
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = pooled(
        TensorDataset(x, y),
        lambda batch: avt.output_norms(model(batch[0]), batch[1]),
        16,
        UpperBound(threshold=1.2),
        seed=0,
    )
    active = []
    for _ in range(20):
        for (rows, labels), index, weight in loader:
            logits = model(rows)
            optimizer.zero_grad()
            (weight * torch.nn.functional.cross_entropy(logits, labels, reduction="none")).mean().backward()
            optimizer.step()
            loader.update(index, avt.output_norms(logits, labels))
            active.append(is_active(loader))
    assert torch.nn.functional.cross_entropy(model(x), y).item() < 0.1
    assert not active[0] and active[-1]
