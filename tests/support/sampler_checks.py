"""Checks that every sampler must pass: derive a test class from `SamplerChecks` and name the samplers.

class TestMine(SamplerChecks):
    samplers = {"Mine": by_name("Mine")}
"""

import copy
import io
import json
import math
import pickle
import queue
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
import linear_models
from avare.samplers import LimitWarning, Sampler, get, names
from avare.samplers.kernels import can_learn
from avare.samplers.registry import example
from laws import FALSE_ALARM, chi_square, draws_of, ordered_samples

Make = Callable[..., Sampler]
DRAWS = draws_of(40_000)


def by_name(name: str) -> Make:
    """A registered sampler, with the arguments of its example."""

    def make(n: int, batch_size: int = 128, **arguments: Any) -> Sampler:
        return get(name)(n, batch_size, **{**example(name, n if 0 < n <= 1000 else 10), **arguments})

    return make


def own_names() -> list[str]:
    """The samplers of the package: a test or a page may have registered others."""
    return [name for name in names() if get(name).__module__.startswith("avare.")]


def ways(make: Make) -> list[bool]:
    """With replacement, without, or both: what a sampler can do."""
    kind = type(make(10, 2))
    return [way for way in (True, False) if not (kind.without_replacement_only if way else kind.with_replacement_only)]


def norms_at(step: int, indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Norms that change with time, over some octaves."""
    norms: NDArray[np.float64] = np.exp(np.sin(indices * 1.7 + step * 0.01) * 2.0)
    return norms


def train(sampler: Sampler, steps: int) -> list[tuple[list[int], list[float]]]:
    """Make some steps; return the batches."""
    history = []
    for _ in range(steps):
        batch = sampler.sample()
        history.append((batch.indices.tolist(), batch.weights.tolist()))
        sampler.update(batch.indices, norms_at(sampler.steps, batch.indices))
    return history


def snapshot(sampler: Sampler) -> dict[str, Any]:
    return {key: np.asarray(value).tolist() for key, value in sampler.state_dict().items()}


def as_in_a_worker(sampler: Sampler) -> Sampler:
    """A copy of a sampler from arrays that cannot be written to, as joblib passes them to its workers."""
    arrays: list[pickle.PickleBuffer] = []
    text = pickle.dumps(sampler, protocol=5, buffer_callback=arrays.append)
    copied: Sampler = pickle.loads(text, buffers=[bytes(each.raw()) for each in arrays])
    return copied


def by_pickle(state: Any) -> Any:
    return pickle.loads(pickle.dumps(state))


def by_savez(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return np.load(file)  # without allow_pickle


def unchanged(state: dict[str, Any]) -> Any:
    return state


def altered(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**state, **changes}


def without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


BAD_UPDATES: list[tuple[Any, Any, type[Exception], str]] = [
    ([0, 1], [1.0, math.nan], ValueError, r"norms\[1\] = nan: must be finite and not negative"),
    ([0, 1], [math.inf, 1.0], ValueError, r"norms\[0\] = inf"),
    ([0, 1], [1.0, -0.5], ValueError, r"norms\[1\] = -0.5"),
    ([0, 1], [1.0], ValueError, "norms has length 1: must match indices, which has 2"),
    ([0, 40], [1.0, 1.0], ValueError, r"indices\[1\] = 40: must be in \[0, 40\)"),
    ([-1], [1.0], ValueError, r"indices\[0\] = -1"),
    ([0.0, 1.0], [1.0, 1.0], TypeError, "indices has dtype float64: must hold integers"),
    ([True, False], [1.0, 1.0], TypeError, "indices has dtype bool"),
    ([[0, 1]], [1.0, 1.0], ValueError, r"indices has shape \(1, 2\)"),
    ([0, 1], [[1.0, 1.0]], ValueError, r"norms has shape \(1, 2\)"),
    ([0, 1], ["a", "b"], TypeError, "norms has dtype"),
    ([0, 1], [1j, 1.0], TypeError, "norms has dtype complex128"),
    ([0, 1], [True, True], TypeError, "norms has dtype bool"),
    ([[0], [0, 1]], [1.0, 1.0], ValueError, "indices is not an array"),
    (np.array([2**63], dtype=np.uint64), [1.0], ValueError, r"indices\[0\] = 9223372036854775808"),
]


SMALLEST, LARGEST = 5e-324, 1e308  # the ends of what `update` accepts
EXTREMES = [
    (0.0, 0.0),
    (0.0, SMALLEST),
    (0.0, 1e-320),
    (1.0, 1e30),
    (1e-310, 5e-309),
    *((one, other) for one in (SMALLEST, 1.0, LARGEST) for other in (SMALLEST, 1.0, LARGEST)),
]


def check_structures(sampler: Sampler) -> None:
    """Assert the invariants of every structure that a sampler has."""
    for part in vars(sampler).values():
        if hasattr(part, "check"):
            part.check()


class SamplerChecks:
    """The checks. A test runs for each of `samplers` as ``make``, or as ``compiled`` for those that bring kernels.

    A test that takes ``replacement`` runs for each way that the sampler can draw.
    """

    samplers: ClassVar[Mapping[str, Make]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        only_compiled = "compiled" in metafunc.fixturenames
        chosen = {
            name: make for name, make in self.samplers.items() if not only_compiled or can_learn(make(10, 2).kernels)
        }
        if "replacement" in metafunc.fixturenames:
            cases = [
                pytest.param(make, way, id=f"{name}, {'with' if way else 'without'} replacement")
                for name, make in chosen.items()
                for way in ways(make)
            ]
            metafunc.parametrize(("compiled" if only_compiled else "make", "replacement"), cases)
        elif "make" in metafunc.fixturenames:
            metafunc.parametrize("make", chosen.values(), ids=chosen.keys())

    def law_of(self, sampler: Sampler) -> dict[tuple[int, ...], float]:
        """The law of the next batch: independent or successive draws."""
        return dict(ordered_samples(sampler.probabilities(), sampler.batch_size, sampler.replacement))

    def weights_of(self, sampler: Sampler, p: NDArray[np.float64], indices: list[int]) -> NDArray[np.float64]:
        """The weights of some draws; what is left of the mass is summed exactly."""
        left = [math.fsum(np.delete(p, indices[:j])) for j in range(len(indices))]
        return avare.batch_weights(p[indices], sampler.replacement, None if sampler.replacement else left)

    @pytest.mark.parametrize("steps", [0, 1, 7, 200])
    def test_unbiased_by_enumeration(self, make: Make, replacement: bool, steps: int) -> None:
        sampler = make(5, 3, replacement=replacement, seed=1)
        train(sampler, steps)
        p = sampler.probabilities()
        g = np.random.default_rng(0).normal(size=(5, 2))
        batch = copy.deepcopy(sampler).sample()
        assert np.allclose(batch.weights, self.weights_of(sampler, p, batch.indices.tolist()), rtol=1e-12)
        mean, total = np.zeros(2), 0.0
        for sample, chance in self.law_of(sampler).items():
            indices = list(sample)
            mean += chance * (self.weights_of(sampler, p, indices) @ g[indices])
            total += chance
        assert np.isclose(total, 1.0, rtol=1e-12)
        assert np.allclose(mean, g.sum(axis=0), rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("huge", [1e6, 1e17, 1e150, 1e300])
    def test_unbiased_where_one_probability_is_nearly_one(self, make: Make, replacement: bool, huge: float) -> None:
        sampler = make(5, 4, replacement=replacement, seed=1)
        for _ in range(20):
            batch = sampler.sample()
            sampler.update(batch.indices, np.where(batch.indices == 3, huge, 1.0 + batch.indices))
        for _ in range(20):
            p = sampler.probabilities()
            batch = sampler.sample()
            # 1e-9 is what we promise; the sums themselves are exact to about 1e-15.
            assert np.allclose(batch.weights, self.weights_of(sampler, p, batch.indices.tolist()), rtol=1e-9, atol=0)
        p = sampler.probabilities()
        mean = np.zeros(5)
        for sample, chance in self.law_of(sampler).items():
            np.add.at(mean, list(sample), chance * self.weights_of(sampler, p, list(sample)))
        assert np.allclose(mean, 1.0, rtol=1e-9, atol=0)

    def test_draws_follow_the_probabilities(self, make: Make, replacement: bool) -> None:
        sampler = make(5, 3, replacement=replacement, seed=2)
        train(sampler, 50)
        law = self.law_of(sampler)
        state = sampler.state_dict()
        sampler.generator = np.random.default_rng(99)
        sampler.__setstate__(sampler.__getstate__())
        draws = []
        for _ in range(DRAWS):
            sampler.steps = state["steps"]  # the same step each time
            draws.append(tuple(sampler.sample().indices.tolist()))
        assert chi_square(draws, law) > FALSE_ALARM

    @pytest.mark.parametrize("n", [1, 2, 3, 17, 1000])
    def test_a_batch_is_what_it_says(self, make: Make, replacement: bool, n: int) -> None:
        sampler = make(n, 5 if replacement else min(n, 5), replacement=replacement, seed=3)
        for _ in range(20):
            p = sampler.probabilities()
            assert p.shape == (n,) and p.dtype == np.float64
            assert np.isclose(p.sum(), 1.0, rtol=0, atol=1e-12) and (p > 0.0).all()
            batch = sampler.sample()
            assert batch.indices.dtype == np.int64 and batch.weights.dtype == batch.probabilities.dtype == np.float64
            assert (
                len(batch) == len(batch.indices) == len(batch.weights) == len(batch.probabilities) == sampler.batch_size
            )
            assert ((batch.indices >= 0) & (batch.indices < n)).all()
            assert np.allclose(batch.probabilities, p[batch.indices], rtol=1e-12)
            assert replacement or len(np.unique(batch.indices)) == len(batch)
            sampler.update(batch.indices, norms_at(sampler.steps, batch.indices))
        assert sampler.steps == 20

    def test_batches_of_other_sizes(self, make: Make, replacement: bool) -> None:
        sampler = make(7, 3, replacement=replacement, seed=13)
        train(sampler, 30)
        g = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0])
        steps = sampler.steps
        for size in (1, 5, 7):
            estimates = []
            for _ in range(DRAWS // 40):
                sampler.steps = steps  # the same step each time
                p = sampler.probabilities()
                batch = sampler.sample(size)
                p[batch.indices] = batch.probabilities  # strata depend on the size
                assert len(batch) == size and (replacement or len(np.unique(batch.indices)) == size)
                weights = self.weights_of(sampler, p, batch.indices.tolist())
                assert np.allclose(batch.weights, weights, rtol=1e-12)
                estimates.append(batch.weights @ g[batch.indices])
            # Five standard errors: one false alarm in two million.
            allowed = 5.0 * np.std(estimates) / math.sqrt(len(estimates)) + 1e-9
            assert abs(np.mean(estimates) - g.sum()) < allowed
            sampler.update(batch.indices, norms_at(1, batch.indices))
        sampler.sample(2)
        twin = make(7, 3, replacement=replacement)
        twin.load_state_dict(by_savez(sampler.state_dict()))  # batches of several sizes wait for their norms
        assert snapshot(twin) == snapshot(sampler) and train(twin, 5) == train(sampler, 5)
        before = snapshot(sampler)
        for wrong in (0, -1) if replacement else (0, 8):
            with pytest.raises(ValueError, match=f"size = {wrong}: must be at"):
                sampler.sample(wrong)
        with pytest.raises(TypeError, match=r"size = 2\.0: must be an integer"):
            sampler.sample(2.0)  # type: ignore[arg-type]  # the point
        assert snapshot(sampler) == before

    def test_a_step_is_an_update_and_a_draw(self, make: Make, replacement: bool) -> None:
        sampler, twin = (make(40, 6, replacement=replacement, seed=12) for _ in range(2))
        batch = twin.sample()
        expected, found = train(sampler, 21), [(batch.indices.tolist(), batch.weights.tolist())]
        for step in range(20):
            norms = norms_at(twin.steps, batch.indices)
            # Arrays of the plain kinds go to one kernel, others to `update` and `sample`.
            batch = twin.step(batch.indices, norms) if step % 4 else twin.step(batch.indices.tolist(), norms.tolist())
            found.append((batch.indices.tolist(), batch.weights.tolist()))
        assert found == expected
        twin.update(batch.indices, norms_at(twin.steps, batch.indices))
        assert snapshot(twin) == snapshot(sampler)
        for bad in ([-1.0, *norms[1:]], [*norms[1:], math.nan], [math.inf, *norms[1:]]):
            with pytest.raises(ValueError, match="must be finite and not negative"):
                twin.step(batch.indices, np.array(bad))
        for wrong in (np.full(6, 40), np.full(6, -1), np.arange(5)):
            with pytest.raises(ValueError, match="indices"):
                twin.step(wrong, norms)
        assert snapshot(twin) == snapshot(sampler)

    @pytest.mark.parametrize(("norms", "of_two"), EXTREMES)
    def test_extreme_norms(self, make: Make, replacement: bool, norms: float, of_two: float) -> None:
        # Interpreted, an index out of bounds is an error; compiled, it would write to memory of others.
        sampler = make(9, 3, replacement=replacement, seed=4)
        for _ in range(50):
            batch = sampler.sample()
            assert np.isfinite(batch.weights).all() and (batch.weights > 0.0).all()
            assert ((batch.indices >= 0) & (batch.indices < 9)).all()
            assert replacement or len(np.unique(batch.indices)) == 3
            sampler.update(batch, np.where(np.isin(batch.indices, [4, 7]), of_two, norms))
            p = sampler.probabilities()
            assert np.isclose(p.sum(), 1.0, rtol=0, atol=1e-12) and (p > 0.0).all()
        check_structures(sampler)
        make(9, 3, replacement=replacement).load_state_dict(by_savez(sampler.state_dict()))

    def test_one_seed_draws_the_same(self, make: Make) -> None:
        assert train(make(50, 4, seed=5), 30) == train(make(50, 4, seed=5), 30)
        assert train(make(50, 4, seed=5), 30) != train(make(50, 4, seed=6), 30)
        generator = np.random.default_rng(5)
        assert train(make(50, 4, seed=generator), 30) == train(make(50, 4, seed=5), 30)
        assert generator.random() != np.random.default_rng(5).random()  # it was used

    def test_threads_do_not_disturb_each_other(self, make: Make) -> None:
        steps = 60 if not numba.config.DISABLE_JIT else 8
        expected = [train(make(500, 32, seed=seed), steps) for seed in range(4)]
        found: dict[int, object] = {}
        threads = [
            threading.Thread(target=lambda seed=seed: found.update({seed: train(make(500, 32, seed=seed), steps)}))
            for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[seed] for seed in range(4)] == expected

    @pytest.mark.parametrize("way", [unchanged, by_pickle, by_savez])
    @pytest.mark.parametrize("between", ["steps", "draw and update"])
    def test_resumes_with_exactly_the_same_draws(self, make: Make, replacement: bool, way: Any, between: str) -> None:
        sampler = make(40, 6, replacement=replacement, seed=6)
        train(sampler, 25)
        pending = sampler.sample() if between == "draw and update" else None
        twin = make(40, 6, replacement=replacement, seed=77)
        twin.load_state_dict(way(sampler.state_dict()))
        for each in (sampler, twin):
            if pending is not None:
                each.update(pending.indices, norms_at(3, pending.indices))
        assert sampler.gain == twin.gain
        assert np.array_equal(sampler.probabilities(), twin.probabilities())
        assert train(sampler, 25) == train(twin, 25)
        assert snapshot(sampler) == snapshot(twin)

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, by_pickle, as_in_a_worker])
    def test_copies_are_independent(self, make: Make, duplicate: Callable[[Sampler], Sampler]) -> None:
        sampler = make(40, 6, seed=7)
        train(sampler, 5)
        twin = duplicate(sampler)
        expected = train(sampler, 20)
        assert train(twin, 20) == expected

    @pytest.mark.parametrize("kind", [np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937])
    def test_resumes_with_any_bit_generator(self, make: Make, kind: type[np.random.BitGenerator]) -> None:
        sampler = make(40, 6, seed=kind(8))
        train(sampler, 5)
        twin = make(40, 6)
        twin.load_state_dict(by_savez(sampler.state_dict()))
        assert train(sampler, 20) == train(twin, 20)

    def test_refuses_other_states_and_does_not_change(self, make: Make) -> None:
        sampler = make(40, 6, seed=9)
        train(sampler, 10)
        state = sampler.state_dict()
        other = make(41, 6, seed=9)
        before = snapshot(sampler)
        moments = state["moments"].copy()
        moments[0] += 1e-9
        generator = json.loads(state["generator"])
        generator["state"]["state"] += 1
        wrong: list[tuple[dict[str, Any], str]] = [
            (altered(state, format=1), r"state\['format'\] = 1: this version of avare has 3"),
            (altered(state, sampler="Other"), r"state\['sampler'\] = 'Other': this sampler has"),
            (other.state_dict(), r"state\['n'\] = 41: this sampler has 40"),
            (make(40, 7, seed=9).state_dict(), r"state\['batch_size'\] = 7: this sampler has 6"),
            (altered(state, moments=moments), "it is damaged"),
            (altered(state, steps=11), "it is damaged"),
            (altered(state, steps=None), "it is damaged"),
            (altered(state, steps=10**30), "it is damaged"),
            (altered(state, moments=[1.0, [2.0]]), "it is damaged"),
            (altered(state, generator=json.dumps(generator)), "it is damaged"),
            (altered(state, checksum=1), "it is damaged"),
            (without(state, "checksum"), "state lacks 'checksum'"),
            (without(state, "steps"), "state lacks 'steps'"),
            (without(state, "fields"), "state lacks"),
            ({}, "state lacks 'format'"),
        ]
        for each, message in wrong:
            with pytest.raises(ValueError, match=message):
                sampler.load_state_dict(each)
            assert snapshot(sampler) == before
        with pytest.raises(TypeError, match="state is of type list: must be a mapping"):
            sampler.load_state_dict([1])  # type: ignore[arg-type]  # the point
        sampler.load_state_dict({**state, "x": np.ones(3)})  # other entries are ignored

    @pytest.mark.parametrize(("indices", "norms", "error", "message"), BAD_UPDATES)
    def test_refuses_bad_updates_and_does_not_change(
        self, make: Make, indices: Any, norms: Any, error: type[Exception], message: str
    ) -> None:
        sampler = make(40, 6, seed=10)
        train(sampler, 3)
        before = snapshot(sampler)
        with pytest.raises(error, match=message):
            sampler.update(indices, norms)
        assert snapshot(sampler) == before

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"n": 0}, ValueError, "n = 0: must be at least 1"),
            ({"n": 2**40}, ValueError, "n = 1099511627776: must be at most"),
            ({"n": 10.0}, TypeError, "n = 10.0: must be an integer"),
            ({"n": 10, "batch_size": 0}, ValueError, "batch_size = 0"),
            ({"n": 10, "batch_size": 10**30}, ValueError, "batch_size = 1(0{30}): must be at most 2147483648"),
            ({"n": 10, "batch_size": 2, "replacement": "no"}, TypeError, "replacement = 'no'"),
        ],
    )
    def test_refuses_bad_arguments(
        self, make: Make, arguments: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            make(**arguments)

    def test_updates_may_arrive_late_in_part_or_never(self, make: Make) -> None:
        sampler = make(40, 6, seed=11)
        assert math.isnan(sampler.gain)
        first, second = sampler.sample(), sampler.sample()
        sampler.update([], [])
        sampler.update(second.indices.tolist()[:3], [1, 2, 3])
        assert math.isnan(sampler.gain)  # no batch is complete
        sampler.update(first.indices.astype(np.int32), np.ones(6, dtype=np.float32))
        once = sampler.gain
        assert once > 0.0
        sampler.update(first.indices, np.full(6, 7.0))
        assert sampler.gain == once  # a batch counts once
        sampler.update(second.indices, np.ones(6))
        for _ in range(100):  # drawn ahead, and their norms never arrive
            sampler.sample()
        assert len(sampler.pending) == sampler.pending.limit == 64
        sampler.pending.limit = 80
        for _ in range(100):
            sampler.sample()
        assert len(sampler.pending) == 80
        sampler.pending.limit = 3
        sampler.sample()
        assert len(sampler.pending) == 3
        with pytest.raises(ValueError, match="limit = 0: must be at least 1"):
            sampler.pending.limit = 0

    def test_equal_batches_drawn_ahead_are_each_remembered(self, make: Make, replacement: bool) -> None:
        sampler = make(2, 2, replacement=replacement, seed=19)
        drawn = [sampler.sample() for _ in range(12)]  # of at most four different ones
        kept = sampler.state_dict()["pending_indices"]
        assert kept.tolist() == [batch.indices.tolist() for batch in drawn]
        twin = make(2, 2, replacement=replacement)
        twin.load_state_dict(sampler.state_dict())
        for batch in drawn:
            for each in (sampler, twin):
                found = each.pending.find(batch.indices)
                assert found is not None and np.array_equal(found.weights, batch.weights)
                each.update(batch.indices, np.ones(2))
        assert len(sampler.pending) == 0 and sampler.gain == twin.gain

    def test_changing_a_batch_does_not_change_the_sampler(self, make: Make) -> None:
        sampler, twin = make(40, 6, seed=15), make(40, 6, seed=15)
        batch, same = sampler.sample(), twin.sample()
        state = sampler.state_dict()
        indices = batch.indices.copy()
        batch.weights /= 40
        batch.probabilities[:] = 0.0
        batch.indices[:] = 0
        sampler.update(indices, np.ones(6))
        twin.update(same.indices, np.ones(6))
        assert sampler.gain == twin.gain
        twin.load_state_dict(state)

    def test_arguments_cannot_be_changed_later(self, make: Make) -> None:
        sampler = make(40, 6, seed=16)
        for name in ("n", "batch_size", "replacement", "gain"):
            with pytest.raises(AttributeError):
                setattr(sampler, name, 50)

    def test_threads_may_share_a_sampler(self, make: Make) -> None:
        # One thread draws ahead, one reports norms, one reads: nothing breaks in any order.
        sampler = make(300, 16, seed=17)
        batches: queue.Queue[avare.Batch | None] = queue.Queue(maxsize=4)
        seen: list[float] = []
        steps = 200 if not numba.config.DISABLE_JIT else 10

        def draw() -> None:
            for _ in range(steps):
                batches.put(sampler.sample())
            batches.put(None)

        def report() -> None:
            while (batch := batches.get()) is not None:
                sampler.update(batch.indices, norms_at(1, batch.indices))
            seen.append(sampler.gain)

        def read() -> None:
            for _ in range(20 if not numba.config.DISABLE_JIT else 3):
                assert np.isclose(sampler.probabilities().sum(), 1.0)
                sampler.state_dict()
                check_structures(pickle.loads(pickle.dumps(sampler)))
            seen.append(0.0)

        threads = [threading.Thread(target=target) for target in (draw, report, read)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 2 and max(seen) > 0.0 and sampler.steps == steps
        check_structures(sampler)

    def test_gain_is_estimated_from_the_draws(self, make: Make, replacement: bool) -> None:
        norms = np.exp(np.linspace(-3.0, 3.0, 200))
        sampler = make(200, 10, replacement=replacement, seed=12)
        gains = []
        for step in range(3000 if not numba.config.DISABLE_JIT else 60):
            batch = sampler.sample()
            sampler.update(batch.indices, norms[batch.indices])
            if step > 50:
                gains.append(math.log(sampler.gain))
        if len(gains) > 1000:
            true = avare.diagnostics.gain(norms) / (
                1 + avare.diagnostics.relative_error(norms, sampler.probabilities())
            )
            # A running mean over about 100 batches of 10: 0.1 is about six standard errors of its own mean.
            assert math.exp(float(np.mean(gains[-1000:]))) == pytest.approx(float(true), rel=0.1)

    def test_repr_shows_the_arguments(self, make: Make) -> None:
        text = repr(make(40, 6))
        assert "n=40" in text and "batch_size=6" in text

    @pytest.mark.parametrize("steps", [2_500, pytest.param(100_000, marks=pytest.mark.slow)])
    def test_nothing_drifts(self, make: Make, steps: int) -> None:
        sampler = make(30, 2, seed=13)
        generator = np.random.default_rng(14)
        news = np.exp(generator.normal(0.0, 2.0, (1000, 2))) * (generator.random((1000, 2)) > 0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LimitWarning)
            for step in range(steps if not numba.config.DISABLE_JIT else 300):
                batch = sampler.sample()
                sampler.update(batch.indices, news[step % 1000])
        check_structures(sampler)
        twin = make(30, 2)
        twin.load_state_dict(sampler.state_dict())  # computes all sums again
        assert np.allclose(sampler.probabilities(), twin.probabilities(), rtol=1e-12, atol=0)
        assert np.isclose(sampler.probabilities().sum(), 1.0, rtol=0, atol=1e-12)

    def test_says_what_it_cannot_do(self, make: Make) -> None:
        for way in (True, False):
            if way not in ways(make):
                with pytest.raises(ValueError, match=f"replacement = {way}: .* draws with"):
                    make(10, 2, replacement=way)
        if False in ways(make):
            with pytest.raises(ValueError, match="batch_size = 11: must be at most n = 10 without replacement"):
                make(10, 11, replacement=False)

    @pytest.mark.parametrize("batch_size", [1, 7])
    def test_kernels_and_methods_give_the_same_iterates(
        self, compiled: Make, replacement: bool, batch_size: int
    ) -> None:
        problem = linear_models.make("Logistic")
        n, sizes = problem.n, avare.schedules.inverse_time(problem.n, problem.smoothness.max(), 0.7, batch_size)
        found = []
        for each in (problem, linear_models.plainly(problem)):
            sampler = compiled(n, batch_size, replacement=replacement, seed=18)
            found.append((avare.sgd(each, sampler, sizes, epochs=2, evaluate="never"), sampler))
        (fast, sampler), (slow, other) = found
        assert fast.compiled and not slow.compiled
        assert np.array_equal(fast.x, slow.x) and np.any(fast.x != 0.0)
        assert snapshot(sampler) == snapshot(other)
        check_structures(sampler)
