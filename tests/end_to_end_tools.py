"""Helpers for tests that run the real command."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HANGS_S = 120.0
"""Whoever has not come to an end by then never will, on whatever busy machine."""


def gca(*arguments: str, timeout: float = HANGS_S, preamble: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the command as a user does; `preamble` is Python that runs before it in the same process."""
    code = f"{preamble}\nimport sys\nfrom sim.cli import main\nif __name__ == '__main__':\n    main()"
    command = [sys.executable, "-c", code] if preamble else [sys.executable, "-m", "sim.cli"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=timeout)


def descendants(pid: int, name: str = "") -> list[int]:
    """Return the process's living descendants whose name, as `top` shows it, begins with this."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and pid in ancestors(int(entry.name)):
            try:
                found += [int(entry.name)] if (entry / "comm").read_text().startswith(name) else []
            except OSError:
                continue  # it has just ended
    return found


def ancestors(pid: int) -> list[int]:
    """Return the chain of parents."""
    chain = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            break
        chain.append(pid)
    return chain


def wait_for(condition: Callable[[], bool], seconds: float = HANGS_S) -> None:
    """Return once the condition holds; fail if it never does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the awaited condition never came"
        time.sleep(0.1)
