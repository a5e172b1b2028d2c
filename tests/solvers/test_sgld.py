"""SGLD: chains, thinning, weighted averages, ArviZ, resuming. Its law is tested in tests/statistical."""

import os
import pickle
import signal
import sys
import threading
from typing import Any

import arviz
import numpy as np
import pytest
from scipy import sparse

import avare
from avare.problems import Generic, LeastSquares
from avare.solvers import Chain, DivergenceWarning, Progress
from avare.solvers.arguments import sizes_of
from avare.solvers.estimators.plain import PlainEstimator
from avare.solvers.loop import Loop, Monitoring, run_loops
from avare.solvers.metric import diagonal
from avare.solvers.sgld import Langevin
from avare.solvers.steps import Steps
from linear_models import N, make, plainly

SIZES = avare.schedules.polynomial(1e-3, 5.0, 0.4)
pytestmark = pytest.mark.filterwarnings("ignore::avare.solvers.ConvergenceWarning")  # most chains here are short


def sgld(*arguments: Any, **options: Any) -> Chain:
    return avare.sgld(*arguments, **{"chains": 1, **options})


def test_burn_in_and_thinning_select_from_the_same_iterates() -> None:
    problem = make("Logistic")

    def chain(**options: Any) -> Chain:
        return sgld(problem, avare.Avare(N, 5, seed=1), SIZES, steps=50, seed=4, **options)

    every = chain()
    some = chain(burn_in=7, thin=5)
    assert np.array_equal(some.draws[0], every.draws[0, 11::5]) and len(some.draws[0]) == 8
    assert np.array_equal(some.step_sizes, every.step_sizes[11::5])
    none = chain(burn_in=50)
    assert none.draws.shape == (1, 0, 4) and none.step_sizes.shape == (0,)
    for method in (none.mean, none.std, none.covariance, none.to_arviz):
        with pytest.raises(ValueError, match="no draws were kept in 50 steps"):
            method()


def test_averages_are_weighted_by_step_sizes() -> None:
    chain = sgld(make("Logistic"), avare.Avare(N, 5, seed=1), SIZES, steps=40, chains=2, seed=4)
    draws, weights = chain.draws.reshape(80, 4), np.tile(SIZES(np.arange(1, 41)), 2)
    mean = np.average(draws, axis=0, weights=weights)
    assert np.allclose(chain.mean(), mean) and not np.allclose(chain.mean(), draws.mean(axis=0), rtol=1e-4)
    covariance = np.cov(draws.T, aweights=weights, ddof=0)
    assert np.allclose(chain.covariance(), covariance) and np.allclose(chain.std(), np.sqrt(np.diag(covariance)))
    for q in (0.0, 0.3, 1.0):
        below = [weights[draws[:, k] <= chain.quantile(q)[k]].sum() / weights.sum() for k in range(4)]
        under = [weights[draws[:, k] < chain.quantile(q)[k]].sum() / weights.sum() for k in range(4)]
        assert all(b >= q - 1e-9 for b in below) and all(u < q or q == 0.0 for u in under)
    with pytest.raises(ValueError, match=r"q = 2\.0: must be at most 1"):
        chain.quantile(2.0)


def test_chains_are_independent() -> None:
    problem = make("Logistic")
    sampler = avare.Avare(N, 5, seed=1)
    chains = sgld(problem, sampler, SIZES, steps=30, chains=3, seed=4)
    assert chains.draws.shape == (3, 30, 4) and sampler.steps == 30
    assert len(np.unique(chains.draws[:, 0, 0])) == 3
    again = sgld(problem, avare.Avare(N, 5, seed=1), SIZES, steps=30, chains=3, seed=4)
    assert np.array_equal(chains.draws, again.draws)
    other = sgld(problem, avare.Avare(N, 5, seed=1), SIZES, steps=30, chains=3, seed=5)
    assert not np.array_equal(chains.draws[0], other.draws[0])
    starts = np.arange(12.0).reshape(3, 4)
    apart = sgld(problem, avare.Avare(N, 5, seed=1), 1e-12, steps=1, chains=3, seed=4, start=starts)
    assert np.allclose(apart.draws[:, 0], starts, atol=1e-4)


@pytest.mark.compiled
def test_arviz_accepts_the_draws() -> None:
    chain = sgld(make("Logistic"), avare.Avare(N, 5, seed=1), SIZES, steps=400, chains=4, burn_in=100, thin=2, seed=4)
    data = chain.to_arviz(name="beta", names=["a", "b", "c", "d"])
    assert dict(data.posterior.sizes) == {"chain": 4, "draw": 150, "coefficient": 4}
    assert data.posterior["coefficient"].values.tolist() == ["a", "b", "c", "d"]
    assert data.posterior["chain"].values.tolist() == chain.sound == [0, 1, 2, 3]
    assert chain.to_arviz().posterior["coefficient"].values.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="names has length 2: must match the draws, which has 4"):
        chain.to_arviz(names=["a", "b"])
    assert np.array_equal(data.posterior["beta"].values, chain.draws)
    assert np.array_equal(data.sample_stats["step_size"].values[2], chain.step_sizes)
    summary = arviz.summary(data)
    assert len(summary) == 4 and np.allclose(summary["mean"], chain.draws.mean(axis=(0, 1)), atol=6e-4)
    weighted = chain.to_arviz(resample=True)
    plain, right = chain.draws.mean(axis=(0, 1)), chain.mean()
    assert np.abs(weighted.posterior["x"].values.mean(axis=(0, 1)) - right).max() < np.abs(plain - right).max()


def test_a_missing_arviz_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = sgld(make("Logistic"), avare.Avare(N, 5, seed=1), SIZES, steps=4, seed=4)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="to_arviz needs ArviZ: pip install 'avare\\[arviz\\]'"):
        chain.to_arviz()


def test_the_interface_of_arviz_1_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer:
        __version__ = "1.2.0"

        @staticmethod
        def from_dict(groups: dict[str, Any], coords: Any, dims: Any) -> Any:
            assert list(coords["coefficient"]) == [0, 1, 2, 3] and coords["chain"] == [0]
            assert dims == {"x": ["coefficient"]}
            return groups

    monkeypatch.setitem(sys.modules, "arviz", Newer)
    chain = sgld(make("Logistic"), avare.Avare(N, 5, seed=1), SIZES, steps=4, seed=4)
    groups = chain.to_arviz()
    assert np.array_equal(groups["posterior"]["x"], chain.draws) and groups["sample_stats"]["step_size"].shape == (1, 4)


def test_chains_that_did_not_diverge_are_kept() -> None:
    problem = Generic(
        3, 1, batch_gradient=lambda x, indices, weights: (weights.sum() * x**3, np.full(len(indices), abs(x[0]) ** 3))
    )
    starts, sampler = [[0.0], [1e3], [0.5]], avare.Uniform(3, 1, seed=0)
    with pytest.warns(DivergenceWarning, match="chain 1 diverged at step"):
        chain = sgld(problem, sampler, 0.01, steps=50, burn_in=9, chains=3, start=starts, seed=1)
    assert chain.status == "diverged" and chain.sound == [0, 2] and chain.steps == 50
    assert chain.draws.shape == (2, 41, 1) and np.isfinite(chain.draws).all() and abs(chain.mean()[0]) < 3.0
    assert len(chain.traces) == 3


def test_ctrl_c_ends_all_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both chains reach step 40, one of them presses Ctrl-C, and both wait until it has been noted.
    together, noted, install = threading.Barrier(2), threading.Event(), signal.signal

    def install_and_tell(number: int, handler: Any) -> Any:
        def tell(number: int, frame: Any) -> None:
            handler(number, frame)
            noted.set()

        return install(number, handler if handler is signal.default_int_handler else tell)

    def press(now: Progress) -> None:
        if now.step == 40:
            together.wait(60.0)
            if now.chain == 1:
                os.kill(os.getpid(), signal.SIGINT)
            assert noted.wait(60.0)

    monkeypatch.setattr(signal, "signal", install_and_tell)
    sampler = avare.Avare(N, 5, seed=1)
    with pytest.raises(KeyboardInterrupt, match="interrupted after step 40 of 200000") as caught:
        sgld(make("Logistic"), sampler, SIZES, steps=200_000, chains=2, seed=4, evaluate=20, callback=press)
    chain = caught.value.run  # type: ignore[attr-defined]  # it is `SolverInterrupted`
    assert isinstance(chain, Chain) and chain.status == "interrupted" and chain.steps == 40
    assert chain.draws.shape == (2, 40, 4) and chain.noise is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_a_chain_is_raised_and_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(now: Progress) -> None:
        if now.chain == 1:
            raise RuntimeError("mine")

    sampler, options = avare.Avare(N, 5, seed=1), {"steps": 10**7, "thin": 10**6, "evaluate": 50}
    with pytest.raises(RuntimeError, match="mine"):
        sgld(make("Logistic"), sampler, SIZES, chains=2, callback=fail, **options)


def test_progress_names_the_chains(capsys: pytest.CaptureFixture[str]) -> None:
    sgld(make("Logistic"), avare.Avare(N, 5, seed=1), SIZES, steps=20, chains=2, seed=4, progress=True)
    assert capsys.readouterr().err.startswith("sgld with Avare, 2 chains: step ")


@pytest.mark.compiled
def test_noise_drawn_ahead_is_bounded() -> None:
    class Counting(np.random.Generator):
        def standard_normal(self, size: Any = None, *arguments: Any, **options: Any) -> Any:
            counts.append(int(np.prod(size)))
            return super().standard_normal(size, *arguments, **options)

    counts: list[int] = []
    x = np.zeros(1 << 17)  # 16 steps at once would be twice as many numbers as are allowed
    problem = LeastSquares(sparse.csr_matrix((3, len(x))), np.ones(3), l2=1.0)
    noise = Counting(np.random.PCG64(0))
    update = Langevin().build(diagonal(np.ones(len(x))), noise)
    steps = Steps("sgld", avare.Uniform(3, 3, seed=0), PlainEstimator(problem, x), update)
    run_loops([Loop(steps, Monitoring(), sizes_of(1e-3), 20, noise=noise)])
    assert max(counts) == 1 << 20 and sum(counts) == 20 * len(x)


def test_a_chain_is_plain_data() -> None:
    problem = plainly(make("Logistic"))  # its functions cannot be pickled
    chain = sgld(problem, avare.Avare(N, 5, seed=1), SIZES, steps=40, thin=4, chains=2, seed=4)
    other = pickle.loads(pickle.dumps(chain))
    assert chain.noise is not None and other.warnings == chain.warnings
    assert np.array_equal(other.draws, chain.draws) and np.array_equal(other.noise.widening, chain.noise.widening)
    rest = sgld(problem, avare.Avare(N, 5), SIZES, steps=60, thin=4, chains=2, resume=other.state_dict())
    whole = sgld(problem, avare.Avare(N, 5, seed=1), SIZES, steps=60, thin=4, chains=2, seed=4)
    assert np.array_equal(rest.draws, whole.draws)
    frame = chain.to_frame(["a", "b", "c", "d"])
    assert frame.shape == (20, 5) and frame.index.names == ["chain", "draw"]
    assert frame.loc[(1, 3), "c"] == chain.draws[1, 3, 2] and frame.loc[(1, 3), "step_size"] == chain.step_sizes[3]
    empty = pickle.loads(pickle.dumps(sgld(problem, avare.Avare(N, 5, seed=1), SIZES, steps=2, burn_in=2)))
    assert empty.noise is None and empty.warnings == []


@pytest.mark.compiled
def test_priors_are_the_l2_term() -> None:
    # Almost no data: the law is the prior, a normal of precision l2.
    problem = LeastSquares(np.full((2, 1), 1e-9), [0.0, 0.0], l2=4.0)
    chain = sgld(problem, avare.Uniform(2, 1, seed=0), 0.01, steps=40_000, burn_in=100, seed=1)
    # Over 40,000 steps of 0.01 the mean forgets in 1 / (0.01 * 4) = 25: about 800 independent draws, 2.5 % each;
    # five of those deviations, and 2 % for the step size.
    assert chain.std()[0] == pytest.approx(0.5, rel=0.145)


def test_chains_are_drawn_by_coordinate() -> None:
    chain = sgld(make("Logistic"), avare.Avare(N, 5, seed=1), SIZES, steps=60, chains=3, burn_in=10, seed=4)
    figure = chain.plot()
    assert len(figure.axes) == 2 * 4 and [axis.get_ylabel() for axis in figure.axes[::2]] == [
        f"x[{k}]" for k in range(4)
    ]
    assert [len(axis.lines) for axis in figure.axes[1::2]] == [3] * 4
    assert np.array_equal(figure.axes[3].lines[2].get_ydata(), chain.draws[2, :, 1])
    assert chain.plot(["a", "b", "$c$", "d"]).axes[4].get_ylabel() == r"\$c\$"
    with pytest.raises(ValueError, match="names has length 1"):
        chain.plot(["a"])
    wide = sgld(make("Softmax", bias=True), avare.Avare(N, 5, seed=1), SIZES, steps=20, seed=4)
    assert len(wide.plot().axes) == 12 and "more coordinates are not shown" in wide.plot().get_suptitle()
