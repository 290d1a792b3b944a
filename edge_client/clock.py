"""The clock seam: what waits or measures time above the transport asks a `Clock`, never the `time` module."""

import asyncio
import time
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
