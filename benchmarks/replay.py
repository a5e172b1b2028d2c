"""Weights that change: `WeightedSampler` against torch, `Prioritized` against cpprb and torchrl, DQN with and without.

Weights and priorities are log-normal(0, 1), and so are those reported after each draw of 256. All rivals keep both a
sum and a minimum tree. cpprb also copies one number per item of each batch. Of torchrl there are its sampler, as its
buffers call it, and its compiled trees alone, which is the least that does the work. A rival that is not installed is
left out. DQN is timed in processor seconds of one thread, both kinds in turns.
"""

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import avare.torch as avt
from avare.replay import Prioritized
from harness import RESULTS, duration, interleave, save, table, where

SIZE, ALPHA, BETA = 256, 0.6, 0.4
Step = Callable[[], object]


def lognormal(n: int) -> Any:
    """Priorities, all magnitudes of a few thousand repeated, so that a hundred million take seconds to make."""
    return np.resize(np.random.default_rng(0).lognormal(0.0, 1.0, 9973), n)


def news() -> Callable[[], Any]:
    """Batches of new priorities, one after another, again and again."""
    batches = np.random.default_rng(1).lognormal(0.0, 1.0, (64, SIZE))
    place = iter(range(10**12))
    return lambda: batches[next(place) % 64]


# --- weighted sampling ----------------------------------------------------------------------


def weighted_steps(n: int) -> dict[str, Step]:
    """A draw of a batch and the update of its weights."""
    sampler, weights, new = avt.WeightedSampler(lognormal(n), seed=0), torch.from_numpy(lognormal(n)), news()

    def ours() -> None:
        sampler.update(sampler.draw(SIZE), new())

    def multinomial() -> None:
        weights[torch.multinomial(weights, SIZE, replacement=True)] = torch.from_numpy(new())

    return {"WeightedSampler": ours, "torch.multinomial": multinomial}


def epochs(n: int, draws: int) -> dict[str, Step]:
    """Many draws at once, and as iterations over a sampler."""
    weights, few = torch.from_numpy(lognormal(n)), draws // 10
    sampler = avt.WeightedSampler(weights, few, seed=0)
    rival = torch.utils.data.WeightedRandomSampler(weights, few)
    return {
        "WeightedSampler": lambda: sampler.draw(draws),
        "torch.multinomial": lambda: torch.multinomial(weights, draws, replacement=True),
        "iterate WeightedSampler": lambda: sum(1 for _ in sampler),
        "iterate WeightedRandomSampler": lambda: sum(1 for _ in rival),
    }


# --- replay ---------------------------------------------------------------------------------


def ours(n: int) -> Step:
    """Prioritized, as a user calls it."""
    buffer, new = Prioritized(n, alpha=ALPHA, beta=BETA, seed=0), news()
    buffer.extend(lognormal(n))

    def step() -> None:
        indices, _ = buffer.sample(SIZE)
        buffer.update(indices, new())

    return step


def of_cpprb(n: int) -> Step:
    """The buffer of cpprb, with one number per item."""
    from cpprb import PrioritizedReplayBuffer

    buffer, new, priorities = PrioritizedReplayBuffer(n, {"x": {}}, alpha=ALPHA), news(), lognormal(n)
    for first in range(0, n, 10**6):
        part = priorities[first : first + 10**6]
        buffer.add(x=part, priorities=part)

    def step() -> None:
        buffer.update_priorities(buffer.sample(SIZE, beta=BETA)["indexes"], new())

    return step


class Storage:
    """What torchrl's sampler asks of a storage."""

    ndim, device = 1, torch.device("cpu")

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n


def of_torchrl(n: int) -> Step:
    """The sampler of torchrl."""
    from torchrl.data import PrioritizedSampler

    sampler, storage, new = PrioritizedSampler(n, ALPHA, BETA), Storage(n), news()
    sampler.update_priority(torch.arange(n), torch.from_numpy(lognormal(n)).float())

    def step() -> None:
        index, _ = sampler.sample(storage, SIZE)
        sampler.update_priority(index, torch.from_numpy(new()).float())

    return step


def of_torchrl_trees(n: int) -> Step:
    """The compiled trees of torchrl, in float32: draw, weigh, update."""
    from torchrl._torchrl import MinSegmentTreeFp32, SumSegmentTreeFp32

    sums, minima, new, generator = SumSegmentTreeFp32(n), MinSegmentTreeFp32(n), news(), np.random.default_rng(0)
    priorities = torch.from_numpy(lognormal(n) ** ALPHA).float()
    sums[torch.arange(n)] = priorities
    minima[torch.arange(n)] = priorities

    def step() -> None:
        mass = generator.random(SIZE, dtype=np.float32) * np.float32(sums.query(0, n))
        index = torch.as_tensor(sums.scan_lower_bound(mass)).clamp_max_(n - 1)
        torch.pow(torch.as_tensor(sums[index]) / minima.query(0, n), -BETA)
        changed = torch.pow(torch.from_numpy(new()).float(), ALPHA)
        sums[index] = changed
        minima[index] = changed

    return step


RIVALS = {"cpprb": of_cpprb, "torchrl, its sampler": of_torchrl, "torchrl, its trees alone": of_torchrl_trees}


def replay_steps(n: int) -> dict[str, Step]:
    """A sample and an update, of ours and of each rival that is installed."""
    steps = {"Prioritized": ours(n)}
    for name, make in RIVALS.items():
        try:
            steps[name] = make(n)
        except (ImportError, RuntimeError) as error:
            print(f"{name} is left out: {error}")
    return steps


def dqn(steps: int, rounds: int) -> dict[str, list[float]]:
    """Processor seconds of DQN on CartPole, uniform and prioritised, in turns."""
    from stable_baselines3 import DQN

    from avare.replay.stable_baselines3 import PrioritizedDQN

    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"uniform": [], "prioritised": []}
    for seed in range(-1, rounds):  # the first to warm up
        for name, kind in (("uniform", DQN), ("prioritised", PrioritizedDQN)):
            model = kind("MlpPolicy", "CartPole-v1", buffer_size=50_000, learning_starts=1000, seed=abs(seed))
            started = time.process_time()
            model.learn(steps)
            if seed >= 0:
                seconds[name].append(time.process_time() - started)
    return seconds


# --- report ---------------------------------------------------------------------------------


def installed(package: str) -> str:
    """The version of a package, or that it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def report(result: dict[str, Any]) -> str:
    """Tables of everything."""
    parts = ["# Weighted sampling and replay", "Medians of steps measured in turns."]
    for title, key in (
        ("A draw of 256 from n weights, and the update of their weights", "weighted"),
        ("10⁷ draws from n weights at once; 10⁶ as iterations", "epochs"),
        ("A sample of 256 from n items, and the update of their priorities", "replay"),
    ):
        found = result[key]
        names = list(dict.fromkeys(name for each in found.values() for name in each))
        rows = [[name, *(duration(each[name]) if name in each else "–" for each in found.values())] for name in names]
        parts += [f"## {title}", table(["", *(f"n = {float(n):.0e}" for n in found)], rows)]
    seconds = {name: float(np.median(each)) for name, each in result["dqn"].items()}
    if seconds:
        ratio = seconds["prioritised"] / seconds["uniform"]
        parts.append(
            f"DQN on CartPole, {result['dqn_steps']} steps: {seconds['uniform']:.1f} s of processor time with uniform "
            f"replay, {seconds['prioritised']:.1f} s with priorities: {ratio:.2f} ×."
        )
    rivals = ", ".join(f"{name} {number}" for name, number in result["rivals"].items())
    parts.append(
        f"Rivals: {rivals}. Where the extension in torchrl's wheel does not load with the installed torch, as with "
        "0.14.1 and 2.13.0, it was compiled with -O3 from the sources in that wheel."
    )
    return "\n\n".join(parts)


def main() -> None:
    """Measure, then write JSON and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e6, 1e8], help="numbers of items")
    parser.add_argument("--seconds", type=float, default=20.0, help="to spend on each table's column")
    parser.add_argument("--draws", type=float, default=1e7, help="of an epoch")
    parser.add_argument("--dqn-steps", type=int, default=10_000, help="0 leaves DQN out")
    parser.add_argument("--rounds", type=int, default=5, help="of DQN")
    parser.add_argument("--again", action="store_true", help="make the tables again from the stored numbers")
    arguments = parser.parse_args()
    if arguments.again:
        result = json.loads((RESULTS / "replay.json").read_text())
    else:
        result = {"where": where(), "rivals": {name: installed(name) for name in ("cpprb", "torchrl", "torch")}}
        within = [n for n in (10**4, 10**6, 10**7) if n <= max(arguments.sizes)]  # torch.multinomial ends at 2^24
        result["weighted"] = {n: interleave(weighted_steps(n), seconds=arguments.seconds) for n in within}
        result["epochs"] = {
            n: interleave(epochs(n, int(arguments.draws)), seconds=arguments.seconds) for n in within if n >= 10**6
        }
        result["replay"] = {
            n: interleave(replay_steps(n), seconds=arguments.seconds) for n in map(int, arguments.sizes)
        }
        result["dqn_steps"] = arguments.dqn_steps
        result["dqn"] = dqn(arguments.dqn_steps, arguments.rounds) if arguments.dqn_steps else {}
    text = report(result)
    save("replay", result, text)
    print(text)
    print(f"\nWritten to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
