"""What README and docs tell a reader to type works: runnable blocks are run, all others at least parsed.

Blocks fenced as `sh` are run, line by line, in an empty folder of their own; any other line that begins with `gca` must
name a command and options that there are.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end_tools import gca

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text: str, runnable: bool) -> list[str]:
    """Return the `gca` lines of the blocks that are, or are not, to be run; a backslash goes on on the next line."""
    lines = [
        line
        for language, block in FENCE.findall(text)
        if (language == "sh") == runnable
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("gca ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_runnable_blocks_run(page: Path, tmp_path: Path) -> None:
    launcher = tmp_path / "bin" / "gca"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sim.cli "$@"\n')
    launcher.chmod(0o755)
    place = tmp_path / "empty"
    place.mkdir()
    environment = {**os.environ, "PATH": f"{launcher.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for line in commands(page.read_text(encoding="utf-8"), runnable=True):
        done = subprocess.run(["/bin/sh", "-c", line], cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{page.name}: {line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    helps: dict[str, str] = {}
    for line in commands(page.read_text(encoding="utf-8"), runnable=False):
        words = [word for word in shlex.split(line, comments=True) if word != "..."][1:]
        for part in " ".join(words).split(";"):  # several commands on one line
            name, *rest = part.removeprefix(" gca ").split()
            helps.setdefault(name, gca(name, "--help").stdout)
            for option in (word.partition("=")[0] for word in rest if word.startswith("--")):
                assert re.search(rf"{option}\b", helps[name]), f"{page.name}: {line}: no {option} in gca {name}"
