"""What all benchmarks share: interleaved timing, where it was run, how it is kept."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from avare.experiments.runner import surroundings
from avare.experiments.store import numbers
from avare.plotting import Curve

RESULTS = Path(__file__).parent / "results"
_SLOW, _MUCH_SLOWER = 0.01, 300.0  # seconds, and times the quickest


def interleave(steps: Mapping[str, Callable[[], object]], *, seconds: float, rounds: int = 15) -> dict[str, float]:
    """The median seconds of each step, all measured in turn.

    Each step is run once to warm up, then a number of times a round, so that a round gives
    every step about the same time; one that takes longer than its share is run once. Rounds
    end after ``seconds``, but not before three.

    Steps that take hundreds of times as long as the quickest have turns of their own, after the
    others. While one of them runs for seconds, the system may take large pages away from data that
    the quick ones read, which no pause between two training steps would do.
    """
    once = {}
    for name, step in steps.items():
        step()
        started = time.perf_counter()
        step()
        once[name] = time.perf_counter() - started
    limit = max(_SLOW, _MUCH_SLOWER * min(once.values()))
    quick = {name: step for name, step in steps.items() if once[name] <= limit}
    slow = {name: step for name, step in steps.items() if once[name] > limit}
    found = _in_turns(quick, once, seconds, rounds)
    return {**found, **(_in_turns(slow, once, seconds, rounds) if slow else {})}


def _in_turns(
    steps: Mapping[str, Callable[[], object]], once: Mapping[str, float], seconds: float, rounds: int
) -> dict[str, float]:
    counts = {name: int(np.clip(seconds / rounds / len(steps) / max(once[name], 1e-9), 1, 2000)) for name in steps}
    times: dict[str, list[float]] = {name: [] for name in steps}
    began = time.perf_counter()
    for round_ in range(rounds):
        if round_ >= 3 and time.perf_counter() - began > seconds:
            break
        for name, step in steps.items():
            for _ in range(counts[name]):
                started = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - started)
    return {name: float(np.median(each)) for name, each in times.items()}


def where() -> dict[str, Any]:
    """The commit and the machine, without its name."""
    dirty = "-dirty" if _git("status", "--porcelain", "--", "src", "benchmarks/*.py") else ""
    return {"commit": _git("rev-parse", "HEAD") + dirty, **surroundings("torch")}


def save(name: str, result: dict[str, Any], markdown: str) -> None:
    """Keep a result as JSON and as a table that says where it comes from."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    place = result["where"]
    versions = ", ".join(f"{package} {number}" for package, number in place["versions"].items())
    commit = place["commit"][:12] + (", with changes that were not committed," if "dirty" in place["commit"] else "")
    source = f"Measured at commit {commit} on {place['date'][:10]}, {place['processor']}; {versions}."
    (RESULTS / f"{name}.md").write_text(f"{markdown}\n\n{source}\n")


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [headings, ["---", *(["---:"] * (len(headings) - 1))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> duration(0.0000213), duration(0.13), duration(2.5)
    ('21.3 µs', '130 ms', '2.5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def _git(*words: str) -> str:
    found = subprocess.run(
        ["git", *words], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or ("" if words[0] == "status" else "unknown")


def curve_numbers(curve: Curve) -> dict[str, Any]:
    """Return mean, deviation and lowest run of a curve."""
    columns = {"mean": curve.mean, "deviation": curve.deviation, "lowest": curve.lowest}
    return {name: numbers(values) for name, values in columns.items() if values is not None}
