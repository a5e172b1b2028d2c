"""Hypothesis draws the same examples at each run. Without compiled code, fewer cases are tried. Ctrl-C works."""

import gc
import signal
from collections.abc import Callable
from pathlib import Path

import numba
import pytest
from hypothesis import HealthCheck, settings

import compiling
from laws import draws_of

pytest.register_assert_rewrite("sampler_checks")
settings.register_profile(
    "avare",
    derandomize=True,
    deadline=None,
    max_examples=draws_of(100, 10),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("avare")
# Tracing makes Python half as fast. So coverage does not look at folders and files that reach no line which others, or
# the same tests without compiled code, do not reach.
UNTRACED = {
    *{"e2e", "extension", "property", "statistical", "simplex"},
    *{"test_architecture", "test_browser", "test_compilation", "test_figures", "test_images"},
    *{"test_calibrated", "test_common", "test_every_structure", "test_kernels", "test_mixture"},
    *{"test_osmd", "test_safe", "test_systematic"},
}
compiling.trace_no_imports()
if not numba.config.DISABLE_JIT:
    compiling.share()
# A shell starts what runs in the background with Ctrl-C ignored; the tests of it, and those of processes, must not be.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose what is tried without compiled code; with it, what coverage looks at."""
    if numba.config.DISABLE_JIT:
        _keep(config, items, [item for item in items if not item.get_closest_marker("compiled")])
        if config.option.markexpr == "not slow":
            _thin_out(config, items)
        return
    for item in items:
        if UNTRACED & {item.path.parent.name, item.path.stem}:
            item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what the test modules have imported, which takes it a second each time.

    Some frameworks call it many times in a training.
    """
    gc.collect()
    gc.freeze()


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    """Let pytest count the others as deselected."""
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without compiled code, try one in twelve of a test's parameter sets, if there are more than four.

    All of them run compiled. Interpreted, the tests only show which lines of the kernels are reached, and that
    no index is out of bounds; ``-m "slow or not slow"`` tries all of them here, too.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {item for group in groups.values() for item in (group if len(group) <= 4 else group[::12])}
    _keep(config, items, [item for item in items if item in chosen])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of datasets, and no data folder: nothing of who runs the test is seen."""
    import pooch

    folder = tmp_path / "cache"
    monkeypatch.delenv("AVARE_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: folder)
    return folder


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with empty picture files, for tests that look at numbers and words only: drawing takes seconds."""
    monkeypatch.setattr("avare.experiments.report.charts.render", lambda figure, styles: {"png": b"", "svg": b""})


@pytest.fixture
def avare_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command in an empty folder, without a report: exit code, output and errors."""
    from avare.experiments.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "avare.experiments.cli.application.write_report", lambda store, out, **options: out / "index.html"
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
