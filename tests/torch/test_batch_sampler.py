"""The batch sampler alone, and what it sends to workers."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import avare.torch as avt
from avare.torch.loading.batch_sampler import AvareBatchSampler
from avare.torch.loading.weighted_batches import Pairs

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def make(n: int = 50, **options: Any) -> AvareBatchSampler:
    return AvareBatchSampler(n, 8, **options)


def rows(n: int = 50) -> TensorDataset:
    return TensorDataset(torch.arange(float(n)))


def test_draws_what_the_loader_draws() -> None:
    loader = avt.ImportanceLoader(rows(), 8, seed=4)
    batches = make(seed=4)
    for (_, index, weight), pairs in zip(loader, batches, strict=True):
        assert pairs.indices.tolist() == index.tolist() and pairs.weights.tolist() == weight.tolist()
        loader.update(index, index + 1.0)
        batches.update(pairs.indices, pairs.indices + 1.0)


def test_an_earlier_iteration_cannot_continue() -> None:
    batches = make(seed=0)
    first = iter(batches)
    next(first)
    next(iter(batches))
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(first)


def test_all_batches_are_kept_until_they_are_received() -> None:
    batches = make(seed=0, batches_per_epoch=10**9)
    drawn = [pairs.indices.tolist() for pairs in itertools.islice(batches, 1200)]
    for _ in range(3):
        batches.cursor.receive()
    assert batches.state_dict()["ahead_indices"].tolist() == drawn[3:]
    batches.update(drawn[3], np.ones(8))  # counts for the gain, but not as receipt
    assert len(batches.state_dict()["ahead_indices"]) == 1197
    assert batches.sampler.gain > 0.0


def test_pairs_can_be_sent() -> None:
    pairs = next(iter(make(seed=0)))
    twin = pickle.loads(pickle.dumps(pairs))
    assert type(twin) is Pairs and twin.weights.dtype == np.float32
    assert np.array_equal(twin.indices, pairs.indices) and np.array_equal(twin.weights, pairs.weights)


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
