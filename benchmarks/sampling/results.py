"""What the chains of the experiment show, measured against the reference of their posterior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avare.experiments.document import Figure, Panel, Section, Table
from avare.experiments.store import RecordError, Result, mapping_in, number
from avare.plotting.charts import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILION, Chart, Curve, Style, rank
from sampling.models import GRID, MODELS
from sampling.running import LEVELS, SHARES

REFERENCE = "sampling reference"
"""The kind of the records of reference chains."""
_STYLES = {
    "Uniform": Style(BLACK, "solid", "^"),
    "Reshuffled": Style(GREEN, "dash", "v"),
    "Preferential": Style(ORANGE, "dashdot", "D"),
    "Static": Style(SKY, "solid", "X"),
    "Avare": Style(BLUE, "solid", "o"),
    "Calibrated": Style(VERMILION, "solid", "s"),
}
_CONTROLS = {"none": "no control", "mode": "control at the mode", "saga": "control by SAGA's table"}
_COLUMNS = (
    "model; method; control; sampler; step; size|step size|digits; sd_error|error of sd|percent; "
    "mean_error|error of mean, in sd|percent; cover_50|50 % interval covers|percent; "
    "cover_90|90 % interval covers|percent; predicted|predicted widening|percent; kernel_stein|kernel Stein|digits; "
    "polynomial_stein|polynomial Stein|digits; test_loss|test log-loss|value; seconds|seconds per chain|seconds"
)
_NOTE = "How far the standard deviations are from those of the reference, mean over the coordinates. Lower is better."


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The chains of one setting, measured at each checkpoint."""

    spec: Mapping[str, Any]
    evaluations: NDArray[np.float64]
    seconds: NDArray[np.float64]
    sd_error: NDArray[np.float64]
    """Mean over the coordinates of |sd / true - 1|."""
    mean_error: NDArray[np.float64]
    """Mean over the coordinates of |mean - true| over the true standard deviation."""
    cover: Mapping[int, NDArray[np.float64]]
    """How much of the true posterior the intervals of 50 and 90 % hold, mean over the coordinates."""
    more: Mapping[str, Any]

    @property
    def is_automatic(self) -> bool:
        """Whether the step size was the default."""
        return isinstance(self.spec["step"], str)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """All settings, and the references they are measured by."""

    settings: Sequence[Setting]
    references: Mapping[str, Result]
    failed: Sequence[Result]

    def of(self, **wanted: Any) -> list[Setting]:
        """Return the settings whose specs have these values."""
        return [each for each in self.settings if all(each.spec.get(key) == value for key, value in wanted.items())]

    @property
    def models(self) -> list[str]:
        """The names of the models, in order."""
        return sorted({each.spec["dataset"] for each in self.settings}, key=lambda name: rank(name, MODELS))


def gather(results: Sequence[Result]) -> Found | None:
    """Measure all settings whose reference is there; None if there is none."""
    references = {each.spec["data_digest"]: each for each in results if each.kind == REFERENCE and each.shown}
    settings, failed = [], []
    for each in results:
        if each.kind == REFERENCE:
            continue
        if not each.shown:
            failed.append(each)
        elif each.spec["data_digest"] in references:
            settings.append(measured(each, references[each.spec["data_digest"]]))
    if not settings:
        return None
    settings.sort(
        key=lambda each: (
            rank(each.spec["dataset"], MODELS),
            rank(each.spec["method"], SHARES),
            rank(each.spec["control"], _CONTROLS),
            rank(each.spec["sampler"], _STYLES),
        )
    )
    return Found(settings, {str(each.spec["dataset"]): each for each in references.values()}, failed)


def measured(result: Result, reference: Result) -> Setting:
    """Compare the moments of a setting with those of the reference."""
    true = mapping_in(reference.stored, "reference")
    mean, sd = np.array(true["mean"], dtype=float), np.array(true["sd"], dtype=float)
    levels = np.array(true["quantiles"], dtype=float)
    rows = result.stored.get("moments")
    if not isinstance(rows, list):
        raise RecordError("lacks 'moments'")
    sd_error, mean_error = [], []
    cover: dict[int, list[float]] = {50: [], 90: []}
    for row in rows:
        sd_error.append(np.abs(np.array(row["sd"], dtype=float) / sd - 1.0).mean())
        mean_error.append((np.abs(np.array(row["mean"], dtype=float) - mean) / sd).mean())
        below = np.array([[np.interp(q, levels[:, k], GRID) for k, q in enumerate(line)] for line in row["quantiles"]])
        places = {level: place for place, level in enumerate(LEVELS)}
        cover[90].append((below[places[0.95]] - below[places[0.05]]).mean())
        cover[50].append((below[places[0.75]] - below[places[0.25]]).mean())
    keys = ("wider", "kernel_stein", "polynomial_stein", "test_loss", "size")
    return Setting(
        result.spec,
        result.trace["evaluations"],
        result.trace["seconds"],
        np.array(sd_error),
        np.array(mean_error),
        {level: np.array(values) for level, values in cover.items()},
        {key: result.stored.get(key) for key in keys},
    )


def table(found: Found) -> Table:
    """Return all settings at their end."""
    return Table.of("All settings, after all steps", _COLUMNS, [row(each) for each in found.settings])


def row(each: Setting) -> dict[str, Any]:
    """Return a setting at its end, by column."""
    spec, model = each.spec, MODELS.get(each.spec["dataset"])
    return {
        "model": spec["dataset"] if model is None else model.title,
        "method": spec["method"].upper(),
        "control": spec["control"],
        "sampler": spec["sampler"],
        "step": "automatic" if each.is_automatic else "shared",
        "size": each.more["size"],
        "sd_error": float(each.sd_error[-1]),
        "mean_error": float(each.mean_error[-1]),
        "cover_50": float(each.cover[50][-1]),
        "cover_90": float(each.cover[90][-1]),
        "predicted": each.more["wider"],
        "kernel_stein": each.more["kernel_stein"],
        "polynomial_stein": each.more["polynomial_stein"],
        "test_loss": each.more["test_loss"],
        "seconds": float(each.seconds[-1]),
    }


def reference_table(found: Found) -> Table:
    """Return the references with their diagnostics."""
    rows = [
        {"model": MODELS[name].title if name in MODELS else name, **mapping_in(each.stored, "diagnostics")}
        for name, each in found.references.items()
    ]
    columns = (
        "model; draws||integer; accepted||percent; r_hat|largest R-hat|ratio; "
        "sd_of_halves|sd of one half over the other, mean error|percent; test_loss|test log-loss|value"
    )
    return Table.of("References: Hamiltonian Monte Carlo with all data", columns, rows)


def aims(found: Found) -> Table:
    """Return what was aimed at, what was measured, and whether it was met.

    Errors below that of the reference itself do not tell apart: half of what its two halves differ by.
    """
    rows: list[dict[str, Any]] = []

    def compare(aim: str, model: str, ours: float, bound: float) -> None:
        if math.isfinite(ours) and math.isfinite(bound):
            blur = 0.5 * float(mapping_in(found.references[model].stored, "diagnostics")["sd_of_halves"])
            met = "yes" if ours <= bound else "as far as the reference can tell" if ours <= bound + blur else "no"
            title = MODELS[model].title if model in MODELS else model
            rows.append({"aim": aim, "model": title, "measured": ours, "bound": bound, "met": met})

    for model in found.models:
        for method in SHARES:
            error = {
                (each.spec["control"], each.spec["sampler"]): float(each.sd_error[-1])
                for each in found.of(dataset=model, method=method)
                if not each.is_automatic
            }
            plain = error.get(("none", "Uniform"), math.nan)
            words = f"{method.upper()}, no control: Avare's error of sd, at most half of Uniform's"
            compare(words, model, error.get(("none", "Avare"), math.nan), 0.5 * plain)
            for control in ("mode", "saga"):
                rivals = min(error.get((control, name), math.inf) for name in ("Uniform", "Reshuffled"))
                share = 0.7 if model == "rare" else 1.0
                words = f"{method.upper()}, control {control}: Calibrated's, at most {share:g} of the better of "
                words += "Uniform's and Reshuffled's"
                compare(words, model, error.get((control, "Calibrated"), math.nan), share * rivals)
                preferential = error.get((control, "Preferential"), math.nan)
                for name in ("Static", "Calibrated"):
                    words = f"{method.upper()}, control {control}: {name}'s, without Hessians, at most Preferential's"
                    compare(words, model, error.get((control, name), math.nan), preferential)
        for each in found.of(dataset=model):
            if each.is_automatic:
                words = f"{each.spec['method'].upper()}, default step: distance of the coverage from 90 %"
                compare(words, model, abs(float(each.cover[90][-1]) - 0.9), 0.02)
    columns = "aim; model; measured||percent; bound|at most|percent; met"
    return Table.of("Errors of the standard deviations, and coverage: aimed at and measured", columns, rows)


def charts(found: Found, model: str, method: str, over: str = "evaluations") -> list[Chart]:
    """Return one chart per control: the error of the standard deviations as the chains continue."""
    result = []
    for control, words in _CONTROLS.items():
        shown = [each for each in found.of(dataset=model, method=method, control=control) if not each.is_automatic]
        curves = tuple(
            Curve(each.spec["sampler"], getattr(each, over), each.sd_error, style=_STYLES.get(each.spec["sampler"]))
            for each in shown
        )
        if curves:
            title = {"evaluations": "Gradients of examples, per chain", "seconds": "Seconds of processor, per chain"}[
                over
            ]
            result.append(
                Chart(f"{method.upper()}, {words}", title, curves, "Error of sd", log_x=True, log_y=True, note=_NOTE)
            )
    return result


def figures(found: Found) -> dict[str, Figure]:
    """Return one figure per model: methods by controls."""
    result = {}
    for model in found.models:
        rows = [tuple(charts(found, model, method)) for method in SHARES]
        full = tuple(each for each in rows if len(each) == len(_CONTROLS))
        if full:
            title = MODELS[model].title if model in MODELS else model
            result[f"sampling-{model}"] = Figure(f"{title}: error of the standard deviations", full)
    return result


def panel(found: Found) -> Panel:
    """Return the tab of the page."""
    sections = [Section("Aims", (aims(found),))]
    for model in found.models:
        parts = [chart for method in SHARES for chart in charts(found, model, method)]
        parts += [chart for method in SHARES for chart in charts(found, model, method, "seconds")[:1]]
        sections.append(Section(MODELS[model].title if model in MODELS else model, tuple(parts)))
    sections += [Section("All settings", (table(found),)), Section("References", (reference_table(found),))]
    words = "Posteriors by constant steps. The noise of the gradient makes them too wide; samplers reduce it, and "
    words += "control variates remove most of it."
    return Panel("Sampling", tuple(sections), (words,))


def plain(found: Found) -> list[dict[str, Any]]:
    """Return everything that is shown, with all digits."""
    return [
        {
            **{key: value if not isinstance(value, float) else number(value) for key, value in row(each).items()},
            "evaluations": each.evaluations.tolist(),
            "sd_errors": each.sd_error.tolist(),
            "mean_errors": each.mean_error.tolist(),
        }
        for each in found.settings
    ]
