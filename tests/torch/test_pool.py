"""The second stage of the loader: its law, how large pools are, and what it does with bad scores."""

import copy
import gc
import itertools
import math
import multiprocessing
import resource
import time
import tracemalloc
from collections import OrderedDict, UserDict, defaultdict
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import avare
import avare.torch as avt
import two_stages
from avare.samplers.registry import example, get
from avare.torch.loading.pool_sizes import best_ratio
from avare.torch.loading.weighted_batches import Pairs, collate_draws
from laws import FALSE_ALARM, chi_square, ordered_samples
from loaders import Counted, changing_norms, forever, make_dataset, snapshot, through_a_file

# Python warns about every fork of a process with threads, and torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SCORES = torch.tensor([1.0, 5.0, 0.5, 2.0, 9.0])
DATA = TensorDataset(SCORES, 10.0 * torch.arange(5))
BY_NAME = [name for name in avare.samplers.names() if name != "Stratified" and not get(name).needs_all_norms]


def score(batch: Any) -> torch.Tensor:
    found: torch.Tensor = batch[0]
    return found


def drawn_by(loader: avt.ImportanceLoader, steps: int) -> list[Any]:
    return [(index.tolist(), weight.tolist()) for _, index, weight in itertools.islice(forever(loader), steps)]


# --- the law -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
def test_unbiased_with_every_sampler(name: str) -> None:
    given = {key: value for key, value in example(name, 5).items() if key != "replacement"}
    loader = avt.ImportanceLoader(
        DATA, 2, sampler=name, sampler_options=given, score=score, pool=1.5, seed=0, batches_per_epoch=10**9
    )
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    g = np.array([3.0, -1.0, 4.0, 1.0, -5.0])
    # The next pool is drawn by the present probabilities: enumerate it, and all second draws.
    sampler = loader.importance_sampler
    p = sampler.probabilities()
    law = dict(ordered_samples(p, 3, sampler.replacement))
    if name == "Mixture":
        assert isinstance(sampler, avare.Mixture)
        rows = list(zip(sampler.mixture, sampler.components, strict=True))
        law = {s: sum(v * math.prod(row[i] for i in s) for v, row in rows) for s in law}
    plain = sampler.replacement
    if isinstance(sampler, avare.Passes):
        twin = copy.deepcopy(sampler)
        twin.sample(3)  # begins a pass: how many it keeps depends on the size of the pool
        state = twin.state_dict()
        count = int(state["progress"][1])
        p, plain = state["kept"] / count, True
        law = two_stages.thinned_law(p, count, 3)
    weights = {s: np.full(3, 5 / 3) if name == "Uniform" else avare.batch_weights(p[list(s)], plain) for s in law}
    mean, outcomes = 0.0, []
    for batch, factors, chance in two_stages.two_stages(law, weights, SCORES.double().numpy(), 2, 0.1):
        mean += chance * float(factors @ g[list(batch)]) / 5
        outcomes.append(sorted(zip(batch, (2 * factors / 5).tolist(), strict=True)))
    assert mean == pytest.approx(g.mean(), rel=1e-9)
    _, index, weight = next(batches)
    outcome = sorted(zip(index.tolist(), weight.tolist(), strict=True))
    assert any(np.allclose(outcome, known, rtol=1e-5) for known in outcomes)  # a batch of this law, with its weights


def test_the_law_of_batches() -> None:
    p = np.array([0.1, 0.3, 0.25, 0.05, 0.3])
    sampler = avare.Static(5, 2, smoothness=p, uniform=0.0, seed=4)
    loader = avt.ImportanceLoader(DATA, 2, sampler=sampler, score=score, pool=1.5)
    law = dict(ordered_samples(p, 3, False))
    weights = {pool: avare.batch_weights(p[list(pool)], False) for pool in law}
    expected: dict[tuple[int, ...], float] = defaultdict(float)
    for batch, _, chance in two_stages.two_stages(law, weights, SCORES.double().numpy(), 2, 0.1):
        expected[tuple(sorted(batch))] += chance
    found = [tuple(sorted(index)) for index, _ in drawn_by(loader, 3000)]
    assert chi_square(found, expected) > FALSE_ALARM


def test_weights_are_bounded_by_the_floor_and_all_scores_are_remembered() -> None:
    dataset = TensorDataset(torch.logspace(-12, 0, 60))
    loader = avt.ImportanceLoader(dataset, 4, sampler="Avare", score=score, pool=3, seed=0)
    sampler = loader.importance_sampler
    assert isinstance(sampler, avare.Avare)
    largest = 0.0
    for step, (_, index, weight) in enumerate(itertools.islice(forever(loader), 300), start=1):
        assert len(index) == 4 == len(set(index.tolist())) and weight.dtype == torch.float32
        largest = max(largest, float(weight.max()))
        assert sampler.steps == step and loader.measures()["waiting"] == 0
    floor = 1.0 / (5 * 60)
    # Weights of a pool of 12 are at most ((1 / p) + 11) / 12; those of the batch at most 30 times that, times 4 / 60.
    assert 1.0 < largest <= 30 * (1 / floor + 11) / 12 * 4 / 60
    remembered = sampler.norms()
    assert np.allclose(remembered[remembered > 0.0], dataset.tensors[0].numpy()[remembered > 0.0], rtol=1e-6)
    assert np.count_nonzero(remembered) > 50


def test_exact_norms_win_over_scores() -> None:
    loader = avt.ImportanceLoader(DATA, 2, sampler="Avare", score=score, pool=2.5, seed=0)
    _, index, _ = next(iter(loader))
    loader.update(index, torch.tensor([70.0, 80.0]))
    sampler = loader.importance_sampler
    assert isinstance(sampler, avare.Avare)
    norms = SCORES.numpy().copy()
    norms[index.numpy()] = [70.0, 80.0]
    assert sampler.norms().tolist() == norms.tolist()


# --- how large a pool ----------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0.5, 1.0, 1.5, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("error", [0.0, 0.1, 0.45, 0.6, 2.9, 3.1, 25.0])
def test_the_rule_against_brute_force(error: float, cost: float) -> None:
    for most in (1.5, 4.0, 60.0):
        assert best_ratio(error, cost, most) == pytest.approx(two_stages.brute_force_ratio(error, cost, most), rel=0.01)
        assert best_ratio(error, cost, most, 7.0) == pytest.approx(
            two_stages.brute_force_ratio(error, cost, most, 7.0), rel=0.01
        )
    if cost > 1.0:
        assert (best_ratio(error, cost) > 1.0) == (error > 4 * cost / (cost - 1) ** 2)
    assert best_ratio(math.nan, cost) == best_ratio(error, math.nan) == 1.0


def test_the_pool_is_switched_off_and_on_again() -> None:
    spread = torch.ones(400)
    loader = avt.ImportanceLoader(
        TensorDataset(torch.arange(400)),
        8,
        sampler="Uniform",
        score=lambda batch: spread[batch[0]],
        cost_ratio=20.0,
        seed=0,
        batches_per_epoch=10**9,
    )
    batches = iter(loader)
    ratios, sizes = [], []
    for step in range(600):
        if step in (100, 400):
            spread[:] = 1.0
        if step == 200:
            spread[::20] = 60.0  # possible gain 12.5: relative error 11.5
        next(batches)
        ratios.append(loader.pool_ratio)
        sizes.append(len(loader.batch_sampler.cursor.latest.indices))
    assert set(ratios[:200]) == {1.0} and sizes[:10] == [8, 16] * 5  # to measure the costs
    assert sizes[10:26] == [8, 16] * 2 + [8] * 3 + [16] + [8] * 7 + [16]  # more and more seldom
    assert sizes[26:196] == ([8] * 9 + [16]) * 17  # one draw in ten is a small pool
    assert ratios[399] == pytest.approx(5.0) and sizes[399] == 40  # sqrt(20 * 11.5) is above the largest
    assert ratios[599] == 1.0 and set(sizes[560:]) == {8, 16}
    assert loader.measures()["relative_error"] == pytest.approx(0.0, abs=0.05)
    assert loader.measures()["cost_ratio"] == 20.0


def test_relative_error_and_gain() -> None:
    norms = torch.from_numpy(np.random.default_rng(0).lognormal(0.0, 1.5, 300))
    loader = avt.ImportanceLoader(TensorDataset(norms), 30, sampler="Uniform", score=score, pool=4, seed=0)
    errors, gains = [], []
    for _ in itertools.islice(forever(loader), 400):
        errors.append(loader.measures().get("relative_error", math.nan))
        gains.append(loader.gain)
    true = float(avare.diagnostics.gain(norms.numpy()))
    assert np.mean(errors[50:]) == pytest.approx(true - 1.0, rel=0.1)
    assert np.mean(gains[50:]) == pytest.approx(true / (1 + (true - 1) / 4), rel=0.1)


def test_costs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    interrupted = itertools.cycle([9.0, 40.0, 2.0, 9.0, 0.0])  # by other processes, most of the time

    def slow(batch: Any) -> torch.Tensor:
        now[0] += 0.001 * len(batch[0]) + next(interrupted)
        return 1.0 + batch[0]

    loader = avt.ImportanceLoader(TensorDataset(torch.arange(100.0)), 10, score=slow, seed=0)
    assert math.isnan(loader.gain) and not {"cost_ratio", "relative_error"} & set(loader.measures())
    for place, _ in enumerate(itertools.islice(forever(loader), 24)):
        now[0] += 500.0 if place == 4 else 0.07  # once, the consumer does something else
    assert loader.measures()["cost_ratio"] == pytest.approx(7.0)


def test_one_slow_load_does_not_make_pools_free(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slow = [0.0], itertools.chain([5.0], itertools.repeat(0.01))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def collate(items: Any) -> torch.Tensor:
        now[0] += next(slow)
        return torch.tensor(items)

    def scored(batch: Any) -> torch.Tensor:
        now[0] += 0.001 * len(batch)
        return 1.0 + batch

    loader = avt.ImportanceLoader(list(range(100)), 10, score=scored, collate_fn=collate, seed=0)
    for _ in itertools.islice(forever(loader), 12):
        now[0] += 0.07
    # A step takes 0.08 s for 10 examples; a pool has 20, takes 0.04 s, and replaces a load of 0.01 s.
    assert loader.measures()["cost_ratio"] == pytest.approx(0.008 / 0.0015)


def test_costs_that_are_never_known() -> None:
    loader = avt.ImportanceLoader(TensorDataset(torch.arange(1.0, 101.0)), 10, score=score, seed=0)
    for _ in range(40):
        next(iter(loader))  # a consumer that never asks for the next batch of an iteration
    assert "cost_ratio" not in loader.measures() and loader.pool_ratio == 1.0


def test_reported_norms_replace_probes() -> None:
    calls = []

    def watched(batch: Any) -> torch.Tensor:
        calls.append(len(batch[0]))
        return torch.ones(len(batch[0]))

    def steps(update: bool) -> int:
        calls.clear()
        loader = avt.ImportanceLoader(
            TensorDataset(torch.arange(100)), 10, score=watched, cost_ratio=5.0, seed=0, batches_per_epoch=10**9
        )
        for _, index, _ in itertools.islice(loader, 110):
            if update:
                loader.update(index, torch.ones(10))
        return len(calls)

    assert steps(update=False) == 5 + 6  # five of ten, then after 2, 2, 4, 8, 16 and 32; at last, one in forty
    assert steps(update=True) == 5


def test_without_a_pool_batches_are_shuffled_passes_until_norms_are_reported() -> None:
    def make(seed: int) -> avt.ImportanceLoader:
        alike = TensorDataset(torch.arange(40.0))
        return avt.ImportanceLoader(
            alike, 5, score=lambda batch: torch.ones(len(batch[0])), cost_ratio=2.0, seed=seed, batches_per_epoch=10**9
        )

    def plain(loader: avt.ImportanceLoader, count: int) -> list[list[int]]:
        found = []
        for _, index, weight in itertools.islice(loader, count):
            if len(loader.batch_sampler.cursor.latest.indices) == 5:
                weights.update(weight.tolist())
                found.append(index.tolist())
        return found

    weights: set[float] = set()

    loader = make(seed=3)
    whole = plain(loader, 200)
    passes = [sorted(itertools.chain(*whole[k : k + 8])) for k in range(0, len(whole) - 7, 8)]
    assert len(passes) > 15 and all(each == list(range(40)) for each in passes)
    assert whole[:8] != whole[8:16] and weights == {1.0} and loader.gain == 1.0
    first, second = make(seed=3), make(seed=4)
    begun = plain(first, 90)
    second.load_state_dict(first.state_dict())
    assert begun + plain(second, 110) == whole
    loader.update([0], [1.0])
    drawn = plain(loader, 100)
    assert any(len(set(itertools.chain(*drawn[k : k + 8]))) < 40 for k in range(0, len(drawn) - 7, 8))


def test_a_pool_that_pays_once_the_memory_is_fresh_is_switched_on() -> None:
    norms = torch.ones(2000)
    norms[::4] = 8.0  # possible gain 2.21: with c = 5, no pool pays unless it makes the relative error smaller
    assert best_ratio(1.21, 5.0) == 1.0
    loader = avt.ImportanceLoader(
        TensorDataset(norms), 20, score=score, cost_ratio=5.0, seed=0, batches_per_epoch=10**9
    )
    ratios = [loader.pool_ratio for _ in itertools.islice(loader, 400)]
    assert ratios[0] == 1.0 and max(ratios) > 1.0


@pytest.mark.parametrize("cost", [0.5, 1.5, 3.0, 8.0, 20.0])
def test_no_epoch_takes_more_than_half_again_as_long(cost: float) -> None:
    """By the model of costs: a step takes c, and a pool its number of batches in addition."""
    generator = np.random.default_rng(0)
    norms = torch.from_numpy(generator.lognormal(0.0, 2.0, 800))
    loader = avt.ImportanceLoader(TensorDataset(norms), 8, score=score, cost_ratio=cost, seed=0, batches_per_epoch=100)
    for _ in range(6):
        spent = 0.0
        for _ in loader:
            size = len(loader.batch_sampler.cursor.latest.indices) / 8
            spent += cost + (size if size > 1.0 else 0.0)
            assert loader.pool_ratio <= 5.0
        assert spent <= 1.5 * 100 * cost


def test_a_pool_is_switched_on_with_a_margin_and_stays_on_without() -> None:
    assert best_ratio(1.3, 5.0) > 1.0 == best_ratio(1.3, 5.0, margin=0.9)
    assert best_ratio(4.0, 5.0, margin=0.9) == best_ratio(4.0, 5.0) > 1.0
    # Norms for which a pool pays by some per cent: it is not switched on and off, whatever the noise of the estimates.
    norms = torch.ones(2000)
    norms[::4] = 6.4
    loader = avt.ImportanceLoader(
        TensorDataset(norms), 20, score=score, cost_ratio=5.0, seed=0, batches_per_epoch=10**9
    )
    is_on = [loader.pool_ratio > 1.0 for _ in itertools.islice(loader, 1500)]
    assert sum(first != second for first, second in itertools.pairwise(is_on[300:])) <= 4


# --- batches -------------------------------------------------------------------------------


class Named(NamedTuple):
    row: torch.Tensor
    name: Any


class Items:
    """Items of a kind that the default collate function turns into tensors, lists of text and mappings."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((2,), float(index)), "pair": (index, Named(torch.tensor([index]), f"name {index}"))}


def ragged(items: list[Any]) -> Any:
    """Rows of all items one after another, and where each begins."""
    lengths = [int(item["pair"][0]) + 1 for item in items]
    return torch.cat([torch.full((n,), float(n - 1)) for n in lengths]), lengths


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_any_structure(workers: int) -> None:
    loader = avt.ImportanceLoader(
        Items(), 2, score=lambda batch: 1.0 + batch["x"][:, 0], pool=2.5, seed=0, num_workers=workers
    )
    for batch, index, _ in loader:
        first, named = batch["pair"]
        assert batch["x"][:, 0].tolist() == first.tolist() == index.tolist() and batch["x"].shape == (2, 2)
        assert isinstance(named, Named) and named.name == [f"name {i}" for i in index.tolist()]
    loader = avt.ImportanceLoader(
        Items(), 2, score=lambda batch: batch[1], pool=2.5, seed=0, num_workers=workers, collate_fn=ragged
    )
    for (rows, lengths), index, _ in loader:  # collated again, from the items that were scored
        assert lengths == (index + 1).tolist() and len(rows) == sum(lengths)


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_mappings_are_collated_and_sent_once(kind: Any) -> None:
    items = [kind(x=torch.tensor(float(i)), name=str(i)) for i in range(9)]
    loader = avt.ImportanceLoader(items, 2, score=lambda batch: 1.0 + batch["x"], pool=2.0, seed=0)
    for batch, index, _ in loader:
        assert type(batch) is kind
        assert batch["x"].tolist() == index.tolist() and batch["name"] == [str(i) for i in index.tolist()]
    pool = items, Pairs(np.arange(4), np.ones(4, dtype=np.float32))
    assert collate_draws(pool, size=2)[1].items is None
    _, pairs = collate_draws(pool, list, size=2)  # whatever a function of one's own does
    assert pairs.items is not None and [pairs.items[place] for place in range(4)] == items[:4]


def test_items_are_loaded_once() -> None:
    data = Counted()
    seen: list[set[Any]] = []

    def watched(batch: Any) -> Any:
        assert not torch.is_grad_enabled()
        seen.append(set(zip(batch[0].tolist(), batch[1].tolist(), strict=True)))
        return 1.0 + batch[0]

    loader = avt.ImportanceLoader(data, 2, score=watched, pool=2.5, seed=1)
    for (indices, variants), index, _ in loader:
        assert indices.tolist() == index.tolist()
        assert set(zip(indices.tolist(), variants.tolist(), strict=True)) <= seen[-1]
    assert data.asked == 4 * 5


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16, torch.int64, list, np.asarray])
def test_scores_of_any_kind(kind: Any) -> None:
    def converted(batch: Any) -> Any:
        scores = 2.0 ** (batch[1] / 10)  # no kind rounds them
        return scores.to(kind) if isinstance(kind, torch.dtype) else kind(scores.tolist())

    loader = avt.ImportanceLoader(DATA, 2, sampler="Avare", score=converted, pool=2.5, seed=0)
    next(iter(loader))
    sampler = loader.importance_sampler
    assert isinstance(sampler, avare.Avare) and sampler.norms().tolist() == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_scores_under_autocast() -> None:
    model = torch.nn.Linear(1, 3)
    kinds = []

    def half(batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch[0][:, None])
        kinds.append(logits.dtype)
        return avt.output_norms(logits, torch.zeros(len(logits), dtype=torch.int64))

    assert len(list(avt.ImportanceLoader(DATA, 2, score=half, pool=2, seed=0))) == 3
    assert set(kinds) == {torch.bfloat16}


# --- bad scores and arguments --------------------------------------------------------------


BAD_SCORES: list[tuple[Any, type[Exception], str]] = [
    (torch.ones(2), ValueError, r"score\(batch\) has length 2: must have 4, one for each example"),
    (torch.tensor([1.0, math.nan, 1.0, 1.0]), ValueError, r"score\(batch\)\[1\] = nan: must be finite and not neg"),
    (torch.tensor([1.0, 1.0, math.inf, 1.0]), ValueError, r"score\(batch\)\[2\] = inf"),
    (torch.tensor([1.0, 1.0, 1.0, -1.0]), ValueError, r"score\(batch\)\[3\] = -1.0"),
    (torch.ones(4, 1), ValueError, r"score\(batch\) has shape \(4, 1\)"),
    (["a"] * 4, TypeError, r"score\(batch\) has dtype"),
    (ZeroDivisionError("mine"), ZeroDivisionError, "mine"),
]


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_scores_change_nothing(workers: int) -> None:
    answers: list[Any] = []
    seen: list[list[float]] = []

    def spoiled(batch: Any) -> Any:
        seen.append(batch[1].tolist())
        if answers:
            answer = answers.pop()
            if isinstance(answer, Exception):
                raise answer
            return answer
        return batch[0]

    def make() -> avt.ImportanceLoader:
        return avt.ImportanceLoader(
            DATA, 2, score=spoiled, pool=2, seed=0, batches_per_epoch=10**9, num_workers=workers
        )

    expected = drawn_by(make(), 4)
    loader = make()
    batches = iter(loader)
    found = [next(batches)]
    answers.append(ZeroDivisionError("mine"))
    with pytest.raises(ZeroDivisionError):
        next(batches)  # the pool has been drawn
    before = snapshot(loader)
    for answer, error, message in BAD_SCORES:
        answers.append(answer)
        with pytest.raises(error, match=message):
            next(batches)
        assert snapshot(loader) == before
    assert len({tuple(pool) for pool in seen[-len(BAD_SCORES) :]}) == 1  # the same pool each time
    found += [next(batches) for _ in range(3)]
    assert [(index.tolist(), weight.tolist()) for _, index, weight in found] == expected


def test_a_collate_function_that_fails_changes_nothing() -> None:
    fails: list[bool] = []

    def collate(items: list[Any]) -> Any:
        if fails and len(items) == 2:
            raise ZeroDivisionError("mine")
        return torch.stack([item[0] for item in items]), items

    loader = avt.ImportanceLoader(DATA, 2, score=score, pool=2, seed=0, collate_fn=collate)
    batches = iter(loader)
    before = snapshot(loader) if next(batches) else ""
    fails.append(True)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    ahead = loader.state_dict()
    fails.clear()
    twin = copy.deepcopy(ahead)
    assert before != "" and twin["pool_generator"] == ahead["pool_generator"]
    again = [(index.tolist(), weight.tolist()) for _, index, weight in [next(batches)]]
    loader.load_state_dict(ahead)
    assert drawn_by(loader, 1) == again


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"score": 3}, TypeError, "score is of type int: must be a function of a batch"),
        ({"score": None, "pool": 3}, ValueError, "pool = 3: needs score"),
        ({"score": None, "cost_ratio": 3.0}, ValueError, "cost_ratio = 3.0: needs score"),
        ({"pool": "automatic"}, ValueError, "pool = 'automatic': must be 'auto' or a number of batches"),
        ({"pool": 1}, ValueError, "pool = 1.0: must be above 1"),
        ({"pool": math.nan}, ValueError, "pool = nan: must be finite"),
        ({"pool": None}, TypeError, "pool = None: must be a number"),
        ({"cost_ratio": 0.0}, ValueError, "cost_ratio = 0.0: must be above 0"),
        ({"pool": 2, "cost_ratio": 2.0}, ValueError, "cost_ratio = 2.0: is for pool='auto' only"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        avt.ImportanceLoader(DATA, 2, **{"score": score, **arguments})


# --- resuming and logs ---------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ratio", [2.5, "auto"])
def test_resumes_to_the_same_batches(ratio: Any, workers: int) -> None:
    state = {"step": 0}

    def changing(batch: Any) -> torch.Tensor:
        return changing_norms(state["step"], batch[2])

    rows, labels = make_dataset(60).tensors
    dataset = TensorDataset(rows, labels, torch.arange(60))

    def make(seed: int) -> avt.ImportanceLoader:
        options: dict[str, Any] = {"cost_ratio": 30.0} if ratio == "auto" else {}
        return avt.ImportanceLoader(
            dataset, 4, score=changing, pool=ratio, seed=seed, num_workers=workers, batches_per_epoch=17, **options
        )

    def steps(loader: avt.ImportanceLoader, first: int, last: int) -> list[Any]:
        drawn = []
        for step in range(first, last + 1):
            state["step"] = step
            drawn += drawn_by_one(loader)
        return drawn

    iterators: dict[int, Any] = {}

    def drawn_by_one(loader: avt.ImportanceLoader) -> list[Any]:
        batches = iterators.setdefault(id(loader), forever(loader))
        _, index, weight = next(batches)
        return [(index.tolist(), weight.tolist(), loader.pool_ratio, repr(loader.gain))]

    last = 45
    whole = make(0)
    expected = steps(whole, 1, last)
    assert len({row[2] for row in expected}) >= (3 if ratio == "auto" else 1)
    for stop in (3, 17, 24):
        first, second = make(0), make(99)
        assert steps(first, 1, stop) == expected[:stop]
        second.load_state_dict(through_a_file(first.state_dict()))
        if stop == 17:
            assert list(second) == []
        assert steps(second, stop + 1, last) == expected[stop:]
        assert snapshot(second) == snapshot(whole)


def test_states_of_other_pools_are_refused() -> None:
    loader = avt.ImportanceLoader(DATA, 2, score=score, pool=2, seed=0, batches_per_epoch=5)
    next(iter(loader))
    state, before = loader.state_dict(), snapshot(loader)
    plain = avt.ImportanceLoader(DATA, 2, seed=0, batches_per_epoch=5)
    with pytest.raises(ValueError, match=r"state\['pool'\] = '2': this loader has 'None'"):
        plain.load_state_dict(state)
    with pytest.raises(ValueError, match=r"state\['pool'\] = 'None': this loader has '2'"):
        loader.load_state_dict(plain.state_dict())
    for field in ("pool_moments", "pool_counts", "pool_size", "ahead_indices"):
        with pytest.raises(ValueError, match=rf"state\['{field}'\] has shape"):
            loader.load_state_dict({**state, field: torch.zeros(7)})
    with pytest.raises(ValueError, match="state lacks 'pool_generator'"):
        loader.load_state_dict({key: value for key, value in state.items() if key != "pool_generator"})
    assert snapshot(loader) == before


def test_measures() -> None:
    loader = avt.ImportanceLoader(DATA, 2, score=score, pool=2, seed=0)
    for _, _, weight in loader:
        seen, wide = loader.measures(), weight.double()
    assert seen["pool_ratio"] == 2.0 and seen["gain"] == loader.gain
    assert seen["cost_ratio"] > 0.0 == seen["waiting"] and seen["relative_error"] >= 0.0
    assert seen["effective_sample_size"] == pytest.approx(float(wide.sum() ** 2 / (wide**2).sum()))


def test_nothing_waits_for_norms_that_only_scores_report() -> None:
    norms = torch.ones(64)  # alike: no pool pays
    loader = avt.ImportanceLoader(TensorDataset(norms), 4, score=lambda batch: batch[0], cost_ratio=5.0, seed=0)
    for _ in itertools.chain(loader, loader):
        assert "waiting" not in loader.measures()
    assert loader.pool_ratio == 1.0  # shuffled passes
    loader.update([0], [1.0])  # from now on, all of them are expected
    assert loader.measures()["waiting"] > 0


def test_workers_end_with_their_epoch() -> None:
    before = set(multiprocessing.active_children())
    loader = avt.ImportanceLoader(DATA, 2, score=score, pool=2, seed=0, num_workers=2)
    for _ in range(3):
        for _ in loader:
            break  # in the middle of an epoch
    assert len(list(loader)) == 3
    del _
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.slow
def test_memory_stays_flat_for_long() -> None:
    loader = avt.ImportanceLoader(DATA, 2, score=score, cost_ratio=5.0, seed=0, batches_per_epoch=10**9)
    batches = iter(loader)
    largest = []
    for _ in range(2):
        for _ in itertools.repeat(None, 50_000):
            next(batches)
        largest.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert largest[1] - largest[0] < 2048  # kilobytes: less than 42 bytes for each step


def test_memory_stays_flat() -> None:
    loader = avt.ImportanceLoader(DATA, 2, score=score, pool=2, seed=0, batches_per_epoch=10**9)
    batches = iter(loader)
    sizes = []
    for _ in itertools.repeat(None, 300):  # until every buffer is full
        next(batches)
    tracemalloc.start()
    for _ in range(2):
        for _ in itertools.repeat(None, 300):
            next(batches)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < 300 * 16  # less than one reference or number for each step


def test_a_restored_sampler_draws_the_same_pools_in_each_run() -> None:
    sampler = avare.Calibrated(5, 2, seed=3)
    sampler.sample()
    state = sampler.state_dict()

    def run(pool: Literal["auto"] | float) -> list[Any]:
        restored = avare.Calibrated(5, 2)
        restored.load_state_dict(state)
        cost_ratio = 1e-3 if pool == "auto" else None  # no pool pays: shuffled passes
        return drawn_by(
            avt.ImportanceLoader(DATA, 2, sampler=restored, score=score, pool=pool, cost_ratio=cost_ratio), 12
        )

    for pool in (2.0, "auto"):
        assert run(pool) == run(pool)
    assert run(2.0) == drawn_by(avt.ImportanceLoader(DATA, 2, sampler=sampler, score=score, pool=2.0), 12)
