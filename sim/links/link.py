"""One direction of one device's link: when a message leaves and when it arrives, as a pure function.

`plan` answers both for a whole message (the virtual network) and for one segment (the shaping proxy), with
the same arrival either way. There is no clock and no input or output in here.

The model, in the order in which a message meets it:

1. FIFO: transmission starts when the link has sent everything before (`free`). There is no token bucket, hence no
   burst: an idle link saves up nothing.
2. Outages: transmission stops at the start of an outage and resumes at its end. A link may also change its rate at
   given times (a trace); what is under way then goes on at the new rate.
3. TCP slow start (RFC 5681, initial window of RFC 6928): 10 segments, doubled with each round trip, back to 10 after
   an idle time of one retransmission timeout. It binds only where rate x round trip exceeds about 15 kB.
4. Serialisation: every started segment of `mss` bytes carries `header` bytes more (20 B IP + 32 B TCP with
   timestamps). Under a duty cycle d the sender is silent after each segment, for 1/d - 1 times as long as it took.
   On a half-duplex link a segment also waits until the other direction is silent (`busy`).
5. Propagation, plus jitter drawn uniformly from [0, jitter) by segment number; a segment never overtakes another.

Units: bytes, seconds, bits per second.
"""

import math
from bisect import bisect_right
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec

from edge_client.errors import ConfigError
from edge_client.seeds import SHARED, digest
from edge_client.transport.pacing import HEADER, MSS

INITIAL_WINDOW = 10
"""Segments that TCP sends before the first acknowledgement comes back (RFC 6928)."""
MIN_RTO_VARIANCE = 0.2
"""Seconds that the retransmission timeout exceeds the round trip by (Linux' lower bound)."""

Outage = tuple[float, float]
Change = tuple[float, float]


class LinkSpec(msgspec.Struct, frozen=True, dict=True):
    """The fixed properties of one direction.

    `rate`: bits/s at the IP layer, or None for an unshaped link. `delay`: one-way seconds; TCP waits for twice that for
    an acknowledgement. `jitter`: its largest addition, seconds. `outages`: (start, end) in seconds of the link's time,
    sorted and apart. `changes`: (second, bits/s), sorted: from then on the rate is this one. `duty_cycle`: the share of
    the time that it may transmit.
    Raises ConfigError for values that no link can have.
    """

    rate: float | None
    delay: float = 0.0
    jitter: float = 0.0
    outages: tuple[Outage, ...] = ()
    mss: int = MSS
    header: int = HEADER
    changes: tuple[Change, ...] = ()
    duty_cycle: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.duty_cycle <= 1:
            raise ConfigError(f"link duty cycle {self.duty_cycle}: give a share above 0, at most 1")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ConfigError(f"link rate {self.rate} bit/s: give a positive rate, or none for an unshaped link")
        for name, value in (("delay", self.delay), ("jitter", self.jitter)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"link {name} {value} s: give zero or a positive number of seconds")
        if self.mss < 1 or self.header < 0:
            raise ConfigError(f"link segments of {self.mss} B + {self.header} B header: give mss >= 1, header >= 0")
        last = -math.inf
        for start, end in self.outages:
            if not (max(last, 0.0) <= start < end < math.inf and start != last):
                raise ConfigError(
                    f"link outage {start}..{end} s: list outages in order, apart, each start before its end"
                )
            last = end
        last = -math.inf
        for second, rate in self.changes:
            if self.rate is None or not (
                max(last, 0.0) <= second < math.inf and second != last and 0 < rate < math.inf
            ):
                raise ConfigError(
                    f"link rate of {rate} bit/s from second {second}: list changes in order, each a positive rate, on "
                    "a link that has one to begin with; where nothing passes, give an outage"
                )
            last = second

    def rate_at(self, second: float) -> float | None:
        """Return the bits/s at a moment of the link's time, outages apart."""
        if not self.changes:
            return self.rate
        index = bisect_right(self.changes, second, key=_begin) - 1
        return self.rate if index < 0 else self.changes[index][1]

    @cached_property
    def pieces(self) -> "Pieces":
        """From when which rate holds. Kept here, as a trace is too long to be looked up by its content each time."""
        return _pieces(self)

    @property
    def sustained(self) -> float | None:
        """The bits/s that the duty cycle leaves of the first rate."""
        return None if self.rate is None else self.rate * self.duty_cycle

    def seconds(self, wire_bytes: int, at: float = -math.inf) -> float:
        """Return how long `wire_bytes` take up the line at the rate of that moment, the silence after them included."""
        rate = self.rate_at(at) if self.changes else self.rate
        return 0.0 if rate is None else wire_bytes * 8 / (rate * self.duty_cycle)


class JitterKey(NamedTuple):
    """Names the random stream of one direction of one device (see `edge_client.seeds`)."""

    seed: int = 0
    purpose: str = "jitter"
    device: str = SHARED

    def draw(self, segment: int) -> float:
        """Return a number in [0, 1) that depends on the key and the segment's number only."""
        return digest(self.seed, self.purpose, segment, self.device, size=6) / 2**48


class LinkState(msgspec.Struct, frozen=True, gc=False):
    """What the link remembers between messages; begin with `LinkState(spec, key)`.

    `departed`: when the last accepted byte has left. `free`: when the silence after it is over. `arrived`: when it
    reaches the other end. `segments`: how many so far. `window`: TCP's congestion window in segments; `used`: how many
    of it are sent; `acked`: when the acknowledgement of the first of them is back.
    """

    spec: LinkSpec
    key: JitterKey = JitterKey()
    departed: float = -math.inf
    free: float = -math.inf
    arrived: float = -math.inf
    segments: int = 0
    window: int = INITIAL_WINDOW
    used: int = 0
    acked: float = -math.inf


class Plan(msgspec.Struct, frozen=True, gc=False):
    """One message on the link: first bit on the line, last bit off it, last bit at the other end (seconds)."""

    start: float
    depart: float
    arrive: float
    wire_bytes: int
    segments: int


def plan(state: LinkState, nbytes: int, now: float, busy: float = -math.inf) -> tuple[LinkState, Plan]:
    """Queue `nbytes` of TCP payload that were ready at `now`; return the new state and what becomes of them.

    `now` is when the bytes were ready, not when the caller got round to it: a caller whose timer fired late passes
    the earlier time and forfeits nothing. `busy` is until when the other direction of a half-duplex link transmits.
    """
    if nbytes < 1:
        raise ValueError(f"a link carries at least one byte, not {nbytes}")
    spec, first, start = state.spec, state.segments, None
    mss, header, rtt = spec.mss, spec.header, 2 * spec.delay
    left = nbytes
    while left:  # once, or once per congestion window
        begin, window, used = _gate(state, now, busy)
        gated = (window - 1) * spec.seconds(mss + header, begin) < rtt
        size = min(left, (window - used) * mss) if gated else left
        count = -(-size // mss)
        free = _finish(spec, begin, size + count * header)
        depart = free if spec.duty_cycle == 1 else _departure(spec, begin, size, count)
        acked = state.acked
        if gated and used == 0:
            acked = _departure(spec, begin, min(size, mss), 1) + rtt
        arrived = _arrival(state, begin, depart, size, count) if spec.jitter else depart + spec.delay
        if arrived <= state.arrived:
            arrived = math.nextafter(state.arrived, math.inf)
        used = used + count if gated else 0
        state = LinkState(spec, state.key, depart, free, arrived, state.segments + count, window, used, acked)
        start = begin if start is None else start
        left -= size
    assert start is not None
    segments = state.segments - first
    return state, Plan(start, state.departed, state.arrived, nbytes + segments * header, segments)


def next_start(state: LinkState, now: float, busy: float = -math.inf) -> float:
    """Return when a segment that is ready at `now` would start, all told: queue, other direction, window, outage."""
    return _gate(state, now, busy)[0]


def _gate(state: LinkState, now: float, busy: float) -> tuple[float, int, int]:
    """Return when the next segment may start, the congestion window then, and how much of it is used."""
    window, used = state.window, state.used
    start = state.free if state.free > now else now
    if busy > start:
        start = busy
    if now - state.free >= 2 * state.spec.delay + MIN_RTO_VARIANCE:
        window, used = INITIAL_WINDOW, 0
    elif used >= window:
        start, window, used = max(start, state.acked), 2 * window, 0
    elif now > state.free and now >= state.acked:
        used = 0  # the sender, not the window, was the limit: a fresh window, but no larger one (RFC 7661)
    outages = state.spec.outages
    if outages:
        index = bisect_right(outages, start, key=_end)
        if index < len(outages) and outages[index][0] <= start:
            start = outages[index][1]
    return start, window, used


def _departure(spec: LinkSpec, begin: float, size: int, count: int) -> float:
    """Return when the last of `count` segments with `size` bytes in all has left, if the first starts at `begin`."""
    if spec.duty_cycle == 1:
        return _finish(spec, begin, size + count * spec.header)
    before = (count - 1) * (spec.mss + spec.header)
    return _finish(spec, _finish(spec, begin, before), size + count * spec.header - before, 1.0)


def _finish(spec: LinkSpec, begin: float, wire_bytes: int, duty_cycle: float | None = None) -> float:
    """Return when the line is free again after `wire_bytes`, if the first starts at `begin`: outages interrupt,
    changes of the rate take effect at once. A `duty_cycle` of 1 leaves out the silence after each segment."""
    bits = wire_bytes * 8.0 / (spec.duty_cycle if duty_cycle is None else duty_cycle)
    if spec.rate is None or not (spec.outages or spec.changes):
        return begin if spec.rate is None else begin + bits / spec.rate
    starts, rates = spec.pieces
    index, now = bisect_right(starts, begin) - 1, begin
    while index + 1 < len(starts):
        room = (starts[index + 1] - now) * rates[index]
        if bits <= room:
            break
        index, bits = index + 1, bits - room
        now = starts[index]
    return now + bits / rates[index]


Pieces = tuple[tuple[float, ...], tuple[float, ...]]


@lru_cache(maxsize=4096)  # the devices of a fleet may share a link
def _pieces(spec: LinkSpec) -> Pieces:
    """Return from when which rate holds, outages as a rate of 0; the last one is never an outage."""
    moments = {-math.inf, *(moment for outage in spec.outages for moment in outage)}
    starts = tuple(sorted(moments | {second for second, _ in spec.changes}))
    out = [bisect_right(spec.outages, start, key=_end) for start in starts]
    dark = [i < len(spec.outages) and spec.outages[i][0] <= start for i, start in zip(out, starts, strict=True)]
    return starts, tuple(0.0 if no else spec.rate_at(start) or 0.0 for no, start in zip(dark, starts, strict=True))


def _arrival(state: LinkState, begin: float, depart: float, size: int, count: int) -> float:
    """Return when the last of `count` segments sent back to back arrives under jitter, none overtaking another."""
    spec = state.spec
    latest = depart + spec.delay
    # Backwards, until a segment left so early that even the largest jitter cannot make it the last one.
    for index in reversed(range(count)):
        left = _departure(spec, begin, (index + 1) * spec.mss, index + 1) if index < count - 1 else depart
        if left + spec.delay + spec.jitter <= latest:
            break
        latest = max(latest, left + spec.delay + spec.jitter * state.key.draw(state.segments + index))
    return latest


def _begin(change: Change) -> float:
    return change[0]


def _end(outage: Outage) -> float:
    return outage[1]
