"""Topics: what is built is understood, and nothing else is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.examples import NAMES

from edge_client.errors import ProtocolError
from edge_client.protocol import topics
from edge_client.protocol.messages import Accept, Chunk, Join, Presence, Reject, RoundState, Telemetry, Welcome
from edge_client.protocol.topics import Address, parse

COUNTS = st.integers(0, 2**32)


def matches(pattern: str, topic: str) -> bool:
    """MQTT's matching of a filter (MQTT 3.1.1 section 4.7), in short: "+" is one level, a final "#" all below."""
    wanted, levels = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted, levels = wanted[:-1], levels[: len(wanted) - 1]
    return len(wanted) == len(levels) and all(w in ("+", level) for w, level in zip(wanted, levels, strict=True))


@settings(max_examples=100, deadline=None)
@given(NAMES, NAMES, COUNTS, COUNTS)
def test_every_topic_that_is_built_is_understood(run: str, device: str, round: int, index: int) -> None:
    built = {
        topics.presence(run, device): Address(Presence, device),
        topics.join(run, device): Address(Join, device),
        topics.telemetry(run, device): Address(Telemetry, device),
        topics.upload(run, device, round, index): Address(Chunk, device, round, index),
        topics.round_state(run): Address(RoundState),
        topics.broadcast(run, round, index): Address(Chunk, None, round, index),
        topics.catch_up(run, device, round, index): Address(Chunk, device, round, index),
        topics.down(run, device, "welcome"): Address(Welcome, device),
        topics.down(run, device, "accept"): Address(Accept, device),
        topics.down(run, device, "reject"): Address(Reject, device),
    }
    assert len(built) == 10
    for topic, address in built.items():
        assert parse(topic, run) == address


def test_topics_are_those_of_the_protocol() -> None:
    assert topics.upload("magic", "pi-1", 3, 0) == "gca/v1/magic/up/pi-1/3/0"
    assert topics.catch_up("magic", "pi-1", 3, 2) == "gca/v1/magic/dn/pi-1/bc/3/2"
    assert topics.broadcast("magic", 3, 2) == "gca/v1/magic/bc/3/2"
    assert topics.presence("magic", "pi-1") == "gca/v1/magic/pres/pi-1"


def test_each_side_hears_the_other_and_not_itself() -> None:
    to_server = [topics.presence("m", "d"), topics.join("m", "d"), topics.telemetry("m", "d"),
                 topics.upload("m", "d", 1, 0)]  # fmt: skip
    to_device = [topics.round_state("m"), topics.down("m", "d", "welcome"), topics.catch_up("m", "d", 1, 0)]
    of_server = topics.server_filters("m")
    of_device = topics.device_filters("m", "d")
    for topic in to_server:
        assert sum(matches(f, topic) for f in of_server) == 1 and not any(matches(f, topic) for f in of_device)
    for topic in to_device:
        assert sum(matches(f, topic) for f in of_device) == 1 and not any(matches(f, topic) for f in of_server)
    assert matches(topics.broadcast_filter("m"), topics.broadcast("m", 1, 0))
    assert not any(matches(f, topics.down("m", "d2", "accept")) for f in of_device)


@pytest.mark.parametrize(
    "topic",
    [
        "", "/", "gca/v1/magic", "gca/v1/magic/", "gca/v1/other/round", "gca/v2/magic/round", "/gca/v1/magic/round",
        "x/gca/v1/magic/round", "gca/v1/magic/round/", "gca/v1/magic/round/1", "gca/v1/magic/Round",
        "gca/v1/magic/pres", "gca/v1/magic/pres/", "gca/v1/magic/pres/a/b", "gca/v1/magic/pres/+",
        "gca/v1/magic/join/#",
        "gca/v1/magic/pres/-a", "gca/v1/magic/pres/.a", "gca/v1/magic/pres/a b", "gca/v1/magic/pres/a\n",
        "gca/v1/magic/pres/ä", "gca/v1/magic/pres/" + "a" * 65,
        "gca/v1/magic/up/d/1", "gca/v1/magic/up/d/1/0/0", "gca/v1/magic/up/d//0", "gca/v1/magic/up/d/-1/0",
        "gca/v1/magic/up/d/+1/0", "gca/v1/magic/up/d/1.0/0", "gca/v1/magic/up/d/١/0", "gca/v1/magic/up/d/²/0",
        "gca/v1/magic/up/d/1_0/0", "gca/v1/magic/up/d/ 1/0", "gca/v1/magic/up/d/" + "1" * 11 + "/0",
        "gca/v1/magic/up/d/" + "9" * 5000 + "/0", "gca/v1/magic/bc/1", "gca/v1/magic/bc/x/0",
        "gca/v1/magic/dn/d", "gca/v1/magic/dn/d/", "gca/v1/magic/dn/d/hello", "gca/v1/magic/dn/d/accept/1",
        "gca/v1/magic/dn/d/bc/1", "gca/v1/magic/dn/+/accept", "gca/v1/magic/gca/v1/magic/round", "$SYS/broker/uptime",
    ],
)  # fmt: skip
def test_other_topics_are_refused_in_one_short_line(topic: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(topic, "magic")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.sampled_from(["", "gca/v1/magic/", "gca/v1/magic/up/d/", "gca/v1/magic/dn/"]))
def test_noise_raises_nothing_else(rest: str, head: str) -> None:
    try:
        parse(head + rest, "magic")
    except ProtocolError:
        return
