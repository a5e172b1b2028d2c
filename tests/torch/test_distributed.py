"""Several processes draw what one process draws; sharded parts, with their weights, add up."""

import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import avare
import avare.torch as avt
from avare.structures.systematic import inclusion
from avare.torch.loading.batch_sampler import AvareBatchSampler
from avare.torch.loading.ranks import Mode, Ranks
from laws import ordered_samples
from thread_ranks import Threads

sys.path.append(str(Path(__file__).parent))
from train_ranks import WHOLE_BATCH, N, make_dataset, make_model, train

STEPS, SAVED, DEATH = 200, 60, 75


class Run:
    """What became of one run of several processes."""

    def __init__(self, folder: Path, world: int) -> None:
        self.codes = [int((folder / f"code{rank}").read_text()) for rank in range(world)]
        self.complaints = [(folder / f"errors{rank}").read_text() for rank in range(world)]
        self._paths = [folder / f"rank{rank}.pt" for rank in range(world)]
        self.checkpoint = folder / "checkpoint.pt"

    def results(self) -> list[dict[str, Any]]:
        """What each process found, if all ended well."""
        assert set(self.codes) == {0}, self.complaints
        return [torch.load(path, weights_only=True) for path in self._paths]

    def has_result(self, rank: int) -> bool:
        return self._paths[rank].exists()


def runs_of(folder: Path, world: int, *runs: dict[str, Any]) -> list[Run]:
    """Let ranks make one run after another. Each run has processes of its own, forked from one per rank."""
    folder.mkdir(exist_ok=True)
    folders = [folder / f"run{place}" for place in range(len(runs))]
    for each in folders:
        each.mkdir()
    script = str(Path(__file__).parent / "train_ranks.py")
    settings = [{**run, "world": world, "folder": str(each)} for run, each in zip(runs, folders, strict=True)]
    processes = [
        subprocess.Popen([sys.executable, script, json.dumps([{**each, "rank": rank} for each in settings])])
        for rank in range(world)
    ]
    try:
        assert [process.wait(timeout=150) for process in processes] == [0] * world
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [Run(each, world) for each in folders]


def joined(found: list[dict[str, Any]]) -> list[Any]:
    """The whole batches, joined from each rank's part."""
    return [
        ([i for part in parts for i in part[0]], [w for part in parts for w in part[1]])
        for parts in zip(*(each["drawn"] for each in found), strict=True)
    ]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process with the whole batch."""
    loader, model = avt.ImportanceLoader(make_dataset(), WHOLE_BATCH, seed=7), make_model()
    return {"drawn": train(loader, model, STEPS), "model": model.state_dict(), "gain": loader.gain}


@pytest.fixture(scope="module")
def death_and_resume(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Two processes, of which one dies some steps after a state was saved; then two that resume from that state."""
    folder = tmp_path_factory.mktemp("ranks")
    resume = {"resume": str(folder / "run0" / "checkpoint.pt"), "first": SAVED, "more": True}
    death, resumed = runs_of(
        folder,
        2,
        {"steps": STEPS, "save": SAVED, "die_at": DEATH, "timeout": 15},
        {"steps": STEPS, **resume},
    )
    return death, resumed


def check_as_alone(found: list[dict[str, Any]], alone: dict[str, Any], first: int = 0) -> None:
    assert joined(found) == alone["drawn"][first:]
    message = "all_gather", 16 * (2 + WHOLE_BATCH // len(found))  # bytes: a head, and this rank's part of the batch
    for each in found:
        if "sent" in each:
            assert each["sent"] == [message] * (STEPS - first)  # one per step
        assert each["gain"] == pytest.approx(alone["gain"], rel=1e-9)
        for name, value in alone["model"].items():
            # Sums in a different order: errors of 1e-16 per step, in 200 steps.
            assert torch.allclose(each["model"][name], value, rtol=0, atol=1e-6)


def test_a_rank_that_dies_ends_the_others(death_and_resume: tuple[Run, Run]) -> None:
    death, _ = death_and_resume
    assert death.codes[1] == 3 and death.codes[0] not in (0, 3)
    # The survivor ends by itself, with the process group's error.
    errors = r"^(\[rank0\]: )?(RuntimeError|torch\.distributed\.Dist\w+Error): .*(gloo|peer|timed? ?out)"
    assert re.search(errors, death.complaints[0], re.IGNORECASE | re.MULTILINE), death.complaints
    assert not death.has_result(0)


def test_one_process_resumes_from_the_state_of_two(death_and_resume: tuple[Run, Run], alone: dict[str, Any]) -> None:
    saved = torch.load(death_and_resume[0].checkpoint, weights_only=True)
    loader, model = avt.ImportanceLoader(make_dataset(), WHOLE_BATCH, seed=1), make_model()
    loader.load_state_dict(saved["loader"])
    model.load_state_dict(saved["model"])
    drawn = train(loader, model, STEPS, first=SAVED)
    check_as_alone([{"drawn": drawn, "model": model.state_dict(), "gain": loader.gain}], alone, SAVED)


def test_two_processes(death_and_resume: tuple[Run, Run], alone: dict[str, Any]) -> None:
    found = death_and_resume[1].results()
    check_as_alone(found, alone, SAVED)
    zero, one = found
    for each in found:
        assert "a process group was initialised after this loader was made" in each["made before"]
        assert each["unchanged"]
        assert each["waiting"] == 8 - 5
        assert "seed = 1 on rank 1 and 0 on rank 0" in each["other seed"]
        assert "has drawn different batches" in each["apart"]
        assert "index has length 8: must be at most 4" in each["too many"]
        assert each["object"] == (4, -(-N // 8))
        assert f"n = {N + 2} on rank 1 and {N + 1} on rank 0" in each["extended apart"]
        assert "checksum of index = " in each["retired apart"]
    assert zero["unseeded"] == one["unseeded"]
    grown = AvareBatchSampler(N, 8, sampler="Calibrated", seed=5)
    grown.extend(N + 30)
    grown.retire(np.arange(N))
    parts = zip(zero["grown"], one["grown"], strict=True)
    assert [first + second for first, second in parts] == [pairs.indices.tolist() for pairs in grown]
    assert zero["refused"].startswith("ValueError: rank 1 failed, or received invalid norms")
    assert one["refused"].startswith("ValueError: norms[2] = nan")


@pytest.mark.slow
def test_four_processes_with_workers(death_and_resume: tuple[Run, Run], alone: dict[str, Any], tmp_path: Path) -> None:
    resume = {"resume": str(death_and_resume[0].checkpoint), "first": SAVED}
    plain, resumed, with_workers = runs_of(
        tmp_path / "four", 4, {"steps": STEPS}, {"steps": STEPS, **resume}, {"steps": STEPS, "workers": 1}
    )
    check_as_alone(plain.results(), alone)
    check_as_alone(resumed.results(), alone, SAVED)
    loader, model = avt.ImportanceLoader(make_dataset(), WHOLE_BATCH, seed=7, num_workers=1), make_model()
    ahead = {"drawn": train(loader, model, STEPS), "model": model.state_dict(), "gain": loader.gain}
    assert ahead["drawn"] != alone["drawn"]  # because batches are drawn before the last norms are known
    check_as_alone(with_workers.results(), ahead)


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    """Act as one rank of a process group."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group=None: rank)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group=None: world)

    def agreed(found: list[Any], value: Any, group: Any = None) -> None:
        found[:] = [value] * world

    monkeypatch.setattr("torch.distributed.all_gather_object", agreed)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [5, None])
def test_any_number_of_ranks_draws_what_one_process_draws(
    monkeypatch: pytest.MonkeyPatch, world: int, seed: int | None
) -> None:
    def train_rank(rank: int) -> Any:
        loader = avt.ImportanceLoader(make_dataset(), 12 // world, seed=seed)
        first = loader.state_dict()
        drawn = []
        for _ in range(2):
            for _, index, weight in loader:
                drawn.append((index.tolist(), weight.tolist()))
                loader.update(index, np.exp(np.sin(index.numpy())))
        return first, drawn, repr(loader.state_dict())

    ranks = Threads(monkeypatch, world)
    states, drawn, ends = zip(*ranks.run(train_rank), strict=True)
    alone = avt.ImportanceLoader(make_dataset(), 12, seed=seed)
    alone.load_state_dict(states[0])
    whole = []
    for _ in range(2):
        for _, index, weight in alone:
            whole.append((index.tolist(), weight.tolist()))
            alone.update(index, np.exp(np.sin(index.numpy())))
    assert joined([{"drawn": each} for each in drawn]) == whole
    assert set(ends) == {repr(alone.state_dict())}
    assert set(ranks.sizes) == {32 + 16 * 12 // world}  # a head, and 16 bytes per example
    assert len(ranks.sizes) == len(whole) * world  # one message per step from each


def test_ranks_refuse_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rank: int) -> list[str]:
        found = []
        loader = avt.ImportanceLoader(make_dataset(), 4, seed=0)
        _, index, _ = next(iter(loader))
        before = repr(loader.state_dict())
        for wrong in (math.nan, -1.0, math.inf, None):
            norms = torch.ones(4)
            if wrong is not None:
                norms[2] = wrong if rank == 1 else 1.0
            elif rank == 1:
                norms = norms.to("meta")  # an error that is no failed check
            with pytest.raises((ValueError, TypeError)) as caught:
                loader.update(index, norms)
            found.append(str(caught.value))
        with pytest.raises(ValueError, match="index has length 8: must be at most 4"):
            loader.update(torch.cat([index, index]), torch.ones(8))
        assert repr(loader.state_dict()) == before
        loader.update(index[: 1 + rank], torch.ones(1 + rank))  # in part, and of different lengths
        assert loader.measures()["waiting"] == 12 - 6
        norms = torch.ones(4)
        if rank == 1:
            norms[2:] = math.nan
        loader.update(index, norms, not_finite="skip")
        assert loader.measures()["waiting"] == 2  # on every rank
        return found

    zero, one, two = Threads(monkeypatch, 3).run(refuse)
    assert zero == two == ["rank 1 failed, or received invalid norms: nothing has changed on any rank"] * 4
    assert [text.split(":")[0] for text in one[:3]] == ["norms[2] = nan", "norms[2] = -1.0", "norms[2] = inf"]
    assert "meta" in one[3]


@pytest.mark.parametrize("pool", [2.3, "auto"])
def test_each_rank_scores_its_part_of_the_pool(monkeypatch: pytest.MonkeyPatch, pool: Any) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).lognormal(0.0, 2.0, N))

    def train_rank(rank: int) -> Any:
        scored = []

        def score(batch: Any) -> torch.Tensor:
            scored.append(batch[0].tolist())
            return batch[0]

        loader = avt.ImportanceLoader(TensorDataset(rows), 6, score=score, pool=pool, seed=3, sampler="Avare")
        steps = 0
        for _ in range(3):
            for (found,), index, weight in loader:
                steps += 1
                unit = loader.batch_sampler.cursor.latest
                assert unit is not None and torch.equal(found, rows[index])
                ranks = loader.batch_sampler.ranks
                own = ranks.own(len(unit.indices))
                if own.stop - own.start == 6:
                    continue
                assert scored[-1] == rows[unit.indices[own]].tolist()  # its part only
                scores, weights = rows[unit.indices[own]].numpy(), unit.weights[own]
                chances = dict(zip(unit.indices[own], inclusion(weights * scores, 6, 0.1), strict=True))
                known = dict(zip(unit.indices[own], weights, strict=True))
                assert weight.tolist() == pytest.approx([known[i] / chances[i] for i in index.tolist()], rel=1e-5)
                assert loader.measures().get("waiting") == (
                    None if pool == "auto" else 0
                )  # "auto" need not be reported
        return (
            repr(loader.state_dict()),
            steps,
            loader.pool_ratio,
            loader.measures().get("relative_error"),
            index.tolist(),
            len(scored),
        )

    ranks = Threads(monkeypatch, 2)
    zero, one = ranks.run(train_rank)
    assert zero[1] == one[1] == 51
    assert zero[4] != one[4]
    assert zero[0] == one[0] and zero[3] == one[3]  # the same costs, too
    assert set(ranks.sizes) == ({16 * (2 + 6), 16 * (14 + 3)} if pool == 2.3 else set(ranks.sizes))
    assert len(ranks.sizes) == 2 * (zero[5] + one[5])  # a head and the scores of each pool


def test_a_bad_score_on_one_rank_reaches_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rank: int) -> Any:
        bad = [True]

        def score(batch: Any) -> torch.Tensor:
            found: torch.Tensor = 1.0 + batch[0]
            if rank == 1 and bad:
                bad.clear()
                found[2] = math.nan
            return found

        loader = avt.ImportanceLoader(TensorDataset(torch.arange(40.0)), 4, score=score, pool=2, seed=0)
        batches = iter(loader)
        with pytest.raises(ValueError, match=r"rank 1 failed|must be finite") as caught:
            next(batches)
        before = repr(loader.state_dict())
        _, index, weight = next(batches)  # the same pool again
        return str(caught.value), before, index.tolist(), weight.tolist(), repr(loader.state_dict())

    zero, one = Threads(monkeypatch, 2).run(refuse)
    assert zero[0] == "rank 1 failed, or received invalid norms: nothing has changed on any rank"
    assert one[0] == "score(batch)[2] = nan: must be finite and not negative"
    assert zero[1] == one[1] and zero[4] == one[4]
    alone = avt.ImportanceLoader(
        TensorDataset(torch.arange(40.0)), 8, score=lambda batch: 1.0 + batch[0], pool=2, seed=9, distributed=None
    )
    with pytest.raises(ValueError, match="pool"):
        avt.ImportanceLoader(TensorDataset(torch.arange(40.0)), 8, distributed=None).load_state_dict(alone.state_dict())


@pytest.mark.parametrize("pool", [None, 2])
@pytest.mark.parametrize("fault", ["skips an update", "cannot load a batch", "cannot collate the chosen"])
def test_ranks_that_do_different_things_are_named(monkeypatch: pytest.MonkeyPatch, fault: str, pool: Any) -> None:
    """Both ranks end with the same error, which names rank and step; if the rank can try again, all is well."""
    if pool is None and fault == "cannot collate the chosen":
        pytest.skip("there is no second stage")

    def train_rank(rank: int) -> Any:
        fails = [rank == 1]

        def collate(items: list[Any]) -> torch.Tensor:
            at_fault = len(items) == 4 if "chosen" in fault else "load" in fault
            if step == 3 and at_fault and fails.pop():
                fails.append(False)
                raise OSError("mine")
            return torch.tensor(items)

        step = 0
        options = {} if pool is None else {"score": lambda batch: 1.0 + batch, "pool": pool}
        loader = avt.ImportanceLoader(range(40), 4, seed=0, collate_fn=collate, batches_per_epoch=10**9, **options)
        batches = iter(loader)
        drawn = []
        for step in range(1, 7):
            try:
                _, index, _ = next(batches)
            except OSError:
                _, index, _ = next(batches)
            drawn.append(index.tolist())
            if not (fault == "skips an update" and rank == 1 and step == 3):
                loader.update(index, 1.0 + index)
        return repr(loader.state_dict())

    zero, one = Threads(monkeypatch, 2).run(train_rank)
    if fault == "cannot collate the chosen":  # it tries again, and ranks are together
        assert zero == one and isinstance(zero, str)
        return
    assert isinstance(zero, RuntimeError) and isinstance(one, RuntimeError)
    if fault == "skips an update":
        other = "asks for batch 4" if pool else "calls update() after batch 4"
        at_zero, at_one = "calls update() after batch 3", other
    else:
        at_zero, at_one = (
            ("asks for batch 3", "asks for batch 4")
            if pool
            else ("calls update() after batch 3", "calls update() after batch 4")
        )
    assert f"rank 1 {at_one}, and rank 0 {at_zero}" in str(zero)
    assert f"rank 0 {at_zero}, and rank 1 {at_one}" in str(one)


def test_refuses_ranks_with_different_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    def differ(rank: int) -> Any:
        options: dict[str, Any] = {"score": lambda batch: batch, "pool": 2} if rank else {}
        avt.ImportanceLoader(range(40), 4, seed=0, **options)

    for found in Threads(monkeypatch, 2).run(differ):
        assert "pool = '2' on rank 1 and 'None' on rank 0: must be the same" in str(found)


def test_any_number_of_ranks_resumes_with_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(world: int) -> avt.ImportanceLoader:
        return avt.ImportanceLoader(TensorDataset(torch.arange(60.0)), 12 // world, score=lambda b: b[0], pool=1.75)

    def begin(rank: int) -> Any:
        loader = make(2)
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        return loader.state_dict()

    state = Threads(monkeypatch, 2).run(begin)[0]

    def resume(rank: int) -> Any:
        loader = make(3)
        loader.load_state_dict(state)
        return [len(index) for _, index, _ in loader], repr(loader.state_dict())

    found = Threads(monkeypatch, 3).run(resume)
    assert [sizes for sizes, _ in found] == [[4] * 3] * 3 and len({end for _, end in found}) == 1


def test_parts_of_a_pool_differ_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.arange(1.0, 61.0)

    def make(size: int, score: Any) -> avt.ImportanceLoader:
        return avt.ImportanceLoader(TensorDataset(rows), size, score=score, pool=1.1, batches_per_epoch=3)

    alone = make(10, lambda batch: batch[0][:1])
    with pytest.raises(ValueError, match="has length 1: must have 11"):
        next(iter(alone))
    state = alone.state_dict()  # a pool has been drawn and not received
    assert [len(unit) for unit in state["ahead_indices"]] == [11]

    def resume(rank: int) -> Any:
        loader = make(5, lambda batch: batch[0])  # of 11 examples, this rank has 5 or 6
        loader.load_state_dict(state)
        return [index.tolist() for _, index, _ in loader], loader.gain

    zero, one = Threads(monkeypatch, 2).run(resume)
    assert [len(index) for index in zero[0]] == [5] * 3 and zero[1] == one[1]
    assert zero[0][0] == state["ahead_indices"][0][:5].tolist()  # all of its part


def test_refuses_ranks_that_draw_different_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def differ(rank: int) -> Any:
        loader = avt.ImportanceLoader(make_dataset(), 4, seed=np.random.default_rng(rank))
        _, index, _ = next(iter(loader))
        loader.update(index, torch.ones(4))

    def draw_ahead(rank: int) -> Any:
        batches = AvareBatchSampler(N, 4, seed=0)
        drawn = iter(batches)
        pairs = next(drawn)
        if rank == 1:
            next(drawn)
        batches.update(pairs.indices, np.ones(4))

    def seeds(rank: int) -> Any:
        AvareBatchSampler(N, 4, seed=rank)

    def samplers(rank: int) -> Any:
        AvareBatchSampler(N, 4, sampler=avare.Avare(N, 8, p_min=rank / N))

    def examples(rank: int) -> Any:
        AvareBatchSampler(N + rank, 4, seed=0)

    def epochs(rank: int) -> Any:
        AvareBatchSampler(N, 4, seed=0, batches_per_epoch=26 + rank)

    for action in (differ, draw_ahead):
        zero, one = Threads(monkeypatch, 2).run(action)
        assert type(zero) is type(one) is RuntimeError
        assert "rank 1 has drawn different batches from rank 0" in str(zero)
    for action, message in (
        (seeds, "seed = 1 on rank 1 and 0 on rank 0"),
        (samplers, "p_min="),
        (examples, "n = 204 on rank 1 and 203 on rank 0"),
        (epochs, "batches_per_epoch = 27 on rank 1 and 26 on rank 0"),
    ):
        for error in Threads(monkeypatch, 2).run(action):
            assert type(error) is ValueError and message in str(error)


def test_refuses_a_process_group_that_is_younger_than_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = avt.ImportanceLoader(make_dataset(), 4)
    next(iter(loader))
    as_rank(monkeypatch, 0, 2)
    with pytest.raises(RuntimeError, match="a process group was initialised after this loader was made"):
        next(iter(loader))


def test_refuses_other_modes() -> None:
    modes: list[Mode] = ["replicated", "sharded"]
    for mode in modes:
        with pytest.raises(ValueError, match=f"distributed = '{mode}': there is no process group"):
            AvareBatchSampler(10, 2, distributed=mode)
    with pytest.raises(ValueError, match="distributed = 'all': must be None, 'auto', 'replicated' or 'sharded'"):
        AvareBatchSampler(10, 2, distributed="all")  # type: ignore[arg-type]  # the point


def test_refusals_of_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 0, 2)
    batches = AvareBatchSampler(N, 4, seed=0, distributed="sharded")
    assert batches.sampler.n == 101 and len(batches) == -(-N // 8)
    next(iter(batches))
    with pytest.raises(ValueError, match=r"index\[1\] = 150: belongs to another rank"):
        batches.update([3, 150], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"index\[0\] = 203: must be in \[0, 203\)"):
        batches.update([203], [1.0])
    with pytest.raises(ValueError, match="1 examples cannot be shared by 2 ranks"):
        AvareBatchSampler(1, 1, distributed="sharded")
    with pytest.raises(ValueError, match="distributed = 'sharded': every rank has all weights"):
        avt.WeightedSampler([1.0, 2.0], distributed="sharded")
    for rank in range(2):  # rank 1 has one example more, and must not wait for the other
        as_rank(monkeypatch, rank, 2)
        with pytest.raises(ValueError, match="102 of 101 examples cannot be drawn without replacement"):
            AvareBatchSampler(N, 102, distributed="sharded")
    fresh = AvareBatchSampler(N, 4, seed=0, distributed="sharded")
    with pytest.raises(ValueError, match=r"index\[0\] = 150: never drawn"):
        fresh.update([150], [1.0])


def test_shards_agree_on_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def examples(rank: int) -> Any:
        AvareBatchSampler(N + rank, 4, distributed="sharded")

    def modes(rank: int) -> Any:
        AvareBatchSampler(N, 4, distributed="sharded" if rank else "replicated")

    for action, message in (
        (examples, f"n = {N + 1} on rank 1 and {N} on rank 0"),
        (modes, "distributed = 'sharded' on rank 1 and 'replicated' on rank 0"),
    ):
        for error in Threads(monkeypatch, 2).run(action):
            assert type(error) is ValueError and message in str(error)


@pytest.mark.parametrize(("n", "world"), [(7, 3), (8, 3), (9, 3), (5, 5), (4, 1)])
def test_shards_are_a_partition(monkeypatch: pytest.MonkeyPatch, n: int, world: int) -> None:
    covered: list[int] = []
    for rank in range(world):
        as_rank(monkeypatch, rank, world)
        ranks = Ranks(n, 1, "sharded")
        covered += range(ranks.first, ranks.first + ranks.n)
    assert covered == list(range(n))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("steps", [0, 40])
def test_shards_of_unequal_sizes_are_unbiased_by_enumeration(
    monkeypatch: pytest.MonkeyPatch, replacement: bool, steps: int
) -> None:
    n, world, size = 7, 3, 2
    g = np.random.default_rng(0).normal(size=(n, 2))
    mean = np.zeros(2)
    for rank in range(world):
        as_rank(monkeypatch, rank, world)
        given: dict[str, Any] = {"sampler": "Calibrated", "seed": 3, "batches_per_epoch": 10**9}
        given["replacement"] = replacement
        batches = AvareBatchSampler(n, size, distributed="sharded", **given)
        drawn, first = iter(batches), batches.ranks.first
        for pairs in itertools.islice(drawn, steps):
            batches.update(pairs.indices, np.exp(pairs.indices % 5))
        p = batches.sampler.probabilities()
        law = {tuple(i + first for i in sample): chance for sample, chance in ordered_samples(p, size, replacement)}
        weights = {
            sample: avare.batch_weights(p[np.array(sample) - first], replacement) * world * size / n for sample in law
        }
        pairs = next(drawn)
        assert pairs.weights == pytest.approx(weights[tuple(pairs.indices.tolist())], rel=1e-6)  # float32
        for sample, chance in law.items():
            mean += chance * (weights[sample] @ g[list(sample)]) / size / world  # DDP takes the average
    assert np.allclose(mean, g.mean(axis=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score", [None, lambda batch: batch[0].abs().sum(dim=1)])
def test_a_shard_resumes_to_the_same_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, score: Any) -> None:
    as_rank(monkeypatch, 2, 3)

    def make(seed: int) -> avt.ImportanceLoader:
        pool = {} if score is None else {"score": score, "pool": 2}
        return avt.ImportanceLoader(make_dataset(), 6, seed=seed, distributed="sharded", endless=True, **pool)

    def draws(loader: avt.ImportanceLoader, first: int, last: int) -> list[Any]:
        drawn = []
        for step, (_, index, weight) in enumerate(itertools.islice(loader, last - first), start=first):
            drawn.append((index.tolist(), weight.tolist()))
            loader.update(index, np.exp(2.0 * np.sin(1.7 * index.numpy() + step)))
        return drawn

    whole, loader, twin = make(4), make(4), make(5)
    expected = draws(whole, 0, 30)
    assert min(min(index) for index, _ in expected) >= 2 * N // 3
    assert draws(loader, 0, 11) == expected[:11]
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    twin.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draws(twin, 11, 30) == expected[11:]
    as_rank(monkeypatch, 1, 3)
    other = make(4)
    assert draws(other, 0, 1) != expected[:1]  # its part has other examples, and draws of its own
    with pytest.raises(ValueError, match=r"state\['(n|part)'\] = "):
        other.load_state_dict(loader.state_dict())


def test_none_ignores_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 1, 2)
    loader = avt.ImportanceLoader(make_dataset(), 4, distributed=None)
    assert len(next(iter(loader))[1]) == 4 and len(loader) == -(-N // 4)


SKIPPING = """
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from avare.torch import ImportanceLoader
from avare.torch.loading.batch_sampler import AvareBatchSampler
folder, pool, ranks = Path(sys.argv[1]), sys.argv[2] == "pool", {}
for rank in (0, 2, 1):  # forked, so that torch is imported once
    ranks[rank] = os.fork()
    if ranks[rank] == 0:
        break
else:
    for rank, child in ranks.items():
        (folder / f"code{rank}").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    os._exit(0)
os.dup2(os.open(folder / f"errors{rank}", os.O_WRONLY | os.O_CREAT), 2)
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3, timeout=timedelta(seconds=8)
)
if pool:
    loader = ImportanceLoader(range(30), 2, seed=0, score=lambda batch: 1.0 + batch, pool=3)
    for step, (_, index, _) in enumerate(loader):
        if rank != 1 or step != 1:
            loader.update(index, [1.0, 2.0])
else:
    batches = AvareBatchSampler(30, 2, seed=0)
    for step, pairs in enumerate(batches):
        while rank == 1 and step == 1:
            time.sleep(0.1)  # it continues without update(), and does not end before the others
            if (folder / "code2").exists():
                sys.exit()
        batches.update(pairs.indices, [1.0, 2.0])
"""


def complaints_of(tmp_path: Path, kind: str, ranks: tuple[int, ...] = (0, 1, 2)) -> list[str]:
    """What some of three ranks write as they end, each with an error of Python."""
    subprocess.run([sys.executable, "-c", SKIPPING, str(tmp_path), kind], check=True, timeout=200)
    assert [(tmp_path / f"code{rank}").read_text() for rank in ranks] == ["1"] * len(ranks)
    return [(tmp_path / f"errors{rank}").read_text() for rank in ranks]


@pytest.mark.slow
def test_a_rank_that_does_not_call_update_ends_the_others_with_an_error(tmp_path: Path) -> None:
    for complaint in complaints_of(tmp_path, "batch", ranks=(0, 2)):
        assert "another rank did not call update(), or has ended" in complaint, complaint


def test_a_rank_that_skips_an_update_with_pools_ends_all_with_its_name(tmp_path: Path) -> None:
    zero, one, two = complaints_of(tmp_path, "pool")
    assert "RuntimeError: rank 1 asks for batch 3, and rank 0 calls update() after batch 2" in zero, zero
    assert "RuntimeError: rank 0 calls update() after batch 2, and rank 1 asks for batch 3" in one, one
    assert "RuntimeError: rank 1 asks for batch 3, and rank 2 calls update() after batch 2" in two, two
