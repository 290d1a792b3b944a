"""One direction of one device's link at message granularity, planned by the same `Link` model as the real proxy.

What TCP would do with the messages' bytes is kept: bytes that wait for the link are cut into full segments across
message borders, a last part that is no full segment waits for its turn and takes along what has come meanwhile,
and a message has arrived when the segment with its last byte has. So a 65 kB chunk costs two timers, not fifty; on a
half-duplex link, where the directions take turns by segments, it costs one for each.
"""

import asyncio
from collections import deque
from functools import partial
from math import inf
from typing import Any, Protocol

from sim.links.link import JitterKey, LinkSpec, LinkState, plan


class Receiver(Protocol):
    """One end of a connection. `packet` is None at the end of the stream."""

    def deliver(self, packet: Any, size: int) -> None: ...


class Wire:
    """The direction of a connection that is not shaped and not counted: in order, in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._soon = getattr(loop, "call_plainly_soon", loop.call_soon)

    def send(self, receiver: Receiver, packet: object, size: int) -> None:
        self._soon(partial(receiver.deliver, packet, size))

    def drop(self, receiver: Receiver) -> None:
        """Nothing to forget: what was sent has left."""

    @property
    def trickling(self) -> bool:
        """Never: whole messages come at once."""
        return False


class Lane:
    """The shared link of all connections of a device, one direction. Its time is the loop's since `origin`."""

    _other: "Lane | None" = None  # the other direction of a half-duplex link
    _was_last = False  # this direction has sent last

    def __init__(self, spec: LinkSpec, key: JitterKey, loop: asyncio.AbstractEventLoop, origin: float) -> None:
        self.stream_bytes = 0
        self.wire_bytes = 0
        self._loop, self._origin = loop, origin
        self._at = getattr(loop, "call_plainly_at", loop.call_at)
        self._link = LinkState(spec, key)
        self._mss = spec.mss
        self._backlog: deque[tuple[Receiver, object, int]] = deque()
        self._waiting = 0  # bytes of the backlog that have not started
        self._begun = 0  # bytes of its first message that have
        self._ready = 0.0  # since when there has been something to send
        self._armed: float | None = None  # when a timer will cut
        self._line: deque[tuple[Receiver, object, int]] = deque()  # on its way, in order

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

    @property
    def trickling(self) -> bool:
        """Whether parts of a message are coming in: the receiver of bytes would know that the other side lives."""
        spec, arriving = self._link.spec, self._loop.time() - self._origin - self._link.spec.delay
        return bool(self._line or self._begun) and not any(out <= arriving < back for out, back in spec.outages)

    def send(self, receiver: Receiver, packet: object, size: int) -> None:
        """Queue a message of `size` bytes; with `packet` None and no bytes, the end of the stream."""
        now = self._loop.time() - self._origin
        if not self._waiting:
            if not size:
                self._follow(receiver, packet, now)
                return
            self._ready = now
        self._backlog.append((receiver, packet, size))
        self._waiting += size
        if self._armed is None:
            self._cut(now)

    def drop(self, receiver: Receiver) -> None:
        """Forget what has not started for this receiver: it is gone."""
        if self._backlog and self._backlog[0][0] is receiver:
            self._begun = 0
        self._backlog = deque(entry for entry in self._backlog if entry[0] is not receiver)
        self._waiting = sum(size for _, _, size in self._backlog) - self._begun
        while self._backlog and not self._backlog[0][2]:
            other, packet, _ = self._backlog.popleft()
            self._follow(other, packet, self._loop.time() - self._origin)

    def _follow(self, receiver: Receiver, packet: object, now: float) -> None:
        """Let what has no bytes arrive behind all that has left."""
        self._line.append((receiver, packet, 0))
        arrive = max(now + self._link.spec.delay, self._link.arrived)
        self._at(self._origin + arrive, self._arrive)

    def _arrive(self) -> None:
        """Deliver the first on the line. One timer for each, but the line keeps the order: a real loop may fire timers
        of one moment in any."""
        receiver, packet, size = self._line.popleft()
        receiver.deliver(packet, size)

    def _arm(self, moment: float) -> None:
        """Cut again at this moment, or earlier if that is arranged already."""
        if self._armed is None or moment < self._armed:
            self._armed = moment
            self._at(self._origin + moment, partial(self._wake, moment))

    def _wake(self, moment: float) -> None:
        if moment == self._armed:
            self._armed = None
        self._cut(max(moment, self._loop.time() - self._origin))  # a difference may be rounded to less

    def _cut(self, now: float) -> None:
        """Send all that has started by `now`: full segments at once, as their bytes are certain, then the rest."""
        other = self._other
        while self._waiting:
            if self._link.free > now:
                self._arm(self._link.free)
                return
            if other is not None:
                if self._was_last and other._waiting:
                    self._was_last = False
                    other._cut(now)  # which may take the link
                if other._link.departed > now:
                    self._arm(other._link.departed)
                    return
            rest = self._waiting % self._mss
            whole = self._waiting - rest or rest
            if not self._transmit(whole if other is None else min(whole, self._mss), now):
                return

    def _transmit(self, nbytes: int, now: float) -> bool:
        """Put the first `nbytes` of the backlog on the line, and see to the arrival of the messages that end there.

        If they cannot start by `now`, have it tried again when they can, and return False.
        """
        backlog, mss, started, other = self._backlog, self._mss, False, self._other
        busy = -inf if other is None else other._link.departed
        while nbytes:
            left = backlog[0][2] - self._begun
            piece = nbytes if nbytes <= mss else min(nbytes, -(-left // mss) * mss)  # up to a segment's end
            link, sent = plan(self._link, piece, self._ready, busy)
            if not started and sent.start > now:
                self._arm(sent.start)  # an outage, or TCP's window
                return False
            self._link, started = link, True
            self.stream_bytes += piece
            self.wire_bytes += sent.wire_bytes
            self._waiting -= piece
            nbytes -= piece
            arrival = self._origin + sent.arrive
            self._begun += piece
            while backlog and self._begun >= backlog[0][2]:
                message = backlog.popleft()
                self._begun -= message[2]
                self._line.append(message)
                self._at(arrival, self._arrive)
        if other is not None:
            self._was_last, other._was_last = True, False
        return True
