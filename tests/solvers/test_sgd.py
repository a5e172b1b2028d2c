"""SGD: the compiled loop, the plain loop, and everything around them."""

import math
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import joblib
import numba
import numpy as np
import pytest
from numpy.typing import NDArray

import avare
from avare.problems import Generic, LeastSquares, Linear, Softmax
from avare.samplers import build
from avare.samplers.kernels import can_learn
from avare.solvers import ConvergenceWarning, DivergenceWarning, Progress, steps
from avare.solvers.trace import COLUMNS
from linear_models import PROBLEMS, N, make, plainly, saved_and_loaded
from sampler_checks import by_name, own_names, ways

COMPILED = [name for name in own_names() if can_learn(by_name(name)(N, 5).kernels)]


def steps_of(problem: Any, batch_size: int = 1) -> avare.schedules.Schedule:
    return avare.schedules.inverse_time(problem.n, problem.smoothness.max(), 0.7, batch_size)


def interrupted(caught: pytest.ExceptionInfo[KeyboardInterrupt]) -> avare.solvers.Run:
    """The result so far that Ctrl-C has left."""
    assert isinstance(caught.value, avare.solvers.SolverInterrupted) and isinstance(caught.value.run, avare.solvers.Run)
    return caught.value.run


def test_these_samplers_compile() -> None:
    assert COMPILED == ["Avare", "Calibrated", "Passes", "Srg", "Static", "Uniform"]


@pytest.mark.parametrize("averaging", ["none", "polyak", "suffix"])
@pytest.mark.parametrize(("name", "replacement"), [(name, way) for name in COMPILED for way in ways(by_name(name))])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_compiled_and_plain_loops_give_the_same_iterates(
    name: str, batch_size: int, replacement: bool, averaging: Any
) -> None:
    found = []
    problem = make("Logistic", sample_weight=np.linspace(0.1, 2.0, N), bias=True)
    for each in (problem, plainly(problem)):
        sampler = build(name, problem, batch_size, replacement=replacement, seed=3)
        run = avare.sgd(each, sampler, steps_of(problem, batch_size), epochs=2, averaging=averaging)
        found.append((run, sampler))
    (fast, sampler), (slow, other) = found
    assert np.array_equal(fast.x, slow.x) and np.array_equal(fast.last, slow.last)
    assert np.any(fast.x != 0.0) and (averaging == "none") == np.array_equal(fast.x, fast.last)
    assert sampler.state_dict()["checksum"] == other.state_dict()["checksum"]
    for column in set(fast.trace.dtype.names) - {"seconds"}:
        assert np.allclose(fast.trace[column], slow.trace[column], rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "csr"), [*((name, False) for name in COMPILED), ("Calibrated", True)])
@pytest.mark.compiled
def test_a_run_can_be_resumed_in_the_other_loop(name: str, csr: bool) -> None:
    problem = make("Logistic", csr=csr)
    both = (problem, plainly(problem))

    def run(kind: Any, steps: int, **options: Any) -> avare.solvers.Run:
        sampler = build(name, problem, 6, seed=None if options else 5)
        return avare.sgd(kind, sampler, steps_of(problem, 6), steps=steps, averaging="polyak", **options)

    whole = run(problem, 80)
    for first, second in (both, both[::-1]):
        rest = run(second, 80, resume=run(first, 40).state_dict())
        assert np.array_equal(whole.x, rest.x) and np.array_equal(whole.last, rest.last)


@pytest.mark.parametrize("name", ["Softmax", "LeastSquares"])
def test_wide_rows_are_the_same_in_both_loops(name: str) -> None:
    if numba.config.DISABLE_JIT:
        pytest.skip("minutes without compiled code; the compiled run tests it")
    generator = np.random.default_rng(8)
    X = generator.normal(size=(30, 521)).astype(np.float32)  # a tile of columns, and nine more
    y = np.arange(30) % 3
    problem = (Softmax if name == "Softmax" else LeastSquares)(X, y, l2=0.7)
    runs = [
        avare.sgd(each, avare.Avare(30, 6, seed=4), 1e-4, steps=20, evaluate="never")
        for each in (problem, plainly(problem))
    ]
    assert np.array_equal(runs[0].x, runs[1].x) and np.any(runs[0].x != 0.0)


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_the_same_in_both_loops(name: str, csr: bool) -> None:
    problem = make(name, csr=csr)
    runs = [
        avare.sgd(each, avare.Avare(N, 6, p_min=0.2 / N, seed=4), steps_of(problem, 6), epochs=3)
        for each in (problem, plainly(problem))
    ]
    assert np.array_equal(runs[0].x, runs[1].x)
    assert runs[0].trace.objective[-1] < 0.9 * runs[0].trace.objective[0]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("batch_size", [1, 128])
@pytest.mark.parametrize("name", PROBLEMS)
def test_converges(name: str, batch_size: int, replacement: bool) -> None:
    if numba.config.DISABLE_JIT:
        pytest.skip("minutes without compiled code; the compiled run tests it")
    problem = make(name, n=1000)
    optimum = problem.minimize()
    sampler = avare.Avare(1000, batch_size, replacement=replacement, seed=5)
    run = avare.sgd(problem, sampler, steps_of(problem, batch_size), epochs=150)
    left = run.trace.suboptimality
    # Theory: after t steps of m / (2NL + m mu t), f - f* is at most of the order L sigma^2 / (mu^2 t m), and of
    # the remaining initial error. A thousandth of the initial one is far below either, and far above rounding.
    assert 0.0 <= left[-1] < 1e-3 * left[0]
    assert np.linalg.norm(run.x - optimum) < 0.1 * np.linalg.norm(optimum)
    if batch_size == 1:  # with 128 there are 1050 steps, too few for norms to settle
        assert run.trace.relative_error[-1] < 0.25 * (run.trace.relative_error[0] + 1e-3)


@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
@pytest.mark.parametrize("name", own_names())
def test_every_sampler_runs(name: str) -> None:
    problem = make("Logistic")
    run = avare.sgd(problem, build(name, problem, 5, seed=6), steps_of(problem, 5), epochs=5)
    assert run.status == "finished" and run.steps == 150
    assert run.trace.objective[-1] < run.trace.objective[0]
    assert np.isfinite(run.trace.relative_error).all() and np.isfinite(run.trace.regret).all()


def test_the_oracle_receives_the_true_norms() -> None:
    problem = make("Logistic")
    sampler = avare.Optimal(N, 5, replacement=True, seed=6)
    run = avare.sgd(problem, sampler, steps_of(problem, 5), epochs=3)
    assert np.abs(run.trace.relative_error).max() < 1e-9


def test_safe_receives_the_path() -> None:
    problem = make("Logistic")
    sampler = avare.Safe(N, 5, smoothness=problem.smoothness, seed=6)
    run = avare.sgd(problem, sampler, steps_of(problem, 5), epochs=8)
    low, high = sampler.bounds()
    norms = problem.norms(run.x)
    assert (low <= norms + 1e-9).all() and (norms <= high + 1e-9).all() and (high > low).any()


def test_the_trace_agrees_with_the_diagnostics() -> None:
    problem = make("Huber")
    problem.minimize()
    sampler = avare.Avare(N, 5, seed=7)
    seen: list[tuple[float, ...]] = []

    def look(now: Progress) -> None:
        norms, p = problem.norms(now.x), sampler.probabilities()
        cost, least = avare.diagnostics.cost(norms, p), avare.diagnostics.optimal_cost(norms)
        seen.append((now.step, problem.objective(now.x), float(cost), float(least), sampler.gain))
        assert now.sampler is sampler and len(now.trace) == len(seen) and now.chain == 0
        with pytest.raises(ValueError, match="read-only"):
            now.x[0] = 1.0

    run = avare.sgd(problem, sampler, steps_of(problem, 5), epochs=4, callback=look)
    assert problem.optimum is not None
    step, objective, cost, least, gain = map(np.array, zip(*seen, strict=True))
    assert np.array_equal(run.trace.step, step) and step.tolist() == [0, 30, 60, 90, 120]
    assert run.trace.epoch.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]  # exactly, although 30 steps are not quite a pass
    assert np.allclose(run.trace.objective, objective, rtol=1e-12)
    assert np.allclose(run.trace.suboptimality, objective - problem.optimum, rtol=1e-9)
    assert np.allclose(run.trace.cost, cost, rtol=1e-9) and np.allclose(run.trace.optimal_cost, least, rtol=1e-9)
    assert np.allclose(run.trace.relative_error, cost / least - 1.0, rtol=1e-9)
    assert np.allclose(run.trace.regret, np.cumsum(cost - least), rtol=1e-9)
    assert np.array_equal(run.trace.gain, gain, equal_nan=True)
    assert (np.diff(run.trace.seconds) > 0.0).all() and run.trace.seconds[-1] == run.seconds
    assert run.trace.objective[-1] == pytest.approx(problem.objective(run.x))


@pytest.mark.parametrize(
    ("evaluate", "expected"),
    [
        ("epoch", [0, 15, 30]),
        ("never", []),
        (7, [0, 7, 14, 21, 28, 30]),
        (np.int64(30), [0, 30]),
        ([3, 3, 30, 0], [0, 3, 30]),
        (range(4, 7), [4, 5, 6]),
        ([], []),
    ],
)
def test_evaluates_at_the_requested_steps(evaluate: Any, expected: list[int]) -> None:
    problem = make("Logistic")
    run = avare.sgd(problem, avare.Uniform(N, 10, seed=0), 0.01, epochs=2, evaluate=evaluate)
    assert run.trace.step.tolist() == expected
    assert np.isnan(run.trace.suboptimality).all()
    problem.optimum = 1.5
    again = avare.sgd(problem, avare.Uniform(N, 10, seed=0), 0.01, steps=30, evaluate=evaluate)
    assert np.array_equal(again.x, run.x)  # evaluations change nothing
    assert np.allclose(again.trace.suboptimality, again.trace.objective - 1.5)


def test_averages() -> None:
    problem, iterates = make("LeastSquares"), []
    avare.sgd(
        problem,
        avare.Avare(N, 3, seed=8),
        1e-3,
        steps=21,
        evaluate=1,
        callback=lambda now: iterates.append(now.x.copy()),
    )
    t = np.arange(1.0, 22.0)
    recent = t * (t + 1.0) * (t + 2.0)  # what the recursion with (3 + 1) / (t + 3) gives
    for averaging, weights in (("polyak", t**0), ("suffix", t > 10.0), ("recent", recent)):
        run = avare.sgd(problem, avare.Avare(N, 3, seed=8), 1e-3, steps=21, averaging=averaging)  # type: ignore[arg-type]  # one of them
        assert np.allclose(run.x, weights @ np.array(iterates[1:]) / weights.sum(), rtol=1e-9)
        assert np.array_equal(run.last, iterates[-1])
        assert run.trace.objective[-1] == pytest.approx(problem.objective(run.x))
        assert run.trace.cost[-1] != pytest.approx(problem.evaluate(run.x, np.full(N, 1 / N))[2])
    short = avare.sgd(
        problem,
        avare.Avare(N, 3, seed=8),
        1e-3,
        steps=21,
        averaging="suffix",
        evaluate=3,
        callback=lambda now: now.step == 9,
    )
    assert np.array_equal(short.x, iterates[9])  # the second half had not begun


def test_step_sizes_may_be_numbers_schedules_or_functions() -> None:
    problem = make("Logistic")
    seen = []

    def function(t: int) -> float:
        seen.append(t)
        return 0.01

    runs = [
        avare.sgd(problem, avare.Avare(N, 5, seed=1), size, epochs=2)
        for size in (0.01, avare.schedules.constant(0.01), function, np.float64(0.01))
    ]
    assert all(np.array_equal(run.x, runs[0].x) for run in runs)
    assert seen == list(range(1, 61))


@pytest.mark.parametrize("way", [lambda problem: problem, plainly])
def test_divergence_is_reported_and_the_run_returned(way: Callable[[Linear], Any]) -> None:
    problem = way(make("LeastSquares"))
    with pytest.warns(DivergenceWarning, match=r"diverged at step (\d+), of size 1e\+06: the gradient is not finite"):
        run = avare.sgd(problem, avare.Avare(N, 5, seed=1), 1e6, epochs=20, evaluate=[0, 3])
    assert run.status == "diverged" and 0 < run.steps < 600
    assert f"step {run.steps + 1}," in run.message
    assert np.isfinite(run.x).all() and len(run.trace) > 1


def test_an_infinite_objective_is_divergence_too() -> None:
    problem = Generic(
        3,
        1,
        batch_gradient=lambda x, indices, weights: (np.ones(1), np.ones(len(indices))),
        objective=lambda x: math.inf if x[0] < -2.0 else 1.0,
    )
    with pytest.warns(DivergenceWarning, match="diverged at step 3, of size 1: the objective is not finite"):
        run = avare.sgd(problem, avare.Uniform(3, 1, seed=0), 1.0, steps=10, evaluate=1)
    assert run.status == "diverged" and run.steps == 3 and run.x[0] == -3.0


@pytest.mark.compiled
def test_ctrl_c_between_evaluations_and_resuming() -> None:
    problem = make("Logistic")
    pressed: list[int] = []

    def sizes(step: int) -> float:
        if step == 500 and not pressed:
            pressed.append(step)
            os.kill(os.getpid(), signal.SIGINT)
        return 1.0 / (900.0 + step)

    with pytest.raises(KeyboardInterrupt) as caught:
        avare.sgd(problem, avare.Avare(N, 5, seed=2), sizes, steps=10**9, evaluate="never")
    run = interrupted(caught)
    assert run.status == "interrupted" and 500 <= run.steps < 10**6 and len(run.trace) == 0
    until = run.steps + 77
    rest = avare.sgd(problem, avare.Avare(N, 5), sizes, steps=until, evaluate="never", resume=run.state_dict())
    whole = avare.sgd(problem, avare.Avare(N, 5, seed=2), sizes, steps=until, evaluate="never")
    assert np.array_equal(rest.x, whole.x) and rest.status == "finished"


def test_norms_that_are_not_finite_are_a_divergence() -> None:
    problem = Generic(
        3,
        1,
        batch_gradient=lambda x, indices, weights: (np.ones(1), np.ones(len(indices))),
        norms=lambda x: np.full(3, math.inf if x[0] < -2.0 else 1.0),
    )
    with pytest.warns(DivergenceWarning, match="diverged at step 3, of size 1: the sum of norms is not finite"):
        run = avare.sgd(problem, avare.Uniform(3, 1, seed=0), 1.0, steps=10, evaluate=1)
    assert run.status == "diverged" and run.steps == 3


def test_ctrl_c_ends_a_run_after_the_current_steps() -> None:
    problem = make("Logistic")
    before = signal.getsignal(signal.SIGINT)

    def press(now: Progress) -> None:
        if now.step == 60:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:  # which ends the loop of the caller too
        avare.sgd(problem, avare.Avare(N, 5, seed=2), 0.01, epochs=100, callback=press)
    run = interrupted(caught)
    assert run.status == "interrupted" and run.steps == 60
    assert run.message == "interrupted after step 60 of 3000"
    assert signal.getsignal(signal.SIGINT) is before

    def press_twice(now: Progress) -> None:
        press(now)
        press(now)

    with pytest.raises(KeyboardInterrupt):
        avare.sgd(problem, avare.Avare(N, 5, seed=2), 0.01, epochs=100, callback=press_twice)
    assert signal.getsignal(signal.SIGINT) is before


def test_runs_in_another_thread() -> None:
    problem, found = make("Logistic"), []
    thread = threading.Thread(
        target=lambda: found.append(avare.sgd(problem, avare.Avare(N, 5, seed=2), 0.01, epochs=2))
    )
    thread.start()
    thread.join()
    assert found[0].status == "finished"


@pytest.mark.parametrize("way", ["pickle", "savez"])
@pytest.mark.parametrize("averaging", ["none", "polyak", "suffix"])
@pytest.mark.parametrize("name", [*COMPILED, "Vrb"])
@pytest.mark.filterwarnings("ignore::avare.samplers.LimitWarning")
@pytest.mark.compiled
def test_resumes_to_the_same_iterates(name: str, averaging: Any, way: str) -> None:
    problem = make("Softmax")
    options = {"steps": 90, "evaluate": 9, "averaging": averaging}

    def run(stop: int | None = None, resume: Any = None) -> Any:
        sampler = build(name, problem, 5, seed=None if resume else 9)
        return avare.sgd(
            problem, sampler, steps_of(problem, 5), **options, resume=resume, callback=lambda now: now.step == stop
        )

    whole = run()
    for stop in (0, 27, 45, 54, 90):
        part = run(stop)
        assert part.status == "stopped" and part.steps == stop
        rest = run(resume=saved_and_loaded(part.state_dict(), way))
        assert rest.status == "finished" and rest.steps == 90
        assert np.array_equal(rest.x, whole.x) and np.array_equal(rest.last, whole.last)
        for column in set(whole.trace.dtype.names) - {"seconds"}:
            assert np.array_equal(rest.trace[column], whole.trace[column], equal_nan=True)
        assert (np.diff(rest.trace.seconds) >= 0.0).all()


def test_a_finished_run_can_be_continued() -> None:
    problem = make("Logistic")
    whole = avare.sgd(problem, avare.Avare(N, 5, seed=9), 0.01, epochs=4)
    half = avare.sgd(problem, avare.Avare(N, 5, seed=9), 0.01, epochs=2)
    rest = avare.sgd(problem, avare.Avare(N, 5), 0.01, epochs=4, resume=half.state_dict())
    assert np.array_equal(whole.x, rest.x) and np.array_equal(whole.trace.step, rest.trace.step)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: [], "resume is of type list"),
        (lambda state: {}, "resume lacks 'method'"),
        (lambda state: {**state, "method": "sgld"}, "resume\\['method'\\] = 'sgld'"),
        (lambda state: {key: value for key, value in state.items() if key != "x"}, "resume lacks 'x'"),
        (lambda state: {**state, "dim": 5}, "resume\\['dim'\\] = 5: this run has 4"),
        (lambda state: {**state, "step": 31}, "resume\\['step'\\] = 31: must be an integer from 0 to 30"),
        (lambda state: {**state, "x": np.full(4, np.nan)}, "resume\\['x'\\]\\[0\\] = nan"),
        (lambda state: {**state, "record/mean": np.zeros(4)}, "resume\\['record/mean'\\] has shape \\(4,\\)"),
        (lambda state: {**state, "draws": np.zeros((1, 4))}, "resume\\['draws'\\] has shape \\(1, 4\\)"),
        (lambda state: {**state, "rows": state["rows"] + 0.5}, "resume\\['rows'\\]\\[:, 0\\]\\[0\\] = 0.5"),
        (lambda state: {**state, "x": 7.5 * state["x"]}, "resume\\['checksum'\\]"),
        (lambda state: {**state, "step": 29}, "resume\\['rows'\\]|resume\\['checksum'\\]"),
        (lambda state: {**state, "seconds": np.nan}, "resume\\['seconds'\\] = nan"),
        (lambda state: {**state, "n": np.zeros(3)}, "resume\\['n'\\]"),
        (lambda state: {key: each for key, each in state.items() if key != "checksum"}, "resume lacks 'checksum'"),
        (lambda state: {**state, "sampler/steps": 3}, "checksum"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: Callable[[Any], Any], message: str) -> None:
    problem = make("Logistic")
    state = avare.sgd(problem, avare.Avare(N, 5, seed=9), 0.01, epochs=1).state_dict()
    sampler = avare.Avare(N, 5, seed=1)
    with pytest.raises((TypeError, ValueError), match=message):
        avare.sgd(problem, sampler, 0.01, epochs=1, resume=change(state))
    assert sampler.steps == 0


def test_no_state_after_the_sampler_has_drawn_again() -> None:
    sampler = avare.Avare(N, 5, seed=9)
    run = avare.sgd(make("Logistic"), sampler, 0.01, epochs=1)
    sampler.sample()
    with pytest.raises(ValueError, match="the sampler has drawn 1 batches since"):
        run.state_dict()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"problem": 3}, TypeError, "problem is of type int"),
        ({"sampler": 3.0}, TypeError, "sampler is of type float"),
        ({"sampler": avare.Avare(7, 1)}, ValueError, "sampler has n = 7: must match the problem's 150"),
        ({"step_size": "1"}, TypeError, "step_size = '1'"),
        ({"step_size": True}, TypeError, "step_size = True"),
        ({"step_size": -1.0}, ValueError, "step_size = -1.0: must be above 0"),
        ({"step_size": lambda t: "a"}, TypeError, r"step_size\(1\) = 'a': must be one number for each step"),
        ({"step_size": lambda t: None}, TypeError, r"step_size\(1\) = None: must be one number for each step"),
        ({"step_size": lambda t: lambda u: u}, TypeError, r"step_size\(1\) = <function .*: must be one number"),
        ({"step_size": lambda t: np.ones((2, 2))}, TypeError, "must be one number for each step"),
        ({"step_size": lambda t: 1j}, TypeError, r"step_size\(1\) = 1j: must be one number for each step"),
        ({"step_size": lambda t: 2.0 - t}, ValueError, r"step_size\(3\) = -1.0: must be finite"),
        ({"epochs": -1}, ValueError, "epochs = -1"),
        ({"epochs": 2, "steps": 3}, ValueError, "epochs = 2 and steps = 3: pass only one"),
        ({"steps": 1.5}, TypeError, "steps = 1.5"),
        ({"start": [1.0]}, ValueError, r"start has shape \(1,\): must be \(4,\)"),
        ({"start": [1.0, math.nan, 0.0, 0.0]}, ValueError, r"start\[1\] = nan"),
        ({"averaging": "mean"}, ValueError, "averaging = 'mean'"),
        ({"evaluate": "often"}, ValueError, "evaluate = 'often'"),
        ({"evaluate": 0}, ValueError, "evaluate = 0"),
        ({"evaluate": [1.5]}, TypeError, "evaluate has dtype float64"),
        ({"evaluate": [31], "epochs": 1}, ValueError, r"evaluate\[0\] = 31: must be in \[0, 31\)"),
        ({"progress": 1}, TypeError, "progress = 1"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"problem": make("Logistic"), "sampler": avare.Avare(N, 5, seed=0), "step_size": 0.01, **arguments}
    positional = [given.pop(name) for name in ("problem", "sampler", "step_size")]
    with pytest.raises(error, match=message):
        avare.sgd(*positional, **given)


def test_no_steps_at_all() -> None:
    problem = make("Logistic")
    run = avare.sgd(problem, avare.Avare(N, 5, seed=0), 0.01, epochs=0, start=np.ones(4))
    assert run.x.tolist() == [1.0] * 4 and run.trace.step.tolist() == [0]
    assert repr(run).startswith("Run(finished after 0 steps in 0 s, objective ")
    assert avare.sgd(problem, avare.Avare(N, 5, seed=0), 0.01, epochs=0, evaluate="never").trace.shape == (0,)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    avare.sgd(make("Logistic"), avare.Avare(N, 5, seed=0), 0.01, epochs=3, progress=True)
    line = capsys.readouterr().err
    assert line.startswith("sgd with Avare: step 90 of 90, objective ") and line.endswith("s]\n")


def test_your_own_sampler_runs_in_the_plain_loop() -> None:
    class Favourite(avare.Sampler):
        def __init__(self) -> None:
            super().__init__(N, 2, replacement=True, seed=0)

        def draw(self, size: int) -> avare.Batch:
            return avare.Batch(np.array([0, 1]), np.ones(2), np.full(2, 1 / N))

        def compute_probabilities(self) -> NDArray[np.float64]:
            return np.full(N, 1 / N)

    problem = make("Logistic")
    run = avare.sgd(problem, Favourite(), 0.01, steps=3)
    x = np.zeros(4)
    for _ in range(3):
        x = x - 0.01 * (problem.batch_gradient(x, [0, 1], [1.0, 1.0])[0] + 0.7 * x)
    assert np.allclose(run.x, x, rtol=1e-12)


def test_a_run_is_plain_data() -> None:
    problem, options = make("Logistic"), {"steps": 20, "averaging": "polyak"}
    sampler = avare.Avare(N, 5, seed=9)
    run = avare.sgd(problem, sampler, 0.01, steps=10, averaging="polyak")
    other = pickle.loads(pickle.dumps(run))
    sampler.sample()  # the copy does not mind
    assert np.array_equal(other.x, run.x) and other.status == "finished" and repr(other) == repr(run)
    assert other.solver == "sgd" and other.trace.objective[-1] == run.trace.objective[-1]
    rest = avare.sgd(problem, avare.Avare(N, 5), 0.01, resume=other.state_dict(), **options)  # type: ignore[arg-type]  # of several types
    assert np.array_equal(rest.x, avare.sgd(problem, avare.Avare(N, 5, seed=9), 0.01, **options).x)  # type: ignore[arg-type]  # of several types
    frame = run.to_frame()
    assert list(frame.columns) == list(COLUMNS) and frame["objective"].iloc[-1] == run.trace.objective[-1]


def test_runs_come_back_from_other_processes() -> None:
    problem, options = make("Logistic"), {"epochs": 2, "tol": 0.0, "batch_size": 5}
    jobs = [joblib.delayed(avare.saga)(problem, "Uniform", seed=seed, **options) for seed in (1, 2)]
    for seed, run in zip((1, 2), joblib.Parallel(n_jobs=2)(jobs), strict=True):
        assert np.array_equal(run.x, avare.saga(problem, "Uniform", seed=seed, **options).x)  # type: ignore[arg-type]  # of several types


def test_a_run_is_drawn_over_epochs_and_seconds() -> None:
    problem = make("Logistic")
    run = avare.sgd(problem, avare.Avare(N, 5, seed=1), steps_of(problem, 5), epochs=3)
    axes = run.plot().axes
    assert [axis.get_xlabel() for axis in axes] == ["Epochs", "Seconds of steps"]
    assert run.plot().get_suptitle() == "Objective  f(x), Avare"
    problem.minimize()
    run = avare.sgd(problem, avare.Avare(N, 5, seed=1), steps_of(problem, 5), epochs=3)
    figure = run.plot()
    assert figure.get_suptitle() == "Suboptimality  f(x) − f*, Avare"
    for axis, along in zip(figure.axes, (run.trace.epoch, run.trace.seconds), strict=True):
        (line,) = axis.lines
        assert axis.get_yscale() == "log" and np.array_equal(line.get_xdata(), along)
        assert np.array_equal(line.get_ydata(), run.trace.suboptimality)
    with pytest.raises(ValueError, match="there is nothing to draw: the run was not evaluated"):
        avare.sgd(problem, avare.Avare(N, 5, seed=1), 1e-9, epochs=1, evaluate="never").plot()


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
def test_a_loop_is_compiled_once() -> None:
    problem, before = make("Huber"), len(steps.advance.signatures)
    avare.sgd(problem, avare.Uniform(N, 3, seed=0), 1e-4, steps=5)
    avare.sgd(problem, avare.Uniform(N, 3, seed=0), lambda t: 1e-4, steps=5)
    assert len(steps.advance.signatures) <= before + 1


def test_the_epoch_of_a_callback_is_exact() -> None:
    """With 157 examples and batches of 5 an epoch has 31 steps, 0.987 of a pass: two of them are epoch 2, not 1.97."""
    problem = LeastSquares(np.eye(157), np.ones(157))
    run = avare.sgd(problem, avare.Uniform(157, 5, seed=0), 1e-3, epochs=9, callback=lambda now: now.epoch >= 2)
    assert run.status == "stopped" and run.steps == 62 and run.trace.epoch.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["Avare", "Uniform", "Static"])
def test_a_sampler_by_name(name: str) -> None:
    problem = make("Logistic")
    runs = [avare.sgd(problem, name, 1e-3, epochs=2, batch_size=5, seed=seed) for seed in (0, 0, 1)]
    assert np.array_equal(runs[0].x, runs[1].x) and not np.array_equal(runs[0].x, runs[2].x)
    assert runs[0].steps == 2 * (N // 5)
    own = avare.samplers.build(name, problem, 5, lasting_floor=True, seed=0)
    assert np.array_equal(avare.sgd(problem, own, 1e-3, epochs=2).x, runs[0].x)
    with pytest.raises(ValueError, match="seed = 3: the sampler has its own"):
        avare.sgd(problem, own, 1e-3, seed=3)
    with pytest.raises(ValueError, match=f"sampler = '{name.lower()}': must be one of .* did you mean '{name}'"):
        avare.sgd(problem, name.lower())


@pytest.mark.parametrize("step_size", ["auto", 1e-4])
def test_a_column_that_is_too_small_for_any_step_is_named(step_size: Any) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 3)) * [1.0, 1.0, 1e-3]
    problem = avare.problems.LeastSquares(X, X @ [1.0, 1.0, 1e3], l2=0.0)
    text = r"^x\[2\] has hardly moved in 1000 steps, because its column is 9[0-9]{2} times smaller than the largest"
    with pytest.warns(ConvergenceWarning, match=text):
        run = avare.sgd(problem, "Uniform", step_size, epochs=10, seed=0)
    # What it says is true: the one coefficient lowers the objective by that much.
    moved = run.x - np.array([0.0, 0.0, problem.gradient(run.x)[2] / problem.hessian(run.x)[2, 2]])
    assert problem.objective(moved) < problem.objective(run.x) - 100.0
    avare.sgd(avare.problems.LeastSquares(X, X @ [1.0, 1.0, 0.0], l2=0.0), "Uniform", step_size, seed=0)  # not needed
    X[:, 2] *= 1e3
    avare.sgd(avare.problems.LeastSquares(X, X @ [1.0, 1.0, 1.0], l2=0.0), "Uniform", step_size, steps=5, seed=0)


def test_a_column_of_one_row_that_was_looked_at_is_noticed() -> None:
    generator = np.random.default_rng(11)
    X, y = generator.normal(size=(6400, 3)), generator.normal(size=6400)
    X[:, 2] = 0.0
    X[0, 2], y[0] = 0.7, 2000.0
    problem = avare.problems.LeastSquares(X, y, l2=1e-9)
    with pytest.warns(ConvergenceWarning, match=r"x\[2\] has hardly moved"):
        avare.sgd(problem, avare.Uniform(6400, 64, seed=1), 1e-4, steps=300)


def test_a_row_that_is_hardly_drawn_counts_for_the_scale_of_its_column() -> None:
    X = np.random.default_rng(0).normal(size=(1000, 2))
    X[5, 0] = 1e4  # not one of the rows that are looked at first
    problem = avare.problems.LeastSquares(X, X @ [0.0, 1.0], l2=0.0)
    with pytest.warns(ConvergenceWarning, match=r"^x\[1\] has hardly moved in 1000 steps, because its column is 3"):
        avare.sgd(problem, "Uniform", 1e-9, steps=1000, seed=0)
