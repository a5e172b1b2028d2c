"""Experiments are found by name and by the kind of their records; their specs have not changed."""

import sys
import types
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from avare.experiments import Store, compare, registry
from avare.experiments.base import RUNS, Closing, Experiment, Request, Summary
from avare.experiments.data import Data
from avare.experiments.paper.plan import Extent, descent_tasks, optimum_task, theory_tasks
from avare.experiments.records import Fields
from avare.experiments.store import key_of


class Small(Experiment):
    name = "small"
    kinds: ClassVar = {"small": Fields(texts=("sampler",), integers=("seed",))}

    def run(self, spec: Any, X: Any, y: Any, optimum: float | None) -> dict[str, Any]:
        return {}

    def summarise(self, results: Any, runs: int = RUNS) -> Summary | None:
        return None


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A separate registry, which looks for entry points again."""
    monkeypatch.setattr(registry, "_EXPERIMENTS", dict(registry._EXPERIMENTS))
    registry._find_others.cache_clear()
    yield
    registry._find_others.cache_clear()


@pytest.mark.usefixtures("own")
def test_register_and_find() -> None:
    small = Small()
    registry.register(small)
    assert registry.names() == ["paper", "compare", "nets", "sampling", "small"]
    assert registry.get("small") is registry.of_kind("small") is small
    with pytest.raises(ValueError, match="name = 'other': must be one of paper, compare, nets, sampling, small"):
        registry.get("other")
    for kind in ("other", None, ["small"]):
        with pytest.raises(
            ValueError, match=r"must be one of reproduce, theory, table, compare, limits, nets, sampling, .*, small"
        ):
            registry.of_kind(kind)


@pytest.mark.usefixtures("own")
def test_a_kind_has_one_owner() -> None:
    class Thief(Small):
        name = "thief"
        kinds: ClassVar = {"table": Fields()}

    with pytest.raises(ValueError, match="kind = 'table': belongs to the experiment paper"):
        registry.register(Thief())
    assert "thief" not in registry.names()
    registry.register(Small())
    registry.register(Small())  # again, as when a module is loaded again
    assert registry.names().count("small") == 1


@pytest.mark.usefixtures("own")
def test_entry_points_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("brings_an_experiment")
    module.small = Small()  # type: ignore[attr-defined]  # what it is made for
    monkeypatch.setitem(sys.modules, "brings_an_experiment", module)
    points = [
        EntryPoint("small", "brings_an_experiment:small", registry.GROUP),
        EntryPoint("gone", "not_installed_at_all:gone", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.GROUP else [])
    with pytest.warns(UserWarning, match=r"the experiment gone \(not_installed_at_all:gone\) cannot be loaded: Module"):
        assert registry.names()[-1] == "small"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it says so once
        assert registry.of_kind("small").name == "small"


def test_what_an_experiment_need_not_write() -> None:
    small = Small()
    assert small.describe({"experiment": "small", "sampler": "Avare", "seed": 3}) == "Avare, seed 3"
    assert small.passes({"epochs": 4}) == 4.0 and small.passes({}) == 1.0
    assert small.closing([]) == Closing()
    with pytest.raises(ValueError, match="small: is not run by avare reproduce"):
        small.stages(Request())
    with pytest.raises(ValueError, match="small: there is nothing to check against"):
        small.check([], [], 1)


def test_keys_are_those_of_the_first_release(tmp_path: Path) -> None:
    # By these keys an old store is resumed: were one to change, its runs would be done again.
    data, extent = Data("synthetic", np.eye(4), np.array([0, 1, 0, 1]), "of-the-data"), Extent(runs=1)
    tasks = [
        optimum_task(data),
        *theory_tasks(data, extent),
        *descent_tasks("reproduce", data, "logistic", 1.0, extent),
    ]
    found = {
        (spec["experiment"], spec.get("sampler", spec.get("method")), spec.get("steps")): task.key
        for task in tasks
        for spec in [task.spec]
    }
    assert found["table", None, None] == "763061a492348b130d2c3071e6855f6c8b62d7c8c04df572a3935625f3045892"
    assert found["theory", "sgd", None] == "aafe90f56dd5365d270d63c9c82f35d5f731e1e9b245eaa25ae8bd6d5298970f"
    assert found["reproduce", "Mabs", "constant"] == "0067e58c3973ee444f86a3f4888d2aaa0685af1ea62689af8edcfe250276acec"
    assert found["reproduce", "Avare", "constant"] == "92f761fcab564f022b597518c558b44fd1c6cfdf1e0992dd3497edf29279d890"
    settings: dict[str, Any] = {"epochs": 1, "runs": 1, "batch_size": 3, "replacement": False}
    records = compare(
        data, "logistic", Store(tmp_path), samplers=("Calibrated", "Osmd"), rules=("decreasing",), **settings
    )
    assert [key_of(record["spec"]) for record in records] == [
        "312adc3dea0424436b4dd410e4c2f7fb98504d45e1234445a52191d40154b542",
        "55ac93151362253e2d1a5ef6baa8b374f788c2cde0f80e81114555788acb732c",
        "4846fdf7c703c575b42af9e38a5f3d7b894d6204259cc557f10b1b04920982e0",
    ]
