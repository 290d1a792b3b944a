"""Local training away from the event loop, so that the connection stays alive while it runs."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Offload(Protocol):
    """Runs a function away from the event loop and returns its result."""

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...


def into(pool: Executor) -> Offload:
    """Return the offload that uses this pool."""

    def offload(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return asyncio.get_running_loop().run_in_executor(pool, partial(function, *args, **kwargs))

    return offload
