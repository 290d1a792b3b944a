"""Virtual time: an asyncio event loop whose clock jumps to the next timer as soon as nothing is left to do.

The clock starts at 0 and stands still while callbacks run, so a run is a pure function of its inputs:

- Time moves only when no callback is ready, and then to the very moment of the earliest timer, not by adding up
  waits. Timers of one moment fire in the order in which they were scheduled.
- While a job is away in an executor the clock waits for it.
- `call_plainly_at` and `call_plainly_soon` schedule what cannot be cancelled and needs no context, at half the cost.
- Background timers (keepalives, say) fire like others but give nobody a reason to wait: when only they are left,
  nothing can happen any more, and the loop raises `Blocked` with the names of the tasks that wait.
- Sockets, pipes and processes live in real time and are refused.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from types import FrameType
from typing import Any

from edge_client.errors import GcaError

SHOWN = 8
"""Waiting tasks that a message names; it counts the others."""
PURGE = 256
"""Cancelled timers that may lie in the heap before it is looked through."""


class Blocked(GcaError):
    """Nothing is ready and nothing is scheduled, so whoever waits would wait for ever."""


class SocketRefused(GcaError):
    """Something asked virtual time for a thing of real time."""


class _Background(asyncio.TimerHandle):
    """A timer that nobody waits for."""

    __slots__ = ()


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. Use as `asyncio.Runner(loop_factory=VirtualLoop)`. `now` is where the time of a run stands that
    was stopped before."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__()
        self._now = now
        self._numbers = count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle | Callable[[], object]]] = []
        self._awaited = 0  # timers that are neither cancelled nor background
        self._cancelled = 0
        self._abroad = 0  # jobs in executors
        self._woken = threading.Event()
        self._signals: dict[int, Any] = {}

    def time(self) -> float:
        """Return the virtual seconds."""
        return self._now

    # ---- timers -------------------------------------------------------------------------------------------------

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback; one for the past fires at once, but behind what is ready already."""
        self._check_closed()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._awaited += 1
        return self._schedule(timer)

    def call_in_background(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Schedule a callback that is no reason to go on: see the module."""
        return self._schedule(_Background(when, callback, args, self))

    def call_plainly_at(self, when: float, callback: Callable[[], object]) -> None:
        """Schedule a callback for good."""
        self._awaited += 1
        heappush(self._timers, (when, next(self._numbers), callback))

    def call_plainly_soon(self, callback: Callable[[], object]) -> None:
        """Run a callback in this turn or the next, for good."""
        self._ready.append(callback)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Run a callback in this turn or the next, behind all that is ready."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _schedule(self, timer: asyncio.TimerHandle) -> asyncio.TimerHandle:
        timer._scheduled = True
        heappush(self._timers, (timer._when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:
            self._cancelled += 1
            self._awaited -= not isinstance(handle, _Background)

    # ---- turns --------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Run what is ready; if nothing is, let time pass first."""
        ready = self._ready
        if not ready and not self._stopping:
            self._advance()
        for _ in range(len(ready)):
            item = ready.popleft()
            try:
                if not isinstance(item, asyncio.Handle):
                    item()
                elif not item._cancelled:
                    item._context.run(item._callback, *item._args)  # as its own method does, a call less
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"error in {item!r}", "exception": error})

    def _advance(self) -> None:
        """Wait for jobs abroad, else jump to the earliest timer and make all timers of that moment ready."""
        if self._abroad:
            self._woken.wait()
            self._woken.clear()
            return
        if not self._awaited:
            raise Blocked(f"the simulation is blocked at {self._now:.6f} s: {self._waiting()}")
        if self._cancelled > PURGE and self._cancelled > len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not getattr(entry[2], "_cancelled", False)]
            heapify(self._timers)
            self._cancelled = 0
        timers, moment = self._timers, None
        while timers and (moment is None or timers[0][0] <= moment):
            when, _, timer = heappop(timers)
            if isinstance(timer, asyncio.TimerHandle):
                timer._scheduled = False
                if timer._cancelled:
                    self._cancelled -= 1
                    continue
                self._awaited -= not isinstance(timer, _Background)
            else:
                self._awaited -= 1
            self._ready.append(timer)
            if moment is None:
                moment = self._now = max(self._now, when)

    def _waiting(self) -> str:
        """Name the tasks that wait, and the coroutine that each one waits in: those that somebody has named, if any."""
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        named = [task for task in tasks if not task.get_name().startswith("Task-")]
        told = [f"{task.get_name()} in {_innermost(task)}" for task in named or tasks]
        if not told:
            return "no task is left, but something still awaits a result"
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        return f"nothing is scheduled, yet these wait: {', '.join(told[:SHOWN])}{more}"

    # ---- threads ------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Run a function in a thread; the clock waits for it unless the returned future is cancelled."""
        future = super().run_in_executor(executor, func, *args)
        self._abroad += 1
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self._abroad -= 1

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        self._abroad += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._abroad -= 1

    def _write_to_self(self) -> None:
        """Wake the loop from another thread, or from a signal's handler."""
        self._woken.set()

    # ---- signals, sockets, the end ------------------------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            self.call_soon_threadsafe(callback, *args)

        previous = signal.signal(sig, handler)
        self._signals.setdefault(sig, previous)

    def remove_signal_handler(self, sig: int) -> bool:
        if sig not in self._signals:
            return False
        signal.signal(sig, self._signals.pop(sig))
        return True

    def close(self) -> None:
        for sig in list(self._signals):
            self.remove_signal_handler(sig)
        self._timers.clear()
        super().close()


def _innermost(task: "asyncio.Task[Any]") -> str:
    """Return the name of the coroutine that a task is suspended in."""
    coroutine: Any = task.get_coro()
    while hasattr(inner := getattr(coroutine, "cr_await", None), "cr_await"):
        coroutine = inner
    return str(getattr(coroutine, "__qualname__", coroutine))


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: VirtualLoop, *args: object, **kwargs: object) -> Any:
        raise SocketRefused(f"{name}: virtual time has no sockets, pipes or processes; run this with the real clock")

    return refuse


for _name in (
    "add_reader", "add_writer", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
    "create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection", "create_unix_server",
    "getaddrinfo", "getnameinfo", "sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into",
    "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendfile", "sock_sendto", "start_tls",
    "subprocess_exec", "subprocess_shell",
):  # fmt: skip
    setattr(VirtualLoop, _name, _refused(_name))
