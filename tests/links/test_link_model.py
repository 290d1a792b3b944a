"""The link model against a kernel's figures, hand-worked cases and properties."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.errors import ConfigError
from edge_client.transport.pacing import HEADER, MSS
from sim.links.link import INITIAL_WINDOW, JitterKey, LinkSpec, LinkState, next_start, plan

MQTT_HEADER = 15  # fixed header 4, topic 2 + 7, packet id 2

# Seconds from publish to delivery over the kernel's token bucket and a 50 ms delay line each way, CUBIC, fresh
# slow start: (bits/s, payload bytes, seconds).
KERNEL = [
    (50e3, 187_000, 30.931),
    (50e3, 1_360_000, 225.230),
    (256e3, 187_000, 6.058),
    (256e3, 1_360_000, 44.042),
    (1e6, 187_000, 1.589),
    (1e6, 1_360_000, 11.325),
    (10e6, 187_000, 0.422),
    (10e6, 1_360_000, 1.405),
]


def in_segments(state, nbytes, now, mss=MSS):
    """Plan a message segment by segment, as the proxy does; return the state and the last plan."""
    last = None
    while nbytes:
        state, last = plan(state, min(mss, nbytes), now)
        nbytes -= min(mss, nbytes)
    return state, last


@pytest.mark.parametrize(("rate", "payload", "seconds"), KERNEL)
def test_reproduces_the_kernel_within_one_percent(rate, payload, seconds):
    link = LinkState(LinkSpec(rate, delay=0.05))
    _, whole = plan(link, payload + MQTT_HEADER, now=0.0)
    _, last = in_segments(link, payload + MQTT_HEADER, now=0.0)
    assert whole.arrive == pytest.approx(seconds, rel=0.01)
    assert last.arrive == pytest.approx(whole.arrive, abs=1e-9)


def test_header_model_by_hand():
    """1,449 B are two segments: 1449 + 2 * 52 = 1553 B, at 8 kbit/s 1.553 s, plus 0.25 s on the way."""
    _, p = plan(LinkState(LinkSpec(8000, delay=0.25)), 1449, now=3.0)
    assert (p.start, p.wire_bytes, p.segments) == (3.0, 1553, 2)
    assert p.depart == pytest.approx(4.553)
    assert p.arrive == pytest.approx(4.803)


def test_slow_start_by_hand():
    """100 Mbit/s, 1 s round trip: 10 segments at 0, 20 more when the first is acknowledged."""
    spec = LinkSpec(100e6, delay=0.5)
    segment = (MSS + HEADER) * 8 / 100e6
    state, first = plan(LinkState(spec), INITIAL_WINDOW * MSS, now=0.0)
    assert first.depart == pytest.approx(10 * segment)
    state, second = plan(state, 20 * MSS, now=0.0)
    assert second.start == pytest.approx(1 + segment)
    _, third = plan(state, MSS, now=0.0)
    assert third.start == pytest.approx(2 + 2 * segment)
    # One round trip plus 0.2 s of silence, and it starts over with ten segments.
    _, again = plan(state, 11 * MSS, now=state.free + 1.2)
    assert again.depart == pytest.approx(state.free + 1.2 + 1 + 2 * segment)


def test_an_idle_link_saves_up_no_burst():
    """30 kB at 500 kbit/s take 0.45 s and more, however long the link was idle; 187 kB at 1 Mbit/s 1.6, not 0.57 s."""
    _, p = plan(LinkState(LinkSpec(500e3), free=0.0, arrived=0.0), 30_000, now=1000.0)
    assert 0.48 <= p.depart - 1000.0 <= 0.51
    _, p = plan(LinkState(LinkSpec(1e6, delay=0.05)), 187_000, now=1000.0)
    assert p.arrive - 1000.0 == pytest.approx(1.6, rel=0.01)


def test_a_late_caller_forfeits_nothing():
    """Bytes ready at 0 and planned late get the schedule of bytes planned in time."""
    spec = LinkSpec(1e6, delay=0.05)
    state, first = plan(LinkState(spec), MSS, now=0.0)
    _, second = plan(state, MSS, now=0.0)
    assert second.start == first.depart
    assert second.arrive == pytest.approx(2 * first.depart + 0.05)


def test_lora_rate():
    """51 + 13 B at 250 bit/s are 2.048 s."""
    _, p = plan(LinkState(LinkSpec(250, mss=51, header=13)), 51, now=0.0)
    assert p.depart == pytest.approx(2.048)


def test_duty_cycle_by_hand():
    """SF7 at 1 %: 222 + 13 B at 5,470 bit/s are 343.7 ms on the air, then 99 times as long nothing, 34.369 s in all.

    Of 500 B the third frame, 56 + 13 B, starts after two such times and takes 100.9 ms.
    """
    spec = LinkSpec(5470, delay=0.5, mss=222, header=13, duty_cycle=0.01)
    state, first = plan(LinkState(spec), 222, now=0.0)
    assert first.depart == pytest.approx(235 * 8 / 5470)
    assert first.arrive == pytest.approx(first.depart + 0.5)
    assert (state.departed, state.free) == (first.depart, pytest.approx(100 * first.depart))
    assert next_start(state, 1.0) == state.free
    _, p = plan(LinkState(spec), 500, now=0.0)
    assert p.depart == pytest.approx(2 * 23_500 * 8 / 5470 + 69 * 8 / 5470)
    assert spec.sustained == pytest.approx(54.7)


def test_an_outage_in_the_silence_after_a_segment_does_not_hold_up_the_segment():
    """1 kB/s on the air for a tenth of the time. A segment of 1,000 B leaves at 1 s and is silent until 10 s, were it
    not for the outage from 4 to 24 s. Of two segments the second starts at 30 s, behind outage and silence."""
    spec = LinkSpec(8000, delay=0.5, mss=948, duty_cycle=0.1, outages=((4.0, 24.0),))
    state, p = plan(LinkState(spec), 948, now=0.0)
    assert (p.depart, p.arrive, state.free) == (1.0, 1.5, pytest.approx(30.0))
    _, p = plan(LinkState(spec), 2 * 948, now=0.0)
    assert (p.depart, p.arrive) == (pytest.approx(31.0), pytest.approx(31.5))


def test_a_direction_that_waits_for_the_other_one_by_hand():
    """1,000 B on the wire at 8 kbit/s, ready at 0; the other direction transmits until 3."""
    state = LinkState(LinkSpec(8000, delay=0.25))
    assert next_start(state, 0.0, busy=3.0) == 3.0
    _, p = plan(state, 948, 0.0, busy=3.0)
    assert (p.start, p.depart, p.arrive) == (3.0, 4.0, 4.25)


@pytest.mark.parametrize("rate", [0, -1, -math.inf, math.inf, math.nan])
def test_impossible_rates_are_refused_with_the_mend(rate):
    with pytest.raises(ConfigError, match="positive rate"):
        LinkSpec(rate)


@pytest.mark.parametrize(
    "bad",
    [
        {"delay": -0.1},
        {"jitter": math.nan},
        {"outages": ((2.0, 1.0),)},
        {"outages": ((1.0, 3.0), (2.0, 4.0))},
        {"outages": ((1.0, 2.0), (2.0, 4.0))},
        {"mss": 0},
        {"header": -1},
        {"duty_cycle": 0.0},
        {"duty_cycle": 1.5},
    ],
)
def test_impossible_links_are_refused(bad):
    with pytest.raises(ConfigError):
        LinkSpec(1e6, **bad)


def test_empty_messages_are_refused():
    with pytest.raises(ValueError, match="at least one byte"):
        plan(LinkState(LinkSpec(1e6)), 0, now=0.0)


def test_outage_stops_and_resumes_by_hand():
    """8 kbit/s = 1 kB/s; 948 + 52 B begin at 1.5, pause from 2 to 5, and end at 5.5; bits on their way still arrive."""
    spec = LinkSpec(8000, delay=0.25, outages=((2.0, 5.0), (10.0, 11.0)))
    state, p = plan(LinkState(spec), 948, now=1.5)
    assert (p.start, p.depart, p.arrive) == (1.5, 5.5, 5.75)
    assert next_start(state, 10.2) == 11.0
    _, p = plan(state, 948, now=10.0)
    assert (p.start, p.depart) == (11.0, 12.0)


def test_unshaped_link_takes_no_time_and_keeps_order():
    state, first = plan(LinkState(LinkSpec(None)), 1_000_000, now=7.0)
    _, second = plan(state, 1, now=7.0)
    assert first.depart == first.arrive == 7.0
    assert second.arrive == math.nextafter(7.0, math.inf)


def test_jitter_depends_on_the_key_and_the_segment_only():
    key = JitterKey(7, "jitter-up", "device-3")
    assert [key.draw(n) for n in (5, 0, 5)] == [key.draw(5), JitterKey(7, "jitter-up", "device-3").draw(0), key.draw(5)]
    assert len({key.draw(0), key._replace(seed=8).draw(0), key._replace(device="x").draw(0)}) == 3
    mean = sum(key.draw(n) for n in range(2000)) / 2000
    assert mean == pytest.approx(0.5, abs=0.03)  # five standard errors


rates = st.floats(250, 1e9)
outage_lists = st.lists(st.floats(0, 100), max_size=8, unique=True).map(
    lambda edges: tuple(zip(sorted(edges)[0::2], sorted(edges)[1::2], strict=False))
)
specs = st.builds(LinkSpec, st.none() | rates, st.floats(0, 2), st.just(0.0) | st.floats(0, 1), outage_lists)
pausing = st.builds(LinkSpec, rates, st.floats(0, 2), st.just(0.0) | st.floats(0, 1), duty_cycle=st.floats(0.01, 1))
messages = st.lists(st.tuples(st.integers(1, 200_000), st.floats(0, 5)), min_size=1, max_size=20)


def run(spec, sends):
    """Return the plans of messages (bytes, seconds since the one before)."""
    state, plans, now = LinkState(spec, JitterKey(1)), [], 0.0
    for nbytes, wait in sends:
        now += wait
        state, p = plan(state, nbytes, now)
        plans.append((now, nbytes, p))
    return plans


@given(specs, messages)
def test_order_causality_and_counting(spec, sends):
    plans = run(spec, sends)
    for now, nbytes, p in plans:
        assert now <= p.start <= p.depart <= p.depart + spec.delay <= p.arrive
        assert p.segments == math.ceil(nbytes / MSS)
        assert p.wire_bytes == nbytes + HEADER * p.segments
    for (_, _, before), (_, _, after) in pairwise(plans):
        assert before.depart <= after.start
        assert before.arrive < after.arrive


@given(specs.filter(lambda s: s.rate is not None), messages)
def test_never_faster_than_the_rate_and_silent_in_outages(spec, sends):
    for _, _, p in run(spec, sends):
        out = sum(max(0.0, min(b, p.depart) - max(a, p.start)) for a, b in spec.outages)
        needed = p.wire_bytes * 8 / spec.rate
        assert p.depart - p.start - out >= needed - 1e-9 * max(1.0, p.depart)
        assert not any(a <= p.start < b for a, b in spec.outages)


@given(rates, messages)
def test_work_conserving_where_the_window_never_binds(rate, sends):
    """A queue with one server (Lindley): each message starts when it is there and the one before is gone."""
    free = 0.0
    for now, _, p in run(LinkSpec(rate), sends):
        free = max(free, now) + p.wire_bytes * 8 / rate
        assert p.depart == pytest.approx(free, rel=1e-9)


@given(pausing, messages)
def test_the_duty_cycle_is_never_exceeded(spec, sends):
    """From one start to any later end, the time on the air is at most its share, the last segment apart."""
    plans = [p for _, _, p in run(spec, sends)]
    for first, last in ((plans[0], plans[-1]), *pairwise(plans)):
        between = plans[plans.index(first) : plans.index(last)]
        assert sum(p.wire_bytes for p in between) * 8 / spec.rate <= spec.duty_cycle * (last.start - first.start) + 1e-6


@settings(max_examples=60)
@given(specs | pausing, messages)
def test_segment_by_segment_is_the_same_link(spec, sends):
    """Planning in full segments changes neither the arrivals nor the counts, jitter, outages and window included."""
    whole = segmented = LinkState(spec, JitterKey(1))
    now = 0.0
    for nbytes, wait in sends:
        now += wait
        whole, once = plan(whole, nbytes, now)
        segmented, last = in_segments(segmented, nbytes, now)
        assert last.arrive == pytest.approx(once.arrive, rel=1e-9, abs=1e-9)
        assert (segmented.segments, segmented.window) == (whole.segments, whole.window)


@given(rates, st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_splitting_costs_headers_and_nothing_else(rate, parts):
    _, once = plan(LinkState(LinkSpec(rate, delay=0.0)), sum(parts), now=0.0)
    state = LinkState(LinkSpec(rate, delay=0.0))
    for part in parts:
        state, last = plan(state, part, now=0.0)
    headers = (state.segments - once.segments) * HEADER * 8 / rate
    assert headers >= 0
    assert last.arrive == pytest.approx(once.arrive + headers, rel=1e-9)
