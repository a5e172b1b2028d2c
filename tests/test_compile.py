"""`python -m avare.compile`, and the line that says that kernels are being compiled."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

import avare
from avare import _compilation as compilation
from avare import compile as command

compiled = not numba.config.DISABLE_JIT


@pytest.mark.skipif(not compiled, reason="nothing is compiled here")
def test_calls_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("sklearn", "torch"):
        pytest.importorskip(module)
    assert command.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(command.PARTS)
    assert all(line.endswith(" s") for line in lines)


def test_leaves_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> None:
        raise ImportError("the loader needs torch")

    monkeypatch.setattr(command, "PARTS", {"loader": missing, "nothing": lambda: None})
    assert command.main() == 0
    assert capsys.readouterr().out == "loader: left out (the loader needs torch)\nnothing: 0.0 s\n"


def test_speaks_after_two_seconds_of_compiling_and_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(compilation, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    notice = compilation._Notice()

    def compile_for(seconds: float, *, module: str | None = "avare.batch", inside: float = 0.0) -> None:
        function = SimpleNamespace(py_func=SimpleNamespace(__module__=module))
        each = SimpleNamespace(data={"dispatcher": function})
        notice.on_start(each)
        if inside:  # a kernel that it calls, which takes a part of the time
            compile_for(inside)
        clock[0] += seconds - inside
        notice.on_end(each)

    with caplog.at_level(logging.WARNING, "avare"):
        compile_for(100.0, module="mine")
        compile_for(100.0, module=None)  # the constructor of a class that Numba compiles
        compile_for(1.5, inside=1.0)
        clock[0] += 100.0  # nothing is compiled
        assert not caplog.records
        compile_for(0.7)
        compile_for(9.0)
        assert len(caplog.records) == 1
        clock[0] += 100.0
        compile_for(1.5, inside=1.0)
        assert len(caplog.records) == 1
        compile_for(0.7)
    assert len(caplog.records) == 2
    assert all(each.getMessage().startswith("avare: compiling kernels for their first use") for each in caplog.records)


@pytest.mark.skipif(not compiled, reason="nothing is compiled here")
def test_says_nothing_if_kernels_are_cached(tmp_path: Path) -> None:
    program = "import avare._compilation as c; c._PATIENCE = 0.0; import avare; avare.batch_weights([0.5, 0.2], True)"
    environment = os.environ | {
        "PYTHONPATH": str(Path(avare.__file__).parents[1]),
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    assert said[0].startswith("avare: compiling kernels for their first use") and said[0].count("\n") == 1
    assert said[1] == ""
