"""From packet values to the bytes of MQTT 3.1.1, and their number without writing them."""

from struct import pack

from broker_server.broker.packets import (
    MAX_REMAINING_LENGTH,
    MAX_STRING_BYTES,
    ConnAck,
    Connect,
    Disconnect,
    MalformedPacket,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)

# First bytes of the packets that hold nothing but a packet id; PUBREL has a fixed flag 0b0010 (section 3.6.1).
_ACKNOWLEDGEMENTS = {
    PubAck: PacketType.PUBACK << 4,
    PubRec: PacketType.PUBREC << 4,
    PubRel: PacketType.PUBREL << 4 | 2,
    PubComp: PacketType.PUBCOMP << 4,
    UnsubAck: PacketType.UNSUBACK << 4,
}
_EMPTY = {
    PingReq: bytes((PacketType.PINGREQ << 4, 0)),
    PingResp: bytes((PacketType.PINGRESP << 4, 0)),
    Disconnect: bytes((PacketType.DISCONNECT << 4, 0)),
}


def encode(packet: Packet) -> bytes:
    """Return the whole packet as one byte string.

    Raises:
        MalformedPacket: a string or the packet is longer than the format can say.
    """
    head, payload = encode_parts(packet)
    return head + payload if payload else head


def encode_parts(packet: Packet) -> tuple[bytes, bytes]:
    """Return (head, payload); the payload is the very object of the PUBLISH, so that a fan-out copies nothing."""
    if isinstance(packet, Publish):
        return _publish_head(packet), packet.payload
    kind = type(packet)
    if kind in _ACKNOWLEDGEMENTS:
        return pack("!BBH", _ACKNOWLEDGEMENTS[kind], 2, packet.packet_id), b""  # type: ignore[union-attr]
    if kind in _EMPTY:
        return _EMPTY[kind], b""
    return _long_packet(packet), b""


def encoded_size(packet: Packet) -> int:
    """Return len(encode(packet)) in bytes, for a PUBLISH without touching its payload."""
    if isinstance(packet, Publish):
        topic = packet.topic
        length = 2 + (len(topic) if topic.isascii() else len(topic.encode())) + len(packet.payload)
        if packet.qos:
            length += 2
        return 1 + _length_bytes(length) + length
    kind = type(packet)
    if kind in _ACKNOWLEDGEMENTS:
        return 4
    if kind in _EMPTY:
        return 2
    return len(_long_packet(packet))


def _publish_head(packet: Publish) -> bytes:
    """Section 3.3.1 and 3.3.2: everything before the payload."""
    variable = _string(packet.topic)
    if packet.qos:
        variable += pack("!H", packet.packet_id)
    first = PacketType.PUBLISH << 4 | packet.dup << 3 | packet.qos << 1 | packet.retain
    return _fixed_header(first, len(variable) + len(packet.payload)) + variable


def _long_packet(packet: Packet) -> bytes:
    match packet:
        case Connect():
            first, body = PacketType.CONNECT << 4, _connect_body(packet)
        case ConnAck():
            first, body = PacketType.CONNACK << 4, bytes((packet.session_present, packet.code))
        case Subscribe():
            requests = b"".join(_string(filter_) + bytes((qos,)) for filter_, qos in packet.requests)
            first, body = PacketType.SUBSCRIBE << 4 | 2, pack("!H", packet.packet_id) + requests
        case SubAck():
            first, body = PacketType.SUBACK << 4, pack("!H", packet.packet_id) + bytes(packet.codes)
        case Unsubscribe():
            filters = b"".join(map(_string, packet.filters))
            first, body = PacketType.UNSUBSCRIBE << 4 | 2, pack("!H", packet.packet_id) + filters
        case _:
            raise TypeError(f"not an MQTT packet: {type(packet).__name__}")
    return _fixed_header(first, len(body)) + body


def _connect_body(packet: Connect) -> bytes:
    """Sections 3.1.2 and 3.1.3."""
    flags = packet.clean_session << 1
    fields = [_string(packet.client_id)]
    if packet.will is not None:
        flags |= 4 | packet.will.qos << 3 | packet.will.retain << 5
        fields += [_string(packet.will.topic), _binary(packet.will.payload)]
    if packet.user is not None:
        flags |= 0x80
        fields.append(_string(packet.user))
    if packet.password is not None:
        flags |= 0x40
        fields.append(_binary(packet.password))
    return _string(packet.name) + pack("!BBH", packet.level, flags, packet.keepalive) + b"".join(fields)


def _fixed_header(first: int, length: int) -> bytes:
    """Section 2.2: type and flags, then the remaining length, seven bits a byte, low bits first."""
    if length > MAX_REMAINING_LENGTH:
        raise MalformedPacket(f"a packet of {length} bytes is above MQTT's {MAX_REMAINING_LENGTH}; send it in chunks")
    header = bytearray((first,))
    while length > 127:
        header.append(length & 127 | 128)
        length >>= 7
    header.append(length)
    return bytes(header)


def _length_bytes(length: int) -> int:
    """How many bytes the remaining length takes, table 2.4."""
    return 1 if length < 128 else 2 if length < 16_384 else 3 if length < 2_097_152 else 4


def _string(text: str) -> bytes:
    return _binary(text.encode())


def _binary(data: bytes) -> bytes:
    if len(data) > MAX_STRING_BYTES:
        raise MalformedPacket(f"a field of {len(data)} bytes is above MQTT's {MAX_STRING_BYTES}; shorten it")
    return pack("!H", len(data)) + data
