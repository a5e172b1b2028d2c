"""The parts, in your own DataLoader."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import avare.torch as avt
from avare.torch.loading.weighted_batches import Pairs

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def make(n: int = 50, **options: Any) -> avt.AvareBatchSampler:
    return avt.AvareBatchSampler(n, 8, **options)


def rows(n: int = 50) -> TensorDataset:
    return TensorDataset(torch.arange(float(n)))


def test_draws_what_the_loader_draws() -> None:
    loader = avt.ImportanceLoader(rows(), 8, seed=4)
    batches = make(seed=4)
    for (_, index, weight), pairs in zip(loader, batches, strict=True):
        assert list(pairs) == list(zip(index.tolist(), weight.tolist(), strict=True))
        assert [pairs[place] for place in range(len(pairs))] == list(pairs)
        loader.update(index, index + 1.0)
        batches.update(pairs.indices, pairs.indices + 1.0)


@pytest.mark.parametrize("collate", [avt.IndexedCollate(), None], ids=["ours", "torch's"])
@pytest.mark.parametrize("workers", [0, 2])
def test_in_your_own_dataloader(collate: Any, workers: int) -> None:
    batches = make(seed=0)
    loader = DataLoader(avt.Indexed(rows()), batch_sampler=batches, collate_fn=collate, num_workers=workers)
    for epoch in range(2):
        assert batches.epoch == epoch and len(loader) == 7
        count = 0
        for (x,), index, weight in loader:
            assert torch.equal(x, index.float()) and weight.dtype == torch.float32 and index.dtype == torch.int64
            batches.update(index, x + 1.0)
            count += 1
        assert count == 7
        assert batches.cursor.position == 7
        if epoch == 0:
            batches.cursor.finish()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_update_counts_as_receipt(workers: int) -> None:
    def loader_of(batches: avt.AvareBatchSampler) -> DataLoader[Any]:
        return DataLoader(
            avt.Indexed(rows()), batch_sampler=batches, collate_fn=avt.IndexedCollate(), num_workers=workers
        )

    def report(batches: avt.AvareBatchSampler, drawn: list[list[int]], until: int) -> None:
        for (x,), index, _ in loader_of(batches):
            drawn.append(index.tolist())
            batches.update(index, x + 1.0)
            if len(drawn) == until:
                break

    expected: list[list[int]] = []
    whole = make(seed=0)
    report(whole, expected, 7)
    report(whole, expected, 14)
    drawn: list[list[int]] = []
    first, second = make(seed=0), make(seed=1)
    report(first, drawn, 3)
    assert first.cursor.position == 3
    second.load_state_dict(first.state_dict())
    report(second, drawn, 7)
    third = make(seed=2)
    third.load_state_dict(second.state_dict())  # of an epoch that is over
    report(third, drawn, 14)
    assert drawn == expected and third.epoch == 1


def test_old_batches_without_norms_are_dropped() -> None:
    batches = make(batches_per_epoch=10**9)
    drawn = iter(batches)
    for _ in range(1200):
        next(drawn)
    assert len(batches.state_dict()["ahead_indices"]) == 1024


def test_an_earlier_iteration_cannot_continue() -> None:
    batches = make(seed=0)
    first = iter(batches)
    next(first)
    next(iter(batches))
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(first)


def test_all_batches_are_kept_until_they_are_received() -> None:
    batches = make(seed=0, batches_per_epoch=10**9)
    batches.cursor.keep = None
    drawn = [pairs.indices.tolist() for pairs in itertools.islice(batches, 1200)]
    for _ in range(3):
        batches.cursor.receive()
    assert batches.state_dict()["ahead_indices"].tolist() == drawn[3:]
    batches.update(drawn[3], np.ones(8))  # counts for the gain, but not as receipt
    assert len(batches.state_dict()["ahead_indices"]) == 1197
    assert batches.sampler.gain > 0.0


def test_indexed_takes_pairs() -> None:
    indexed = avt.Indexed(rows())
    assert len(indexed) == 50
    assert indexed[3, 0.5][1:] == (3, 0.5)
    assert [index for _, index, _ in indexed.__getitems__([(3, 0.5), (4, 1.0)])] == [3, 4]
    with pytest.raises(TypeError, match="cannot unpack"):
        indexed[3]
    with pytest.raises(TypeError, match="cannot unpack"):
        next(iter(DataLoader(indexed, batch_size=2)))


def test_pairs_can_be_sent() -> None:
    pairs = next(iter(make(seed=0)))
    twin = pickle.loads(pickle.dumps(pairs))
    assert pairs.pin_memory() is pairs
    assert type(twin) is Pairs and list(twin) == list(pairs) and twin.weights.dtype == np.float32


def test_equal_batches_drawn_ahead_are_received_one_by_one() -> None:
    batches = avt.AvareBatchSampler(1, 1, seed=0, batches_per_epoch=5)  # every batch has the same index
    drawn = iter(batches)
    for _ in range(4):
        next(drawn)
    for received in (1, 2):
        batches.update([0], [1.0])
        assert batches.cursor.position == received
    twin = avt.AvareBatchSampler(1, 1, seed=1, batches_per_epoch=5)
    twin.load_state_dict(batches.state_dict())
    assert len(twin.state_dict()["ahead_indices"]) == 2 and len(list(twin)) == 3


def test_equal_batches_drawn_ahead_by_workers_resume() -> None:
    def make(seed: int) -> avt.ImportanceLoader:
        return avt.ImportanceLoader(["a"], 1, seed=seed, batches_per_epoch=9, num_workers=1)

    loader, twin = make(0), make(1)
    for step, (_, index, _) in enumerate(loader, start=1):
        loader.update(index, [2.0])
        if step == 4:
            break
    twin.load_state_dict(loader.state_dict())
    assert len(loader.state_dict()["ahead_indices"]) == 2 and len(list(twin)) == 5
