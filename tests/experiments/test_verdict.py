"""The verdict on simulated curves: how often it is wrong, and how often it finds what is there."""

import math
from typing import Any

import numpy as np
import pytest

from avare.experiments.aggregate import groups_of
from avare.experiments.store import Result
from avare.experiments.verdict import Verdicts, compare_runs, sentences, verdicts_of

EPOCHS = 20


def curves(
    generator: np.random.Generator, runs: int, *, speed: float = 1.0, dim: int = 100, distance: float = 0.0
) -> list[tuple[Any, Any]]:
    """Suboptimalities of averaged iterates: normal noise per coordinate, averaged with weights t^3, and distance."""
    t = np.arange(1.0, EPOCHS + 1.0)
    weights = t**3
    found = []
    for _ in range(runs):
        sums = np.cumsum(weights[:, None] * generator.normal(size=(len(t), dim)), axis=0)
        noise = ((sums / np.cumsum(weights)[:, None]) ** 2).mean(axis=1) / speed
        height = noise + distance * np.exp(-4.0 * t / len(t))
        found.append((np.arange(EPOCHS + 1), np.append(1.0 + distance, height)))
    return found


def kinds(times: int, runs: int, speed: float = 1.0, seed: int = 0, **options: Any) -> dict[str, int]:
    generator = np.random.default_rng(seed)
    counts: dict[str, int] = {}
    for _ in range(times):
        found = compare_runs(curves(generator, runs, **options), curves(generator, runs, speed=speed, **options))
        counts[found.kind] = counts.get(found.kind, 0) + 1
    return counts


@pytest.mark.parametrize("runs", [3, 5])
@pytest.mark.parametrize(("dim", "distance"), [(5, 0.0), (30, 0.0), (5, 0.1)])
def test_equal_samplers_are_rarely_told_apart(runs: int, dim: int, distance: float) -> None:
    # The interval's level allows 2.5 % on each side. Of 200 draws, 5 % are 10: exceeded with a chance of 1 %.
    found = kinds(200, runs, dim=dim, distance=distance)
    assert found.get("faster", 0) < 10 and found.get("slower", 0) < 10


@pytest.mark.parametrize(("runs", "dim"), [(3, 150), (5, 100)])
def test_a_factor_of_one_and_a_half_is_found(runs: int, dim: int) -> None:
    assert kinds(50, runs, speed=1.5, dim=dim, seed=1).get("faster", 0) > 45
    assert kinds(50, runs, speed=1 / 1.5, dim=dim, seed=2).get("slower", 0) > 45


def test_the_interval_has_the_factor() -> None:
    generator = np.random.default_rng(3)
    found = [compare_runs(curves(generator, 5, dim=50), curves(generator, 5, speed=2.0, dim=50)) for _ in range(100)]
    assert sum(each.low <= 2.0 <= each.high for each in found) >= 88  # 95 % expected; fewer with a chance of 0.2 %


def test_distance_is_no_difference() -> None:
    generator = np.random.default_rng(4)
    found = compare_runs(curves(generator, 3, distance=1e3), curves(generator, 3, speed=3.0, distance=1e3))
    assert found.kind == "no difference" and found.words == "no significant difference over 3 runs"


def test_a_plateau_is_no_difference() -> None:
    # Both are on a plateau from epoch 2 on; one is a little lower there, and so is far sooner at the other's level.
    x = np.arange(21.0)
    slow = [(x, 100.0 + 900.0 * np.exp(-3.0 * x) - 0.001 * x + shift) for shift in (0.0, 0.01, -0.01)]
    fast = [(x, heights - 0.5) for _, heights in slow]
    found = compare_runs(slow, fast)
    assert found.kind == "no difference"


def test_the_same_end_after_more_seconds_is_slower() -> None:
    x = np.arange(21.0)
    runs = [(1.0 + 0.01 * seed) / (1.0 + x) for seed in range(3)]
    found = compare_runs([(x, each) for each in runs], [(2.0 * x, each) for each in runs])
    assert found.kind == "slower" and found.low < 0.5 < found.high
    flat = [1.0 + 0.01 * each for each in runs]  # unless nothing changes any more
    assert compare_runs([(x, each) for each in flat], [(2.0 * x, each) for each in flat]).kind == "no difference"


def test_one_run_cannot_tell() -> None:
    x = np.arange(1.0, 11.0)
    one, two = [(x, 1.0 / x)], [(x, 0.1 / x)]
    assert compare_runs(one, two).words == "inconclusive (1 run); try --runs 5"
    assert compare_runs(one, two).as_dict()["high"] is None


def test_one_epoch_cannot_tell() -> None:
    one = [([0.0, 1.0], [9.0, 1.0 + 0.01 * seed]) for seed in range(3)]
    found = compare_runs(one, [([0.0, 1.0], [9.0, 0.1])] * 3)
    assert found.words == "inconclusive (3 runs of 1 epoch); try --epochs 20"
    assert found.as_dict()["words"] == found.words and found.as_dict()["factor"] is None


def test_runs_that_are_the_same_and_runs_below_rounding() -> None:
    x = np.arange(1.0, 11.0)
    same = [(x, 1.0 / x)] * 3
    assert compare_runs(same, same).kind == "no difference" and compare_runs(same, same).factor == 1.0
    done = [(x, np.where(x > 3.0, -1e-16, 1.0 / x))] * 3  # at the optimum, up to rounding
    assert compare_runs(same, done).kind == "faster" and compare_runs(done, same).kind == "slower"


def record(sampler: str, seed: int, scale: float, status: str = "finished", steps: str = "auto") -> Result:
    x = np.arange(1.0, 21.0)
    spec = {"dataset": "mine", "steps": steps, "sampler": sampler, "seed": seed, "epochs": 20}
    trace = {"epoch": x, "seconds": 2.0 * x, "suboptimality": scale * (1 + 0.01 * seed) / x}
    return Result(spec, trace, {}, {}, status, status == "finished", {})


def found_in(results: list[Result]) -> Verdicts:
    return verdicts_of(groups_of(results))


def test_of_stored_runs() -> None:
    records = [record("Uniform", seed, 1.0) for seed in range(3)] + [record("Avare", seed, 0.4) for seed in range(3)]
    ((key, judged),) = found_in(records).items()
    assert key == ("mine", "auto", "Avare") and judged["epochs"].factor == pytest.approx(2.5, rel=0.02)
    assert judged["seconds"].factor == pytest.approx(2.5, rel=0.02)
    (line,) = sentences({key: judged})
    assert line == (
        "Verdict: Avare needs 2.4–2.6× fewer epochs than Uniform for the same loss. Wall-clock time: 2.4–2.6× faster."
    )
    (line,) = sentences(
        found_in([record("Uniform", k, 0.4) for k in range(3)] + [record("Avare", k, 1.0) for k in range(3)])
    )
    assert line == (
        "Verdict: Avare needs 2.4–2.6× more epochs than Uniform for the same loss. Wall-clock time: 2.4–2.6× slower."
    )
    assert not found_in(records[3:])  # there is no baseline
    both = found_in(
        [*records, *(record(name, k, 1.0, steps="constant") for name in ("Uniform", "Avare") for k in range(2))]
    )
    assert [line[:31] for line in sentences(both)] == [
        "Verdict: Avare (constant steps)",
        "Verdict: Avare (auto steps) nee",
    ]


def test_a_run_that_diverged_is_never_faster() -> None:
    records = [record("Uniform", seed, 1.0) for seed in range(3)]
    records += [record("Avare", seed, 0.4, "diverged" if seed == 1 else "finished") for seed in range(3)]
    found = found_in(records)
    (judged,) = found.values()
    assert judged["epochs"].kind == "inconclusive" and math.isnan(judged["epochs"].factor)
    (line,) = sentences(found)
    words = "inconclusive (a run diverged)"
    assert line == f"Verdict: Avare and Uniform, in epochs: {words}. Wall-clock time: {words}."
