"""A run is what its specification says, and nothing else: the paper's rules, by hand."""

import warnings
from typing import Any

import numba
import numpy as np
import pytest

import avare
from avare.experiments import Request, runner, sgd_runs
from avare.experiments.comparison import doubt_of_optimum
from avare.experiments.data import Data, obtain
from avare.experiments.paper import SETTINGS, descents, paper_optimum
from avare.experiments.runner import perform, surroundings
from avare.experiments.sgd_runs import options_of

NAMES = ("Avare", "Mabs", "Stratified")
EPOCHS = 2 if numba.config.DISABLE_JIT else 5


@pytest.fixture(scope="module")
def data() -> Data:
    return obtain("synthetic")[0]


def tiny(n: int = 12, classes: int = 3, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, 4)), np.arange(n) % classes


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "experiment": "compare",
        "dataset": "tiny",
        "data_digest": "",
        "bias": False,
        "held_out": 0,
        "loss": "softmax",
        "steps": "decreasing",
        "sampler": "Avare",
        "options": {},
        "seed": 1,
        "epochs": EPOCHS,
        "batch_size": 3,
        "replacement": True,
        "l2": 0.5,
        "caution": 1.0,
        **changes,
    }


@pytest.mark.parametrize("steps", ["decreasing", "constant"])
@pytest.mark.parametrize("sampler", ["Uniform", "Avare", "Vrb"])
def test_a_run_is_the_papers(steps: str, sampler: str) -> None:
    X, y = tiny()
    record = perform(spec(steps=steps, sampler=sampler), X, y, optimum=2.0)
    problem = avare.problems.Softmax(X, y, l2=0.5)
    # Step by step, in plain NumPy: alpha = m / (2 N L + m mu t), or without the last term.
    twin = getattr(avare, sampler)(12, 3, replacement=True, seed=1)
    x, largest = np.zeros(problem.dim), float((0.5 * (X**2).sum(axis=1) + 0.5 / 12).max())
    regret = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch in range(EPOCHS + 1):
            norms, p = problem.norms(x), twin.probabilities()
            error = float((norms**2 / p).sum() - norms.sum() ** 2)
            regret += error
            row = {name: values[epoch] for name, values in record["trace"].items()}
            assert row["objective"] == pytest.approx(problem.objective(x), rel=1e-9)
            assert row["suboptimality"] == pytest.approx(problem.objective(x) - 2.0, rel=1e-9)
            assert row["relative_error"] == pytest.approx(error / norms.sum() ** 2, rel=1e-6, abs=1e-12)
            assert row["regret"] == pytest.approx(regret, rel=1e-6, abs=1e-9)
            assert (row["epoch"], row["step"]) == (epoch, 4 * epoch)
            for step in range(4 * epoch + 1, 4 * epoch + 5):
                batch = twin.sample()
                gradient, seen = problem.batch_gradient(x, batch.indices, batch.weights)
                size = 3 / (2 * 12 * largest + (3 * 0.5 * step if steps == "decreasing" else 0.0))
                x = x - size * (gradient + 0.5 * x)
                twin.update(batch.indices, seen)
    assert record["status"] == "finished" and record["optimum"] == 2.0
    assert record["trace"]["gain"][0] is None  # JSON has no nan
    assert set(record["seconds"]) == {"steps", "evaluation"} and min(record["seconds"].values()) >= 0.0
    assert record["where"]["versions"]["avare"] == avare.__version__


@pytest.mark.parametrize("name", avare.samplers.names())
def test_every_sampler_can_be_run(name: str) -> None:
    X, y = tiny()
    replacement = not avare.samplers.get(name).without_replacement_only
    options = options_of(name, "constant", 12, 2, None)
    record = perform(spec(sampler=name, replacement=replacement, options=options, epochs=2), X, y)
    assert record["status"] == "finished" and record["trace"]["suboptimality"] == [None] * 3


@pytest.mark.parametrize("loss", ["logistic", "least_squares", "huber", "smoothed_hinge"])
def test_every_loss_can_be_run(loss: str) -> None:
    from scipy.sparse import csr_array

    X, y = tiny(classes=2)
    dense = perform(spec(loss=loss, epochs=2), X, y)
    sparse = perform(spec(loss=loss, epochs=2), csr_array(X), y)
    assert len(set(dense["trace"]["objective"])) == 3
    assert np.allclose(dense["trace"]["objective"], sparse["trace"]["objective"])


def test_a_diverging_run_is_recorded() -> None:
    X, y = tiny(classes=2)
    record = perform(spec(loss="least_squares", l2=0.0, caution=1e-9), X, 1e149 * (1.0 + y))  # steps too large
    assert record["status"] == "diverged"
    assert all(value is None or abs(value) < 1e308 for values in record["trace"].values() for value in values)


def test_facts_of_a_dataset(data: Data) -> None:
    record = perform(paper_optimum(data).spec, data.X, data.y)
    problem = avare.problems.Logistic(data.X, data.y, l2=1.0)
    best = problem.minimize()
    allowed = record["facts"].pop("gradient_allowed")
    assert allowed == pytest.approx(max(1e-13 * np.linalg.norm(problem.gradient(np.zeros(10))), 1e-12))
    assert record["facts"].pop("gradient_at_optimum") <= allowed
    assert record["facts"] == pytest.approx(
        {
            "n": 100,
            "dim": 10,
            "optimum": problem.objective(best),
            "gain_at_optimum": float(avare.diagnostics.gain(problem.norms(best))),
            "smoothness_ratio": float(avare.diagnostics.smoothness_ratio(problem.smoothness)),
        },
        rel=1e-9,
    )


def test_an_optimum_that_was_not_found_is_mentioned(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = paper_optimum(data).spec
    facts = perform(spec, data.X, data.y)["facts"]
    assert doubt_of_optimum(spec, facts) == ""
    monkeypatch.setattr(avare.problems.Logistic, "minimize", lambda problem, tolerance: np.full(problem.dim, 0.01))
    early = perform(spec, data.X, data.y)["facts"]
    left, missing = early["gradient_at_optimum"], early["optimum"] - facts["optimum"]
    assert left > early["gradient_allowed"] == facts["gradient_allowed"] and missing > 0.0
    text = doubt_of_optimum(spec, early)
    assert text.startswith("The optimum of Synthetic was not found to the requested tolerance: the norm of its ")
    assert f"Suboptimalities are too small by at most {left**2 / 2:.2g}, and" in text and missing <= left**2 / 2
    assert "are too small, and the gain" in doubt_of_optimum({**spec, "l2": 0.0}, early)


def test_the_papers_settings(data: Data) -> None:
    tasks = descents(data, 3.0, Request(runs=2))
    assert len(tasks) == len({task.key for task in tasks}) == 2 * 2 * 4
    assert {task.optimum for task in tasks} == {3.0}
    longest = float(np.linalg.norm(data.X, axis=1).max())
    for task in tasks:
        spec = task.spec
        assert (spec["l2"], spec["epochs"], spec["batch_size"], spec["replacement"]) == (1.0, 100, 1, True)
        if spec["sampler"] == "Avare":
            assert spec["options"] == ({} if spec["steps"] == "decreasing" else {"p_min": 1 / 500})
        elif spec["sampler"] != "Uniform":
            assert spec["options"] == {"horizon": 10_000, "bound": pytest.approx(longest)}
    quick = descents(data, 3.0, Request(quick=True, rules=("constant",), samplers=("Uniform",)))
    assert [(task.spec["seed"], task.spec["steps"]) for task in quick] == [(0, "constant"), (1, "constant")]
    assert SETTINGS["mnist"].batch_size == SETTINGS["ijcnn1"].batch_size == SETTINGS["cifar10"].batch_size == 128


def test_with_or_without_replacement(data: Data) -> None:
    setting = sgd_runs.Setting("logistic", 1, 4)
    ways = [sgd_runs.descent_spec("compare", data, setting, name, "auto", 0)["replacement"] for name in NAMES]
    assert ways == [True, True, False]


def test_data_are_identified_by_their_contents(data: Data) -> None:
    from scipy.sparse import csr_array

    assert len(data) == 100 and data.digest == obtain("synthetic")[0].digest
    X, y = np.eye(3), np.arange(3)
    others = [(X, y), (X.astype(np.float32), y), (2 * X, y), (X, y + 1), (csr_array(X), y), (np.eye(9)[:1], y)]
    assert len({Data("mine", *other).digest for other in others}) == len(others)
    assert Data("mine", np.asfortranarray(X), y).digest == Data("other", X, y).digest


def test_norms_above_the_papers_bound_count_as_the_bound() -> None:
    X, y = tiny()
    known = spec(sampler="Vrb", options={"horizon": 100, "bound": 2.0})
    problem = sgd_runs.problem_of(known, X, y)
    ours, twin = sgd_runs.sampler_of(known, problem), avare.Vrb(12, 3, horizon=100, bound=2.0, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a bound that is raised warns
        for norms in ([0.5, 3.0, 1.0], [9.0, 2.0, 1.5]):
            batch = ours.sample()
            ours.update(batch.indices, norms)
            assert np.array_equal(twin.sample().indices, batch.indices)
            twin.update(batch.indices, np.minimum(norms, 2.0))
    assert np.array_equal(ours.probabilities(), twin.probabilities())


def test_surroundings_on_an_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    monkeypatch.setattr(runner, "version", lambda package: "1.0")
    monkeypatch.setattr("platform.processor", lambda: "")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: False)
        assert surroundings()["processor"] == "unknown processor"
    monkeypatch.setattr(Path, "read_text", lambda *arguments: "vendor_id: none\n")
    assert surroundings()["processor"] == "unknown processor"
