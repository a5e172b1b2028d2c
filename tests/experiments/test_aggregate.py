"""Runs that differ by their seed alone are taken together; others are not."""

from typing import Any

import numpy as np
import pytest

from avare.experiments.aggregate import Group, Series, groups_of, last_epoch, last_rows, settings_of
from stored_runs import csv_rows, parsed, run


def groups(records: list[dict[str, Any]]) -> list[Group]:
    return groups_of(parsed(records))


def seeds(series: Series) -> list[int]:
    return [run.spec["seed"] for run in series.finished]


def labels(group: Group, rule: str = "decreasing") -> list[str]:
    return [series.label for series in group.of(rule)]


def test_mean_deviation_and_lowest_of_the_runs() -> None:
    (group,) = groups([run(seed=seed, spread=0.3) for seed in range(3)])
    (series,) = group.series
    assert seeds(series) == [0, 1, 2] and series.label == "Avare" and len(series.curve("regret").x) == 101
    # The three runs are 0.7, 1 and 1.3 times 1.5e11: by hand, deviation 0.3 with n - 1 = 2 below.
    curve = series.curve("regret")
    assert curve.deviation is not None and curve.lowest is not None
    assert (curve.mean[-1], curve.deviation[-1]) == pytest.approx((1.5e11, 0.3 * 1.5e11))
    assert curve.lowest[-1] == pytest.approx(0.7 * 1.5e11)
    assert (series.seconds("steps"), series.seconds("evaluation")) == pytest.approx((13.3, 4.5))


def test_one_run_has_no_deviation() -> None:
    (group,) = groups([run()])
    deviation = group.series[0].curve("regret").deviation
    assert deviation is not None and not deviation.any()


def test_runs_of_other_settings_are_not_mixed() -> None:
    records = [run(seed=seed, epochs=epochs) for seed in range(2) for epochs in (5, 20)]
    records += [run(batch_size=64, epochs=5), run(data_digest="f" * 64, epochs=5)]
    titles = {group.title: len(seeds(group.series[0])) for group in groups(records)}
    assert len(titles) == 4 and sorted(titles.values()) == [1, 1, 2, 2]
    assert any("batch_size = 64" in title and "epochs = 5" in title for title in titles)
    assert any("data_digest = ffffffffffff" in title for title in titles)
    assert all(title.startswith("MNIST, ") for title in titles)


def test_titles_and_details_are_in_words() -> None:
    found = groups([run(), run(held_out=600, bias=True)])
    assert [group.title for group in found] == [
        "MNIST, bias = False, held_out = 0",
        "MNIST, bias = True, held_out = 600",
    ]
    pairs = settings_of(found[1])
    assert (pairs["held out"], pairs["bias"], pairs["seeds"]) == (600, True, "0")
    assert pairs["Avare"] == '{"delta":1.0}'


def test_variants_of_a_sampler_have_their_own_names() -> None:
    records = [run(options={"p_min": value, "delta": 1.0}) for value in (0.0, 0.125)]
    records += [run(sampler="Srg", replacement=way) for way in (True, False)]
    records += [run(sampler="Vrb", options={"text": "x" * 50}), run(sampler="Vrb", options={"text": "y"})]
    (group,) = groups(records)
    assert {
        "Avare (p_min = 0)",
        "Avare (p_min = 0.125)",
        "Srg (replacement = True)",
        "Srg (replacement = False)",
    } < set(labels(group))
    assert f"Vrb (text = {'x' * 12})" in labels(group)


def test_options_that_are_missing_make_no_variant() -> None:
    (group,) = groups([run(seed=seed, options=None) for seed in range(2)])
    assert labels(group) == ["Avare"]


def test_order_of_datasets_rules_and_samplers() -> None:
    records = [
        run("zeta"),
        run("alpha"),
        run("synthetic"),
        run("cifar10"),
        run("mnist", steps="other"),
        run("mnist", "Uniform"),
        run("mnist", "New"),
        run("mnist", "Avare", steps="constant"),
        run("mnist", "Avare"),
    ]
    found = groups(records)
    assert [group.title for group in found] == ["MNIST", "CIFAR10", "Synthetic", "alpha", "zeta"]
    assert found[0].rules == ["decreasing", "constant", "other"]
    assert labels(found[0]) == ["Avare", "Uniform", "New"]


def test_runs_that_diverged_do_not_stop_it() -> None:
    wild = run(seed=1, epochs=2)
    wild["trace"]["suboptimality"] = [1e300, None, None]
    (group,) = groups([run(epochs=2), wild, {**run(seed=2, epochs=2), "status": "diverged"}])
    curve = group.series[0].curve("suboptimality")
    assert np.isfinite(curve.mean[0]) and np.isnan(curve.mean[1:]).all()
    assert seeds(group.series[0]) == [0, 1] and last_rows([group])[0]["diverged"] == 1


def test_the_last_epoch() -> None:
    found = groups([run(sampler=sampler, seed=seed) for sampler in ("Avare", "Osmd") for seed in range(3)])
    avare, osmd = csv_rows(last_epoch(last_rows(found)))
    assert (avare["dataset"], avare["steps"], avare["sampler"]) == ("MNIST", "decreasing", "Avare")
    assert avare["runs"] == "3" and float(avare["epochs"]) == 100
    assert float(avare["relative_error"]) == pytest.approx(0.1)
    assert float(avare["relative_error_deviation"]) == pytest.approx(0.01)
    assert float(avare["regret"]) == pytest.approx(1.5e11)
    assert osmd["sampler"] == "Osmd"
    assert not any(name.endswith("paper") for name in avare)


def test_columns_without_a_value_are_left_out() -> None:
    assert "diverged" not in csv_rows(last_epoch(last_rows(groups([run()]))))[0]
    (row,) = csv_rows(last_epoch(last_rows(groups([run(), {**run(seed=1), "status": "diverged"}]))))
    assert (row["diverged"], row["runs"]) == ("1", "2")


def test_a_result_about_the_same_data_fits_a_group() -> None:
    (group,) = groups([run()])
    same, other = parsed([run(sampler="Uniform", seed=7), run(l2=2.0)])
    assert group.fits(same) and not group.fits(other)
