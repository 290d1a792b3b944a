"""What every child process of an emulation does first: take its name, leave Ctrl-C to the parent, never outlive it."""

import asyncio
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from pathlib import Path


def begin(name: str) -> None:
    """Show this name in `top`, and ignore Ctrl-C: the terminal sends it to all processes, but only the parent
    decides how a run ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name[:15])


def die_with_parent() -> None:
    """End this process at once when the parent is gone, however it went. Needs a running loop."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    asyncio.get_running_loop().add_reader(parent.sentinel, os._exit, 1)


def die_with_parent_beside() -> None:
    """The same for a process whose main thread runs no loop, or one whose clock is virtual."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
