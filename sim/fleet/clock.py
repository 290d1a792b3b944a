"""The clock of virtual time."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

R = TypeVar("R")


class VirtualClock:
    """The time of a virtual loop. Work in a thread takes none of it, so a job sees the moment it was handed out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._job = threading.local()

    def now(self) -> float:
        moment: float | None = getattr(self._job, "began", None)
        return self._loop.time() if moment is None else moment

    async def sleep(self, seconds: float) -> None:
        """Wait. Unlike `asyncio.sleep`, it does not cancel a timer that has fired: a fleet sleeps a lot."""
        over: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_at(self._loop.time() + seconds, _end, over)
        try:
            await over
        except asyncio.CancelledError:
            timer.cancel()
            raise

    def standing(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function as a job for a thread, with this clock standing at the present moment."""
        return partial(self._stand, self._loop.time(), function)

    def _stand(self, moment: float, function: Callable[[], R]) -> R:
        self._job.began = moment
        try:
            return function()
        finally:
            self._job.began = None


def _end(sleep: "asyncio.Future[None]") -> None:
    if not sleep.done():
        sleep.set_result(None)
