"""The clock of virtual time."""

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
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
        await asyncio.sleep(seconds)

    def standing(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function as a job for a thread, with this clock standing at the present moment."""
        moment = self._loop.time()

        def job(*args: P.args, **kwargs: P.kwargs) -> R:
            self._job.began = moment
            try:
                return function(*args, **kwargs)
            finally:
                self._job.began = None

        return job
