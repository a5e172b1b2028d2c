"""Tables as CSV, Markdown and HTML."""

import math

import pytest

from avare.experiments.document import Column, Panel, Section, Table
from avare.experiments.report.page import render

SMALL = Table(
    "A <caption>",
    (
        Column("name", "name"),
        Column("n", "N", "integer"),
        Column("x", "x", "number"),
        Column("ratio", "ratio", "ratio"),
        Column("big", "big", "power"),
        Column("time", "time", "seconds"),
        Column("yes", "yes?", "answer"),
        Column("verdict", "verdict"),
        Column("detail", "", "detail"),
        Column("note", "note"),
    ),
    (
        ("a|b <c>", 60000, -1.2345, 5.0876, 1.69e10, 12.345, True, "agrees", 0.1, "n"),
        ("d", None, math.nan, 2500.0, 0.002, 1234.5, False, "differs", 1, ""),
        ("e", 1, "one > two", 1.0, 1.0, 0.001, None, "missing", 1.0, None),
        ("f", 1, -math.inf, 1.0, 1.0, 1.0, None, "", 1.0, None),
    ),
)


def test_csv_has_all_digits_and_all_columns() -> None:
    assert SMALL.as_csv().splitlines() == [
        "name,n,x,ratio,big,time,yes,verdict,detail,note",
        "a|b <c>,60000,-1.2345,5.0876,16900000000.0,12.345,True,agrees,0.1,n",
        "d,,,2500.0,0.002,1234.5,False,differs,1,",
        "e,1,one > two,1.0,1.0,0.001,,missing,1.0,",
        "f,1,,1.0,1.0,1.0,,,1.0,",
    ]


def test_markdown_is_rounded_and_aligned() -> None:
    assert SMALL.as_markdown().splitlines() == [
        "A <caption>",
        "",
        "| name | N | x | ratio | big | time | yes? | verdict | note |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |",
        "| a\\|b <c> | 60\u202f000 | −1.23 | 5.088 | 1.69 × 10¹⁰ | 12.3 | yes | agrees | n |",
        "| d | – | – | 2.50 × 10³ | 2.00 × 10⁻³ | 1234 | no | differs | – |",
        "| e | 1 | one > two | 1.000 | 1.00 × 10⁰ | 0.001 | – | missing | – |",
        "| f | 1 | – | 1.000 | 1.00 × 10⁰ | 1 | – | – | – |",
    ]


def test_html_is_escaped_and_marks_the_verdicts() -> None:
    text = render([Panel("P", (Section("S", (SMALL,)),))], {}, lead="", notices=()).split("<script>")[0]
    assert "<caption><span>A &lt;caption&gt;</span></caption>" in text and "a|b &lt;c&gt;" in text
    assert '<td class="yes">agrees</td>' in text and '<td class="no">differs</td>' in text
    assert "<td>missing</td>" in text and "<td>yes</td>" in text
    assert '<td class="words">one &gt; two</td>' in text
    assert '<th scope="col" class="number">N</th>' in text and "detail" not in text


def test_columns_can_be_left_out() -> None:
    assert SMALL.without("name", "note").as_csv().splitlines()[0] == "n,x,ratio,big,time,yes,verdict,detail"


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("digits", 0.0123456, "0.0123"),
        ("digits", 12345.0, "1.23 × 10⁴"),
        ("digits", 0.0, "0"),
        ("value", 64.26634, "64.2663"),
        ("percent", 0.01234, "1.23 %"),
        ("number", 1234.5, "1.23 × 10³"),
    ],
)
def test_kinds_of_numbers(kind: str, value: float, text: str) -> None:
    assert Column("x", "x", kind).text(value) == text


def test_a_table_of_rows_by_name() -> None:
    table = Table.of("T", "a; long_name||ratio; c|C", [{"a": 1, "c": 2, "d": 3}, {"long_name": 0.5}])
    assert table.columns == (Column("a", "a"), Column("long_name", "long name", "ratio"), Column("c", "C"))
    assert table.rows == ((1, None, 2), (None, 0.5, None))
