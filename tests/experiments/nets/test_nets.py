"""The experiment on nets: what is run follows from the plan and from what is stored, and what is measured is right."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import avare
import avare.torch as avt
from avare import datasets
from avare.datasets import Dataset
from avare.experiments.data import Data, digest
from avare.experiments.nets import plan as nets
from avare.experiments.nets import training as networks
from avare.experiments.nets.plan import Plan, best_tasks, chosen, estimate, grid_tasks, part_tasks, read_plan, run_nets
from avare.experiments.runs import perform
from avare.experiments.store import Record, Store, key_of

EXAMPLES, TESTED = 96, 40


def make_data(n: int = EXAMPLES + TESTED, seed: int = 0) -> Data:
    """Three classes that can be learned, of 28 by 28 pixels."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 3, n)
    X = generator.random((n, 784)).astype(np.float32) * 0.5
    X[np.arange(n), y * 100] += 2.0
    return Data("mnist", X, y, digest(X, y))


DATA = make_data()


def make_plan(**wanted: Any) -> Plan:
    """Ours, for what a test can run."""
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
            "samplers": ["remembered, floor", "calibrated, replaced", "by norm and age", "step × gain, up to 2"],
        },
        **wanted,
    }
    return dataclasses.replace(ours, wanted=table)


def without_parts(**wanted: Any) -> Plan:
    plan = make_plan(**wanted)
    return dataclasses.replace(plan, wanted={key: value for key, value in plan.wanted.items() if key != "parts"})


def spec_of(sampler: str = "Calibrated", plan: Plan | None = None, **changes: Any) -> dict[str, Any]:
    plan = make_plan() if plan is None else plan
    task = nets._task(plan, {"mnist-mlp": DATA}, "best", "mnist-mlp", sampler, "sgd", 8, "constant", 0.05, 1)
    return {**task.spec, **changes}


def run(sampler: str = "Calibrated", **changes: Any) -> Record:
    return perform(spec_of(sampler, **changes), DATA.X, DATA.y)


def numbers(record: Record) -> Any:
    """All but the times."""
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
        "by norm and age",
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
    assert trace["gain"][0] == pytest.approx(1.0) and min(trace["possible"]) >= 1.0
    assert all(own <= best * (1 + 1e-9) for own, best in zip(trace["gain"], trace["possible"], strict=True))
    assert (trace["gain"][-1] == 1.0) == (sampler == "DataLoader") or sampler == "UpperBound"
    known = [value is not None for value in trace["calibration_error"]]
    expects = "Avare" in sampler or "alibrated" in sampler
    assert any(known) == expects and known[0] is False
    assert set(trace) == {"epoch", *networks.MEASURES} and record["where"]["versions"]["torch"]


def test_a_run_is_determined_by_its_spec() -> None:
    state = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    assert numbers(run()) == numbers(run())
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == threads
    other = run(seed=2)
    assert numbers(other) != numbers(run())
    # All samplers of a seed start from the same net.
    assert other["trace"]["loss"][0] == run("DataLoader", seed=2)["trace"]["loss"][0]


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("rule", ["constant", "decreasing"])
def test_step_sizes(optimiser: str, rule: str) -> None:
    record = run("DataLoader", optimiser=optimiser, rule=rule, step=0.01)
    sizes = record["trace"]["step_size"]
    if rule == "constant":
        assert sizes == [0.01] * 5
    else:  # that of the step before the checkpoint: 0.01 / (1 + 9 (t - 1) / 24)
        assert sizes[1:] == pytest.approx([0.01 / (1.0 + 9.0 * (t - 1) / 24) for t in (6, 12, 18, 24)])


def test_the_gain_is_spent_up_to_a_cap() -> None:
    plan = make_plan()
    spent = perform(spec_of("step × gain, up to 2", plan, epochs=6, step=0.1), DATA.X, DATA.y)
    sizes = spent["trace"]["step_size"]
    assert sizes[0] == 0.1 and max(sizes) > 0.1 and max(sizes) <= 0.2 * (1 + 1e-12)
    many = {**plan.samplers, "mine": {"kind": "Calibrated", "floor": 0.2, "spend": 1.0}}
    flat = perform(spec_of("mine", dataclasses.replace(plan, samplers=many), step=0.1), DATA.X, DATA.y)
    plain = run(step=0.1)
    assert numbers(flat) == numbers(plain)  # a cap of 1 spends nothing


def test_a_run_that_diverges_says_so() -> None:
    record = run("Calibrated", step=1e30)
    assert record["status"] == "diverged" and record["steps"] < 24
    assert record["trace"]["loss"][0] is not None and record["trace"]["loss"][-1] is None
    assert len(record["trace"]["loss"]) == len(record["trace"]["epoch"]) == 5


def test_a_loss_that_is_not_finite_at_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks.Run, "_logits", lambda self, dataset: torch.full((len(dataset), 3), math.nan))
    trace = run("DataLoader")["trace"]
    assert trace["loss"] == [None] * 5 and trace["seconds"][-1] > 0.0


def test_a_convolutional_net() -> None:
    plan = make_plan(models={"mnist-cnn": {"examples": EXAMPLES, "tested": TESTED, "grid_epochs": 1, "epochs": 2}})
    task = nets._task(plan, {"mnist-cnn": DATA}, "best", "mnist-cnn", "Calibrated", "adamw", 8, "constant", 0.01, 1)
    record = perform(task.spec, DATA.X, DATA.y)
    assert record["trace"]["loss"][-1] < record["trace"]["loss"][0]
    model = networks.build({"kind": "cnn", "channels": [8, 16]}, (1, 28, 28), 10)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    split = networks.Split(task.spec, DATA.X, DATA.y)
    assert split.train.tensors[0].shape == (EXAMPLES, 1, 28, 28) and len(split.test) == TESTED
    assert split.train.tensors[0].data_ptr() == DATA.X.ctypes.data  # nothing is copied


# --- what is measured -----------------------------------------------------------------------


def test_the_gain_of_a_pool_by_enumeration() -> None:
    import itertools

    norms = np.array([0.0, 1.0, 2.5, 7.0, 0.3])
    for size in (1, 2, 4, 5):
        pools = list(itertools.combinations(range(5), size))
        own = np.mean([norms[list(pool)].mean() ** 2 for pool in pools])
        assert networks.pooled_gain(norms, size) == pytest.approx(np.mean(norms**2) / own)
    assert networks.pooled_gain(np.array([2.0]), 1) == 1.0


def test_realised_gains() -> None:
    norms = np.array([1.0, 2.0, 3.0, 10.0])
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))

    def batches(**given: Any) -> networks.Batches:
        return networks.Batches({"loader": given, "batch_size": 1, "seed": 0}, dataset, torch.nn.Linear(2, 2))

    uniform = 4.0 * np.sum(norms**2)
    memory = batches(kind="Avare", options={"initial_norms": norms.tolist()})
    assert memory.sampler is not None
    assert memory.realised(norms) == pytest.approx(uniform / np.sum(norms**2 / memory.sampler.probabilities()))
    assert batches(kind="DataLoader").realised(norms) == 1.0
    assert memory.realised(np.zeros(4)) == 1.0
    off = batches(kind="UpperBound", options={"threshold": 1e9})
    on = batches(kind="UpperBound", options={"threshold": 0.0})
    assert off.realised(norms) == 1.0 and on.realised(norms) == pytest.approx(networks.pooled_gain(norms, 3))
    assert off.gain == 1.0 and math.isnan(memory.gain)


def test_calibration_errors() -> None:
    remembered = np.array([1.0, 1.0, 4.0, 16.0])
    true = np.array([2.0, 2.0, 4.0, 4.0])
    expected = (1.0 + 1.0 + 0.0 + 2.0) / 4.0  # octaves
    plain = avare.Avare(4, 1, initial_norms=remembered)
    assert networks.calibration_error(plain, true) == pytest.approx(expected, abs=1e-6)
    rooted = avare.Avare(4, 1, initial_norms=np.sqrt(remembered))
    assert networks.calibration_error(rooted, true, root=True) == pytest.approx(expected, abs=1e-6)
    sampler = avare.Calibrated(4, 1, prior=1e-9, initial_norms=remembered)
    sampler.update([0], [2.0])  # what cell 1 turns out to have, and 0 moves to the cell of 2
    assert sampler.calibration().expected.round(3).tolist() == [2.0, 2.0, 4.0, 16.0]
    assert networks.calibration_error(sampler, true) == pytest.approx(2.0 / 4.0, abs=1e-6)
    assert networks.calibration_error(avare.Calibrated(4, 1), true) is None  # nothing is known
    unseen = avare.Calibrated(4, 1)
    unseen.update([3], [4.0])  # of those never seen, 4 is expected too
    assert networks.calibration_error(unseen, true) == pytest.approx(
        3 / 4 * abs(math.log2(4.0 / math.sqrt((4 + 4 + 16) / 3))), abs=1e-6
    )
    assert networks.calibration_error(avare.Srg(4, 1), true) is None and networks.calibration_error(None, true) is None


# --- the plan -------------------------------------------------------------------------------


def made(plan: Plan) -> dict[str, Data]:
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


def fabricated(plan: Plan, losses: dict[tuple[str, str, float, int], float | None]) -> list[Record]:
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
            ("DataLoader", "constant", 0.05, 1): 0.1,  # of another seed than that which decides
            ("Avare", "constant", 0.05, 0): None,
            ("Calibrated", "decreasing", 0.05, 0): 0.3,
            ("Calibrated", "constant", 0.5, 0): 0.4,
        },
    )
    best = chosen(plan, grid)
    assert best["mnist-mlp", "DataLoader", "sgd", 8] == ("decreasing", 0.5)
    assert best["mnist-mlp", "Avare", "sgd", 8] == ("constant", 0.5)  # of equal ones, the constant
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


def test_our_plans_are_sound_and_their_time_is_estimated() -> None:
    for quick, most in ((False, 60.0), (True, 2.0)):
        plan = read_plan(quick=quick)
        costs = estimate(plan)
        assert {cost.part for cost in costs} == {"grid", "best", "parts"}
        assert {cost.model for cost in costs} == set(plan.models) and all(cost.seconds > 0 for cost in costs)
        assert sum(cost.seconds for cost in costs) / 60.0 / 2.0 < most  # minutes, with two jobs
        for model in plan.models.values():
            assert all(model["examples"] % size == 0 for size in plan.wanted["batch_sizes"])  # every batch is full
    (one,) = [cost for cost in estimate(make_plan()) if cost.part == "grid"]
    spec = grid_tasks(make_plan(), made(make_plan()))[0].spec
    assert one.runs == 24 and nets.seconds_of(make_plan(), spec) > 0.0
    assert nets.seconds_of(dataclasses.replace(make_plan(), times={}), spec) == 0.0


def test_longest_runs_come_first() -> None:
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
        nets._check(make_plan(**change), "mine.toml [full]")


def test_parts_of_what_is_not_run_and_unknown_kinds() -> None:
    parts = make_plan().wanted["parts"]
    for change, message in (
        ({"of": "Srg"}, "parts.of = 'Srg'"),
        ({"optimiser": "momentum"}, "parts.optimiser = 'momentum'"),
        ({"models": ["mnist-cnn"]}, "parts.models = 'mnist-cnn': must be among mnist-mlp"),
    ):
        with pytest.raises(ValueError, match=message):
            nets._check(make_plan(parts={**parts, **change}), "mine")
    plan = make_plan()
    with pytest.raises(ValueError, match=r"samplers\.Avare\.kind = 'Best'"):
        nets._check(dataclasses.replace(plan, samplers={**plan.samplers, "Avare": {"kind": "Best"}}), "mine")
    lacking = {key: value for key, value in plan.wanted.items() if key != "best"}
    with pytest.raises(ValueError, match="mine: lacks best"):
        nets._check(dataclasses.replace(plan, wanted=lacking), "mine")


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[full\n")
    with pytest.raises(ValueError, match=r"plan\.toml: not a plan: "):
        read_plan(path)
    path.write_text("[full]\n")
    with pytest.raises(ValueError, match=r"plan\.toml: not a plan: lacks \[networks\]"):
        read_plan(path)
    with pytest.raises(FileNotFoundError):
        read_plan(tmp_path / "none.toml")


# --- all of it ------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data under the name of a large set."""

    def load(name: str, *, split: str = "train", folder: str | None = None, progress: bool = False) -> Dataset:
        rows: slice = slice(0, EXAMPLES) if split == "train" else slice(EXAMPLES, None)
        labels: NDArray[np.int64] = 2 * DATA.y[rows] - 1  # classes need not be 0, 1, ...
        return Dataset(name, DATA.X[rows], labels, "", "")

    monkeypatch.setattr(datasets, "load", load)


@pytest.mark.usefixtures("tiny")
def test_from_nothing_to_all_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(samplers=["DataLoader", "Calibrated"], optimisers=["sgd"], rules=["constant"])
    store = Store(tmp_path)
    records = run_nets(store, plan=plan)
    parts = [record["spec"]["part"] for record in records]
    assert {part: parts.count(part) for part in set(parts)} == {"grid": 2 * 2 + 2, "best": 4, "parts": 8}
    assert len(list(store.records())) == len(records)

    def never(*arguments: Any) -> Any:
        raise AssertionError("run again")

    monkeypatch.setattr("avare.experiments.nets.training.train", never)
    again = run_nets(store, plan=plan)
    assert [record["key"] for record in again] == [
        record["key"] if "key" in record else key_of(record["spec"]) for record in records
    ]
    rows = nets.summary(records)
    assert [(row["model"], row["runs"]) for row in rows] == [("mnist-mlp", 2)] * 2
    assert all(row["loss"] < 1.0 and row["seconds"] > 0.0 for row in rows)
    lost = [{**record, "trace": {**record["trace"], "loss": [1.0, None]}} for record in records]
    assert [row["loss"] for row in nets.summary(lost)] == [None, None]
    assert nets.summary([]) == []


@pytest.mark.usefixtures("tiny")
def test_side_by_side_it_is_the_same(tmp_path: Path) -> None:
    plan = without_parts(samplers=["Calibrated"], optimisers=["sgd"], rules=["constant"])
    alone, together = (run_nets(Store(tmp_path / name), plan=plan, jobs=jobs) for name, jobs in (("a", 1), ("b", 2)))
    assert [numbers(record) for record in alone] == [numbers(record) for record in together]


@pytest.mark.usefixtures("tiny")
def test_data_are_cut_and_classes_counted_from_0() -> None:
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


def test_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"training nets needs torch: pip install 'avare\[torch,experiments\]'"):
        run_nets(Store(tmp_path), plan=make_plan())


def test_a_real_loader_is_what_it_says() -> None:
    # Uniform batches go through all examples once an epoch, each batch in one go.
    dataset = torch.utils.data.TensorDataset(torch.arange(12.0)[:, None], torch.arange(12))
    batches = networks.Batches(
        {"loader": {"kind": "DataLoader"}, "batch_size": 4, "seed": 3}, dataset, torch.nn.Linear(1, 1)
    )
    found = [
        label for _, (_, labels, index, weight) in zip(range(3), batches, strict=False) for label in labels.tolist()
    ]
    assert sorted(found) == list(range(12)) and found != sorted(found)
    told: list[Any] = []
    rooted = networks.Batches(
        {"loader": {"kind": "Avare", "told": "root"}, "batch_size": 4, "seed": 3}, dataset, torch.nn.Linear(1, 1)
    )
    rooted.loader.update = lambda index, norms: told.append(norms.tolist())
    rooted.update(torch.tensor([1]), torch.tensor([9.0]))
    assert told == [[3.0]] and isinstance(rooted.loader, avt.ImportanceLoader)
    rows, _, index, weight = next(iter(rooted))
    assert index is not None and weight is not None and rows[:, 0].tolist() == index.tolist()
