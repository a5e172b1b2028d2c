import subprocess
import sys
from pathlib import Path

import numba
import pytest

import avare
from avare._compilation import kernel


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
