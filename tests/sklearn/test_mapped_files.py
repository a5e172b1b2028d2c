"""Files that are mapped into memory: a fit reads them in parts, and needs only a part of their size."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from avare.sklearn import AvareClassifier, AvareRegressor

PROGRAM = """
import resource, sys
import numpy as np
from pyarrow import parquet
from avare.sklearn import AvareClassifier

path, n, columns, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
small = np.random.default_rng(0).normal(size=(2000, columns)).astype(kind)
AvareClassifier().fit(small, small[:, 0] > 0.0)  # imports and compiles
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if path.endswith(".parquet"):
    X = parquet.ParquetFile(path, pre_buffer=False)
else:
    X = np.memmap(path, dtype=kind, mode="r", shape=(n, columns))
y = np.load(path + ".y.npy")
model = AvareClassifier().fit(X, y)
assert model.gap_ <= 1e-9, model.gap_
more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(more, model.score(X.read_row_group(0)[:1000] if path.endswith(".parquet") else X[:1000], y[:1000]))
"""


def write(path: Path, n: int, columns: int, kind: str) -> None:
    """Write rows in parts, and their labels."""
    X = np.memmap(path, dtype=kind, mode="w+", shape=(n, columns))
    generator, labels = np.random.default_rng(1), np.empty(n, dtype=np.int64)
    for first in range(0, n, 100_000):
        part = generator.normal(size=(min(100_000, n - first), columns)).astype(kind)
        X[first : first + len(part)] = part
        labels[first : first + len(part)] = part[:, :3].sum(axis=1) + generator.logistic(size=len(part)) > 1.0
    X.flush()
    np.save(f"{path}.y.npy", labels)


def megabytes(path: Path, n: int, columns: int, kind: str) -> float:
    """What a fit adds to the largest resident memory of a process."""
    words = [sys.executable, "-c", PROGRAM, str(path), str(n), str(columns), kind]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    more, score = map(float, done.stdout.split())
    assert score > 0.7
    return more


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_fit_needs_a_part_of_the_file(kind: str, tmp_path: Path) -> None:
    columns = 64 if kind == "float32" else 32
    write(tmp_path / "X", 1_600_000, columns, kind)  # 410 MB
    # The largest sample is a sixteenth; outputs, slopes and curvatures take 8 bytes per row each, some of them twice.
    assert megabytes(tmp_path / "X", 1_600_000, columns, kind) < 250.0


def test_parquet_needs_a_part_of_its_size(tmp_path: Path) -> None:
    n, columns, path = 1_600_000, 64, tmp_path / "X.parquet"
    write(path, n, columns, "float32")  # 410 MB
    X = np.memmap(path, dtype="float32", mode="r", shape=(n, columns))
    with parquet.ParquetWriter(tmp_path / "Y.parquet", as_table(X[:1]).schema) as file:
        for first in range(0, n, 20_000):
            file.write_table(as_table(X[first : first + 20_000]))
    (tmp_path / "Y.parquet").replace(path)
    assert megabytes(path, n, columns, "float32") < 350.0  # pyarrow keeps more than 100 MB for itself


def as_table(X: Any) -> Any:
    """A table of pyarrow, with a name for each column."""
    return pa.table({f"column {k}": np.array(X[:, k]) for k in range(X.shape[1])})


def test_arrow_is_the_same_as_an_array() -> None:
    generator = np.random.default_rng(3)
    X = generator.normal(size=(500, 3)).astype(np.float32)
    y = X[:, 0] + generator.normal(size=500)
    table = as_table(X)
    model, same = AvareRegressor().fit(table, y), AvareRegressor().fit(X, y)
    assert np.array_equal(model.coef_, same.coef_) and np.array_equal(model.predict(table), same.predict(X))
    wide = table.set_column(1, "column 1", [np.arange(500)])  # whole numbers: all become float64
    assert np.array_equal(AvareRegressor().fit(wide, y).coef_, AvareRegressor().fit(wide.to_pandas(), y).coef_)
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        model.fit(table.slice(0, 0), y[:0])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(table.set_column(1, "column 1", [[None] + [1.0] * 499]), y)


def test_names_and_types_of_arrow_columns(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    X = generator.normal(size=(300, 2))
    y, table = X @ [1.0, -3.0], pa.table({"a": X[:, 0], "b": X[:, 1]})
    parquet.write_table(table, tmp_path / "X.parquet")
    for kind in (table, parquet.ParquetFile(tmp_path / "X.parquet")):
        model = AvareRegressor().fit(kind, y)
        assert model.feature_names_in_.tolist() == ["a", "b"] and model.n_features_in_ == 2
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(table.select(["b", "a"]))
    assert np.allclose(model.predict(table), model.predict(table.to_pandas()), rtol=1e-14)  # another order in memory
    with pytest.raises(ValueError, match="column 'b' of X has type string: must hold numbers"):
        model.fit(table.set_column(1, "b", [["x"] * 300]), y)


def test_changes_of_a_copy_on_write_map_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "X", 1_200_000, 16, "float32")  # 77 MB, more than what is read before memory is released
    X = np.memmap(tmp_path / "X", dtype="float32", mode="c", shape=(1_200_000, 16))
    X[:, 1] = 0.0
    AvareRegressor().fit(X, np.array(X[:, 0], dtype=float))
    assert not X[:, 1].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_four_gigabytes_fit_into_one(kind: str, tmp_path: Path) -> None:
    columns = 200 if kind == "float32" else 100
    write(tmp_path / "X", 5_000_000, columns, kind)
    assert megabytes(tmp_path / "X", 5_000_000, columns, kind) < 1000.0


def test_the_same_fit_as_in_memory_and_the_same_refusal(tmp_path: Path) -> None:
    write(tmp_path / "X", 3000, 5, "float64")
    X = np.memmap(tmp_path / "X", dtype="float64", mode="r+", shape=(3000, 5))
    y = np.load(f"{tmp_path / 'X'}.y.npy")
    for model in (AvareClassifier(), AvareRegressor()):
        assert np.array_equal(model.fit(X, y).coef_, model.fit(np.array(X), y).coef_)
    X[2000, 3] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        AvareClassifier().fit(X, y)
