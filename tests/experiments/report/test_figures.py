"""What the figures show, asked of the axes themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stored_runs
from avare.experiments.document import Figure
from avare.experiments.report.charts import lay_out, render
from avare.experiments.report.writing import gather
from avare.plotting.charts import Chart, Curve, drawing, new_figure, styles_of
from log_axes import log_ticks
from stored_runs import put, run


def drawn(folder: Path, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Each figure by its name, laid out, and not written."""
    contents = gather(put(folder, records))
    styles = contents.styles
    figures = {name: figure for summary in contents.summaries.values() for name, figure in summary.figures.items()}
    with drawing():
        found = {name: lay_out(figure, styles) for name, figure in figures.items()}
        for figure in found.values():
            figure.draw_without_rendering()
    return found


def labels(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_one_row_per_dataset_and_one_column_per_measure(tmp_path: Path) -> None:
    records = [
        run(dataset, sampler, steps=rule, epochs=10)
        for dataset in ("mnist", "ijcnn1")
        for sampler in ("Avare", "Uniform")
        for rule in ("decreasing", "constant")
        if (dataset, rule) != ("ijcnn1", "constant")
    ]
    records += [run("synthetic", epochs=10), run("digits", "New", experiment="compare", epochs=10)]
    found = drawn(tmp_path, records)
    assert list(found) == [
        "compare-decreasing",
        "reproduce-decreasing",
        "reproduce-constant",
        "reproduce-synthetic-decreasing",
    ]
    axes = found["reproduce-decreasing"].axes
    assert len(axes) == 6 and len(found["reproduce-constant"].axes) == 3
    titles = ["Suboptimality  f(x) − f*", "Dynamic regret", "Relative error"]
    assert [axis.get_title() for axis in axes] == [*titles, "", "", ""]
    assert [axis.get_yscale() for axis in axes] == ["log", "linear", "log"] * 2
    assert [axes[0].get_ylabel(), axes[3].get_ylabel()] == ["MNIST", "IJCNN1"]
    assert axes[5].get_xlabel() == "Epochs (data passes)" and axes[0].get_xlabel() == ""
    (legend,) = found["reproduce-decreasing"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["Avare", "Uniform"]
    box = legend.get_window_extent()
    assert all(not box.overlaps(axis.get_tightbbox()) for axis in axes)
    assert [line.get_color() for line in axes[0].lines] == ["#0072B2", "#000000"]


def test_a_band_below_zero_is_clipped_on_a_log_axis(tmp_path: Path) -> None:
    # Runs of 0.01, 0.01 and 3: the mean is 1.0, the deviation 1.7.
    records = [run(seed=seed, epochs=10) for seed in range(3)]
    for record, factor in zip(records, (0.01, 0.01, 3.0), strict=True):
        for measure in ("suboptimality", "regret"):
            record["trace"][measure] = [factor * (10.0 - epoch / 2) for epoch in range(11)]
    (figure,) = drawn(tmp_path, records).values()
    log, linear = figure.axes[0], figure.axes[1]
    (band,) = log.collections
    vertices = np.concatenate([path.vertices for path in band.get_paths()])
    assert vertices[:, 1].min() == pytest.approx(0.01 * 5.0)
    assert log.get_ylim()[0] > 1.0  # the axis follows the means, not the bottom of the band
    (band,) = linear.collections
    assert np.concatenate([path.vertices for path in band.get_paths()])[:, 1].min() < 0.0


def test_rounding_errors_are_not_shown_on_a_log_axis(tmp_path: Path) -> None:
    best = run(sampler="Optimal", epochs=10)
    best["trace"]["relative_error"] = [1e-16, 0.0, -1e-16] + [2e-16] * 8
    (figure,) = drawn(tmp_path, [best, run(epochs=10)]).values()
    assert figure.axes[2].get_ylim()[0] > 0.05
    optimal = figure.axes[2].lines[1]
    assert np.isnan(optimal.get_ydata()).all()


def test_a_measure_without_values_says_so(tmp_path: Path) -> None:
    record = run(epochs=3)
    record["trace"]["suboptimality"] = [None] * 4
    (figure,) = drawn(tmp_path, [record]).values()
    assert [text.get_text() for text in figure.axes[0].texts] == ["no values"]
    assert [len(axis.get_xticks()) > 0 for axis in figure.axes] == [
        False,
        True,
        True,
    ]  # no numbers that nobody measured
    assert not figure.axes[0].spines["left"].get_visible() and figure.axes[0].get_ylabel() == "MNIST"


def test_a_narrow_log_axis_has_numbers_on_it(tmp_path: Path) -> None:
    record = run("cifar10", epochs=3)
    record["trace"]["relative_error"] = [1.9, 1.5, 1.3, 1.2]
    record["trace"]["suboptimality"] = [8.0, 3.0, 2.0, 1.5]
    (figure,) = drawn(tmp_path, [record]).values()
    for axis in (figure.axes[0], figure.axes[2]):
        low, high = axis.get_ylim()
        ticks = [*axis.get_yticks(), *axis.get_yticks(minor=True)]
        within = [value for value in ticks if low <= value <= high]
        assert len(within) >= 2
        figure.draw_without_rendering()
        assert any(label.get_text() for label in axis.get_yticklabels(which="both"))


def test_theory_shows_slopes_and_bounds(tmp_path: Path) -> None:
    records = [stored_runs.theory(method, seed) for method in ("sgd", "sgld") for seed in range(2)]
    figure = drawn(tmp_path, records)["theory"]
    (axis,) = figure.axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert labels(figure) == ["SGD, slope 0.60", "T^(2/3)", "SGLD, slope 0.75", "T^(5/6)"]
    sgd = next(line for line in axis.lines if line.get_label() == "T^(2/3)")
    assert sgd.get_linestyle() == "--" and sgd.get_marker() == ""
    x, y = (np.log(values) for values in sgd.get_data())
    assert (y[-1] - y[0]) / (x[-1] - x[0]) == pytest.approx(2 / 3)
    assert x[0] == pytest.approx(np.log(1e6) - np.log(100.0), abs=0.2)  # over the last two decades
    values = next(line for line in axis.lines if line.get_label() == "SGD, slope 0.60").get_data()
    start = np.interp(x[0], np.log(values[0]), np.log(values[1]))
    assert y[0] == pytest.approx(start + np.log(1.5))  # a little above


def test_theory_without_growth_is_an_empty_figure(tmp_path: Path) -> None:
    nothing = stored_runs.record(
        {"experiment": "theory", "method": "sgd", "seed": 0}, trace={"step": [1, 10], "regret": [0.0, 0.0]}
    )
    figure = drawn(tmp_path, [nothing])["theory"]
    assert labels(figure) == [] and not figure.axes[0].lines
    assert [text.get_text() for text in figure.axes[0].texts] == ["no values"]


def test_the_same_store_gives_the_same_files(tmp_path: Path) -> None:
    contents = gather(put(tmp_path / "store", [run(epochs=3)]))
    (figure,) = contents.summaries["paper"].figures.values()
    first, second = (render(figure, contents.styles) for _ in range(2))
    assert first == second and list(first) == ["png", "svg"]
    assert first["png"].startswith(b"\x89PNG") and b"<svg" in first["svg"]


def test_more_can_be_drawn_and_gets_its_place_in_the_legend() -> None:
    x = np.arange(3.0)
    level = Curve("", x, np.full(3, 2.0), style=styles_of([Chart("", "", (Curve("a", x, x),))])["a"], guide=True)

    def dots(axis: Any) -> None:
        axis.plot([1.0], [2.0], "o", label="dots")

    top = Chart("Left", "x", (Curve("a", x, x), level), y_title="top", draw=dots)
    only = Chart("Left", "other x", y_title="bottom", draw=dots)
    right = Chart("Right", "x", (Curve("b", x, x),), y_title="top")
    charts = ((top, right), (only, Chart("Right", "other x", (Curve("a", x, x),), y_title="bottom")))
    with drawing():
        figure = lay_out(Figure("All", charts), styles_of(chart for row in charts for chart in row))
        figure.draw_without_rendering()
    assert labels(figure) == ["a", "dots", "b"] and figure.get_suptitle() == "All"
    assert [axis.get_title() for axis in figure.axes] == ["Left", "Right", "", ""]
    assert [axis.get_ylabel() for axis in figure.axes] == ["top", "", "bottom", ""]
    assert [axis.get_xlabel() for axis in figure.axes] == ["x", "x", "other x", "other x"]
    assert not figure.axes[2].texts


def test_a_long_legend_is_within_the_figure() -> None:
    curves = tuple(Curve(f"a sampler with a long name {number}", np.arange(2.0), np.ones(2)) for number in range(9))
    chart = Chart("Long", "x", curves)
    with drawing():
        figure = lay_out(Figure("", ((chart,),)), styles_of([chart]))
        figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.get_figwidth() * figure.dpi


def test_a_dollar_sign_is_a_dollar_sign(tmp_path: Path) -> None:
    records = [run("price$_$", sampler, experiment="compare", epochs=3) for sampler in ("Avare", r"a$\\frac$")]
    contents = gather(put(tmp_path, records))
    (figure,) = contents.summaries["compare"].figures.values()
    files = render(figure, contents.styles)
    assert files["png"].startswith(b"\x89PNG")
    drawn_figure = lay_out(figure, contents.styles)
    assert drawn_figure.axes[0].get_ylabel() == r"price\$_\$"


def tick_texts(low: float, high: float) -> list[str]:
    """What a log axis with these limits says at the ticks between them."""
    with drawing():
        figure = new_figure((3.2, 2.4))
        axis = figure.subplots()
        axis.set_yscale("log")
        axis.set_ylim(low, high)
        log_ticks(axis.yaxis)
        figure.draw_without_rendering()
        ticks = zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
        return [label.get_text() for value, label in ticks if low <= value <= high]


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (900.0, 6500.0, ["1000", "2000", "5000"]),
        (1.9e6, 8e6, ["2 × 10⁶", "5 × 10⁶"]),
        (1990.0, 2110.0, ["2000", "2020", "2040", "2060", "2080", "2100"]),
        (0.002, 0.03, ["0.002", "0.005", "0.01", "0.02"]),
        (1.1, 1.9, ["1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8"]),
        (5e-8, 4e-7, ["5 × 10⁻⁸", "10⁻⁷", "2 × 10⁻⁷"]),
    ],
)
def test_ticks_of_log_axes_are_whole_numbers(low: float, high: float, texts: list[str]) -> None:
    assert tick_texts(low, high) == texts


@given(st.floats(-9, 9), st.floats(0.01, 1.5))
@settings(max_examples=30, deadline=None)  # each draws a figure
def test_every_narrow_log_axis_has_some_ticks_inside(start: float, decades: float) -> None:
    texts = tick_texts(10.0**start, 10.0 ** (start + decades))
    assert 2 <= len(texts) <= 12 and len(set(texts)) == len(texts)
