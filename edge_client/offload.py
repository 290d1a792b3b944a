"""Local training away from the event loop, so that the connection stays alive while it runs."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from edge_client.clock import Clock

P = ParamSpec("P")
R = TypeVar("R")


class Offload(Protocol):
    """Starts a function away from the event loop, at once; awaiting what is returned gives its result."""

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...


def into(pool: Executor) -> Offload:
    """Return the offload that uses this pool."""

    def offload(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return asyncio.get_running_loop().run_in_executor(pool, partial(function, *args, **kwargs))

    return offload


async def no_sooner(clock: Clock, seconds: float, job: Awaitable[R]) -> R:
    """Return the result of a job, but not before `seconds` have passed: a board is slower than this machine.

    A future's failure is raised at once. What is no future may stop the clock when it is awaited, as in virtual
    time, so it is awaited last.
    """
    if not isinstance(job, asyncio.Future):
        await clock.sleep(seconds)
        return await job
    board = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((job, board), return_when=asyncio.FIRST_EXCEPTION)
        result: R = await job
        return result
    finally:
        board.cancel()
