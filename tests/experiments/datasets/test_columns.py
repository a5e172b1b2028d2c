"""Files and data frames as people have them: what becomes of each kind of column."""

import contextlib
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avare.experiments.datasets import Data, DatasetError, read
from tiny_datasets import naming

PEOPLE = """\
,age,sex,smokes,city,name,ill
0,31,m,true,Ulm,anna,no
1,,f,false,Bonn,bo,yes
2,40, f,,Jena,cy,no
3,52,m,true,Bonn,dee,
4,25,f,false,,eve,yes
5,NA,m,true,Ulm,flo,no
6,44,f,false,Jena,gus,no
7,,m,true,Bonn,hal,yes
"""


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.csv.gz", ";"), ("a.tsv", "\t"), ("a.csv", "|")])
def test_a_file_as_people_have_it(tmp_path: Path, name: str, separator: str) -> None:
    found = read(put(tmp_path, name, PEOPLE.replace(",", separator)), target="ill")
    assert found.columns == (
        *("age", "age is missing", "sex = m", "smokes", "smokes is missing"),
        *("city = Bonn", "city = Jena", "city = Ulm", "city = (missing)"),
    )
    mean = (31 + 40 + 25 + 44) / 4
    columns = dict(zip(found.columns, found.X.T.tolist(), strict=True))
    assert columns["age"] == [31, mean, 40, 25, mean, 44, mean]  # without the row that has no label
    assert columns["age is missing"] == [0, 1, 0, 0, 1, 0, 1]
    assert columns["sex = m"] == [1, 0, 0, 0, 1, 0, 1]
    assert columns["smokes"] == pytest.approx([1, 0, 0.5, 0, 1, 0, 1])
    assert columns["city = Bonn"] == [0, 1, 0, 0, 0, 0, 1] and columns["city = (missing)"] == [0, 0, 0, 1, 0, 0, 0]
    assert found.y.dtype == np.int64 and found.y.tolist() == [0, 1, 0, 1, 0, 0, 1] and found.classes == ("no", "yes")
    filled = "1 missing, filled with the mean; 1 in the new column 'smokes is missing'"
    assert found.notes == (
        "column 1: left out, it only numbers the rows",
        "age: 3 missing, filled with the mean; 1 in the new column 'age is missing'",
        "sex: text, 1 for 'm', 0 for 'f'",
        f"smokes: true and false, as 1 and 0; {filled}",
        "city: 4 categories: 'Bonn', 'Jena', 'Ulm', '(missing)'",
        "name: text, 7 different in 7 rows: left out (--categories keeps it)",
        "ill: the target, 2 classes: 'no' = 0, 'yes' = 1; 1 row without it left out",
    )


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "zip,id,n,y\n7,a1,1,0\n12,b2,2,1\n7,c3,3,1\n12,d4,4,0\n9,e5,5,0\n")
    found = read(path, target="y", categories="zip", drop=["id"])
    assert found.columns == ("zip = 7", "zip = 9", "zip = 12", "n")  # in the order of the numbers
    assert found.X[:, :3].tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert found.notes[0] == "n: numbers, as they are" and "id: left out, as chosen" in found.notes
    both = read(path, target="y", categories="zip, id", drop="n")  # one text with commas
    assert both.X.shape == (5, 8)
    assert read(path, target="id").classes == ("a1", "b2", "c3", "d4", "e5")
    assert read(path, target="zip", categories=["zip"]).y.tolist() == [0, 2, 0, 2, 1]
    for options, message in (
        ({"drop": "i"}, r"a\.csv: drop = 'i', must be one of its columns: zip, id, n, y"),
        ({"categories": ["zip", "x"]}, "categories = 'x', must be one of its columns"),
        ({"drop": "y"}, "drop = 'y', is the target"),
        ({"categories": "id", "limit": 100}, "column 'id' has 5 categories in 5 rows, which take more than 100 bytes"),
    ):
        with pytest.raises(DatasetError, match=message):
            read(path, target="y", **options)


def test_a_name_with_a_comma_is_one_name(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", '"a, b",c,y\n1,2,0\n3,4,1\n')
    assert read(path, target="y", drop="a, b").columns == ("c",)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1,5", "-2", "+3,25"], [1.5, -2.0, 3.25]),  # decimal commas
        ([" 1.5", "+2e1", ".5"], [1.5, 20.0, 0.5]),
        (["1", "NA", "3"], [1.0, 2.0, 3.0]),
        (["True", "FALSE", "true"], [1.0, 0.0, 1.0]),
        (["9007199254740993", "0", "0"], [9007199254740992.0, 0.0, 0.0]),
    ],
)
def test_numbers_in_many_spellings(tmp_path: Path, cells: list[str], expected: list[float]) -> None:
    rows = "".join(f"{cell};{k % 2}\n" for k, cell in enumerate(cells))
    assert read(put(tmp_path, "a.csv", f"x;y\n{rows}"), target="y").X[:, 0].tolist() == expected


def test_an_empty_column_is_left_out(tmp_path: Path) -> None:
    found = read(put(tmp_path, "a.csv", "a,b,c,y\n1,,NA,0\n2,, nan ,1\n"), target="y")
    assert found.columns == ("a",) and "b: left out: it has no values" in found.notes
    assert "c: left out: it has no values" in found.notes


@pytest.mark.parametrize(
    ("labels", "task", "kind", "expected"),
    [
        (["no", "yes", "no"], "auto", np.int64, [0, 1, 0]),
        (["true", "false", "true"], "auto", np.int64, [1, 0, 1]),
        (["true", "false", "true"], "regression", np.float64, [1, 0, 1]),
        (["3", "-7", "3"], "auto", np.int64, [3, -7, 3]),
        (["3", "1.5", "3"], "auto", np.float64, [3, 1.5, 3]),
        (["3", "3", "4"], "regression", np.float64, [3, 3, 4]),
    ],
)
def test_labels(tmp_path: Path, labels: list[str], task: Any, kind: Any, expected: list[float]) -> None:
    rows = "".join(f"{k},{label}\n" for k, label in enumerate(labels))
    found = read(put(tmp_path, "a.csv", f"x,y\n{rows}"), target="y", task=task)
    assert found.y.dtype == kind and found.y.tolist() == expected


def test_text_labels_need_classification(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "x,y\n1,cat\n2,dog\n")
    with pytest.raises(DatasetError, match=r"a\.csv: labels are text, such as 'cat'; regression needs numbers"):
        read(path, target="y", task="regression")
    with pytest.raises(DatasetError, match="has one class only, cat: classification needs two or more"):
        read(put(tmp_path, "a.csv", "x,y\n1,cat\n2,cat\n"), target="y")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("caf\xe9,y\n1,0\n2,1\n", "cannot be read as CSV in UTF-8: 'utf-8' codec can't decode byte 0xe9"),
        ("a,y\n\xe9,0\nb,1\n", "column 'a' holds binary values, must hold numbers or text in UTF-8"),
    ],
)
def test_other_encodings_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DatasetError, match=message):
        read(path, target="y")


# --- data frames ----------------------------------------------------------------------------


def test_a_data_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "a": [1.0, math.nan, 3.0, 8.0],
            "b": pd.Categorical(["u", "v", "u", None]),
            "c": pd.array([True, None, False, True], dtype="boolean"),
            "d": pd.array([1, None, 3, 2], dtype="Int64"),
            "y": ["n", "j", "n", "j"],
        },
        index=pd.Index([7, 7, 8, 9], name="id"),
    )
    found = read(frame, target="y")
    assert found.columns == (
        *("a", "a is missing", "b = u", "b = v", "b = (missing)", "c", "c is missing", "d", "d is missing"),
    )
    assert found.X[:, 0].tolist() == [1.0, 4.0, 3.0, 8.0] and found.X[:, 7].tolist() == [1.0, 2.0, 3.0, 2.0]
    assert (found.name, found.source, found.classes) == ("DataFrame", "DataFrame", ("j", "n"))
    frame.to_parquet(tmp_path / "a.parquet")  # with the index as a column, which pandas marks
    again = read(tmp_path / "a.parquet", target="y")
    assert again.columns == found.columns and np.array_equal(again.X, found.X)


def test_an_arrow_table_and_a_frame_of_objects() -> None:
    found = read(pyarrow.table({"a": [1, 2, 3], "y": [0.5, 1.5, 2.5]}), target="y", task="regression")
    assert found.X.tolist() == [[1.0], [2.0], [3.0]] and found.y.tolist() == [0.5, 1.5, 2.5]
    with pytest.raises(DatasetError, match=r"DataFrame cannot be read as a table: .*'x' with type str.* column a "):
        read(pd.DataFrame({"a": [1, "x", {}], "y": [0, 1, 0]}), target="y")
    with pytest.raises(DatasetError, match=r"DataFrame, row 1: label = 0\.5, must be an integer"):
        read(pd.DataFrame({"a": [1, 2], "y": [0.0, 0.5]}), target="y")


def test_categories_of_arrow_and_polars() -> None:
    chunks = [pyarrow.array(cells).dictionary_encode() for cells in (["a", "b"], ["c", None], ["a", "b", None, "a"])]
    frames = [pyarrow.table({"s": pyarrow.chunked_array(chunks), "y": [0, 1] * 4})]
    with contextlib.suppress(ImportError):
        import polars

        texts = polars.Series(["a", "b", "c", None, "a", "b", None, "a"], dtype=polars.Categorical)
        frames.append(polars.DataFrame({"s": texts, "y": [0, 1] * 4}))
    for frame in frames:
        found = read(frame, target="y")
        assert found.columns == ("s = a", "s = b", "s = c", "s = (missing)")
        assert found.X.argmax(axis=1).tolist() == [0, 1, 2, 3, 0, 1, 3, 0]


# --- anything at all ------------------------------------------------------------------------

CELLS = st.sampled_from(["", "1", "-2.5", "true", "false", "red", "blue", "NA", "?", "2020-01-31", "1,5", " x ", '"q"'])


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=2, max_size=12), separator=st.sampled_from(",;\t|"))
def test_any_cells_become_numbers_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]], separator: str
) -> None:
    """The same table from a file and from a frame of its texts: the same numbers, or an error from both."""
    quoted = [[f'"{cell}"' if "," in cell else cell for cell in row] for row in rows]
    text = "\n".join(separator.join(row) for row in [["a", "b", "y"], *quoted])
    path = put(tmp_path_factory.mktemp("any"), "a.csv", text + "\n")
    found = attempt(path)
    frame = pyarrow.table({name: [row[k].strip('"') for row in rows] for k, name in enumerate("aby")})
    other = attempt(frame)
    if found is not None and other is not None:
        assert found.columns and found.X.shape == (len(found.y), len(found.columns)) and np.isfinite(found.X).all()
        assert len(found.y) == sum(row[2] not in ("", "NA") for row in rows)
        assert len(found.notes) >= 2 and found.notes[-1].startswith("y: the target")
        if separator == "," and not any(cell in ("true", "false", "1,5") for row in rows for cell in row):
            assert other.columns == found.columns and np.array_equal(other.X, found.X)


def attempt(source: Any) -> Data | None:
    """Read, or expect the one error, which names the file."""
    found: Data | None = None
    with contextlib.suppress(DatasetError), naming(source if isinstance(source, Path) else Path("Table")):
        found = read(source, target="y", task="auto")
    return found


def test_the_mean_of_large_numbers_does_not_overflow(tmp_path: Path) -> None:
    large = read(put(tmp_path, "a.csv", "a,y\n1.7e308,0\n,1\n1.7e308,1\n1.6e308,0\n"), target="y")
    assert large.X[1, 0] == pytest.approx(1.7e308 / 3 + 1.7e308 / 3 + 1.6e308 / 3)


def test_signs_around_numbers_are_named_and_not_guessed(tmp_path: Path) -> None:
    rows = "".join(f'"{k},234",{k}%,${k},{("-", "none")[k % 3 > 0]},{k % 2}\n' for k in range(60))
    found = read(put(tmp_path, "a.csv", f"a,b,c,d,y\n{rows}"), target="y")
    left_out = "text, 60 different in 60 rows: left out (--categories keeps it); numbers must have no other signs:"
    assert found.columns == ("d = none",)  # "none" and "-" are texts, as for pandas
    assert found.notes[:3] == (f"a: {left_out} '0,234'", f"b: {left_out} '0%'", f"c: {left_out} '$0'")
    few = "".join(f"{k % 3} kg,{k % 3}-{k % 2},{k % 2}\n" for k in range(30))
    assert read(put(tmp_path, "c.csv", f"a,b,y\n{few}"), target="y").notes[:2] == (
        "a: 3 categories: '0 kg', '1 kg', '2 kg'; numbers must have no other signs: '0 kg'",
        "b: 6 categories: '0-0', '0-1', '1-0', '1-1', '2-0', '2-1'",
    )
    with pytest.raises(DatasetError, match="line 2: column 'c' = '1%' is not a number, but most cells of this column"):
        read(put(tmp_path, "b.csv", "c,y\n1%,0\n2,1\n2,0\n"), target="y")
    path = put(tmp_path, "b.csv", "a;y\n1,234;0\n9,000;1\n")
    assert read(path, target="y").X[:, 0].tolist() == [1.234, 9.0]  # after semicolons, commas are decimal points
