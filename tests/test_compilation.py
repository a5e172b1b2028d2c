import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numba
import pytest

import avare
from avare._compilation import ByType, kernel


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled here")
def test_works_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: bool) -> object:
        def decorate(function: object) -> object:
            if options.get("cache"):
                raise RuntimeError("cannot cache function: no locator available")
            return ("compiled", function, options)

        return decorate

    monkeypatch.setattr("avare._compilation.njit", refuse)
    assert kernel(len) == ("compiled", len, {"nogil": True, "_nrt": True, "no_cfunc_wrapper": True})


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


def test_versions_are_chosen_by_type_inside_a_kernel_and_kept_on_disk(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(_MODULE)
    source = Path(avare.__file__).parents[1]
    lines = []
    for _ in range(2):
        found = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={"PYTHONPATH": f"{tmp_path}:{source}", "NUMBA_DISABLE_JIT": str(int(numba.config.DISABLE_JIT))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not found.returncode, found.stderr
        lines.append(found.stdout.split("\n"))
    assert lines[0][0] == lines[1][0] == "30.0 90.0"
    if not numba.config.DISABLE_JIT:
        assert (lines[0][1], lines[1][1]) == ("0", "2")


def test_a_type_without_a_version_is_refused() -> None:
    class Circle(NamedTuple):
        radius: float

    size = ByType("size")
    measure = size.function
    double = kernel(lambda shape: 2.0 * measure(shape))
    with pytest.raises(KeyError if numba.config.DISABLE_JIT else numba.core.errors.TypingError, match="Circle"):
        double(Circle(1.0))
