"""The command inside this process, which saves the imports; `end_to_end_tools.gca` is the real one."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sim.cli.app import run


@dataclass(frozen=True)
class Said:
    """What a command line left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*words: str) -> Said:
        capfd.readouterr()
        code = run(list(words))
        return Said(code, *capfd.readouterr())

    return call
