"""The charts of the runs on nets, each described once, for the figures and for the page."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from avare.experiments.content import Figure, Panel, Part, Section
from avare.experiments.nets.plan import OPTIMISERS
from avare.experiments.nets.results import DEFAULT, UNIFORM, NetResults, SeedGroup
from avare.experiments.nets.tables import at_best
from avare.plotting import BLACK, DASHES, GREEN, GREY, PURPLE, SKY, Chart, Curve, Style, assign, log_ticks, ranked

QUESTIONS = {
    "nets-faster": "Does it train faster, each at its best settings?",
    "nets-step-and-batch": "Does it allow a larger step, or a smaller batch?",
    "nets-test-error": "Does the test error follow?",
    "nets-seconds": "What does it cost in seconds?",
    "nets-measures": "How do the other measures change, and how well are norms remembered?",
    "nets-parts": "Which part matters?",
    "nets-age": "Does the age of a remembered norm help?",
    "nets-larger-step": "Is it safe to spend the gain on a larger step?",
}
"""What each figure answers, by the name of its file."""
STEP_LABELS = (DEFAULT, "Avare", UNIFORM)
"""The samplers in the figure of step sizes."""
COMPOSED = (
    "calibrated",
    "calibrated, floor",
    "calibrated, replaced",
    "calibrated, floor, replaced",
    "remembered",
    "remembered, floor",
    "remembered, replaced",
    "remembered, floor, replaced",
    UNIFORM,
)
"""The variants that have some parts of `Calibrated`, and not others."""
VARIANTS = {
    "nets-age": ("calibrated", "by norm", "by norm and age"),
    "nets-larger-step": ("calibrated", "step × gain, up to 2", "step × gain, up to 5", UNIFORM),
}
"""The labels in each figure of other variants."""
LEVELS = {"best": "at its best step", "aggressive": "at a larger step"}
_FAMILIES = {"calibrated": DEFAULT, "remembered": "Avare"}  # what variants look like, by their first word
_STYLES = {
    **assign([DEFAULT, "Avare"]),
    UNIFORM: Style(BLACK, "solid", "^"),
    "Avare, √norm": Style(SKY, "dash", "h"),
    "calibrated": assign([DEFAULT])[DEFAULT],
    "by norm": Style(SKY, "solid", "v"),
    "by norm and age": Style(GREEN, "solid", "D"),
    "step × gain, up to 2": Style(GREEN, "dash", "P"),
    "step × gain, up to 5": Style(PURPLE, "solid", "X"),
}
_SIZE, _WIDE = (2.4, 2.0), (2.8, 2.0)  # of a chart, in inches
_MARK = {"markersize": 5.5, "markeredgewidth": 0.9, "zorder": 3.0}
_ALONG = {"epochs": "Epochs", "seconds": "Seconds of training"}


_MEASURES = {  # title, factor, and the first checkpoint that is shown
    "loss": ("Training loss", 1.0, 0),
    "gain": ("Gain realised", 1.0, 0),
    "test_error": ("Test error, %", 100.0, 1),
    "calibration_error": ("Calibration error, octaves", 1.0, 1),
}


class NetCharts:
    """Makes the figures and the panel of nets; a label has the same style in all of them."""

    def __init__(self, nets: NetResults) -> None:
        self.nets = nets
        self.styles = {**assign({group["sampler"] for group in nets.groups} - _STYLES.keys()), **_STYLES}
        variants = dict.fromkeys(group["sampler"] for group in nets.of("parts"))
        special = set(itertools.chain(*VARIANTS.values())) - set(COMPOSED)
        self._composed = ranked((label for label in variants if label not in special), COMPOSED)
        self._special = {name: labels for name, labels in VARIANTS.items() if special & set(labels) & variants.keys()}

    def figures(self) -> dict[str, Figure]:
        """Return each figure by the name of its file; figures without runs are left out."""
        rows = {**self._rows(), "nets-parts": self._ends()}
        sizes = {"nets-parts": (3.0, 0.26 * len(self._composed) + 0.5), **dict.fromkeys(VARIANTS, _WIDE)}
        return {
            name: Figure(question, tuple(rows[name]), sizes.get(name, _SIZE))
            for name, question in QUESTIONS.items()
            if any(rows.get(name, ()))
        }

    def panel(self) -> Panel:
        """Return the tab of the page: a section for each question, and the table of best settings."""
        rows, sections = self._rows(), []
        for name, question in QUESTIONS.items():
            parts: list[Part] = []
            for row in rows.get(name, ()):
                charts = [chart for chart in row if chart.curves]
                if charts:
                    parts += [f"{charts[0].y_title} against {charts[0].x_title.lower()}.", *charts]
            if parts:
                sections.append(Section(question, tuple(parts)))
        hint = "Curves are means of the runs; the shade is one standard deviation. Seconds are processor time."
        best = (at_best(self.nets),) if self.nets.of("best") else ()
        return Panel("Nets", (*sections, Section("At the best settings", (hint, *best))))

    def _rows(self) -> dict[str, Sequence[tuple[Chart, ...]]]:
        """Return the charts of each figure, row by row; for nets-parts, the curves that only the page shows."""
        return {
            "nets-faster": [self._at_best("loss", guide=_final_loss), self._at_best("gain", guide=_possible)],
            "nets-step-and-batch": self._steps(),
            "nets-test-error": [self._at_best("test_error"), self._against_loss()],
            "nets-seconds": [self._at_best("loss", "seconds"), self._step_times()],
            "nets-measures": [
                self._at_best("test_error", "seconds"),
                self._at_best("gain", "seconds"),
                self._at_best("calibration_error"),
                self._at_best("calibration_error", "seconds"),
            ],
            "nets-parts": self._by_level(self._composed),
            **{name: self._by_level(labels) for name, labels in self._special.items()},
        }

    def _at_best(
        self, measure: str, along: str = "epochs", *, guide: Callable[[NetResults, str], Curve | None] | None = None
    ) -> tuple[Chart, ...]:
        """Return a chart per net, with each sampler at its best setting."""
        charts = []
        for model, net in self._models("best").items():
            line = None if guide is None else guide(self.nets, model)
            charts.append(self._chart(net, self.nets.at_best(model), measure, along, [] if line is None else [line]))
        return tuple(charts)

    def _by_level(self, labels: Sequence[str]) -> list[tuple[Chart, ...]]:
        """Return the training loss of variants, a row per step size and a chart per net."""
        rows = []
        for level, words in LEVELS.items():
            charts = []
            for model, net in self._models("parts").items():
                size = min(group["batch_size"] for group in self.nets.of("parts", model=model))
                wanted = {"model": model, "level": level, "batch_size": size}
                groups = [group for label in labels for group in self.nets.of("parts", sampler=label, **wanted)]
                charts.append(self._chart(net, groups, "loss", y_title=f"Training loss {words}"))
            rows.append(tuple(charts))
        return rows

    def _chart(
        self,
        net: str,
        groups: Iterable[SeedGroup],
        measure: str,
        along: str = "epochs",
        guides: Sequence[Curve] = (),
        *,
        y_title: str = "",
    ) -> Chart:
        """Return a chart of a measure of groups; a cross ends the curve of a group with runs that diverged."""
        words, factor, first = _MEASURES[measure]
        curves, ends = [], []
        for group in groups:
            known = np.isfinite(group.mean(measure))
            known[:first] = False
            if known.any():
                style = self.styles[group["sampler"]]
                x = (group.epochs if along == "epochs" else group.mean(along))[known]
                curves.append(Curve.of_runs(group["sampler"], x, factor * group.runs[measure][:, known], style))
                if group.diverged:
                    ends.append((x[-1], curves[-1].mean[-1], style.colour))
        draw = partial(_draw_crosses, ends=ends) if curves else _draw_nothing
        return Chart(net, _ALONG[along], (*curves, *guides), y_title or words, log_y=True, draw=draw)

    def _steps(self) -> list[tuple[Chart, ...]]:
        """Return the loss at the end of the grid against constant step sizes, a row per optimiser."""
        grid = self.nets.of("grid", rule="constant")
        dashes = dict(zip(sorted({group["batch_size"] for group in grid}), itertools.cycle(DASHES), strict=False))
        rows = []
        for optimiser in ranked({group["optimiser"] for group in grid}, OPTIMISERS):
            charts = []
            for model, net in self._models("grid").items():
                wanted = {"rule": "constant", "model": model, "optimiser": optimiser}
                curves, lost = [], []
                for label, size in itertools.product(STEP_LABELS, dashes):
                    groups = self.nets.of("grid", sampler=label, batch_size=size, **wanted)
                    x = np.array([group["step"] for group in groups], dtype=np.float64)
                    y = np.array([group.last("loss") for group in groups])
                    style = self.styles[label]._replace(dash=dashes[size])
                    if groups:
                        curves.append(Curve(label, x, y, style=style))
                        lost += [(step, style.colour) for step in x[np.isnan(y)].tolist()]
                steps = sorted({group["step"] for group in self.nets.of("grid", **wanted)})
                draw = partial(_draw_steps, steps=steps, lost=lost, dashes=dashes)
                y_title = f"Final loss, {OPTIMISERS.get(optimiser, optimiser)}"
                charts.append(Chart(net, "Step size", tuple(curves), y_title, log_x=True, log_y=True, draw=draw))
            rows.append(tuple(charts))
        return rows

    def _against_loss(self) -> tuple[Chart, ...]:
        """Return the final test error of all settings against their training loss."""
        charts = []
        for model, net in self._models("best").items():
            groups = self.nets.of("best", model=model)
            dots = [(g.last("loss"), 100.0 * g.last("test_error"), self.styles[g["sampler"]]) for g in groups]
            draw = partial(_draw_scatter, dots=dots)
            charts.append(Chart(net, "Training loss at the end", y_title="Test error at the end, %", draw=draw))
        return tuple(charts)

    def _step_times(self) -> tuple[Chart, ...]:
        """Return the time of a step by sampler, for the two smallest batch sizes."""
        sizes = sorted({group["batch_size"] for group in self.nets.of("best")})[:2]

        def times(model: str, label: str, which: int) -> list[tuple[float, float]]:
            groups = self.nets.of("best", model=model, sampler=label, batch_size=sizes[which])
            found = [each for group in groups if math.isfinite(each := 1e3 * group.step_seconds)]
            return [(float(np.mean(found)), math.nan)] if found else []

        words = [f"batches of {size}" for size in sizes]
        return self._dots("best", "Milliseconds per step", self.nets.samplers, words, times, log=False)

    def _ends(self) -> list[tuple[Chart, ...]]:
        """Return final loss and gain of variants, at both step sizes."""
        levels = list(LEVELS)

        def ends(measure: str, model: str, label: str, which: int) -> list[tuple[float, float]]:
            groups = self.nets.of("parts", model=model, sampler=label, level=levels[which])
            return [(group.last(measure), group.error(measure)) for group in groups]

        return [
            self._dots("parts", title, self._composed, list(LEVELS.values()), partial(ends, measure), log=True)
            for measure, title in (("loss", "Training loss at the end"), ("gain", "Gain realised at the end"))
        ]

    def _dots(
        self,
        part: str,
        title: str,
        labels: Sequence[str],
        words: Sequence[str],
        values: Callable[[str, str, int], list[tuple[float, float]]],
        *,
        log: bool,
    ) -> tuple[Chart, ...]:
        """Return a chart per net with a line per label, and in it the values of each word with their errors."""
        charts: list[Chart] = []
        for model, net in self._models(part).items():
            dots = [
                _Dot(place, value, error, self.styles[_FAMILIES.get(label.split(",")[0], label)], filled=which == 0)
                for place, label in enumerate(labels)
                for which in range(len(words))
                for value, error in values(model, label, which)
            ]
            named = [""] * len(labels) if charts else labels  # once, at the left
            draw = partial(_draw_dots, labels=named, dots=dots, words=words, log=log)
            charts.append(Chart(net, title, draw=draw))
        return tuple(charts)

    def _models(self, part: str) -> dict[str, str]:
        return {model: net for model, net in self.nets.models.items() if self.nets.of(part, model=model)}


def _final_loss(nets: NetResults, model: str) -> Curve | None:
    """Return a line at uniform's final loss."""
    uniform = nets.best(model, UNIFORM)
    if uniform is None:
        return None
    level = np.full(2, uniform.last("loss"))
    return Curve("", uniform.epochs[[0, -1]], level, style=Style(GREY, "dot", "o"), guide=True)


def _possible(nets: NetResults, model: str) -> Curve | None:
    """Return the gain that is possible at the parameters that `Calibrated` trains."""
    group = nets.best(model, DEFAULT)
    if group is None:
        return None
    style = Style(GREY, "dashdot", "o")
    return Curve(f"possible, with {DEFAULT}", group.epochs, group.mean("possible"), style=style, guide=True)


# --- what only figures have -----------------------------------------------------------------


class _Dot(NamedTuple):
    """A value in a line of a chart, with its standard error; hollow dots are a little lower than filled ones."""

    line: int
    value: float
    error: float
    style: Style
    filled: bool


def _draw_nothing(axis: Any) -> None:
    axis.text(0.5, 0.5, "no values", transform=axis.transAxes, ha="center", va="center", color=GREY)
    axis.set_yticks([])


def _draw_crosses(axis: Any, ends: Iterable[tuple[float, float, str]]) -> None:
    for x, y, colour in ends:
        axis.plot([x], [y], marker="x", markersize=7, markeredgewidth=1.5, color=colour, zorder=4.0)


def _draw_steps(
    axis: Any, steps: Sequence[float], lost: Sequence[tuple[float, str]], dashes: Mapping[int, str]
) -> None:
    """Name the step sizes, mark at the top those at which runs diverged, and explain the dashes."""
    axis.set_xticks(steps, [f"{step:g}" for step in steps])
    axis.minorticks_off()
    for step in {step for step, _ in lost}:
        colours = [colour for lost_step, colour in lost if lost_step == step]
        for place, colour in enumerate(colours):
            x = step * 1.16 ** (place - (len(colours) - 1))  # beside each other; the largest step is at the edge
            axis.plot([x], [0.97], marker="x", markersize=5, color=colour, transform=axis.get_xaxis_transform())
    for size, dash in dashes.items():
        axis.plot([], [], color=GREY, linestyle=DASHES[dash], label=f"batches of {size}")
    axis.plot([], [], color=GREY, linestyle="", marker="x", markersize=5, label="diverged")


def _draw_scatter(axis: Any, dots: Iterable[tuple[float, float, Style]]) -> None:
    for x, y, style in dots:
        look = {"marker": style.marker, "facecolor": style.colour, "edgecolor": "white"}
        axis.scatter([x], [y], s=20, linewidth=0.3, alpha=0.85, zorder=2.5, **look)
    axis.set_xscale("log")
    log_ticks(axis.xaxis)


def _draw_dots(axis: Any, labels: Sequence[str], dots: Iterable[_Dot], words: Sequence[str], *, log: bool) -> None:
    """Draw dots in named lines, with two standard errors; filled and hollow ones mean what the words say."""
    values = []
    for dot in dots:
        y, colour = dot.line + (-0.14 if dot.filled else 0.14), dot.style.colour
        if math.isnan(dot.value):
            place = {"transform": axis.get_yaxis_transform(), "ha": "right", "va": "center"}
            axis.text(0.98, y, "diverged", fontsize=7, color=colour, **place)
            continue
        if math.isfinite(dot.error):
            ends = [max(dot.value - 2.0 * dot.error, 0.02 * dot.value), dot.value + 2.0 * dot.error]
            axis.plot(ends, [y] * 2, color=colour, linewidth=1.0, alpha=0.6, zorder=2.0)
        face = colour if dot.filled else "white"
        axis.plot([dot.value], [y], linestyle="", marker=dot.style.marker, color=colour, markerfacecolor=face, **_MARK)
        values.append(dot.value)
    if log and values:
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 1.4, max(values) * 1.4)
        log_ticks(axis.xaxis)
    else:
        axis.set_xlim(left=0.0)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    for text, face in zip(words, (GREY, "white"), strict=False):
        axis.plot([], [], linestyle="", marker="o", color=GREY, markerfacecolor=face, label=text, **_MARK)
