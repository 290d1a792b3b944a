"""The core by itself: what conformance tests cannot reach, and random packets from several clients."""

import pytest
from broker.faces import MemoryFace
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_server.broker import packets as mqtt
from broker_server.broker.access import Everything, PasswordTable, TopicRules, hash_password, verify_password
from broker_server.broker.core import Broker
from broker_server.broker.counters import Traffic
from broker_server.broker.limits import Limits
from edge_client.errors import ConfigError


def face(**limits: float) -> MemoryFace:
    return MemoryFace(Broker(limits=Limits(**limits)))  # type: ignore[arg-type]


def publish(payload: bytes, packet_id: int = 1, topic: str = "t") -> mqtt.Publish:
    return mqtt.Publish(topic, payload, 1, packet_id=packet_id)


def test_offline_overflow_is_counted_and_warned_about_once() -> None:
    """Room for three; the first three are kept, as they were acknowledged first."""
    net = face(offline_messages=3)
    server = net.open(mqtt.Connect("server", clean_session=False))
    net.send(server, mqtt.Subscribe(1, (("t", 1),)))
    net.lose(server)
    writer = net.open(mqtt.Connect("w"))
    for number in range(5):
        net.send(writer, publish(bytes((number,))))
    net.send(writer, mqtt.Publish("t", b"qos 0"))
    assert net.broker.counters().dropped == {"offline overflow": 2, "offline qos 0": 1}
    assert len(net.warnings) == 1
    assert "'server'" in net.warnings[0]
    again = net.open()
    net.send(again, mqtt.Connect("server", clean_session=False))
    assert [m.payload for m in net.messages(again)] == [b"\0", b"\1", b"\2"]


def test_retained_bytes_are_bounded_and_a_refused_one_leaves_nothing_stale() -> None:
    """A held message counts its topic, its payload and 64 bytes: 165 fit into 200 once."""
    net = face(retained_bytes=200)
    client = net.open(mqtt.Connect("c"))
    net.send(client, mqtt.Publish("a", bytes(100), retain=True))
    net.send(client, mqtt.Publish("b", bytes(100), retain=True))
    assert net.broker.counters().retained == 1
    net.send(client, mqtt.Publish("a", bytes(200), retain=True))
    counters = net.broker.counters()
    assert (counters.retained, counters.retained_bytes, counters.dropped) == (0, 0, {"retained overflow": 2})


def test_counters_to_the_byte() -> None:
    """CONNECT of "w" 15 bytes, of "r" 15; CONNACK 4; SUBSCRIBE 8; SUBACK 5; PUBLISH of 3 bytes to "t" 10; PUBACK 4."""
    net = face()
    reader, writer = net.open(mqtt.Connect("r")), net.open(mqtt.Connect("w"))
    net.send(reader, mqtt.Subscribe(1, (("t", 1),)))
    net.send(writer, publish(b"abc"))
    net.read(writer)
    net.read(reader)
    counters = net.broker.counters()
    assert counters.connections == {"w": Traffic(15 + 10, 4 + 4, 1, 0), "r": Traffic(15 + 8 + 4, 4 + 5 + 10, 0, 1)}
    net.lose(writer)
    counters = net.broker.counters()
    assert counters.total == Traffic(52, 27, 1, 1)
    assert (counters.closed, counters.sessions, counters.backlog) == ({"lost": 1}, 1, 0)
    with pytest.raises(AttributeError):
        counters.sessions = 0  # type: ignore[misc]


def test_a_connection_must_say_who_it_is_in_time() -> None:
    net = face(connect_timeout=10)
    silent = net.open()
    net.wait(9.5)
    assert not net.closed
    net.wait(0.5)
    assert net.closed == {silent: "connect timeout"}


def test_keepalive_is_one_and_a_half_and_zero_means_for_ever() -> None:
    net = face()
    mortal, immortal = net.open(mqtt.Connect("m", keepalive=10)), net.open(mqtt.Connect("i", keepalive=0))
    net.wait(14.9, step=0.1)
    assert not net.closed
    net.broker.bytes_seen(mortal, 1, net.now)
    net.wait(14.9, step=0.1)
    assert not net.closed
    net.wait(0.2, step=0.1)
    assert net.closed == {mortal: "keepalive"}
    net.send(immortal, mqtt.PingReq())
    assert net.read(immortal) == [mqtt.PingResp()]


def test_nothing_happens_before_the_next_deadline() -> None:
    net = face(connect_timeout=100, stall_timeout=100)
    assert net.broker.next_deadline() is None
    net.open()
    assert net.broker.next_deadline() == 100
    net.open(mqtt.Connect("c", keepalive=10))
    assert net.broker.next_deadline() == 15


def test_wills_that_end_other_clients_are_all_published() -> None:
    """Each will overflows the next client's hard bound; a thousand in a row, without recursion."""
    net = face(high_water=10, low_water=10, hard_bound=10)
    chain = []
    for number in range(1_000):
        will = mqtt.Will(f"t/{number + 1}", bytes(100))
        chain.append(net.open(mqtt.Connect(f"c{number}", will=will)))
        net.send(chain[-1], mqtt.Subscribe(1, ((f"t/{number}", 0),)))
        net.read(chain[-1])
    net.lose(chain[0])
    assert net.closed == {chain[0]: "lost"} | dict.fromkeys(chain[1:], "backlog")


def test_a_session_belongs_to_its_user() -> None:
    table = PasswordTable({name: hash_password(name.encode()) for name in ("a", "b")})
    net = MemoryFace(Broker(table))
    first = net.open(mqtt.Connect("server", clean_session=False, user="a", password=b"a"))
    thief = net.open()
    net.send(thief, mqtt.Connect("server", user="b", password=b"b"))
    assert net.read(thief) == [mqtt.ConnAck(mqtt.ConnectCode.IDENTIFIER_REJECTED)]
    assert net.closed == {thief: "refused identifier_rejected"}
    net.send(first, mqtt.PingReq())
    assert net.read(first) == [mqtt.PingResp()]


@pytest.mark.parametrize("limits", [{"max_sessions": 1}, {"max_subscriptions": 1}])
def test_numbers_of_sessions_and_subscriptions_are_bounded(limits: dict[str, int]) -> None:
    net = face(**limits)
    client = net.open(mqtt.Connect("a"))
    net.send(client, mqtt.Subscribe(1, (("x", 1), ("y", 1), ("x", 0), ("$share/g/x", 1))))
    other = net.open()
    net.send(other, mqtt.Connect("b"))
    (suback,), (connack,) = net.read(client), net.read(other)
    if "max_sessions" in limits:
        assert connack == mqtt.ConnAck(mqtt.ConnectCode.SERVER_UNAVAILABLE)
        assert suback == mqtt.SubAck(1, (1, 1, 0, 128))
    else:
        assert connack == mqtt.ConnAck()
        assert suback == mqtt.SubAck(1, (1, 128, 0, 128))


@pytest.mark.parametrize("user", ["+", "#", "a/b", "%c", None])
def test_names_with_topic_signs_open_no_pattern(user: str | None) -> None:
    hashes = {name: hash_password(b"p") for name in ("+", "#", "a/b", "%c")}
    who = PasswordTable(hashes).identify("victim", user, b"p")
    rules = TopicRules(read=("up/%u/#",), write=("up/%u",))
    if who is not None:
        assert not rules.may_subscribe(who, "up/+/#")
        assert not rules.may_publish(who, "up/victim")
    else:
        assert user is None


def test_client_id_pattern() -> None:
    table = PasswordTable({"u": hash_password(b"p")})
    who = table.identify("dev", "u", b"p")
    assert who is not None
    rules = TopicRules(write=("up/%u/%c",))
    assert rules.may_publish(who, "up/u/dev")
    assert not rules.may_publish(who, "up/u/other")
    assert Everything().may_publish(who, "any")


def test_password_hashes() -> None:
    stored = hash_password(b"secret")
    assert stored != hash_password(b"secret")
    assert verify_password(b"secret", stored)
    assert not verify_password(b"Secret", stored)
    for broken in ("secret", "scrypt$x$8$1$00$00", "plain$4096$8$1$00$00"):
        with pytest.raises(ConfigError):
            PasswordTable({"u": broken})


@pytest.mark.parametrize("limits", [{"high_water": 0}, {"low_water": 10, "high_water": 5}, {"inflight_window": 70_000}])
def test_impossible_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Limits(**limits)


IDS = st.sampled_from(["a", "b", "c"])
TOPICS = st.sampled_from(["x", "x/y", "$SYS/x", "z"])
FILTERS = st.sampled_from(["x", "#", "x/+", "+/y", "$share/g/x", "z"])
SMALL_ID = st.integers(1, 25)
REQUESTS = st.lists(st.tuples(FILTERS, st.integers(0, 2)), min_size=1, max_size=2).map(tuple)
OTHERS = [mqtt.PingReq(), mqtt.Disconnect(), mqtt.ConnAck(), mqtt.SubAck(1, (0,)), "lose", "read", "read all", 0.4, 3.0]
ACTIONS = st.one_of(
    st.builds(
        mqtt.Connect,
        IDS | st.just(""),
        st.booleans(),
        st.integers(0, 3),
        st.none() | st.builds(mqtt.Will, TOPICS, st.just(b"will"), st.integers(0, 2), st.booleans()),
    ),
    st.builds(lambda t, q, r, i: (t, q, r, i), TOPICS, st.integers(0, 2), st.booleans(), SMALL_ID),  # a publish
    st.builds(
        mqtt.Subscribe, SMALL_ID, st.lists(st.tuples(FILTERS, st.integers(0, 2)), min_size=1, max_size=2).map(tuple)
    ),
    st.builds(mqtt.Unsubscribe, SMALL_ID, st.lists(FILTERS, min_size=1, max_size=2).map(tuple)),
    *(st.builds(kind, SMALL_ID) for kind in (mqtt.PubAck, mqtt.PubRec, mqtt.PubRel, mqtt.PubComp)),
    st.sampled_from(OTHERS),
)


@settings(max_examples=1_000, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), ACTIONS), max_size=80))
def test_random_clients_break_nothing_and_no_message_is_invented(script: list[tuple[int, object]]) -> None:
    """The face asserts that nothing is sent to a closed connection; bounds are so tight that all of them are met."""
    net = face(inflight_window=2, low_water=40, high_water=80, hard_bound=600, offline_messages=5, max_sessions=4)
    slots = [net.open() for _ in range(4)]
    published: set[tuple[str, bytes]] = {(topic, b"will") for topic in ("x", "x/y", "z")}
    received: set[tuple[str, bytes]] = set()

    def note(packets: list[mqtt.Packet]) -> None:
        received.update((p.topic, p.payload) for p in packets if isinstance(p, mqtt.Publish))

    for step, (slot, action) in enumerate(script):
        connection = slots[slot]
        if connection in net.closed:
            connection = slots[slot] = net.open()
        match action:
            case float():
                net.wait(action)
            case "lose":
                net.lose(connection)
                slots[slot] = net.open()
            case "read" | "read all":
                note(net.read(connection, 1 if action == "read" else 10**9))
            case (topic, qos, retain, packet_id):
                payload = str(step).encode()
                if not topic.startswith("$"):
                    published.add((topic, payload))
                net.send(connection, mqtt.Publish(topic, payload, qos, retain, packet_id=packet_id if qos else 0))
            case packet:
                net.send(connection, packet)  # type: ignore[arg-type]
        assert net.broker.counters().backlog >= 0
    for _ in range(50):
        for connection in slots:
            note(net.read(connection))
    assert received <= published
    assert not net.paused, "held for ever by clients that have read everything"
    for connection in slots:
        net.lose(connection)
    assert net.broker.counters().connections == {}
