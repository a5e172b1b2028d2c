"""Rules about the source itself. The layers are kept by import-linter: see pyproject.toml and `make lint`."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from avare import datasets, experiments, samplers

SOURCE = Path(__file__).parents[1] / "src" / "avare"
FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES = 600
LONGER: dict[str, str] = {}  # file: why it is one idea
SHARED_LINES = 6


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES or relative(path) in LONGER


def names() -> dict[str, str]:
    """The names of samplers, datasets and experiments, and the place where each may be tested for."""
    found = {name: f"samplers/{name.lower()}.py" for name in samplers.names()}
    found |= dict.fromkeys(datasets.names(), "datasets/catalogue.py")
    for name in experiments.names():
        found |= dict.fromkeys((name, *experiments.get(name).kinds), f"experiments/{name}")
    return found


def decisions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Text and class names that decide something: in comparisons, patterns and tests of a type."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            parts = node.args[1:] if node.func.id in ("isinstance", "issubclass") else []
        for part in parts:
            for each in ast.walk(part):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.lineno, each.value
                elif isinstance(each, ast.Name | ast.Attribute) and not isinstance(node, ast.Compare):
                    yield each.lineno, each.id if isinstance(each, ast.Name) else each.attr


def test_what_is_tested_is_found() -> None:
    code = 'if name in ("Avare", "x"): pass\nmatch y:\n  case "nets": pass\nok = isinstance(s, avare.Uniform | Safe)'
    assert {text for _, text in decisions(ast.parse(code))} >= {"Avare", "x", "nets", "Uniform", "Safe"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_sampler_dataset_or_experiment_is_tested_for_by_name(path: Path) -> None:
    known = names()
    faults = [
        f"line {line}: {text!r}"
        for line, text in decisions(ast.parse(path.read_text()))
        if text in known and not relative(path).startswith(known[text])
    ]
    assert not faults, f"{relative(path)} tests for names: {faults}"


def statements(path: Path) -> list[tuple[int, str]]:
    """The lines of a file in a plain form: no docstrings, comments, imports or signatures."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        for statement in body:
            found += [(statement.lineno, line) for line in ast.unparse(statement).splitlines()]
        found.append((node.lineno, f"end of {path} {node.lineno}"))  # no run goes beyond a function
    return found


def test_no_code_is_written_twice() -> None:
    places: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in FILES:
        lines = statements(path)
        for first in range(len(lines) - SHARED_LINES + 1):
            run = lines[first : first + SHARED_LINES]
            places[tuple(text for _, text in run)].add(f"{relative(path)}:{run[0][0]}")
    twice = sorted({" = ".join(sorted(found)) for found in places.values() if len(found) > 1})
    assert not twice, "\n".join(twice)
