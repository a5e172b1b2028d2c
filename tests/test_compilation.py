import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest

import avare
from avare import _compilation
from avare._compilation import ByType, kernel, lean, product


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
def test_works_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: bool) -> object:
        def decorate(function: object) -> object:
            if options.get("cache"):
                raise RuntimeError("cannot cache function: no locator available")
            return ("compiled", function, options)

        return decorate

    monkeypatch.setattr("avare._compilation.njit", refuse)
    compiled, function, options = kernel(len)
    assert (compiled, function, options["nogil"], "cache" in options) == ("compiled", len, True, False)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
def test_imports_where_no_folder_can_be_written_to(tmp_path: Path) -> None:
    # A folder of compiled code below a file cannot be made, whoever asks.
    (tmp_path / "file").write_text("")
    program = "import avare; print(avare.Avare(10, 2, seed=0).sample().weights.sum() > 0)"
    source = Path(avare.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(tmp_path / "file" / "below")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == "True", found.stderr


@kernel
def _sum(values):  # type: ignore[no-untyped-def]  # kernels have no types
    total = 0.0
    for value in values:
        total += value
    return total


@product
def _sum_quickly(values):  # type: ignore[no-untyped-def]
    return _sum(values)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
def test_options_do_not_come_from_the_first_caller() -> None:
    # The caller, which is inlined and may reorder sums, compiles the other first. It must not pass these options on.
    assert _sum_quickly(np.ones(3)) == 3.0
    for compiled in _sum.inspect_llvm().values():
        assert "fadd double" in compiled and "fadd reassoc" not in compiled and "alwaysinline" not in compiled


_MODULE = """
from typing import NamedTuple
from avare._compilation import ByType, kernel, lean

class Line(NamedTuple):
    length: float

class Square(NamedTuple):
    side: float

size = ByType("size")
measure = size.function

@size.version(Line)
@lean
def size_of_line(line, factor):
    return factor * line.length

@size.version(Square)
@lean
def size_of_square(square, factor):
    return factor * square.side**2

@kernel
def twice(shape, factor):
    return 2.0 * measure(shape, factor)
"""
_PROGRAM = """
import numba, shapes
print(shapes.twice(shapes.Line(3.0), 5.0), shapes.twice(shapes.Square(3.0), 5.0))
if not numba.config.DISABLE_JIT:
    print(sum(shapes.twice.stats.cache_hits.values()))
"""


def started(program: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program in a new process."""
    source = Path(avare.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PYTHONPATH": f"{folder}:{source}",
            "NUMBA_DISABLE_JIT": str(int(numba.config.DISABLE_JIT)),
            "PYTHONDONTWRITEBYTECODE": "1",  # a module written again within a second would be taken from the old one
        },
        capture_output=True,
        text=True,
        check=False,
    )


def printed(program: str, folder: Path) -> list[str]:
    """What a program prints in a new process, in lines."""
    found = started(program, folder)
    assert not found.returncode, found.stderr
    return found.stdout.splitlines()


def test_versions_are_chosen_by_type_inside_a_kernel_and_kept_on_disk(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(_MODULE)
    lines = [printed(_PROGRAM, tmp_path) for _ in range(2)]
    assert lines[0][0] == lines[1][0] == "30.0 90.0"
    if not numba.config.DISABLE_JIT:
        assert (lines[0][1], lines[1][1]) == ("0", "2")


_FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"  # no file may grow, as on a full disk


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
@pytest.mark.parametrize(
    "damage",
    ["index", "full disk", *(pytest.param(how, marks=pytest.mark.slow) for how in ("data", "cut short", "empty"))],
)
def test_compiles_without_a_cache_that_cannot_be_used(tmp_path: Path, damage: str) -> None:
    if damage == "full disk":
        pytest.importorskip("resource")
    (tmp_path / "shapes.py").write_text(_MODULE)
    noting = "import warnings; warnings.simplefilter('always')\n"
    program = noting + _PROGRAM
    if damage != "full disk":
        assert printed(program, tmp_path)[0] == "30.0 90.0"
        for path in tmp_path.glob("__pycache__/shapes*.nb[ci]"):
            content = path.read_bytes()
            if damage == "index" and path.suffix == ".nbi":
                path.write_bytes(b"no index")
            elif damage == "data" and path.suffix == ".nbc":
                path.write_bytes(b"no code")
            elif damage in ("cut short", "empty"):
                path.write_bytes(content[: len(content) // 2] if damage == "cut short" else b"")
    found = started((_FULL if damage == "full disk" else "") + program, tmp_path)
    assert not found.returncode and found.stdout.splitlines() == ["30.0 90.0", "0"], found.stderr
    assert found.stderr.count("CacheWarning: the cache of compiled kernels in ") == 1, found.stderr
    again = started(program, tmp_path)
    expected = "0" if damage == "full disk" else "2"  # the damaged files have been replaced
    assert again.stdout.splitlines() == ["30.0 90.0", expected] and "CacheWarning" not in again.stderr


_EXTENSION = """
from typing import NamedTuple
from avare._compilation import lean
import shapes

class Cube(NamedTuple):
    side: float

@shapes.size.version(Cube)
@lean
def size_of_cube(cube, factor):
    return factor * cube.side**{power}
"""


def test_types_of_other_packages_may_change_or_go(tmp_path: Path) -> None:
    # A cache of the caller would hold the version of last time, and could not be read without the class.
    (tmp_path / "shapes.py").write_text(_MODULE)
    program = "import shapes, solids; print(shapes.twice(solids.Cube(2.0), 5.0))"
    for power, expected in ((3, "80.0"), (4, "160.0")):
        (tmp_path / "solids.py").write_text(_EXTENSION.format(power=power))
        assert printed(program, tmp_path) == [expected]
    (tmp_path / "solids.py").unlink()
    assert printed(_PROGRAM, tmp_path)[0] == "30.0 90.0"


def test_types_of_the_same_name_have_their_own_versions() -> None:
    # As when a cell of a notebook is run again.
    size = ByType("size")
    measure = size.function

    def make(factor: float) -> type:
        class Line(NamedTuple):
            length: float

        size.version(Line)(lean(lambda line: factor * line.length))
        return Line

    once, twice, thrice = make(1.0), make(2.0), make(3.0)
    inside = kernel(lambda line: measure(line))
    for _ in range(2):
        assert (inside(once(5.0)), inside(twice(5.0)), inside(thrice(5.0))) == (5.0, 10.0, 15.0)


def test_a_type_without_a_version_is_refused() -> None:
    class Circle(NamedTuple):
        radius: float

    size = ByType("size")
    measure = size.function
    double = kernel(lambda shape: 2.0 * measure(shape))
    with pytest.raises(KeyError if numba.config.DISABLE_JIT else numba.core.errors.TypingError, match="Circle"):
        double(Circle(1.0))


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
def test_notices_a_change_of_a_file_that_the_kernel_calls(tmp_path: Path) -> None:
    (tmp_path / "factors.py").write_text("FACTOR = 2.0\n")
    module = _MODULE.replace("from typing", "from factors import FACTOR\nfrom typing").replace("2.0", "FACTOR")
    assert module.count("FACTOR") > 1
    (tmp_path / "shapes.py").write_text(module)
    assert [printed(_PROGRAM, tmp_path)[1] for _ in range(2)] == ["0", "2"]
    before = printed(_PROGRAM, tmp_path)[0]
    (tmp_path / "factors.py").write_text("FACTOR = 7.0\n")
    assert printed(_PROGRAM, tmp_path)[0] != before


_FIT = """
import numpy as np, avare
problem = avare.problems.Huber(np.arange(6.0)[:, None], np.arange(6.0) ** 2)
run = avare.sgd(problem, avare.Uniform(6, 2, seed=0), 0.01, epochs=2)
print(run.x.tolist(), run.compiled)
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (
            "problems/huber.py",
            "return min(max(z - target, -loss.delta), loss.delta)",
            "return 0.0",
        ),  # registers kernels
        ("structures/uniform_draws.py", "next_uniform(source) * ", "0.0 * next_uniform(source) * "),  # has kernels
        ("_randomness.py", "return _call_next_double(source)", "return 0.5"),  # below all of them
    ],
)
def test_a_change_of_any_file_of_the_package_changes_the_result(tmp_path: Path, file: str, old: str, new: str) -> None:
    shutil.copytree(Path(avare.__file__).parent, tmp_path / "avare", ignore=shutil.ignore_patterns("__pycache__"))
    before = printed(_FIT, tmp_path)
    assert printed(_FIT, tmp_path) == before
    path = tmp_path / "avare" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert printed(_FIT, tmp_path) != before


def test_parts_that_nothing_imports_have_stamps_of_their_own(tmp_path: Path) -> None:
    stamps = {part: _compilation._stamp(f"avare.{part}") for part in ("samplers", "torch", "linear")}
    assert len(set(stamps.values())) == 3 and stamps["samplers"] == _compilation._stamp("avare.problems.huber")
    assert _compilation._stamp("typed_in") == ""
