"""What the figures show, asked of the axes themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stored_runs
from avare.report import figures
from avare.report.results import gather
from stored_runs import put, run


def drawn(folder: Path, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Each figure by its name, laid out, and not written."""
    found = dict(figures._figures(gather(put(folder, records))))
    for figure in found.values():
        figure.draw_without_rendering()
    return found


def test_one_row_a_dataset_and_one_column_a_measure(tmp_path: Path) -> None:
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
        "reproduce-decreasing",
        "reproduce-synthetic-decreasing",
        "reproduce-constant",
        "compare-decreasing",
    ]
    axes = found["reproduce-decreasing"].axes
    assert len(axes) == 6 and len(found["reproduce-constant"].axes) == 3
    assert [axis.get_title() for axis in axes[:3]] == [title for title, _ in figures.AXES.values()]
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


def test_what_is_rounding_is_not_shown_on_a_log_axis(tmp_path: Path) -> None:
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


def test_a_narrow_log_axis_has_numbers_on_it(tmp_path: Path) -> None:
    record = run("cifar10", epochs=3)
    record["trace"]["relative_error"] = [1.9, 1.5, 1.3, 1.2]
    record["trace"]["suboptimality"] = [8.0, 3.0, 2.0, 1.5]
    (figure,) = drawn(tmp_path, [record]).values()
    for axis in (figure.axes[0], figure.axes[2]):
        low, high = axis.get_ylim()
        within = [value for value in axis.get_yticks() if low <= value <= high]
        assert len(within) >= 2
    assert "2" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_a_run_of_no_epoch_can_be_drawn(tmp_path: Path) -> None:
    record = run(epochs=1)
    record["trace"] = {name: values[:1] for name, values in record["trace"].items()}
    assert len(drawn(tmp_path, [record])) == 1


def test_theory_shows_slopes_and_bounds(tmp_path: Path) -> None:
    records = [stored_runs.theory(method, seed) for method in ("sgd", "sgld") for seed in range(2)]
    other = stored_runs.record(
        {"experiment": "theory", "method": "other", "seed": 0}, trace={"step": [0, 10], "regret": [0.0, 5.0]}
    )
    nothing = stored_runs.record(
        {"experiment": "theory", "method": "none", "seed": 0}, trace={"step": [1, 10], "regret": [0.0, 0.0]}
    )
    (axis,) = drawn(tmp_path, [*records, other, nothing])["theory"].axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["OTHER", "SGD, slope 0.60", "SGLD, slope 0.75"]
    assert [text.get_text() for text in axis.texts] == ["$T^{2/3}$", "$T^{5/6}$"]
    sgd = next(line for line in axis.lines if line.get_linestyle() == "--")
    x, y = (np.log(values) for values in sgd.get_data())
    assert (y[-1] - y[0]) / (x[-1] - x[0]) == pytest.approx(2 / 3)


def test_theory_without_growth_is_an_empty_figure(tmp_path: Path) -> None:
    nothing = stored_runs.record(
        {"experiment": "theory", "method": "sgd", "seed": 0}, trace={"step": [1, 10], "regret": [0.0, 0.0]}
    )
    (axis,) = drawn(tmp_path, [nothing])["theory"].axes
    assert axis.get_legend() is None and not axis.lines


def test_the_same_store_gives_the_same_files(tmp_path: Path) -> None:
    results = gather(put(tmp_path / "store", [run(epochs=3)]))
    first, second = (figures.draw(results, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in first] == ["reproduce-decreasing.png", "reproduce-decreasing.svg"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG") and b"<svg" in first[1].read_bytes()
