"""Samplers side by side on small neural networks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from avare.experiments.base import RUNS, Experiment, Summary
from avare.experiments.records import Fields, Result
from avare.experiments.registry import register
from avare.experiments.runs import surroundings
from avare.experiments.store import Record, Spec


class NetsExperiment(Experiment):
    """Samplers side by side on small neural networks."""

    name = "nets"
    kinds: ClassVar = {
        "nets": Fields(
            texts=("dataset", "model", "part", "sampler", "optimiser", "rule"),
            integers=("seed",),
            numbers=("batch_size", "epochs", "examples", "step"),
            columns=("epoch", "seconds", "loss", "test_error", "gain", "possible", "calibration_error"),
        )
    }
    takes = ("plan",)
    shown = ("finished", "diverged")
    sized_by = ("dataset", "epochs", "model", "batch_size", "checkpoints")
    paced_by = ("model", "sampler")

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Train one net."""
        from avare.experiments.nets.training import train

        return {**train(spec, X, y), "where": surroundings("torch")}

    def summarise(self, results: Sequence[Result], runs: int = RUNS) -> Summary | None:
        """Return nothing."""
        return None


register(NetsExperiment())
