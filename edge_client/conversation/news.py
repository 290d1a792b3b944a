"""Waking those who wait for a fact to change. One event loop, so there is nothing to lock."""

import asyncio


class News:
    """`wait` returns after the next `tell`; whoever waits looks at the facts again then."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}  # a dict for its order

    def tell(self) -> None:
        """Wake all who wait now."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            del self._waiting[future]
