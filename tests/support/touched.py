"""Print what to test for the files that have changed since a commit, one target a line: see `make quick`.

A source file is tested by its doctests and by its mirror in tests/: ``tests/package/test_module.py`` and
``tests/package/test_common.py`` if there is a file for the module, otherwise the whole ``tests/package``.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ALWAYS = "tests/test_architecture.py"
PAGES = ("tests/e2e/test_documents.py", "tests/e2e/test_names.py")


def targets(changed: Iterable[str], root: Path) -> list[str]:
    """The files and folders that pytest is to run."""
    found = [ALWAYS]
    for name in changed:
        path = Path(name)
        if path.suffix == ".md" or name in ("Makefile", "pyproject.toml"):
            found += PAGES
        elif path.suffix == ".py" and path.parts[0] == "src" and (root / path).exists():
            found += [name, *_mirror(path, root)]
        elif path.parts[0] == "tests" and path.name.startswith("test_") and (root / path).exists():
            found.append(name)
        elif path.parts[:2] == ("tests", "extension"):
            found.append("tests/extension")
    return list(dict.fromkeys(found))


def _mirror(path: Path, root: Path) -> list[str]:
    package = Path("tests", *path.parts[2:-1])
    folders = [package, *(each for each in package.parents if each.parts)]  # tests of a subpackage may be above it
    for folder in folders:
        own = folder / f"test_{path.stem.strip('_')}.py"
        if (root / own).exists():
            return [str(each) for each in (own, folder / "test_common.py") if (root / each).exists()]
    return [str(each) for each in folders[:-1] if any((root / each).glob("test_*.py"))][:1]


def _changed(since: str) -> list[str]:
    def git(*words: str) -> list[str]:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.splitlines()

    return [*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")]


if __name__ == "__main__":
    print("\n".join(targets(_changed(sys.argv[1]), Path.cwd())))
