"""The demo: samplers side by side where there is something to gain, and where there is not.

The first dataset has one positive in two hundred, as frauds, failures and clicks are. The second has rows that are all
alike, so that nothing is to be gained by drawing some of them more often.
"""

import argparse
from pathlib import Path

import numpy as np

from avare.experiments import Data, Store, compare
from avare.experiments.base import get
from avare.experiments.data import prepared
from avare.experiments.report import write


def rare(rows: int) -> Data:
    """Make labels of which about one in two hundred is 1."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(rows, 100))
    y = X @ generator.normal(size=100) / 3.0 + 2.0 * generator.normal(size=rows) > 9.5
    return prepared(Data("rare", X, y.astype(np.int64)))


def similar(rows: int) -> Data:
    """Make rows of the same length, and targets with errors of the same size."""
    generator = np.random.default_rng(1)
    X = np.sign(generator.normal(size=(rows, 300)))
    y = X @ generator.normal(size=300) + np.sign(generator.normal(size=rows))
    return prepared(Data("similar", X, y))


def main() -> None:
    """Run both, print the verdicts, and write a page with figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/demo"), help="folder of results")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="more than one disturbs the seconds")
    arguments = parser.parse_args()
    store = Store(arguments.out / "runs")
    for data, loss in ((rare(arguments.rows), "logistic"), (similar(arguments.rows // 8), "least_squares")):
        print(f"\n{data.name}: {len(data):,} rows, {data.X.shape[1]} columns", flush=True)
        records = compare(data, loss, store, batch_size=32, runs=arguments.runs, jobs=arguments.jobs)
        found = get("compare").closing(records)
        for part in found.parts if found is not None else ():
            if isinstance(part, str) and part.startswith("Verdict"):
                print(f"  {part}", flush=True)
    print(f"\nFigures and tables: {write(store.folder, arguments.out / 'report')}")


if __name__ == "__main__":
    main()
