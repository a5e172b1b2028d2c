"""Torchrl's replay buffers with our sampler. Its compiled trees are not needed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchrl", reason="its releases need another tensordict than the frameworks tested here")
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictMaxValueWriter, TensorDictReplayBuffer
from torchrl.data.replay_buffers.scheduler import LinearScheduler

from avare.replay.torchrl import PrioritizedSampler
from framework_page import run_snippet

CAPACITY = 20


def items(count: int, **more: torch.Tensor) -> TensorDict:
    return TensorDict({"value": torch.arange(count, dtype=torch.float32), **more}, [count])


def made(**arguments: Any) -> tuple[TensorDictReplayBuffer, PrioritizedSampler]:
    sampler = PrioritizedSampler(CAPACITY, alpha=0.7, beta=0.5, eps=0.0, seed=0, **arguments)
    storage = LazyTensorStorage(CAPACITY)
    return TensorDictReplayBuffer(storage=storage, sampler=sampler, priority_key="td_error"), sampler


def test_new_items_get_the_highest_priority_and_old_ones_are_replaced() -> None:
    buffer, sampler = made()
    buffer.extend(items(15))
    assert sampler.priorities.total == 15.0
    buffer.update_priority(torch.arange(15), torch.full((15,), 3.0))
    assert sampler.default_priority == 3.0
    buffer.extend(items(10))  # 5 of the first 15 are replaced
    assert sampler.priorities.total == pytest.approx(20 * 3.0**0.7, rel=1e-12)
    buffer.add(TensorDict({"value": torch.tensor(1.0)}, []))
    assert sampler.priorities.total == pytest.approx(20 * 3.0**0.7, rel=1e-12)


def test_samples_with_the_weights_of_the_paper() -> None:
    buffer, _ = made()
    buffer.extend(items(10))
    priorities = torch.linspace(0.0, 9.0, 10)
    buffer.update_priority(torch.arange(10), priorities)
    batch = buffer.sample(4000)
    index = batch["index"]
    assert torch.equal(batch["value"], index.float()) and index.min() == 1
    expected = (priorities[index] / 1.0) ** (-0.7 * 0.5)
    assert batch["priority_weight"].dtype == torch.float32
    assert torch.allclose(batch["priority_weight"], expected, rtol=1e-6)
    p = priorities.double() ** 0.7
    counts = torch.bincount(index, minlength=10)
    mean, deviation = 4000 * p / p.sum(), (4000 * p / p.sum()).sqrt()
    assert ((counts - mean).abs() <= 6 * deviation).all()  # six standard deviations, at least


def test_priorities_come_with_the_data() -> None:
    buffer, sampler = made()
    buffer.extend(items(4, td_error=torch.tensor([1.0, 0.0, 2.0, 0.0])))
    assert set(buffer.sample(100)["index"].tolist()) == {0, 2}
    batch = buffer.sample(4)
    batch["td_error"] = torch.full((4,), 5.0)
    buffer.update_tensordict_priority(batch)
    assert sampler.default_priority == 5.0


def test_distinct_items() -> None:
    buffer, _ = made(distinct=True)
    buffer.extend(items(10))
    for _ in range(20):
        assert len(set(buffer.sample(10)["index"].tolist())) == 10


def test_what_was_not_stored_is_ignored() -> None:
    sampler = PrioritizedSampler(5, alpha=1.0, beta=1.0, seed=0)
    writer = TensorDictMaxValueWriter(rank_key="value")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), sampler=sampler, writer=writer)
    buffer.extend(items(12))  # the five largest are kept
    buffer.extend(items(3))
    assert set(buffer.sample(200)["value"].tolist()) <= {7.0, 8.0, 9.0, 10.0, 11.0}
    sampler.update_priority(torch.tensor([-1, 2]), torch.tensor([100.0, 2.0]))
    assert sampler.default_priority < 3.0


def test_a_storage_of_two_dimensions() -> None:
    sampler = PrioritizedSampler(12, alpha=1.0, beta=1.0, eps=0.0, seed=0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2), sampler=sampler)
    buffer.extend(TensorDict({"value": torch.arange(12).reshape(3, 4)}, [3, 4]))
    sampler.update_priority(torch.tensor([[0, 1], [3, 2]]), torch.tensor([0.0, 50.0]), storage=buffer.storage)
    found = buffer.sample(300)["value"].tolist()
    assert 4 not in found and found.count(11) > 150


def test_saves_and_empties(tmp_path: Path) -> None:
    buffer, sampler = made()
    buffer.extend(items(15))
    buffer.update_priority(torch.arange(15), torch.rand(15, generator=torch.Generator().manual_seed(0)))
    sampler.dumps(tmp_path / "sampler")
    twins = [made()[1], made()[1]]
    twins[0].loads(tmp_path / "sampler")
    twins[1].load_state_dict(sampler.state_dict())
    expected = sampler.sample(buffer.storage, 30)[0]
    for twin in twins:
        assert torch.equal(twin.sample(buffer.storage, 30)[0], expected)
    buffer.empty()
    assert sampler.priorities.total == 0.0
    buffer.extend(items(2))
    assert set(buffer.sample(50)["index"].tolist()) == {0, 1}


def test_a_plain_replay_buffer() -> None:
    sampler = PrioritizedSampler(8, alpha=1.0, beta=1.0, seed=0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler, batch_size=4)
    buffer.extend(torch.arange(8.0))
    assert repr(sampler) == "PrioritizedSampler(alpha=1.0, beta=1.0, eps=1e-08)"
    assert (sampler.max_size, sampler.device.type) == (8, "cpu")
    data, info = buffer.sample(return_info=True)
    assert data.tolist() == info["index"].tolist() and np.allclose(info["priority_weight"], 1.0)


def test_beta_is_annealed_by_a_scheduler() -> None:
    buffer, sampler = made()
    scheduler = LinearScheduler(sampler, param_name="beta", final_value=1.0, num_steps=4)
    for _ in range(4):
        scheduler.step()
    assert sampler.beta == sampler.priorities.beta == 1.0
    buffer.extend(items(2, td_error=torch.tensor([1.0, 16.0])))
    batch = buffer.sample(50)
    assert torch.allclose(batch["priority_weight"], batch["td_error"] ** -0.7, rtol=1e-6)


def test_the_page_runs() -> None:
    run_snippet("torchrl")
