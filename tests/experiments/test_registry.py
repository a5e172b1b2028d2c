"""Experiments are found by name and by the kind of their records; their specs have not changed."""

import sys
import types
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from avare.experiments import base
from avare.experiments.base import Experiment, Request, Summary


class Small(Experiment):
    name = "small"
    kinds = ("small",)

    def run(self, spec: Any, X: Any, y: Any, optimum: float | None) -> dict[str, Any]:
        return {}

    def summarise(self, results: Any) -> Summary | None:
        return None


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A separate registry, which looks for entry points again."""
    monkeypatch.setattr(base, "_EXPERIMENTS", dict(base._EXPERIMENTS))
    base._find_others.cache_clear()
    yield
    base._find_others.cache_clear()


@pytest.mark.usefixtures("own")
def test_register_and_find() -> None:
    small = Small()
    base.register(small)
    assert base.names()[:2] == ["compare", "paper"] and base.names()[-1] == "small"
    assert base.get("small") is base.of_kind("small") is small
    with pytest.raises(ValueError, match=r"name = 'other': must be one of compare, paper, .*small"):
        base.get("other")
    for kind in ("other", None, ["small"]):
        with pytest.raises(ValueError, match=r"must be one of compare, optimum, reproduce, table, .*small"):
            base.of_kind(kind)


@pytest.mark.usefixtures("own")
def test_a_kind_has_one_owner() -> None:
    class Thief(Small):
        name = "thief"
        kinds = ("table",)

    with pytest.raises(ValueError, match="kind = 'table': belongs to the experiment paper"):
        base.register(Thief())
    assert "thief" not in base.names()
    base.register(Small())
    base.register(Small())  # again, as when a module is loaded again
    assert base.names().count("small") == 1


@pytest.mark.usefixtures("own")
def test_entry_points_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("brings_an_experiment")
    module.small = Small()  # type: ignore[attr-defined]  # what it is made for
    monkeypatch.setitem(sys.modules, "brings_an_experiment", module)
    points = [
        EntryPoint("small", "brings_an_experiment:small", base.GROUP),
        EntryPoint("gone", "not_installed_at_all:gone", base.GROUP),
    ]
    monkeypatch.setattr(base, "entry_points", lambda group: points if group == base.GROUP else [])
    with pytest.warns(UserWarning, match=r"the experiment gone \(not_installed_at_all:gone\) cannot be loaded: Module"):
        assert base.names()[-1] == "small"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it says so once
        assert base.of_kind("small").name == "small"


def test_what_an_experiment_need_not_write() -> None:
    small = Small()
    assert small.describe({"experiment": "small", "sampler": "Avare", "seed": 3}) == "small, Avare, seed 3"
    assert small.closing([]) is None
    with pytest.raises(ValueError, match="small: is not run by avare reproduce"):
        small.stages(Request())
