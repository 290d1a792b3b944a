"""Bounded memory, and the promise that bounding it stops nobody who behaves."""

from broker.faces import MemoryFace
from hypothesis import example, given
from hypothesis import strategies as st

from broker_server.broker import packets as mqtt
from broker_server.broker.core import Broker
from broker_server.broker.limits import Limits

LIMITS = Limits(low_water=5_000, high_water=10_000, hard_bound=50_000, reading_grace=5, stall_timeout=20)
MESSAGE = bytes(1_000)
HELD = 1_000 + 1 + 64  # what one waiting message to topic "t" counts


def open_net(limits: Limits = LIMITS) -> MemoryFace:
    return MemoryFace(Broker(limits=limits))


def subscriber(net: MemoryFace, name: str = "reader", qos: int = 1, **fields: object) -> int:
    connection = net.open(mqtt.Connect(name, **fields))  # type: ignore[arg-type]
    net.send(connection, mqtt.Subscribe(1, ((f"to/{name}", qos), ("t", qos))))
    net.read(connection)
    return connection


def publish(net: MemoryFace, connection: int, topic: str = "t") -> None:
    net.send(connection, mqtt.Publish(topic, MESSAGE, 1, packet_id=1))
    net.read(connection)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.integers(1, 5))
@example([1, 0, 0, 0, 1, 0, 0, 0, 1], 1)
def test_backlog_stays_below_high_water_and_one_message_for_each_publisher(reads: list[int], publishers: int) -> None:
    """Publishers send whenever they are read; the subscriber takes a few packets a second, with rests below the grace
    beyond which nobody would wait for it, and loses none."""
    net = open_net()
    reader = subscriber(net, keepalive=0)
    writers = [net.open(mqtt.Connect(f"w{n}", keepalive=0)) for n in range(publishers)]
    sent = got = 0
    for second, take in enumerate(reads):
        take = take if any(reads[max(0, second - 3) : second + 1]) else 1
        for writer in writers * 8:
            if writer not in net.paused:
                publish(net, writer)
                sent += 1
        assert net.broker.counters().backlog <= LIMITS.high_water + publishers * HELD
        net.wait(1)
        got += len([p for p in net.read(reader, take) if isinstance(p, mqtt.Publish)])
        if reader in net.closed:
            break
    if reader not in net.closed:
        got += len(net.messages(reader))
        assert got == sent
        assert not net.paused


def test_publishers_run_again_at_low_water() -> None:
    net = open_net()
    reader, writer = subscriber(net), net.open(mqtt.Connect("w"))
    while writer not in net.paused:
        publish(net, writer)
    backlog = net.broker.counters().backlog
    assert backlog > LIMITS.high_water
    while writer in net.paused:
        before = net.broker.counters().backlog
        net.read(reader, 1)
    assert net.broker.counters().backlog <= LIMITS.low_water < before


def test_only_those_who_publish_to_the_slow_one_are_held() -> None:
    net = open_net()
    subscriber(net, "slow")
    fast = subscriber(net, "fast")
    one, other = net.open(mqtt.Connect("w1")), net.open(mqtt.Connect("w2"))
    while one not in net.paused:
        publish(net, one, "to/slow")
    for _ in range(50):
        publish(net, other, "to/fast")
        assert len(net.messages(fast)) == 1
    assert net.paused == {one}


def test_held_publisher_outlives_its_keepalive_and_is_let_through_at_times() -> None:
    """Held for 100 s with a keepalive of 8 s: one packet passes every 2 s, twice what the reader takes."""
    net = open_net(Limits(low_water=1, high_water=10_000, hard_bound=10**9, reading_grace=5, stall_timeout=1_000))
    reader = subscriber(net, keepalive=0)
    writer = net.open(mqtt.Connect("w", keepalive=8, will=mqtt.Will("gone", b"")))
    while writer not in net.paused:
        publish(net, writer)
    passed = 0
    for second in range(100):
        net.wait(1)
        net.read(reader, second % 4 == 0)
        if writer not in net.paused:
            passed += 1
            publish(net, writer)
            assert writer in net.paused
    assert writer not in net.closed
    assert 45 <= passed <= 50


def test_a_late_tick_does_not_count_against_a_held_publisher() -> None:
    """The loop was busy for 100 s; what the publisher sent meanwhile could not be read."""
    net = open_net(Limits(low_water=1, high_water=10_000, hard_bound=10**9, stall_timeout=1_000))
    writer = net.open(mqtt.Connect("w", keepalive=8))
    subscriber(net, keepalive=0)
    while writer not in net.paused:
        publish(net, writer)
    net.wait(100, step=100)
    assert writer not in net.paused
    net.wait(11.5)
    assert not net.closed
    net.wait(0.5)
    assert net.closed == {writer: "keepalive"}


def test_held_publisher_that_died_is_noticed() -> None:
    net = open_net(Limits(low_water=1, high_water=10_000, hard_bound=10**9, stall_timeout=1_000))
    reader = subscriber(net, keepalive=0)
    writer = net.open(mqtt.Connect("w", keepalive=8))
    while writer not in net.paused:
        publish(net, writer)
    for _ in range(15):
        net.wait(1)
        net.read(reader, 1)
    assert net.closed == {writer: "keepalive"}


def test_stalled_subscriber_holds_for_its_grace_only_and_is_closed() -> None:
    net = open_net()
    stalled, fast, writer = subscriber(net, "stalled"), subscriber(net, "fast"), net.open(mqtt.Connect("w"))
    got = 0
    while writer not in net.paused:
        publish(net, writer)
        got += len(net.messages(fast))
    net.wait(LIMITS.reading_grace)
    assert writer not in net.paused
    for _ in range(20):
        publish(net, writer)
        got += len(net.messages(fast))
        assert writer not in net.paused
    assert got == net.broker.counters().total.messages_received
    net.wait(LIMITS.stall_timeout - LIMITS.reading_grace - 1)
    assert stalled not in net.closed
    net.wait(1)
    assert net.closed == {stalled: "stalled"}


def test_hard_bound_closes_and_a_persistent_session_keeps_all_messages() -> None:
    net = open_net()
    server, writer = (
        subscriber(net, "server", clean_session=False, keepalive=0),
        net.open(mqtt.Connect("w", keepalive=0)),
    )
    sent = 0
    while server not in net.closed:
        if writer in net.paused:
            net.wait(LIMITS.reading_grace)
        publish(net, writer)
        sent += 1
        assert net.broker.counters().backlog <= LIMITS.hard_bound + HELD
    assert net.closed == {server: "backlog"}
    assert len(net.warnings) == 1
    again = net.open()
    net.send(again, mqtt.Connect("server", clean_session=False))
    ids = [m.packet_id for m in net.messages(again)]
    assert len(ids) == sent


def test_pings_alone_are_no_sign_of_reading() -> None:
    """It reads what it is sent and pings, but acknowledges nothing, so its queue never moves."""
    net = open_net()
    mute, writer = subscriber(net, "mute"), net.open(mqtt.Connect("w", keepalive=0))
    while writer not in net.paused:
        publish(net, writer)
        net.read(mute, acknowledge=False)
    for _ in range(6):
        net.wait(1)
        net.send(mute, mqtt.PingReq())
        net.read(mute, acknowledge=False)
    assert writer not in net.paused


def test_two_that_publish_to_each_other_do_not_wait_for_each_other() -> None:
    """A held client goes on reading, but its acknowledgements reach nobody. No time passes, so no grace helps out."""
    net = open_net(Limits(inflight_window=2, low_water=5_000, high_water=10_000, hard_bound=10**9))
    pair = {subscriber(net, "a", keepalive=0): "to/b", subscriber(net, "b", keepalive=0): "to/a"}
    late: dict[int, list[mqtt.Packet]] = {client: [] for client in pair}
    got = 0
    to_send = dict.fromkeys(pair, 300)
    for _ in range(2_000):
        for me, topic in pair.items():
            while late[me] and me not in net.paused:
                net.send(me, late[me].pop(0))
            for _ in range(3):
                if to_send[me] and me not in net.paused:
                    to_send[me] -= 1
                    net.send(me, mqtt.Publish(topic, MESSAGE, 1, packet_id=1))
            for packet in net.read(me, 2, acknowledge=False):
                if isinstance(packet, mqtt.Publish):
                    got += 1
                    late[me].append(mqtt.PubAck(packet.packet_id))
    assert got == 600
    assert not net.paused
    assert not net.closed


def test_client_that_does_not_read_its_answers_is_not_read() -> None:
    net = open_net()
    client = net.open(mqtt.Connect("c"))
    count = 0
    while client not in net.paused:
        net.send(client, mqtt.PingReq())
        count += 1
    assert count == LIMITS.high_water // 2 + 1
    net.read(client, count // 2 + 1)
    assert client not in net.paused
