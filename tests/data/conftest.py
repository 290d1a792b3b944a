"""The published files, where this machine has them; each dataset is loaded once for all tests."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from sim.data import Dataset, load

Loader = Callable[[str], Dataset]


@pytest.fixture(scope="session")
def real(data_dir: Path) -> Loader:
    return cache(lambda name: load(name, data_dir, offline=True))


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data; returns the user cache that it would fill."""
    monkeypatch.delenv("GCA_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gca"
