"""The charts of the runs on nets, each described once, for the figures and for the page."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from avare.experiments.document import Figure, Panel, Section, SectionPart
from avare.plotting.charts import BLACK, DASHES, GREEN, GREY, PURPLE, SKY, Chart, Curve, Style, assign, ranked
from nets.marks import Dot, crosses, dots, scatter
from nets.plan import OPTIMISERS
from nets.results import DEFAULT, UNIFORM, NetResults, SeedGroup
from nets.tables import at_best

QUESTIONS = {
    "nets-faster": "Does it train faster, each at its best settings?",
    "nets-step-and-batch": "Does it allow a larger step, or a smaller batch?",
    "nets-test-error": "Does the test error follow?",
    "nets-seconds": "What does it cost in seconds?",
    "nets-measures": "How do the other measures change, and how well are norms remembered?",
    "nets-parts": "Which part matters?",
    "nets-larger-step": "Is it safe to spend the gain on a larger step?",
}
"""What each figure answers, by the name of its file."""
HINTS = {
    "nets-faster": "Dotted: uniform's final loss. The gain is uniform's second moment over that of the next draw.",
    "nets-measures": "Calibration: how many octaves expected norms differ from true ones, on average.",
    "nets-step-and-batch": "Constant steps, at the end of the grid. Solid: the smallest batches.",
}
"""What else the page says."""
STEP_LABELS = (DEFAULT, "Avare", UNIFORM)
"""The samplers in the figure of step sizes."""
COMPOSED = tuple(
    f"{memory}{floor}{drawn}"
    for memory, drawn, floor in itertools.product(("calibrated", "remembered"), ("", ", replaced"), ("", ", floor"))
)
"""The variants with some of the parts of `Calibrated`."""
VARIANTS = {
    "nets-larger-step": ("calibrated", "step × gain, up to 2", "step × gain, up to 5", UNIFORM),
}
"""The labels in the figures of other variants."""
LEVELS = {"best": "at the best step", "aggressive": "at a larger step"}
_FAMILIES = {"calibrated": DEFAULT, "remembered": "Avare"}  # which style variants have in nets-parts
_STYLES = {
    **assign([DEFAULT, "Avare"]),
    UNIFORM: Style(BLACK, "solid", "^"),
    "Avare, √norm": Style(SKY, "dash", "h"),
    "calibrated": assign([DEFAULT])[DEFAULT],
    "step × gain, up to 2": Style(GREEN, "dash", "P"),
    "step × gain, up to 5": Style(PURPLE, "solid", "X"),
}
_SIZE, _WIDE = (2.4, 2.0), (2.8, 2.0)  # of a chart, in inches
_ALONG = {"epochs": "Epochs", "seconds": "Seconds of training"}
_MEASURES = {  # title, factor, and the first checkpoint that is shown
    "loss": ("Training loss", 1.0, 0),
    "gain": ("Gain realised", 1.0, 0),
    "test_error": ("Test error, %", 100.0, 1),
    "calibration_error": ("Calibration, octaves", 1.0, 1),
}
Row = tuple[Chart, ...]


class NetCharts:
    """Makes the figures and the panel of nets; a label has the same style in all of them."""

    def __init__(self, nets: NetResults) -> None:
        self.nets = nets
        self.styles = {**assign({group["sampler"] for group in nets.groups} - _STYLES.keys()), **_STYLES}
        variants = {group["sampler"] for group in nets.of("parts")}
        special = set(itertools.chain(*VARIANTS.values())) - {UNIFORM, *COMPOSED}
        self._composed = ranked(variants - special, (*COMPOSED, UNIFORM))
        self._special = {name: labels for name, labels in VARIANTS.items() if special & variants & set(labels)}

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
        sections = []
        for name, rows in self._rows().items():
            parts: list[SectionPart] = [HINTS[name]] if name in HINTS else []
            for row in ([chart for chart in row if chart.curves] for row in rows):
                parts += [f"{row[0].y_title} against {row[0].x_title.lower()}.", *row] if row else []
            if any(isinstance(part, Chart) for part in parts):
                sections.append(Section(QUESTIONS[name], tuple(parts)))
        hint = "Curves are means of the runs; the shade is one standard deviation. Seconds are processor time."
        best = (at_best(self.nets),) if self.nets.of("best") else ()
        return Panel("Nets", (*sections, Section("At the best settings", (hint, *best))))

    def _rows(self) -> dict[str, Sequence[Row]]:
        """Return the charts of each figure, row by row; for nets-parts, the curves that the page shows."""
        return {
            "nets-faster": [self._at_best("loss", guided=True), self._at_best("gain", guided=True)],
            "nets-step-and-batch": self._steps(),
            "nets-test-error": [self._at_best("test_error"), self._per_net("best", self._against_loss)],
            "nets-seconds": [self._at_best("loss", "seconds"), self._step_times()],
            "nets-measures": [
                *(self._at_best(measure, "seconds") for measure in ("test_error", "gain")),
                *(self._at_best("calibration_error", along) for along in _ALONG),
            ],
            "nets-parts": self._by_level(self._composed),
            **{name: self._by_level(labels) for name, labels in self._special.items()},
        }

    def _per_net(self, part: str, make: Callable[[str, str], Chart]) -> Row:
        """Return a chart per net of a part, made from the names of the net."""
        return tuple(make(model, net) for model, net in self.nets.models.items() if self.nets.of(part, model=model))

    def _at_best(self, measure: str, along: str = "epochs", *, guided: bool = False) -> Row:
        """Return the charts of a measure, with each sampler at its best setting."""

        def make(model: str, net: str) -> Chart:
            guides = _guides(self.nets, model, measure) if guided else []
            return self._chart(net, self.nets.at_best(model), measure, along, guides)

        return self._per_net("best", make)

    def _by_level(self, labels: Iterable[str]) -> list[Row]:
        """Return the training loss of variants, a row per step size."""

        def make(level: str, model: str, net: str) -> Chart:
            size = min(group["batch_size"] for group in self.nets.of("parts", model=model))
            wanted = {"model": model, "level": level, "batch_size": size}
            groups = [group for label in labels for group in self.nets.of("parts", sampler=label, **wanted)]
            return self._chart(net, groups, "loss", y_title=f"Loss {LEVELS[level]}")

        return [self._per_net("parts", partial(make, level)) for level in LEVELS]

    def _chart(
        self,
        net: str,
        groups: Iterable[SeedGroup],
        measure: str,
        along: str = "epochs",
        guides: Iterable[Curve] = (),
        y_title: str = "",
    ) -> Chart:
        """Return a chart of a measure; a cross ends the curve of a group with runs that diverged."""
        title, factor, first = _MEASURES[measure]
        curves, ends = [], []
        for group in groups:
            known = np.isfinite(group.mean(measure)) & (np.arange(len(group.epochs)) >= first)
            if known.any():
                style = self.styles[group["sampler"]]
                x = (group.epochs if along == "epochs" else group.mean(along))[known]
                curves.append(Curve.of_runs(group["sampler"], x, factor * group.runs[measure][:, known], style))
                ends += [(x[-1], curves[-1].mean[-1], style.colour)] * bool(group.diverged)
        draw = partial(crosses, points=ends) if curves else None
        return Chart(net, _ALONG[along], (*curves, *guides), y_title or title, log_y=True, draw=draw)

    def _steps(self) -> list[Row]:
        """Return the loss at the end of the grid against constant step sizes, a row per optimiser."""
        grid = self.nets.of("grid", rule="constant")
        dashes = dict(zip(sorted({group["batch_size"] for group in grid}), itertools.cycle(DASHES), strict=False))

        def make(optimiser: str, model: str, net: str) -> Chart:
            wanted = {"rule": "constant", "model": model, "optimiser": optimiser}
            curves, lost = [], []
            for label, size in itertools.product(STEP_LABELS, dashes):
                groups = self.nets.of("grid", sampler=label, batch_size=size, **wanted)
                x = np.array([float(group["step"]) for group in groups])
                y = np.array([group.last("loss") for group in groups])
                style = self.styles[label]._replace(dash=dashes[size])
                curves += [Curve(label, x, y, style=style)] * bool(groups)
                lost += [(step, style.colour) for step in x[np.isnan(y)]]
            steps = sorted({group["step"] for group in self.nets.of("grid", **wanted)})
            draw = partial(_draw_steps, steps=steps, lost=lost, dashes=dashes)
            title = f"Loss with {OPTIMISERS.get(optimiser, optimiser)}"
            return Chart(net, "Step size", tuple(curves), title, log_x=True, log_y=True, draw=draw)

        optimisers = ranked({group["optimiser"] for group in grid}, OPTIMISERS)
        return [self._per_net("grid", partial(make, optimiser)) for optimiser in optimisers]

    def _against_loss(self, model: str, net: str) -> Chart:
        """Return the final test error of all settings against their training loss."""
        groups = self.nets.of("best", model=model)
        points = [
            (group.last("loss"), 100.0 * group.last("test_error"), self.styles[group["sampler"]]) for group in groups
        ]
        draw = partial(scatter, points=points)
        return Chart(net, "Final training loss", y_title="Final test error, %", draw=draw)

    def _step_times(self) -> Row:
        """Return the time of a step by sampler, for the two smallest batch sizes."""
        sizes = sorted({group["batch_size"] for group in self.nets.of("best")})[:2]

        def times(model: str, label: str, which: int) -> list[tuple[float, float]]:
            groups = self.nets.of("best", model=model, sampler=label, batch_size=sizes[which])
            found = [each for group in groups if math.isfinite(each := 1e3 * group.step_seconds)]
            return [(float(np.mean(found)), math.nan)] if found else []

        words = [f"batches of {size}" for size in sizes]
        return self._dots("best", "Milliseconds per step", self.nets.samplers, words, times, log=False)

    def _ends(self) -> list[Row]:
        """Return final loss and gain of variants, at both step sizes."""

        def ends(measure: str, model: str, label: str, which: int) -> list[tuple[float, float]]:
            groups = self.nets.of("parts", model=model, sampler=label, level=list(LEVELS)[which])
            return [(group.last(measure), group.error(measure)) for group in groups]

        words = list(LEVELS.values())
        return [
            self._dots(
                "parts", f"{_MEASURES[each][0]} at the end", self._composed, words, partial(ends, each), log=True
            )
            for each in ("loss", "gain")
        ]

    def _dots(
        self,
        part: str,
        x_title: str,
        labels: Sequence[str],
        words: Sequence[str],
        values: Callable[[str, str, int], list[tuple[float, float]]],
        log: bool,
    ) -> Row:
        """Return charts with a line per label, and in it a dot per word: a value with its error."""

        def make(model: str, net: str) -> Chart:
            points = [
                Dot(line, which > 0, value, error, self.styles[_FAMILIES.get(label.split(",")[0], label)])
                for (line, label), which in itertools.product(enumerate(labels), range(len(words)))
                for value, error in values(model, label, which)
            ]
            return Chart(net, x_title, draw=partial(dots, labels=labels, points=points, words=words, log=log))

        return self._per_net(part, make)


def _guides(nets: NetResults, model: str, measure: str) -> list[Curve]:
    """Return lines to compare with: uniform's final loss, and the gain that is possible while `Calibrated` trains."""
    uniform, ours = nets.best(model, UNIFORM), nets.best(model, DEFAULT)
    if measure == "loss" and uniform is not None:
        level = np.full(2, uniform.last("loss"))
        return [Curve("", uniform.epochs[[0, -1]], level, style=Style(GREY, "dot", "o"), guide=True)]
    if measure == "gain" and ours is not None:
        style = Style(GREY, "dashdot", "o")
        return [Curve(f"possible, with {DEFAULT}", ours.epochs, ours.mean("possible"), style=style, guide=True)]
    return []


def _draw_steps(
    axis: Any, steps: Sequence[float], lost: Sequence[tuple[float, str]], dashes: Mapping[int, str]
) -> None:
    """Name the step sizes, mark at the top those at which runs diverged, and explain the dashes."""
    axis.set_xticks(steps, [f"{step:g}" for step in steps])
    axis.minorticks_off()
    for step in {step for step, _ in lost}:
        colours = [colour for lost_step, colour in lost if lost_step == step]
        for place, colour in enumerate(reversed(colours)):
            x = step / 1.16**place  # side by side, to the left: the largest step is at the edge
            axis.plot([x], [0.97], marker="x", markersize=5, color=colour, transform=axis.get_xaxis_transform())
    for size, dash in dashes.items():
        axis.plot([], [], color=GREY, linestyle=DASHES[dash], label=f"batches of {size}")
    if lost:
        axis.plot([], [], color=GREY, linestyle="", marker="x", markersize=5, label="diverged")
