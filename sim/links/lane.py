"""One direction of one device's link in real time: bytes wait, leave as TCP segments, travel, and arrive.

`Lane` asks the link model (`sim.links.link`) when each segment starts and arrives, and sends by that virtual clock. A
timer that fires late therefore costs no throughput, and no byte is ever early: before new bytes join the queue, all
segments that had started by then are cut from the bytes that were there.

Propagation is a line of (arrival, segment) pairs beside the queue, so delay does not reduce throughput.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from sim.links.link import JitterKey, LinkSpec, LinkState, next_start, plan

TIMER = 1e-3
"""Seconds that the event loop's timers are good for: what is due within them travels as one write."""
LEAD = 20e-3
"""Seconds by which a full segment, whose bytes are certain, is cut ahead of its start; halves the wake-ups. Where
directions take turns its turn is not certain."""
RESOLUTION = 1e-6
"""Seconds by which arrivals may be rounded: less than any clock here can tell."""


class Ending(Enum):
    """How one direction of a connection ends."""

    EOF = "half-close"
    RESET = "reset"


class Source(Protocol):
    """The socket that a flow's bytes come from."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read again."""


class Sink(Protocol):
    """The socket that a flow's bytes go to."""

    def write(self, data: bytes) -> None:
        """Send bytes; may block the flow before it returns."""

    def finish(self, ending: Ending) -> None:
        """Pass on how the flow ended."""


class Flow:
    """One direction of one connection, and its place on the lane that it shares."""

    def __init__(self, lane: "Lane", source: Source, sink: Sink) -> None:
        self.lane = lane
        self.source = source
        self.sink = sink
        self.backlog = bytearray()
        self.waiting = False  # in the lane's queue
        self.blocked = False  # the receiver does not read
        self.paused = False  # the sender is told to wait
        self.dropped = False  # the receiver is gone
        self.ending: Ending | None = None


class Lane:
    """The shared link of all connections of a device, one direction. Times are seconds of `now`."""

    _other: "Lane | None" = None  # the other direction of a half-duplex link
    _was_last = False  # this direction has sent last

    def __init__(self, spec: LinkSpec, key: JitterKey, now: Callable[[], float]) -> None:
        self.stream_bytes = 0
        self.wire_bytes = 0
        self._link = LinkState(spec, key)
        self._now = now
        self._ready = 0.0  # since when there has been something to send
        self._queue: deque[Flow] = deque()  # flows with a backlog, served in turn, a segment each
        self._line: deque[tuple[float, Flow, bytes | Ending]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        per_second = 1e9 if spec.rate is None else spec.rate / 8
        self._quantum = spec.mss * max(1, min(45, int(per_second * TIMER / (spec.mss + spec.header))))
        self.bound = buffer_size(spec.rate)

    def take_turns(self, other: "Lane") -> None:
        """Make this one and another the two directions of a half-duplex link."""
        self._other, other._other = other, self

    @property
    def header(self) -> int:
        """Header bytes of a segment, and the size of an acknowledgement."""
        return self._link.spec.header

    @property
    def segments(self) -> int:
        """TCP segments sent so far."""
        return self._link.segments

    def feed(self, flow: Flow, data: bytes) -> None:
        """Queue bytes that just came from the sender."""
        if flow.dropped:
            return
        now = self._now()
        self._send(now)
        flow.backlog += data
        self._enqueue(flow, now)
        if len(flow.backlog) >= self.bound and not flow.paused:
            flow.paused = True
            flow.source.pause()
        self._run(now)

    def end(self, flow: Flow, ending: Ending) -> None:
        """Pass on the sender's half-close, behind its bytes, or its reset, in place of those not yet sent."""
        if flow.dropped or flow.ending is Ending.RESET:
            return
        now = self._now()
        self._send(now)
        flow.ending = ending
        if ending is Ending.RESET:
            self._forget(flow)
        if not flow.backlog:
            self._line_up_ending(flow, now)
        self._run(now)

    def block(self, flow: Flow) -> None:
        """Stop sending for a flow whose receiver does not read; others go on."""
        flow.blocked = True
        if flow.waiting:
            flow.waiting = False
            self._queue.remove(flow)

    def unblock(self, flow: Flow) -> None:
        """Send for the flow again."""
        now = self._now()
        self._send(now)
        flow.blocked = False
        self._enqueue(flow, now)
        self._run(now)

    def drop(self, flow: Flow) -> None:
        """Forget the flow: its receiver is gone."""
        flow.dropped = True
        self._forget(flow)

    def stop(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self._line.clear()

    def _forget(self, flow: Flow) -> None:
        flow.backlog.clear()
        if flow.waiting:
            flow.waiting = False
            self._queue.remove(flow)

    def _enqueue(self, flow: Flow, now: float) -> None:
        if not flow.waiting and not flow.blocked and flow.backlog:
            if not self._queue:
                self._ready = now
            flow.waiting = True
            self._queue.append(flow)

    def _run(self, now: float) -> None:
        self._send(now)
        self._deliver(now)
        self._arm(now)

    def _send(self, now: float) -> None:
        """Cut every segment that has started by `now` and put it on the line."""
        other = self._other
        while self._queue and self._cut_time() <= now:
            if other is not None and self._was_last and other._queue and other._cut_time() <= now:
                other._cut()
                other._arm(now)
            else:
                self._cut()

    def _cut(self) -> None:
        """Cut the next segment and put it on the line."""
        flow = self._queue.popleft()
        data = bytes(flow.backlog[: self._quantum])
        del flow.backlog[: self._quantum]
        self._link, sent = plan(self._link, len(data), self._ready, self._busy())
        self.stream_bytes += len(data)
        self.wire_bytes += sent.wire_bytes
        self._line.append((sent.arrive, flow, data))
        if flow.backlog:
            self._queue.append(flow)
        else:
            flow.waiting = False
            if flow.ending is Ending.EOF:
                self._line_up_ending(flow, sent.depart)
        if flow.paused and len(flow.backlog) <= self.bound // 2:
            flow.paused = False
            flow.source.resume()
        if self._other is not None:
            self._was_last, self._other._was_last = True, False

    def _busy(self) -> float:
        """Return until when the other direction of a half-duplex link transmits."""
        return -math.inf if self._other is None else self._other._link.departed

    def _cut_time(self) -> float:
        """Return when the next segment is cut: at its start, or a little before if it is full already."""
        start = next_start(self._link, self._ready, self._busy())
        return start - LEAD if self._other is None and len(self._queue[0].backlog) >= self._quantum else start

    def _line_up_ending(self, flow: Flow, now: float) -> None:
        assert flow.ending is not None
        arrive = now + self._link.spec.delay
        if self._line:
            arrive = max(arrive, self._line[-1][0])
        self._line.append((arrive, flow, flow.ending))

    def _deliver(self, now: float) -> None:
        """Hand over all that has arrived by `now`, neighbours of one flow in one write."""
        line, due = self._line, now + RESOLUTION
        while line and line[0][0] <= due:
            _, flow, item = line.popleft()
            if isinstance(item, Ending):
                if not flow.dropped:
                    flow.sink.finish(item)
                continue
            parts = [item]
            while line and line[0][0] <= due and line[0][1] is flow and isinstance(item := line[0][2], bytes):
                parts.append(item)
                line.popleft()
            if not flow.dropped:
                flow.sink.write(b"".join(parts))

    def _arm(self, now: float) -> None:
        """Wake up for the next arrival or cut, whichever is first."""
        due = self._line[0][0] if self._line else float("inf")
        if self._queue:
            due = min(due, self._cut_time())
        if due == float("inf") or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - now), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._run(self._now())


def buffer_size(rate: float | None) -> int:
    """Return how many bytes may wait for a lane of `rate` bits/s before the sender is told to stop.

    50 ms worth, so that a late wake-up finds something to send; at least 32 KiB, at most 1 MiB.
    """
    return 1 << 20 if rate is None else max(1 << 15, min(1 << 20, int(rate / 8 * 0.05)))
