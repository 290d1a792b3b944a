"""Links whose rate changes, by hand and against outages, and the files that say when."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import ConfigError, EnvironmentFault
from sim.links import link as link_model
from sim.links.link import LinkSpec, LinkState, plan
from sim.links.profiles import chunk_size, downlink, keepalive, link, uplink
from sim.links.trace import read_trace


def test_a_change_takes_effect_in_the_middle_of_a_message_by_hand() -> None:
    """8,000 bits at 1,000 bit/s until second 4, then at 500: 4,000 bits are left and take 8 s more."""
    spec = LinkSpec(1000.0, header=0, mss=10_000, changes=((4.0, 500.0),))
    _, sent = plan(LinkState(spec), 1000, 0.0)
    assert sent.depart == pytest.approx(12.0)


def test_an_outage_and_a_change_together_by_hand() -> None:
    """16,000 bits at 1,000 bit/s: 2,000 by second 2; none until second 10, by when the rate is 7,000: 2 s more."""
    spec = LinkSpec(1000.0, header=0, mss=10_000, outages=((2.0, 10.0),), changes=((5.0, 7000.0),))
    _, sent = plan(LinkState(spec), 2000, 0.0)
    assert sent.depart == pytest.approx(12.0)


def test_a_message_that_starts_later_meets_the_rate_of_then() -> None:
    spec = LinkSpec(1000.0, header=0, mss=10_000, changes=((4.0, 500.0), (20.0, 8000.0)))
    state, first = plan(LinkState(spec), 1000, 0.0)  # until second 12
    _, second = plan(state, 1000, 30.0)
    assert (first.depart, second.depart) == (pytest.approx(12.0), pytest.approx(31.0))


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(100, 1e6)), max_size=6, unique_by=lambda pair: pair[0]),
    st.lists(st.integers(1, 50_000), min_size=1, max_size=8),
)
def test_changes_to_the_same_rate_change_nothing(changes: list[tuple[float, float]], sizes: list[int]) -> None:
    same = LinkSpec(5000.0, 0.05, changes=tuple((second, 5000.0) for second, _ in sorted(changes)))
    one, other = LinkState(same), LinkState(LinkSpec(5000.0, 0.05))
    for size in sizes:
        one, a = plan(one, size, 0.0)
        other, b = plan(other, size, 0.0)
        assert a.arrive == pytest.approx(b.arrive, rel=1e-9) and a.wire_bytes == b.wire_bytes


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(100, 1e6)), max_size=6, unique_by=lambda pair: pair[0]),
    st.integers(2, 30_000),
)
def test_what_is_sent_is_the_integral_of_the_rate(changes: list[tuple[float, float]], size: int) -> None:
    spec = LinkSpec(3000.0, header=0, mss=10**6, changes=tuple(sorted(changes)))
    _, sent = plan(LinkState(spec), size, 0.0)
    edges = [0.0, *(second for second, _ in spec.changes if second < sent.depart), sent.depart]
    bits = sum((b - a) * (spec.rate_at(a) or 0.0) for a, b in pairwise(edges))
    assert bits == pytest.approx(size * 8, rel=1e-9)


@pytest.mark.parametrize("changes", [((1.0, 0.0),), ((2.0, 5.0), (1.0, 5.0)), ((1.0, 5.0), (1.0, 6.0)), ((-1.0, 5.0),)])
def test_changes_that_make_no_link_are_refused(changes: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ConfigError, match="changes in order"):
        LinkSpec(100.0, changes=changes)


def test_a_long_trace_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its content for each segment: comparing 100,000 rows takes milliseconds."""
    looked: list[LinkSpec] = []
    pieces = link_model._pieces
    monkeypatch.setattr(link_model, "_pieces", lambda spec: looked.append(spec) or pieces(spec))
    spec = LinkSpec(8000.0, changes=((2.0, 16_000.0),))
    state = LinkState(spec)
    for _ in range(5):
        state, p = plan(state, 948, now=0.0)
    assert p.depart == 2.0 + 3 * 0.5 and looked == [spec]


TRACE = "down_kbit,second,up_kbit,cell\n400,0,120,a\n250,10,60,a\n0,25,0,b\n250,40,60,b\n100,50,20,b\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "bus.csv"
    path.write_text(TRACE)
    return path


def test_a_trace_is_rates_changes_and_outages(trace: Path) -> None:
    read = read_trace(trace)
    assert (read.up, read.down, read.outages) == (120e3, 400e3, ((25.0, 40.0),))
    assert read.up_changes == ((10.0, 60e3), (50.0, 20e3))
    assert read.down_changes == ((10.0, 250e3), (50.0, 100e3))


def test_a_trace_stands_where_a_link_s_name_stands(trace: Path) -> None:
    profile = link(f"trace:{trace}/200ms")
    assert profile.rtt == 0.2 and uplink(profile).rate == 120e3 and downlink(profile).changes[1] == (50.0, 100e3)
    slowest = link("20kbit/100kbit/200ms")  # chunks and keepalive have to fit the worst of it
    assert chunk_size(profile) == chunk_size(slowest)
    assert keepalive(profile, chunk_size(profile)) == keepalive(slowest, chunk_size(slowest))
    assert link(f"trace:{trace}").rtt == 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("second,up_kbit\n0,1\n", "no column 'down_kbit'"),
        ("second,up_kbit,down_kbit\n", "second 0"),
        ("second,up_kbit,down_kbit\n1,1,1\n", "second 0"),
        ("second,up_kbit,down_kbit\n0,1,fast\n", "line 2: holds something"),
        ("second,up_kbit,down_kbit\n0,1\n", "line 2: holds something"),
        ("second,up_kbit,down_kbit\n0,1,1\n0,2,2\n", "line 3: second 0 must be later"),
        ("second,up_kbit,down_kbit\n0,nan,1\n", "line 2"),
        ("second,up_kbit,down_kbit\n0,-1,1\n", "positive rates"),
        ("second,up_kbit,down_kbit\n0,1,0\n", "positive rates"),
        ("second,up_kbit,down_kbit\n0,1,1\n5,0,0\n", "ends in an outage"),
        ("second,up_kbit,down_kbit\n0,1,1\n5,1," + "1" * 200_000, "larger than"),
    ],
)
def test_a_trace_that_makes_no_sense_says_where(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_trace(path)


def test_a_trace_that_is_not_there_is_an_environment_fault() -> None:
    with pytest.raises(EnvironmentFault, match="nowhere"):
        link("trace:nowhere.csv")
