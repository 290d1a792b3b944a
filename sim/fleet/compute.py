"""Local work in virtual time: jobs run in threads as early as they can, and stop the clock only when awaited.

A device hands out its phase when it begins, sleeps for as long as its board would take, and then awaits the result:
the loop blocks until the thread is done, so the order of events never depends on the threads, and phases that
overlap in virtual time train in parallel.
"""

import os
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from sim.fleet.clock import VirtualClock

P = ParamSpec("P")
R = TypeVar("R")

AHEAD = 8
"""Jobs per thread that may be under way, or done but not yet taken: each of them holds a second model."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def training_threads(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads for local phases. As many as there are cores keep to one core each: woken together
    by a loop that then sleeps, two of them may otherwise share a core for milliseconds beside an idle one."""
    if threads != cores() or not hasattr(os, "sched_setaffinity"):
        return ThreadPoolExecutor(threads, thread_name_prefix="training")
    free = iter(sorted(os.sched_getaffinity(0)))

    def keep_to_a_core() -> None:
        with suppress(OSError):  # it was taken away meanwhile: then wherever there is room
            os.sched_setaffinity(0, {next(free)})

    return ThreadPoolExecutor(threads, thread_name_prefix="training", initializer=keep_to_a_core)


class Crew:
    """Threads that work for all devices of a fleet; see the module."""

    def __init__(self, threads: int, clock: VirtualClock) -> None:
        self._pool = training_threads(threads)
        self._clock = clock
        self._room = AHEAD * threads
        self._queue: deque[_Job[Any]] = deque()

    def offload(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """The `Offload` of every device."""
        job = _Job(self, self._clock.standing(partial(function, *args, **kwargs)))
        self._queue.append(job)
        self._hand_out()
        return job

    def close(self) -> None:
        """Begin nothing more, and return when what is under way is done."""
        self._queue.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, job: "_Job[R]") -> "Future[R]":
        """Hand a job to the threads."""
        self._room -= 1
        job.future = self._pool.submit(job.work)
        return job.future

    def taken(self) -> None:
        """A result was taken, which makes room for another job."""
        self._room += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue and self._room > 0:
            job = self._queue.popleft()
            if job.future is None:  # else it was wanted before its turn
                self.begin(job)


class _Job(Generic[R]):
    """A function that waits for a thread, or has one. Awaiting it blocks, without a turn of the loop."""

    def __init__(self, crew: Crew, work: Callable[[], R]) -> None:
        self.work = work
        self.future: Future[R] | None = None
        self._crew = crew

    def __await__(self) -> Generator[None, None, R]:
        yield from ()  # makes this a generator
        future = self.future or self._crew.begin(self)
        try:
            return future.result()
        finally:
            self._crew.taken()


class Inline:
    """Work in the loop's own thread, when the result is awaited: for what takes next to no time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def offload(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """The `Offload` of every device."""
        return _Inline(self._clock.standing(partial(function, *args, **kwargs)))

    def close(self) -> None:
        """Nothing is under way."""


class _Inline(Generic[R]):
    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work

    def __await__(self) -> Generator[None, None, R]:
        yield from ()  # makes this a generator
        return self._work()
