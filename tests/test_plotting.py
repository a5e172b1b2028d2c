"""Styles, bands, and what the figure of a calibrated memory shows, asked of the axes themselves."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import avare
from avare import plotting, samplers
from avare.plotting import Chart, Curve, Style
from avare.plotting.charts import GREEN, assign, styles_of
from sampler_checks import own_names


def marks(axis: Any, *, filled: bool) -> list[list[float]]:
    """Where the marks are: the hollow ones are white."""
    (cells,) = axis.collections
    hollow = (cells.get_facecolors()[:, :3] == 1.0).all(axis=1)
    return [place for place, white in zip(cells.get_offsets().tolist(), hollow, strict=True) if white != filled]


def drawn(sampler: avare.Calibrated) -> Any:
    figure = plotting.calibration(sampler)
    figure.draw_without_rendering()
    return figure


def test_shows_every_cell_where_it_is() -> None:
    sampler = avare.Calibrated(6, 1, decay=0.999, initial_norms=[1.0, 1.0, 4.0, 4.0, 4.0, 16.0])
    for _ in range(12):
        sampler.update([2], [4.0])
        sampler.update([5], [2.0])  # from the cell of 16 to that of 2
        sampler.update([5], [16.0])
    members, remembered, expected, observations = sampler.calibration()
    figure = drawn(sampler)
    (axis,) = figure.axes
    assert marks(axis, filled=True) == [[4.0, pytest.approx(4.0)], [16.0, pytest.approx(expected[-1])]]
    assert marks(axis, filled=False) == [[1.0, 1.0]] and observations[0] == 0.0
    sizes = 170.0 * np.sqrt(members / 3)  # the area grows with the root of the cell's members
    assert axis.collections[0].get_sizes().tolist() == pytest.approx(sizes.tolist())
    assert expected[-1] < 5.0 and remembered[-1] == 16.0  # below the diagonal
    diagonal, level = axis.lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    mean = np.sqrt(np.average(expected**2, weights=members))
    assert list(level.get_ydata()) == pytest.approx([mean, mean])
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    (legend,) = figure.legends
    assert "a cell; hollow: mostly the prior" in [text.get_text() for text in legend.get_texts()]
    assert not legend.get_window_extent().overlaps(axis.get_tightbbox())


def test_what_has_no_place_on_a_log_axis_is_counted() -> None:
    sampler = avare.Calibrated(50, 2, seed=0)
    sampler.update([0, 1, 2], [3.0, 0.0, 0.0])
    sampler.update([1], [5.0])  # of those with norm 0, another turned out to have 5
    figure = drawn(sampler)
    (axis,) = figure.axes
    assert len(marks(axis, filled=False)) == 2
    assert figure.get_suptitle() == "50 examples, 0 steps; 48 never seen, or with norm 0, are not shown"
    sampler = avare.Calibrated(3000, 2, initial_norms=np.r_[np.ones(10), np.zeros(2990)])
    assert "3,000 examples, 0 steps; 2,990 never seen, or with norm 0, are not shown" in drawn(sampler).get_suptitle()


def test_a_sampler_that_knows_nothing_can_be_drawn(tmp_path: Path) -> None:
    figure = drawn(avare.Calibrated(7, 2))
    assert [text.get_text() for text in figure.axes[0].texts] == ["nothing is expected yet"]
    figure.savefig(tmp_path / "memory.svg")
    assert b"<svg" in (tmp_path / "memory.svg").read_bytes()


def test_another_sampler_is_refused() -> None:
    with pytest.raises(TypeError, match=r"sampler is of type Avare: must be an avare\.Calibrated"):
        plotting.calibration(avare.Avare(3, 1))  # type: ignore[arg-type]  # the point


def test_the_band_ends_at_the_lowest_run_on_a_log_axis() -> None:
    mean, deviation = np.array([1.0, 1.0, -1.0, np.nan]), np.array([2.0, 0.5, 1.0, 1.0])
    curve = Curve("", np.arange(4.0), mean, deviation, np.array([0.1, 0.2, -3.0, np.nan]))
    bottom, top = curve.band(log=True)
    np.testing.assert_array_equal(bottom, [0.1, 0.5, np.nan, np.nan])
    np.testing.assert_array_equal(top, [3.0, 1.5, np.nan, np.nan])
    bottom, top = curve.band(log=False)
    np.testing.assert_array_equal(bottom, [-1.0, 0.5, -2.0, np.nan])
    np.testing.assert_array_equal(top, [3.0, 1.5, 0.0, np.nan])
    assert np.isnan(Curve("", np.arange(4.0), mean).band(log=True)).all()


def test_every_registered_sampler_has_its_own_style() -> None:
    names = {*own_names(), "Calibrated", "UpperBound"}
    found = assign(names)
    assert set(plotting.charts._KNOWN) >= names
    assert len({(style.colour, style.dash) for style in found.values()}) == len(names)
    assert len({style.marker for style in found.values()}) == len(names)


def test_a_style_does_not_depend_on_what_else_is_shown() -> None:
    assert assign(["Vrb"])["Vrb"] == assign(samplers.names())["Vrb"]


def test_unknown_names_get_the_next_free_style() -> None:
    names = [f"new{number:02}" for number in range(12)]
    found = assign([*names, "Avare"])
    taken = {(style.colour, style.dash) for style in assign(plotting.charts._KNOWN).values()}
    looks = [(found[name].colour, found[name].dash) for name in names]
    assert len(set(looks)) == 12 and not taken & set(looks)
    assert assign(names[:3])["new02"] == found["new02"]
    assert len(assign([f"new{number:03}" for number in range(100)])) == 100


def test_a_curve_may_bring_its_own_style() -> None:
    x, own = np.arange(2.0), Style(GREEN, "dot", "v")
    found = styles_of([Chart("", "", (Curve("Avare", x, x), Curve("mine", x, x, style=own)))])
    assert found == {"Avare": assign(["Avare"])["Avare"], "mine": own}


def test_the_import_needs_no_matplotlib() -> None:
    program = "import sys, avare.experiments.report; print('matplotlib' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
