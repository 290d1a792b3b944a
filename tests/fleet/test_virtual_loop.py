"""Virtual time by hand: what fires when, what freezes the clock, and what is refused."""

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fleet.virtual import now, virtually
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import GcaError
from sim.fleet.clock import VirtualClock
from sim.fleet.compute import AHEAD, Crew, Inline
from sim.fleet.loop import Blocked, SocketRefused, VirtualLoop


def test_a_day_passes_at_once_and_to_the_very_second() -> None:
    async def main() -> list[float]:
        seen = [now()]
        for seconds in (86_400.0, 0.1, 0.2):
            await asyncio.sleep(seconds)
            seen.append(now())
        return seen

    began = time.monotonic()
    # Each wait is added to the moment it began at: the clock is at the sum as floating point gives it.
    assert virtually(main()) == [0.0, 86_400.0, 86_400.0 + 0.1, 86_400.0 + 0.1 + 0.2]
    assert time.monotonic() - began < 60


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=60))
def test_timers_fire_by_time_and_then_in_the_order_they_were_scheduled(delays: list[float]) -> None:
    fired: list[tuple[float, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number, delay in enumerate(delays):
            loop.call_at(delay, lambda number=number: fired.append((now(), number)))
        await asyncio.sleep(2)

    virtually(main())
    assert fired == sorted((delay, number) for number, delay in enumerate(delays))


def test_time_moves_only_when_nothing_is_ready() -> None:
    """Whatever is ready at a moment happens before the next timer, however many turns it takes."""
    told: list[str] = []

    async def busy() -> None:
        for turn in range(5):
            told.append(f"turn {turn} at {now()}")
            await asyncio.sleep(0)

    async def main() -> None:
        asyncio.get_running_loop().call_at(1e-9, told.append, "timer")
        await busy()
        await asyncio.sleep(1)

    virtually(main())
    assert told == [*(f"turn {turn} at 0.0" for turn in range(5)), "timer"]


def test_a_cancelled_timer_never_fires_and_many_are_forgotten() -> None:
    fired: list[int] = []

    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for moment in range(1, 11):
            for timer in [loop.call_at(moment + 1e6, fired.append, moment) for _ in range(1000)]:
                timer.cancel()
            await asyncio.sleep(1)
        return len(loop._timers)

    assert virtually(main()) < 2000
    assert fired == []


def test_timeouts_are_of_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(1e6), 3600)
        return now()

    assert virtually(main()) == 3600


def test_a_blocked_simulation_says_who_waits_and_where() -> None:
    async def forever(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        await asyncio.sleep(5)
        waiting = asyncio.create_task(forever(asyncio.Event()), name="device-7")
        await waiting

    with pytest.raises(Blocked, match=r"blocked at 5\.0+ s: .*device-7 in Event\.wait") as caught:
        virtually(main())
    assert isinstance(caught.value, GcaError)


def test_background_timers_fire_but_keep_nobody_waiting() -> None:
    pings: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def ping() -> None:
            pings.append(now())
            loop.call_in_background(now() + 60, ping)

        loop.call_in_background(60, ping)
        await asyncio.sleep(150)
        await asyncio.Event().wait()

    with pytest.raises(Blocked, match=r"at 150\.0"):
        virtually(main())
    assert pings == [60, 120]


def test_the_clock_waits_for_jobs_in_executors() -> None:
    """A time-out of nine virtual seconds must not fire while a thread works for a moment of real time."""
    may_end = threading.Event()

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        threading.Timer(0.05, may_end.set).start()
        async with asyncio.timeout(9):
            await loop.run_in_executor(None, may_end.wait)
        return "done", now()

    assert virtually(main()) == ("done", 0.0)


def test_sockets_are_refused() -> None:
    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    async def serve() -> None:
        await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)

    async def resolve() -> None:
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)

    async def spawn() -> None:
        await asyncio.create_subprocess_exec("true")

    for attempt in (connect, serve, resolve, spawn):
        with pytest.raises(SocketRefused, match="virtual time has no sockets"):
            virtually(attempt())


def test_a_signal_interrupts_also_while_a_thread_is_waited_for() -> None:
    may_end = threading.Event()

    async def main() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        loop.add_signal_handler(signal.SIGUSR1, task.cancel)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        await loop.run_in_executor(None, may_end.wait, 10)

    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(asyncio.CancelledError):
        try:
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                runner.run(_freeing(main(), may_end))
        finally:
            may_end.set()
    assert signal.getsignal(signal.SIGUSR1) is before


async def _freeing(main: Coroutine[Any, Any, None], may_end: threading.Event) -> None:
    try:
        await main
    finally:
        may_end.set()


# ---- work in threads ---------------------------------------------------------------------------------------------


def test_phases_that_overlap_work_in_parallel_while_virtual_time_passes() -> None:
    """Two devices whose phases overlap: each job can only end once both have begun."""
    meeting = threading.Barrier(2, timeout=20)

    async def main() -> list[float]:
        clock = VirtualClock(asyncio.get_running_loop())
        crew, order = Crew(2, clock), []

        async def device(begin: float, lasts: float) -> None:
            await clock.sleep(begin)
            job = crew.offload(meeting.wait)
            await clock.sleep(lasts)
            await job
            order.append(clock.now())

        await asyncio.gather(device(0, 10), device(3, 1))
        crew.close()
        return order

    assert virtually(main()) == [4, 10]


@pytest.mark.parametrize("threads", [1, 3])
def test_more_jobs_than_room_are_all_done_each_once_and_failures_are_told(threads: int) -> None:
    numbers = itertools.count()

    def work(fail: bool) -> None:
        next(numbers)
        if fail:
            raise ValueError("as told")

    async def main() -> int:
        crew = Crew(threads, VirtualClock(asyncio.get_running_loop()))
        jobs = [crew.offload(work, n % 10 == 0) for n in range(5 * AHEAD * threads)]
        failed = 0
        for job in reversed(jobs):  # the last first: it is wanted before its turn
            try:
                await job
            except ValueError:
                failed += 1
        crew.close()
        return failed

    assert virtually(main()) == 4 * threads
    assert next(numbers) == 5 * AHEAD * threads


def test_a_job_sees_the_moment_it_was_handed_out() -> None:
    """Work in a thread takes no virtual time, however far the clock has gone meanwhile."""
    may_look = threading.Event()

    async def main() -> tuple[float, float, float]:
        clock = VirtualClock(asyncio.get_running_loop())
        crew = Crew(1, clock)

        def look() -> float:
            may_look.wait(20)
            return clock.now()

        await clock.sleep(2)
        job = crew.offload(look)
        await clock.sleep(5)
        may_look.set()
        seen = await job
        inline = Inline(clock).offload(clock.now)
        await clock.sleep(1)
        crew.close()
        return seen, await inline, clock.now()

    assert virtually(main()) == (2, 7, 8)


def test_the_loop_serves_a_plain_executor_too() -> None:
    async def main() -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            loop = asyncio.get_running_loop()
            return await asyncio.gather(*(loop.run_in_executor(pool, pow, n, 2) for n in range(20)))

    assert virtually(main()) == [n * n for n in range(20)]
