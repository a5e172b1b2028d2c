"""Invented records of runs on nets, as a store keeps them."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from stored_runs import record

MODELS = ("mnist-mlp", "mnist-cnn", "ijcnn1-mlp", "cifar10-cnn")
SAMPLERS = ("DataLoader", "Avare", "Avare, √norm", "Calibrated", "Srg", "UpperBound")
VARIANTS = (
    "DataLoader",
    *(
        f"{memory}{floor}{drawn}"
        for memory in ("remembered", "calibrated")
        for floor in ("", ", floor")
        for drawn in ("", ", replaced")
    ),
    "by norm",
    "by norm and age",
    "step × gain, up to 2",
    "step × gain, up to 5",
)
# How fast the loss decreases, and which part of the possible gain is realised.
_SPEED = {"DataLoader": 1.0, "Avare": 1.2, "Calibrated": 2.0, "Srg": 1.1, "UpperBound": 1.6}
_SHARE = {"DataLoader": 0.0, "Avare": 0.3, "Calibrated": 0.85, "Srg": 0.4, "UpperBound": 0.7}
_TIME = {"DataLoader": 1.0, "UpperBound": 2.2}


def net_run(
    model: str = "mnist-mlp",
    sampler: str = "Calibrated",
    seed: int = 1,
    *,
    part: str = "best",
    optimiser: str = "sgd",
    batch_size: int = 16,
    rule: str = "constant",
    step: float = 0.1,
    epochs: int = 8,
    checkpoints: int = 8,
    status: str = "finished",
    speed: float | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a run whose loss decreases exponentially, at a speed that depends on the sampler."""
    kind = sampler if sampler in _SPEED else "Calibrated" if sampler.startswith("calibrated") else "Avare"
    epoch = np.linspace(0, epochs, checkpoints + 1)
    noise = 1.0 + 0.1 * (0, -1, 1)[seed % 3] * (epoch > 0)
    fall = _SPEED[kind] if speed is None else speed
    fall *= 0.6 * (1.0 if batch_size == 16 else 0.7) / (1.0 + abs(np.log10(step / 0.1))) * (0.4 + 0.6 * _part(model))
    loss = 2.3 * np.exp(-fall * epoch / 2) * noise
    possible = 1.0 + 14.0 * (1.0 - np.exp(-epoch / 3))
    each = 5e-4 * _TIME.get(kind, 1.25) * (1.0 if batch_size == 16 else 1.7) * (1.0 + 2 * _part(model))
    trace: dict[str, Sequence[float | None]] = {
        "epoch": epoch.tolist(),
        "seconds": (epoch * (1600 / batch_size) * each).tolist(),
        "wall": (epoch * (1600 / batch_size) * each).tolist(),
        "loss": loss.tolist(),
        "test_error": [
            float(0.02 + 0.1 * value) if place % 2 == 0 or place == checkpoints else None
            for place, value in enumerate(loss)
        ],
        "gain": (1.0 + _SHARE[kind] * (possible - 1.0)).tolist(),
        "possible": possible.tolist(),
        "calibration_error": [0.3] * len(epoch) if kind == "Calibrated" else [None] * len(epoch),
        "step_size": [step] * len(epoch),
    }
    if status == "diverged":
        for name, values in trace.items():
            if name != "epoch":
                trace[name] = [value if 2 * place <= checkpoints // 2 else None for place, value in enumerate(values)]
    made = record(
        {
            "experiment": "nets",
            "part": part,
            "model": model,
            "dataset": model.split("-")[0],
            "data_digest": model,
            "network": {"kind": model.split("-")[-1]},
            "examples": 1600,
            "tested": 100,
            "sampler": sampler,
            "loader": {"kind": kind},
            "optimiser": optimiser,
            "batch_size": batch_size,
            "rule": rule,
            "step": step,
            "seed": seed,
            "epochs": epochs,
            "checkpoints": checkpoints,
            "test_every": 2,
            "revision": 1,
            **spec,
        },
        seconds={"steps": 3.0, "evaluation": 1.0},
        trace=trace,
        steps=100 * epochs,
    )
    return {**made, "status": status}


def grid_runs(
    sampler: str, losses: Sequence[float], step: float = 0.1, *, first: int = 0, status: str = "finished"
) -> list[dict[str, Any]]:
    """Return runs of the grid with given final losses, one per seed."""
    records = []
    for seed, loss in enumerate(losses, start=first):
        made = net_run(sampler=sampler, seed=seed, part="grid", checkpoints=1, step=step, status=status)
        if status == "finished":
            made["trace"]["loss"] = [2.3, loss]
            made["trace"]["test_error"] = [0.9, loss / 10]
        records.append(made)
    return records


def net_runs(models: Sequence[str] = MODELS, samplers: Sequence[str] = SAMPLERS) -> list[dict[str, Any]]:
    """Return a whole experiment; some of its runs diverge."""
    sizes = {"sgd": (0.03, 0.1, 0.3, 1.0), "momentum": (0.01, 0.03, 0.1), "adamw": (0.001, 0.003)}
    records = []
    for model in models:
        for sampler in samplers:
            for optimiser, steps in sizes.items():
                for batch_size in (16, 64):
                    common: dict[str, Any] = {"optimiser": optimiser, "batch_size": batch_size}
                    records += [
                        net_run(model, sampler, seed, part="best", step=steps[1], checkpoints=8, **common)
                        for seed in (1, 2, 3)
                    ]
                    records += [
                        net_run(
                            model,
                            sampler,
                            seed,
                            part="grid",
                            epochs=2,
                            checkpoints=1,
                            step=step,
                            status="diverged" if step == 1.0 and sampler == "Avare" else "finished",
                            **common,
                        )
                        for seed in ((0, 1, 2) if sampler in ("DataLoader", "Calibrated") else (0,))
                        for step in steps
                    ]
        for level, step in (("best", 0.1), ("aggressive", 0.3)):
            records += [
                net_run(
                    model,
                    sampler,
                    seed,
                    part="parts",
                    level=level,
                    step=step,
                    checkpoints=4,
                    status="diverged" if (level, sampler) == ("aggressive", "step × gain, up to 5") else "finished",
                )
                for sampler in VARIANTS
                for seed in (1, 2, 3)
                if model != "cifar10-cnn"
            ]
    return records


def _part(model: str) -> float:
    return (zlib.crc32(model.encode()) % 100) / 100
