"""Datasets that grow under a loader: which batches have the new examples, lengths of epochs, workers, states."""

from typing import Any

import numpy as np
import pytest
import torch

import avare
import avare.torch as avt
from loaders import changing_norms, forever, run, snapshot, through_a_file


def make(data: list[float], **options: Any) -> avt.ImportanceLoader:
    return avt.ImportanceLoader(data, 4, **{"sampler": "Calibrated", "seed": 3, **options})


def epoch(loader: Any, data: list[float]) -> list[int]:
    """The indices of an epoch; each item is what the dataset has at its index."""
    found = []
    for rows, index, _ in loader:
        assert rows.tolist() == [data[i] for i in index.tolist()]
        loader.update(index, changing_norms(1, index))
        found += index.tolist()
    return found


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_new_examples_are_drawn_from_the_next_epoch_on(workers: dict[str, Any]) -> None:
    data = [float(i) for i in range(10)]
    loader = make(data, sampler="Uniform", sampler_options={"reshuffle": True}, **workers)
    assert len(loader) == 3
    epoch(loader, data)
    data += [10.0, 11.0, 12.0]
    assert loader.extend().tolist() == [10, 11, 12] and len(loader) == 4
    assert len(set(epoch(loader, data)[:12])) == 12  # a pass over 13, from its beginning
    assert loader.importance_sampler.n == loader.importance_sampler.present == 13
    found, sizes = [], []
    for _, index, weight in loader:
        found += index.tolist()
        if len(found) == 8:
            data += [13.0] * 7
            assert loader.extend().tolist() == list(range(13, 20))
            assert loader.extend().tolist() == []
        sizes.append(len(loader))
        assert weight.tolist() == [1.0] * 4
    assert max(found) < 13 and len(found) == 16 and sizes == [4] * 4  # this epoch stays as it was
    found = epoch(loader, data)
    assert len(found) == 20 == len(set(found)) and len(loader) == 5


def test_the_mean_over_the_present_examples_is_estimated() -> None:
    data = [float(i) for i in range(8)]
    loader = make(data, replacement=True, batches_per_epoch=2)
    estimates: list[float] = []
    run(loader, 1, 20)
    data += [50.0, 60.0]
    loader.extend()
    loader.retire(torch.tensor([0, 5]))
    assert len(loader) == 2
    for _ in range(4000):
        for rows, index, weight in loader:
            estimates.append(float((rows * weight).mean()))
            assert not {0, 5} & set(index.tolist())
    mean = np.mean([1, 2, 3, 4, 6, 7, 50, 60])
    # Five standard errors: one false alarm in two million.
    assert abs(np.mean(estimates) - mean) < 5.0 * np.std(estimates) / len(estimates) ** 0.5


def test_retired_examples() -> None:
    data = [float(i) for i in range(12)]
    loader = make(data, num_workers=1)
    batches = iter(loader)
    _, first, _ = next(batches)
    loader.retire(first[:2])
    loader.update(first, torch.ones(4))  # two of them are ignored
    rest = [index.tolist() for _, index, _ in batches]
    assert len(rest) == 2  # the length of this epoch; batches drawn ahead may have them
    for _ in range(20):
        assert not set(first[:2].tolist()) & set(epoch(loader, data))
    assert len(loader) == 3 == -(-10 // 4)
    loader.retire(loader.importance_sampler.contains(np.arange(12)).nonzero()[0][:3])
    epoch(loader, data)
    assert len(loader) == 2
    with pytest.raises(ValueError, match="has been retired before"):
        loader.retire(first[:1])


@pytest.mark.parametrize("more", [{}, {"score": lambda rows: 1.0 + rows % 5, "pool": 2.0}, {"sampler": "Avare"}])
@pytest.mark.parametrize("at", ["in an epoch", "between epochs"])
def test_resumes_with_the_same_batches(more: dict[str, Any], at: str) -> None:
    data = [float(i) for i in range(20)]
    loader = make(data, **more)
    run(loader, 1, 7)
    data += [float(i) for i in range(20, 31)]
    if at == "between epochs":
        loader.extend()
        run(loader, 8, 30)
        loader.retire([3, 25])
    run(loader, 31, 33)
    loader.extend()
    state = through_a_file(loader.state_dict())
    twin = make(data, **{**more, "seed": 99})
    twin.load_state_dict(state)
    assert snapshot(twin) == snapshot(loader)
    # `run` continues an epoch from a state only in a new iteration: both do so.
    loader.load_state_dict(state)
    assert run(twin, 34, 60) == run(loader, 34, 60)
    assert twin.importance_sampler.n == 31 and snapshot(twin) == snapshot(loader)
    with pytest.raises(ValueError, match=r"state\['n'\] = 31: this loader has 30"):
        make(data[:30], **more).load_state_dict(state)
    broken = {**state, "sampler": {**state["sampler"], "n": 10**9}}
    with pytest.raises(ValueError, match=r"state\['sampler'\]\['n'\] = 1000000000"):
        make(data, **more).load_state_dict(broken)


def test_pools_and_passes_follow() -> None:
    data = [float(i) for i in range(12)]
    loader = make(data, score=lambda rows: torch.ones(len(rows)), cost_ratio=1.5)  # no pool pays: shuffled passes
    run_without_norms(loader, 20)
    data += [1.0] * 8
    loader.extend()
    loader.retire([0, 1])
    run_without_norms(loader, 60)
    assert loader.batch_sampler.stage.measured.largest_ratio == 4.5
    found = {i for _ in range(8) for _, index, _ in loader for i in index.tolist()}
    assert found == set(range(2, 20))


def run_without_norms(loader: Any, steps: int) -> None:
    for step, _ in enumerate(forever(loader), start=1):
        if step == steps:
            break


def test_what_is_refused() -> None:
    data = [1.0] * 12
    loader = make(data)
    before = snapshot(loader)
    del data[-1]
    with pytest.raises(ValueError, match="n = 11: must be at least 12"):
        loader.extend()
    assert snapshot(loader) == before
    for sampler, name in (
        ("Passes", "Passes"),
        (avare.Static(11, 4, smoothness=np.ones(11)), "Static"),
        (avare.Avare(11, 4, capacity=20), "Avare"),
    ):
        other = make(data, sampler=sampler, seed=None)
        with pytest.raises(TypeError, match=f"sampler = {name}: extend needs Avare, Calibrated or Uniform, without"):
            other.extend()
    with pytest.raises(TypeError, match="Passes has a fixed set of examples"):
        make(data, sampler="Passes").retire([1])
