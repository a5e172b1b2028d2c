"""Draws in proportion to weights that change. See `laws.FALSE_ALARM` for the law of draws."""

import copy
import io
import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import avare.torch as avt
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

WEIGHTS = np.array([0.3, 5.0, 1.0, 0.0, 2.2])
P = WEIGHTS / WEIGHTS.sum()
DRAWS = draws_of(40_000)


def law(p: Any) -> dict[tuple[int, ...], float]:
    return {(i,): float(chance) for i, chance in enumerate(p)}


# --- laws ----------------------------------------------------------------------------------


def test_draws_follow_the_weights_as_those_of_torch_do() -> None:
    ours = list(avt.WeightedSampler(torch.from_numpy(WEIGHTS), DRAWS, seed=1))
    theirs = list(WeightedRandomSampler(WEIGHTS.tolist(), DRAWS, generator=torch.Generator().manual_seed(1)))
    for found in (ours, theirs):
        assert len(found) == DRAWS
        pairs = list(zip(found[::2], found[1::2], strict=True))
        assert chi_square(pairs, dict(ordered_samples(P, 2, replacement=True))) > FALSE_ALARM


@pytest.mark.parametrize("size", [2, 4])
def test_a_pass_without_replacement_has_the_law_of_torch_multinomial(size: int) -> None:
    expected = dict(ordered_samples(P, size, replacement=False))
    sampler = avt.WeightedSampler(WEIGHTS, size, replacement=False, seed=2)
    torch.manual_seed(2)
    weights = torch.from_numpy(WEIGHTS)
    passes, batches, theirs = [], [], []
    for _ in range(DRAWS // 10):
        passes.append(tuple(sampler))
        batches.append(tuple(sampler.draw(size).tolist()))
        theirs.append(tuple(torch.multinomial(weights, size, replacement=False).tolist()))
    for found in (passes, batches, theirs):
        assert chi_square(found, expected) > FALSE_ALARM


def test_without_replacement_a_pass_contains_what_has_a_weight() -> None:
    sampler = avt.WeightedSampler(WEIGHTS, replacement=False, seed=3)
    assert len(sampler) == sampler.num_samples == 4
    for _ in range(20):
        assert sorted(sampler) == [0, 1, 2, 4]
    with pytest.raises(ValueError, match="num_samples = 5: only 4 weights are above 0, and without replacement"):
        avt.WeightedSampler(WEIGHTS, 5, replacement=False)


def test_small_weights_among_many_keep_their_share() -> None:
    # A sum in float32 would lose every weight after the first: there, 2^24 + 1 = 2^24.
    weights = np.ones(4096)
    weights[0] = 2.0**24
    sampler = avt.WeightedSampler(weights, 2_000_000, seed=4)
    small = np.count_nonzero(sampler.draw(2_000_000).numpy())
    expected = 2_000_000 * 4095 / (2.0**24 + 4095)
    assert abs(small - expected) < 6.0 * expected**0.5  # six standard deviations


def test_the_smallest_weights_that_there_are() -> None:
    draws = list(avt.WeightedSampler([1e-323, 5e-324, 0.0], DRAWS, seed=4))
    assert chi_square([(i,) for i in draws], {(0,): 2 / 3, (1,): 1 / 3}) > FALSE_ALARM


@pytest.mark.parametrize("replacement", [True, False])
def test_an_update_takes_effect_at_the_next_draw(replacement: bool) -> None:
    # Drawn ahead or not: the third index of each pass follows the new weights, given the first two.
    new, thirds, fourth = np.array([2.0, 0.0, 1.0, 4.0, 0.5]), [], []
    for seed in range(DRAWS // 20):
        sampler = avt.WeightedSampler(np.ones(5), 4, replacement, seed=seed)
        indices = iter(sampler)
        first = {next(indices), next(indices)}
        sampler.update(range(5), new)
        thirds.append((len(first), next(indices)))
        fourth.append(next(indices))
        if not replacement:
            assert thirds[-1][1] not in first and fourth[-1] not in first
    expected: Counter[tuple[int, ...]] = Counter()
    for sample, chance in ordered_samples(np.full(5, 0.2), 2, replacement):
        left = new.copy()
        if not replacement:
            left[list(sample)] = 0.0
        for index in range(5):
            expected[len(set(sample)), index] += chance * left[index] / left.sum()
    assert chi_square(thirds, expected) > FALSE_ALARM
    assert 1 not in fourth


@pytest.mark.parametrize("replacement", [True, False])
def test_what_was_drawn_ahead_leaves_no_trace(replacement: bool) -> None:
    weights = np.random.default_rng(0).lognormal(size=500)
    one = avt.WeightedSampler(weights, 400, replacement, seed=5)
    other = avt.WeightedSampler(weights, 400, replacement, seed=5)
    found = []
    for place, index in enumerate(other):
        found.append(index)
        if place % 7 == 0:
            other.update([index], [weights[index]])  # the same weight again: everything ahead is drawn again
    assert found == list(one)


def test_weights_that_appear_and_vanish_during_a_pass() -> None:
    sampler = avt.WeightedSampler([1.0, 1.0, 0.0, 0.0], 2, replacement=False, seed=6)
    indices = iter(sampler)
    first = next(indices)
    sampler.update([first, 1 - first, 3], [0.0, 0.0, 1.0])
    sampler.update([first], [9.0])  # already drawn in this pass
    assert list(indices) == [3]
    sampler.update([0, 1, 3], [1.0, 1.0, 0.0])
    indices = iter(sampler)
    first = next(indices)
    sampler.update([1 - first], [0.0])
    assert list(indices) == []  # nothing is left


# --- as a sampler of torch -----------------------------------------------------------------


def test_in_a_data_loader() -> None:
    dataset = TensorDataset(torch.arange(5))
    sampler = avt.WeightedSampler(WEIGHTS, 50, seed=7)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    assert len(loader) == 6
    for _ in range(2):
        batches = [batch for (batch,) in loader]
        assert len(batches) == 6 and 3 not in torch.cat(batches)
    sampler.update([0, 1, 2, 3, 4], [0, 0, 0, 1, 0])
    assert set(torch.cat([batch for (batch,) in loader]).tolist()) == {3}


@pytest.mark.parametrize("replacement", [True, False])
def test_another_iterator_ends_the_pass_of_the_first(replacement: bool) -> None:
    sampler = avt.WeightedSampler(np.ones(40), replacement=replacement, seed=7)
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=4, sampler=sampler)
    outer = iter(loader)
    next(outer)
    inner = [index for (batch,) in loader for index in batch.tolist()]
    assert len(inner) == 40 and (replacement or len(set(inner)) == 40)
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(outer)
    first, second = iter(sampler), iter(sampler)
    whole = [next(first) for _ in range(40)]
    rest = [next(second)]
    assert list(first) == [] and len(whole) == len(rest + list(second))  # a complete pass ends as usual
    first, state = iter(sampler), sampler.state_dict()
    next(first)
    sampler.load_state_dict(state)
    with pytest.raises(RuntimeError, match="a state was loaded: this one cannot continue"):
        next(first)


def test_a_copy_continues_by_itself() -> None:
    sampler = avt.WeightedSampler(WEIGHTS, 50, seed=8)
    copies = [copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))]
    expected = list(sampler)
    assert [list(each) for each in copies] == [expected, expected]


# --- states --------------------------------------------------------------------------------


def through_a_file(state: dict[str, Any]) -> Any:
    content = io.BytesIO()
    torch.save(state, content)
    content.seek(0)
    return torch.load(content, weights_only=True)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("place", [0, 1, 70, 300])
def test_resumes_with_the_same_draws(replacement: bool, place: int) -> None:
    weights = np.random.default_rng(1).lognormal(size=400)
    sampler = avt.WeightedSampler(weights, 300, replacement, seed=9)
    list(sampler)
    sampler.update([3, 4], [0.5, 90.0])
    indices = iter(sampler)
    for _ in range(place):
        next(indices)
    state = through_a_file(sampler.state_dict())
    rest = list(indices) if place else []
    expected = [rest, list(sampler), sampler.draw(9).tolist()]
    twin = avt.WeightedSampler(np.ones(400), 300, replacement, seed=0)
    twin.load_state_dict(state)
    assert twin.weights.tolist() == sampler.weights.tolist()
    assert [list(twin) if rest else [], list(twin), twin.draw(9).tolist()] == expected


def test_refuses_a_damaged_state_and_changes_nothing() -> None:
    sampler = avt.WeightedSampler(WEIGHTS, 4, replacement=False, seed=10)
    next(iter(sampler))
    state = sampler.state_dict()
    damaged = {
        "weights": [state["weights"][:-1], -state["weights"], state["weights"] * 2],
        "drawn": [state["drawn"][:-1], ~state["drawn"]],
        "given": [-1, 7, 2],
        "generator": ["text", 3],
        "n": [4],
        "replacement": [1],
        "ranks": [2],
        "checksum": [0],
    }
    twin = avt.WeightedSampler(WEIGHTS, 4, replacement=False, seed=11)
    expected = list(copy.deepcopy(twin))
    for name, values in damaged.items():
        for value in values:
            with pytest.raises(ValueError, match=rf"state\['({name}|checksum|given)'\]"):
                twin.load_state_dict({**state, name: value})
        with pytest.raises(ValueError, match=f"state lacks '{name}'"):
            twin.load_state_dict({key: each for key, each in state.items() if key != name})
    assert list(twin) == expected


# --- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1.0, float("nan")]}, r"weights\[1\] = nan: must be finite and not negative"),
        ({"weights": [1.0, -2.0]}, r"weights\[1\] = -2.0"),
        ({"weights": []}, "n = 0: must be at least 1"),
        ({"weights": [0.0, 0.0]}, "weights: all are 0"),
        ({"weights": [1.0, 1e308]}, r"weights\[1\] = 1e\+308: must be at most"),
        ({"weights": [1.0], "num_samples": 0}, "num_samples = 0: must be at least 1"),
        ({"weights": [1.0], "distributed": "sharded"}, "distributed = 'sharded': there is no process group"),
    ],
)
def test_refuses_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        avt.WeightedSampler(**arguments)


def test_refuses_a_bad_update_and_changes_nothing() -> None:
    sampler, twin = (avt.WeightedSampler(WEIGHTS, 100, seed=12) for _ in range(2))
    for indices, weights, message in [
        ([0, 5], [1.0, 1.0], r"indices\[1\] = 5: must be in \[0, 5\)"),
        ([0, 1], [1.0, -1.0], r"weights\[1\] = -1.0"),
        ([0, 1], [1.0, float("nan")], r"weights\[1\] = nan"),
        ([0], [1.0, 1.0], "weights has length 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            sampler.update(indices, weights)
    assert list(sampler) == list(twin)
    sampler.update(range(5), np.zeros(5))
    with pytest.raises(ValueError, match="all weights are 0"):
        sampler.draw(1)
    with pytest.raises(ValueError, match="weights: all are 0"):
        next(iter(sampler))


# --- several processes ---------------------------------------------------------------------

RANKS = """
import json, sys
import numpy as np
import torch.distributed as dist
import avare.torch as avt

rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
weights = np.random.default_rng(0).lognormal(size=101)
found = {}
for replacement in (True, False):
    sampler = avt.WeightedSampler(weights, 50, replacement, seed=3)
    indices = iter(sampler)
    drawn = [next(indices) for _ in range(6)]
    sampler.update(drawn[:2], [7.0, 0.0])  # each rank its own
    found[str(replacement)] = drawn + list(indices)
    try:
        sampler.update([0], [-1.0 if rank == 1 else 1.0])
    except ValueError as error:
        found["refused"] = str(error)
    found["batch"] = sampler.draw(4).tolist()
if rank == 0:
    next(iter(sampler))
try:
    sampler.update([0], [1.0])
except RuntimeError as error:
    found["apart"] = str(error)
try:
    avt.WeightedSampler(weights, 50 + rank)
except ValueError as error:
    found["different"] = str(error)
found["unseeded"] = list(avt.WeightedSampler(weights, 4 * world))
print(json.dumps(found))
dist.destroy_process_group()
"""


def test_ranks_draw_disjoint_parts_of_one_sequence(tmp_path: Path) -> None:
    world = 2
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(rank), str(world), str(tmp_path / "store")], stdout=subprocess.PIPE
        )
        for rank in range(world)
    ]
    found = [json.loads(process.communicate(timeout=150)[0]) for process in processes]
    weights = np.random.default_rng(0).lognormal(size=101)
    for replacement in (True, False):
        alone = avt.WeightedSampler(weights, 50, replacement, seed=3)
        indices = iter(alone)
        drawn = [next(indices) for _ in range(12)]
        alone.update([drawn[0], drawn[2], drawn[1], drawn[3]], [7.0, 0.0, 7.0, 0.0])
        whole = drawn + list(indices)
        parts = [each[str(replacement)] for each in found]
        assert [index for pair in zip(*parts, strict=True) for index in pair] == whole
    batch = alone.draw(4 * world).tolist()
    assert [each["batch"] for each in found] == [batch[::2], batch[1::2]]
    assert [each["refused"] for each in found] == [
        "rank 1 received invalid weights: nothing has changed on any rank",
        "weights[0] = -1.0: must be finite and not negative",
    ]
    for each in found:
        assert "call update() after the same number of draws on all ranks" in each["apart"]
        assert each["different"] == "num_samples = 51 on rank 1 and 50 on rank 0: must be the same"
    assert found[0]["unseeded"] != found[1]["unseeded"]


# --- size ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_million_weights() -> None:
    n = 10**8
    weights = np.resize([0.0, 1.0, 2.0, 5.0], n)
    sampler = avt.WeightedSampler(weights, seed=13)
    assert len(sampler) == n
    classes = sampler.draw(1_000_000).numpy() % 4
    assert chi_square([(i,) for i in classes.tolist()], law([0.0, 0.125, 0.25, 0.625])) > FALSE_ALARM
    sampler.update(np.arange(3, n, 4), np.zeros(n // 4))
    indices = sampler.draw(1_000_000).numpy()
    assert chi_square([(i,) for i in (indices % 4).tolist()], law([0.0, 1 / 3, 2 / 3, 0.0])) > FALSE_ALARM
    tenths = (indices // (n // 10)).tolist()
    assert chi_square([(i,) for i in tenths], law([0.1] * 10)) > FALSE_ALARM
    twin = avt.WeightedSampler(np.ones(n), seed=0)
    twin.load_state_dict(sampler.state_dict())
    assert torch.equal(twin.draw(1000), sampler.draw(1000))
