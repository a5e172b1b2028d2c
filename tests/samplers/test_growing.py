"""Sets that grow and shrink: the law of each draw, exact totals, states, and what is refused."""

import copy
import math
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.samplers import Sampler, get
from avare.structures import Buckets
from avare.structures.cells import MAX_EXAMPLES
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples
from sampler_checks import by_name, by_pickle, by_savez, check_structures, norms_at, own_names, snapshot, train
from sorted_norms import PaperAvare

Make = Callable[..., Sampler]
compiled = not numba.config.DISABLE_JIT


def static(n: int, batch_size: int, **more: Any) -> Sampler:
    return avare.Static(n, batch_size, smoothness=1.0 + np.arange(n) % 3, uniform=0.3, **more)


def lasting(n: int, batch_size: int, **more: Any) -> Sampler:
    return avare.Avare(n, batch_size, delta=0.7, c=3.0 * n, p_min=0.4 / n, **more)


GROWING: dict[str, Make] = {
    "Avare": avare.Avare,
    "Avare with a lasting floor": lasting,
    "Calibrated": avare.Calibrated,
    "Static": static,
    "Uniform": avare.Uniform,
}
EVERY: dict[str, Make] = {
    **GROWING,
    "Uniform in passes": lambda n, m, **more: avare.Uniform(n, m, reshuffle=True, **more),
}
growing = pytest.mark.parametrize("make", GROWING.values(), ids=GROWING)
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


def add(sampler: Sampler, count: int) -> NDArray[np.int64]:
    """Append examples, with constants where they are needed."""
    return sampler.append(norms=np.linspace(0.5, 4.0, count)) if sampler.needs else sampler.append(count)


def check(sampler: Sampler, present: set[int]) -> None:
    """The set is the expected one, and all invariants hold."""
    p = sampler.probabilities()
    assert set(np.flatnonzero(p).tolist()) == present and sampler.present == len(present) and len(p) == sampler.n
    assert np.flatnonzero(sampler.contains(np.arange(sampler.n))).tolist() == sorted(present)
    assert np.isclose(p.sum(), 1.0, rtol=0, atol=1e-12)
    check_structures(sampler)


def weights_of(sampler: Sampler, p: NDArray[np.float64], indices: list[int]) -> NDArray[np.float64]:
    if isinstance(sampler, avare.Uniform):
        return np.full(len(indices), sampler.present / len(indices))
    left = [math.fsum(np.delete(p, indices[:j])) for j in range(len(indices))]
    return avare.batch_weights(p[indices], sampler.replacement, None if sampler.replacement else left)


def check_law(sampler: Sampler, draws: int) -> None:
    """Enumerate the next batch: it is unbiased for the sum over the present examples, and draws follow the law.

    `FALSE_ALARM` is the chance that the second part fails by chance, if a change alters the draws.
    """
    p, size, g = sampler.probabilities(), sampler.batch_size, np.cos(np.arange(sampler.n) * 1.3)
    law = {sample: chance for sample, chance in ordered_samples(p, size, sampler.replacement) if chance > 0.0}
    mean = sum(chance * (weights_of(sampler, p, list(sample)) @ g[list(sample)]) for sample, chance in law.items())
    assert np.isclose(mean, g[p > 0.0].sum(), rtol=1e-10, atol=1e-10)
    twin = copy.deepcopy(sampler)
    twin.reseed(99)
    found = []
    for _ in range(draws):
        twin.steps = sampler.steps  # the same step each time
        batch = twin.sample()
        found.append(tuple(batch.indices.tolist()))
        assert np.allclose(batch.weights, weights_of(sampler, p, batch.indices.tolist()), rtol=1e-12)
        assert np.allclose(batch.probabilities, p[batch.indices], rtol=1e-12)
    assert chi_square(found, law) > FALSE_ALARM


@growing
@pytest.mark.parametrize("replacement", [True, False])
def test_the_law_while_the_set_grows_and_shrinks(make: Make, replacement: bool) -> None:
    sampler = make(4, 3, replacement=replacement, seed=1)
    present = set(range(4))
    changes: list[tuple[int, list[int]]] = [(2, []), (0, [1, 4]), (1, [0]), (3, [2, 8]), (0, [5])]
    for count, retired in changes:
        train(sampler, 9)
        if count:
            new = add(sampler, count)
            assert new.tolist() == list(range(sampler.n - count, sampler.n))
            present |= set(new.tolist())
        if retired:
            sampler.retire(retired)
            present -= set(retired)
        check(sampler, present)
        check_law(sampler, draws_of(8_000, 300))
    assert present == {3, 6, 7, 9} and sampler.n == 10


@growing
def test_a_ring_replaces_the_oldest(make: Make) -> None:
    sampler = make(3, 2, seed=2, capacity=5)
    train(sampler, 20)
    assert add(sampler, 4).tolist() == [3, 4, 0, 1] and sampler.n == sampler.present == 5
    check(sampler, set(range(5)))
    if isinstance(sampler, avare.Calibrated):
        assert np.isnan(sampler.norms()[[0, 1, 3, 4]]).all() and sampler.norms()[2] > 0.0
    check_law(sampler, draws_of(8_000, 300))
    sampler.retire([2, 4])
    assert add(sampler, 1).tolist() == [2]
    check(sampler, {0, 1, 2, 3})
    assert add(sampler, 5).tolist() == [3, 4, 0, 1, 2]  # the whole ring
    check(sampler, set(range(5)))
    check_law(sampler, draws_of(8_000, 300))


def test_passes_begin_again_when_the_set_changes() -> None:
    # In the middle of a pass: what is left of it would favour the new examples.
    sampler = avare.Uniform(5, 2, reshuffle=True, seed=3)
    sampler.sample()
    sampler.append(2)
    check_first(sampler, list(range(7)))
    sampler.sample()
    sampler.retire([0, 5])
    check_first(sampler, [1, 2, 3, 4, 6])
    for _ in range(3):  # two batches a pass, of five examples
        both = np.concatenate([sampler.sample().indices, sampler.sample().indices])
        assert len(set(both.tolist())) == 4 and not set(both.tolist()) & {0, 5}
        sampler.retire([])
        assert sampler.sample().weights.tolist() == [2.5, 2.5]
        sampler.append(1)
        sampler.retire([sampler.n - 1])


def check_first(sampler: Sampler, present: list[int]) -> None:
    """The next batch is uniform over the present examples; `FALSE_ALARM` as in `check_law`."""
    p = sampler.probabilities()
    found = [tuple(reseeded(sampler, seed).sample().indices.tolist()) for seed in range(draws_of(8_000, 300))]
    assert np.flatnonzero(p).tolist() == present
    assert chi_square(found, dict(ordered_samples(p, 2, False))) > FALSE_ALARM


def reseeded(sampler: Sampler, seed: int) -> Sampler:
    twin = copy.deepcopy(sampler)
    twin.reseed(seed)
    return twin


def random_operations(sampler: Sampler, rounds: int, size: int, generator: np.random.Generator) -> set[int]:
    """Append, retire, draw and update; return what is present."""
    present = set(np.flatnonzero(sampler.contains(np.arange(sampler.n))).tolist())
    for _ in range(rounds):
        kind = generator.integers(3)
        if kind == 0:
            present |= set(add(sampler, int(generator.integers(1, size + 1))).tolist())
        elif kind == 1 and len(present) > 2 * size:
            retired = generator.choice(sorted(present), int(generator.integers(1, size + 1)), replace=False)
            sampler.retire(retired)
            present -= set(retired.tolist())
        else:
            batch = sampler.sample()
            sampler.update(batch.indices, generator.lognormal(0.0, 3.0, len(batch)))
    return present


@every
@pytest.mark.parametrize("capacity", [None, 60])
def test_random_operations(make: Make, capacity: int | None) -> None:
    sampler = make(30, 5, seed=4, capacity=capacity)
    generator = np.random.default_rng(4)
    for _ in range(40 if compiled else 6):
        check(sampler, random_operations(sampler, 5, 9, generator))
    assert sampler.n > 40


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("capacity", [None, 30_000])
def test_totals_are_exact_after_ten_million_operations(capacity: int | None) -> None:
    sampler, operations = avare.Avare(20_000, 1000, seed=5, capacity=capacity), 0
    generator = np.random.default_rng(5)
    while operations < 10_000_000:
        new = sampler.append(norms=generator.lognormal(0.0, 3.0, 1000))
        batch = sampler.sample()
        sampler.update(batch.indices, generator.lognormal(0.0, 3.0, 1000))
        retired = new[:999] if capacity is None else new[:500]
        sampler.retire(retired)
        operations += 2000 + len(retired)
    sampler._structure.check()
    norms = sampler.norms()[sampler.contains(np.arange(sampler.n))]
    again = Buckets(norms)
    for name in ("octaves", "cells", "bins"):  # counts, and sums of mantissas: integers
        assert np.array_equal(getattr(sampler._structure.arrays, name), getattr(again.arrays, name))
    assert sampler._structure.solve(1e-6) == again.solve(1e-6)


@every
@pytest.mark.parametrize("way", [by_pickle, by_savez])
@pytest.mark.parametrize("capacity", [None, 50])
def test_resumes_with_the_same_draws(make: Make, way: Any, capacity: int | None) -> None:
    sampler, generator = make(30, 5, seed=6, capacity=capacity), np.random.default_rng(6)
    first = sampler.state_dict()
    random_operations(sampler, 40, 9, generator)
    waiting = sampler.sample()
    twin = make(30, 5, capacity=capacity)
    twin.load_state_dict(way(sampler.state_dict()))
    assert snapshot(twin) == snapshot(sampler) and twin.present == sampler.present and twin.n == sampler.n
    for each in (sampler, twin):
        each.retire(waiting.indices[:2])
        each.update(waiting.indices, norms_at(1, waiting.indices))
    assert sampler.gain == twin.gain or math.isnan(sampler.gain)
    found = [random_operations(each, 40, 9, np.random.default_rng(7)) for each in (sampler, twin)]
    assert found[0] == found[1] and snapshot(sampler) == snapshot(twin)
    assert train(sampler, 10) == train(twin, 10)
    copied = copy.deepcopy(sampler)
    add(copied, 3)
    assert train(sampler, 10) == train(twin, 10)  # the copy has changed nothing
    sampler.load_state_dict(first)  # from before the set changed
    assert sampler.n == sampler.present == 30 and train(sampler, 10) == train(
        make(30, 5, seed=6, capacity=capacity), 10
    )


def test_damaged_states_change_nothing() -> None:
    sampler = avare.Avare(10, 2, seed=7)
    sampler.append(4)
    sampler.retire([2, 11])
    state = sampler.state_dict()
    twin = avare.Avare(10, 2, seed=8)
    before = snapshot(twin)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"added": 9}, r"state\['added'\] = 9: must be an integer from 10"),
        ({"added": 2**30}, r"state\['members'\] has shape"),
        ({"retired": np.array([2, 2])}, r"state\['retired'\] has an index twice"),
        ({"retired": np.arange(14)}, r"state\['retired'\] has an index twice, or all"),
        ({"retired": np.array([2, 14])}, r"state\['retired'\]\[1\] = 14"),
        ({"retired": np.array([2])}, r"state\['members'\] has shape"),
        ({"capacity": 20}, r"state\['capacity'\] = 20: this sampler has 0"),
    ]
    for changes, message in wrong:
        rest = {key: value for key, value in {**state, **changes}.items() if key != "checksum"}
        with pytest.raises(ValueError, match=message):
            twin.load_state_dict({**rest, "checksum": avare.state.checksum(rest)})
        assert snapshot(twin) == before
    with pytest.raises(ValueError, match=r"state\['capacity'\] = 0: this sampler has 20"):
        avare.Avare(10, 2, capacity=20).load_state_dict(state)
    uniform = avare.Uniform(10, 2)
    uniform.retire([3])
    rest = {**uniform.state_dict(), "order": np.arange(0)}
    del rest["checksum"]
    with pytest.raises(ValueError, match=r"state\['order'\] has shape \(0,\): must have shape \(9,\)"):
        avare.Uniform(10, 2).load_state_dict({**rest, "checksum": avare.state.checksum(rest)})


@every
def test_bad_changes_change_nothing(make: Make) -> None:
    sampler = make(6, 2, seed=9)
    train(sampler, 5)
    sampler.retire([4])
    before = snapshot(sampler)
    wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: sampler.retire([4]), ValueError, r"indices\[0\] = 4: has been retired before"),
        (lambda: sampler.retire([0, 1, 0]), ValueError, r"indices\[2\] = 0: occurs twice"),
        (lambda: sampler.retire([1, 6]), ValueError, r"indices\[1\] = 6: must be in \[0, 6\)"),
        (lambda: sampler.retire([-1]), ValueError, r"indices\[0\] = -1"),
        (lambda: sampler.retire([0.5]), TypeError, "indices has dtype float64"),
        (lambda: sampler.retire([0, 1, 2, 3, 5]), ValueError, "all examples that are left: append others first"),
        (lambda: sampler.append(0), ValueError, "k = 0: must be at least 1"),
        (lambda: sampler.append(2.0), TypeError, r"k = 2\.0: must be an integer"),  # type: ignore[arg-type]  # the point
        (lambda: sampler.append(norms=[]), ValueError, "k = 0: must be at least 1"),
        (lambda: sampler.append(norms=[1.0, -1.0]), ValueError, r"norms\[1\] = -1.0"),
        (lambda: sampler.append(norms=[math.nan]), ValueError, r"norms\[0\] = nan"),
        (lambda: sampler.append(), TypeError, "append takes either k"),
        (lambda: sampler.append(1, norms=[1.0]), TypeError, "append takes either k"),
        (lambda: sampler.append(MAX_EXAMPLES), ValueError, "n = 6 cannot exceed"),
    ]
    for call, error, message in wrong:
        with pytest.raises(error, match=message):
            call()
        assert snapshot(sampler) == before
    ring = make(3, 2, seed=9, capacity=5)
    before = snapshot(ring)
    with pytest.raises(ValueError, match="k = 6: must be at most capacity = 5"):
        ring.append(6)
    assert snapshot(ring) == before
    with pytest.raises(ValueError, match="capacity = 2: must be at least 3"):
        make(3, 2, capacity=2)
    with pytest.raises(AttributeError, match="present = 3: cannot be changed later"):
        sampler.present = 3


def test_static_needs_constants() -> None:
    sampler = static(4, 2)
    with pytest.raises(TypeError, match=r"Static needs the constants of new examples: append\(norms=...\)"):
        sampler.append(2)
    sampler.append(norms=[3.0])
    mixed = 0.7 * np.array([1.0, 2.0, 3.0, 1.0, 3.0]) + 0.3 * 1.75  # the mean of the first four
    assert np.allclose(sampler.probabilities(), mixed / mixed.sum(), rtol=1e-6)  # 24 bits
    zeros = avare.Static(3, 2, smoothness=[1.0, 2.0, 0.0], uniform=0.0, seed=0)
    zeros.retire([0])
    with pytest.raises(ValueError, match="size = 2: only 1 examples have a probability above 0"):
        zeros.sample()
    zeros.append(norms=[0.0])
    zeros.retire([1])
    assert np.allclose(zeros.probabilities(), [0.0, 0.0, 0.5, 0.5])  # no constant is above 0
    assert sorted(zeros.sample().indices.tolist()) == [2, 3]


def test_samplers_of_a_fixed_set() -> None:
    names = [name for name in own_names() if not get(name).grows]
    assert len(names) == 9
    samplers = [by_name(name)(5, 2) for name in names]
    for sampler in (*samplers, PaperAvare(5, 2)):
        changes: list[tuple[Callable[[Any], object], Any]] = [(sampler.append, 1), (sampler.retire, [1])]
        for change, argument in changes:
            with pytest.raises(TypeError, match=r"has a fixed set of examples: Avare, Calibrated, Static"):
                change(argument)
        assert sampler.present == sampler.n == 5


@every
def test_batches_in_flight(make: Make) -> None:
    sampler = make(10, 4, seed=10)
    train(sampler, 4)
    batch = sampler.sample()
    sampler.retire(batch.indices[:2])
    before = sampler.probabilities()
    sampler.update(batch.indices[:2], [1e6, 1e6])
    assert np.array_equal(sampler.probabilities(), before)
    sampler.step(batch.indices, np.array([1e6, 1e6, 1.0, 2.0]))
    assert len(sampler.pending) == 1  # the whole batch has counted for the gain; the next one waits
    assert np.isnan(sampler.norms(batch.indices[:2])).all()
    check(sampler, set(range(10)) - set(batch.indices[:2].tolist()))


@pytest.mark.parametrize("reshuffle", [False, True])
def test_uniform_draws_of_a_ring_that_was_replaced_as_a_whole(reshuffle: bool) -> None:
    sampler = avare.Uniform(4, 1, capacity=4, reshuffle=reshuffle, seed=16)
    for gone, new in (([0, 1], [0, 1]), ([0, 1], [2, 3])):
        sampler.retire(gone)
        assert sampler.append(2).tolist() == new  # the second time, 2 and 3 replace all that are present
    assert np.flatnonzero(sampler.contains(np.arange(4))).tolist() == [2, 3]
    passes = [sorted(int(sampler.sample().indices[0]) for _ in range(2)) for _ in range(20)]
    assert set(map(tuple, passes)) <= {(2, 3)} if reshuffle else {(2, 2), (2, 3), (3, 3)}
    twin = avare.Uniform(4, 1, capacity=4, reshuffle=reshuffle)
    twin.load_state_dict(sampler.state_dict())
    assert train(twin, 9) == train(sampler, 9)


@pytest.mark.parametrize("change", [lambda each: each.retire(np.arange(900)), lambda each: each.append(9000)])
def test_gain_counts_a_batch_as_it_was_drawn(change: Callable[[avare.Uniform], object]) -> None:
    sampler = avare.Uniform(1000, 50, replacement=True, seed=17)
    ahead = [sampler.sample() for _ in range(20)]
    change(sampler)
    twin = avare.Uniform(1000, 50, replacement=True)
    twin.load_state_dict(sampler.state_dict())
    for each in (sampler, twin):
        for batch in ahead:
            each.update(batch, np.ones(50))
        assert each.gain == pytest.approx(1.0)  # uniform draws save nothing over themselves


@every
def test_too_few_for_a_batch(make: Make) -> None:
    sampler = make(5, 4, seed=11)
    sampler.retire([0, 3])
    before = snapshot(sampler)
    with pytest.raises(ValueError, match="batch_size = 4: only 3 examples are present, and each is drawn once"):
        sampler.sample()
    with pytest.raises(ValueError, match="batch_size = 4: only 3"):
        sampler.drive(lambda *_: 1, 1)
    with pytest.raises(ValueError, match="size = 4: must be at most 3"):
        sampler.sample(4)
    assert snapshot(sampler) == before
    assert sorted(sampler.sample(3).indices.tolist()) == [1, 2, 4]
    add(sampler, 1)
    assert sorted(sampler.sample().indices.tolist()) == [1, 2, 4, 5]
    problem = avare.problems.LeastSquares(np.ones((6, 1)), np.ones(6))
    with pytest.raises(ValueError, match="sampler has n = 6: must match the problem's 6, with no example retired"):
        avare.sgd(problem, sampler, 0.1, epochs=1)


@pytest.mark.parametrize("kind", [avare.Avare, avare.Calibrated])
@pytest.mark.parametrize("p_min", [0.0, 0.2])
def test_floors_and_decay_follow_the_number_of_examples(kind: Any, p_min: float) -> None:
    grown, made = kind(10, 8, p_min=p_min / 10, seed=12), kind(40, 8, p_min=p_min / 40, seed=12)
    add(grown, 35)
    grown.retire([1, 3, 5, 7, 9])
    grown.steps = made.steps = 57
    assert math.isclose(grown.floor, made.floor, rel_tol=1e-12) and grown.present == 40
    if kind is avare.Calibrated:
        assert grown.kernels.decay == made.kernels.decay > kind(10, 8).kernels.decay
        given = kind(10, 8, decay=0.5)
        given.append(30)
        assert given.kernels.decay == 0.5


@pytest.mark.parametrize("kind", [avare.Avare, avare.Calibrated])
def test_norms_of_new_examples(kind: Any) -> None:
    sampler = kind(2, 1, initial_norms=[1.0, 2.0], seed=13)
    sampler.append(norms=[4.0, 0.0])
    sampler.append(1)
    unknown = 0.0 if kind is avare.Avare else math.nan
    assert np.array_equal(sampler.norms(), [1.0, 2.0, 4.0, 0.0, unknown], equal_nan=True)


def test_threads_wait_for_each_other() -> None:
    sampler, failures = avare.Calibrated(200, 16, seed=14), []
    stop = threading.Event()

    def learn() -> None:
        while not stop.is_set():
            batch = sampler.sample()
            if not (batch.indices < sampler.n).all():
                failures.append(batch)
            sampler.update(batch.indices, norms_at(1, batch.indices))

    threads = [threading.Thread(target=learn) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200 if compiled else 10):
        sampler.retire(sampler.append(30)[:25])
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures and sampler.n > sampler.present > 200
    sampler._structure.check()


# Indices of 50 batches of samplers that never grow, as they were before sets could grow.
DIGESTS = {
    "Avare": 575137950,
    "Calibrated": 4118545623,
    "Static": 2773440671,
    "Uniform": 1381890489,
    "Uniform in passes": 2532436656,
}


@pytest.mark.parametrize("name", DIGESTS)
def test_draws_of_a_fixed_set_stay_the_same(name: str) -> None:
    sampler, found = EVERY[name](2000, 64, seed=15), 0
    for _ in range(50):
        batch = sampler.sample()
        found = zlib.crc32(batch.indices.tobytes(), found)
        sampler.update(batch.indices, 1.0 + batch.indices % 7)
    assert found == DIGESTS[name]
