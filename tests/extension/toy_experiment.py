"""An experiment from outside the package: how close two samplers come to the best distribution."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import avare
from avare.experiments import (
    Column,
    Experiment,
    Figure,
    Panel,
    Request,
    Result,
    Section,
    Stage,
    Stages,
    Summary,
    Table,
    Task,
    obtain,
    together,
)
from avare.plotting import Chart, Curve


class CostExperiment(Experiment):
    """The relative error of each sampler's distribution after some epochs of SGD."""

    name = "toy"
    kinds = ("toy",)

    def stages(self, request: Request) -> Stages:
        """Two samplers with two seeds each."""
        data, _ = obtain("synthetic")
        spec = {"experiment": "toy", "dataset": data.name, "data_digest": data.digest, "epochs": 3}
        runs = [{**spec, "sampler": name, "seed": seed} for name in ("Uniform", "Avare") for seed in range(2)]
        yield Stage("toy", [Task(run, data) for run in runs])

    def run(self, spec: Any, X: Any, y: Any, optimum: float | None) -> dict[str, Any]:
        """One run of SGD."""
        problem = avare.problems.Logistic(X, y, l2=1.0)
        sampler = avare.samplers.build(spec["sampler"], problem, 1, seed=spec["seed"])
        run = avare.sgd(problem, sampler, 1e-2, epochs=spec["epochs"])
        trace = {name: run.trace[name].tolist() for name in ("epoch", "relative_error")}
        return {"seconds": {"steps": run.seconds}, "status": run.status, "trace": trace}

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """A chart, a table and a tab."""
        groups = together([each for each in results if each.shown], lambda each: each.spec["sampler"])
        curves = tuple(
            Curve.of_runs(name, members[0].trace["epoch"], [each.trace["relative_error"] for each in members])
            for name, members in groups
        )
        chart = Chart("Relative error", "Epochs", curves)
        columns = (Column("sampler", "sampler"), Column("error", "relative error", "number"))
        table = Table("At the end", columns, tuple((curve.label, float(curve.mean[-1])) for curve in curves))
        return Summary(
            lead=f"{len(results)} toy runs",
            tables={"toy": table},
            figures={"toy": Figure("Toy", ((chart,),))},
            panels=(Panel("Toy", (Section("How it falls", (chart, table)),)),),
            numbers={"toy": [{"label": curve.label, "error": np.asarray(curve.mean).tolist()} for curve in curves]},
        )
