"""What the pages say runs."""

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest

import avare

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "benchmarks" / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), INDEX])
WITH_FRAMEWORKS = (
    ROOT / "docs" / "frameworks.md"
)  # its snippets run in tests/torch, where their frameworks are imported
MOST_WORDS = 35  # of a sentence
NOT_YET = {"datasets.md", "experiments.md", "frameworks.md", "linear.md", "torch.md"}

REGISTRIES = [
    (avare.samplers.registry, "_KINDS"),
    (avare.samplers.registry, "_EXAMPLES"),
    (avare.problems.registry, "_KINDS"),
]


def snippets(page: Path) -> list[str]:
    """The examples of a page, each in the lines that it has there: Numba reads the source of kernels from the page."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in found]


@pytest.mark.parametrize("page", [page for page in PAGES if page != WITH_FRAMEWORKS], ids=lambda page: page.name)
def test_snippets_run_as_printed(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in REGISTRIES:  # what a page registers is its own
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    for snippet in snippets(page):
        exec(compile(snippet, str(page), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if page == ROOT / "README.md":
        gain = re.search(r"uniform batches would have (\S+) times the second moment", printed)
        assert gain is not None and float(gain[1]) > 3.0
        first, second, *_, last = printed.splitlines()
        assert 1.5 < float(first.removeprefix("gain: ")) < 2.5  # other versions may round differently
        assert 0.93 < float(second) < 1.0  # LogisticRegression on scaled columns: 0.98
        assert np.abs(np.fromstring(last.strip("[]"), sep=" ") - np.arange(5.0)).max() < 0.05  # the true coefficients


def test_the_readme_has_short_examples() -> None:
    expected = (("for epoch in", 15), ("print(cross_val_score(AvareClassifier(", 3), ("for step in", 12))
    for example, (start, most) in zip(snippets(ROOT / "README.md"), expected, strict=True):
        lines = [line for line in example.splitlines() if line and not line.startswith(("import", "from"))]
        assert len(lines) <= most
        assert any(line.startswith(start) for line in lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_a_page_lead_to_a_heading(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        found = re.findall(r"^#+ (.*)$", (page.parent / target if target else page).read_text(), flags=re.MULTILINE)
        names = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}
        assert heading in names, f"{page.name} points to {target}#{heading}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def sentences(page: Path) -> Iterator[str]:
    """The sentences of a page, without code blocks, comments, formulas, tables and headings; `code` is a word."""
    left_out = r"^```.*?^```$|^<!--.*?-->$|^\$\$.*?\$\$|^ *\|.*?$|^#.*?$|!\[[^\]]*\]\([^)]*\)"
    text = re.sub(left_out, "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    for block in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text):
        yield from re.split(r"(?<=[.!?])[)*]*\s+(?=[^a-z\s]|code)", block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    words = {each: len(re.findall(r"\S*\w\S*", each)) for each in sentences(page)}
    long = [f"{count} words: {' '.join(each.split())}" for each, count in words.items() if count > MOST_WORDS]
    assert bool(long) == (page.name in NOT_YET), "\n".join(long) or f"{page.name} is no longer in NOT_YET"


def test_the_index_of_benchmarks_has_every_script_and_make_runs_what_it_marks() -> None:
    linked = dict(re.findall(r"\]\(([\w/]+\.py)\)(\s●)?", INDEX.read_text()))
    scripts = (path for path in INDEX.parent.rglob("*.py") if '__name__ == "__main__"' in path.read_text())
    assert {path.relative_to(INDEX.parent).as_posix() for path in scripts} <= linked.keys()
    bench = re.search(r"^BENCHMARKS = (.*?[^\\])\n", (ROOT / "Makefile").read_text(), flags=re.DOTALL | re.MULTILINE)
    assert bench is not None
    marked = {path.removesuffix(".py") for path, mark in linked.items() if mark}
    assert set(bench[1].replace("\\", "").split()) == marked


def test_the_demo_shows_avare_ahead_where_there_is_something_to_gain(tmp_path: Path) -> None:
    if numba.config.DISABLE_JIT:
        pytest.skip("minutes without compiled code; the compiled run tests it")
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert recipe is not None and "$(RUN) examples/demo.py\n" in recipe[1]
    found = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "--out", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    rare, even = re.findall(r"Verdict: Calibrated (.*?)\. Wall-clock time:", found.stdout)
    assert "fewer epochs than Uniform" in rare and "fewer epochs" not in even
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize("script", sorted(ROOT.glob("examples/gallery/plot_*.py")), ids=lambda script: script.stem)
def test_an_example_of_the_gallery_ends_with_what_was_gained_in_seconds(script: Path) -> None:
    *before, end = re.split(r"^# %%$", script.read_text(), flags=re.MULTILINE)
    assert "plt.subplots" in "".join(before)
    assert "seconds" in end and "print(" in end


def test_import_is_light() -> None:
    def loaded(packages: str) -> set[str]:
        program = f"import sys, {packages}; print(' '.join(sys.modules))"
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return set(found.stdout.split())

    assert not {"avare.experiments", "avare.plotting"} & loaded("avare")
    # Numba itself imports the root of SciPy: hence modules, and not packages, are compared.
    added = {name.split(".")[0] for name in loaded("avare") - loaded("numpy, numba")} - sys.stdlib_module_names
    assert added - {"numpy", "numba", "llvmlite"} == {"avare"}


def test_the_package_needs_numpy_numba_and_scipy_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(re.split(r"[<>=~!]", need)[0] for need in project["dependencies"]) == ["numba", "numpy", "scipy"]
    assert (ROOT / "src/avare/py.typed").exists()


def test_make_help_lists_the_commands() -> None:
    found = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for command in ("install", "demo", "test", "test-all", "bench", "clean"):
        assert f"make {command} " in found.stdout


def test_the_readme_of_a_wheel_has_absolute_links() -> None:
    words = ["make", "--silent", "readme", "URL=https://example.org/avare"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = re.findall(r"\]\(([^)]*)\)", found)
    assert "https://example.org/avare/benchmarks/results/structures.png" in links
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    assert found.count("\n") == (ROOT / "README.md").read_text().count("\n")
    lacking = subprocess.run(["make", "--silent", "readme"], cwd=ROOT, capture_output=True, text=True)
    assert lacking.returncode == 2 and "URL is missing" in lacking.stderr


def test_without_torch_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None\nimport avare.torch"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stderr.strip().endswith("ImportError: avare.torch needs torch: pip install 'avare[torch]'")


@pytest.mark.parametrize("name", ["Avare", "Calibrated", "sgd", "sgld", "batch_weights", "minimize_variance"])
def test_help_shows_signatures_that_fit_on_a_screen(name: str) -> None:
    import avare

    signature = str(inspect.signature(getattr(avare, name)))
    assert "numpy._typing" not in signature and "collections.abc" not in signature and len(signature) < 600
