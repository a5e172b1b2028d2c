"""Avare against uniform minibatches, on a logistic regression: `make demo`.

Data as in the paper's synthetic experiment (see `synthetic.py`); nothing is downloaded.
Steps are 1.5 times as long as theory asks for: of 1, 1.5, 2, 3, 10 and 30, the best for Uniform.
"""

import argparse
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import avare
from synthetic import Logistic, train

mpl.use("Agg")
import matplotlib.pyplot as plt

N, DIMENSION, BATCH_SIZE, EPOCHS, RUNS, L2 = 1000, 10, 8, 60, 10, 1.0
SAMPLERS: dict[str, type[avare.Uniform] | type[avare.Avare]] = {"Uniform": avare.Uniform, "Avare": avare.Avare}
COLOURS = {"Uniform": "#767676", "Avare": "#0072B2"}


def draw_figure(traces: dict[str, NDArray[np.float64]], path: Path) -> None:
    """Suboptimality and relative error against passes over the data."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    titles = ("Suboptimality  $f(x) - f^*$", "Relative error of the distribution")
    for axis, column, title in zip(axes, (0, 1), titles, strict=True):
        for name, trace in traces.items():
            mean, deviation = trace[:, :, column].mean(axis=0), trace[:, :, column].std(axis=0)
            epochs = np.arange(EPOCHS + 1)
            axis.plot(epochs, mean, color=COLOURS[name], label=name, linewidth=1.8)
            axis.fill_between(
                epochs,
                np.maximum(mean - deviation, mean / 10),
                mean + deviation,
                color=COLOURS[name],
                alpha=0.2,
                linewidth=0,
            )
        axis.set(yscale="log", title=title, xlabel="passes over the data", xlim=(0, EPOCHS))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.suptitle(
        f"Logistic regression, {N} examples, batches of {BATCH_SIZE}: mean and one standard deviation of {RUNS} runs",
        fontsize=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def main() -> None:
    """Run both samplers, print the table, write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/demo.png"), help="where to write the figure")
    out = parser.parse_args().out
    console = Console()
    problem = Logistic(N, DIMENSION, L2, seed=0)
    step_size = avare.schedules.inverse_time(N, problem.smoothness / 1.5, L2, BATCH_SIZE)
    traces: dict[str, NDArray[np.float64]] = {}
    seconds: dict[str, float] = {}
    for name, kind in SAMPLERS.items():
        train(problem, kind(N, BATCH_SIZE, seed=0), step_size, 1)  # compiles what is to be timed
        with console.status(f"{name}: {RUNS} runs of {EPOCHS} epochs ..."):
            started = time.perf_counter()
            traces[name] = np.array(
                [train(problem, kind(N, BATCH_SIZE, seed=seed), step_size, EPOCHS) for seed in range(RUNS)]
            )
            seconds[name] = time.perf_counter() - started
        console.print(f"{name}: {RUNS} runs of {EPOCHS} epochs in {seconds[name]:.1f} s")
    reached = traces["Avare"][:, :, 0].mean(axis=0) <= traces["Uniform"][:, -1, 0].mean()
    table = Table(title=f"After {EPOCHS} epochs, mean of {RUNS} runs")
    table.add_column("")
    for heading in ("relative error", "gain over uniform", "suboptimality"):
        table.add_column(heading, justify="right")
    for name, trace in traces.items():
        suboptimality, error, gain = trace[:, -1].mean(axis=0)
        table.add_row(name, f"{error:.3f}", f"{gain:.2f}", f"{suboptimality:.4f}")
    console.print(table)
    if reached.any():
        console.print(f"Avare is where Uniform ends after {int(reached.argmax())} of {EPOCHS} epochs.")
    draw_figure(traces, out)
    console.print(f"Figure: {out}")


if __name__ == "__main__":
    main()
