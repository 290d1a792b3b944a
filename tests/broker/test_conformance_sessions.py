"""What both brokers must do with clients that come, vanish and come back (MQTT 3.1.1 sections 3.1, 4.1, 4.4)."""

import asyncio

from brokers import RunningBroker, connected, open_socket

from broker_server.broker import packets as mqtt

WILL = mqtt.Will("will/dev", b"gone", 1)


async def test_will_is_published_when_the_connection_is_reset(broker: RunningBroker) -> None:
    async with connected(broker, "watcher") as watcher:
        await watcher.subscribe(("will/+", 1))
        async with connected(broker, "dev", will=WILL) as device:
            device.reset()
            assert [(m.topic, m.payload, m.qos) for m in await watcher.take(1)] == [("will/dev", b"gone", 1)]
        await watcher.silent()


async def test_will_is_published_when_the_keepalive_runs_out(broker: RunningBroker) -> None:
    async with connected(broker, "watcher") as watcher:
        await watcher.subscribe(("will/+", 1))
        async with connected(broker, "dev", will=WILL, keepalive=1) as device:
            assert [m.payload for m in await watcher.take(1)] == [b"gone"]
            assert await device.closed() == []


async def test_bytes_of_an_unfinished_packet_keep_a_client_alive(broker: RunningBroker) -> None:
    """A slow upload: no whole packet for four times the keepalive of 1 s, but a byte every 0.2 s."""
    async with connected(broker, "watcher") as watcher:
        await watcher.subscribe(("#", 1))
        async with connected(broker, "slow", will=WILL, keepalive=1) as device:
            device.writer.write(bytes((0x30, 2 + 1 + 20)) + b"\0\1t")
            for _ in range(20):
                await asyncio.sleep(0.2)
                device.writer.write(b"x")
            assert [(m.topic, m.payload) for m in await watcher.take(1)] == [("t", b"x" * 20)]


async def test_no_will_after_disconnect(broker: RunningBroker) -> None:
    async with connected(broker, "watcher") as watcher:
        await watcher.subscribe(("will/+", 1))
        async with connected(broker, "dev", will=WILL) as device:
            await device.disconnect()
        await watcher.silent()


async def test_retained_will_is_there_for_late_subscribers(broker: RunningBroker) -> None:
    async with connected(broker, "watcher") as watcher:
        await watcher.subscribe(("will/+", 1))
        async with connected(broker, "dev", will=mqtt.Will("will/dev", b"gone", 1, retain=True)) as device:
            device.reset()
            await watcher.take(1)
    async with connected(broker, "late") as late:
        await late.subscribe(("will/#", 1))
        assert [(m.payload, m.retain) for m in await late.take(1)] == [(b"gone", True)]


async def test_second_client_with_the_same_id_takes_over(broker: RunningBroker) -> None:
    """Section 3.1.4: the first is closed, its will is due, the second works."""
    async with connected(broker, "watcher") as watcher:
        await watcher.subscribe(("will/+", 1))
        async with connected(broker, "dev", will=WILL) as first, connected(broker, "dev") as second:
            assert await first.closed() == []
            assert [m.payload for m in await watcher.take(1)] == [b"gone"]
            await second.subscribe(("t", 1))
            await watcher.publish("t", b"x", 1)
            assert [m.payload for m in await second.take(1)] == [b"x"]


async def test_take_over_keeps_a_persistent_session(broker: RunningBroker) -> None:
    async with connected(broker, "server", clean_session=False) as first:
        assert not first.session_present
        await first.subscribe(("t", 1))
        async with connected(broker, "server", clean_session=False) as second, connected(broker, "w") as writer:
            assert second.session_present
            await first.closed()
            await writer.publish("t", b"x", 1)
            assert [m.payload for m in await second.take(1)] == [b"x"]


async def test_absent_session_gets_all_that_it_missed(broker: RunningBroker) -> None:
    """100 x 1 kB and one of 1.4 MB, in order."""
    async with connected(broker, "server", clean_session=False) as server:
        await server.subscribe(("up/#", 1))
        await server.disconnect()
    payloads = [bytes((number,)) * 1_000 for number in range(100)] + [bytes(1_400_000)]
    async with connected(broker, "w") as writer:
        for payload in payloads:
            await writer.publish("up/x", payload, 1)
    async with connected(broker, "server", clean_session=False) as server:
        assert server.session_present
        assert [m.payload for m in await server.take(101)] == payloads
        await server.silent()


async def test_clean_session_forgets(broker: RunningBroker) -> None:
    async with connected(broker, "c", clean_session=False) as client:
        await client.subscribe(("t", 1))
    async with connected(broker, "c") as client:
        assert not client.session_present
        await client.publish("t", b"x", 1)
        await client.silent()
    async with connected(broker, "c", clean_session=False) as client:
        assert not client.session_present


async def test_unacknowledged_messages_come_again_with_dup_and_the_same_id(broker: RunningBroker) -> None:
    """Section 4.4. Of five, the second and the fourth were acknowledged, out of order."""
    async with connected(broker, "w") as writer:
        async with connected(broker, "server", clean_session=False) as server:
            await server.subscribe(("t", 1))
            for number in range(5):
                await writer.publish("t", bytes((number,)), 1)
            first = await server.take(5, acknowledge=False)
            assert not any(m.dup for m in first)
            for index in (3, 1):
                server.write(mqtt.PubAck(first[index].packet_id))
            await server.silent()
            server.reset()
        async with connected(broker, "server", clean_session=False) as server:
            again = await server.take(3)
            assert [(m.payload, m.packet_id, m.dup) for m in again] == [
                (bytes((n,)), first[n].packet_id, True) for n in (0, 2, 4)
            ]
            await server.silent()


async def test_window_of_20_and_acknowledgements_out_of_order(broker: RunningBroker) -> None:
    """One acknowledgement releases one message.

    mosquitto before 2.0.13 releases a whole window for each one, so there only the first window and completeness are
    asserted.
    """
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        await reader.subscribe(("t", 1))
        for number in range(60):
            await writer.publish("t", bytes((number,)), 1)
        window = await reader.take(20, acknowledge=False)
        await reader.silent()
        assert len({m.packet_id for m in window}) == 20
        if broker.kind == "embedded":
            got = list(window)
            for _ in range(20):  # always the youngest first
                reader.write(mqtt.PubAck(window.pop().packet_id))
                got += await reader.take(1, acknowledge=False)
                await reader.silent()
            window = got[20:]
            for message in reversed(window):
                reader.write(mqtt.PubAck(message.packet_id))
            got += await reader.take(20)
        else:
            got = list(window)
            for message in reversed(window):
                reader.write(mqtt.PubAck(message.packet_id))
            got += await reader.take(40)
        assert [m.payload[0] for m in got] == list(range(60))
        await reader.silent()


async def test_acknowledging_an_unknown_id_is_harmless(broker: RunningBroker) -> None:
    async with connected(broker, "c") as client:
        client.write(mqtt.PubAck(77))
        await client.silent()


async def test_other_protocol_levels_are_refused_with_code_1(broker: RunningBroker) -> None:
    client = await open_socket(broker)
    client.writer.write(bytes((0x10, 12)) + b"\0\4MQTT\x63\2\0\x3c\0\0")
    (answer,) = await client.closed()
    assert answer == mqtt.ConnAck(mqtt.ConnectCode.UNACCEPTABLE_PROTOCOL)


async def test_empty_client_id_is_taken_for_a_clean_session_only(broker: RunningBroker) -> None:
    """Section 3.1.3.1."""
    async with connected(broker, "") as one, connected(broker, "") as other:
        await one.silent()
        await other.silent()
    client = await open_socket(broker)
    client.write(mqtt.Connect("", clean_session=False))
    assert await client.closed() == [mqtt.ConnAck(mqtt.ConnectCode.IDENTIFIER_REJECTED)]


async def test_first_packet_must_be_connect_and_no_second_one(broker: RunningBroker) -> None:
    client = await open_socket(broker)
    client.write(mqtt.PingReq())
    assert await client.closed() == []
    async with connected(broker, "c") as client:
        client.write(mqtt.Connect("c"))
        assert await client.closed() == []


async def test_restarted_broker_serves_on_the_same_port(broker: RunningBroker) -> None:
    async with connected(broker, "c") as client:
        await broker.restart()
        await client.closed()
    async with connected(broker, "c") as client:
        await client.silent()
