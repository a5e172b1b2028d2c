"""Which loader pays: the runs of ``python benchmarks reproduce loaders``, and the seconds that their steps take.

``--store results/runs`` takes the runs of a store over into the stored result. ``--measure`` measures the seconds of a
step with each loader, in turns, and keeps them: three minutes on a machine without other work. ``--small`` measures
steps of 0.5 to 5 milliseconds only. The seconds of a run follow from both. The report compares each loader at the end
of its runs with the ``DataLoader``, after the same epochs and after the same seconds.
Needs MNIST, IJCNN1, CIFAR10 and tinyshakespeare.txt, from ``--data``, AVARE_DATA or, except the text, the network.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from avare.experiments.store import Store
from harness import RESULTS, save, table, where
from loader_runs import COMPARED, LONGER, SEEDS

NAME = "which_loader"
PAGE, MARK = Path(__file__).parents[1] / "docs" / "nets.md", "<!-- made by benchmarks/which_loader.py -->"
MARK_SMALL = "<!-- small steps, made by benchmarks/which_loader.py -->"
UNIFORM = COMPARED[0]
LABELS = {
    UNIFORM: "`DataLoader(shuffle=True)`",
    "update": '`update()`, `sampler="Calibrated"`',
    "Passes": "`update()`",
    "score": "`score=`",
    "InfoBatch": "InfoBatch",
}
BATCH_SIZE = 64
KEPT = ("train_loss", "test_loss", "test_error", "test_f1")
MEANING = (
    "Training scripts with augmentation, AdamW, batches of 64 and one cycle of step sizes; five seeds, ± is the "
    "standard error of the mean. The learning rate is the best of 0.001, 0.003, 0.01, 0.03, 0.1 and 0.3 for the "
    "`DataLoader`, by validation examples and two other seeds in runs of fewer epochs, and the same for all "
    "loaders. Losses and errors are measured without augmentation, in evaluation mode, at the end. *`DataLoader`, same "
    "seconds*: what a `DataLoader` reaches in the seconds that the loader took, interpolated between its runs and runs "
    "of 1.5 times the epochs, which have a cycle of their own (a loss by its logarithm; beyond that, the longer runs "
    "count). Seconds are processor time of "
    "one thread, measured per step in turns; those of `score=` follow from the pools that a run has drawn, with a "
    "ratio of costs that was measured once for each script."
)


class Cell(NamedTuple):
    """A mean over seeds, and its standard error."""

    mean: float
    error: float

    def text(self, scale: float, digits: int) -> str:
        """Write both."""
        return f"{scale * self.mean:.{digits}f} ± {scale * self.error:.{digits}f}"


def main() -> None:
    """Take runs over, measure seconds, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the raw files")
    parser.add_argument("--store", type=Path, help="store with the runs, such as results/runs")
    parser.add_argument("--measure", action="store_true", help="measure the seconds of steps")
    parser.add_argument("--small", action="store_true", help="measure small steps only")
    arguments = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if arguments.store is not None:
        result |= {"where": where(), **read(arguments.store)}
    if arguments.measure:
        result["seconds"] = measure(arguments.data)
    if arguments.small:
        result["seconds"] |= measure_small()
    text = report(result)
    save(NAME, result, text)
    PAGE.write_text(written(result))
    print(text)


def written(result: Mapping[str, Any]) -> str:
    """Return docs/nets.md with the overview and the small steps between their marks."""
    text = PAGE.read_text()
    for mark, block in ((MARK, overview(result)), (MARK_SMALL, small_steps(result))):
        before, _, rest = text.partition(mark)
        text = f"{before}{mark}\n\n{block}\n\n{mark}{rest.partition(mark)[2]}"
    return text


def read(folder: Path) -> dict[str, Any]:
    """Return the runs of a store, and what the search for learning rates found."""
    records = [each for each in Store(folder).read()[0] if each["spec"].get("experiment") == "loaders"]
    runs, searched = [], []
    for record in records:
        spec, trace = record["spec"], record["trace"]
        row = {key: spec[key] for key in ("script", "loader", "rate", "epochs", "seed")}
        if spec["part"] == "rates":
            searched.append({**row, **{key: trace[key][-1] for key in trace if key.startswith("validation")}})
        else:
            counts = {key: record[key] for key in ("steps", "pools", "scored")}
            runs.append({**row, **counts, **{key: trace[key][-1] if trace else None for key in KEPT}})
    order = {name: place for place, name in enumerate(COMPARED)}
    runs.sort(key=lambda row: (row["script"], -row["epochs"], order[row["loader"]], row["seed"]))
    searched.sort(key=lambda row: (row["script"], row["rate"], row["seed"]))
    return {"runs": runs, "searched": searched}


def measure(folder: str | None) -> dict[str, Any]:
    """Return the seconds of a step with each loader of each script, and the ratios of costs that "auto" measures."""
    from loader_runs.scripts import SCRIPTS
    from loader_runs.training import cost_ratio, time_steps

    found: dict[str, Any] = {"where": where(), "steps": {}, "cost_ratios": {}, **measure_small()}
    for name, script in SCRIPTS.items():
        data = script.load(folder)
        found["steps"][name] = time_steps(name, data.X, data.y)
        ratio = float(np.median([cost_ratio(name, data.X, data.y) for _ in range(3)]))
        found["cost_ratios"][name] = {"used": script.cost_ratio, "measured": ratio}
        print(name, found["steps"][name], found["cost_ratios"][name], flush=True)
    return found


def measure_small() -> dict[str, Any]:
    """Return the seconds of small steps, and where they were measured."""
    from loader_runs.training import time_small_steps

    return {"small": time_small_steps(), "small_where": where()}


# --- what the runs show ---------------------------------------------------------------------


def seconds_of(run: Mapping[str, Any], steps: Mapping[str, float]) -> float:
    """Return the seconds of a run: of ``score=`` those of steps with and without a pool, and of each scored batch."""
    if run["loader"] != "score":
        return float(run["steps"] * steps[run["loader"]])
    batch = (steps["pool 4"] - steps["pool 2"]) / 2.0
    with_pool = steps["pool 2"] - 2.0 * batch
    without = run["steps"] - run["pools"]
    return float(without * steps["no pool"] + run["pools"] * with_pool + run["scored"] / BATCH_SIZE * batch)


def judged(run: Mapping[str, Any], measure: str) -> float:
    """Return a measure of a run; NaN if it diverged."""
    return math.nan if run[measure] is None else float(run[measure])


class Script:
    """The runs of one training script."""

    def __init__(self, name: str, result: Mapping[str, Any]) -> None:
        self.steps = result["seconds"]["steps"][name]
        self.runs = [run for run in result["runs"] if run["script"] == name]
        self.epochs = min(run["epochs"] for run in self.runs)
        self.rate = self.runs[0]["rate"]
        seeds = [run["seed"] for run in self.runs]
        self.seeds = {seed for seed in seeds if seeds.count(seed) == len(COMPARED) + 1}

    def of(self, loader: str, length: float = 1.0) -> list[Mapping[str, Any]]:
        """Return the runs of a loader and length, by seed; only seeds that all loaders have."""
        wanted = (loader, length * self.epochs)
        return [run for run in self.runs if (run["loader"], run["epochs"]) == wanted and run["seed"] in self.seeds]

    def seconds(self, loader: str, length: float = 1.0) -> float:
        """Return the mean seconds of the runs of a loader."""
        return float(np.mean([seconds_of(run, self.steps) for run in self.of(loader, length)]))

    def end(self, loader: str, measure: str) -> Cell:
        """Return a measure at the end of the longest runs."""
        return _cell([judged(run, measure) for run in self.of(loader)])

    def uniform_after(self, seconds: float, measure: str) -> Cell:
        """Return a measure of the `DataLoader` after some seconds: between the ends of its shorter and longer runs."""
        short, long = (self.seconds(UNIFORM, length) for length in (1.0, LONGER))
        part = min(max((seconds - short) / (long - short), 0.0), 1.0)
        pairs = zip(self.of(UNIFORM), self.of(UNIFORM, LONGER), strict=True)
        values = [(judged(first, measure), judged(second, measure)) for first, second in pairs]
        if measure.endswith("loss"):
            return _cell([math.exp((1.0 - part) * math.log(a) + part * math.log(b)) for a, b in values])
        return _cell([(1.0 - part) * a + part * b for a, b in values])

    def uniform(self, loader: str, measure: str) -> Cell:
        """Return a measure of the `DataLoader` after the seconds of another loader."""
        return self.uniform_after(self.seconds(loader), measure)

    def ratio(self, loader: str, measure: str) -> float:
        """Return a measure at the end, over that of the `DataLoader` after the same seconds."""
        return self.end(loader, measure).mean / self.uniform(loader, measure).mean

    def difference(self, loader: str, measure: str) -> Cell:
        """Return by how much a measure is above that of the `DataLoader` after the same seconds."""
        ours, uniform = self.end(loader, measure), self.uniform(loader, measure)
        return Cell(ours.mean - uniform.mean, math.hypot(ours.error, uniform.error))


def _cell(values: Sequence[float]) -> Cell:
    return Cell(float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values))))


def scripts_of(result: Mapping[str, Any]) -> dict[str, Script]:
    """Return the scripts whose runs are stored, with all seeds."""
    names = dict.fromkeys(run["script"] for run in result["runs"])
    return {name: Script(name, result) for name in TITLES if name in names}


TITLES = {  # as SCRIPTS has them; here without PyTorch
    "resnet": "ResNet on MNIST",
    "cnn": "CNN on CIFAR10",
    "mlp": "MLP on IJCNN1",
    "transformer": "Transformer on Shakespeare",
    "rare": "CNN on MNIST, 1 % positives",
    "noisy": "CNN on MNIST, 20 % random labels",
}
WITH_F1 = ("mlp", "rare")  # scripts with a rare class


def report(result: Mapping[str, Any]) -> str:
    """Return the tables."""
    scripts = scripts_of(result)
    parts = ["# Which loader pays", MEANING, *(_of_script(name, script) for name, script in scripts.items())]
    parts += ["## In short", _SHORT, overview(result), "## Small steps", _SMALL, small_steps(result)]
    parts += [_where(result["seconds"])]
    return "\n\n".join(parts)


_SHORT = (
    "Each loader against the `DataLoader` after the same seconds: the training loss as a part of its training loss, "
    "and the test error minus its test error, in points; in brackets, in standard errors."
)


_SMALL = (
    "Processor milliseconds of a step of a plain loop: an MLP with two hidden layers of this width, items in memory, "
    "one thread, in turns."
)


def small_steps(result: Mapping[str, Any]) -> str:
    """Return what `update` adds to a step that takes about a millisecond."""
    rows, place = [], result["seconds"]["small_where"]
    for width, steps in result["seconds"]["small"].items():
        milliseconds = [1e3 * steps[loader] for loader in (UNIFORM, "Passes", "update")]
        rows.append([width, *(f"{each:.2f}" for each in milliseconds), f"{milliseconds[1] / milliseconds[0]:.2f}"])
    headings = ["width", *(LABELS[loader] for loader in (UNIFORM, "Passes", "update")), "`update()` over `DataLoader`"]
    measured = f"Measured at commit {place['commit'][:12]} on {place['date'][:10]}, {place['processor']}."
    return f"{table(headings, rows)}\n\n{measured}"


def overview(result: Mapping[str, Any]) -> str:
    """Return one line for each script: loss ratios and differences of the test error, after the same seconds."""
    loaders = COMPARED[1:]
    rows = []
    for name, script in scripts_of(result).items():
        cells = []
        for loader in loaders:
            apart = script.difference(loader, "test_error")
            signed = f"{100.0 * apart.mean:+.2f} ({apart.mean / apart.error:+.1f})".replace("-", "−")
            cells.append(f"{script.ratio(loader, 'train_loss'):.2f}, {signed}")
        rows.append([TITLES[name], *cells])
    return table(["", *(LABELS[loader] for loader in loaders)], rows)


def _of_script(name: str, script: Script) -> str:
    f1 = name in WITH_F1
    rows = []
    for loader in COMPARED:
        cells = [LABELS[loader], f"{1e3 * script.seconds(loader) / script.of(loader)[0]['steps']:.2f}"]
        cells += [f"{script.seconds(loader) / script.seconds(UNIFORM):.2f}"]
        for look in (script.end, script.uniform):
            cells += [look(loader, "train_loss").text(1.0, 4), look(loader, "test_error").text(100.0, 2)]
            cells += [look(loader, "test_f1").text(1.0, 3)] if f1 else []
        rows.append(cells)
    measures = ["training loss", "test error, %", *(["F1"] if f1 else [])]
    headings = ["", "ms per step", "seconds, of the `DataLoader`'s", *measures]
    headings += [f"`DataLoader`, same seconds: {measure}" for measure in measures]
    about = f"{script.epochs:g} epochs, learning rate {script.rate:g}, seeds {len(script.of(UNIFORM))} of {len(SEEDS)}."
    return f"## {TITLES[name]}\n\n{about}\n\n{table(headings, rows)}"


def _where(seconds: Mapping[str, Any]) -> str:
    place = seconds["where"]
    ratios = ", ".join(
        f"{TITLES[name]} {each['used']:g} ({each['measured']:.2g})" for name, each in seconds["cost_ratios"].items()
    )
    return (
        f"Seconds measured at commit {place['commit'][:12]} on {place['date'][:10]}, {place['processor']}. Ratios of "
        f"costs used for `score=`, and in brackets as measured then: {ratios}."
    )


if __name__ == "__main__":
    main()
