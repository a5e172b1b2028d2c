"""Streams: pools in the order of the stream, unbiased, and resumed to the same batches."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import avare.torch as avt
from avare.structures.systematic import inclusion
from avare.torch.loading.pool_sizes import PoolSize
from thread_ranks import Threads

datasets: Any = pytest.importorskip("datasets", reason="Hugging Face datasets are not installed")
nodes: Any = pytest.importorskip("datasets.distributed")
N, BATCH = 50, 4


def value_of(place: int) -> float:
    return 1.0 + (7 * place) % 11


class Stream(IterableDataset[Any]):
    """Numbers in order, of which each worker reads its part."""

    def __init__(self, n: int = N, rank: int = 0, world: int = 1) -> None:
        self.places = range(rank, n, world)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        part = self.places if worker is None else self.places[worker.id :: worker.num_workers]
        for place in part:
            yield {"value": value_of(place), "place": place}


class Stateful(Stream):
    """A stream that knows where it is; it counts how many examples were read."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.reads = 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < N:
            self.position, self.reads = self.position + 1, self.reads + 1
            yield {"value": value_of(self.position - 1), "place": self.position - 1}
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def of_hugging_face() -> Any:
    source = [{"value": value_of(place), "place": place} for place in range(N)]
    return datasets.Dataset.from_list(source).to_iterable_dataset(num_shards=2)


def shuffled() -> Any:
    return of_hugging_face().shuffle(seed=3, buffer_size=10)


def score(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["value"] ** 2


def loader_of(stream: Any, **options: Any) -> avt.ImportanceLoader:
    return avt.ImportanceLoader(stream, BATCH, **{"score": score, "pool": 3, "seed": 0, **options})


def seen(batch: Any) -> Any:
    rows, index, weight = batch
    return rows["place"].tolist(), rows["value"].tolist(), index.tolist(), weight.tolist()


# --- the law -------------------------------------------------------------------------------


def test_each_example_has_its_weight_over_its_probability() -> None:
    """Then the expected batch is the mean of its pool: the sum over places of probability times weight times value."""
    first = 0
    for rows, index, weight in loader_of(Stream()):
        pool = np.arange(first, min(first + 3 * BATCH, N))
        first += len(pool)
        count = min(BATCH, len(pool))
        sizes = np.array([value_of(int(place)) ** 2 for place in pool]) * count / len(pool)
        probabilities = inclusion(sizes, count, PoolSize.floor) if len(pool) > BATCH else np.ones(len(pool))
        assert set(index.tolist()) <= set(pool.tolist()) and index.tolist() == rows["place"].tolist()
        expected = count / (len(pool) * probabilities)
        np.testing.assert_allclose(weight.numpy(), expected[index.numpy() - pool[0]], rtol=1e-6)
    assert first == N


def test_the_mean_over_many_seeds_is_the_mean_of_the_stream() -> None:
    """False alarms: 5.7e-7 (five standard errors)."""
    n, means = 4 * 3 * BATCH, []  # whole pools, which count alike
    for seed in range(2000):
        batches = [(weight * rows["value"]).mean() for rows, _, weight in loader_of(Stream(n), seed=seed)]
        means.append(float(torch.stack(batches).mean()))
    truth = np.mean([value_of(place) for place in range(n)])
    assert abs(np.mean(means) - truth) < 5 * np.std(means) / np.sqrt(len(means))
    assert np.std(means) > 0.0


@pytest.mark.parametrize("scores", [0.0, 1.0])
def test_any_scores_will_do(scores: float) -> None:
    loader = loader_of(Stream(), score=lambda batch: torch.full((len(batch["value"]),), scores))
    for _, _, weight in loader:
        np.testing.assert_allclose(weight, 1.0, rtol=1e-6)


# --- what arrives --------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_every_example_is_scored_once(workers: int) -> None:
    scored: list[int] = []

    def note(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        scored.extend(batch["place"].tolist())
        return score(batch)

    loader = loader_of(Stream(48), score=note, num_workers=workers)
    for epoch in range(2):
        batches = list(loader)
        assert [len(index) for _, index, _ in batches] == [BATCH] * 4
        assert sorted(scored) == sorted([*range(48)] * (epoch + 1)) and loader.epoch == epoch + 1
    assert loader.gain > 1.0 and loader.pool_ratio == 3.0
    assert set(loader.measures()) >= {"pool_ratio", "relative_error"}


def test_the_rest_of_a_stream_is_a_smaller_batch_or_none() -> None:
    sizes = [len(weight) for _, _, weight in loader_of(Stream(26))]
    assert sizes == [4, 4, 2]
    assert [len(weight) for _, _, weight in loader_of(Stream(26), drop_last=True)] == [4, 4]
    assert [len(weight) for _, _, weight in loader_of(Stream(3))] == [3]
    assert list(loader_of(Stream(0))) == []


class Row(NamedTuple):
    name: str
    both: tuple[Any, torch.Tensor]


class Rows(IterableDataset[Row]):
    def __iter__(self) -> Iterator[Row]:
        for place in range(N):
            yield Row(f"row {place}", (float(place), torch.full((2,), place)))


def test_rows_of_all_kinds_are_taken_from_several_blocks() -> None:
    for rows, index, _ in avt.ImportanceLoader(Rows(), BATCH, score=lambda rows: rows.both[0], pool=3, seed=1):
        assert type(rows) is Row and list(rows.name) == [f"row {place}" for place in index]
        assert rows.both[0].tolist() == index.tolist() and rows.both[1][:, 1].tolist() == index.tolist()


def longest(items: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate function whose batches cannot be joined row by row."""
    values = [item["value"] for item in items]
    return {"value": torch.tensor(values), "place": torch.tensor([item["place"] for item in items]), "max": max(values)}


@pytest.mark.parametrize("workers", [0, 2])
def test_another_collate_function_gets_the_chosen_items(workers: int) -> None:
    for rows, _, _ in loader_of(Stream(), collate_fn=longest, num_workers=workers):
        assert rows["max"] == float(rows["value"].max())


# --- pools that pay ------------------------------------------------------------------------


def test_automatic_pools_are_whole_batches_and_off_if_they_do_not_pay() -> None:
    heavy = loader_of(Stream(2000), score=lambda batch: batch["value"] ** 6, pool="auto", cost_ratio=9.0)
    light = loader_of(Stream(2000), score=lambda batch: 1.0 + batch["value"] / 1e3, pool="auto", cost_ratio=9.0)
    sizes = [float(heavy.pool_ratio) for _ in heavy]
    assert set(sizes) <= {1.0, 2.0, 3.0, 4.0} and max(sizes) >= 3.0 and len(sizes) < 300
    assert len(list(light)) > 450 and light.pool_ratio == 1.0 and light.gain == 1.0


# --- resume --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Stream, {}),
        (Stream, {"num_workers": 2}),
        (Stream, {"pool": "auto", "cost_ratio": 9.0}),
        (Stateful, {}),
        (Stateful, {"drop_last": True}),
        (of_hugging_face, {}),
        (shuffled, {"num_workers": 2}),
    ],
    ids=["plain", "workers", "auto", "stateful", "dropped", "hugging face", "shuffled, workers"],
)
def test_resumes_to_the_same_batches_from_every_position(make: Callable[[], Any], options: dict[str, Any]) -> None:
    whole = loader_of(make(), **options)
    states, batches = [whole.state_dict()], []
    for _ in range(2):
        for batch in whole:
            batches.append(seen(batch))
            states.append(whole.state_dict())
    every = 1 if options.get("num_workers", 0) == 0 else 3  # workers take a second to start
    for position in range(0, len(states), every):
        loader = loader_of(make(), **{**options, "seed": 99})
        loader.load_state_dict(states[position])
        rest = [seen(batch) for _ in range(2 - loader.epoch) for batch in loader]
        assert rest == batches[position:], position


class Epochs(Stream):
    """A stream whose first value is its epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return ({"value": 1.0 + self.epoch, "place": place} for place in range(8))


@pytest.mark.parametrize("workers", [0, 1])
def test_each_epoch_reaches_the_stream_and_its_persistent_workers(workers: int) -> None:
    loader = loader_of(Epochs(), pool=2, num_workers=workers, persistent_workers=workers > 0)
    seen_epochs = [{float(value) for rows, *_ in loader for value in rows["value"]} for _ in range(3)]
    assert seen_epochs == [{1.0}, {2.0}, {3.0}]


def test_a_stream_with_a_state_reads_nothing_again() -> None:
    first = loader_of(Stateful())
    next(iter(first))
    stream = Stateful()
    resumed = loader_of(stream)
    resumed.load_state_dict(first.state_dict())
    assert len(list(resumed)) == 4 and stream.reads == N - 3 * BATCH


def test_another_iteration_is_another_epoch() -> None:
    loader = loader_of(Stream())
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 5 and loader.epoch == 2
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(first)


def test_refuses_damaged_states_and_those_of_others() -> None:
    loader = loader_of(Stream())
    next(iter(loader))
    state, before = loader.state_dict(), loader.state_dict()
    for wrong, message in (
        ({**state, "blocks": 4}, "checksum"),
        ({**state, "blocks": -1}, "blocks"),
        ({**state, "pool": "5"}, "pool"),
        ({key: value for key, value in state.items() if key != "epoch"}, "epoch"),
    ):
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict(wrong)
    with pytest.raises(TypeError, match="state is of type list"):
        loader.load_state_dict([])  # type: ignore[arg-type]  # the point
    assert str(loader.state_dict()) == str(before)


# --- faults --------------------------------------------------------------------------------


def test_after_an_error_of_the_score_the_same_pool_comes_again() -> None:
    calls = 0

    def fails_once(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError("once")
        return score(batch)

    expected = [seen(batch) for batch in loader_of(Stream())]
    batches = iter(loader_of(Stream(), score=fails_once))
    found = [seen(next(batches))]
    with pytest.raises(OSError, match="once"):
        next(batches)
    assert found + [seen(batch) for batch in batches] == expected


class Fails(Stream):
    """Its reader, which is no generator, raises an error once and can continue."""

    def __iter__(self) -> Iterator[Any]:
        places = iter(range(N))

        class Reader(Iterator[Any]):
            failed = False

            def __next__(self) -> Any:
                if not self.failed:
                    self.failed = True
                    raise OSError("disk")
                place = next(places)
                return {"value": value_of(place), "place": place}

        return Reader()


def test_after_an_error_of_the_stream_nothing_is_mixed_up() -> None:
    batches = iter(loader_of(Fails()))
    with pytest.raises(OSError, match="disk"):
        next(batches)
    assert [seen(batch) for batch in batches] == [seen(batch) for batch in loader_of(Stream())]


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: loader_of(Stream(), score=None, pool="auto"), ValueError, "score = None: a stream needs score"),
    (lambda: loader_of(Stream(), sampler="Avare"), ValueError, "sampler = 'Avare': a stream is read in order"),
    (lambda: loader_of(Stream(), replacement=True), ValueError, "replacement = True: a stream is read in order"),
    (lambda: loader_of(Stream(), batches_per_epoch=3), ValueError, "batches_per_epoch = 3: a stream"),
    (lambda: loader_of(Stream(), pool=2.5), ValueError, "pool = 2.5: must be a whole number of batches"),
    (lambda: loader_of(Stream(), endless=True), ValueError, "a stream is read in order"),
    (lambda: loader_of(Stream(), distributed="sharded"), ValueError, "ranks read their parts of a stream"),
    (lambda: loader_of(Stream(), shuffle=True), ValueError, "shuffle the stream itself"),
    (lambda: loader_of(Stream()).update([1], [1.0]), TypeError, "a stream has no memory"),
    (lambda: loader_of(Stream()).fail(), TypeError, "a stream has no memory"),
    (lambda: loader_of(Stream()).extend(), TypeError, "a stream has no memory"),
    (lambda: loader_of(Stream()).retire([1]), TypeError, "a stream has no memory"),
    (lambda: len(loader_of(Stream())), TypeError, "the number of batches of a stream is not known"),
    (lambda: loader_of(Stream()).importance_sampler, AttributeError, "a stream has no sampler"),
    (lambda: next(iter(loader_of(Stream(), score=lambda batch: [1.0]))), ValueError, "must have 4, one for each"),
]


@pytest.mark.parametrize(("use", "kind", "message"), WRONG)
def test_refuses(use: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()


# --- ranks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_read_their_own_parts_and_end_together(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    """Of 50 examples, the ranks have different numbers of blocks."""

    def read(rank: int) -> Any:
        stream = Stream(N + 3 * rank, rank, world)
        return [seen(batch) for batch in loader_of(stream, pool=2)]

    found = Threads(monkeypatch, world).run(read)
    assert len({len(batches) for batches in found}) == 1 and len(found[0]) > 2
    for rank, batches in enumerate(found):
        assert all(place % world == rank for places, *_ in batches for place in places)
    weights = [[weight for *_, batch in batches for weight in batch] for batches in found]
    assert weights[0] != weights[1]


def test_the_parts_of_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(rank: int) -> Any:
        loader = loader_of(nodes.split_dataset_by_node(shuffled(), rank=rank, world_size=2), pool=2)
        return [place for batch in loader for place in seen(batch)[0]]

    zero, one = Threads(monkeypatch, 2).run(read)
    assert len(zero) == len(one) and not set(zero) & set(one)


def test_ranks_have_the_pools_of_rank_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(rank: int) -> Any:
        power = 6 if rank == 0 else 0
        options = {"score": lambda batch: batch["value"] ** power, "pool": "auto", "cost_ratio": 9.0}
        loader = loader_of(Stream(1000, rank, 2), **options)
        return [int(index[0]) // BATCH for _, index, _ in loader]

    zero, one = Threads(monkeypatch, 2).run(read)
    assert len(zero) == len(one) < 100  # without pools, there would be 125


def test_ranks_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = Threads(monkeypatch, 2).run(lambda rank: loader_of(Stream(), pool=2 + rank))
    for error in errors:
        assert type(error) is ValueError and "pool = '3' on rank 1 and '2' on rank 0" in str(error)
