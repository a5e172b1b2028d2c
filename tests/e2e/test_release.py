"""What a release needs: one version, dependencies within stated limits, and an sdist that can be tested."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]


def pinned(name: str) -> dict[str, Version]:
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {package: Version(version) for package, version in pairs}


def needed(*extras: str) -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for name in extras for text in PROJECT["optional-dependencies"][name])]
    return [need for need in map(Requirement, texts) if need.name != "avare"]


def test_the_version_is_in_one_place_and_has_its_changes() -> None:
    version = PROJECT["version"]
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert first is not None and first[1] == version
    assert f'"{version}"' not in "".join(path.read_text() for path in ROOT.glob("src/**/*.py"))


def test_the_oldest_versions_are_those_that_the_package_allows() -> None:
    lowest: dict[str, Version] = {}
    for need in needed(*RUNTIME):
        for limit in need.specifier:
            if limit.operator == ">=":
                lowest[need.name] = max(Version(limit.version), lowest.get(need.name, Version("0")))
    assert pinned("oldest") == lowest


def test_todays_versions_suffice() -> None:
    versions = pinned("today")
    for need in needed(*PROJECT["optional-dependencies"]):
        assert need.specifier.contains(versions[need.name.lower()]), f"{need}: constraints/today.txt differs"


def test_the_workflows_test_the_first_and_the_last_python() -> None:
    stated = [re.search(r"Python :: (3\.\d+)$", text) for text in PROJECT["classifiers"]]
    versions = sorted((match[1] for match in stated if match), key=Version)
    matrix = re.search(r"python: (\[.*\])", (ROOT / ".github/workflows/tests.yml").read_text())
    assert matrix is not None and matrix[1] == f'["{versions[0]}", "{versions[-1]}"]'
    assert PROJECT["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_for_github_have_its_form(schema: str, files: str) -> None:
    pytest.importorskip("check_jsonschema")
    paths = sorted(ROOT.glob(files))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert paths and done.returncode == 0, done.stdout + done.stderr


def test_benchmarks_on_demand_are_files() -> None:
    options = re.search(r"\[(\w+(?:, \w+)+)\]", (ROOT / ".github/workflows/benchmarks.yml").read_text())
    assert options is not None
    assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in options[1].split(", "))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sdist_is_clean_and_its_tests_run(tmp_path: Path) -> None:
    for module in ("build", "twine", "hatchling"):
        pytest.importorskip(module)

    def run(*arguments: object, folder: Path = ROOT) -> None:
        command, path = [sys.executable, "-m", *map(str, arguments)], {"PYTHONPATH": str(folder / "src")}
        done = subprocess.run(command, cwd=folder, env=os.environ | path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    run("build", "--no-isolation", "-o", tmp_path, ROOT)
    files = list(tmp_path.glob("avare-*"))
    assert len(files) == 2
    run("twine", "check", "--strict", *files)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    some = [
        "tests/test_schedules.py",
        "tests/simplex",
        "tests/e2e/test_documents.py",
        "-k",
        "not demo and not snippets",
    ]
    run("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *some, folder=tmp_path / f"avare-{PROJECT['version']}")
