"""From bytes to packet values, piece by piece, trusting nothing.

Whatever can be refused from the first few bytes is refused there: reserved flags and the announced size are checked
before a body is buffered, so a hostile peer cannot make the receiver hold more than `max_packet_size` and one read.
"""

from collections.abc import Callable, Iterator

from broker_server.broker.packets import (
    PROTOCOL_LEVEL,
    PROTOCOL_NAME,
    SUBSCRIPTION_REFUSED,
    ConnAck,
    Connect,
    ConnectCode,
    Disconnect,
    MalformedPacket,
    Packet,
    PacketTooLarge,
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
    Will,
)
from broker_server.broker.topics import check_filter, check_topic

# Flag bits that table 2.2 fixes for each type; PUBLISH is the only one with free flags.
_FIXED_FLAGS = {kind: 0 for kind in PacketType if kind is not PacketType.PUBLISH} | {
    PacketType.PUBREL: 2,
    PacketType.SUBSCRIBE: 2,
    PacketType.UNSUBSCRIBE: 2,
}


class PacketParser:
    """Cuts a byte stream into packets; the cuts of the stream do not matter.

    Args:
        max_packet_size: bytes of a whole packet, header included, above which it is refused unread.
    """

    def __init__(self, max_packet_size: int) -> None:
        self.max_packet_size = max_packet_size
        self._buffer = bytearray()
        self._error: MalformedPacket | None = None

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Take `data` in and yield the packets that are whole by now.

        Raises:
            MalformedPacket: while iterating, after the packets before the broken one; and at every later call.
        """
        self._buffer += data
        return self._whole_packets()

    def _whole_packets(self) -> Iterator[Packet]:
        start = 0
        try:
            if self._error is not None:
                raise self._error
            while (span := self._next_span(start)) is not None:
                body, end = span
                with memoryview(self._buffer) as view:
                    packet = _decode(view[start], _Fields(view[body:end]))
                start = end
                yield packet
        except MalformedPacket as error:
            self._error = error
            self._buffer = bytearray()  # not cleared in place: the traceback still holds views of the old one
            raise
        finally:
            del self._buffer[:start]

    def _next_span(self, start: int) -> tuple[int, int] | None:
        """Return (begin of body, end of packet) if the packet at `start` is whole, None if more bytes are needed."""
        buffer = self._buffer
        if start >= len(buffer):
            return None
        _check_first_byte(buffer[start])
        length = 0
        for index in range(4):
            position = start + 1 + index
            if position >= len(buffer):
                return None
            byte = buffer[position]
            length |= (byte & 127) << 7 * index
            if byte < 128:
                body = position + 1
                end = body + length
                size, limit = end - start, self.max_packet_size
                if size > limit:
                    raise PacketTooLarge(f"packet of {size} bytes; this receiver takes {limit}; send chunks")
                return (body, end) if end <= len(buffer) else None
        raise MalformedPacket("remaining length has more than four bytes (section 2.2.3)")


class _Fields:
    """Reads one packet body field by field; running short is malformed."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._view) - self._at

    def byte(self) -> int:
        return self._take(1)[0]

    def integer(self) -> int:
        """Two bytes, high one first (section 1.5.2)."""
        pair = self._take(2)
        return pair[0] << 8 | pair[1]

    def packet_id(self) -> int:
        number = self.integer()
        if number == 0:
            raise MalformedPacket("packet identifier 0 (section 2.3.1)")
        return number

    def binary(self) -> bytes:
        return bytes(self._take(self.integer()))

    def text(self) -> str:
        """UTF-8 without NUL and without surrogates (section 1.5.3); Python's strict decoder refuses the surrogates."""
        try:
            text = str(self._take(self.integer()), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedPacket("string is not UTF-8 (section 1.5.3)") from error
        if "\0" in text:
            raise MalformedPacket("string holds NUL (section 1.5.3)")
        return text

    def rest(self) -> bytes:
        return bytes(self._take(self.left))

    def end(self) -> None:
        if self.left:
            raise MalformedPacket(f"{self.left} bytes after the last field")

    def _take(self, count: int) -> memoryview:
        if count > self.left:
            raise MalformedPacket(f"packet ends inside a field: {count} bytes wanted, {self.left} left")
        piece = self._view[self._at : self._at + count]
        self._at += count
        return piece


def _check_first_byte(first: int) -> None:
    kind, flags = first >> 4, first & 15
    if kind == PacketType.PUBLISH:
        if flags & 6 == 6:
            raise MalformedPacket("PUBLISH with QoS 3 (section 3.3.1.2)")
        if flags & 14 == 8:
            raise MalformedPacket("PUBLISH with DUP at QoS 0 (section 3.3.1.1)")
    elif _FIXED_FLAGS.get(kind) != flags:  # type: ignore[call-overload]
        raise MalformedPacket(f"reserved type or flags in first byte {first:#04x} (section 2.2)")


def _decode(first: int, fields: _Fields) -> Packet:
    kind = PacketType(first >> 4)
    packet = _publish(first, fields) if kind is PacketType.PUBLISH else _DECODERS[kind](fields)
    fields.end()
    return packet


def _publish(first: int, fields: _Fields) -> Publish:
    topic = fields.text()
    check_topic(topic)
    qos = first >> 1 & 3
    packet_id = fields.packet_id() if qos else 0
    return Publish(topic, fields.rest(), qos, bool(first & 1), bool(first & 8), packet_id)


def _connect(fields: _Fields) -> Connect:
    name, level = fields.text(), fields.byte()
    if name != PROTOCOL_NAME or level != PROTOCOL_LEVEL:
        fields.rest()  # another version lays the rest out in its own way; the broker answers with return code 1
        return Connect(name=name, level=level)
    flags, keepalive = fields.byte(), fields.integer()
    if flags & 1:
        raise MalformedPacket("reserved connect flag is set (section 3.1.2.3)")
    client_id = fields.text()
    will = _will(flags, fields)
    if flags & 0x40 and not flags & 0x80:
        raise MalformedPacket("password without user name (section 3.1.2.9)")
    user = fields.text() if flags & 0x80 else None
    password = fields.binary() if flags & 0x40 else None
    return Connect(client_id, bool(flags & 2), keepalive, will, user, password)


def _will(flags: int, fields: _Fields) -> Will | None:
    qos = flags >> 3 & 3
    if not flags & 4:
        if flags & 0x38:
            raise MalformedPacket("will QoS or retain without a will (sections 3.1.2.6, 3.1.2.7)")
        return None
    if qos == 3:
        raise MalformedPacket("will with QoS 3 (section 3.1.2.6)")
    topic = fields.text()
    check_topic(topic)
    return Will(topic, fields.binary(), qos, bool(flags & 0x20))


def _connack(fields: _Fields) -> ConnAck:
    flags, code = fields.byte(), fields.byte()
    if flags > 1 or code > max(ConnectCode):
        raise MalformedPacket(f"CONNACK with flags {flags} and code {code} (section 3.2.2)")
    return ConnAck(ConnectCode(code), bool(flags))


def _subscribe(fields: _Fields) -> Subscribe:
    packet_id = fields.packet_id()
    requests: list[tuple[str, int]] = []
    while fields.left or not requests:  # an empty list runs short, as section 3.8.3 demands
        filter_ = fields.text()
        check_filter(filter_)
        qos = fields.byte()
        if qos > 2:
            raise MalformedPacket(f"SUBSCRIBE asks for QoS byte {qos} (section 3.8.3)")
        requests.append((filter_, qos))
    return Subscribe(packet_id, tuple(requests))


def _suback(fields: _Fields) -> SubAck:
    packet_id, codes = fields.packet_id(), fields.rest()
    if not codes or any(code > 2 and code != SUBSCRIPTION_REFUSED for code in codes):
        raise MalformedPacket("SUBACK without valid return codes (section 3.9.3)")
    return SubAck(packet_id, tuple(codes))


def _unsubscribe(fields: _Fields) -> Unsubscribe:
    packet_id = fields.packet_id()
    filters: list[str] = []
    while fields.left or not filters:
        filter_ = fields.text()
        check_filter(filter_)
        filters.append(filter_)
    return Unsubscribe(packet_id, tuple(filters))


_DECODERS: dict[PacketType, Callable[[_Fields], Packet]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBACK: lambda fields: PubAck(fields.packet_id()),
    PacketType.PUBREC: lambda fields: PubRec(fields.packet_id()),
    PacketType.PUBREL: lambda fields: PubRel(fields.packet_id()),
    PacketType.PUBCOMP: lambda fields: PubComp(fields.packet_id()),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: lambda fields: UnsubAck(fields.packet_id()),
    PacketType.PINGREQ: lambda _: PingReq(),
    PacketType.PINGRESP: lambda _: PingResp(),
    PacketType.DISCONNECT: lambda _: Disconnect(),
}
