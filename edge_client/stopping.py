"""How a person, or the system, ends a program: Ctrl-C and SIGTERM come to the same."""

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def until_told_to_stop(work: Awaitable[T]) -> T:
    """Await `work`, but let SIGTERM cancel the task that awaits, as Ctrl-C does in `asyncio.run`: so whoever is at
    the other end is told, and nothing is left behind."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
