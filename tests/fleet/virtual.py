"""Running something in virtual time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sim.fleet.loop import VirtualLoop

T = TypeVar("T")


def virtually(main: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, on a virtual loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Return the seconds of the running loop."""
    return asyncio.get_running_loop().time()
