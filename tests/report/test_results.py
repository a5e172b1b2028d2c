"""Runs that differ by their seed alone are taken together; others are not."""

from pathlib import Path

import numpy as np
import pytest

import stored_runs
from avare.experiments.paper.plan import exponent
from avare.report.results import Curve, gather
from stored_runs import put, run


def test_mean_deviation_and_lowest_of_the_runs(tmp_path: Path) -> None:
    (group,) = gather(put(tmp_path, [run(seed=seed, spread=0.3) for seed in range(3)])).groups
    (series,) = group.series
    assert series.seeds == (0, 1, 2) and series.label == "Avare" and len(series.epochs) == 101
    # The three runs are 0.7, 1 and 1.3 times 1.5e11: by hand, deviation 0.3 with n - 1 = 2 below.
    assert series.last("regret") == pytest.approx((1.5e11, 0.3 * 1.5e11))
    assert series.curves["regret"].lowest[-1] == pytest.approx(0.7 * 1.5e11)
    assert series.seconds == pytest.approx({"steps": 13.3, "evaluation": 4.5})


def test_one_run_has_no_deviation(tmp_path: Path) -> None:
    (group,) = gather(put(tmp_path, [run()])).groups
    assert not group.series[0].curves["regret"].deviation.any()


def test_the_band_ends_at_the_lowest_run_on_a_log_axis() -> None:
    curve = Curve(
        np.array([1.0, 1.0, -1.0, np.nan]), np.array([2.0, 0.5, 1.0, 1.0]), np.array([0.1, 0.2, -3.0, np.nan])
    )
    bottom, top = curve.band(log=True)
    np.testing.assert_array_equal(bottom, [0.1, 0.5, np.nan, np.nan])
    np.testing.assert_array_equal(top, [3.0, 1.5, np.nan, np.nan])
    bottom, top = curve.band(log=False)
    np.testing.assert_array_equal(bottom, [-1.0, 0.5, -2.0, np.nan])
    np.testing.assert_array_equal(top, [3.0, 1.5, 0.0, np.nan])


def test_runs_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    records = [run(seed=seed, epochs=epochs) for seed in range(2) for epochs in (5, 20)]
    records += [run(batch_size=64, epochs=5), run(data_digest="f" * 64, epochs=5)]
    titles = {group.title: len(group.series[0].seeds) for group in gather(put(tmp_path, records)).groups}
    assert len(titles) == 4 and sorted(titles.values()) == [1, 1, 2, 2]
    assert any("batches of 64" in title and "5 epochs" in title for title in titles)
    assert any("data ffffff" in title for title in titles)
    assert all(title.startswith("MNIST, ") for title in titles)


def test_variants_of_a_sampler_have_names_of_their_own(tmp_path: Path) -> None:
    records = [run(options={"p_min": value, "delta": 1.0}) for value in (0.0, 0.125)]
    records += [run(sampler="Srg", replacement=way) for way in (True, False)]
    records += [run(sampler="Vrb", options={"text": "x" * 50}), run(sampler="Vrb", options={"text": "y"})]
    results = gather(put(tmp_path, records))
    (group,) = results.groups
    labels = group.labels
    assert {"Avare (p_min = 0)", "Avare (p_min = 0.125)", "Srg (with replacement)", "Srg (without replacement)"} < set(
        labels
    )
    assert f"Vrb (text = {'x' * 23}…)" in labels
    assert set(results.styles) == set(labels)


def test_runs_evaluated_elsewhere_are_not_averaged(tmp_path: Path) -> None:
    other = run(seed=1, epochs=10)
    other["trace"] = {name: values[::2] for name, values in other["trace"].items()}
    (group,) = gather(put(tmp_path, [run(epochs=10), other])).groups
    assert group.labels == ["Avare (11 evaluations)", "Avare (6 evaluations)"]


def test_options_that_are_missing_make_no_variant(tmp_path: Path) -> None:
    records = [run(seed=seed, options=None) for seed in range(2)]
    (group,) = gather(put(tmp_path, records)).groups
    assert group.labels == ["Avare"]


def test_order_of_datasets_rules_and_samplers(tmp_path: Path) -> None:
    records = [
        run("zeta", experiment="compare"),
        run("alpha", experiment="compare"),
        run("mnist", experiment="compare"),
        run("synthetic"),
        run("cifar10"),
        run("mnist", steps="other"),
        run("mnist", "Uniform"),
        run("mnist", "New"),
        run("mnist", "Avare", steps="constant"),
        run("mnist", "Avare"),
    ]
    groups = gather(put(tmp_path, records)).groups
    assert [group.title for group in groups] == ["MNIST", "CIFAR10", "Synthetic", "MNIST, compared", "alpha", "zeta"]
    assert groups[0].rules == ["decreasing", "constant", "other"]
    assert [series.label for series in groups[0].of("decreasing")] == ["Avare", "Uniform", "New"]


def test_runs_that_went_astray_do_not_stop_it(tmp_path: Path) -> None:
    wild = run(seed=1, epochs=2)
    wild["trace"]["suboptimality"] = [1e300, None, None]
    (group,) = gather(put(tmp_path, [run(epochs=2), wild])).groups
    curve = group.series[0].curves["suboptimality"]
    assert np.isfinite(curve.mean[0]) and np.isnan(curve.mean[1:]).all()


def test_growth_of_the_regret(tmp_path: Path) -> None:
    records = [stored_runs.theory(method, seed) for method in ("sgd", "sgld") for seed in range(3)]
    growths = gather(put(tmp_path, records)).growths
    assert [(growth.label, growth.runs) for growth in growths] == [("SGD", 3), ("SGLD", 3)]
    assert [growth.slope for growth in growths] == pytest.approx([0.6, 0.75])


def test_the_slope_is_the_mean_of_the_runs_exponents(tmp_path: Path) -> None:
    records = [stored_runs.theory("sgd", seed) for seed in range(2)]
    steps = np.array(records[0]["trace"]["step"])
    late = steps[-1] / 10.0
    records[0]["trace"]["regret"] = np.where(steps < late, steps**2, late**2 * (steps / late) ** 0.5).tolist()
    (growth,) = gather(put(tmp_path, records)).growths
    assert growth.slope == pytest.approx((0.5 + 0.6) / 2, rel=1e-6)
    assert growth.slope == np.mean([exponent(record) for record in records])


def test_theory_of_other_settings_is_not_mixed(tmp_path: Path) -> None:
    other = stored_runs.theory("sgd")
    other["spec"] = {**other["spec"], "n": 50}
    labels = [growth.label for growth in gather(put(tmp_path, [stored_runs.theory("sgd"), other])).growths]
    assert sorted(labels) == ["SGD (n = 50)", "SGD (n = None)"]


def test_machines_and_dates(tmp_path: Path) -> None:
    records = [run(seed=0), run(seed=1), run(seed=2)]
    records[1]["where"] = {**stored_runs.WHERE, "processor": "Another", "date": "2026-11-18T00:00:00"}
    results = gather(put(tmp_path, records))
    assert [count for _, count in results.places] == [2, 1]
    assert results.dates == ("2026-11-16", "2026-11-18")


def test_an_empty_store_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"store = .*: holds no record of a finished run$"):
        gather(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"holds no record of a finished run; passed over: bad.json \(not JSON"):
        gather(tmp_path)
