"""Fixtures that several areas share, and the rule that CI skips nothing."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import broker, broker_kind
from hypothesis import settings

__all__ = ["broker", "broker_kind"]


# The gate draws the same examples every time, so that it says something about the change that it judges. To look for
# new ones: HYPOTHESIS_PROFILE=search.
settings.register_profile("gate", derandomize=True)
settings.register_profile("search", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

# A shell lets what it starts in the background ignore Ctrl-C, and children inherit that: those of the tests must not.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of published files; tests that need it are skipped without one."""
    folder = os.environ.get("GCA_DATA_DIR")
    if not folder:
        pytest.skip("GCA_DATA_DIR is not set: the published data files are not on this machine")
    return Path(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """With GCA_NO_SKIP set, a skipped test fails: whatever it needs belongs on that machine."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("GCA_NO_SKIP"):
        report.outcome, report.longrepr = "failed", f"skipped although GCA_NO_SKIP is set: {report.longrepr}"
    return report
