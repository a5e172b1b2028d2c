"""Kernels that a sampler brings, from outside the package: one file, in the compiled loop and under all checks."""

import threading
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.samplers import Sampler, register, register_kernels, registry
from avare.samplers.kernels import can_learn, kernel, learn_nothing, next_uniform
from avare.state import Field, Fields
from linear_models import make
from sampler_checks import Make, SamplerChecks, by_name


class Lopsided(Sampler):
    """Draw from the first half of the examples with a given share, and count the norms of each half."""

    with_replacement_only = True
    hyperparameters = ("share",)

    def __init__(
        self, n: int, batch_size: int = 128, *, share: float, replacement: bool = True, seed: Any = None
    ) -> None:
        super().__init__(n, batch_size, replacement=replacement, seed=seed)
        self._share = share
        self._totals = np.zeros(2)

    def compute_probabilities(self) -> NDArray[np.float64]:
        first = self.n // 2
        if first == 0:
            return np.ones(self.n)
        return np.where(np.arange(self.n) < first, self._share / first, (1.0 - self._share) / (self.n - first))

    @property
    def kernels(self) -> "LopsidedState":
        return LopsidedState(self.n, self._share, self._totals)

    def fields(self) -> Fields:
        return {"totals": Field(np.float64, (2,), at_least=0.0)}


class LopsidedState(NamedTuple):
    n: int
    share: float
    totals: NDArray[np.float64]


@kernel
def draw(state: Any, step: Any, source: Any, indices: Any, probabilities: Any, weights: Any) -> None:
    half = state.n // 2
    for j in range(len(indices)):
        first, size, share = half, state.n - half, 1.0 - state.share
        if half > 0 and next_uniform(source) < state.share:
            first, size, share = 0, half, state.share
        indices[j] = first + int(next_uniform(source) * size)
        probabilities[j] = share / size if half > 0 else 1.0
        weights[j] = 1.0 / (len(indices) * probabilities[j])


@kernel
def learn(state: Any, indices: Any, norms: Any) -> None:
    for j in range(len(indices)):
        state.totals[1 if indices[j] >= state.n // 2 else 0] += min(norms[j], 1e140)


register_kernels(LopsidedState, draw=draw, learn=learn)


@pytest.fixture(autouse=True, scope="module")
def registered() -> Any:
    """The sampler under its name, while these tests run."""
    register(example=lambda n: {"share": 0.3})(Lopsided)
    yield
    for each in (registry._KINDS, registry._EXAMPLES):
        del each["Lopsided"]


def lopsided(n: int, batch_size: int = 128, **arguments: Any) -> Sampler:
    return Lopsided(n, batch_size, **{"share": 0.3, **arguments})


class TestLopsided(SamplerChecks):
    samplers: ClassVar[dict[str, Make]] = {"Lopsided": lopsided}


def test_it_is_known_by_its_name() -> None:
    assert "Lopsided" in avare.samplers.names()
    problem = make("Logistic")
    sampler = avare.samplers.build("Lopsided", problem, 5, share=0.5, seed=0)
    assert isinstance(sampler, Lopsided) and sampler.replacement and sampler.n == problem.n
    assert type(by_name("Lopsided")(10, 2)) is Lopsided
    run = avare.sgd(problem, sampler, 0.01, epochs=2)
    assert run.compiled and run.trace.objective[-1] < run.trace.objective[0]
    assert sampler._totals.min() > 0.0


def test_without_a_compiled_learn_it_runs_in_the_plain_loop() -> None:
    class Counting(avare.Sampler):
        def __init__(self, n: int) -> None:
            super().__init__(n, 3, replacement=True, seed=0)
            self.received = 0

        def compute_probabilities(self) -> NDArray[np.float64]:
            return np.full(self.n, 1.0 / self.n)

        @property
        def kernels(self) -> "State":
            return State(self.n)

        def learn(self, indices: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
            self.received += len(norms)

    class State(NamedTuple):
        n: int

    @kernel
    def draw(state: Any, step: Any, source: Any, indices: Any, probabilities: Any, weights: Any) -> None:
        for j in range(len(indices)):
            indices[j] = int(next_uniform(source) * state.n)
            probabilities[j], weights[j] = 1.0 / state.n, state.n / len(indices)

    register_kernels(State, draw=draw)
    problem = make("Logistic")
    sampler = Counting(problem.n)
    assert not can_learn(sampler.kernels)
    run = avare.sgd(problem, sampler, 0.01, steps=7)
    assert not run.compiled and sampler.received == 21


def test_a_sampler_that_learns_nothing() -> None:
    sampler = avare.Uniform(10, 2, seed=0)
    assert can_learn(sampler.kernels) and learn_nothing(sampler.kernels, np.zeros(1, int), np.ones(1)) is None
    before = sampler.probabilities()
    sampler.update([0, 1], [1.0, 5.0])
    assert np.array_equal(sampler.probabilities(), before)


def test_a_sampler_without_any_way_to_draw_says_so() -> None:
    class Nothing(avare.Sampler):
        def compute_probabilities(self) -> NDArray[np.float64]:
            return np.full(self.n, 1.0 / self.n)

    sampler = Nothing(10, 2, replacement=True, seed=0)
    with pytest.raises(NotImplementedError, match="Nothing must define draw, or kernels"):
        sampler.sample()
    sampler.update([0], [1.0])  # ignored


class Counted(avare.Sampler):
    """Uniform draws that count, with every kind of attribute."""

    def __init__(self, n: int, batch_size: int = 2, *, seed: Any = None) -> None:
        super().__init__(n, batch_size, replacement=True, seed=seed)
        self.counts = np.zeros(n)
        self._uniform = np.full(n, 1.0 / n)
        self.declared: Fields = {"counts": Field(np.float64, (n,), at_least=0.0), "uniform": None}

    def compute_probabilities(self) -> NDArray[np.float64]:
        return self._uniform.copy()

    def draw(self, size: int) -> avare.Batch:
        indices = self.generator.integers(self.n, size=size)
        np.add.at(self.counts, indices, 1.0)
        p = self._uniform[indices]
        return avare.Batch(indices, avare.batch_weights(p, replacement=True), p)

    def fields(self) -> Fields:
        return self.declared


def test_a_field_is_an_attribute_with_or_without_an_underscore() -> None:
    sampler, other = Counted(5, seed=0), Counted(5)
    for _ in range(7):
        sampler.sample()
    state = sampler.state_dict()
    assert "uniform" not in state
    other.load_state_dict(state)
    assert np.array_equal(other.counts, sampler.counts) and other.counts.sum() == 14.0
    assert other.sample().indices.tolist() == sampler.sample().indices.tolist()


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2),
        np.random.default_rng(0),
        avare.structures.Buckets(np.ones(2)),
        [np.zeros(2)],
        (1, np.zeros(2)),
        {"a": np.zeros(2)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_array_that_is_not_declared_is_an_error(value: Any) -> None:
    sampler = Counted(5)
    sampler._more = value  # type: ignore[attr-defined]  # the point
    with pytest.raises(TypeError, match=r"Counted\._more holds arrays, but fields\(\) does not declare it: declare it"):
        sampler.state_dict()
    sampler._more = [1, "text", None]  # type: ignore[attr-defined]
    sampler.state_dict()
    sampler.declared = {}
    with pytest.raises(TypeError, match=r"Counted\.counts holds arrays"):
        sampler.state_dict()


def test_the_gain_waits_for_a_compiled_loop() -> None:
    sampler = avare.Uniform(10, 2, seed=0)
    done = threading.Event()

    def use() -> None:
        assert np.isnan(sampler.gain)
        done.set()

    thread = threading.Thread(target=use)

    def loop(*_: object) -> int:
        thread.start()
        assert not done.wait(0.1)  # seconds: long enough for two calls
        return 3

    assert sampler.drive(loop, 7) == 3 and sampler.steps == 4  # the batch of the fourth step was drawn
    thread.join()
    assert done.is_set()
