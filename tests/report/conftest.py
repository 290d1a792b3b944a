"""A browser and a real study, each made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from report.browser import Browser, browser, chromium

from sim.cli.app import run


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("chromium is not installed")
    with browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="session")
def real_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three devices, two rounds, in virtual time."""
    folder = tmp_path_factory.mktemp("studies") / "real"
    study = ("demo", "--devices", "3", "--rounds", "2", "--set", "clock=virtual", "--quiet", "--output", str(folder))
    assert run(["simulate", *study]) == 0
    return folder
