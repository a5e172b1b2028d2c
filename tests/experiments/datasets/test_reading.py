"""Your own files: reading returns what was written, and errors name what is wrong."""

import bz2
import contextlib
import csv
import datetime
import gzip
import io
import lzma
import math
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from avare.experiments.datasets import Data, DatasetError, files, read
from avare.experiments.datasets.files import read_libsvm
from tiny_datasets import COMPRESS, damaged, naming

endings = pytest.mark.parametrize("ending", COMPRESS)
finite = st.floats(allow_nan=False, allow_infinity=False)
matrices = arrays.arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 5)), elements=finite)


def put(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def libsvm(X: NDArray[np.float64], y: NDArray[Any]) -> str:
    rows = (" ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row) if v != 0.0) for row in X.tolist())
    return "".join(f"{label!r} {row}\n" for label, row in zip(y.tolist(), rows, strict=True))


def table(X: NDArray[np.float64], y: NDArray[Any]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["label, of all", *(f"x{j}" for j in range(X.shape[1]))])
    writer.writerows([[label, *row] for label, row in zip(y.tolist(), X.tolist(), strict=True)])
    return stream.getvalue()


def parquet(**columns: Any) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink, row_group_size=3)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def npz(compress: bool = False, **members: Any) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(stream, **members)
    return stream.getvalue()


# --- what is written is read ---------------------------------------------------------------


@given(X=matrices, ending=st.sampled_from(list(COMPRESS)), data=st.data())
def test_round_trips_are_exact(tmp_path_factory: pytest.TempPathFactory, X: Any, ending: str, data: Any) -> None:
    folder = tmp_path_factory.mktemp("round")
    y = data.draw(arrays.arrays(np.float64, len(X), elements=finite))
    wide = np.column_stack([X, np.ones(len(X))])  # so that the last column exists
    for name, content, target, expected in (
        (f"a.libsvm{ending}", COMPRESS[ending](libsvm(wide, y).encode()), None, wide),
        (f"a.csv{ending}", COMPRESS[ending](table(X, y).encode()), "label, of all", X),
        ("a.npz", npz(X=X, y=y), None, X),
        ("b.npz", npz(compress=True, X=np.asfortranarray(X), y=y), None, X),
        ("a.parquet", parquet(y=y, **{f"x{j}": X[:, j] for j in range(X.shape[1])}), "y", X),
    ):
        found = read(put(folder, name, content), target=target, task="regression")
        rows = found.X.toarray() if scipy.sparse.issparse(found.X) else found.X
        assert rows.dtype == found.y.dtype == np.float64 and rows.flags.c_contiguous
        assert np.array_equal(rows, expected) and np.array_equal(found.y, y)
        assert found.name == name[0] and found.source == str(folder / name)


def test_libsvm_is_sparse(tmp_path: Path) -> None:
    path = put(tmp_path, "a.svm", "# first\n\n-1 1:0.5 3:2 # note: 4:5\r\n \t \n+1\t2:1e0   3:0.\n1e0\n-1. 1:.5")
    expected = np.array([[0.5, 0, 2], [0, 1, 0], [0, 0, 0], [0.5, 0, 0]])
    assert read(path, features=7).X.shape == (4, 7)
    found = read(path)
    assert scipy.sparse.issparse(found.X) and found.X.format == "csr" and found.X.dtype == np.float64
    assert found.X.nnz == 5 and found.X.has_sorted_indices  # a zero in the file is kept
    assert np.array_equal(found.X.toarray(), expected)
    assert found.y.dtype == np.int64 and found.y.tolist() == [-1, 1, 1, -1]
    assert found.description == "LIBSVM text: 4 rows, 3 features" and len(found) == 4
    assert repr(found).startswith("Data(name='a', X=(4, 3) csr_matrix of float64, y=int64")


@pytest.mark.parametrize("name", ["a.libsvm", "a.t.bz2", "a", "a.binary.scale.xz", "a.txt.GZ"])
def test_any_other_ending_is_libsvm(tmp_path: Path, name: str) -> None:
    content = COMPRESS[files.compression(name)](b"1 1:1\n0 2:2\n")
    assert read(put(tmp_path, name, content)).X.shape == (2, 2)


def test_csv(tmp_path: Path) -> None:
    text = '\ufeff a ,"b\nc",y\r\n1,2,0\r\n\r\n"3", 4 ,1\r\n'
    found = read(put(tmp_path, "some.csv", text), target="y")
    assert found.X.tolist() == [[1.0, 2.0], [3.0, 4.0]] and found.y.tolist() == [0, 1]
    assert read(tmp_path / "some.csv", target="a").y.tolist() == [1, 3]


def test_parquet_of_many_kinds_and_row_groups(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "a": np.arange(8, dtype=np.uint8),
        "y": np.arange(8, dtype=np.int32) % 3,
        "b": np.linspace(0, 1, 8, dtype=np.float32),
        "__index_level_0__": np.arange(8),
    }
    found = read(put(tmp_path, "some.pq", parquet(**columns)), target="y")
    assert found.X.dtype == np.float64 and found.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert np.array_equal(found.X, np.column_stack([columns["a"], columns["b"]]))  # and not pandas' index


@pytest.mark.parametrize(
    ("kind", "expected"), [("float32", "float32"), ("float64", "float64"), ("float16", "float64"), ("uint8", "float64")]
)
def test_npz_keeps_single_precision(tmp_path: Path, kind: str, expected: str) -> None:
    found = read(put(tmp_path, "a.npz", npz(X=np.eye(3, dtype=kind), y=np.arange(3, dtype=np.uint8), z=1)))
    assert found.X.dtype == expected and np.array_equal(found.X, np.eye(3)) and found.y.dtype == np.int64


# --- what is wrong is named ----------------------------------------------------------------


@endings
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " is empty"),
        ("\n  \n# nothing\n", " is empty: no row has a feature"),
        ("1\n2\n", " is empty: no row has a feature"),
        ("1 1:1\nDear reader,\n", ", line 2: label 'Dear' must be a finite number; a line is `label index:value"),
        ("1 1:1\nnan 1:1\n", ", line 2: label 'nan' must be a finite number"),
        ("1 1:1\n-inf 1:1\n", ", line 2: label '-inf' must be a finite number"),
        ("1:1 2:1\n", ", line 1: label '1:1' must be a finite number"),
        ("1,2 2:1\n", ", line 1: label '1,2' must be a finite number"),
        ("a,y\n1,2\n", ", line 1: label 'a,y' must be a finite number"),
        ("# x\n\n1 1:1\n1 1:1 2:NaN\n", ", line 4: '2:NaN' must be index:value, a finite number"),
        ("1 1:inf\n", ", line 1: '1:inf' must be index:value"),
        ("1 1:\n", ", line 1: '1:' must be index:value"),
        ("1 1:0x1\n", ", line 1: '1:0x1' must be index:value"),
        ("1 1:1:1\n", ", line 1: '1:1:1' must be index:value"),
        ("1 1:1\n2 1:1e400\n", ", line 2: '1:1e400' must be index:value, a finite number"),
        ("1 1:1\n-2e999 1:1\n", ", line 2: label '-2e999' must be a finite number"),
        ("1 1:1\n1 0:1\n", ", line 2: '0:1' must be index:value, .* index from 1 to 2147483647: indices count from 1"),
        ("1 1:1\n1 -1:1\n", ", line 2: '-1:1' must be index:value"),
        ("1 1.5:1\n", ", line 1: '1.5:1' must be index:value"),
        ("1 :1\n", ", line 1: ':1' must be index:value"),
        ("1 5:1\n1 1:1 7:1 7:2\n", ", line 2: '7:2' must be .* index from 8 to .*: indices count from 1 and increase"),
        ("1 5:1\n\n1 3:1 7:1 2:2\n", ", line 3: '2:2' must be index:value, a finite number with an index from 8 to"),
        ("1 2147483648:1\n", ", line 1: '2147483648:1' must be .* with an index from 1 to 2147483647"),
        ("1 99999999999999999999:1\n", ", line 1: '99999999999999999999:1' must be index:value"),
        ("1 7\n", ", line 1: '7' must be index:value"),
        ("1 1:1\n0.5 1:2\n", r", line 2: label = 0.5, must be an integer for .* \(.*--loss .* task='regression'\)"),
        ("1 1:1\n\n1e300 1:2\n", r", line 3: label = 1e\+300, must be an integer"),
        ("3 1:1\n3 1:2\n", " has one class only, 3: classification needs two or more"),
        ("1 1:" + 90 * "x", f", line 1: '1:{38 * 'x'}...' must be index:value"),
    ],
)
def test_libsvm_errors(tmp_path: Path, ending: str, text: str, message: str) -> None:
    path = put(tmp_path, f"a.libsvm{ending}", COMPRESS[ending](text.encode()))
    with pytest.raises(DatasetError, match=re.escape(str(path)) + message):
        read(path)


def test_features_bound_the_index(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"line 2: '4:1' must be index:value, .* index from 1 to 3"):
        read_libsvm(put(tmp_path, "a", "1 3:1\n0 4:1\n"), features=3)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_task_determines_the_labels(tmp_path: Path, task: Any) -> None:
    path = put(tmp_path, "a", "1.5 1:1\n1.5 1:2\n")
    if task == "regression":
        found = read(path, task=task)
        assert found.y.dtype == np.float64 and found.y.tolist() == [1.5, 1.5]
    else:
        with pytest.raises(DatasetError, match=r"line 1: label = 1\.5"):
            read(path, task=task)


@endings
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " is empty"),
        ("\n", " is empty"),
        ("a,y\n", " has no rows"),
        ("1,2\n3,4\n", ", line 1: must be a header, the names of the columns"),
        ("a,b\n1,2\n", ": target = 'y', must be one of its columns: a, b"),
        ("\n\na,a,y\n1,2,3\n", " has two columns 'a': names must differ"),
        ("y\n1\n0\n", " has no column besides the target 'y'"),
        ("a,y\n1,0\n1\n", ", line 3: has 1 cells, but the header has 2"),
        ("a,y\n1,0\n\n1,2,3\n", ", line 4: has 3 cells, but the header has 2"),
        (
            "a,y\n1,0\nred,1\n",
            ", line 3: column 'a' = 'red' is not a number, but most cells of this column are; fix it",
        ),
        ("a,y\n1,0\n\n2,cat\n", ", line 4: column 'y' = 'cat' is not a number"),
        ("a,y\n1,0\n1_0,0\n", ", line 3: column 'a' = '1_0' is not a number"),
        ('a,y\n"1\n",0\n\n2,1\nx,1\n', ", line 6: column 'a' = 'x' is not a number"),
        ("a,y\n1,\n2,nan\n", ": column 'y', the target, has no values"),
        ("a,y\n1,inf\n2,3\n", ", line 2: column 'y' = inf, must be finite"),
        (
            "when,y\n2020-01-31,0\n2020-02-01,1\n",
            ": column 'when' holds dates or times, which cannot be used as",
        ),
        ("when,y\n2020-01-31 10:00,0\n2020-02-01 11:00,1\n", ": column 'when' holds dates or times"),
        ("when,y\n31.1.2020,0\n1.2.2020,1\n", ": column 'when' holds dates or times"),
        ("when,y\n1,2020-01-31\n2,2020-02-01\n", ": column 'y' holds dates or times"),
        ("a,y\nx,0\nyy,1\nzzz,0\n", " has no column besides the target 'y'; a: text, 3 different in 3 rows: left out"),
        ("a,b,y\n1,0,1\n2,-inf,0\n", ", line 3: column 'b' = -inf, must be finite"),
        ("a,y\n1,0\n2,0.5\n", r", line 3: label = 0\.5, must be an integer"),
        ("a,y\n1,0\n2,0\n", " has one class only, 0"),
    ],
)
def test_csv_errors(tmp_path: Path, ending: str, text: str, message: str) -> None:
    path = put(tmp_path, f"a.csv{ending}", COMPRESS[ending](text.encode()))
    with pytest.raises(DatasetError, match=re.escape(str(path)) + message):
        read(path, target="y")


def test_a_missing_target_lists_the_columns(tmp_path: Path) -> None:
    header = ",".join(f"c{k}" for k in range(30))
    with pytest.raises(
        DatasetError, match=r"which column is the target\? Name it by --target .*: c0, c1, .*, c19, \.\.\. \(30 in"
    ):
        read(put(tmp_path, "a.csv", header + "\n"))
    with pytest.raises(DatasetError, match=r"target = 'z', must be one of its columns: a, b$"):
        read(put(tmp_path, "a.parquet", parquet(a=[1], b=[2])), target="z")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            parquet(a=[[1], [2]], y=[0, 1]),
            ": column 'a' holds list<.*> values, must hold numbers or text in UTF-8",
        ),
        (parquet(a=[datetime.date(2020, 1, 31)] * 2, y=[0, 1]), ": column 'a' holds dates or times"),
        (parquet(a=["1", "2", "3", "x"], y=[0, 1, 0, 1]), ", row 3: column 'a' = 'x' is not a number"),
        (parquet(a=[b"1", b"\xff"], y=[0, 1]), ": column 'a' holds binary values, must hold numbers or text in UTF-8"),
        (parquet(a=[1.0, 2.0, 3.0, math.inf], y=[0, 1, 0, 1]), ", row 3: column 'a' = inf, must be finite"),
        (parquet(a=[1.0, 2.0], y=[math.nan, math.nan]), ": column 'y', the target, has no values"),
        (parquet(a=[1.0, 2.0, 3.0], y=[None, 1.0, 0.5]), r", row 2: label = 0\.5, must be an integer"),
        (parquet(a=[1.0, 2.0], y=[0.0, 0.5]), r", row 1: label = 0\.5, must be an integer"),
        (parquet(a=[1.0, 2.0], y=[1, 1]), " has one class only, 1"),
        (parquet(a=pyarrow.array([], "int8"), y=pyarrow.array([], "int8")), " has no rows"),
        (parquet(y=[1, 2]), " has no column besides the target 'y'"),
        (parquet(a=[1.0, 2.0], y=[1, 0])[:-20], " cannot be read as Parquet: "),
        (b"", " is empty"),
        (b"PAR1 and more PAR1", " cannot be read as Parquet: "),
        (b"words", " is not what its ending says: it looks like text, not Parquet; convert or rename it"),
    ],
)
def test_parquet_errors(tmp_path: Path, content: bytes, message: str) -> None:
    path = put(tmp_path, "a.parquet", content)
    with pytest.raises(DatasetError, match=re.escape(str(path)) + message):
        read(path, target="y")


def single(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def member(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npz(x=[1], y=[1]), " cannot be read as .npz: KeyError.*X.npy"),
        (npz(X=[[1]]), " cannot be read as .npz: KeyError.*y.npy"),
        (npz(X=[[1], [2]], y=[1]), r".*X has shape \(2, 1\), y \(1,\): must be \(rows, columns\) and \(rows,\)"),
        (npz(X=[1, 2], y=[1, 2]), r".*X has shape \(2,\), y \(2,\): must be"),
        (npz(X=[[1], [2]], y=[[1], [2]]), r".*y has shape \(2, 1\): must have 1 dimension"),
        (npz(X=[["a"], ["b"]], y=[1, 2]), ".*X has dtype <U1: must hold real numbers"),
        (npz(X=[[1], [2]], y=[1j, 2]), ".*y has dtype complex128: must hold real numbers"),
        (npz(X=np.array([[None], [2]]), y=[1, 2]), ".*ValueError.*Object arrays cannot be loaded"),
        (member(**{"X.npy": b"words", "y.npy": b""}), ".*X has dtype .S5: must hold real numbers"),
        (member(**{"X.npy": single(np.eye(99))[:300], "y.npy": single(np.ones(99))}), " cannot be read as .npz"),
        (npz(X=[[1.0, 2.0], [3.0, math.nan]], y=[1, 2]), r".*X\[1, 1\] = nan: must be finite"),
        (npz(X=[[1.0], [3.0]], y=[1, -math.inf]), r".*y\[1\] = -inf: must be finite"),
        (npz(X=[[1.0], [3.0]], y=[1, 0.5]), r", y\[1\]: label = 0\.5, must be an integer"),
        (npz(X=np.zeros((0, 3)), y=[]), r".*X has shape \(0, 3\), y \(0,\): .* not empty"),
        (npz(X=np.zeros((2, 0)), y=[1, 2]), r".*X has shape \(2, 0\), y \(2,\): .* not empty"),
        (npz(X=[[1], [2]], y=[1, 2])[:-30], " cannot be read as .npz: "),
        (single(np.ones(3)), " is not what its ending says: it looks like text, not zip archive"),
        (b"", " is empty"),
        (bytes(9), " is not what its ending says: it looks like text, not zip archive"),
    ],
)
def test_npz_errors(tmp_path: Path, content: bytes, message: str) -> None:
    path = put(tmp_path, "a.npz", content)
    with pytest.raises(DatasetError, match=re.escape(str(path)) + message):
        read(path)


TABLE, ROWS = b"a,y\n1,0\n2,1\n", b"1 1:1\n0 2:3\n"


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("a", {"task": "ranking"}, ValueError, "task = 'ranking': must be one of classification, regression"),
        ("a", {"target": "y"}, ValueError, "a is read as LIBSVM text, which has no named columns for target, drop and"),
        ("a.npz", {"target": "y"}, ValueError, "a.npz is read as zip archive, which has no named columns"),
        ("a", {"drop": "z"}, ValueError, "a is read as LIBSVM text, which has no named columns"),
        ("a.csv", {"target": "y", "drop": [3]}, DatasetError, "drop = '3', must be one of its columns: a, y"),
        ("a.csv", {"limit": 0}, ValueError, "limit = 0.0: must be above 0"),
        ("a", {"features": 0}, ValueError, "features = 0: must be at least 1"),
        ("a", {"features": 1}, DatasetError, "'2:3' must be index:value, a finite number with an index from 1 to 1"),
        ("a.csv", {"target": "y", "features": 3}, ValueError, "features = 3: is for LIBSVM text only"),
        ("missing", {}, DatasetError, "missing: there is no such file"),
        (".", {}, DatasetError, "is a folder: pass a file"),
        ("link", {}, DatasetError, "link: there is no such file"),
        ("pipe", {}, DatasetError, "pipe: there is no such file"),
        (
            "a.xlsx",
            {},
            DatasetError,
            "is not what its ending says: it looks like zip archive, not text",
        ),
    ],
)
def test_refuses_bad_arguments(
    tmp_path: Path, name: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    put(tmp_path, "a.csv", TABLE)
    put(tmp_path, "a.npz", npz(X=[[1], [2]], y=[0, 1]))
    put(tmp_path, "a", ROWS)
    put(tmp_path, "a.xlsx", b"PK and more")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(error, match=message):
        read(tmp_path / name, **arguments)


@pytest.mark.parametrize(
    ("name", "content", "found", "expected"),
    [
        ("fake.npz", TABLE, "text", "zip archive"),
        ("fake.parquet", b"\xef\xbb\xbf" + TABLE.replace(b",", b"\t"), "text", "Parquet"),
        ("fake.csv", parquet(a=[1, 2], y=[0, 1]), "Parquet", "text"),
        ("fake.csv", "a,y\n".encode("utf-16"), "text in UTF-16", "text"),
        ("fake.csv.gz", TABLE, "text", ".gz"),
        ("fake.csv", bz2.compress(TABLE), ".bz2", "text"),
        ("a.csv.gz", lzma.compress(TABLE), ".xz", ".gz"),
        ("a.npz", COMPRESS[".gz"](TABLE), ".gz", "zip archive"),
        ("a.svm.gz", ROWS, "text", ".gz"),
    ],
)
def test_a_file_that_is_not_what_its_ending_says(
    tmp_path: Path, name: str, content: bytes, found: str, expected: str
) -> None:
    path = put(tmp_path, name, content)
    message = f"{path} is not what its ending says: it looks like {found}, not {expected}; convert or rename it"
    with pytest.raises(DatasetError, match=re.escape(message)):
        read(path, target="y")  # whether or not it has named columns


@pytest.mark.parametrize(
    ("module", "name", "content", "message"),
    [
        ("sklearn.datasets", "a", b"1 1:1\n0 1:1\n", "reading LIBSVM text needs scikit-learn: pip install 'avare"),
        ("pyarrow.parquet", "a.parquet", parquet(a=[1], y=[1]), "reading Parquet needs pyarrow: pip install 'avare"),
        ("pyarrow", "a.csv", b"a,y\n1,2\n", "reading CSV needs pyarrow: pip install 'avare"),
    ],
)
def test_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, content: bytes, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=message):
        read(put(tmp_path, name, content), target="y" if name != "a" else None)


# --- limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv.gz", COMPRESS[".gz"](b"a,y\n" + b"1,0\n2,1\n" * 30_000), "unpacks to more than 200000 bytes"),
        (
            "b.csv.gz",
            COMPRESS[".gz"](b"a,y\n" + b"1,0\n2,1\n" * 10_000),
            "has roughly 40002 cells, which take more than 200000",
        ),
        ("a.libsvm.gz", COMPRESS[".gz"](b"1 1:1\n0 1:1\n" * 30_000), "unpacks to more than 200000 bytes"),
        ("a.csv.xz", lzma.compress(b"a,y\n1,0\n" + b"2" * 150_000), "has a line of more than 1024 bytes"),
        (
            "a.csv",
            b"a,y\n1,0\n" + b"2" * 2_000_000,
            "has a line 3 of more than 1024 bytes|has a line of more than 1024",
        ),
        ("a.npz", npz(compress=True, X=np.zeros((300, 100)), y=np.arange(300)), "unpacks to 2.4e\\+05 bytes"),
        ("a.parquet", parquet(a=np.zeros(30_000), y=np.arange(30_000)), "unpacks to more than 200000 bytes"),
    ],
)
def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = put(tmp_path, name, content)
    target = "y" if "csv" in name or "parquet" in name else None
    with pytest.raises(
        DatasetError, match=rf"{re.escape(str(path))} ({message}).*: limit=\.\.\. \(--limit\) allows more"
    ):
        read(path, target=target, limit=200_000)


FILLING = """
import resource, sys
from avare.experiments.datasets import DatasetError, read
read(sys.argv[1], target="y")  # a small file: all is imported
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(read(sys.argv[2], target="y", limit=2e7).X.shape)
except DatasetError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize("kind", ["text", "numbers", "cells", "categories"])
def test_a_small_file_does_not_fill_the_memory(tmp_path: Path, kind: str) -> None:
    """2 GB of text or 200 MB of numbers in a Parquet file, and cells or categories that take more than their text."""
    path = tmp_path / ("large.csv.gz" if kind in ("cells", "categories") else "large.parquet")
    if kind == "cells":
        path.write_bytes(COMPRESS[".gz"](b"a,b,c,d,y\n" + b"1,2,3,4,0\n" * 1_900_000))
    elif kind == "categories":
        rows = "".join(f"{','.join(f'{chr(97 + (k + j) % 26)}' for j in range(9))},{k % 2}\n" for k in range(20_000))
        path.write_bytes(COMPRESS[".gz"](f"a,b,c,d,e,f,g,h,i,y\n{rows}".encode()))
    else:
        cells = ["x" * 1_000_000] * 100 if kind == "text" else np.zeros(12_500_000)
        piece = pyarrow.table({"s": cells, "y": np.zeros(len(cells), dtype=np.int8)})
        with pyarrow.parquet.ParquetWriter(path, piece.schema, compression="zstd") as writer:
            for _ in range(20 if kind == "text" else 2):
                writer.write_table(piece)
    assert path.stat().st_size < 1e6
    words = [sys.executable, "-c", FILLING, str(put(tmp_path, "a.parquet", parquet(a=["x", "z"], y=[1, 2]))), str(path)]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "limit=... (--limit) allows more" in found[0]
    assert float(found[1]) < 150.0  # MB: the file unpacked, twice, and the pieces of 20 MB that Arrow reads ahead


def test_an_archive_that_holds_less_than_its_header_says(tmp_path: Path) -> None:
    """X says that it has 4.8 GB, but the archive holds 8 kB: nothing of that size is touched."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (6 * 10**8, 1)})
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("y.npy", single(np.arange(3)))
        with archive.open("X.npy", "w", force_zip64=True) as stream:
            stream.write(header.getvalue() + bytes(8_000))
    with pytest.raises(DatasetError, match=r"a\.npz cannot be read as \.npz: "):
        read(path)


# --- compressed files ----------------------------------------------------------------------

LINES = "".join(f"{k % 2} 1:{k * 0.37}\n" for k in range(20)).encode()


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize(("name", "target"), [("a.csv", "y"), ("a.svm", None)])
def test_a_truncated_file_is_refused(tmp_path: Path, ending: str, name: str, target: str | None) -> None:
    text = b"x,y\n" + 50 * b"1,0\n2,1\n" if target else LINES
    path = put(tmp_path, f"{name}{ending}", COMPRESS[ending](text)[:-9])
    with pytest.raises(DatasetError, match=re.escape(f"{path} cannot be read: ") + ".*ended before"):
        read(path, target=target)


def test_a_compressed_file_of_many_blocks(tmp_path: Path) -> None:
    X = np.random.default_rng(1).random((40, 2000))
    path = put(tmp_path, "a.gz", COMPRESS[".gz"](libsvm(X, np.arange(40)).encode()))  # a line of 50 kB, and 2 MB in all
    assert np.array_equal(read(path).X.toarray(), X)


# --- anything at all -----------------------------------------------------------------------

MATTER = st.text(alphabet="0123456789.:+-eE #\n\r\t\fqidnaf_,\"xy'", max_size=60)


def plain(text: str) -> list[tuple[float, dict[int, float]]] | None:
    """The simplest reader of the LIBSVM format; None if the text is invalid."""
    number = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    rows = []
    for line in text.split("\n"):
        words = [word for word in re.split("[ \t]+", line.split("#")[0].rstrip("\r \t")) if word]
        if not words:
            continue
        label, *pairs = words
        row: dict[int, float] = {}
        if not re.fullmatch(number, label) or math.isinf(float(label)):
            return None
        for pair in pairs:
            if not re.fullmatch(f"[0-9]+:{number}", pair) or math.isinf(float(pair.split(":")[1])):
                return None
            index = int(pair.split(":")[0])
            if not max(row, default=0) < index < 2**31:
                return None
            row[index] = float(pair.split(":")[1])
        rows.append((float(label), row))
    return rows if any(row for _, row in rows) else None


lines_of_text = st.lists(
    st.builds(
        lambda label, pairs, tail: " ".join([label, *(f"{i}:{v}" for i, v in pairs)]) + tail,
        st.sampled_from(["1", "-1", "+1.5", "1e3", ".5", "nan", "", "1e999"]) | finite.map(repr),
        st.lists(st.tuples(st.integers(0, 5) | st.integers(0, 2**32), finite.map(repr)), max_size=4),
        st.sampled_from(["", " ", "\r", "#", " # 1:2", "\t", ":", "\f"]),
    ),
    max_size=6,
).map("\n".join)


@given(text=MATTER | lines_of_text)
@example(text="1 1:1\n\n")
@example(text="1 1:1\r\r\n2 1:1 \r \n")
def test_libsvm_agrees_with_a_plain_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = put(tmp_path_factory.mktemp("plain"), "a.libsvm", text)
    expected = plain(text)
    if expected is None:
        with pytest.raises(DatasetError, match=re.escape(str(path))):
            read(path, task="regression")
        return
    found = read(path, task="regression")
    rows = [found.X[[k]] for k in range(len(found))]
    assert found.y.tolist() == [label for label, _ in expected]
    assert [dict(zip(row.indices + 1, row.data, strict=True)) for row in rows] == [row for _, row in expected]


TEXTS = b'x;"z";w;y\n1,5;a;;no\n3;"b";true;yes\n5;;false;no\nNA;a;true;yes\n'
VALID: dict[str, bytes] = {
    "a.libsvm": LINES[:300],
    "a.libsvm.gz": gzip.compress(LINES[:300]),
    "a.libsvm.bz2": bz2.compress(LINES[:300]),
    "a.libsvm.xz": lzma.compress(LINES[:300]),
    "a.csv": b'x,"z",y\n1,2,0\n3,"4",1\n5,6,1\n',
    "a.csv.gz": gzip.compress(b"x,z,y\n1,2,0\n3,4,1\n5,6,1\n"),
    "b.csv": TEXTS,
    "b.csv.bz2": bz2.compress(TEXTS),
    "b.parquet": parquet(x=["1", None, "3"], z=[True, None, False], w=["a", "b", "a"], y=["no", "yes", "no"]),
    "a.parquet": parquet(x=[1.0, 2.0, 3.0], z=[1, 2, 3], y=[0, 1, 0]),
    "a.npz": npz(X=np.eye(3), y=[0, 1, 0]),
    "b.npz": npz(compress=True, X=np.eye(3), y=[0, 1, 0]),
}


def attempt(path: Path) -> None:
    """Read, or expect the one error, which names the file."""
    found: Data | None = None
    with contextlib.suppress(DatasetError), naming(path):
        found = read(path, target="y" if ".csv" in path.name or ".parquet" in path.name else None)
    if found is None:
        return
    assert found.X.shape[0] == len(found.y) > 1
    assert np.isfinite(found.X.data if scipy.sparse.issparse(found.X) else found.X).all()


@given(name=st.sampled_from(list(VALID)), content=st.binary(max_size=200) | MATTER.map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes) -> None:
    attempt(put(tmp_path_factory.mktemp("any"), name, content))


@given(
    name=st.sampled_from(list(VALID)),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    end=st.floats(0.0, 1.0) | st.just(1.0),
)
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[tuple[float, int]], end: float
) -> None:
    attempt(put(tmp_path_factory.mktemp("damaged"), name, damaged(VALID[name], changes, end)))


@pytest.mark.parametrize("name", VALID)
def test_the_files_are_valid_before_they_are_damaged(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, name, VALID[name])
    assert len(read(path, target="y" if ".csv" in name or ".parquet" in name else None)) > 1


def test_a_table_of_fifty_thousand_columns(tmp_path: Path) -> None:
    """A line is longer than what Python's own reader of CSV takes as a cell."""
    count = 50_000
    header, row = ",".join(f"c{k}" for k in range(count)), ",".join(["0.25"] * count)
    path = tmp_path / "wide.csv"
    path.write_text(f"{header},y\n{row},0\n{row},1\n")
    data = read(path, target="y")
    assert data.X.shape == (2, count) and data.X.max() == 0.25 and data.y.tolist() == [0, 1]
    path.write_text(f"{header},y\n{row},0\n{row}\n")
    with pytest.raises(DatasetError, match=r"wide\.csv, line 3: has 50000 cells, but the header has 50001"):
        read(path, target="y")
