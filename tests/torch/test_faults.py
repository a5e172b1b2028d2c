"""Faults while batches are made: what follows is unbiased, batches keep their own indices, and nothing grows."""

import functools
import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import avare
import avare.torch as avt
import two_stages
from avare.torch.loading import loader as loader_module
from avare.torch.loading.ranks import exchange_device
from avare.torch.loading.weighted_batches import Items
from faulty import PLACES, VALUES, BrokenError, Faults, received
from laws import FALSE_ALARM, chi_square, ordered_samples
from loaders import snapshot

# Python warns about every fork of a process with threads, and torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def make(faults: Faults, pool: float | None, workers: int = 0, seed: int = 0, **options: Any) -> avt.ImportanceLoader:
    second: dict[str, Any] = {} if pool is None else {"score": faults.score, "pool": pool}
    return avt.ImportanceLoader(
        faults,
        2,
        seed=seed,
        collate_fn=faults.collate,
        num_workers=workers,
        batches_per_epoch=10**9,
        **second,
        **options,
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pool", [None, 2])
@pytest.mark.parametrize("place", PLACES)
def test_each_batch_has_its_own_indices_and_nothing_grows(place: str, pool: float | None, workers: int) -> None:
    if pool is None and place in ("score", "second collate"):
        pytest.skip("there is no second stage")
    loader = make(Faults(place), pool, workers, sampler="Avare")
    for (values, found), index, weight in itertools.islice(received(iter(loader)), 60):
        assert index.tolist() == found.tolist() and values.tolist() == VALUES[index].tolist()
        assert len(weight) == 2
        loader.update(index, values)
        assert len(loader.batch_sampler.cursor.ahead) <= 2 * workers + 1
        assert 0 <= loader.batch_sampler.cursor.position <= loader.batch_sampler.cursor.drawn
    sampler = loader.importance_sampler
    assert isinstance(sampler, avare.Avare)
    known = sampler.norms()
    assert np.count_nonzero(known) > 3
    assert np.allclose(known[known > 0.0], VALUES.numpy()[known > 0.0], rtol=1e-6)  # no norm of another example


@pytest.mark.parametrize("place", PLACES)
def test_unbiased_after_faults_over_many_seeds(place: str) -> None:
    """The mean of weight times value, against that of all examples. A false alarm: 1 in 10^5 for each place."""
    means = []
    for seed in range(60):
        # The dataset fails at an example at random: after a fault, all of the later batches count.
        faults = Faults(place, every=3)
        batches = received(iter(make(faults, 2, seed=seed)))
        while place and faults.calls < faults.every:
            next(batches)
        faults.place = ""
        means += [float((weight * values).mean()) for (values, _), _, weight in itertools.islice(batches, 40)]
    error = np.std(means) / math.sqrt(len(means))
    assert abs(np.mean(means) - float(VALUES.mean())) < 4.5 * error < 0.1


P = np.array([0.1, 0.3, 0.2, 0.05, 0.15, 0.15, 0.05])


@functools.cache
def outcomes() -> list[tuple[tuple[int, ...], Any, float]]:
    """All batches of 2 from pools of 3 by fixed probabilities: indices, weights and chance."""
    law = dict(ordered_samples(P, 3, False))
    weights = {pool: avare.batch_weights(P[list(pool)], False) for pool in law}
    return list(two_stages.two_stages(law, weights, VALUES.double().numpy(), 2, 0.1))


@pytest.mark.parametrize("place", PLACES)
def test_the_law_after_a_fault_by_enumeration(place: str) -> None:
    sampler = avare.Static(7, 2, smoothness=P, uniform=0.0, seed=4)
    faults = Faults(place, every=1)
    loader = avt.ImportanceLoader(
        faults, 2, sampler=sampler, score=faults.score, pool=1.5, collate_fn=faults.collate, batches_per_epoch=10**9
    )
    batches = iter(loader)
    with pytest.raises(BrokenError):
        list(itertools.islice(batches, 100))
    faults.place = ""
    expected: dict[tuple[int, ...], float] = defaultdict(float)
    known: dict[int, list[float]] = defaultdict(list)
    mean = 0.0
    for batch, factors, chance in outcomes():
        expected[tuple(sorted(batch))] += chance
        mean += chance * float(factors @ VALUES.double().numpy()[list(batch)]) / 7
        for index, factor in zip(batch, factors, strict=True):
            known[index].append(2 * factor / 7)
    assert mean == pytest.approx(float(VALUES.mean()), rel=1e-6)
    drawn = list(itertools.islice(batches, 2000))
    assert chi_square([tuple(sorted(index.tolist())) for _, index, _ in drawn], expected) > FALSE_ALARM
    for _, index, weight in drawn[:300]:
        for i, w in zip(index.tolist(), weight.tolist(), strict=True):
            assert np.isclose(known[i], w, rtol=1e-5).any()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pool", [None, 2])
def test_a_unit_that_could_not_be_loaded_is_dropped(pool: float | None, workers: int) -> None:
    faults = Faults("collate", every=3)
    second: dict[str, Any] = {} if pool is None else {"score": faults.score, "pool": pool}
    loader = avt.ImportanceLoader(
        faults, 2, seed=1, collate_fn=faults.collate, num_workers=workers, batches_per_epoch=8, **second
    )
    for epoch in range(3):
        assert loader.epoch == epoch
        assert 4 <= len(list(received(iter(loader)))) < 8  # an epoch ends after 8 draws
    twin = avt.ImportanceLoader(
        faults, 2, seed=2, collate_fn=faults.collate, num_workers=workers, batches_per_epoch=8, **second
    )
    twin.load_state_dict(loader.state_dict())
    assert snapshot(twin) == snapshot(loader)


def test_a_state_saved_after_a_fault_resumes_with_the_batch_that_failed() -> None:
    faults = Faults("dataset", every=1)
    loader = make(faults, 2, seed=3)
    with pytest.raises(BrokenError):
        list(loader)
    failed = loader.batch_sampler.cursor.ahead[0].indices.tolist()
    faults.place = ""
    other = make(faults, 2, seed=9)
    other.load_state_dict(loader.state_dict())
    next(iter(other))
    latest = other.batch_sampler.cursor.latest
    assert latest is not None and latest.indices.tolist() == failed


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_a_transfer_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are pinned for the device when a batch is taken from its pool."""
    fails = [True]

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        if fails and fails.pop():
            raise BrokenError("no memory to pin")
        return tensor

    class Device:
        @staticmethod
        def is_available() -> bool:
            return True

    monkeypatch.setattr(loader_module, "ACCELERATOR", Device)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    data = TensorDataset(VALUES, torch.arange(7))
    loader = avt.ImportanceLoader(data, 2, seed=0, score=lambda batch: batch[0], pool=2, batches_per_epoch=10**9)
    loader.pin_memory = True
    batches = iter(loader)
    with pytest.raises(BrokenError):
        next(batches)
    before = snapshot(loader)
    for (values, found), index, _ in itertools.islice(batches, 30):
        assert index.tolist() == found.tolist() and values.tolist() == VALUES[index].tolist()
    assert snapshot(loader) != before and len(loader.batch_sampler.cursor.ahead) == 0


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("place", PLACES)
def test_stop_iteration_does_not_end_the_epoch(place: str, workers: int) -> None:
    faults = Faults(place, every=2, error=StopIteration)
    batches = iter(make(faults, 2, workers))
    with pytest.raises(RuntimeError, match="a dataset, collate function or score raised StopIteration"):
        list(itertools.islice(batches, 100))
    assert len(next(received(batches, RuntimeError))[1]) == 2


def test_no_warning_about_updates_with_a_score(recwarn: pytest.WarningsRecorder) -> None:
    loader = avt.ImportanceLoader(
        TensorDataset(VALUES), 2, score=lambda batch: batch[0], seed=0, batches_per_epoch=1, cost_ratio=1.0
    )
    for _ in range(5):
        list(loader)
    assert not [each for each in recwarn if "no gradient norms have been reported" in str(each.message)]


class Tensors:
    """Items of different lengths."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"row": torch.full((index + 1,), float(index)), "index": index}


def ragged(items: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([item["row"] for item in items]), torch.tensor([item["index"] for item in items])


def test_items_are_sent_as_bytes_and_only_the_chosen_ones_are_unpacked() -> None:
    loader = avt.ImportanceLoader(
        Tensors(), 3, seed=0, collate_fn=ragged, score=lambda batch: 1.0 + batch[1], pool=4, num_workers=1
    )
    for (rows, found), index, _ in loader:
        assert found.tolist() == index.tolist() and len(rows) == int((index + 1).sum())
    build, (texts, unpack) = Items([Tensors()[index] for index in range(4)]).__reduce__()
    assert all(isinstance(text, bytes) for text in texts)
    unpacked = []

    def count(text: bytes) -> Any:
        unpacked.append(text)
        return unpack(text)

    assert build(texts, count)[2]["index"] == 2 and unpacked == [texts[2]]


# --- devices: a stand-in for an accelerator, because tests run on the CPU -------------------


def test_the_clock_waits_for_any_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device still does when a pool is scored belongs to the last step, not to the pool."""
    now, waits = [0.0], []

    class Device:
        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def synchronize() -> None:
            waits.append(now[0])
            now[0] += 10.0

    def slow(batch: Any) -> torch.Tensor:
        now[0] += 0.001 * len(batch[0])
        return 1.0 + batch[0]

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("avare.torch.loading.measures.ACCELERATOR", Device)
    loader = avt.ImportanceLoader(TensorDataset(torch.arange(100.0)), 10, score=slow, seed=0, batches_per_epoch=10**9)
    for _ in itertools.islice(loader, 24):
        now[0] += 0.07
    assert len(waits) == loader.batch_sampler.stage.measured.scored > 0
    assert loader.measures().get("cost_ratio", math.nan) == pytest.approx(7.0)


def test_a_process_group_exchanges_where_it_can() -> None:
    for backends, device in (
        ("cpu:gloo,cuda:gloo", "cpu"),
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("cuda:nccl", "cuda"),
        ("xpu:xccl", "xpu"),
        ("npu:hccl", "npu"),
    ):
        assert exchange_device(backends) == device


def test_scores_without_data_are_refused() -> None:
    loader = avt.ImportanceLoader(
        TensorDataset(VALUES), 2, score=lambda batch: batch[0].to("meta"), pool=2, seed=0, batches_per_epoch=10**9
    )
    with pytest.raises((TypeError, ValueError), match="meta"):
        next(iter(loader))
    assert len(loader.batch_sampler.cursor.ahead) == 1  # the pool, to be scored again
