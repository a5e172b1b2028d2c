"""The experiment on sampling: a small run from start to report, its measures, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avare.experiments import Request
from avare.experiments.base import get
from avare.experiments.runner import perform
from avare.experiments.store import RecordError
from sampling import models
from sampling.models import GRID, Model
from sampling.results import aims, gather
from sampling.running import CHECKPOINTS, LEVELS, SAMPLERS

EXPERIMENT: Any = get("sampling")
CHOSEN = ("Uniform", "Reshuffled", "Calibrated")
SETTINGS = 2 * 3 * len(CHOSEN) + 2
pytestmark = pytest.mark.compiled


def small(folder: str | Path | None) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 3)) * generator.lognormal(0, 0.5, (300, 1))
    return X, (generator.random(300) < 1.0 / (1.0 + np.exp(-X @ [1.0, -1.0, 0.5]))).astype(np.int64)


@pytest.fixture(scope="module")
def records() -> list[Any]:
    """All records of the quick experiment, on a smaller model of the same name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, "heavy", Model("Small", small, "logistic", 1.0, 60))
        patch.setattr("sampling.running._STEIN", 40)
        found, stages = [], EXPERIMENT.stages(Request(quick=True, samplers=CHOSEN))
        stage = next(stages)
        while True:
            some = [
                perform({**task.spec, **({"steps": 100} if "steps" in task.spec else {})}, task.data.X, task.data.y)
                for task in stage.tasks
            ]
            found += some
            try:
                stage = stages.send(some)
            except StopIteration:
                return found


def test_a_small_run_from_start_to_report(records: list[Any]) -> None:
    assert len(records) == 1 + SETTINGS and set(CHOSEN) < set(SAMPLERS)
    reference = records[0]["diagnostics"]
    assert reference["draws"] == 200 and reference["accepted"] > 0.8 and reference["r_hat"] < 1.2
    results = [EXPERIMENT.parse(each) for each in records]
    summary = EXPERIMENT.summarise(results)
    assert summary.lead == f"{SETTINGS} settings of chains on 1 posterior"
    assert set(summary.tables) == {"sampling", "sampling-aims", "sampling-references"}
    assert len(summary.tables["sampling"].rows) == SETTINGS and len(summary.figures["sampling-heavy"].rows) == 2
    assert len(summary.panels[0].charts) == 8 and len(summary.numbers["sampling"]) == SETTINGS
    closing = EXPERIMENT.closing(records)
    assert closing.parts[0].rows and len(closing.numbers["sampling"]) == SETTINGS
    assert EXPERIMENT.closing([]).numbers == {"sampling": []} and EXPERIMENT.summarise([]) is None
    assert EXPERIMENT.describe(records[1]["spec"]) == "heavy, sgld, control none, Uniform"
    assert EXPERIMENT.describe(records[0]["spec"]) == "heavy, reference"


def test_a_chain_that_has_the_posterior_has_no_error(records: list[Any]) -> None:
    reference, setting = records[0], dict(records[1])
    true = reference["reference"]
    quantiles = [true["quantiles"][int(np.argmin(np.abs(GRID - level)))] for level in LEVELS]
    exact = {"mean": true["mean"], "sd": true["sd"], "quantiles": quantiles}
    wide = {**exact, "sd": [1.5 * each for each in true["sd"]]}
    setting["moments"] = [exact] * (len(CHECKPOINTS) - 1) + [wide]
    found = gather([EXPERIMENT.parse(each) for each in (reference, setting)])
    assert found is not None
    one = found.settings[0]
    assert np.allclose(one.sd_error, [0.0, 0.0, 0.0, 0.5]) and np.allclose(one.mean_error, 0.0)
    assert np.allclose(one.cover[90], 0.9) and np.allclose(one.cover[50], 0.5)
    assert aims(found).rows == ()  # with one sampler there is nothing to compare
    with pytest.raises(RecordError, match="lacks 'moments'"):
        gather([EXPERIMENT.parse(each) for each in (reference, {**records[1], "moments": None})])


def test_a_run_that_diverged_is_named(records: list[Any]) -> None:
    lost = {"spec": {**records[1]["spec"], "step": 1e9}, "status": "diverged", "seconds": {}}
    summary = EXPERIMENT.summarise([EXPERIMENT.parse(each) for each in (*records, lost)])
    assert summary.notices == ("heavy, sgld, control none, Uniform: diverged",)
    one = {**records[1]["spec"], "step": 1e9, "chains": 1}
    assert perform(one, *small(None))["status"] == "diverged"


def test_unknown_samplers_are_refused() -> None:
    with pytest.raises(ValueError, match="samplers: 'Best' must be one of Uniform, Reshuffled, "):
        next(EXPERIMENT.stages(Request(quick=True, samplers=("Best",))))


def test_generated_data_are_what_they_are_said_to_be() -> None:
    X, _ = models._heavy(None)
    lengths = np.linalg.norm(X, axis=1)
    assert X.shape == (20_000, 10) and lengths.max() > 20 * np.median(lengths)
    X, y = models._rare(None)
    assert X.shape == (1_000_000, 20) and 0.0008 < y.mean() < 0.0012
