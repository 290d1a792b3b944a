"""Encoder and parser against bytes worked out by hand from the standard, and against each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_server.broker import packets as mqtt
from broker_server.broker.encode import encode, encode_parts, encoded_size
from broker_server.broker.parse import PacketParser

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
TOPIC = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=40)
FILTER = (
    st.lists(st.one_of(st.just("+"), st.text("ab€/", max_size=3)), min_size=1, max_size=5).map("/".join).filter(bool)
)
PACKET_ID = st.integers(1, 65_535)
QOS = st.integers(0, 2)
BYTES = st.binary(max_size=300)


@st.composite
def publishes(draw: st.DrawFn) -> mqtt.Publish:
    qos = draw(QOS)
    dup = draw(st.booleans()) if qos else False
    return mqtt.Publish(draw(TOPIC), draw(BYTES), qos, draw(st.booleans()), dup, draw(PACKET_ID) if qos else 0)


@st.composite
def connects(draw: st.DrawFn) -> mqtt.Connect:
    will = draw(st.none() | st.builds(mqtt.Will, TOPIC, BYTES, QOS, st.booleans()))
    user = draw(st.none() | TEXT)
    password = draw(st.none() | BYTES) if user is not None else None
    return mqtt.Connect(draw(TEXT), draw(st.booleans()), draw(st.integers(0, 65_535)), will, user, password)


PACKETS = st.one_of(
    publishes(),
    connects(),
    st.builds(mqtt.ConnAck, st.sampled_from(mqtt.ConnectCode), st.booleans()),
    *(st.builds(kind, PACKET_ID) for kind in (mqtt.PubAck, mqtt.PubRec, mqtt.PubRel, mqtt.PubComp, mqtt.UnsubAck)),
    st.builds(mqtt.Subscribe, PACKET_ID, st.lists(st.tuples(FILTER, QOS), min_size=1, max_size=4).map(tuple)),
    st.builds(mqtt.SubAck, PACKET_ID, st.lists(st.sampled_from([0, 1, 2, 128]), min_size=1, max_size=4).map(tuple)),
    st.builds(mqtt.Unsubscribe, PACKET_ID, st.lists(FILTER, min_size=1, max_size=4).map(tuple)),
    st.sampled_from([mqtt.PingReq(), mqtt.PingResp(), mqtt.Disconnect()]),
)


@pytest.mark.parametrize(
    ("packet", "data"),
    [
        (mqtt.Connect("dev", True, 60), b"\x10\x0f\0\4MQTT\4\2\0\x3c\0\3dev"),
        (
            mqtt.Connect("d", False, 10, mqtt.Will("w", b"x", 1, True), "u", b"p"),
            b"\x10\x19\0\4MQTT\4\xec\0\x0a\0\1d\0\1w\0\1x\0\1u\0\1p",
        ),
        (mqtt.ConnAck(mqtt.ConnectCode.NOT_AUTHORISED), b"\x20\2\0\5"),
        (mqtt.ConnAck(session_present=True), b"\x20\2\1\0"),
        (mqtt.Publish("a/b", b"hi"), b"\x30\7\0\3a/bhi"),
        (mqtt.Publish("a", b"hi", 1, True, True, 10), b"\x3b\7\0\1a\0\x0ahi"),
        (mqtt.PubAck(258), b"\x40\2\1\2"),
        (mqtt.PubRec(1), b"\x50\2\0\1"),
        (mqtt.PubRel(1), b"\x62\2\0\1"),
        (mqtt.PubComp(1), b"\x70\2\0\1"),
        (mqtt.Subscribe(1, (("a/+", 1), ("#", 0))), b"\x82\x0c\0\1\0\3a/+\1\0\1#\0"),
        (mqtt.SubAck(1, (0, 1, 2, 128)), b"\x90\6\0\1\0\1\2\x80"),
        (mqtt.Unsubscribe(1, ("a",)), b"\xa2\5\0\1\0\1a"),
        (mqtt.UnsubAck(1), b"\xb0\2\0\1"),
        (mqtt.PingReq(), b"\xc0\0"),
        (mqtt.PingResp(), b"\xd0\0"),
        (mqtt.Disconnect(), b"\xe0\0"),
    ],
)
def test_bytes_by_hand(packet: mqtt.Packet, data: bytes) -> None:
    assert encode(packet) == data
    assert list(PacketParser(1_000).feed(data)) == [packet]


@pytest.mark.parametrize("length", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_remaining_length_at_its_borders(length: int) -> None:
    """Table 2.4; a PUBLISH to a topic of one letter has three bytes before its payload."""
    packet = mqtt.Publish("t", bytes(max(0, length - 3)))
    data = encode(packet)
    header = 2 if length < 128 else 3 if length < 16_384 else 4 if length < 2_097_152 else 5
    assert len(data) == encoded_size(packet) == header + max(3, length)
    assert list(PacketParser(len(data)).feed(data)) == [packet]


@given(PACKETS)
def test_round_trip_and_size(packet: mqtt.Packet) -> None:
    data = encode(packet)
    assert len(data) == encoded_size(packet)
    assert list(PacketParser(10_000).feed(data)) == [packet]


@given(st.lists(PACKETS, min_size=1, max_size=6), st.data())
def test_any_cut_of_the_stream_gives_the_same_packets(packets: list[mqtt.Packet], data: st.DataObject) -> None:
    stream = b"".join(map(encode, packets))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    parser = PacketParser(10_000)
    got = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += parser.feed(stream[begin:end])
    assert got == packets


@settings(max_examples=500)
@given(st.lists(st.one_of(st.binary(max_size=60), PACKETS.map(encode)), max_size=5))
def test_garbage_raises_the_typed_error_only(pieces: list[bytes]) -> None:
    parser = PacketParser(5_000)
    broken = False
    for piece in pieces:
        try:
            list(parser.feed(piece))
        except mqtt.MalformedPacket:
            broken = True
        else:
            assert not broken, "a broken stream came back to life"


@settings(max_examples=500)
@given(PACKETS, st.data())
def test_one_changed_byte_raises_the_typed_error_only(packet: mqtt.Packet, data: st.DataObject) -> None:
    stream = bytearray(encode(packet))
    stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        for parsed in PacketParser(5_000).feed(bytes(stream)):
            encode(parsed)  # whatever was let through is a packet that can be said
    except mqtt.MalformedPacket:
        pass


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\0", id="type 0"),
        pytest.param(b"\x60\2\0\1", id="PUBREL without flags"),
        pytest.param(b"\x38\3\0\1t", id="DUP at QoS 0"),
        pytest.param(b"\x30\2\0\0", id="empty topic"),
        pytest.param(b"\x30\3\0\1\0", id="NUL in topic"),
        pytest.param(b"\x30\5\0\3\xed\xa0\x80", id="surrogate in topic"),
        pytest.param(b"\x30\3\0\2t", id="string longer than the packet"),
        pytest.param(b"\x40\3\0\1x", id="bytes after the last field"),
        pytest.param(b"\x10\x0c\0\4MQTT\4\3\0\0\0\0", id="reserved connect flag"),
        pytest.param(b"\x10\x0f\0\4MQTT\4\x42\0\0\0\0\0\1p", id="password without user"),
        pytest.param(b"\x10\x0c\0\4MQTT\4\x22\0\0\0\0", id="will retain without will"),
        pytest.param(b"\x10\x0c\0\4MQTT\4\x0a\0\0\0\0", id="will QoS without will"),
        pytest.param(b"\x10\x10\0\4MQTT\4\x1e\0\0\0\0\0\0\0\0", id="will with QoS 3"),
        pytest.param(b"\x82\6\0\0\0\1t\0", id="packet id 0 in SUBSCRIBE"),
        pytest.param(b"\x82\x08\0\1\0\3a/#/\0", id="filter cut short"),
        pytest.param(b"\x82\x0a\0\1\0\5a/#/b\0", id="# in the middle"),
        pytest.param(b"\x82\7\0\1\0\2a+\0", id="+ beside a letter"),
        pytest.param(b"\xa2\2\0\1", id="UNSUBSCRIBE of nothing"),
    ],
)
def test_malformed_packets(data: bytes) -> None:
    with pytest.raises(mqtt.MalformedPacket):
        list(PacketParser(1_000).feed(data))


def test_packets_before_the_broken_one_are_kept() -> None:
    stream = PacketParser(1_000).feed(b"\xc0\0\x40\2\0\1\x00\0\xc0\0")
    assert [next(stream), next(stream)] == [mqtt.PingReq(), mqtt.PubAck(1)]
    with pytest.raises(mqtt.MalformedPacket):
        next(stream)


def test_too_large_is_known_from_the_header() -> None:
    """Header of 4 bytes and 100 000 of body; two bytes below, the packet would pass."""
    header = b"\x30\xa0\x8d\x06"
    with pytest.raises(mqtt.PacketTooLarge):
        list(PacketParser(100_003).feed(header))
    assert list(PacketParser(100_004).feed(header)) == []


def test_payload_is_shared_not_copied() -> None:
    packet = mqtt.Publish("t", bytes(10))
    assert encode_parts(packet)[1] is packet.payload


@pytest.mark.parametrize("packet", [mqtt.Publish("t" * 65_536, b""), mqtt.Unsubscribe(1, ("€" * 21_846,))])
def test_unsayable_packets_are_refused(packet: mqtt.Packet) -> None:
    with pytest.raises(mqtt.MalformedPacket):
        encode(packet)
