"""No test sees the cache or the data folder of who runs it."""

from pathlib import Path

import pooch
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.delenv("AVARE_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: folder)
    return folder
