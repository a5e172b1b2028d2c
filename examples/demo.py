"""The demo: samplers side by side where there is something to gain, and where there is not.

The first dataset has rows of widely different lengths, as counts, amounts and prices do. The second has rows that are
all alike, so that nothing is to be gained by drawing some of them more often.
"""

import argparse
from pathlib import Path

import numpy as np

from avare.experiments import Data, Store, compare, get
from avare.experiments.data import digest
from avare.experiments.preparation import prepared
from avare.report import write


def uneven(rows: int) -> Data:
    """Make rows whose lengths are log-normal, and targets with noise."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(rows, 200)) * generator.lognormal(0.0, 0.7, (rows, 1))
    y = X @ generator.normal(size=200) + generator.normal(size=rows)
    return prepared(Data("uneven", X, y, digest(X, y)), "least_squares")


def even(rows: int) -> Data:
    """Make rows of the same length, and targets with errors of the same size."""
    generator = np.random.default_rng(1)
    X = np.sign(generator.normal(size=(rows, 300)))
    y = X @ generator.normal(size=300) + np.sign(generator.normal(size=rows))
    return prepared(Data("even", X, y, digest(X, y)), "least_squares")


def main() -> None:
    """Run both, print the verdicts, and write a page with figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/demo"), help="folder of results")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    store = Store(arguments.out / "runs")
    for data in (uneven(arguments.rows), even(arguments.rows)):
        print(f"\n{data.name}: {len(data):,} rows, {data.X.shape[1]} columns", flush=True)
        records = compare(data, "least_squares", store, batch_size=32, runs=arguments.runs, jobs=arguments.jobs)
        for part in get("compare").closing(records).parts:
            if isinstance(part, str) and part.startswith(("Verdict", "Noise", "Conditioning")):
                print(f"  {part}", flush=True)
    print(f"\nFigures and tables: {write(store.folder, arguments.out / 'report')}")


if __name__ == "__main__":
    main()
