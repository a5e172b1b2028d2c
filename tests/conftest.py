"""Hypothesis draws the same examples at each run; with NUMBA_DISABLE_JIT=1, fewer of them. Ctrl-C works."""

import signal
from pathlib import Path

import numba
import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("sampler_checks")
settings.register_profile(
    "avare",
    derandomize=True,
    deadline=None,
    max_examples=10 if numba.config.DISABLE_JIT else 100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("avare")
# A shell starts what runs in the background with Ctrl-C ignored; the tests of it, and those of processes, must not be.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of datasets, and no data folder: nothing of who runs the test is seen."""
    import pooch

    folder = tmp_path / "cache"
    monkeypatch.delenv("AVARE_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: folder)
    return folder
