"""The published files, where this machine has them; each dataset is loaded once for all tests."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from sim.data import Dataset, load

Loader = Callable[[str], Dataset]


@pytest.fixture(scope="session")
def real_dir() -> Path:
    """The folder of published files; tests that need it are skipped without one."""
    folder = os.environ.get("GCA_DATA_DIR")
    if not folder:
        pytest.skip("GCA_DATA_DIR is not set: the published data files are not on this machine")
    return Path(folder)


@pytest.fixture(scope="session")
def real(real_dir: Path) -> Loader:
    return cache(lambda name: load(name, real_dir, offline=True))


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data; returns the user cache that it would fill."""
    monkeypatch.delenv("GCA_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gca"
