"""Names and paths on pages and in docstrings are those of this tree.

A path must exist. ``avare.x.y`` is imported. In a docstring, one backtick on each side means something of avare: in the
docstring of a module, a module or a definition; in that of a class or function, also a name that its package uses.
Everything else in backticks is code: each of its words must occur somewhere in code as a name, a keyword or a text.
"""

import ast
import builtins
import functools
import importlib
import keyword
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "avare"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md"])
SOURCES = sorted(PACKAGE.rglob("*.py"))
READ = sorted(
    path for folder in ("src", "tests", "benchmarks", "examples", "docs") for path in (ROOT / folder).rglob("*.py")
)
SETTINGS = [ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("src/**/*.toml"), *ROOT.glob("benchmarks/**/*.toml")]
PATH = r"(?<![\w/.~-])(?:tests|benchmarks|docs|examples|constraints|src|\.github)/[\w./*-]*[\w*]"
ELSEWHERE = {
    "the paper's procedures": {"Delete", "Insert", "Sample", "Search"},
    "placeholders": {"avare.Name", "avare.samplers.Name", "MyExperiment", "_name"},
    "variables of an example": {"boxes", "grads", "window"},
    "other libraries": {
        "Accelerator",
        "BatchNorm",
        "Subset",
        "add_scalar",
        "blackjax",
        "memmap",
        "np",
        "on_before_batch_transfer",
        "posteriors",
    },
    "keys of results": {"test_error", "test_every", "test_f1"},
}
OTHERS = set().union(*ELSEWHERE.values())

Definition = ast.ClassDef | ast.FunctionDef


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def names_in(path: Path) -> Iterator[str]:
    """Every name in a file: of definitions, arguments, attributes and variables."""
    for node in ast.walk(tree_of(path)):
        for field in ("name", "asname", "id", "attr", "arg"):
            found = getattr(node, field, None)
            if isinstance(found, str):
                yield from found.split(".")


@functools.cache
def names_in_folder(folder: Path) -> set[str]:
    return {name for path in folder.glob("*.py") for name in names_in(path)}


def definitions(path: Path) -> Iterator[str]:
    """The module, its classes and functions, and what is assigned in the body of the module or of a class."""
    yield path.stem if path.stem != "__init__" else path.parent.name
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Definition):
            yield node.name
        if isinstance(node, ast.Module | ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.Assign | ast.AnnAssign):
                    yield from (found.id for found in ast.walk(each) if isinstance(found, ast.Name) and is_set(found))


def is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def docstrings(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Each docstring of a file, and the texts below attributes of classes and modules."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Module | Definition):
            texts = (ast.get_docstring(ast.Module([each], []), clean=False) for each in node.body)
            yield from ((node, text) for text in texts if text is not None)


@functools.cache
def all_definitions() -> set[str]:
    return {name for path in SOURCES for name in definitions(path)}


@functools.cache
def known_words() -> set[str]:
    """Names and texts of all code, and the words of settings; docstrings do not count."""
    words = {*dir(builtins), *keyword.kwlist, *OTHERS, "avt"}
    for path in READ:
        words |= {path.stem, path.parent.name, *names_in(path)}
        described = {text for _, text in docstrings(path)}
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in described:
                words |= set(re.findall(r"\w+", node.value))
    for path in SETTINGS:
        words |= set(re.findall(r"\w+", path.read_text()))
    return words


def is_there(name: str) -> bool:
    """Whether a dotted name of avare can be imported."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError as error:
            if (error.name or "").startswith("avare"):
                continue
            return set(parts[length:]) <= all_definitions()  # a framework is not installed
        for part in parts[length:]:
            if not hasattr(found, part):  # a test may have left a module whose framework is not installed half imported
                source = PACKAGE.joinpath(*parts[1:length]).with_suffix(".py")
                return part in getattr(found, "__annotations__", {}) or (
                    source.exists() and part in definitions(source)
                )
            found = getattr(found, part)
        return True
    return False


def unknown_words(code: str) -> Iterator[str]:
    """What a piece of code names, and nothing has."""
    for name in re.findall(r"(?<![\w/])(?:avare|avt)(?:\.[A-Za-z_]\w*)+", code):
        if not is_there(re.sub("^avt", "avare.torch", name)) and name not in OTHERS:
            yield name
    for word in re.findall(r"\b[A-Za-z_]\w*", re.sub(r"(?<![\w/])(?:avare|avt)(?:\.[A-Za-z_]\w*)+", "", code)):
        is_formula = re.fullmatch(r"(\w|sum)?(_\w{1,3})?", word)  # such as P_min
        if not (is_formula or word.isupper() or word in known_words()):
            yield word


def lost_paths(text: str) -> Iterator[str]:
    for path in re.findall(PATH, text):
        if not next(ROOT.glob(path), None):
            yield path


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_names_and_paths_on_a_page_are_there(page: Path) -> None:
    text = page.read_text()
    lost = list(lost_paths(text))
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for _, code in re.findall(r"(?<!`)(`{1,2})(?!`)(.+?)\1(?!`)", prose, flags=re.DOTALL):
        lost += unknown_words(code)
    assert not lost, f"{relative(page)} names {lost}"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_names_and_paths_in_docstrings_are_there(path: Path) -> None:
    here = all_definitions() | OTHERS
    lost: list[str] = []
    for node, whole in docstrings(path):
        lost += lost_paths(whole)
        text = re.sub(r"^ *(>>>|\.\.\.) .*$", "", whole, flags=re.MULTILINE)
        known = here if isinstance(node, ast.Module) else here | names_in_folder(path.parent)
        for code in re.findall(r"``(.+?)``", text, flags=re.DOTALL):
            lost += unknown_words(code)
        for name in re.findall(r"(?<![`:])`([A-Za-z_][\w.]*)`(?!`)", re.sub(r"``.+?``", "", text, flags=re.DOTALL)):
            if name.startswith("avare"):
                lost += [] if is_there(name) else [name]
            else:
                lost += [name] if not set(name.split(".")) <= known else []
    assert not lost, f"{relative(path)} names {lost}"


def test_tests_that_are_named_are_there() -> None:
    paths = sorted(ROOT.glob("tests/**/*.py"))
    there = {path.stem for path in paths} | {name for path in paths for name in definitions(path)}
    named = {
        (relative(path), node.value)
        for path in paths
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"test_\w+", node.value)
    }
    named |= {(relative(page), name) for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    lost = sorted(f"{place} names {name}" for place, name in named if name not in there | OTHERS)
    assert not lost, "\n".join(lost)
