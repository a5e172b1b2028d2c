"""The experiment on sampling: how right posteriors are that constant steps with batches draw from.

`models` has the posteriors and long chains on all data to compare with, `running` runs the chains of one setting, and
`results` compares them.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from avare.experiments.base import RUNS, Experiment, Request, Stage, Stages, Summary, Task, register
from avare.experiments.document import Section
from avare.experiments.sgd_runs import common_spec
from avare.experiments.store import Record, Result, Spec, count
from sampling.models import MODELS, reference
from sampling.results import (
    REFERENCE,
    aims,
    figures,
    gather,
    panel,
    plain,
    reference_table,
    row,
    table,
)
from sampling.running import SAMPLERS, SHARES, run_setting

__all__ = ["SamplingExperiment"]

_BATCH, _STEPS = 32, 10_000
_QUICK: dict[str, Any] = {"models": ("heavy",), "steps": 1000, "chains": 2, "draws": 200}
_DEFAULT = {"sampler": "Static", "control": "mode"}  # what runs with the default step too


class SamplingExperiment(Experiment):
    """Compares samplers and control variates by the posteriors that chains with constant steps give.

    >>> from avare.experiments import get
    >>> isinstance(get("sampling"), SamplingExperiment)
    True
    """

    name = "sampling"
    kinds = ("sampling", REFERENCE)
    shown = ("finished",)

    def stages(self, request: Request) -> Stages:
        """Yield the reference and all settings of each model."""
        names = _QUICK["models"] if request.quick else tuple(MODELS)
        chosen = request.samplers or tuple(SAMPLERS)
        for name in chosen:
            if name not in SAMPLERS:
                raise ValueError(f"samplers: {name!r} must be one of {', '.join(SAMPLERS)}")
        chains = request.runs or (_QUICK["chains"] if request.quick else RUNS)
        tasks = []
        for name in names:
            model = MODELS[name]
            data = model.load(name, request.folder)
            shared = common_spec(self.name, data, model.loss, model.l2)
            draws = _QUICK["draws"] if request.quick else model.draws
            steps = _QUICK["steps"] if request.quick else _STEPS
            common = {**shared, "batch_size": _BATCH, "steps": steps, "chains": chains}
            settings = [
                {"method": method, "control": control, "sampler": sampler, "step": share}
                for method, shares in SHARES.items()
                for control, share in shares.items()
                for sampler in chosen
            ]
            settings += [{"method": method, **_DEFAULT, "step": "auto"} for method in SHARES]
            specs = [{**shared, "experiment": REFERENCE, "draws": draws, "seed": 0}]
            specs += [{**common, **setting} for setting in settings]
            tasks += [Task(spec, data) for spec in specs]
        yield Stage("sampling", tasks)

    def run(self, spec: Spec, X: Any, y: NDArray[Any], optimum: float | None) -> Record:
        """Run the chains of a setting, or the reference."""
        return reference(spec, X, y) if "draws" in spec else run_setting(spec, X, y)

    def describe(self, spec: Spec) -> str:
        """Describe a run in a few words."""
        if "draws" in spec:
            return f"{spec['dataset']}, reference"
        return f"{spec['dataset']}, {spec['method']}, control {spec['control']}, {spec['sampler']}"

    def closing(self, records: Sequence[Record]) -> Summary:
        """Return the aims, met or not."""
        found = gather([self.parse(record) for record in records])
        if found is None:
            return Summary(numbers={"sampling": []})
        return Summary(tables={"sampling": aims(found)}, numbers={"sampling": [row(each) for each in found.settings]})

    def summarise(self, results: Sequence[Result]) -> Summary | None:
        """Return tables, figures and panel."""
        found = gather(results)
        if found is None:
            return None
        notices = tuple(f"{self.describe(each.spec)}: {each.status}" for each in found.failed)
        extent = {"settings": len(found.settings), "diverged": len(found.failed)}
        return Summary(
            lead=f"{count(len(found.settings), 'setting')} of chains on {count(len(found.models), 'posterior')}",
            notices=notices,
            tables={
                "sampling": table(found),
                "sampling-aims": aims(found),
                "sampling-references": reference_table(found),
            },
            figures=figures(found),
            panels=(panel(found),),
            details=(Section("Sampling", (extent, reference_table(found))),),
            numbers={"sampling": plain(found)},
        )


register(SamplingExperiment())
