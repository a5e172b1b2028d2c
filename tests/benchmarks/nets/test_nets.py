"""The experiment on nets: runs follow from the plan and from stored results, and the measures are right."""

import dataclasses
import math
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import avare
import avare.torch as avt
from avare.experiments import Request, datasets
from avare.experiments.data import Data
from avare.experiments.runner import perform
from avare.experiments.store import Record, Store, key_of
from avare.samplers.stateful import arguments
from nets import NetsExperiment, training
from nets import plan as nets
from nets.plan import (
    NetPlan,
    best_tasks,
    chosen,
    estimate,
    grid_tasks,
    part_tasks,
    read_plan,
    run_nets,
)

EXAMPLES, TESTED = 96, 40
MINE = f"""
[full]
samplers = ["DataLoader", "Calibrated"]
optimisers = ["sgd"]
batch_sizes = [8]
rules = ["constant"]
models = {{ mnist-mlp = {{ examples = {EXAMPLES}, tested = {TESTED}, grid_epochs = 1, epochs = 2 }} }}
sizes = {{ sgd = [0.05, 0.5] }}
grid = {{ seeds = [0], checkpoints = 1, test_every = 1 }}
best = {{ seeds = [1, 2], checkpoints = 4, test_every = 2 }}

[times.mnist-mlp]
step = {{ 16 = 0.001 }}
importance = 0.0003
evaluation = 0.004
"""


def make_data(n: int = EXAMPLES + TESTED, seed: int = 0) -> Data:
    """Three classes of 28 by 28 pixels that can be learned."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 3, n)
    X = generator.random((n, 784)).astype(np.float32) * 0.5
    X[np.arange(n), y * 100] += 2.0
    return Data("mnist", X, y)


DATA = make_data()


def make_plan(**wanted: Any) -> NetPlan:
    """The package's plan, reduced to what a test can run."""
    ours = read_plan()
    table = {
        "samplers": ["DataLoader", "Avare", "Calibrated"],
        "optimisers": ["sgd", "adamw"],
        "batch_sizes": [8],
        "rules": ["constant", "decreasing"],
        "models": {"mnist-mlp": {"examples": EXAMPLES, "tested": TESTED, "grid_epochs": 1, "epochs": 2}},
        "sizes": {"sgd": [0.05, 0.5], "adamw": [0.01]},
        "grid": {"seeds": [0], "more_seeds": {"DataLoader": [0, 1]}, "checkpoints": 1, "test_every": 1},
        "best": {"seeds": [1, 2], "checkpoints": 4, "test_every": 2},
        "parts": {
            "seeds": [1],
            "checkpoints": 2,
            "test_every": 2,
            "models": ["mnist-mlp"],
            "batch_sizes": [8],
            "optimiser": "sgd",
            "of": "Calibrated",
            "aggressive": 3.0,
            "samplers": ["remembered", "remembered, floor", "calibrated, replaced", "step × gain, up to 2"],
        },
        **wanted,
    }
    return dataclasses.replace(ours, wanted=table)


def without_parts(**wanted: Any) -> NetPlan:
    plan = make_plan(**wanted)
    return dataclasses.replace(plan, wanted={key: value for key, value in plan.wanted.items() if key != "parts"})


def spec_of(sampler: str = "Calibrated", plan: NetPlan | None = None, **changes: Any) -> dict[str, Any]:
    plan = make_plan() if plan is None else plan
    return {**task_of(plan, ("mnist-mlp", sampler, "sgd", 8, "constant", 0.05, 1)), **changes}


def task_of(plan: NetPlan, cell: tuple[Any, ...]) -> dict[str, Any]:
    (task,) = nets._tasks(plan, dict.fromkeys(plan.models, DATA), "best", [cell])
    return dict(task.spec)


def run(sampler: str = "Calibrated", **changes: Any) -> Record:
    return perform(spec_of(sampler, **changes), DATA.X, DATA.y)


def numbers(record: Record) -> Any:
    """Everything but the times."""
    return {name: values for name, values in record["trace"].items() if name not in ("seconds", "wall")}


# --- a run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler",
    [
        "DataLoader",
        "Avare",
        "Avare, √norm",
        "Calibrated",
        "Srg",
        "UpperBound",
        "TwoStages",
        "TwoStages, 3",
        "InfoBatch",
        "Passes",
        "calibrated, replaced",
    ],
)
def test_every_sampler_trains_and_is_measured(sampler: str) -> None:
    record = run(sampler, epochs=8)
    trace = record["trace"]
    assert record["status"] == "finished" and record["steps"] == 8 * 12
    assert trace["epoch"] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert trace["loss"][-1] < 0.7 * trace["loss"][0]
    assert [value is None for value in trace["test_error"]] == [False, True, False, True, False]
    assert trace["test_error"][-1] < 0.5
    assert trace["seconds"][0] == 0.0 and all(
        a < b for a, b in zip(trace["seconds"], trace["seconds"][1:], strict=False)
    )
    assert trace["gain"][0] == pytest.approx(1.0, rel=0.01) and min(trace["possible"]) >= 1.0
    assert all(own <= best * (1 + 1e-9) for own, best in zip(trace["gain"], trace["possible"], strict=True))
    if sampler not in ("UpperBound", "TwoStages"):  # which may be switched off
        assert (trace["gain"][-1] == 1.0) == (sampler in ("DataLoader", "InfoBatch"))
    known = [value is not None for value in trace["calibration_error"]]
    expects = "Avare" in sampler or "alibrated" in sampler or "TwoStages" in sampler
    assert any(known) == expects and known[0] is False
    assert set(trace) == {"epoch", *training.MEASURES} and record["where"]["versions"]["torch"]
    assert NetsExperiment().parse(record).status == "finished"


def test_a_run_is_determined_by_its_spec() -> None:
    state = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    assert numbers(run()) == numbers(run())
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == threads
    other = run(seed=2)
    assert numbers(other) != numbers(run())
    # All samplers start from the same net with the same seed.
    assert other["trace"]["loss"][0] == run("DataLoader", seed=2)["trace"]["loss"][0]


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("rule", ["constant", "decreasing", "one-cycle"])
def test_step_sizes(optimiser: str, rule: str) -> None:
    record = run("DataLoader", optimiser=optimiser, rule=rule, step=0.01)
    sizes = record["trace"]["step_size"]
    if rule == "constant":
        assert sizes == [0.01] * 5
    elif rule == "one-cycle":  # of the step before the checkpoint
        parts = [(t - 1) / 24 for t in (6, 12, 18, 24)]
        assert sizes[1:] == pytest.approx([0.005 * (1 + math.cos(math.pi * (part - 0.2) / 0.8)) for part in parts])
    else:  # of the step before the checkpoint: 0.01 / (1 + 9 (t - 1) / 24)
        assert sizes[1:] == pytest.approx([0.01 / (1.0 + 9.0 * (t - 1) / 24) for t in (6, 12, 18, 24)])


def test_steps_are_multiplied_by_the_gain_up_to_a_cap() -> None:
    plan = make_plan()
    spent = perform(spec_of("step × gain, up to 2", plan, epochs=6, step=0.1), DATA.X, DATA.y)
    sizes = spent["trace"]["step_size"]
    assert sizes[0] == 0.1 and max(sizes) > 0.1 and max(sizes) <= 0.2 * (1 + 1e-12)
    many = {**plan.samplers, "mine": {"kind": "Calibrated", "floor": 0.2, "spend": 1.0}}
    flat = perform(spec_of("mine", dataclasses.replace(plan, samplers=many), step=0.1), DATA.X, DATA.y)
    plain = run(step=0.1)
    assert numbers(flat) == numbers(plain)  # a cap of 1 changes nothing


def test_a_diverged_run_has_that_status() -> None:
    record = run("Calibrated", step=1e30)
    assert record["status"] == "diverged" and record["steps"] < 24
    assert record["trace"]["loss"][0] is not None and record["trace"]["loss"][-1] is None
    assert len(record["trace"]["loss"]) == len(record["trace"]["epoch"]) == 5


def test_a_loss_that_is_not_finite_at_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.Training, "_logits", lambda self, dataset: torch.full((len(dataset), 3), math.nan))
    trace = run("DataLoader")["trace"]
    assert trace["loss"] == [None] * 5 and trace["seconds"][-1] > 0.0


def test_a_convolutional_net() -> None:
    plan = make_plan(models={"mnist-cnn": {"examples": EXAMPLES, "tested": TESTED, "grid_epochs": 1, "epochs": 2}})
    spec = task_of(plan, ("mnist-cnn", "Calibrated", "adamw", 8, "constant", 0.01, 1))
    record = perform(spec, DATA.X, DATA.y)
    assert record["trace"]["loss"][-1] < record["trace"]["loss"][0]
    model = training.build({"kind": "cnn", "channels": [8, 16]}, (1, 28, 28), 10)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    started = training.Training(spec, DATA.X, DATA.y)
    assert started.train.tensors[0].shape == (EXAMPLES, 1, 28, 28) and len(started.test) == TESTED
    assert started.train.tensors[0].data_ptr() == DATA.X.ctypes.data  # nothing is copied


# --- measures -------------------------------------------------------------------------------


def test_the_gain_of_a_pool_by_enumeration() -> None:
    import itertools

    norms = np.array([0.0, 1.0, 2.5, 7.0, 0.3])
    for size in (1, 2, 4, 5):
        pools = list(itertools.combinations(range(5), size))
        own = np.mean([norms[list(pool)].mean() ** 2 for pool in pools])
        assert training.pooled_gain(norms, size) == pytest.approx(np.mean(norms**2) / own)
    assert training.pooled_gain(np.array([2.0]), 1) == 1.0


def test_realised_gains() -> None:
    norms = np.array([1.0, 2.0, 3.0, 10.0])
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))

    def batches(**given: Any) -> training.Batches:
        return training.batches_of({"loader": given, "batch_size": 1, "seed": 0}, dataset, torch.nn.Linear(2, 2))

    uniform = 4.0 * np.sum(norms**2)
    memory = batches(kind="Avare", options={"initial_norms": norms.tolist()})
    assert memory.sampler is not None
    assert memory.realised(norms) == pytest.approx(uniform / np.sum(norms**2 / memory.sampler.probabilities()))
    assert batches(kind="DataLoader").realised(norms) == 1.0
    assert memory.realised(np.zeros(4)) == 1.0
    off = batches(kind="UpperBound", options={"threshold": 1e9})
    on = batches(kind="UpperBound", options={"threshold": 0.0})
    assert off.realised(norms) == 1.0 and on.realised(norms) == pytest.approx(training.pooled_gain(norms, 3))
    assert math.isnan(off.loader.gain) and math.isnan(memory.loader.gain)
    floors = [batches(kind="Avare", options=options).sampler for options in ({}, {"p_min": 0.05})]
    assert [arguments(each)["p_min"] for each in floors if each is not None] == [0.0, 0.05]  # no floor by default


def test_the_gain_of_two_stages() -> None:
    norms = np.array([1.0, 2.0, 4.0, 30.0])
    dataset = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
    spec = {"loader": {"kind": "TwoStages", "pool": 2}, "batch_size": 1, "seed": 0}
    batches = training.batches_of(spec, dataset, torch.nn.Linear(2, 2))
    possible = float(avare.diagnostics.gain(norms))  # of uniform draws: nothing is known yet
    assert batches.realised(norms) == pytest.approx(possible / (1.0 + (possible - 1.0) / 2.0))
    _, index, weight = next(batches.endless)
    assert index is None and weight is not None  # nothing is reported


def test_info_batch() -> None:
    n, size, epochs = 400, 10, 8
    dataset = torch.utils.data.TensorDataset(torch.zeros(n, 1), torch.arange(n), torch.arange(n))
    loader = training.InfoBatch(dataset, size, epochs, seed=0)
    batches = iter(loader)
    losses = torch.where(torch.arange(n) % 4 == 0, 5.0, 1.0)  # three in four are below the mean of 2
    seen, weights = torch.zeros(n), torch.zeros(n)
    for step in range(epochs * n // size):
        (_, labels), index, weight = next(batches)
        assert torch.equal(labels, index)
        loader.update(index, losses[index])
        if step < 40:  # the first pass has all examples
            assert weight.tolist() == [1.0] * size
            seen[index] += 1
        elif step < 250:
            weights.index_add_(0, index, weight)
            assert set(weight[losses[index] > 2.0].tolist()) <= {1.0}
            assert set(weight[losses[index] < 2.0].tolist()) <= {2.0}
    assert seen.tolist() == [1.0] * n
    # In 8.4 passes each example has the same weight on average: 300 skipped ones within five standard errors.
    hard, easy = weights[losses > 2.0].mean(), weights[losses < 2.0].mean()
    assert abs(float(easy - hard)) < 5.0 * math.sqrt(8.4 / 300) + 0.5
    assert weight.tolist() == [1.0] * size  # the last eighth has all examples again


def test_calibration_errors() -> None:
    remembered = np.array([1.0, 1.0, 4.0, 16.0])
    true = np.array([2.0, 2.0, 4.0, 4.0])
    expected = (1.0 + 1.0 + 0.0 + 2.0) / 4.0  # octaves
    plain = avare.Avare(4, 1, initial_norms=remembered)
    assert training.calibration_error(plain, true) == pytest.approx(expected, abs=1e-6)
    rooted = avare.Avare(4, 1, initial_norms=np.sqrt(remembered))
    assert training.calibration_error(rooted, true, root=True) == pytest.approx(expected, abs=1e-6)
    sampler = avare.Calibrated(4, 1, prior=1e-9, initial_norms=remembered)
    sampler.update([0], [2.0])  # the norm found in the cell of 1; example 0 moves to the cell of 2
    assert sampler.calibration().expected.round(3).tolist() == [2.0, 2.0, 4.0, 16.0]
    assert training.calibration_error(sampler, true) == pytest.approx(2.0 / 4.0, abs=1e-6)
    assert training.calibration_error(avare.Calibrated(4, 1), true) is None  # no norms yet
    unseen = avare.Calibrated(4, 1)
    unseen.update([3], [4.0])  # for examples that were never seen, 4 is expected too
    assert training.calibration_error(unseen, true) == pytest.approx(
        3 / 4 * abs(math.log2(4.0 / math.sqrt((4 + 4 + 16) / 3))), abs=1e-6
    )
    assert training.calibration_error(avare.Srg(4, 1), true) is None and training.calibration_error(None, true) is None


# --- the plan -------------------------------------------------------------------------------


def made(plan: NetPlan) -> dict[str, Data]:
    return dict.fromkeys(plan.models, DATA)


def test_the_grid_is_the_product() -> None:
    plan = make_plan()
    tasks = grid_tasks(plan, made(plan))
    assert len(tasks) == (2 + 1 + 1) * 2 * 3  # seeds of each sampler, rules, step sizes of both optimisers
    assert len({task.key for task in tasks}) == len(tasks)
    seeds = {(task.spec["sampler"], task.spec["seed"]) for task in tasks}
    assert seeds == {("DataLoader", 0), ("DataLoader", 1), ("Avare", 0), ("Calibrated", 0)}
    spec = next(task.spec for task in tasks if task.spec["sampler"] == "Avare")
    assert spec["loader"] == {"kind": "Avare", "options": {"p_min": pytest.approx(1 / (5 * EXAMPLES))}}
    assert spec["epochs"] == 1 and spec["data_digest"] == DATA.digest and "dataset" not in spec["network"]


def fabricated(plan: NetPlan, losses: dict[tuple[str, str, float, int], float | None]) -> list[Record]:
    return [
        {"spec": dict(task.spec), "trace": {"loss": [1.0, losses.get(key, 0.9)]}}
        for task in grid_tasks(plan, made(plan))
        for key in [(task.spec["sampler"], task.spec["rule"], task.spec["step"], task.spec["seed"])]
    ]


def test_the_second_stage_follows_from_the_first() -> None:
    plan = make_plan()
    grid = fabricated(
        plan,
        {
            ("DataLoader", "decreasing", 0.5, 0): 0.2,
            ("DataLoader", "constant", 0.05, 1): 0.1,  # another seed than the one that decides
            ("Avare", "constant", 0.05, 0): None,
            ("Calibrated", "decreasing", 0.05, 0): 0.3,
            ("Calibrated", "constant", 0.5, 0): 0.4,
        },
    )
    best = chosen(plan, grid)
    assert best["mnist-mlp", "DataLoader", "sgd", 8] == ("decreasing", 0.5)
    assert best["mnist-mlp", "Avare", "sgd", 8] == ("constant", 0.5)  # of equal ones, the constant rule
    assert best["mnist-mlp", "Calibrated", "sgd", 8] == ("decreasing", 0.05)
    assert chosen(plan, list(reversed(grid))) == best
    tasks = best_tasks(plan, made(plan), grid)
    assert len(tasks) == 3 * 2 * 2 and {task.spec["seed"] for task in tasks} == {1, 2}
    steps = {(task.spec["rule"], task.spec["step"]) for task in tasks if task.spec["sampler"] == "DataLoader"}
    assert steps == {("decreasing", 0.5), ("constant", 0.01)}
    parts = part_tasks(plan, made(plan), grid)
    assert {(task.spec["level"], task.spec["step"], task.spec["rule"]) for task in parts} == {
        ("best", 0.5, "constant"),
        ("aggressive", 1.5, "constant"),
    }
    assert len(parts) == 2 * 4
    nothing = [{**record, "trace": {"loss": [1.0, None]}} for record in grid]
    assert chosen(plan, nothing)["mnist-mlp", "Avare", "sgd", 8] == ("constant", 0.05)
    assert part_tasks(without_parts(), made(plan), grid) == []


def test_the_plans_of_the_package_are_sound_and_take_as_long_as_documented() -> None:
    for quick, most in ((False, 60.0), (True, 2.0)):
        plan = read_plan(quick=quick)
        costs = estimate(plan)
        assert {cost.part for cost in costs} == {"grid", "best", "parts"}
        assert {cost.model for cost in costs} == set(plan.models) and all(cost.seconds > 0 for cost in costs)
        assert sum(cost.seconds for cost in costs) / 60.0 / 2.0 < most  # minutes, with two jobs
        for model in plan.models.values():
            assert all(model["examples"] % size == 0 for size in plan.wanted["batch_sizes"])  # every batch is full
        pools = read_plan(Path(nets.__file__).parent / "pools.toml", quick=quick)
        assert {"DataLoader", "TwoStages", "UpperBound", "InfoBatch"} <= {*pools.wanted["samplers"]}
        assert {*pools.wanted["rules"]} == {"constant", "one-cycle"}
    (one,) = [cost for cost in estimate(make_plan()) if cost.part == "grid"]
    spec = grid_tasks(make_plan(), made(make_plan()))[0].spec
    assert one.runs == 24 and nets.seconds_of(make_plan(), spec) > 0.0
    assert nets.seconds_of(dataclasses.replace(make_plan(), times={}), spec) == 0.0


def test_the_longest_runs_come_first() -> None:
    plan = make_plan(samplers=["DataLoader", "UpperBound"])
    seconds = [nets.seconds_of(plan, task.spec) for task in grid_tasks(plan, made(plan))]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samplers": ["Best"]}, "samplers = 'Best': must be among DataLoader, Avare"),
        ({"optimisers": ["lion"]}, "optimisers = 'lion': must be among sgd, momentum, adamw"),
        ({"rules": ["cosine"]}, "rules = 'cosine'"),
        ({"models": {"bert": dict.fromkeys(("examples", "tested", "grid_epochs", "epochs"), 1)}}, "models = 'bert'"),
        ({"models": {"mnist-mlp": {"examples": 5}}}, "models.mnist-mlp: lacks tested"),
        ({"grid": {"seeds": [0]}}, "grid: lacks checkpoints"),
        ({"parts": {"seeds": [0], "checkpoints": 1, "test_every": 1}}, "parts: lacks models"),
        ({"sizes": {"sgd": [0.1]}}, "sizes = 'adamw': must be among sgd"),
        ({"rules": ["decreasing"]}, "rules, for parts = 'constant'"),
        ({"batch_sizes": [16]}, "parts.batch_sizes = 8: must be among 16"),
    ],
)
def test_plans_that_cannot_be_run(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nets.check_plan(make_plan(**change), "mine.toml [full]")


def test_variants_must_be_of_what_is_run_and_of_known_kinds() -> None:
    parts = make_plan().wanted["parts"]
    for change, message in (
        ({"of": "Srg"}, "parts.of = 'Srg'"),
        ({"optimiser": "momentum"}, "parts.optimiser = 'momentum'"),
        ({"models": ["mnist-cnn"]}, "parts.models = 'mnist-cnn': must be among mnist-mlp"),
    ):
        with pytest.raises(ValueError, match=message):
            nets.check_plan(make_plan(parts={**parts, **change}), "mine")
    plan = make_plan()
    with pytest.raises(ValueError, match=r"samplers\.Avare\.kind = 'Best'"):
        nets.check_plan(dataclasses.replace(plan, samplers={**plan.samplers, "Avare": {"kind": "Best"}}), "mine")
    lacking = {key: value for key, value in plan.wanted.items() if key != "best"}
    with pytest.raises(ValueError, match="mine: lacks best"):
        nets.check_plan(dataclasses.replace(plan, wanted=lacking), "mine")


def test_files_that_are_not_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[full\n")
    with pytest.raises(ValueError, match=r"plan\.toml: not a plan: "):
        read_plan(path)
    path.write_text("[full]\n")
    with pytest.raises(ValueError, match=r"plan\.toml: not a plan: lacks \[networks\]"):
        read_plan(path)
    with pytest.raises(FileNotFoundError):
        read_plan(tmp_path / "none.toml")


# --- the whole experiment---------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data under the name of a large set."""

    def load(name: str, *, split: str = "train", folder: str | None = None, progress: bool = False) -> Data:
        rows: slice = slice(0, EXAMPLES) if split == "train" else slice(EXAMPLES, None)
        labels: NDArray[np.int64] = 2 * DATA.y[rows] - 1  # classes need not be 0, 1, ...
        return Data(name, DATA.X[rows], labels, "", "")

    monkeypatch.setattr(datasets, "load", load)


@pytest.mark.usefixtures("tiny")
def test_a_plan_runs_once_and_resumes_without_running_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(samplers=["DataLoader", "Calibrated"], optimisers=["sgd"], rules=["constant"])
    store = Store(tmp_path)
    records = run_nets(store, plan=plan)
    parts = [record["spec"]["part"] for record in records]
    assert {part: parts.count(part) for part in set(parts)} == {"grid": 2 * 2 + 2, "best": 4, "parts": 8}
    assert len(store.read()[0]) == len(records)

    def never(*arguments: Any) -> Any:
        raise AssertionError("it ran again")

    monkeypatch.setattr("nets.training.train", never)
    again = run_nets(store, plan=plan)
    assert [record["key"] for record in again] == [
        record["key"] if "key" in record else key_of(record["spec"]) for record in records
    ]
    closing = NetsExperiment().closing(records)
    rows = closing.numbers["nets"]
    assert [(row["model"], row["sampler"], row["runs"]) for row in rows] == [
        ("mnist-mlp", "Calibrated", 2),
        ("mnist-mlp", "DataLoader", 2),
    ]
    assert all(row["loss"] < 1.0 and row["seconds"] > 0.0 and row["epochs"] == 2 for row in rows)
    (table,) = closing.parts
    assert [row[:2] for row in table.rows] == [("MLP on MNIST", "Calibrated"), ("MLP on MNIST", "DataLoader")]  # type: ignore[union-attr]
    for record in records:
        record["trace"]["loss"][-1] = None
    assert [row["loss"] for row in NetsExperiment().closing(records).numbers["nets"]] == [None, None]
    nothing = NetsExperiment().closing([])
    assert nothing.numbers == {"nets": []} and nothing.parts == ()


@pytest.mark.usefixtures("tiny")
@pytest.mark.slow
def test_several_jobs_give_the_same_numbers(tmp_path: Path) -> None:
    plan = without_parts(samplers=["Calibrated"], optimisers=["sgd"], rules=["constant"])
    alone, together = (run_nets(Store(tmp_path / name), plan=plan, jobs=jobs) for name, jobs in (("a", 1), ("b", 2)))
    assert [numbers(record) for record in alone] == [numbers(record) for record in together]


@pytest.mark.usefixtures("tiny")
def test_rows_are_chosen_and_classes_start_from_0() -> None:
    plan = make_plan(models={"mnist-mlp": {"examples": 50, "tested": 10, "grid_epochs": 1, "epochs": 1}})
    data = nets.load(plan)["mnist-mlp"]
    assert data.X.dtype == np.float32 and len(data) == 60 and set(data.y) == {0, 1, 2}
    assert np.array_equal(data.X[:50], DATA.X[:50]) and np.array_equal(data.X[50:], DATA.X[EXAMPLES : EXAMPLES + 10])
    scaled = {"mnist-mlp": {**plan.networks["mnist-mlp"], "centre": 0.5, "scale": 0.25}}
    moved = nets.load(dataclasses.replace(plan, networks=scaled))["mnist-mlp"]
    assert np.allclose(moved.X, (data.X - 0.5) / 0.25) and moved.digest != data.digest
    shuffled = {"mnist-mlp": {**plan.networks["mnist-mlp"], "shuffled": True}}
    first, again = (nets.load(dataclasses.replace(plan, networks=shuffled))["mnist-mlp"] for _ in range(2))
    whole = {row.tobytes(): label for row, label in zip(DATA.X, DATA.y, strict=True)}
    assert first.digest == again.digest and not np.array_equal(first.X[:50], data.X[:50])
    assert [whole[row.tobytes()] for row in first.X] == [(0, 1, 2)[label] for label in first.y]
    assert {row.tobytes() for row in first.X[:50]} <= {row.tobytes() for row in DATA.X[:EXAMPLES]}
    plan.models["mnist-mlp"]["tested"] = 99  # type: ignore[index]  # read-only to others
    with pytest.raises(ValueError, match="tested = 99 for mnist-mlp: mnist has 40"):
        nets.load(plan)


@pytest.mark.usefixtures("tiny")
def test_a_request_runs_the_plan_in_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = resources.files("nets").joinpath("plan.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.split("[full]")[0] + MINE)
    stages = NetsExperiment().stages(Request(words=("nets",), plan=str(path), jobs=2, progress=True))
    grid = next(stages)
    assert grid.title == "nets: grid"
    assert capsys.readouterr().err == "nets: 8 runs in all, about 0 s if none is stored\n"
    records = [{"spec": dict(task.spec), "trace": {"loss": [1.0]}} for task in grid.tasks]
    best = stages.send(records)
    assert best.title == "nets: best settings" and len(best.tasks) == 4
    with pytest.raises(StopIteration):
        stages.send([])


def test_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"training nets needs torch: pip install 'avare\[torch,experiments\]'"):
        run_nets(Store(tmp_path), plan=make_plan())


def test_loaders_give_what_their_kind_says() -> None:
    # Uniform batches visit every example once per epoch.
    dataset = torch.utils.data.TensorDataset(torch.arange(12.0)[:, None], torch.arange(12))
    model = torch.nn.Linear(1, 1)
    batches = training.batches_of({"loader": {"kind": "DataLoader"}, "batch_size": 4, "seed": 3}, dataset, model)
    first = [next(batches.endless) for _ in range(3)]
    found = [label for (_, labels), _, _ in first for label in labels.tolist()]
    assert sorted(found) == list(range(12)) and found != sorted(found)
    assert all(index is None and weight is None for _, index, weight in first)
    reported: list[Any] = []
    given = {"kind": "Avare", "told": "root"}
    rooted = training.batches_of({"loader": given, "batch_size": 4, "seed": 3}, dataset, model)
    rooted.loader.update = lambda index, norms: reported.append(norms.tolist())
    loss, logits, labels = torch.tensor([9.0]), torch.zeros(1, 2), torch.tensor([0])  # a norm of sqrt(1/2)
    rooted.update(torch.tensor([1]), loss, logits, labels)
    assert reported == [pytest.approx([0.5**0.25])] and isinstance(rooted.loader, avt.ImportanceLoader)
    (rows, _), index, weight = next(rooted.endless)
    assert index is not None and weight is not None and rows[:, 0].tolist() == index.tolist()


def test_the_tables_of_loaders_agree() -> None:
    assert nets.ADDED_TIMES.keys() == training.LOADERS.keys()
    assert nets.OPTIMISERS.keys() == training._OPTIMISERS.keys()


def test_runs_are_described_in_a_few_words() -> None:
    words = NetsExperiment().describe(spec_of())
    assert words == "mnist-mlp, Calibrated, sgd 0.05 constant, batches of 8, seed 1"
