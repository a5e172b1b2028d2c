"""The loader that scores a pool: unbiased, switched by tau, resumed exactly, and clear about wrong use."""

import io
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import avare.torch as avt
from laws import FALSE_ALARM, chi_square, ordered_samples

SCORES = torch.tensor([1.0, 5.0, 0.5, 2.0, 9.0])
DATA = TensorDataset(SCORES, 10.0 * torch.arange(5))


class Items:
    """A dataset whose items are different each time they are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.asked += 1
        return index, self.asked


def score(batch: Any) -> torch.Tensor:
    found: torch.Tensor = batch[0]
    return found


def forever(loader: avt.UpperBoundLoader) -> Iterator[Any]:
    while True:
        yield from loader


def switched_on(loader: avt.UpperBoundLoader) -> bool:
    return loader.active


def test_unbiased_and_of_the_law() -> None:
    # Every pool of 3 of 5 is as likely, and from it come 2 with replacement, in proportion to the scores.
    g = np.array([3.0, -1.0, 4.0, 1.0, 5.0])
    law: dict[tuple[int, ...], float] = {}
    mean = 0.0
    pools = list(itertools.combinations(range(5), 3))
    for pool in pools:
        shares = SCORES.double().numpy()[list(pool)] / SCORES.double().numpy()[list(pool)].sum()
        for places, chance in ordered_samples(shares, 2, replacement=True):
            drawn = [pool[place] for place in places]
            law[(*pool, *drawn)] = chance / len(pools)
            weights = 1.0 / (3 * shares[list(places)])
            mean += law[(*pool, *drawn)] * float(np.mean(weights * g[drawn]))
    assert mean == pytest.approx(g.mean(), rel=1e-12)

    seen: list[list[int]] = []

    def watched(batch: Any) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        seen.append((batch[1] / 10).int().tolist())
        return score(batch)

    loader = avt.UpperBoundLoader(DATA, watched, 2, pool_size=3, threshold=0, seed=0)
    found, moments = [], 0.0
    for (scores, tens), index, weight in itertools.islice(forever(loader), 20_000):
        scored = seen[-1]
        total = float(SCORES[scored].sum())
        assert weight.tolist() == pytest.approx((total / (3 * SCORES[index])).tolist(), rel=1e-6)
        assert scores.tolist() == SCORES[index].tolist() and tens.tolist() == (10 * index).tolist()
        found.append((*sorted(scored), *index.tolist()))
        moments += float(weight.sum())
    assert chi_square(found, law) > FALSE_ALARM
    assert moments / 40_000 == pytest.approx(1.0, abs=0.05)  # weights are 1 on average


def test_uniform_while_switched_off() -> None:
    def never(batch: Any) -> torch.Tensor:
        raise AssertionError("scored")

    loader = avt.UpperBoundLoader(DATA, never, 2, threshold=math.inf, seed=0)
    found = []
    for _, index, weight in itertools.islice(forever(loader), 5_000):
        assert weight.tolist() == [1.0, 1.0]
        found.append(tuple(sorted(index.tolist())))
        loader.update(index, SCORES[index])
    assert chi_square(found, dict.fromkeys(itertools.combinations(range(5), 2), 0.1)) > FALSE_ALARM
    assert not loader.active and loader.gain == 1.0 and loader.tau > 1.0


def test_the_switch() -> None:
    dataset = TensorDataset(torch.ones(40))
    scores = torch.ones(12)
    loader = avt.UpperBoundLoader(dataset, lambda batch: scores, 4, smoothing=0.5, seed=0)
    assert loader.pool_size == 12 and loader.threshold == 2.0 and loader.tau == 0.0
    batches = forever(loader)
    # One norm of four is not 0: tau is sqrt(4 * 1) = 2, of which half comes to bear at each step.
    for expected in (1.0, 1.5, 1.75):
        assert not switched_on(loader)
        _, index, weight = next(batches)
        loader.update(index, [0.0, 7.0, 0.0, 0.0])
        assert loader.tau == expected and weight.tolist() == [1.0] * 4
        loader.update(index, [1.0] * 4)  # told again: nothing
        assert loader.tau == expected
    _, index, _ = next(batches)
    loader.update(index, [1e300] + [1e-300] * 3)  # no overflow: half of 1.75 and of 2
    assert loader.tau == 1.875 and not switched_on(loader)
    loader._tau = 2.5
    assert switched_on(loader) and loader.gain == 6.25
    scores = torch.tensor([1.0] + [0.0] * 11)
    _, index, weight = next(batches)
    assert loader.tau == pytest.approx(0.5 * 2.5 + 0.5 * math.sqrt(12))
    assert len(set(index.tolist())) == 1 and weight.tolist() == pytest.approx([1 / 12] * 4)
    before = loader.tau
    loader.update(index, [1.0] * 4)  # of a batch that came from a pool: nothing
    assert loader.tau == before
    scores = torch.zeros(12)  # nothing is known: all alike
    _, index, weight = next(batches)
    assert loader.tau == pytest.approx(0.5 * before + 0.5) and weight.tolist() == pytest.approx([1.0] * 4)
    assert not switched_on(loader)


def test_the_items_drawn_are_those_that_were_scored() -> None:
    data, seen = Items(), []

    def watched(batch: Any) -> Any:
        seen.append(list(zip(batch[0].tolist(), batch[1].tolist(), strict=True)))
        return 1.0 + batch[0]

    loader = avt.UpperBoundLoader(data, watched, 2, pool_size=5, threshold=0.0, seed=1)
    for (indices, variants), index, _ in loader:
        assert indices.tolist() == index.tolist()
        assert set(zip(indices.tolist(), variants.tolist(), strict=True)) <= set(seen[-1])
    assert len(loader) == 4 and data.asked == 4 * 5  # each but once
    named = avt.UpperBoundLoader(data, lambda batch: np.ones(5), 2, pool_size=5, threshold=0.0, collate_fn=tuple)
    (first, _), index, _ = next(iter(named))
    assert first[0] == index[0]


def test_resumes_exactly() -> None:
    def make(seed: int) -> avt.UpperBoundLoader:
        return avt.UpperBoundLoader(DATA, score, 1, pool_size=4, threshold=0.9, smoothing=0.7, seed=seed)

    def run(loader: avt.UpperBoundLoader, steps: int) -> list[Any]:
        found = []
        for _, index, weight in itertools.islice(forever(loader), steps):
            loader.update(index, [1.0])
            found.append((loader.epoch, index.tolist(), weight.tolist(), loader.active))
        return found

    whole = run(make(3), 40)
    assert {active for *_, active in whole} == {True, False}
    for stop in (1, 5, 7, 23):
        first = make(3)
        assert run(first, stop) == whole[:stop]
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = make(4)
        second.load_state_dict(torch.load(file, weights_only=True))
        iter(second)  # asked for and not used
        if stop % 5 == 0:
            assert list(second) == []  # saved with the last batch of an epoch: nothing is left of it
        assert run(second, 40 - stop) == whole[stop:]
    between = make(3)
    batches = iter(between)
    _, index, _ = next(batches)
    other = make(9)
    other.load_state_dict(between.state_dict())  # between a batch and what is told of it
    for loader in (between, other):
        loader.update(index, [2.0])
    assert other.state_dict()["tau"] == between.state_dict()["tau"] > 0.0


def test_epochs() -> None:
    loader = avt.UpperBoundLoader(DATA, score, 2, batches_per_epoch=4, seed=0)
    assert len(list(loader)) == 4 == len(loader) and loader.epoch == 1
    next(iter(loader))  # left early
    batches = iter(loader)
    next(batches)
    assert loader.epoch == 2
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(batches)


def test_a_score_that_fails_changes_nothing() -> None:
    answers: list[Any] = []
    loader = avt.UpperBoundLoader(DATA, lambda batch: answers.pop(), 2, pool_size=3, threshold=0.0, seed=0)
    before = repr(loader.state_dict())
    for answer, message in (
        (torch.ones(2), r"score\(batch\) has length 2: must have 3"),
        (torch.tensor([1.0, math.nan, 1.0]), r"score\(batch\)\[1\] = nan: must be finite and not negative"),
        (torch.tensor([[1.0], [1.0], [1.0]]), r"score\(batch\) has shape \(3, 1\)"),
    ):
        answers.append(answer)
        with pytest.raises(ValueError, match=message):
            next(iter(loader))
        assert repr(loader.state_dict()) == before


def test_what_is_told_wrongly_changes_nothing() -> None:
    loader = avt.UpperBoundLoader(DATA, score, 2, seed=0)
    _, index, _ = next(iter(loader))
    before = repr(loader.state_dict())
    for wrong, norms, message in (
        (index, [1.0, -1.0], r"norms\[1\] = -1.0"),
        (index, [1.0], "norms has length 1"),
        ([0, 9], [1.0, 1.0], r"index\[1\] = 9"),
        (index.flip(0), [1.0, 1.0], "index is not that of the batch handed out last"),
    ):
        with pytest.raises(ValueError, match=message):
            loader.update(wrong, norms)
        assert repr(loader.state_dict()) == before
    for norms, message in (([1.0, math.nan], r"norms\[1\] = nan"), ([1.0, math.inf], r"norms\[1\] = inf")):
        with pytest.raises(ValueError, match=message):
            loader.update(index, norms)
        loader.update(index, norms, not_finite="skip")  # as the other loader: an overflow under a GradScaler
        assert repr(loader.state_dict()) == before
    with pytest.raises(ValueError, match=r"norms\[0\] = -1.0"):
        loader.update(index, [-1.0, 1.0], not_finite="skip")
    with pytest.raises(ValueError, match="not_finite = 'keep': must be 'raise' or 'skip'"):
        loader.update(index, [1.0, 1.0], not_finite="keep")  # type: ignore[arg-type]  # the point
    assert repr(loader.state_dict()) == before
    loader.update(index, [1.0, 2.0], not_finite="skip")
    assert loader.tau > 0.0


def test_states_that_do_not_fit() -> None:
    loader = avt.UpperBoundLoader(DATA, score, 2, seed=0)
    state = loader.state_dict()
    before = repr(state)
    with pytest.raises(TypeError, match="state is of type int"):
        loader.load_state_dict(3)  # type: ignore[arg-type]  # the point
    for change, message in (
        ({"tau": None}, None),
        ({"tau": -1.0}, r"state\['tau'\] = -1.0"),
        ({"position": 99}, r"state\['position'\] = 99: must be at most 3"),
        ({"generator": "{}"}, r"state\['generator'\] is no state of a generator"),
        ({"index": torch.tensor([7])}, r"state\['index'\]\[0\] = 7"),
        ({"pool_size": 4}, r"state\['pool_size'\] = 4: this loader has 5"),
        ({"format": 2}, r"state\['format'\] = 2"),
    ):
        with pytest.raises((ValueError, TypeError), match=message or "tau"):
            loader.load_state_dict({**state, **change})
        assert repr(loader.state_dict()) == before
    with pytest.raises(ValueError, match="state lacks 'told'"):
        loader.load_state_dict({key: value for key, value in state.items() if key != "told"})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 6}, ValueError, "batch_size = 6: must be at most 5"),
        ({"batch_size": 0}, ValueError, "batch_size = 0: must be at least 1"),
        ({"pool_size": 1}, ValueError, "pool_size = 1: must be at least 2"),
        ({"pool_size": 6}, ValueError, "pool_size = 6: must be at most 5"),
        ({"smoothing": 1.0}, ValueError, "smoothing = 1.0: must be below 1"),
        ({"smoothing": -0.1}, ValueError, "smoothing = -0.1"),
        ({"threshold": -1.0}, ValueError, "threshold = -1.0"),
        ({"batches_per_epoch": 0}, ValueError, "batches_per_epoch = 0"),
        ({"score": 3}, TypeError, "score is of type int: must be a function of a batch"),
        ({"dataset": 3}, TypeError, "dataset is of type int"),
        ({"dataset": []}, ValueError, "n = 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"dataset": DATA, "score": score, "batch_size": 2, **arguments}
    with pytest.raises(error, match=message):
        avt.UpperBoundLoader(given.pop("dataset"), given.pop("score"), **given)


def test_log() -> None:
    class Writer:
        found: dict[str, float]

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.found[tag] = value

    writer = Writer()
    writer.found = {}
    avt.UpperBoundLoader(DATA, score, 2).log(writer, 3)
    assert writer.found == {"avare/tau": 0.0, "avare/gain": 1.0, "avare/active": 0.0}


def test_a_net_is_trained() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, generator=generator)
    y = (x[:, 0] > 1.2).long()
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = avt.UpperBoundLoader(
        TensorDataset(x, y), lambda batch: avt.output_norms(model(batch[0]), batch[1]), 16, threshold=1.2, seed=0
    )
    active = []
    for _ in range(20):
        for (rows, labels), index, weight in loader:
            logits = model(rows)
            optimizer.zero_grad()
            (weight * torch.nn.functional.cross_entropy(logits, labels, reduction="none")).mean().backward()
            optimizer.step()
            loader.update(index, avt.output_norms(logits, labels))
            active.append(loader.active)
    assert torch.nn.functional.cross_entropy(model(x), y).item() < 0.1
    assert not active[0] and active[-1]
