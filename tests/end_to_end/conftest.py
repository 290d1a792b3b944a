"""Runs of the real command in processes of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from end_to_end_tools import gca

Simulate = Callable[..., dict[str, Any]]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """Run `gca simulate ... --json` into a new folder and return its object; the folder is `study`."""
    count = iter(range(100))

    def run(*arguments: str) -> dict[str, Any]:
        folder = tmp_path / f"study-{next(count)}"
        done = gca("simulate", *arguments, "--json", "--output", str(folder))
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert Path(result["study"]) == folder
        return result

    return run
