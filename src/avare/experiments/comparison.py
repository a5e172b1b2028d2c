"""Samplers side by side on any data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from avare import _validation as validation
from avare import samplers as kinds
from avare.experiments.data import Data, Loss
from avare.experiments.paper.plan import Rule, draws_with_replacement, options_of
from avare.experiments.runs import caution_of, descent_spec, problem_of, table_spec
from avare.experiments.store import Record, Store
from avare.experiments.sweep import Task, Watch, sweep

_TOLERANCE = 1e-9  # of the gradient at 0, to which the optimum is found


def compare(
    data: Data,
    loss: Loss,
    store: Store,
    *,
    samplers: Sequence[str] = ("Uniform", "Avare"),
    rules: Sequence[Rule] = ("decreasing",),
    epochs: int = 20,
    runs: int = 3,
    batch_size: int = 128,
    l2: float = 1.0,
    replacement: bool = True,
    jobs: int = 1,
    dask: str | None = None,
    watch: Watch | None = None,
) -> list[Record]:
    """Run SGD with each of some samplers, and give all records: the dataset's first, then the runs'.

    Parameters
    ----------
    data, loss
        As `obtain` gives them.
    store
        Where results are.
    samplers
        Names of samplers.
    rules
        Step sizes, as in the paper, but shorter where its would be too long for the gradient as a whole.
    epochs
        Of each run.
    runs
        Seeds 0, 1, ... of each.
    batch_size
        m, draws a step.
    l2
        Of the l2 term in all, not by example.
    replacement
        How to draw, for samplers that can do both.
    jobs, dask, watch
        As for `sweep`.
    """
    epochs = validation.integer("epochs", epochs, at_least=1)
    runs = validation.integer("runs", runs, at_least=1)
    batch_size = validation.integer("batch_size", batch_size, at_least=1)
    l2 = validation.number("l2", l2, at_least=0.0)
    for name in samplers:
        if batch_size > len(data) and not draws_with_replacement(name, replacement):
            raise ValueError(f"batch_size = {batch_size}: must be at most n = {len(data)} without replacement")
    table = table_spec(dataset=data.name, data_digest=data.digest, loss=loss, l2=l2, tolerance=_TOLERANCE)
    arguments: dict[str, Any] = {"jobs": jobs, "dask": dask, "watch": watch}
    (facts,) = sweep([Task(table, data)], store, title="optimum", **arguments)
    caution = caution_of(problem_of(table, data.X, data.y), data.X, batch_size)
    tasks = [
        Task(
            descent_spec(
                "compare",
                dataset=data.name,
                data_digest=data.digest,
                loss=loss,
                steps=rule,
                sampler=sampler,
                options=options_of(sampler, rule, len(data), epochs, None),
                seed=seed,
                epochs=epochs,
                batch_size=batch_size,
                replacement=draws_with_replacement(sampler, replacement),
                l2=l2,
                caution=caution,
            ),
            data,
            facts["facts"]["optimum"],
        )
        for seed in range(runs)
        for rule in rules
        for sampler in samplers
    ]
    return [facts, *sweep(tasks, store, title="runs", **arguments)]


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Where each sampler ends, by dataset and step rule: means over the runs, and when Uniform's end is reached.

    ``"epochs_to_uniform"`` is the first epoch at which the mean suboptimality is what Uniform's is at the
    end; None where it never is, or where there is no Uniform.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        spec = record["spec"]
        if "sampler" in spec:
            groups.setdefault((spec["dataset"], spec["steps"], spec["sampler"]), []).append(record)
    rows = []
    for (dataset, steps, sampler), members in groups.items():
        finished = [record for record in members if record["status"] == "finished"]
        row = {
            "dataset": dataset,
            "steps": steps,
            "sampler": sampler,
            "epochs": members[0]["spec"]["epochs"],
            "runs": len(members),
            "diverged": len(members) - len(finished),
        }
        for measure in ("suboptimality", "relative_error", "regret"):
            row[measure] = float(_means(finished, measure)[-1]) if finished else None
        uniform = [each for each in groups.get((dataset, steps, "Uniform"), ()) if each["status"] == "finished"]
        row["epochs_to_uniform"] = None
        if uniform and finished:
            reached = np.flatnonzero(_means(finished, "suboptimality") <= _means(uniform, "suboptimality")[-1])
            row["epochs_to_uniform"] = int(reached[0]) if len(reached) else None
        row["seconds"] = sum(sum(record["seconds"].values()) for record in members) / len(members)
        rows.append(row)
    return rows


def _means(records: Sequence[Mapping[str, Any]], measure: str) -> Any:
    columns = np.array([record["trace"][measure] for record in records], dtype=np.float64)
    return columns.mean(axis=0)


def known(name: str) -> str:
    """The name of a sampler, however it is capitalised.

    >>> known("avare")
    'Avare'
    """
    return {each.lower(): each for each in kinds.names()}.get(name.strip().lower(), name.strip())
