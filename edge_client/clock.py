"""The clock seam: what waits or measures time above the transport asks a `Clock`, never the `time` module."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary origin, and a way to let them pass."""

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def within(clock: Clock, seconds: float, call: Awaitable[object]) -> bool:
    """Await a call, but no longer than this; return whether it came to its end. Its errors are raised."""
    work, limit = asyncio.ensure_future(call), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((work, limit), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return work.done()
    finally:
        work.cancel()
        limit.cancel()
