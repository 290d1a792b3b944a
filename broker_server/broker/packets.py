"""MQTT 3.1.1 control packets as frozen values (OASIS standard, chapter 3).

A packet says what was meant, not how it is written: `encode.py` turns it into bytes, `parse.py` back. The broker
core only ever sees these values, so that virtual time can pass them around without encoding anything.
"""

from enum import IntEnum

from msgspec import Struct

from edge_client.errors import ProtocolError

PROTOCOL_NAME = "MQTT"
PROTOCOL_LEVEL = 4
MAX_REMAINING_LENGTH = 268_435_455  # four length bytes of seven bits, section 2.2.3
MAX_STRING_BYTES = 65_535  # two length bytes, section 1.5.3
SUBSCRIPTION_REFUSED = 0x80


class MalformedPacket(ProtocolError):
    """The bytes break MQTT 3.1.1; the connection that sent them has to be closed (section 4.8)."""


class PacketTooLarge(MalformedPacket):
    """The fixed header announces more bytes than this receiver takes."""


class PacketType(IntEnum):
    """High four bits of the first byte, table 2.1."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class ConnectCode(IntEnum):
    """Return codes of CONNACK, table 3.1."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_CREDENTIALS = 4
    NOT_AUTHORISED = 5


class Will(Struct, frozen=True, gc=False):
    """What the broker publishes for a client that vanishes (section 3.1.2.5)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Connect(Struct, frozen=True, gc=False):
    """Section 3.1. With another `level` or `name` only these two are filled: the rest may be laid out differently."""

    client_id: str = ""
    clean_session: bool = True
    keepalive: int = 60
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None
    name: str = PROTOCOL_NAME
    level: int = PROTOCOL_LEVEL


class ConnAck(Struct, frozen=True, gc=False):
    """Section 3.2."""

    code: ConnectCode = ConnectCode.ACCEPTED
    session_present: bool = False


class Publish(Struct, frozen=True, gc=False):
    """Section 3.3. `packet_id` is 0 exactly when `qos` is 0, or while a broker has not yet chosen one."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0


class PubAck(Struct, frozen=True, gc=False):
    """Section 3.4."""

    packet_id: int


class PubRec(Struct, frozen=True, gc=False):
    """Section 3.5."""

    packet_id: int


class PubRel(Struct, frozen=True, gc=False):
    """Section 3.6."""

    packet_id: int


class PubComp(Struct, frozen=True, gc=False):
    """Section 3.7."""

    packet_id: int


class Subscribe(Struct, frozen=True, gc=False):
    """Section 3.8; pairs of topic filter and requested QoS, at least one."""

    packet_id: int
    requests: tuple[tuple[str, int], ...]


class SubAck(Struct, frozen=True, gc=False):
    """Section 3.9; one code per request: the granted QoS or `SUBSCRIPTION_REFUSED`."""

    packet_id: int
    codes: tuple[int, ...]


class Unsubscribe(Struct, frozen=True, gc=False):
    """Section 3.10; at least one topic filter."""

    packet_id: int
    filters: tuple[str, ...]


class UnsubAck(Struct, frozen=True, gc=False):
    """Section 3.11."""

    packet_id: int


class PingReq(Struct, frozen=True, gc=False):
    """Section 3.12."""


class PingResp(Struct, frozen=True, gc=False):
    """Section 3.13."""


class Disconnect(Struct, frozen=True, gc=False):
    """Section 3.14."""


Packet = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
)
