"""The experiment on nets: loaders that draw by importance, on small neural networks.

`plan` says what to run, `training` does one run, `results` takes runs together, and `tables` and
`figures` show them.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from avare.experiments.base import Experiment, Request, Stages, Summary, register
from avare.experiments.document import Section
from avare.experiments.runner import surroundings
from avare.experiments.store import Record, Result, Spec, count, numbers
from nets.figures import NetCharts
from nets.plan import NetPlan as Plan
from nets.plan import estimate as estimate
from nets.plan import net_stages, read_plan
from nets.plan import run_nets as run_nets
from nets.results import MEASURES, NetResults, gather
from nets.tables import at_best, best_rows, net_tables, setups

__all__ = ["NetsExperiment", "Plan", "estimate", "read_plan", "run_nets"]


class NetsExperiment(Experiment):
    """Compares loaders on small nets: a grid of settings, the best of them, and variants of `Calibrated`.

    >>> from avare.experiments import get
    >>> isinstance(get("nets"), NetsExperiment)
    True
    """

    name = "nets"
    kinds = ("nets",)
    takes = ("plan",)
    shown = ("finished", "diverged")

    def stages(self, request: Request) -> Stages:
        """Yield the runs of a plan: of the request's file, or of this package."""
        plan = read_plan(request.plan, quick=request.quick)
        return net_stages(plan, request.folder, jobs=request.jobs, progress=request.progress)

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Train one net; see `nets.training.train`."""
        from nets.training import train  # which imports PyTorch

        return {**train(spec, X, y), "where": surroundings("torch")}

    def describe(self, spec: Spec) -> str:
        """Describe a run: net, sampler, setting and seed."""
        setting = f"{spec['optimiser']} {spec['step']:g} {spec['rule']}, batches of {spec['batch_size']}"
        return f"{spec['model']}, {spec['sampler']}, {setting}, seed {spec['seed']}"

    def closing(self, records: Sequence[Record]) -> Summary:
        """Return each sampler at its best setting."""
        nets = gather([self.parse(record) for record in records])
        if nets is None:
            return Summary(numbers={"nets": []})
        table = at_best(nets).without("diverged", "calibration_error", "epochs_to_uniform", "seconds_to_uniform")
        return Summary(tables={"nets": table}, numbers={"nets": best_rows(nets)})

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """Return tables, figures and panel of all runs on nets."""
        nets = gather(results)
        if nets is None:
            return None
        charts = NetCharts(nets)
        left_out = {"runs of other setups, left out": nets.left_out} if nets.left_out else {}
        extent = {"runs": nets.records, "seconds in all": f"{nets.seconds:.0f}", **left_out}
        return Summary(
            lead=f"{count(nets.records, 'run')} on {count(len(nets.models), 'net')}",
            tables=net_tables(nets),
            figures=charts.figures(),
            panels=(charts.panel(),),
            details=(Section("Nets", (extent, setups(nets))),),
            numbers={"nets": _numbers(nets)},
        )


def _numbers(nets: NetResults) -> dict[str, Any]:
    """Return all that is shown, with all digits."""
    lines = []
    for group in nets.groups:
        line = {
            "spec": dict(group.spec),
            "seeds": group.seeds,
            "diverged": group.diverged,
            "epoch": numbers(group.epochs),
        }
        for measure in MEASURES:
            line[measure] = {"mean": numbers(group.mean(measure)), "deviation": numbers(group.deviation(measure))}
        lines.append(line)
    return {"lines": lines, "left_out": nets.left_out}


register(NetsExperiment())
