"""The lanes of the network in memory: message by message what the real proxy's lanes do byte by byte."""

import asyncio
from typing import Any

import pytest
from fleet.virtual import now, virtually
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.fleet.lane import Lane
from sim.fleet.loop import VirtualLoop
from sim.links.lane import Flow
from sim.links.lane import Lane as ByteLane
from sim.links.link import JitterKey, LinkSpec


class Arrivals:
    """Takes messages from either kind of lane and notes when the last byte of each has come."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sizes: list[int] = []
        self._got = 0

    def deliver(self, packet: object, size: int) -> None:
        self.times.append(now())

    def write(self, data: bytes) -> None:
        self._got += len(data)
        while len(self.times) < len(self.sizes) and self._got >= sum(self.sizes[: len(self.times) + 1]):
            self.times.append(now())

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def finish(self, ending: object) -> None: ...


SIZES = st.one_of(st.integers(2, 200), st.sampled_from([1447, 1448, 1449, 2896]), st.integers(1, 40_000))
SENDINGS = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.001, 0.02, 0.5, 7.0]), SIZES), min_size=1, max_size=12)
OUTAGES = st.sampled_from([(), ((0.4871, 2.0137), (3.0291, 3.5173))])  # no sending falls on a border, to be rounded
LANES = st.one_of(
    st.builds(
        LinkSpec,
        rate=st.sampled_from([26_000.0, 256_000.0, 10e6]),
        delay=st.sampled_from([0.0, 0.05, 0.8]),
        jitter=st.sampled_from([0.0, 0.3]),
        outages=OUTAGES,
    ),
    st.builds(
        LinkSpec,
        rate=st.just(5470.0),
        delay=st.just(0.5),
        mss=st.just(222),
        header=st.just(13),
        duty_cycle=st.sampled_from([0.5, 0.1]),
    ),
    # The proxy cuts an unshaped link's bytes into 45 segments at a time; jitter or a window would tell that from one.
    st.builds(LinkSpec, rate=st.none(), outages=OUTAGES),
)


@settings(max_examples=150, deadline=None)
@given(LANES, SENDINGS)
def test_messages_arrive_when_the_proxys_lane_brings_their_last_byte(
    spec: LinkSpec, sendings: list[tuple[float, int]]
) -> None:
    """The proxy's own lane, which cuts real bytes into segments, runs beside ours in the same virtual time."""

    async def main() -> None:
        loop, key = asyncio.get_running_loop(), JitterKey(7, "jitter-up", "a")
        ours, theirs = Arrivals(), Arrivals()
        lane, byte_lane = Lane(spec, key, loop, 0.0), ByteLane(spec, key, loop.time)
        flow = Flow(byte_lane, theirs, theirs)
        for wait, size in sendings:
            if wait:
                await asyncio.sleep(wait)
            theirs.sizes.append(size)
            lane.send(ours, None, size)
            byte_lane.feed(flow, bytes(size))
        await asyncio.sleep(100_000)
        assert ours.times == pytest.approx(theirs.times, abs=3e-6, rel=0)
        assert (lane.stream_bytes, lane.wire_bytes, lane.segments) == (
            byte_lane.stream_bytes, byte_lane.wire_bytes, byte_lane.segments,
        )  # fmt: skip

    virtually(main())


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([26_000.0, 256_000.0]),
    st.sampled_from([(), ((0.5, 2.0),)]),
    st.sampled_from([1.0, 0.3]),
    st.lists(st.tuples(st.sampled_from([0.0, 0.02, 0.5, 7.0]), st.booleans(), SIZES), min_size=1, max_size=12),
)
def test_directions_take_the_turns_that_those_of_the_proxy_take(
    rate: float, outages: Any, duty_cycle: float, sendings: list[tuple[float, bool, int]]
) -> None:
    """A half-duplex link, both ways: also, the two never transmit at once."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ends = [(Arrivals(), Arrivals()) for _ in range(2)]
        spec, key = LinkSpec(rate, 0.05, outages=outages, duty_cycle=duty_cycle), JitterKey()
        ours = [Lane(spec, key, loop, 0.0) for _ in range(2)]
        theirs = [ByteLane(spec, key, loop.time) for _ in range(2)]
        ours[0].take_turns(ours[1])
        theirs[0].take_turns(theirs[1])
        flows = [Flow(lane, end, end) for lane, (_, end) in zip(theirs, ends, strict=True)]
        for wait, way, size in sendings:
            if wait:
                await asyncio.sleep(wait)
            ends[way][1].sizes.append(size)
            ours[way].send(ends[way][0], None, size)
            theirs[way].feed(flows[way], bytes(size))
        await asyncio.sleep(100_000)
        for mine, yours in ends:
            assert mine.times == pytest.approx(yours.times, abs=3e-6, rel=0)
        taken = sum(lane.wire_bytes for lane in ours) * 8 / rate
        assert max(time for mine, _ in ends for time in mine.times) - 0.05 >= taken - 1e-6

    virtually(main())


def test_half_duplex_by_hand() -> None:
    """1 kB/s, no delay. Up: three segments, 1,500 B each on the wire, 1.5 s, ready at 0. Down: 948 B, on the wire
    1 s, ready at 1. It has its turn after the first segment, from 1.5 to 2.5, and up goes on until 5.5."""

    async def main() -> tuple[list[float], list[float]]:
        loop, up_end, down_end = asyncio.get_running_loop(), Arrivals(), Arrivals()
        up, down = (Lane(LinkSpec(8000.0), JitterKey(), loop, 0.0) for _ in range(2))
        up.take_turns(down)
        up.send(up_end, None, 3 * 1448)
        await asyncio.sleep(1.0)
        down.send(down_end, None, 948)
        await asyncio.sleep(100)
        return up_end.times, down_end.times

    assert virtually(main()) == ([pytest.approx(5.5)], [pytest.approx(2.5)])


@settings(deadline=None)
@given(LANES, SENDINGS, st.floats(0, 1e6))
def test_a_link_whose_time_is_not_the_loops_behaves_the_same(
    spec: LinkSpec, sendings: list[tuple[float, int]], begun: float
) -> None:
    """Differences of times are rounded; a lane that woke up a trifle early would wake up in that moment for ever."""

    async def main(origin: float) -> list[float]:
        loop, there = asyncio.get_running_loop(), Arrivals()
        lane, began = Lane(spec, JitterKey(), loop, origin), loop.time()
        for wait, size in sendings:
            await asyncio.sleep(wait)
            lane.send(there, None, size)
        await asyncio.sleep(100_000)
        return [time - began for time in there.times]

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(begun)) as runner:
        assert runner.run(main(begun)) == pytest.approx(virtually(main(0.0)), abs=1e-6)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(begun)) as runner:
        assert runner.run(main(0.0)) == pytest.approx(virtually(main(-begun)), abs=1e-6)


def test_a_chunk_on_a_slow_link_by_hand() -> None:
    """65,000 B at 1 Mbit/s and 50 ms: 45 segments of 52 B header are 67,340 B, so 538.72 ms and the delay.

    An acknowledgement of 4 B given 1 ms later travels in the last segment, which grows to 65,004 - 44 x 1448 B.
    """

    async def main() -> tuple[list[float], Lane]:
        lane, there = Lane(LinkSpec(1e6, 0.05), JitterKey(), asyncio.get_running_loop(), 0.0), Arrivals()
        lane.send(there, None, 65_000)
        await asyncio.sleep(0.001)
        lane.send(there, None, 4)
        await asyncio.sleep(10)
        return there.times, lane

    times, lane = virtually(main())
    assert times == pytest.approx([(65_004 + 45 * 52) * 8 / 1e6 + 0.05] * 2, abs=1e-9)
    assert (lane.stream_bytes, lane.wire_bytes, lane.segments) == (65_004, 65_004 + 45 * 52, 45)


def test_what_has_not_started_is_forgotten_with_its_receiver() -> None:
    async def main() -> tuple[int, int, int]:
        lane, gone, other = Lane(LinkSpec(8000.0), JitterKey(), asyncio.get_running_loop(), 0.0), Arrivals(), Arrivals()
        lane.send(gone, None, 100)  # starts at once
        lane.send(gone, None, 100)
        lane.send(gone, None, 0)
        lane.send(other, None, 0)
        lane.send(other, None, 60)
        lane.drop(gone)
        await asyncio.sleep(100)
        return len(gone.times), len(other.times), lane.stream_bytes

    assert virtually(main()) == (1, 2, 160)
